"""One call of a step: where it stands, what it is asked to do, how it is going.

It is what `ctx.current` gives inside a step's function: `key` is the same on every run and for every attempt, so the
other side of an effect can recognise a repeat by it; `attempt` counts from 1; `last_heartbeat` is what an earlier
attempt said last about how far it was.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from holdfast.execution.steps.step_options import StepOptions
from holdfast.execution.steps.step_values import Codec

if TYPE_CHECKING:
    from holdfast.execution.steps.program_run import ProgramRun

NOTHING: Any = object()


class StepHandle:
    """A step that was asked for."""

    __slots__ = (
        "attempt", "codec", "deadline", "is_async", "is_done", "key", "last_heartbeat", "options", "path", "run",
        "skipped", "started_us", "value",
    )  # fmt: skip

    def __init__(
        self, run: ProgramRun, path: str, key: bytes, options: StepOptions, codec: Codec, is_async: bool, skipped: Any
    ) -> None:
        self.run = run
        self.path = path
        """Where it stands in the program."""
        self.key = key
        """32 bytes that name this step of this execution with these arguments, on every run."""
        self.options = options
        self.codec = codec
        self.is_async = is_async
        self.skipped = skipped
        self.attempt = 1
        """Which attempt this is."""
        self.started_us = 0
        self.deadline: float | None = None
        """When it should be over, by the log's monotonic clock."""
        self.last_heartbeat: Any = None
        """What an earlier attempt said last."""
        self.is_done = False
        """Of a step that was begun with `begin_step`: whether its result is known."""
        self.value: Any = None
        """Its result, then."""

    def __repr__(self) -> str:
        return f"StepHandle({self.path!r}, attempt={self.attempt})"


current: ContextVar[StepHandle | None] = ContextVar("holdfast-step", default=None)
"""The step whose function is running in this thread or task."""
