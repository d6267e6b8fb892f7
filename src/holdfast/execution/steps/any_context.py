"""What a program sees of its execution, whether it blocks or awaits: who it is, where it is, values that it may not
make itself.

Time, ids and randomness come from here, so that they are the same on every later run. Inside a step's function,
`current` says which step it is and `heartbeat` how far it got.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Self
from uuid import UUID

from holdfast.errors import Diverged, Invalid
from holdfast.execution.journal.entries import Heartbeat, VersionMarked
from holdfast.execution.journal.execution_id import ExecutionId, checked_name, joined
from holdfast.execution.journal.live_execution import LiveExecution
from holdfast.execution.steps.branches import branches
from holdfast.execution.steps.program_run import ProgramRun
from holdfast.execution.steps.step_decision import ReplayStep
from holdfast.execution.steps.step_handle import StepHandle, current
from holdfast.execution.steps.step_values import PLAIN, Codec, codec_of
from holdfast.execution.waits.promises import Promise
from holdfast.execution.waits.signal_wait import signal_name, wait_for_signal
from holdfast.execution.waits.timers import sleep, sleep_until
from holdfast.execution.waits.wait import Wait

_DATETIME = codec_of(datetime)
_UUID = codec_of(UUID)
_UNVERSIONED = 1
"""The version of a program that was recorded before it asked."""


class AnyContext:
    """What both kinds of context have."""

    def __init__(self, run: ProgramRun, parent: str = "") -> None:
        self._run = run
        self._parent = parent

    def _where(self) -> str:
        """The path of this scope in the present branch."""
        elsewhere = branches.get()
        return elsewhere.get((id(self._run), self._parent), self._parent) if elsewhere else self._parent

    # -- who and where ----------------------------------------------------------------------------------------

    @property
    def id(self) -> ExecutionId:
        """The execution's id."""
        return self._run.live.id

    @property
    def kind(self) -> str:
        """The execution's kind."""
        return self._run.live.kind

    @property
    def path(self) -> str:
        """The path of this scope; empty outside of scopes."""
        return self._where()

    @property
    def resumed(self) -> bool:
        """Whether an earlier run left something that is replayed."""
        return self._run.live.resumed

    @property
    def live(self) -> LiveExecution:
        """The open execution: what promises, timers and signals stand on."""
        return self._run.live

    @property
    def cancelled(self) -> bool:
        """Whether the program is asked to stop; it gets an exception at its next step."""
        return self._run.live.cancel_reason is not None

    @property
    def is_undurable(self) -> bool:
        """Whether the journal failed and the program goes on without it (`on_journal_loss`)."""
        return self._run.live.is_undurable

    def scope(self, name: str) -> Self:
        """A context for a part of the program: its steps have paths of their own, whatever happens beside it.

        Give each of several things that go on at the same time a scope of its own.

            with ctx.scope("invoice") as invoice:
                invoice.step("send", send, order)
        """
        return type(self)(self._run, self._run.place(name, self._where(), "scope"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def set_result(self, value: Any) -> None:
        """What the execution returns, if it completes."""
        payload, _ = PLAIN.encode(value, "result")
        most = self._run.live.store.settings.payload_bytes_max
        if len(payload) > most:
            raise Invalid(
                f"what the program returns is too large bytes={len(payload)}",
                hint=f"it may have {most} (executions.payload_bytes_max): let a step give it, or return where it is",
            )
        self._run.result = value

    # -- values that are made once ----------------------------------------------------------------------------

    def now(self) -> datetime:
        """The time, in UTC, as it was when the program first asked here."""
        return self._value("now()", _DATETIME, datetime.fromtimestamp(self._run.clock.now_us() / 1e6, UTC))  # type: ignore[no-any-return]

    def uuid(self) -> UUID:
        """A random UUID (version 4): the same on every later run."""
        return self._value("uuid()", _UUID, UUID(bytes=self._run.clock.random_bytes(16), version=4))  # type: ignore[no-any-return]

    def random(self) -> float:
        """A random number, at least 0 and less than 1: the same on every later run."""
        number = int.from_bytes(self._run.clock.random_bytes(8), "big") >> 11
        return self._value("random()", PLAIN, number / 2**53)  # type: ignore[no-any-return]

    def version(self, name: str, number: int) -> int:
        """Which version of a changed piece of program this execution is to run: `number`, or what it began with.

        An execution that has not come this far runs the newest, and keeps it. One that went past this place before
        the program asked here gets 1.

            if ctx.version("tax", 2) == 1:
                tax = ctx.step("tax", old_tax, order)
            else:
                tax = ctx.step("tax by country", tax_by_country, order)
        """
        run = self._run
        path = joined(self._where(), checked_name(name, "version"), 1)
        record = run.live.look(path)
        marked = record.version if record is not None else None
        if marked is None:
            chosen = number if run.is_at_end() else _UNVERSIONED
            marked = VersionMarked(path, chosen, run.clock.now_us())
            run.live.write_later(marked)
            run.live.recorded.add(marked)
        if marked.version > number:
            raise Diverged(
                f"this execution runs version {marked.version} of this piece of code, which supports {number}",
                path=path,
                recorded=bytes([marked.version & 255]),
                asked=bytes([number & 255]),
                hint="continue with the program that began it",
            )
        return marked.version

    def _value(self, name: str, codec: Codec, fresh: Any) -> Any:
        run = self._run
        step = run.ask_value(self._where(), name, codec)
        decision = run.decide(step)
        if type(decision) is ReplayStep:
            return run.recorded_value(step, decision.result, decision.result.payload)
        entry, value, _ = run.finished(step, fresh)
        run.live.write_later(entry)
        run.values_made += 1  # behind it: who sees it waits for what was handed over
        return value

    # -- what a program may wait for --------------------------------------------------------------------------

    def promise(self, name: str, *, returns: Any = Any) -> Promise:
        """A value that comes from outside, by a token: `promise.result()`, or `await promise`.

            approval = ctx.promise("approval")
            ctx.step("ask", lambda: mail(boss, approval.token()))
            if approval.result(timeout=86_400) == "yes": …

        Give the token away inside of a step's function, not as an argument: it is another one on a later run. Its
        holder calls `log.executions.resolve(token, value)`, or `holdfast execution resolve`. `returns` is the value's
        type.
        """
        run = self._run
        return Promise(run.live, run.waiters, run.place(name, self._parent, "promise"), returns)

    def _sleep(self, seconds: float) -> Wait[None]:
        run = self._run
        return sleep(run.live, run.waiters, run.place("sleep()", self._parent, "sleep"), seconds)

    def _sleep_until(self, when: datetime | int) -> Wait[None]:
        run = self._run
        return sleep_until(run.live, run.waiters, run.place("sleep()", self._parent, "sleep"), when)

    def _signal(self, name: str, timeout: float | None, returns: Any) -> Wait[Any]:
        run = self._run
        path = run.place(signal_name(name), self._parent, "signal")
        return wait_for_signal(run.live, run.waiters, path, name, timeout, returns)

    # -- inside of a step -------------------------------------------------------------------------------------

    @property
    def current(self) -> StepHandle:
        """The step whose function is running: its path, key and attempt."""
        step = current.get()
        if step is None or step.run is not self._run:
            raise Invalid("no step is running here", hint="ask inside of a step's function")
        return step

    def heartbeat(self, value: Any = None) -> None:
        """Say from inside of a step that it is alive, and how far it is; the next attempt finds it as `current`'s.

        Raises ExecutionCanceled or TimeoutError if the step should end: functions that do not await can be stopped in
        no other way.
        """
        step, run = self.current, self._run
        payload, _ = PLAIN.encode(value, step.path)
        run.live.write_later(Heartbeat(step.path, payload, run.clock.now_us()))
        if run.live.cancel_reason is not None:
            run.live.check()
        if step.deadline is not None and run.clock.monotonic() > step.deadline:
            raise TimeoutError(f"the step {step.path!r} took longer than {step.options.timeout:g} s")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.kind!r}, id={str(self.id)!r}{', path=' * bool(self.path)}{self.path})"
