"""The journal of executions by hand: open, append, read, finalize, prune. What contexts and workers do, without them.

For adapters that record steps of their own, and for whoever looks closely. `append` returns when its entry is durable,
with its number: entries of one execution are numbered 0, 1, 2 … in the order in which they became durable, without
gaps, across restarts. What has a verb of its own (promises, timers, signals, ends, folds) cannot be appended:
`UnsupportedEntryKind`. Everything that is read was proved first; whatever is damaged is `Corrupt`, never skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from holdfast.errors import Invalid, NotFound, UnsupportedEntryKind
from holdfast.execution.journal.commit_parts import Placed
from holdfast.execution.journal.entries import (
    ENDED,
    STATUSES,
    AmbiguityResolved,
    AttemptFailed,
    EffectIntent,
    Entry,
    ExecutionRow,
    Heartbeat,
    Status,
    StepResult,
    VersionMarked,
    decode_block,
)
from holdfast.execution.journal.execution_id import ExecutionId, checked_name, given_id
from holdfast.execution.journal.execution_store import ExecutionStore
from holdfast.execution.journal.folding import fold, unfolded
from holdfast.execution.journal.live_execution import LiveExecution, LiveExecutions
from holdfast.execution.journal.pruning import Pruning

APPENDABLE = (StepResult, EffectIntent, AttemptFailed, AmbiguityResolved, Heartbeat, VersionMarked)
"""Entries that whoever runs a program may append."""

_SHOWN_KEY_BYTES = 8


class JournalEntry(NamedTuple):
    """An entry and its number."""

    seq: int
    entry: Entry


class RedactedEntry(NamedTuple):
    """An entry without what it is about: fit to be shown."""

    seq: int
    kind: str
    path: str
    key: str
    """The beginning of the step's key, as hex; empty where there is none."""
    effect: str
    payload_bytes: int
    at_us: int


class ExecutionJournal:
    """The verbs of the journal, for one log."""

    def __init__(self, store: ExecutionStore, live: LiveExecutions, pruning: Pruning) -> None:
        self._store = store
        self._live = live
        self._pruning = pruning
        self._own: dict[ExecutionId, LiveExecution] = {}
        """Those that were opened here."""

    # -- lifecycle --------------------------------------------------------------------------------------------

    def open_execution(self, execution: ExecutionId | str, kind: str) -> bool:
        """Begin an execution, or go on with it; whether it has a past. Durable when this returns.

        One that has ended is running again; one that was canceled raises ExecutionCanceled, one that somebody runs
        ExecutionHeld. It is held until it is finalized, or released.
        """
        live = self._live.open(given_id(execution), checked_name(kind, "kind"))
        assert live.opened is not None
        try:
            live.opened.result()
        except BaseException:
            self._live.release(live)
            raise
        self._own[live.id] = live
        return live.resumed

    def release(self, execution: ExecutionId | str) -> None:
        """Give it up as it is: somebody else may go on with it."""
        live = self._own.pop(given_id(execution), None)
        if live is not None:
            self._live.release(live)

    def finalize(self, execution: ExecutionId | str, status: Status) -> bool:
        """End an execution that was opened here; the first end counts. Whether this was it."""
        if status not in ENDED:
            raise Invalid(f"this is no end: {status!r}"[:100], hint=f"one of {', '.join(sorted(ENDED))}")
        found = given_id(execution)
        live = self._own.get(found)
        if live is None:
            row = self._store.rows.get(found)
            if row is not None and row.status in ENDED:
                return False
            raise _not_open(found)
        ticket = live.finish(status)
        if ticket is not None:
            ticket.result()
        self.release(found)
        return ticket is not None

    # -- writing ----------------------------------------------------------------------------------------------

    def append(self, execution: ExecutionId | str, entry: Entry) -> int:
        """Append one entry; its number, once it is durable.

        A step has one result: a second one is not stored, and the number is that of the first.
        """
        return self.append_batch(execution, [entry])[0]

    def append_batch(self, execution: ExecutionId | str, entries: Sequence[Entry]) -> list[int]:
        """Append entries in one commit, all or none; their numbers, once they are durable."""
        found = given_id(execution)
        live = self._own.get(found)
        if live is None:
            raise _not_open(found)
        for entry in entries:
            if not isinstance(entry, APPENDABLE):
                raise UnsupportedEntryKind(
                    f"this kind of entry cannot be appended kind={type(entry).__name__} execution={found}",
                    hint="promises, timers, signals, ends and folds have verbs of their own",
                )
        fresh: list[Entry] = []
        known: dict[int, int] = {}
        for at, entry in enumerate(entries):
            recorded = self._recorded(live, entry, fresh)
            if recorded is None:
                fresh.append(entry)
            else:
                known[at] = recorded
        placed = Placed(tuple(fresh))
        if fresh:
            self._store.write(live.journal, placed).result()
            for entry in fresh:
                live.recorded.add(entry)
        return _numbers(len(entries), known, placed.first)

    def _recorded(self, live: LiveExecution, entry: Entry, fresh: Sequence[Entry]) -> int | None:
        """The number of the result that this step has already."""
        if not isinstance(entry, StepResult):
            return None
        if any(isinstance(one, StepResult) and one.path == entry.path for one in fresh):
            raise Invalid(f"a step has one result, and here are two step={entry.path}", hint="append one of them")
        record = live.look(entry.path)
        if record is None or record.result is None:
            return None
        numbered = self.read_execution(live.id)
        return next(one.seq for one in numbered if isinstance(one.entry, StepResult) and one.entry.path == entry.path)

    def fold(self, execution: ExecutionId | str) -> int:
        """Compact a journal: what is finished takes fewer rows, and counts no more. How many entries were folded."""
        found = given_id(execution)
        live = self._live.get(found)
        if live is not None:
            self._store.drain()
            return fold(self._store, live.journal)
        if found not in self._store.rows:
            raise _unknown(found)
        with self._live.hold(found) as (_, journal):
            return fold(self._store, journal)

    # -- reading ----------------------------------------------------------------------------------------------

    def read_execution(self, execution: ExecutionId | str) -> list[JournalEntry]:
        """All durable entries in order, proved and decoded; folded ones as they were, under the number of the fold.

        Of an execution that is not known, none.
        """
        return list(self._numbered(given_id(execution)))

    def read_execution_range(
        self, execution: ExecutionId | str, from_step: int | str = 0, limit: int = 100
    ) -> list[JournalEntry]:
        """Entries of steps from one on: by step, in the order in which they began, then by number; at most `limit`.

        `from_step` is the path of a step, or how many steps were begun before it.
        """
        if limit < 1:
            raise Invalid("limit is at least 1", hint="for instance limit=100")
        steps: dict[str, list[JournalEntry]] = {}
        for one in self._numbered(given_id(execution)):
            path = getattr(one.entry, "path", None)
            if path is not None:
                steps.setdefault(path, []).append(one)
        paths = list(steps)
        if isinstance(from_step, str):
            first = paths.index(from_step) if from_step in steps else len(paths)
        else:
            first = from_step
        return [one for path in paths[first:] for one in steps[path]][:limit]

    def read_redacted(self, execution: ExecutionId | str) -> list[RedactedEntry]:
        """All durable entries without payloads: their kinds, paths, sizes, and the beginnings of keys."""
        return [_redacted(one) for one in self._numbered(given_id(execution))]

    def lookup_committed_result(self, execution: ExecutionId | str, key: bytes) -> StepResult | None:
        """The durable result of the step with this key, wherever the program is; None if there is none."""
        results = (one.entry for one in self._numbered(given_id(execution)) if isinstance(one.entry, StepResult))
        return next((result for result in results if result.key == key), None)

    def list_executions(
        self, *, status: str | None = None, kind: str | None = None, limit: int = 100
    ) -> list[ExecutionRow]:
        """The rows of executions, the newest first: of one status, of one kind; at most `limit`."""
        if status is not None and status not in STATUSES:
            raise Invalid(f"unknown status={status!r}"[:100], hint=f"one of {', '.join(STATUSES)}")
        rows = [
            row for row in self._store.rows.copy().values() if status in (None, row.status) and kind in (None, row.kind)
        ]
        return sorted(rows, key=lambda row: (row.created_us, row.id), reverse=True)[: max(0, limit)]

    def last_seq(self, execution: ExecutionId | str) -> int | None:
        """The number of the last durable entry; None if there is none."""
        end = self._store.load(given_id(execution))[1].next_entry
        return end - 1 if end else None

    # -- retention --------------------------------------------------------------------------------------------

    def prune(self, *, dry_run: bool = False) -> int:
        """Remove executions whose time is over; durable when this returns. How many there were, or would be."""
        return len(self._pruning.prunable()) if dry_run else self._pruning.prune()

    def _numbered(self, execution: ExecutionId) -> Iterator[JournalEntry]:
        for _, first, body in self._store.items(execution):
            yield from numbered(first, decode_block(body, execution, first))


def numbered(first: int, entries: Iterable[Entry]) -> Iterator[JournalEntry]:
    """Entries of a block with their numbers; all of a folded stretch have its number."""
    for seq, entry in enumerate(entries, first):
        for one in unfolded([entry]):
            yield JournalEntry(seq, one)


def _numbers(count: int, known: dict[int, int], first: int) -> list[int]:
    numbers: list[int] = []
    for at in range(count):
        if at in known:
            numbers.append(known[at])
        else:
            numbers.append(first)
            first += 1
    return numbers


def _redacted(one: JournalEntry) -> RedactedEntry:
    entry = one.entry
    return RedactedEntry(
        one.seq,
        type(entry).__name__,
        getattr(entry, "path", ""),
        getattr(entry, "key", b"")[:_SHOWN_KEY_BYTES].hex(),
        getattr(entry, "effect", ""),
        len(getattr(entry, "payload", b"")),
        entry.at_us,
    )


def _not_open(execution: ExecutionId) -> NotFound:
    return NotFound(f"this execution is not open here execution={execution}", hint="open_execution() it first")


def _unknown(execution: ExecutionId) -> NotFound:
    return NotFound(f"no such execution is kept here execution={execution}", hint="list_executions() has them")
