"""Executions as people look at them: a line each, or all that was recorded of one. Pure: rows and entries in,
values out.

Nothing here shows a program's arguments, the results of its steps, or the text of their errors, except with `reveal`.
Paths, kinds, effects, times and fingerprints are always shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal
from uuid import UUID

import msgspec

from holdfast.errors import NotFound
from holdfast.execution.journal.entries import (
    ENDED,
    Administered,
    AmbiguityResolved,
    Ended,
    Entry,
    ExecutionRow,
    Folded,
    Forked,
    Opened,
    decode_entry,
)
from holdfast.execution.journal.execution_id import ExecutionId
from holdfast.execution.journal.execution_record import ExecutionRecord, StepRecord

StepKind = Literal["step", "promise", "timer", "signal", "version"]
StepState = Literal["done", "failed", "begun", "retrying", "waiting", "running", "left"]
"""What has ended waits for nothing and tries nothing again: what it was still at is `left`, or has `failed`."""


class ExecutionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One execution, without what happened in it. Times are microseconds since 1970, 0 where there is none."""

    id: UUID
    kind: str
    status: str
    """`queued`, `running`, `completed`, `failed`, `aborted` or `canceled`."""
    created_us: int
    updated_us: int
    ended_us: int
    """When it ended."""
    queue: str
    """Where it waits for a worker."""
    priority: int
    """The highest goes first."""
    due_us: int
    """It does not run before."""
    attempts: int
    """How often it was begun."""
    generation: int
    """How often it was started again after an end."""
    entries: int
    """Entries of its journal, when it was opened or ended last."""
    size: int
    """Their bytes."""
    note: str
    """Why it ended as it did, or cannot go on."""
    parent: UUID | None
    """The execution that it was forked from."""


class StepDetails(msgspec.Struct, frozen=True, kw_only=True):
    """All that was recorded at one path."""

    path: str
    """Where it stands in the program."""
    what: StepKind
    """`step`, `promise`, `timer`, `signal` or `version`."""
    state: StepState
    """`left` where the execution ended meanwhile, `begun` for a guarded effect without a result."""
    effect: str
    """Empty for what is no step."""
    key: str
    """The fingerprint, in hex digits."""
    started_us: int
    """When it began."""
    ended_us: int
    """0 while it has no end."""
    attempts: int
    """How often it was tried."""
    due_us: int
    """When a timer ends, or a step is tried again."""
    ambiguous: tuple[str, ...]
    """What was decided each time nobody knew whether the effect had happened."""
    value: Any = msgspec.UNSET
    """What it gave, or its error; only where that is revealed."""


class ExecutionEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to the whole execution: opened, ended, forked, decided or interfered with by hand."""

    at_us: int
    what: str
    """`opened`, `completed`, `failed`, `canceled`, `aborted`, `ambiguous`, `forked`, `rewound`, `resumed`, `settled`
    or `retried`.
    """
    detail: str
    """More about it, in words."""


class ExecutionDetails(msgspec.Struct, frozen=True, kw_only=True):
    """All that was recorded of one execution."""

    summary: ExecutionSummary
    """Its line in the list."""
    steps: tuple[StepDetails, ...]
    """In the order in which they were first mentioned."""
    events: tuple[ExecutionEvent, ...]
    """The audit trail, in order."""
    input: Any = msgspec.UNSET
    """What it was called with; only where that is revealed."""
    result: Any = msgspec.UNSET
    """What it returned or raised; only where that is revealed, and it has ended."""


def summary(row: ExecutionRow) -> ExecutionSummary:
    """A row, to be looked at."""
    return ExecutionSummary(
        id=row.execution,
        kind=row.kind,
        status=row.status,
        created_us=row.created_us,
        updated_us=row.updated_us,
        ended_us=row.ended_us,
        queue=row.queue,
        priority=row.priority,
        due_us=0 if row.status in ENDED else row.due_us,
        attempts=row.attempts,
        generation=row.generation,
        entries=row.entries,
        size=row.size,
        note=row.note,
        parent=ExecutionId(bytes=row.parent) if row.parent else None,
    )


def details(row: ExecutionRow, entries: Iterable[Entry], *, reveal: bool) -> ExecutionDetails:
    """All that these entries say."""
    flat = list(unfolded(entries))
    recorded = ExecutionRecord([lambda: flat])
    running = row.status not in ENDED
    steps = [_step(path, record, recorded, reveal) for path, record in recorded.all().items()]
    if not running:
        steps = [_over(step, row.ended_us) for step in steps]
    ended = last_end(flat)
    return ExecutionDetails(
        summary=msgspec.structs.replace(summary(row), entries=len(flat)),
        steps=tuple(steps),
        events=tuple(filter(None, map(_event, flat))),
        input=plain(row.input) if reveal and row.input else msgspec.UNSET,
        result=plain(ended.payload) if reveal and ended is not None and not running else msgspec.UNSET,
    )


def unfolded(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Entries, those of a folded prefix one by one."""
    for entry in entries:
        if isinstance(entry, Folded):
            yield from unfolded(map(decode_entry, entry.entries))
        else:
            yield entry


def last_end(entries: Sequence[Entry]) -> Ended | None:
    """How it ended last."""
    return next((entry for entry in reversed(entries) if isinstance(entry, Ended)), None)


def plain(payload: bytes) -> Any:
    """A payload as plain values; bytes that do not decode as they are."""
    try:
        return msgspec.msgpack.decode(payload) if payload else None
    except msgspec.DecodeError:
        return payload


def first_mention(entries: Sequence[Entry], path: str) -> int:
    """Where a path, or one below it, stands first."""
    for at, entry in enumerate(entries):
        if is_below(getattr(entry, "path", None), path):
            return at
    raise NotFound(f"nothing was recorded at this path path={path!r}", hint="'holdfast execution show' lists them")


def is_below(own: str | None, path: str) -> bool:
    """Whether a path is this one, or inside of it."""
    return own is not None and (own == path or own.startswith(path + "/"))


def _event(entry: Entry) -> ExecutionEvent | None:
    match entry:
        case Opened():
            again = f" generation={entry.generation}" if entry.generation else ""
            return ExecutionEvent(at_us=entry.at_us, what="opened", detail=f"epoch={entry.epoch}{again}")
        case Ended():
            return ExecutionEvent(at_us=entry.at_us, what=entry.status, detail="")
        case Forked():
            return ExecutionEvent(at_us=entry.at_us, what="forked", detail=f"from={ExecutionId(bytes=entry.origin)}")
        case Administered():
            return ExecutionEvent(at_us=entry.at_us, what=entry.action, detail=entry.detail)
        case AmbiguityResolved():
            return ExecutionEvent(
                at_us=entry.at_us, what="ambiguous", detail=f"step={entry.path} policy={entry.policy}"
            )
    return None


def _step(path: str, record: StepRecord, recorded: ExecutionRecord, reveal: bool) -> StepDetails:
    if record.promise is not None:
        return _promise(path, record, recorded, reveal)
    if record.timer is not None:
        return _timer(path, record)
    if record.signal is not None:
        return _shown(path, "signal", "done", record.signal.at_us, record.signal.at_us)
    if record.version is not None:
        value = record.version.version if reveal else msgspec.UNSET
        return _shown(path, "version", "done", record.version.at_us, record.version.at_us, value=value)
    return _own_step(path, record, reveal)


def _own_step(path: str, record: StepRecord, reveal: bool) -> StepDetails:
    policies = tuple(policy.policy for policy in record.policies)
    result = record.result
    if result is not None:
        value = plain(result.payload) if reveal and not result.reference else msgspec.UNSET
        return _shown(
            path,
            "step",
            "failed" if result.is_error else "done",
            result.started_us or result.at_us,
            result.at_us,
            effect=result.effect,
            key=result.key.hex(),
            attempts=result.attempts,
            ambiguous=policies,
            value=value,
        )
    tried = record.attempts
    began = [entry.at_us for entry in (record.intent, record.heartbeat, *tried[:1]) if entry is not None]
    state: StepState = "begun" if record.intent is not None else "retrying" if tried else "running"
    return _shown(
        path,
        "step",
        state,
        min(began, default=0),
        0,
        effect=record.intent.effect if record.intent is not None else "",
        key=record.intent.key.hex() if record.intent is not None else "",
        attempts=len(tried) + (record.intent is not None),
        due_us=tried[-1].retry_us if tried else 0,
        ambiguous=policies,
        value=tried[-1].error if tried and reveal else msgspec.UNSET,
    )


def _over(step: StepDetails, ended_us: int) -> StepDetails:
    """The same in an execution that has ended. An effect that was begun stays so: nobody knows what came of it."""
    state = {"waiting": "left", "running": "left", "retrying": "failed"}.get(step.state)
    return step if state is None else msgspec.structs.replace(step, state=state, ended_us=ended_us, due_us=0)


def _promise(path: str, record: StepRecord, recorded: ExecutionRecord, reveal: bool) -> StepDetails:
    assert record.promise is not None
    settled = recorded.promises.get(record.promise.promise)
    if settled is None:
        return _shown(path, "promise", "waiting", record.promise.at_us, 0)
    value = plain(settled.payload) if reveal else msgspec.UNSET
    state: StepState = "failed" if settled.is_error else "done"
    return _shown(path, "promise", state, record.promise.at_us, settled.at_us, value=value)


def _timer(path: str, record: StepRecord) -> StepDetails:
    timer, fired = record.timer, record.timer_fired
    assert timer is not None
    state: StepState = "waiting" if fired is None else "done"
    return _shown(path, "timer", state, timer.at_us, 0 if fired is None else fired.at_us, due_us=timer.due_us)


def _shown(
    path: str,
    what: StepKind,
    state: StepState,
    started_us: int,
    ended_us: int,
    *,
    effect: str = "",
    key: str = "",
    attempts: int = 1,
    due_us: int = 0,
    ambiguous: tuple[str, ...] = (),
    value: Any = msgspec.UNSET,
) -> StepDetails:
    return StepDetails(
        path=path,
        what=what,
        state=state,
        effect=effect,
        key=key,
        started_us=started_us,
        ended_us=ended_us,
        attempts=attempts,
        due_us=due_us,
        ambiguous=ambiguous,
        value=value,
    )
