"""The context of a program that blocks: `with log.execution("import") as ctx`.

Steps of guarded effects return when they are durable; others when their result is handed over, which becomes durable
with the next commit. The block returns when everything is.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import datetime
from typing import Any, TypeVar

from holdfast.errors import Invalid
from holdfast.execution.journal.entries import Effect, OnAmbiguous
from holdfast.execution.steps import step_protocol
from holdfast.execution.steps.any_context import AnyContext
from holdfast.execution.steps.program_run import UNSET
from holdfast.execution.steps.step_decision import RUN, ReplayStep
from holdfast.execution.steps.step_handle import StepHandle, current
from holdfast.execution.steps.step_options import BACKOFF_S, EffectKind, step_options
from holdfast.execution.steps.step_protocol import CALL, Fetch, Pause, Protocol, Request, WriteEntries
from holdfast.execution.steps.step_transaction import StepTransaction

Result = TypeVar("Result")


class Context(AnyContext):
    """What a program asks for its steps; from one thread at a time, unless each has a scope of its own."""

    def step(
        self,
        name: str,
        fn: Callable[..., Result],
        /,
        *args: Any,
        effect: Effect = "at_least_once",
        on_ambiguous: OnAmbiguous | None = None,
        effect_kind: EffectKind | None = None,
        retries: int = 0,
        backoff: float = BACKOFF_S,
        timeout: float | None = None,
        returns: Any = UNSET,
        fingerprint: object = UNSET,
        skipped: Any = None,
        **kwargs: Any,
    ) -> Result:
        """What this function gives for these arguments: by calling it, or from an earlier run without calling it.

            total = ctx.step("charge", charge, order, effect="exactly_once_guarded", on_ambiguous="fail")

        `name` and how often it was used before make up the step's path. `fingerprint` is compared on later runs instead
        of the arguments. `retries` are attempts after the first, `backoff` the seconds before the first of them, which
        double. `timeout` is when `ctx.heartbeat` inside the function raises TimeoutError. `returns` is the type of the
        result, if it is not the function's annotation. `skipped` is what a guarded step gives that is taken for done.

        What the function raises is raised here, and again on later runs if the program goes on with it; if it ends the
        block, the next run tries the step again.
        """
        options = step_options(effect, on_ambiguous, effect_kind, retries, backoff, timeout)
        step = self._run.ask(self._where(), name, fn, args, kwargs, options, returns, fingerprint, skipped)
        if step.is_async:
            raise Invalid(
                f"a coroutine function needs an event loop step={step.path}", hint="use: async with log.execution(…)"
            )
        if options.is_simple and not self._run.always_replay:
            return self._call_once(step, fn, args, kwargs)  # type: ignore[no-any-return]
        return self._drive(step_protocol.perform(self._run, step), fn, args, kwargs)  # type: ignore[no-any-return]

    def _call_once(
        self, step: StepHandle, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What the protocol does with a step that is called once and waits for nothing, without the protocol: most are.

        Whatever is not as usual is left to the protocol.
        """
        run = self._run
        decision = run.decide(step)
        if type(decision) is ReplayStep and not decision.result.reference:
            return run.recorded_value(step, decision.result, decision.result.payload)
        if decision is not RUN or run.has_loose_values:
            return self._drive(step_protocol.perform_decided(run, step, decision), fn, args, kwargs)
        step.started_us = run.clock.now_us()
        outside = current.get()
        current.set(step)
        try:
            value = fn(*args, **kwargs)
        except Exception as error:
            current.set(outside)
            return self._drive(step_protocol.failed(run, step, error))
        finally:
            current.set(outside)
        entry, value, beside = run.finished(step, value)
        if beside is None:
            run.live.hand_over_result(entry)
        else:
            run.write(entry, acked=False, beside=beside)
        return value

    def transaction(
        self,
        name: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        retries: int = 0,
        backoff: float = BACKOFF_S,
        returns: Any = UNSET,
        fingerprint: object = UNSET,
        **kwargs: Any,
    ) -> Any:
        """A step whose function gets a transaction: what it appends and changes, and what it gives, is one commit.

            def book(tx, order):
                tx.append("bookings", order)
                tx.put("balances", "acme", b"100")

            ctx.transaction("book", book, order)

        It happens exactly once, inside this log: after a crash all of it is there, or nothing.
        """
        options = step_options("idempotent", None, None, retries, backoff, None)
        step = self._run.ask(self._where(), name, fn, args, kwargs, options, returns, fingerprint, None)
        return self._drive(
            step_protocol.perform(self._run, step), StepTransaction(self._run, step, fn).call, args, kwargs
        )

    def gather(self, *branches: Callable[[Context], Any], threads: int = 16) -> list[Any]:
        """What several functions give, each called with a context of its own, in threads, up to so many at once.

            sizes = ctx.gather(*(lambda ctx, url=url: ctx.step("fetch", fetch, url) for url in urls))

        All of them come to their end; then the first in order that failed is raised.
        """
        scope = self._run.place("gather()", self._where(), "gather")
        contexts = [Context(self._run, f"{scope}/{number}") for number in range(1, len(branches) + 1)]
        with ThreadPoolExecutor(max(1, min(threads, len(branches))), "holdfast-branch") as pool:
            pairs = zip(branches, contexts, strict=True)
            calls = [pool.submit(copy_context().run, branch, context) for branch, context in pairs]
        errors = [error for call in calls if (error := call.exception()) is not None]
        if errors:
            raise next((error for error in errors if not isinstance(error, Exception)), errors[0])
        return [call.result() for call in calls]

    # -- waiting ----------------------------------------------------------------------------------------------

    def sleep(self, seconds: float) -> None:
        """Sleep so long, also over restarts: a later run sleeps on to the same time."""
        self._sleep(seconds).result()

    def sleep_until(self, when: datetime | int) -> None:
        """Sleep until a point in time: a datetime with a time zone, or microseconds since 1970."""
        self._sleep_until(when).result()

    def signal(self, name: str, *, timeout: float | None = None, returns: Any = Any) -> Any:
        """The value of the next signal of this name, which `log.executions.signal(id, name, value)` sends.

        Raises WaitTimedOut if none comes within `timeout` seconds, and then on every later run as well.
        """
        return self._signal(name, timeout, returns).result()

    # -- how it is done ---------------------------------------------------------------------------------------

    def _drive(
        self,
        protocol: Protocol,
        fn: Callable[..., Any] | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Do what a step's protocol says, until it is done."""
        try:
            request = next(protocol)
            while True:
                if request is CALL:
                    assert fn is not None
                    try:
                        value = fn(*args, **(kwargs or {}))
                    except BaseException as error:
                        request = protocol.throw(error)
                        continue
                    request = protocol.send(value)
                else:
                    request = protocol.send(self._do(request))
        except StopIteration as done:
            return done.value

    def _do(self, request: Request) -> Any:
        if type(request) is WriteEntries:
            return self._write(request)
        if type(request) is Fetch:
            return self._run.fetched(request.path, request.reference)
        return self._pause(request)

    def _write(self, request: WriteEntries) -> None:
        ticket = self._run.write(*request.entries, acked=request.acked, beside=request.beside)
        if request.acked:
            ticket.result()

    def _pause(self, request: Pause) -> None:
        live = self._run.live
        while live.cancel_reason is None and (left := request.until_us - live.clock.now_us()) > 0:
            live.arrived.sleep(lambda: live.cancel_reason is not None, left / 1e6)
        live.check()
