"""What becomes of a step that is called: pure.

    nothing recorded               run it
    a result with the same key     replay it
    a result with another key      diverged: nothing is run
    an intent with the same key    ambiguous: the step's policy says what to do
    an intent with another key     diverged
    failed attempts                go on with the next one, not before its time

A guarded result that was committed under the very key of the call counts wherever it stands: it is never run again,
whatever else was recorded at its path.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.errors import Diverged
from holdfast.execution.journal.entries import EffectIntent, StepResult
from holdfast.execution.journal.execution_record import ExecutionRecord, StepRecord


class ReplayStep(NamedTuple):
    """It was finished: this is what it came to."""

    result: StepResult


class Ambiguous(NamedTuple):
    """It was begun, and nobody knows whether it happened."""

    intent: EffectIntent


class RunStep(NamedTuple):
    """It is to be run: this attempt, not before this time."""

    attempt: int = 1
    not_before_us: int = 0


Decision = ReplayStep | Ambiguous | RunStep

RUN = RunStep()


def decide(recorded: ExecutionRecord, path: str, key: bytes, *, guarded: bool) -> Decision:
    """What to do; raises Diverged if something else was recorded at this path."""
    record = recorded.look(path)
    if record is not None and record.result is not None:
        if record.result.key == key:
            return ReplayStep(record.result)
        return _committed(recorded, path, key, record.result.key, guarded=guarded)
    if guarded and (committed := recorded.look_key(key)) is not None:
        return ReplayStep(committed)
    if record is None:
        return RUN
    if record.intent is not None:
        if record.intent.key != key:
            raise _diverged(path, record.intent.key, key)
        return Ambiguous(record.intent)
    if record.promise is not None or record.timer is not None or record.signal is not None:
        raise _diverged(path, b"", key)  # something else than a step stands here
    return _next_attempt(record)


def _committed(recorded: ExecutionRecord, path: str, key: bytes, found: bytes, *, guarded: bool) -> ReplayStep:
    committed = recorded.look_key(key) if guarded else None
    if committed is None:
        raise _diverged(path, found, key)
    return ReplayStep(committed)


def _next_attempt(record: StepRecord) -> RunStep:
    """Attempts are counted since the last run that gave up."""
    count, due = 0, 0
    for one in record.attempts:
        count, due = (count + 1, one.retry_us) if one.retry_us else (0, 0)
    return RunStep(count + 1, due)


def _diverged(path: str, recorded: bytes, asked: bytes) -> Diverged:
    return Diverged(
        "the program differs from what was recorded at this step; nothing was run",
        path=path,
        recorded=recorded,
        asked=asked,
    )
