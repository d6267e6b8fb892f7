"""Executions as JSON and as tables: what the command line prints of them. Pure."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import msgspec

from holdfast.cli.executions.durations import spoken
from holdfast.execution.work.execution_views import ExecutionDetails, ExecutionEvent, ExecutionSummary, StepDetails
from holdfast.model.record_json import iso

LIST_COLUMNS = ("id", "kind", "status", "created", "took", "note")
STEP_COLUMNS = ("step", "what", "state", "effect", "took", "attempts")
_NOTE_MAX = 60


class ExecutionLine(msgspec.Struct, frozen=True):
    """An execution in the list."""

    id: str
    kind: str
    status: str
    """`queued`, `running`, `completed`, `failed`, `aborted` or `canceled`."""
    created: str | None
    updated: str | None
    ended: str | None
    """Null before its end."""
    seconds: float | None
    """From its creation to its end."""
    queue: str | None
    """Where it waits for a worker; null where it does not, as of the next two."""
    priority: int
    """The highest goes first."""
    not_before: str | None
    """When it may run first."""
    attempts: int
    """How often it was begun."""
    generation: int
    """How often it was restarted after an end."""
    entries: int
    """Of its journal, in `list` as of its last opening or end."""
    bytes: int
    """Their size."""
    note: str
    """Why it ended as it did, or cannot go on."""
    parent: str | None
    """The execution that it was forked from."""


class StepLine(msgspec.Struct, frozen=True):
    """A step."""

    path: str
    """Where it stands in the program."""
    what: str
    """`step`, `promise`, `timer`, `signal` or `version`."""
    state: str
    """`done`, `failed`, `begun` (a guarded effect without a result), `retrying`, `waiting` or `running`; `left` where
    the execution ended meanwhile.
    """
    effect: str | None
    """Its effect class; null where it has none."""
    key: str | None
    """Its fingerprint; null where it has none."""
    started: str | None
    """When it began."""
    ended: str | None
    """Null where it has no end."""
    seconds: float | None
    """How long it took."""
    attempts: int
    """How often it was tried."""
    due: str | None
    """When it is tried again, or a timer ends."""
    ambiguous: list[str]
    """What was decided each time nobody knew whether the effect had happened: `skip`, `fail`, `rerun`, `settled`."""
    value: Any = msgspec.UNSET
    """With `--reveal`, in `show`: what it gave, or its error; bytes are an object with `base64`."""


class EventLine(msgspec.Struct, frozen=True):
    """Something that happened to the whole execution."""

    at: str | None
    event: str
    """`opened`, `completed`, `failed`, `canceled`, `aborted`, `ambiguous`, `forked`, `rewound`, `resumed`, `settled`
    or `retried`.
    """
    detail: str
    """More about it, in words."""


class ExecutionReport(msgspec.Struct, frozen=True):
    """All of an execution."""

    execution: ExecutionLine
    """As of `list`."""
    steps: list[StepLine]
    """In the order in which they were first recorded."""
    events: list[EventLine]
    """What happened to the whole, in order."""
    input: Any = msgspec.UNSET
    """With `--reveal`: what it was called with."""
    result: Any = msgspec.UNSET
    """With `--reveal`: what it returned or raised."""


class ChangeLine(msgspec.Struct, frozen=True):
    """What became of a change."""

    id: str
    """Of the execution; of `fork`, the new one."""
    action: str
    """What was done."""
    status: str
    """The status that it has now."""


class PruneLine(msgspec.Struct, frozen=True):
    """How many executions were removed, or would be."""

    executions: int
    """How many went, or would go."""
    dry_run: bool


class BroughtLine(msgspec.Struct, frozen=True):
    """What became of something that was brought to an execution."""

    action: str
    """`settle_promise` or `signal`."""
    is_new: bool
    """Whether this did it: not if it had been done before."""


def execution_line(summary: ExecutionSummary) -> ExecutionLine:
    """An execution for JSON."""
    ended = summary.ended_us or None
    return ExecutionLine(
        id=str(summary.id),
        kind=summary.kind,
        status=summary.status,
        created=iso(summary.created_us),
        updated=iso(summary.updated_us),
        ended=_time(summary.ended_us),
        seconds=None if ended is None else (ended - summary.created_us) / 1e6,
        queue=summary.queue or None,
        priority=summary.priority,
        not_before=_time(summary.due_us),
        attempts=summary.attempts,
        generation=summary.generation,
        entries=summary.entries,
        bytes=summary.size,
        note=summary.note,
        parent=None if summary.parent is None else str(summary.parent),
    )


def step_line(step: StepDetails) -> StepLine:
    """A step for JSON."""
    return StepLine(
        path=step.path,
        what=step.what,
        state=step.state,
        effect=step.effect or None,
        key=step.key or None,
        started=_time(step.started_us),
        ended=_time(step.ended_us),
        seconds=(step.ended_us - step.started_us) / 1e6 if step.ended_us else None,
        attempts=step.attempts,
        due=_time(step.due_us),
        ambiguous=list(step.ambiguous),
        value=_plain(step.value),
    )


def event_line(event: ExecutionEvent) -> EventLine:
    """An event for JSON."""
    return EventLine(iso(event.at_us), event.what, event.detail)


def report(details: ExecutionDetails) -> ExecutionReport:
    """All of an execution, for JSON."""
    return ExecutionReport(
        execution_line(details.summary),
        [*map(step_line, details.steps)],
        [*map(event_line, details.events)],
        _plain(details.input),
        _plain(details.result),
    )


def list_row(summary: ExecutionSummary, now_us: int) -> tuple[object, ...]:
    """An execution for the table."""
    took = spoken((summary.ended_us or now_us) - summary.created_us)
    note = summary.note if len(summary.note) <= _NOTE_MAX else summary.note[: _NOTE_MAX - 1] + "…"
    return str(summary.id), summary.kind, summary.status, _short(summary.created_us), took, note


def step_row(step: StepDetails) -> tuple[object, ...]:
    """A step for the table."""
    took = spoken(step.ended_us - step.started_us) if step.ended_us else None
    return step.path, step.what, step.state, step.effect or None, took, step.attempts


def facts(details: ExecutionDetails) -> list[tuple[str, object]]:
    """What is known of an execution, for people."""
    found = execution_line(details.summary)
    names = ("id", "kind", "status", "created", "ended", "queue", "attempts", "parent", "note")
    return [(name, getattr(found, name)) for name in names if getattr(found, name) not in (None, "")]


def _short(time_us: int) -> str | None:
    text = iso(time_us)
    return None if text is None else text[:19].replace("T", " ")


def _time(time_us: int) -> str | None:
    return iso(time_us) if time_us else None


def _plain(value: Any) -> Any:
    """A revealed value as JSON can hold it: bytes as base64, with a name that says so."""
    if value is msgspec.UNSET:
        return value
    return msgspec.to_builtins(_tame(value), str_keys=True)


def _tame(value: Any) -> Any:
    if isinstance(value, msgspec.msgpack.Ext):
        value = bytes(value.data)
    if isinstance(value, bytes):
        return {"base64": b64encode(value).decode()}
    if isinstance(value, dict):
        return {_key(key): _tame(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_tame(item) for item in value]
    return value


def _key(key: Any) -> str:
    return key if isinstance(key, str) else str(key)
