"""Programs that wait, as users write them: killed anywhere, they wait on, and get what came meanwhile."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import Diverged, Invalid, PromiseFailed, WaitTimedOut
from holdfast.execution.journal.execution_id import derived_id
from holdfast.testing import ManualClock
from tests.executions.waiting_room import Aside, open_log, room_of, wait_until

pytestmark = pytest.mark.disk

ORDER = derived_id("order", "17")


def test_a_program_asks_somebody_and_goes_on_with_the_answer(tmp_path):
    tokens = []
    with open_log(tmp_path / "log") as log:

        def program() -> str:
            with log.execution("order", id=ORDER) as ctx:
                approval = ctx.promise("approval", returns=str)
                ctx.step("ask", lambda: tokens.append(approval.token()))
                answer = approval.result()
                ctx.set_result(answer)
            return answer

        running = Aside(program)
        wait_until(lambda: bool(tokens))
        assert log.executions.resolve(tokens[0], "yes")
        assert running.result() == "yes"
        assert log.executions.result(ORDER) == "yes"
        assert program() == "yes"
        assert len(tokens) == 1


def test_a_program_that_awaits_does_all_of_it_side_by_side(tmp_path):
    async def program() -> list[object]:
        async with log.execution("order", id=ORDER) as ctx:
            approval, paid, nap = ctx.promise("approval"), ctx.signal("paid"), ctx.sleep(0.01)
            answers = asyncio.gather(approval, paid, nap)
            await log.executions.signal_async(ctx.id, "paid", 5)
            token = await approval.token_async()
            await log.executions.resolve_async(token, "yes")
            found = await answers
            with pytest.raises(WaitTimedOut):
                await ctx.signal("never", timeout=0)
        return found

    with open_log(tmp_path / "log") as log:
        assert asyncio.run(program()) == ["yes", 5, None]


def test_what_was_waited_for_is_replayed_without_waiting(tmp_path):
    clock = ManualClock()
    seen = []
    with open_log(tmp_path / "log", clock=clock) as log:

        def program() -> None:
            with log.execution("order", id=ORDER) as ctx:
                log.executions.signal(ctx.id, "paid", 1) if not seen else None
                found = [ctx.signal("paid")]
                ctx.sleep(0)
                try:
                    ctx.signal("paid", timeout=0)
                except TimeoutError:
                    found.append("late")
                try:
                    ctx.promise("approval").result(timeout=0)
                except TimeoutError:
                    found.append("late")
                ctx.sleep_until(clock.now_us() - 5)
                seen.append(found)
                raise KeyError("and fails at its end")

        for _ in range(3):
            with pytest.raises(KeyError):
                program()
            clock.jump(-1000)
    assert seen == [[1, "late", "late"]] * 3


def test_waits_take_their_places_when_they_are_asked_for(tmp_path):
    """However coroutines are scheduled, and whatever is awaited first."""

    async def program(order: list[int]) -> list[object]:
        async with log.execution("order", id=ORDER) as ctx:
            waits = [ctx.signal("paid") for _ in range(3)]
            found: list[object] = [None] * 3
            for number in order:
                found[number] = await waits[number]
            return found

    with open_log(tmp_path / "log") as log:
        with log.execution("order", id=ORDER):
            pass
        room_of(log)
        execution = asyncio.run(sending(log, program([0, 1, 2])))
        assert execution == [0, 1, 2]
        assert asyncio.run(program([2, 0, 1])) == [0, 1, 2]


async def sending(log, program):
    task = asyncio.ensure_future(program)
    await asyncio.sleep(0)
    wait = asyncio.get_running_loop()
    for number in range(3):
        while log.executions.list()[0].status != "running":
            await asyncio.sleep(0.01)
        await wait.run_in_executor(None, log.executions.signal, ORDER, "paid", number)
    return await task


def test_a_rejected_promise_fails_the_program_that_does_not_catch_it(tmp_path):
    with open_log(tmp_path / "log") as log:
        with pytest.raises(PromiseFailed, match="no money"), log.execution("order", id=ORDER) as ctx:
            approval = ctx.promise("approval")
            log.executions.reject(approval.token(), "no money")
            approval.result()
        assert log.executions.list()[0].status == "failed"


def test_a_step_is_no_place_to_wait_in(tmp_path):
    """It would not be there when the step is replayed."""
    with open_log(tmp_path / "log") as log, log.execution("order") as ctx:
        for wait in (lambda: ctx.sleep(0), lambda: ctx.promise("p"), lambda: ctx.signal("s", timeout=0)):
            with pytest.raises(Invalid, match="inside of a step"):
                ctx.step("wait", wait)


def test_a_step_in_the_place_of_a_promise_is_found_before_anything_runs(tmp_path):
    with open_log(tmp_path / "log") as log:
        with log.execution("order", id=ORDER) as ctx:
            ctx.step("approval", lambda: 1)
        with (
            pytest.raises(Diverged, match="promise is requested where a step"),
            log.execution("order", id=ORDER) as ctx,
        ):
            ctx.promise("approval")


def test_waits_in_scopes_have_paths_of_their_own(tmp_path):
    with open_log(tmp_path / "log") as log, log.execution("order", id=ORDER) as ctx:
        for name in ("a", "b"):
            with ctx.scope(name) as scope:
                promise = scope.promise("approval")
                log.executions.resolve(promise.token(), name)
                assert promise.path == f"{name}/approval"
                assert promise.result() == name


PROGRAM = """
import os, sys
from pathlib import Path
from tests.executions.waiting_room import open_log
from tests.executions.test_programs_that_wait import ORDER

with open_log(Path(sys.argv[1])) as log:
    with log.execution("order", id=ORDER) as ctx:
        approval = ctx.promise("approval")
        ctx.step("ask", lambda: print("token", approval.token(), flush=True))
        ctx.sleep(0.01)
        print("waiting", flush=True)
        answer = approval.result()
        amount = ctx.signal("paid")
        print("done", answer, amount, flush=True)
"""


def started(path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(path)]
    return subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True)


def lines_until(process: subprocess.Popen[str], word: str) -> list[str]:
    found = []
    assert process.stdout is not None
    for line in process.stdout:
        found.append(line.strip())
        if line.startswith(word):
            return found
    raise AssertionError(f"it ended: {found}")


@pytest.mark.crash
def test_a_program_that_is_killed_while_it_waits_gets_what_came_from_another_process(tmp_path):
    """Killed twice; the token of the first life settles the promise, through the owner, in the second."""
    path = tmp_path / "log"
    with started(path) as first:
        token = next(line for line in lines_until(first, "waiting") if line.startswith("token")).split()[1]
        first.send_signal(signal.SIGKILL)
    with started(path) as second:
        lines = lines_until(second, "waiting")
        assert not any(line.startswith("token") for line in lines)  # asked once
        with holdfast.open(path, read_only=True) as other:
            assert other.executions.resolve(token, "yes")
        second.send_signal(signal.SIGKILL)
    with started(path) as third:
        lines_until(third, "waiting")
        with holdfast.open(path, read_only=True) as other:
            assert other.executions.signal(ORDER, "paid", 5)
        assert lines_until(third, "done")[-1] == "done yes 5"
        assert third.wait(30) == 0
