"""One call of a step: its place, its work, its state.

It is what `ctx.current` gives inside a step's function: `key` is the same on every run and for every attempt, so the
other side of an effect can recognise a repeat by it; `attempt` counts from 1; `last_heartbeat` is what an earlier
attempt said last about how far it was.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import msgspec

from holdfast.execution.steps.step_options import StepOptions
from holdfast.execution.steps.step_values import Codec

NOTHING: Any = object()


class StepHandle(msgspec.Struct, gc=False, eq=False):
    """A step that was asked for."""

    run: Any
    """The run of the program that asked for it."""
    path: str
    """Where it stands in the program."""
    key: bytes
    """32 bytes that name this step of this execution with these arguments, on every run."""
    options: StepOptions
    """Its effect class, retries and time-out."""
    codec: Codec
    is_async: bool
    skipped: Any
    attempt: int = 1
    """Which attempt this is."""
    started_us: int = 0
    deadline: float | None = None
    """When it should be over, by the log's monotonic clock."""
    last_heartbeat: Any = None
    """What an earlier attempt said last."""

    def __repr__(self) -> str:
        return f"StepHandle({self.path!r}, attempt={self.attempt})"


current: ContextVar[StepHandle | None] = ContextVar("holdfast-step", default=None)
"""The step whose function is running in this thread or task."""
