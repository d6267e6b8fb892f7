"""What was recorded at a path must be what the program asks for there: a step is no promise, a promise no timer."""

from __future__ import annotations

from typing import Literal

from holdfast.errors import Diverged
from holdfast.execution.journal.execution_id import step_key
from holdfast.execution.journal.execution_record import StepRecord
from holdfast.execution.journal.live_execution import LiveExecution

Kind = Literal["promise", "timer", "signal"]


def check_kind(live: LiveExecution, path: str, kind: Kind) -> StepRecord | None:
    """What was recorded at this path, if anything was; raises Diverged if it was something else."""
    record = live.look(path)
    found = None if record is None else recorded_kind(record)
    if record is None or found is None or found == kind:
        return record
    recorded = step_key(live.id, path, found, b"") if record.result is None else record.result.key
    raise Diverged(
        f"a {kind} is requested where a {found} was recorded",
        path=path,
        recorded=recorded,
        asked=step_key(live.id, path, kind, b""),
    )


def recorded_kind(record: StepRecord) -> str | None:
    """What the entries of a path are of; None if they do not say. A signal with a time-out has a timer, too."""
    if record.result is not None or record.intent is not None or record.attempts:
        return "step"
    if record.promise is not None:
        return "promise"
    if record.signal is not None:
        return "signal"
    if record.version is not None:
        return "version"
    return "timer" if record.timer_fired is not None else None
