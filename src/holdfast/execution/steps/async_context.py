"""The context of a program that awaits: `async with log.execution("import") as ctx`.

A step takes its place in the program when it is called, before anything is awaited: `ctx.step(…)` gives a coroutine
that can be awaited now, later, or beside others. Functions that are no coroutine functions run in a thread.

Cancelling the awaiter of a step leaves nothing of it, or the intent of a guarded one: it never harms the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime
from inspect import isawaitable
from typing import Any, TypeVar, overload

from holdfast.errors import Full, Invalid
from holdfast.execution.journal.entries import Effect, OnAmbiguous
from holdfast.execution.steps import step_protocol
from holdfast.execution.steps.any_context import AnyContext
from holdfast.execution.steps.branches import First, begun, drop, end, in_branch, results, wait_for
from holdfast.execution.steps.program_run import UNSET
from holdfast.execution.steps.step_decision import RUN, ReplayStep
from holdfast.execution.steps.step_handle import StepHandle, current
from holdfast.execution.steps.step_options import BACKOFF_S, EffectKind, step_options
from holdfast.execution.steps.step_protocol import CALL, Fetch, Pause, Protocol, Request, WriteEntries
from holdfast.execution.steps.step_transaction import StepTransaction
from holdfast.execution.steps.step_values import codec_of
from holdfast.execution.waits.wait import Wait

Result = TypeVar("Result")


class AsyncContext(AnyContext):
    """What a program asks for its steps; on the event loop where it was made."""

    @overload
    def step(
        self, name: str, fn: Callable[..., Awaitable[Result]], /, *args: Any, **options: Any
    ) -> Coroutine[Any, Any, Result]: ...
    @overload
    def step(
        self, name: str, fn: Callable[..., Result], /, *args: Any, **options: Any
    ) -> Coroutine[Any, Any, Result]: ...
    def step(
        self,
        name: str,
        fn: Callable[..., Any],
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
    ) -> Coroutine[Any, Any, Any]:
        """What this function gives for these arguments: by calling it, or from an earlier run without calling it.

            total = await ctx.step("charge", charge, order, effect="exactly_once_guarded", on_ambiguous="fail")

        The options are those of `Context.step`. `timeout` cancels a coroutine function; one that runs in a thread
        learns of it by `ctx.heartbeat`.
        """
        options = step_options(effect, on_ambiguous, effect_kind, retries, backoff, timeout)
        step = self._run.ask(self._where(), name, fn, args, kwargs, options, returns, fingerprint, skipped)
        if options.is_simple and step.is_async and not self._run.always_replay:
            return self._call_once(step, fn, args, kwargs)
        return self._drive(step_protocol.perform(self._run, step), step, fn, args, kwargs)

    async def _call_once(
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
            return await self._drive(step_protocol.perform_decided(run, step, decision), step, fn, args, kwargs)
        step.started_us = run.clock.now_us()
        outside = current.get()
        current.set(step)
        try:
            value = await fn(*args, **kwargs)
        except Exception as error:
            current.set(outside)
            return await self._drive(step_protocol.failed(run, step, error), step)
        finally:
            current.set(outside)
        entry, value, beside = run.finished(step, value)
        try:
            if beside is None:
                run.live.hand_over_result(entry)
            else:
                run.write(entry, acked=False, beside=beside)
        except Full:
            await self._write(WriteEntries((entry,), False, beside))
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
    ) -> Coroutine[Any, Any, Any]:
        """A step whose function gets a transaction: what it appends and changes, and what it gives, is one commit.

            def book(tx, order):
                tx.append("bookings", order)
                tx.put("balances", "acme", b"100")

            await ctx.transaction("book", book, order)

        It happens exactly once, inside this log: after a crash all of it is there, or nothing.
        """
        options = step_options("idempotent", None, None, retries, backoff, None)
        step = self._run.ask(self._where(), name, fn, args, kwargs, options, returns, fingerprint, None)
        call = StepTransaction(self._run, step, fn, is_async=step.is_async).call_async
        step.is_async = True  # that is one, whatever the function is
        return self._drive(step_protocol.perform(self._run, step), step, call, args, kwargs)

    def gather(self, *awaitables: Awaitable[Any]) -> Coroutine[Any, Any, list[Any]]:
        """What several steps, coroutines, promises or timers give, awaited at once, in order.

            a, b = await ctx.gather(ctx.step("a", fetch, one), import_file(ctx, two))

        Whatever a coroutine does with this context is in a scope of its own, so a later run finds it, in any order.
        All of them come to their end; then the first in order that failed is raised.
        """
        scope = self._run.place("gather()", self._where(), "gather")
        return self._gathered(awaitables, scope)

    async def _gathered(self, awaitables: Sequence[Awaitable[Any]], scope: str) -> list[Any]:
        tasks = begun(awaitables, (id(self._run), self._parent), scope)
        await wait_for(tasks)
        return results(tasks)

    def first(self, *awaitables: Awaitable[Any]) -> Coroutine[Any, Any, First]:
        """Which of several is first, as `winner` and `value`.

            winner, value = await ctx.first(promise, ctx.sleep(60))

        The others are cancelled. Later runs give the same one.
        """
        if not awaitables:
            raise Invalid("nothing can be first among nothing", hint="give at least one step, promise or timer")
        where = self._where()
        step = self._run.ask_value(where, "first()", codec_of(int))
        return self._raced(awaitables, step)

    async def _raced(self, awaitables: Sequence[Awaitable[Any]], step: StepHandle) -> First:
        run, place = self._run, (id(self._run), self._parent)
        decision = run.decide(step)
        if type(decision) is ReplayStep:
            index = run.recorded_value(step, decision.result, decision.result.payload)
            if not 0 <= index < len(awaitables):
                raise Invalid(f"the one that was first is not here any more step={step.path}", hint="keep all of them")
            drop([one for at, one in enumerate(awaitables) if at != index])
            tasks = [in_branch(awaitables[index], place, f"{step.path}/{index + 1}")]
            await wait_for(tasks)
            return First(index, results(tasks)[0])
        tasks = begun(awaitables, place, step.path)
        await wait_for(tasks, for_first=True)
        index = next(at for at, task in enumerate(tasks) if task.done())
        entry, _, _ = run.finished(step, index)
        try:
            await self._write(WriteEntries((entry,), False))
            run.values_made += 1
        finally:
            await end([task for at, task in enumerate(tasks) if at != index])
        return First(index, results([tasks[index]])[0])

    # -- waiting ----------------------------------------------------------------------------------------------

    def sleep(self, seconds: float) -> Wait[None]:
        """Sleep so long, when awaited, also over restarts: a later run sleeps on to the same time."""
        return self._sleep(seconds)

    def sleep_until(self, when: datetime | int) -> Wait[None]:
        """Sleep until a point in time: a datetime with a time zone, or microseconds since 1970."""
        return self._sleep_until(when)

    def signal(self, name: str, *, timeout: float | None = None, returns: Any = Any) -> Wait[Any]:
        """The value of the next signal of this name, to be awaited; see `Context.signal`."""
        return self._signal(name, timeout, returns)

    # -- how it is done ---------------------------------------------------------------------------------------

    async def _drive(
        self,
        protocol: Protocol,
        step: StepHandle,
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
                        value = await _called(step, fn, args, kwargs or {})
                    except BaseException as error:
                        request = protocol.throw(error)
                        continue
                    request = protocol.send(value)
                else:
                    request = protocol.send(await self._do(request))
        except StopIteration as done:
            return done.value

    async def _do(self, request: Request) -> Any:
        if type(request) is WriteEntries:
            return await self._write(request)
        if type(request) is Fetch:
            return await asyncio.to_thread(self._run.fetched, request.path, request.reference)
        return await self._pause(request)

    async def _write(self, request: WriteEntries) -> None:
        run = self._run
        try:
            ticket = run.write(*request.entries, acked=request.acked, beside=request.beside)
        except Full:
            ticket = await run.live.store.when_room(
                lambda: run.write(*request.entries, acked=request.acked, beside=request.beside)
            )
        if request.acked:
            await ticket

    async def _pause(self, request: Pause) -> None:
        live, loop = self._run.live, asyncio.get_running_loop()
        while live.cancel_reason is None and (left := request.until_us - live.clock.now_us()) > 0:
            future = live.arrived.future(loop, left / 1e6)
            if live.cancel_reason is None:
                await future
        live.check()


async def _called(step: StepHandle, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a step's function: on the loop, or in a thread."""
    if not step.is_async:
        value = await asyncio.to_thread(fn, *args, **kwargs)
        return await value if isawaitable(value) else value
    if step.options.timeout is None:
        return await fn(*args, **kwargs)
    try:
        async with asyncio.timeout(step.options.timeout) as limit:
            return await fn(*args, **kwargs)
    except TimeoutError:
        if not limit.expired():
            raise
        raise TimeoutError(f"the step {step.path!r} took longer than {step.options.timeout:g} s") from None
