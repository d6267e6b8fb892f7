"""What was recorded of an execution, found by the paths of its steps, taken apart only as far as a program gets.

Blocks are decoded one after the other, when a step is looked for that none of the decoded ones has: a program that
goes the way it went before never decodes more than it needs, and one that takes a new turn looks at all of it once.
What a path has is the last word on it: a result beats an intent. An error that ended a run is taken back by the
`AttemptFailed` behind it: the next run tries again.
"""

from __future__ import annotations

from _thread import RLock
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import msgspec

from holdfast.caller import once
from holdfast.execution.journal.entries import (
    Administered,
    AmbiguityResolved,
    AttemptFailed,
    EffectIntent,
    Ended,
    Entry,
    Folded,
    Forked,
    Heartbeat,
    Opened,
    PromiseCreated,
    PromiseResolved,
    SignalSent,
    SignalTaken,
    StepResult,
    TimerArmed,
    TimerFired,
    VersionMarked,
    decode_entry,
)

StepEntry = (
    StepResult
    | EffectIntent
    | AttemptFailed
    | AmbiguityResolved
    | Heartbeat
    | PromiseCreated
    | TimerArmed
    | TimerFired
    | SignalTaken
    | VersionMarked
)
"""Entries that belong to a path."""

Block = Callable[[], Sequence[Entry]]
"""A block that is decoded when it is called."""


class StepRecord(msgspec.Struct, gc=False, eq=False):
    """All that was recorded of one path."""

    result: StepResult | None = None
    intent: EffectIntent | None = None
    attempts: tuple[AttemptFailed, ...] = ()
    policies: tuple[AmbiguityResolved, ...] = ()
    heartbeat: Heartbeat | None = None
    promise: PromiseCreated | None = None
    timer: TimerArmed | None = None
    timer_fired: TimerFired | None = None
    signal: SignalTaken | None = None
    version: VersionMarked | None = None

    @property
    def is_final(self) -> bool:
        """Whether nothing that comes later could change what this path has."""
        if self.result is not None:
            return not self.result.is_error  # an error that ended a run is taken back
        return bool(self.version or self.timer_fired or self.signal)


class ExecutionRecord:
    """The journal of one execution as it was when it was opened; what is written later is `add`ed."""

    def __init__(self, blocks: Sequence[Block] = ()) -> None:
        self._blocks = deque(blocks)
        """Those that were not taken apart yet."""
        self._lock = RLock()
        self._paths: dict[str, StepRecord] = {}
        self.results_by_key: dict[bytes, StepResult] = {}
        """Results by the keys of their steps: a guarded one holds whatever path the program takes."""
        self.created: dict[bytes, list[PromiseCreated]] = {}
        """Promises, each with all tokens that were given out for it."""
        self.promises: dict[bytes, PromiseResolved] = {}
        self.signals: dict[bytes, SignalSent] = {}
        """Signals that arrived, oldest first."""
        self.taken: set[bytes] = set()
        """Those of them that the program got."""
        self.untaken: dict[str, dict[bytes, SignalSent]] = {}
        """The others, by name."""
        self.origins: dict[str, bytes] = {}
        """Of paths that came with a fork: the execution whose keys they have."""

    def look(self, path: str) -> StepRecord | None:
        """What is known of a path; None if nothing was recorded of it."""
        found = self._paths.get(path)
        if self._blocks and (found is None or not found.is_final):
            with once(self._lock):
                found = self._paths.get(path)
                while (found is None or not found.is_final) and self._decode_next():
                    found = self._paths.get(path)
        return found

    def look_key(self, key: bytes) -> StepResult | None:
        """The committed result of a guarded step with this key, wherever it stands."""
        if self._blocks:
            self.all()
        return self.results_by_key.get(key)

    def all(self) -> dict[str, StepRecord]:
        """Everything at this moment, by path, in the order of first mention."""
        with once(self._lock):
            while self._decode_next():
                pass
            return self._paths.copy()

    def add(self, entry: Entry) -> None:
        """One more entry; those of a folded stretch one by one."""
        with once(self._lock):
            self._add(entry)

    def _add(self, entry: Entry) -> None:
        if type(entry) is StepResult and entry.path not in self._paths:  # most are
            self._paths[entry.path] = StepRecord(entry)
            self.results_by_key.setdefault(entry.key, entry)
            return
        match entry:
            case Folded():
                for body in entry.entries:
                    self._add(decode_entry(body))
            case PromiseResolved():
                self.promises.setdefault(entry.promise, entry)
            case SignalSent():
                self._note_signal(entry)
            case Forked():
                for path in self._paths:
                    self.origins.setdefault(path, entry.origin)
            case Opened() | Ended() | Administered():
                pass
            case _:
                self._note(self._at(entry.path), entry)

    def _note(self, record: StepRecord, entry: StepEntry) -> None:
        """One more entry of a step."""
        match entry:
            case StepResult():
                record.result = record.result or entry
                self.results_by_key.setdefault(entry.key, entry)
            case SignalTaken():
                record.signal = entry
                self._note_taken(entry.signal)
            case PromiseCreated():
                record.promise = record.promise or entry
                self.created.setdefault(entry.promise, []).append(entry)
            case AttemptFailed():
                record.attempts += (entry,)
                if record.result is not None and record.result.is_error:  # it ended a run: the next one tries again
                    self.results_by_key.pop(record.result.key, None)
                    record.result = None
            case AmbiguityResolved():
                record.policies += (entry,)
            case TimerArmed():
                record.timer = record.timer or entry
            case _:
                _keep_last(record, entry)

    def _note_signal(self, sent: SignalSent) -> None:
        if self.signals.setdefault(sent.signal, sent) is sent and sent.signal not in self.taken:
            self.untaken.setdefault(sent.name, {})[sent.signal] = sent

    def _note_taken(self, signal: bytes) -> None:
        self.taken.add(signal)
        sent = self.signals.get(signal)
        if sent is not None:
            self.untaken.get(sent.name, {}).pop(signal, None)

    def _at(self, path: str) -> StepRecord:
        record = self._paths.get(path)
        if record is None:
            record = self._paths[path] = StepRecord()
        return record

    def _decode_next(self) -> bool:
        """Take the next block apart; whether there was one."""
        if not self._blocks:
            return False
        for entry in self._blocks[0]():
            self._add(entry)
        self._blocks.popleft()
        return True


def _keep_last(record: StepRecord, entry: EffectIntent | Heartbeat | TimerFired | VersionMarked) -> None:
    match entry:
        case EffectIntent():
            record.intent = entry
        case Heartbeat():
            record.heartbeat = entry
        case TimerFired():
            record.timer_fired = entry
        case VersionMarked():
            record.version = entry


def in_order(blocks: Sequence[Block]) -> Iterator[Entry]:
    """All entries of some blocks, one after the other."""
    for block in blocks:
        yield from block()
