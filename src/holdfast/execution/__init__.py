"""Durable executions: programs whose finished steps are never run again.

`journal` is what is stored of an execution, `steps` how a program runs on it, `waits` what a program may wait for
(promises, timers, signals, schedules), `work` who runs programs and who looks after them. All of it lives in spaces and
in the topic `_executions` of a log, and changes in commit units: nothing here knows how a log stores anything.

Programs get everything from their log (`log.execution`, `log.executions`, `log.worker`); what they annotate and catch
has its names here:

    from holdfast.execution import AmbiguousEffect, Context
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.errors import (
        AmbiguousEffect,
        Diverged,
        ExecutionCanceled,
        ExecutionError,
        ExecutionHeld,
        PromiseFailed,
        PromiseRejected,
        StepFailed,
        UnsupportedEntryKind,
        WaitTimedOut,
    )
    from holdfast.execution.steps.async_context import AsyncContext
    from holdfast.execution.steps.context import Context
    from holdfast.execution.steps.step_handle import StepHandle
    from holdfast.execution.waits.promises import Promise
    from holdfast.execution.waits.schedules import Schedule
    from holdfast.execution.work.execution_views import ExecutionDetails, ExecutionSummary, StepDetails
    from holdfast.execution.work.executions import Executions
    from holdfast.execution.work.worker import Worker

_HOMES = {
    "AmbiguousEffect": "errors",
    "AsyncContext": "execution.steps.async_context",
    "Context": "execution.steps.context",
    "Diverged": "errors",
    "ExecutionCanceled": "errors",
    "ExecutionDetails": "execution.work.execution_views",
    "ExecutionError": "errors",
    "ExecutionHeld": "errors",
    "ExecutionSummary": "execution.work.execution_views",
    "Executions": "execution.work.executions",
    "Promise": "execution.waits.promises",
    "PromiseFailed": "errors",
    "PromiseRejected": "errors",
    "Schedule": "execution.waits.schedules",
    "StepDetails": "execution.work.execution_views",
    "StepFailed": "errors",
    "StepHandle": "execution.steps.step_handle",
    "UnsupportedEntryKind": "errors",
    "WaitTimedOut": "errors",
    "Worker": "execution.work.worker",
}

__all__ = [
    "AmbiguousEffect",
    "AsyncContext",
    "Context",
    "Diverged",
    "ExecutionCanceled",
    "ExecutionDetails",
    "ExecutionError",
    "ExecutionHeld",
    "ExecutionSummary",
    "Executions",
    "Promise",
    "PromiseFailed",
    "PromiseRejected",
    "Schedule",
    "StepDetails",
    "StepFailed",
    "StepHandle",
    "UnsupportedEntryKind",
    "WaitTimedOut",
    "Worker",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'holdfast.execution' has no attribute {name!r}")
    value = getattr(import_module(f"holdfast.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
