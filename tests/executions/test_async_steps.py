"""Steps on an event loop: places are taken when they are asked for, and cancelling harms nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast import Invalid, Log, Settings
from holdfast.errors import AmbiguousEffect, ExecutionHeld
from holdfast.execution.journal.entries import EffectIntent, StepResult
from holdfast.execution.steps.async_context import AsyncContext
from tests.executions.test_steps import GUARDED, Calls, entries
from tests.stalled import stalled

pytestmark = pytest.mark.disk


@pytest.fixture
def log(open_log: Callable[..., Log]) -> Log:
    return open_log()


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def results(log: Log, execution: UUID) -> dict[str, StepResult]:
    return {one.path: one for one in entries(log, execution) if isinstance(one, StepResult)}


def test_places_do_not_depend_on_who_is_first(log: Log) -> None:
    """Sixteen steps at once: sixteen paths in the order of asking, whatever the order of their ends."""
    execution = uuid4()

    async def program(ctx: AsyncContext, order: list[int]) -> list[int]:
        gates = [asyncio.Event() for _ in range(16)]

        async def work(number: int) -> int:
            await gates[number].wait()
            return number

        tasks = [asyncio.create_task(ctx.step("work", work, number)) for number in range(16)]
        for number in order:
            gates[number].set()
            await asyncio.sleep(0)
        return await asyncio.gather(*tasks)

    async def run(order: list[int]) -> list[int]:
        async with log.execution("e", id=execution) as ctx:
            return await program(ctx, order)

    order = list(range(16))
    Random(3).shuffle(order)
    assert asyncio.run(run(order)) == list(range(16))
    assert asyncio.run(run(order[::-1])) == list(range(16))
    found = results(log, execution)
    assert set(found) == {"work", *(f"work#{number}" for number in range(2, 17))}


def test_branches_that_share_names_are_found_again(log: Log) -> None:
    """Coroutines that use one context beside each other have a scope each, whichever was quicker."""
    execution, calls = uuid4(), []

    async def import_file(ctx: AsyncContext, name: str, pause: int) -> str:
        async def load() -> str:
            calls.append(name)
            for _ in range(pause):
                await asyncio.sleep(0)
            return name

        async def parse() -> str:
            calls.append(name)
            return f"parsed {name}"

        first = await ctx.step("load", load)
        second = await ctx.step("parse", parse)
        return f"{first} {second}"

    async def run(pauses: list[int]) -> list[Any]:
        async with log.execution("e", id=execution) as ctx:
            files = [import_file(ctx, name, pause) for name, pause in zip("abcd", pauses, strict=True)]
            return await ctx.gather(*files)

    expected = [f"{name} parsed {name}" for name in "abcd"]
    assert asyncio.run(run([9, 5, 3, 0])) == expected
    assert asyncio.run(run([0, 0, 0, 0])) == expected
    assert len(calls) == 8


def test_gather_lets_all_end_and_raises_the_first_in_order(log: Log) -> None:
    execution, seen = uuid4(), []

    async def fails(text: str, pause: int) -> None:
        for _ in range(pause):
            await asyncio.sleep(0)
        raise ValueError(text)

    async def run() -> None:
        async with log.execution("e", id=execution) as ctx:
            with pytest.raises(ValueError, match="slow"):
                await ctx.gather(
                    ctx.step("a", fails, "slow", 9), ctx.step("b", fails, "quick", 0), ctx.step("c", double, 2)
                )
            seen.append(await ctx.step("after", double, 1))

    asyncio.run(run())
    asyncio.run(run())
    assert seen == [2, 2]
    assert set(results(log, execution)) == {"a", "b", "c", "after"}


def test_who_was_first_is_first_again(log: Log) -> None:
    execution, called = uuid4(), []

    async def after(turns: int, name: str) -> str:
        called.append(name)
        for _ in range(turns):
            await asyncio.sleep(0)
        return name

    async def run(one: int, two: int) -> Any:
        async with log.execution("e", id=execution) as ctx:
            found = await ctx.first(
                ctx.step("a", after, one, "a", fingerprint=0), ctx.step("b", after, two, "b", fingerprint=0)
            )
            return *found, await ctx.step("next", double, 4)

    assert asyncio.run(run(50, 1)) == (1, "b", 8)
    assert asyncio.run(run(1, 50)) == (1, "b", 8)
    assert called == ["a", "b"]


def test_a_function_that_blocks_runs_in_a_thread(log: Log) -> None:
    async def run() -> Any:
        async with log.execution("e") as ctx:
            values = [await ctx.step("thread", lambda: threading.current_thread().name != threading.main_thread().name)]
            values.append(await ctx.step("coroutine of a lambda", lambda: double(4)))
            values.append(await ctx.step("key", lambda: ctx.current.key.hex()))
            return values

    thread, coroutine, key = asyncio.run(run())
    assert (thread, coroutine, len(key)) == (True, 8, 64)


def test_a_time_out_ends_a_coroutine_and_counts_as_a_failed_attempt(log: Log) -> None:
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("over")

    async def run() -> None:
        async with log.execution("e") as ctx:
            with pytest.raises(TimeoutError, match="'slow' took longer"):
                await ctx.step("slow", forever, timeout=0.01, retries=1, backoff=0)

    asyncio.run(run())
    assert ended == ["over", "over"]


def test_a_loop_that_finds_the_queue_full_waits_and_loses_nothing(open_log: Callable[..., Log]) -> None:
    """The journal stands still: steps wait for room, values that nobody awaits go with the next step."""
    log = open_log(settings=Settings.from_mapping({"journal": {"queue_records_max": 8}}))
    execution, seen = uuid4(), []

    async def run(count: int) -> None:
        async with log.execution("e", id=execution) as ctx:
            seen.append([[await ctx.step("a", double, number), ctx.random()] for number in range(count)])

    async def first() -> None:
        async with log.execution("e", id=execution) as ctx:
            with stalled(log):
                task = asyncio.create_task(_many(ctx))
                await asyncio.sleep(0.05)
                assert not task.done()
            seen.append(await task)

    async def _many(ctx: AsyncContext) -> Any:
        return [[await ctx.step("a", double, number), ctx.random()] for number in range(40)]

    asyncio.run(first())
    asyncio.run(run(40))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("ends", [True, False])
def test_values_that_find_no_room_go_with_what_comes_next(open_log: Callable[..., Log], ends: bool) -> None:
    """`random()` awaits nothing, so it cannot wait: on a full queue its value goes with the next step, or the end."""
    log = open_log(settings=Settings.from_mapping({"journal": {"queue_records_max": 8}}))
    execution, seen = uuid4(), []

    async def run(*, full: bool) -> None:
        async with log.execution("e", id=execution) as ctx:
            with stalled(log) if full else nullcontext():
                values: list[Any] = [ctx.random() for _ in range(40)]
            if not ends:
                values.append(await ctx.step("a", double, 1))
            seen.append(values)

    asyncio.run(run(full=True))
    asyncio.run(run(full=False))
    assert seen[0] == seen[1]


# -- cancelled -----------------------------------------------------------------------------------------------------


def test_a_task_that_is_cancelled_anywhere_leaves_a_journal_that_goes_on(log: Log) -> None:
    """Each await of a program in turn: the next run finds nothing or all of each step, and guarded ones once."""
    executions: list[UUID] = []
    happened: dict[UUID, list[str]] = {}

    async def program(execution: UUID) -> list[Any]:
        seen = happened.setdefault(execution, [])

        async def effect(name: str) -> str:
            await asyncio.sleep(0)
            seen.append(name)
            return name

        async with log.execution("e", id=execution) as ctx:
            found = [await ctx.step("a", double, 1)]
            found.append(
                await ctx.step("b", effect, "b", effect="exactly_once_guarded", on_ambiguous="skip", skipped="b")
            )
            found += await ctx.gather(ctx.step("c", double, 2), ctx.step("c", double, 3))
            found.append(
                await ctx.step("d", effect, "d", effect="exactly_once_guarded", on_ambiguous="skip", skipped="d")
            )
            return found

    async def cancelled_after(turns: int) -> bool:
        execution = uuid4()
        executions.append(execution)
        task = asyncio.create_task(program(execution))
        for _ in range(turns):
            await asyncio.sleep(0 if turns < 25 else 0.0005)
            if task.done():
                break
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return False
        return True

    async def run() -> None:
        turns, ends = 0, 0
        while ends < 3 and turns < 80:
            ends += await cancelled_after(turns)
            turns += 1
        for execution in executions:
            assert await program(execution) == [2, "b", 4, 6, "d"]
            assert await program(execution) == [2, "b", 4, 6, "d"]

    asyncio.run(run())
    for seen in happened.values():
        assert seen.count("b") <= 1
        assert seen.count("d") <= 1
    assert any(seen == ["b", "d"] for seen in happened.values())


def test_a_guarded_step_that_was_cancelled_leaves_its_intent(log: Log) -> None:
    execution = uuid4()

    async def run(fn: Callable[[], Awaitable[Any]]) -> Any:
        async with log.execution("e", id=execution) as ctx:
            return await ctx.step("charge", fn, **GUARDED)

    async def cancel() -> None:
        begun = asyncio.Event()

        async def hangs() -> None:
            begun.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(run(hangs))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert [type(one) for one in entries(log, execution)] == [EffectIntent]
    with pytest.raises(AmbiguousEffect):
        asyncio.run(run(lambda: double(1)))


def test_cancelling_who_opens_an_execution_lets_it_go(log: Log) -> None:
    execution = uuid4()
    with log.execution("e", id=execution) as ctx:
        ctx.step("a", Calls(1))

    async def run() -> None:
        for _ in range(20):
            block = log.execution("e", id=execution)
            task = asyncio.create_task(block.__aenter__())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            for _ in range(1000):
                try:
                    async with log.execution("e", id=execution):
                        break
                except ExecutionHeld:
                    await asyncio.sleep(0.001)
            else:
                pytest.fail("it was never let go")

    asyncio.run(run())


def test_whatever_goes_on_behind_the_block_is_refused(log: Log) -> None:
    """A task that nobody awaited cannot write into the next run of its execution."""
    execution = uuid4()

    async def run() -> None:
        gate = asyncio.Event()

        async def late() -> int:
            await gate.wait()
            return 1

        async with log.execution("e", id=execution) as ctx:
            stray = asyncio.create_task(ctx.step("stray", late))
            await asyncio.sleep(0)
        async with log.execution("e", id=execution) as again:
            gate.set()
            with pytest.raises((Invalid, ExecutionHeld)):
                await stray
            assert await again.step("stray", double, 4, fingerprint=None) == 8

    asyncio.run(run())
    assert list(results(log, execution)) == ["stray"]


def test_with_on_an_event_loop_warns(log: Log) -> None:
    async def run() -> None:
        with pytest.warns(RuntimeWarning, match="async with"), log.execution("e"):
            pass

    asyncio.run(run())
