"""One run of a program on its execution: what its contexts, those of scopes included, share.

It asks for steps in the order of the program, decides by what was recorded, and hands over what happens. It waits for
nothing: its driver (`Context`, `AsyncContext`) does that in its own way.

What happens when the journal cannot be written is the live execution's business (`journal_loss.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import Full, Invalid
from holdfast.execution.journal.entries import AmbiguityResolved, AttemptFailed, EffectIntent, Entry, StepResult
from holdfast.execution.journal.execution_id import step_hasher, step_key_from
from holdfast.execution.journal.live_execution import LiveExecution
from holdfast.execution.steps.claim_check import fetched, put_aside
from holdfast.execution.steps.step_decision import RUN, Decision, decide
from holdfast.execution.steps.step_errors import decode_error, encode_error, type_name
from holdfast.execution.steps.step_handle import StepHandle, current
from holdfast.execution.steps.step_options import DEFAULT, StepOptions
from holdfast.execution.steps.step_values import Codec, codec_of, fingerprint, function_of, given_fingerprint
from holdfast.execution.waits.wait import Waiters
from holdfast.journal.journal import Journal, Operation
from holdfast.journal.queue.ticket import UnitTicket

UNSET: Any = object()


class Beside(NamedTuple):
    """What is to be durable in the same commit as an entry."""

    operations: list[Operation]
    size: int


_MARK = "_holdfast_step"
"""The attribute that tells which step an exception came from."""

logger = logging.getLogger("holdfast.execution")


class ProgramRun:
    """A program that is running on an open execution."""

    def __init__(
        self,
        live: LiveExecution,
        journal: Journal,
        waiters: Waiters,
        *,
        always_replay: bool = False,
        begin_transaction: Callable[..., Any] | None = None,
    ) -> None:
        self.live = live
        self.journal = journal
        self.waiters = waiters
        self.clock = live.clock
        self.always_replay = always_replay
        self.begin_transaction = begin_transaction
        self.is_over = False
        """The block has ended: nothing may be asked for any more."""
        self.result: Any = None
        """What the program returns."""
        self.values_made = self.values_settled = 0
        """How many values of now(), uuid() … this run has made, and how many of them are known to be durable."""
        self._payload_max = live.store.settings.payload_bytes_max
        self._resumed = live.resumed
        self._replayed = 0
        self._hasher = step_hasher(live.id)

    # -- what is asked for ------------------------------------------------------------------------------------

    def place(self, name: str, parent: str, what: str = "step") -> str:
        """The next path of this name in this scope."""
        if self.is_over:
            raise Invalid(
                f"the block of this execution has ended execution={self.live.id}",
                hint="finish, or await, everything inside of it",
            )
        inside = current.get()
        if inside is not None and inside.run is self:
            raise Invalid(
                f"a {what} inside of a step would not be there when that step is replayed step={inside.path}",
                hint="ask for it outside of the step's function; ctx.scope(…) groups steps",
            )
        return self.live.place(name, parent, what)

    def ask(
        self,
        parent: str,
        name: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: StepOptions,
        returns: Any,
        given: object,
        skipped: Any,
    ) -> StepHandle:
        """A step in its place; called in the order of the program."""
        function = function_of(fn)
        codec = function.codec if returns is UNSET else codec_of(returns)
        path = self.place(name, parent)
        operation = fingerprint(args, kwargs, path) if given is UNSET else given_fingerprint(given, path)
        key = self._key(path, options, operation)
        return StepHandle(self, path, key, options, codec, function.is_async, skipped)

    def ask_value(self, parent: str, name: str, codec: Codec) -> StepHandle:
        """A value that is made once and then remembered."""
        path = self.place(name, parent)
        return StepHandle(self, path, self._key(path, DEFAULT, b""), DEFAULT, codec, False, None)

    def _key(self, path: str, options: StepOptions, operation: bytes) -> bytes:
        if self.live.recorded.origins:  # some paths have another execution's keys
            return self.live.key(path, options.effect, operation)
        return step_key_from(self._hasher, path, options.framed_effect, operation)

    def decide(self, step: StepHandle) -> Decision:
        """What becomes of it; raises Diverged, or why the program is to stop."""
        if self.live.cancel_reason is not None:
            self.live.check()
        if not self._resumed:
            return RUN
        return decide(self.live.recorded, step.path, step.key, guarded=step.options.is_guarded)

    def decide_again(self, step: StepHandle) -> Decision:
        """What would become of it on a later run."""
        return decide(self.live.recorded, step.path, step.key, guarded=step.options.is_guarded)

    def recorded_value(self, step: StepHandle, result: StepResult, payload: bytes) -> Any:
        """What a recorded step gave; raises what it raised."""
        self._replayed += 1
        if result.is_error:
            error = decode_error(payload, step.path)
            mark(error, step)
            raise error
        return step.codec.decode(payload, step.path)

    def fetched(self, path: str, reference: bytes) -> bytes:
        """The large result that an entry refers to; reads the disk."""
        return fetched(self.journal, self.live.id, path, reference)

    @property
    def has_loose_values(self) -> bool:
        """Whether a value was made that a crash would take back: nothing may carry it outside yet."""
        return self.values_made > self.values_settled

    # -- what happens -----------------------------------------------------------------------------------------

    def starts(self, step: StepHandle) -> None:
        """An attempt begins now."""
        step.started_us = self.clock.now_us()
        if step.options.timeout is not None:
            step.deadline = self.clock.monotonic() + step.options.timeout

    def intent(self, step: StepHandle) -> EffectIntent:
        """The step's effect is about to happen."""
        return EffectIntent(step.path, step.key, step.options.effect, self.clock.now_us())

    def finished(self, step: StepHandle, value: Any) -> tuple[StepResult, Any, Beside | None]:
        """The entry of a step that gave a value, the value as it will be replayed, and what belongs to the entry."""
        payload, value = step.codec.encode(value, step.path)
        if len(payload) <= self._payload_max:
            return self._entry(step, payload, is_error=False), value, None
        reference, operations, size = put_aside(self.journal, self.live.id, step.path, payload)
        entry = msgspec.structs.replace(self._entry(step, b"", is_error=False), reference=reference)
        return entry, value, Beside(operations, size)

    def raised(self, step: StepHandle, error: Exception) -> tuple[StepResult, BaseException]:
        """The entry of a step that raised, and the error as it will be replayed."""
        payload, again = encode_error(error, step.path, self._payload_max)
        mark(again, step)
        return self._entry(step, payload, is_error=True), again

    def failed_attempt(self, step: StepHandle, error: Exception) -> AttemptFailed | None:
        """The entry of an attempt that is not the last; None if it was."""
        if step.attempt > step.options.retries:
            return None
        now = self.clock.now_us()
        due = now + round(step.options.delay(step.attempt) * 1e6)
        return AttemptFailed(step.path, step.attempt, type_name(error), now, due)

    def resolved(self, step: StepHandle) -> AmbiguityResolved:
        """The audit record of what is decided about an effect of which nobody knows whether it happened."""
        policy, path, key = step.options.on_ambiguous or "fail", step.path, step.key
        logger.warning(
            "it is unknown whether a guarded effect happened: %s",
            policy,
            extra={
                "action": "execution_ambiguous",
                "execution": str(self.live.id),
                "step": path,
                "effect": step.options.effect,
                "key": key[:8].hex(),
                "policy": policy,
            },
        )
        return AmbiguityResolved(path, key, step.options.effect, policy, self.clock.now_us())

    def _entry(self, step: StepHandle, payload: bytes, *, is_error: bool) -> StepResult:
        now = self.clock.now_us()
        return StepResult(
            step.path, step.key, step.options.effect, payload, now, step.started_us or now, step.attempt, is_error
        )

    # -- handing over -----------------------------------------------------------------------------------------

    def write(self, *entries: Entry, acked: bool, beside: Beside | None = None) -> UnitTicket:
        """Hand entries over. Raises Full where there is no room."""
        live = self.live
        if beside is None:
            ticket = live.hand_over(*entries, acked=acked)
        else:
            ticket = live.hand_over(*entries, beside.operations, acked=acked, size=beside.size)
        if entries and (self.always_replay or not isinstance(entries[-1], StepResult)):
            for entry in entries:  # a path is asked for once: nobody looks for a result again
                live.recorded.add(entry)
        return ticket

    def flushed(self) -> UnitTicket | None:
        """Hand over what found no room so far."""
        live = self.live
        pending, live.pending = live.pending, []
        try:
            return live.hand_over(*pending) if pending else None
        except Full:
            live.pending = pending
            raise

    def is_at_end(self) -> bool:
        """Whether this run has come to the end of what was recorded, as far as it is known."""
        return not self._resumed or self._replayed >= self._count_recorded()

    def _count_recorded(self) -> int:
        return sum(
            record.result is not None or record.intent is not None for record in self.live.recorded.all().values()
        )


def mark(error: BaseException, step: StepHandle) -> None:
    """Note which step an exception came from."""
    try:
        setattr(error, _MARK, step)
    except AttributeError:  # a class that takes no attributes
        pass


def steps_behind(error: BaseException | None, depth: int = 16) -> list[StepHandle]:
    """The steps that an exception came from, itself or through those that caused it."""
    found: list[StepHandle] = []
    while error is not None and depth:
        step = getattr(error, _MARK, None)
        if isinstance(step, StepHandle):
            found.append(step)
        if isinstance(error, BaseExceptionGroup):
            for one in error.exceptions:
                found += steps_behind(one, depth - 1)
        error, depth = error.__cause__ or error.__context__, depth - 1
    return found
