"""What people do to executions by hand: start, resume, cancel, fork, rewind, settle. Each leaves an audit record.

Every verb returns when its change is durable. Who changes an execution that nobody runs holds it meanwhile, so that
nobody begins to run it; one that is being run can only be canceled: its program stops before its next step, and the
first end counts, from whatever source.

A *fork* is a new execution that begins with a copy of another one's past. A *rewind* forgets what came after a step, in
the same execution. Both stop before a path: what was mentioned first before that path is kept, with all that came of
it, and so is what came from outside (signals, settled promises). Guarded effects after it would happen again, which is
refused unless requested.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import msgspec

from holdfast.errors import ExecutionCanceled, ExecutionHeld, Full, Invalid, NotFound
from holdfast.execution.journal.commit_parts import LiveJournal, Part
from holdfast.execution.journal.entries import (
    ENDED,
    Administered,
    AmbiguityResolved,
    EffectIntent,
    Ended,
    Entry,
    ExecutionRow,
    Folded,
    Forked,
    PromiseCreated,
    PromiseResolved,
    SignalSent,
    Status,
    StepResult,
    encode_entry,
)
from holdfast.execution.journal.execution_id import ExecutionId, fresh_id
from holdfast.execution.journal.execution_record import Block, ExecutionRecord, in_order
from holdfast.execution.journal.execution_store import ExecutionStore
from holdfast.execution.journal.live_execution import NOTE_CHARS_MAX, LiveExecution
from holdfast.execution.journal.live_executions import LiveExecutions
from holdfast.execution.steps.claim_check import fetched, put_aside, space_of
from holdfast.execution.work.execution_views import first_mention, is_below, unfolded
from holdfast.execution.work.work_queue import WorkQueue
from holdfast.journal.journal import Journal, Operation
from holdfast.journal.queue.ticket import UnitTicket

GUARDED = "exactly_once_guarded"
_REWOUND_BYTES_MAX = 8 * 2**20
"""What is left of a rewound execution becomes one entry."""

Loaded = tuple[list[Block], LiveJournal]


class Administration:
    """Changes executions by hand."""

    def __init__(self, journal: Journal, store: ExecutionStore, live: LiveExecutions, queue: WorkQueue) -> None:
        self._journal = journal
        self._store = store
        self._live = live
        self._queue = queue

    # -- waiting to be run ------------------------------------------------------------------------------------

    def start(self, row: ExecutionRow) -> ExecutionId:
        """Queue a new execution; one that is there already is left as it is, if it was asked for with the same."""
        execution = row.execution
        with self._held(execution) as (_, journal):
            before = self._store.rows.get(execution)
            if before is None:
                self._commit(journal, row)
        if before is None:
            self._queue.add(row)
        elif (before.kind, before.input) != (row.kind, row.input):
            raise Invalid(
                f"this execution was started with another kind or other arguments execution={execution}",
                hint="an id identifies one piece of work: use another id, or the same arguments",
            )
        return execution

    def resume(self, execution: ExecutionId, queue: str) -> None:
        """Let a worker go on with one that failed, was aborted, or was left by its program."""
        with self._held(execution) as (_, journal):
            before = self._row(execution)
            if before.status == "canceled":
                raise ExecutionCanceled(f"this execution was canceled execution={execution}")
            if before.status == "completed":
                raise Invalid(f"this execution has completed execution={execution}", hint="fork or rewind it")
            self._requeue(journal, before, before.queue or queue, Administered("resumed", "", self._now()))
        self.announce(execution)

    def announce(self, execution: ExecutionId) -> None:
        """Tell workers of one that is queued again, and that nobody holds any more."""
        row: ExecutionRow | None = self._store.rows.get(execution)
        if row is not None:
            self._queue.add(row)

    def note(self, execution: ExecutionId, note: str) -> None:
        """Say why one that nobody runs does not go on."""
        with self._held(execution) as (_, journal):
            before = self._row(execution)
            if before.status not in ENDED:
                self._commit(journal, msgspec.structs.replace(before, note=note[:NOTE_CHARS_MAX]))

    # -- its end ----------------------------------------------------------------------------------------------

    def cancel(self, execution: ExecutionId, reason: str) -> str:
        """End it as canceled, for good; the status that it has now. One that has ended keeps its end."""
        while True:
            live = self._live.get(execution)
            if live is not None:
                return self._cancel_live(live, reason)
            try:
                with self._held(execution) as (_, journal):
                    return self._end_idle(execution, journal, "canceled", reason)
            except ExecutionHeld:
                if self._live.get(execution) is None:
                    raise  # it was opened just now: ask its program

    def _cancel_live(self, live: LiveExecution, reason: str) -> str:
        ticket = live.finish("canceled", note=reason)
        if ticket is not None:
            live.write(Administered("canceled", reason, self._now())).result()
            live.cancel(reason)
        elif live.ending is not None:
            live.ending.result()
        self._live.changed.notify()
        return live.row.status

    def abort(self, execution: ExecutionId, note: str) -> None:
        """Give one up that nobody runs, and that has no end."""
        with self._held(execution) as (_, journal):
            self._end_idle(execution, journal, "aborted", note)

    def _end_idle(self, execution: ExecutionId, journal: LiveJournal, status: Status, note: str) -> str:
        before = self._row(execution)
        if before.status in ENDED:
            return before.status
        now = self._store.trusted_time.range_us()[1]
        row = msgspec.structs.replace(before, status=status, updated_us=now, ended_us=now, note=note)
        self._commit(journal, row, Ended(status, b"", now), Administered(status, note, now))
        self._live.changed.notify()
        return status

    # -- another way ------------------------------------------------------------------------------------------

    def fork(
        self, execution: ExecutionId, before: str | None, fork: ExecutionId | None, *, repeat_guarded: bool
    ) -> ExecutionId:
        """A new execution that begins with what was recorded of this one before a path; all of it without one."""
        row = self._row(execution)
        entries = list(unfolded(in_order(self._store.load(execution)[0])))
        kept = list(_forkable(_kept(entries, before, repeat_guarded=repeat_guarded)))
        now, fork = self._now(), fork or fresh_id(self._store.clock)
        made = ExecutionRow(
            fork.bytes,
            row.kind,
            "queued",
            now,
            now,
            queue=row.queue,
            priority=row.priority,
            input=row.input,
            parent=execution.bytes,
        )
        where = "its end" if before is None else before
        with self._held(fork) as (_, journal):
            there = self._store.rows.get(fork)
            if there is not None and there.parent == execution.bytes:
                return fork  # asked for twice
            if there is not None:
                raise Invalid(f"there is an execution of this id already execution={fork}", hint="give another id")
            copied, size = self._copied(execution, fork, kept)
            self._commit(
                journal,
                made,
                *kept,
                Forked(execution.bytes, now),
                Administered("forked", f"before={where}", now),
                copied,
                size=size,
            )
        self._queue.add(made)
        return fork

    def rewind(self, execution: ExecutionId, before: str, *, repeat_guarded: bool) -> None:
        """Forget what was recorded from a path on; a worker, or the next opener, continues from there."""
        with self._held(execution) as (blocks, journal):
            row = self._row(execution)
            if row.status == "canceled":
                raise ExecutionCanceled(f"this execution was canceled execution={execution}")
            entries = list(unfolded(in_order(blocks)))
            if row.status == "queued" and _was_just_rewound(entries, before):
                return  # asked for twice
            kept = _kept(entries, before, repeat_guarded=repeat_guarded)
            gone = [self._dropped(execution, entry.path) for entry in _large(entries) if entry not in kept]
            rewound = Administered("rewound", f"before={before}", self._now())
            self._requeue(journal, row, row.queue, rewound, [self._folded(journal, kept), *gone])
        self.announce(execution)

    def settle(self, execution: ExecutionId, path: str, payload: bytes, *, is_error: bool) -> None:
        """Record what became of a guarded effect that nobody knew the outcome of."""
        with self._held(execution) as (blocks, journal):
            row = self._row(execution)
            record = ExecutionRecord(blocks).look(path)
            if record is None or record.intent is None:
                raise NotFound(f"no guarded effect was begun at this path path={path!r}", hint="see its `show`")
            if record.result is not None:
                raise Invalid(f"this step has a result already path={path!r}", hint="rewind before it to run it again")
            now, intent = self._now(), record.intent
            result = StepResult(
                path, intent.key, intent.effect, payload, now, started_us=intent.at_us, is_error=is_error
            )
            decided = AmbiguityResolved(path, intent.key, intent.effect, "settled", now)
            changed = msgspec.structs.replace(row, updated_us=now)
            self._commit(journal, changed, decided, result, Administered("settled", f"step={path}", now))

    # -- storing ----------------------------------------------------------------------------------------------

    def _requeue(
        self,
        journal: LiveJournal,
        before: ExecutionRow,
        queue: str,
        action: Administered,
        past: Sequence[Part] | None = None,
    ) -> None:
        """Store that it is queued again, with another past if one is given; `announce` it when nobody holds it."""
        now = self._now()
        row = msgspec.structs.replace(
            before,
            status="queued",
            queue=queue,
            updated_us=now,
            ended_us=0,
            due_us=0,
            attempts=0,
            note="",
            generation=before.generation + (before.status in ENDED),
        )
        self._commit(journal, row, *(past or ()), action, anew=past is not None)

    def _folded(self, journal: LiveJournal, kept: Sequence[Entry]) -> Folded:
        """What is kept, as one entry, which takes the place of all that there was."""
        bodies = tuple(map(encode_entry, kept))
        if sum(map(len, bodies)) > _REWOUND_BYTES_MAX:
            raise Full(
                f"too much is left to be rewound execution={journal.execution}", hint="fork it before that path instead"
            )
        upto = journal.next_entry  # it stands for everything before
        return Folded(upto, upto, bodies, self._now())

    def _dropped(self, execution: ExecutionId, path: str) -> list[Operation]:
        """The removal of a large result that is forgotten: the next one at this path must not meet its parts."""
        return self._journal.spaces.operations(space_of(execution, path), [], [], drop=True)[0]

    def _copied(self, execution: ExecutionId, fork: ExecutionId, kept: Sequence[Entry]) -> tuple[list[Operation], int]:
        """Large results, to be kept with the fork as well, and their bytes."""
        operations: list[Operation] = []
        size = 0
        for entry in _large(kept):
            payload = fetched(self._journal, execution, entry.path, entry.reference)
            _, copied, own = put_aside(self._journal, fork, entry.path, payload)
            operations, size = operations + copied, size + own
            if size > self._journal.settings.queue_bytes_max // 2:
                raise Full(
                    f"the large results of this execution are too many to be copied execution={execution}",
                    hint="fork it before an earlier step, or see journal.queue_bytes_max",
                )
        return operations, size

    def _commit(self, journal: LiveJournal, row: ExecutionRow, *parts: Part, anew: bool = False, size: int = 0) -> None:
        """Store a row with entries, and wait for it."""
        store = self._store

        def hand_over() -> UnitTicket:
            with store.lock:
                return store.change_row(journal, row, *parts, anew=anew, size=size)

        store.with_room(hand_over).result()

    @contextmanager
    def _held(self, execution: ExecutionId) -> Iterator[Loaded]:
        """Hold it; who opens it, lets it go after its end, or changes it by hand at this moment is waited for.

        Who runs it is not.
        """
        clock = self._store.clock
        deadline = clock.monotonic() + self._store.settings.ack_timeout_ms / 1000
        while True:
            with ExitStack() as stack:
                try:
                    loaded = stack.enter_context(self._live.hold(execution))
                except ExecutionHeld:
                    left = deadline - clock.monotonic()
                    if left <= 0 or (
                        self._live.get(execution) is not None and self._row(execution).status not in ENDED
                    ):
                        raise
                else:
                    yield loaded
                    return
            self._live.changed.sleep(lambda: not self._live.is_held(execution), left)

    def _row(self, execution: ExecutionId) -> ExecutionRow:
        row: ExecutionRow | None = self._store.rows.get(execution)
        if row is None:
            raise unknown(execution)
        return row

    def _now(self) -> int:
        return self._store.clock.now_us()


def unknown(execution: ExecutionId) -> NotFound:
    """There is no such execution."""
    return NotFound(f"no such execution is kept here execution={execution}", hint="'holdfast execution list' has them")


def _large(entries: Iterable[Entry]) -> Iterator[StepResult]:
    return (entry for entry in entries if isinstance(entry, StepResult) and entry.reference)


def _was_just_rewound(entries: Sequence[Entry], before: str) -> bool:
    last = entries[-1] if entries else None
    return isinstance(last, Administered) and (last.action, last.detail) == ("rewound", f"before={before}")


def _kept(entries: Sequence[Entry], before: str | None, *, repeat_guarded: bool) -> list[Entry]:
    """What is kept of a past when it is cut off before a path."""
    if before is None:
        return list(entries)
    cut = first_mention(entries, before)
    known = {path for entry in entries[:cut] if (path := getattr(entry, "path", None)) is not None}
    known = {path for path in known if not is_below(path, before)}
    promises = {entry.promise for entry in entries[:cut] if isinstance(entry, PromiseCreated)}
    undone = [entry for entry in entries[cut:] if not _stays(entry, known, promises)]
    guarded = sorted(_guarded(undone))
    if guarded and not repeat_guarded:
        raise Invalid(
            f"guarded effects after this step may have happened, and would happen again steps={','.join(guarded)}",
            hint="cut after them, or pass repeat_guarded=True (--repeat-guarded) if that is what you want",
        )
    return [*entries[:cut], *(entry for entry in entries[cut:] if _stays(entry, known, promises))]


def _stays(entry: Entry, known: set[str], promises: set[bytes]) -> bool:
    """Whether an entry behind the cut belongs to what stays, or came from outside."""
    if isinstance(entry, SignalSent | Administered | Forked):
        return True
    if isinstance(entry, PromiseResolved):
        return entry.promise in promises
    return getattr(entry, "path", None) in known


def _guarded(entries: Iterable[Entry]) -> set[str]:
    return {entry.path for entry in entries if isinstance(entry, EffectIntent | StepResult) and entry.effect == GUARDED}


def _forkable(entries: Sequence[Entry]) -> Iterator[Entry]:
    """What a fork may begin with: a promise that is not settled is the other one's, and so is its token."""
    settled = {entry.promise for entry in entries if isinstance(entry, PromiseResolved)}
    for entry in entries:
        if isinstance(entry, Ended) or (isinstance(entry, PromiseCreated) and entry.promise not in settled):
            continue
        yield entry
