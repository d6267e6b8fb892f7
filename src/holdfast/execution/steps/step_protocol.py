"""The course of a step, for threads and event loops alike.

The protocol is a generator: it yields the next action (`CALL` the function, `WriteEntries` and, if they are acked, wait
until they are durable, `Fetch` a large result, `Pause` until a time) and receives its outcome. `Context` and
`AsyncContext` perform the actions, each in its own way; everything else is here, once.

A guarded step: intent durable, function, result durable. Any other: function, result handed over. What is cancelled or
killed in between leaves nothing, or the intent. Values that were made once (`ctx.uuid()`) are durable before any
function runs that could carry them outside: a later run has the same ones.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from holdfast.errors import AmbiguousEffect, ExecutionCanceled, HoldfastError, Invalid
from holdfast.execution.journal.entries import Entry, StepResult
from holdfast.execution.steps.program_run import Beside, ProgramRun
from holdfast.execution.steps.step_decision import RUN, Ambiguous, Decision, ReplayStep, RunStep
from holdfast.execution.steps.step_handle import NOTHING, StepHandle, current
from holdfast.execution.steps.step_values import PLAIN

CALL: Any = object()
"""Call the step's function, and send what it returns or throw what it raises."""


class WriteEntries(NamedTuple):
    """Hand these entries over; if acked, wait until they are durable."""

    entries: tuple[Entry, ...]
    acked: bool
    beside: Beside | None = None
    """What is to be in the same commit."""


class Fetch(NamedTuple):
    """Get the large result that an entry refers to, and send it."""

    path: str
    reference: bytes


class StoredResult(NamedTuple):
    """What a function gave whose result is durable already."""

    value: Any


class CommitFailed(Exception):
    """What a step wanted to store together with its result was not stored, or nobody knows: not the step's failure."""

    def __init__(self, error: HoldfastError) -> None:
        super().__init__(error)
        self.error = error


class Pause(NamedTuple):
    """Wait until this time, or until the program is asked to stop."""

    until_us: int


Request = Any
"""CALL, a Write, a Fetch or a Pause."""

Protocol = Generator[Request, Any, Any]


def perform(run: ProgramRun, step: StepHandle) -> Protocol:
    """One step, from what was recorded to what it gives."""
    return (yield from perform_decided(run, step, run.decide(step)))


def perform_decided(run: ProgramRun, step: StepHandle, decision: Decision) -> Protocol:
    """The same, when it is known what becomes of it."""
    if decision is not RUN:
        known = yield from _before(run, step, decision)
        if known is not NOTHING:
            return known
    elif step.options.is_guarded:
        yield from _settled(run, run.intent(step))
    return (yield from _attempts(run, step))


def _before(run: ProgramRun, step: StepHandle, decision: Decision) -> Protocol:
    """What earlier runs left: the step's value, or NOTHING if it is to be run."""
    if type(decision) is ReplayStep:
        return (yield from _replayed(run, step, decision.result))
    if type(decision) is Ambiguous:
        return (yield from _resolve(run, step))
    assert type(decision) is RunStep
    if step.options.is_guarded:
        yield from _settled(run, run.intent(step))
    step.attempt = decision.attempt
    record = run.live.look(step.path)
    if record is not None and record.heartbeat is not None:
        step.last_heartbeat = PLAIN.decode(record.heartbeat.payload, step.path)
    if decision.not_before_us:
        yield Pause(decision.not_before_us)
    return NOTHING


def _replayed(run: ProgramRun, step: StepHandle, result: StepResult) -> Protocol:
    payload = result.payload
    if result.reference:
        payload = yield Fetch(step.path, result.reference)
    return run.recorded_value(step, result, payload)


def _resolve(run: ProgramRun, step: StepHandle) -> Protocol:
    """A guarded effect that may have happened: do what the step's policy says, and write it down."""
    audit = run.resolved(step)
    if step.options.on_ambiguous == "rerun":
        yield WriteEntries((audit,), False)
        return NOTHING
    if step.options.on_ambiguous == "skip":
        entry, value, beside = run.finished(step, step.skipped)
        yield WriteEntries((audit, entry), True, beside)
        return value
    yield WriteEntries((audit,), True)
    raise AmbiguousEffect(
        f"it is unknown whether this effect happened; it was not run again execution={run.live.id}",
        path=step.path,
        key=step.key,
    )


def _attempts(run: ProgramRun, step: StepHandle) -> Protocol:
    """Call the function until it gives something, or has failed often enough."""
    if run.has_loose_values:
        yield from _settled(run)
    while True:
        run.starts(step)
        outside = current.get()
        current.set(step)
        try:
            try:
                value = yield CALL
            finally:
                current.set(outside)  # not by a token: a coroutine may be closed in another context
        except CommitFailed as unknown:
            raise unknown.error from unknown.error.__cause__
        except Exception as error:
            yield from _try_again(run, step, error)
        else:
            if type(value) is StoredResult:
                return value.value
            entry, value, beside = run.finished(step, value)
            if run.always_replay:
                return (yield from _compared(run, step, entry, beside))
            yield WriteEntries((entry,), step.options.is_guarded, beside)
            return value


def _settled(run: ProgramRun, *entries: Entry) -> Protocol:
    """Wait until all that was handed over is durable, and these entries with it."""
    made = run.values_made
    yield WriteEntries(entries, True)
    run.values_settled = max(run.values_settled, made)


def failed(run: ProgramRun, step: StepHandle, error: Exception) -> Protocol:
    """The last attempt raised: raise what every later run will raise; but for what ends the program."""
    if isinstance(error, ExecutionCanceled):
        raise error
    entry, again = run.raised(step, error)
    yield WriteEntries((entry,), step.options.is_guarded)
    if again is error:
        raise error
    raise again from error


def _try_again(run: ProgramRun, step: StepHandle, error: Exception) -> Protocol:
    """An attempt raised: wait for the next one, if there is one."""
    retry = None if isinstance(error, ExecutionCanceled) else run.failed_attempt(step, error)
    if retry is None:
        yield from failed(run, step, error)
        return
    yield WriteEntries((retry,), False)
    yield Pause(retry.retry_us)
    step.attempt += 1


def _compared(run: ProgramRun, step: StepHandle, written: StepResult, beside: Beside | None) -> Protocol:
    """Write a result and replay it at once: the same must come of it (`always_replay`)."""
    yield WriteEntries((written,), step.options.is_guarded or beside is not None, beside)
    if run.live.is_undurable:
        return run.recorded_value(step, written, written.payload)
    decision = run.decide_again(step)
    if type(decision) is not ReplayStep or decision.result != written:
        raise Invalid(f"this step is not found again as it was written step={step.path}", hint="this is a defect")
    return (yield from _replayed(run, step, decision.result))
