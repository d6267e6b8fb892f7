"""Workers: what they take, in which order, how runs end, how they stop."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from holdfast import Closed, Full, HoldfastError, Invalid, Log, NotFound, Settings, Unavailable
from holdfast.errors import ExecutionCanceled, ExecutionError, ExecutionHeld
from holdfast.execution.work.work_function import work_functions
from holdfast.execution.work.work_run import ClaimedExecution, RetryPolicy
from holdfast.model.control_rows import DiskFailed
from holdfast.testing import ManualClock
from tests.failing_commits import refuse_next_commit

pytestmark = pytest.mark.disk

PATIENCE = 30.0


def work(log: Log, *functions: Any, **options: Any) -> None:
    """Do all that there is to do."""
    log.worker(list(functions), **options).run(until_idle=True)


class Gate:
    """A place where programs wait, and where a test sees them arrive."""

    def __init__(self) -> None:
        self.arrived = threading.Semaphore(0)
        self.open = threading.Event()

    def wait(self) -> str:
        self.arrived.release()
        assert self.open.wait(PATIENCE)
        return "through"


# -- runs -----------------------------------------------------------------------------------------------------


def test_functions_of_both_kinds_get_context_and_arguments(open_log):
    """A thread for plain functions, the loop for coroutine functions; what they return is the result."""
    log = open_log()

    def plain(ctx, a, *, b=2):
        assert threading.current_thread() is not threading.main_thread()
        return ctx.step("add", lambda: a + b)

    async def waits(ctx, *words):
        await asyncio.sleep(0)
        return await ctx.step("join", lambda: " ".join(words))

    first, second = log.executions.start("plain", 1, b=5), log.executions.start("waits", "a", "b")
    work(log, plain, waits)
    assert (log.executions.result(first), log.executions.result(second)) == (6, "a b")
    assert log.executions.summary(first).status == "completed"


@dataclasses.dataclass
class Order:
    number: int
    day: date


def take_order(ctx, order: Order, when: datetime, many: list[Order]) -> Order:
    """Its annotations say what it is called with; here, because annotations are looked up in the module."""
    assert isinstance(order, Order)
    assert isinstance(when, datetime)
    assert isinstance(many[0], Order)
    return order


def test_arguments_and_results_come_back_as_what_they_were(open_log):
    """Annotated arguments are made of what was stored, across processes; results as `returns` says."""
    log = open_log()
    order = Order(7, date(2026, 11, 16))
    started = log.executions.start("take_order", order, datetime.now(UTC), many=[order])
    log.close()
    log = open_log()
    work(log, take_order)
    assert log.executions.result(started, returns=Order) == order
    assert log.executions.result(started) == {"number": 7, "day": "2026-11-16"}


def test_what_cannot_be_called_fails_with_the_reason(open_log):
    """Wrong arguments are the execution's end, not the worker's."""
    log = open_log()
    started = [log.executions.start("take_order", "wrong"), log.executions.start("take_order", 1, 2, 3)]
    work(log, take_order)
    for one in started:
        with pytest.raises(Invalid, match=r"cannot be called|is not what"):
            log.executions.result(one)


def test_what_a_function_raises_is_raised_to_its_caller(open_log):
    """The type survives; the note names it without its text."""
    log = open_log()

    def fails(ctx):
        raise KeyError("secret")

    started = log.executions.start("fails")
    work(log, fails)
    with pytest.raises(KeyError, match="secret"):
        log.executions.result(started)
    assert (log.executions.summary(started).status, log.executions.summary(started).note) == ("failed", "KeyError")


def test_a_result_that_cannot_be_stored_is_a_failure_and_never_a_hang(open_log):
    """Ask 3 of the peers: codec failures are loud and leave no stuck run."""
    log = open_log()
    started = log.executions.start("odd")
    work(log, lambda_named("odd", lambda ctx: object()))
    with pytest.raises(Invalid):
        log.executions.result(started)


@pytest.mark.parametrize("size", [2_000_000, 20_000_000])
def test_ends_that_are_too_large_are_failures_too(open_log, size):
    """What a program returns or raises may be larger than an entry: its execution ends all the same."""
    log = open_log()

    def returns(ctx):
        return "x" * size

    def raises(ctx):
        raise ValueError("x" * size)

    started = [log.executions.start("returns"), log.executions.start("raises")]
    work(log, returns, raises)
    with pytest.raises(Invalid, match="too large"):
        log.executions.result(started[0])
    with pytest.raises(Exception, match="x"):
        log.executions.result(started[1])
    assert {log.executions.summary(one).status for one in started} == {"failed"}


def lambda_named(name: str, function: Any) -> Any:
    function.__name__ = name
    return function


def test_the_highest_priority_goes_first_and_nothing_before_its_time(open_log):
    """One at a time, in order; what is due later waits, by the log's clock."""
    clock = ManualClock()
    log = open_log(clock=clock)
    seen: list[str] = []

    def note(ctx, word):
        seen.append(word)

    later = datetime.fromtimestamp(clock.now_us() / 1e6, UTC) + timedelta(hours=1)
    for word, priority in (("low", -1), ("first", 0), ("second", 0), ("high", 9)):
        log.executions.start("note", word, priority=priority)
    log.executions.start("note", "later", priority=99, not_before=later)
    work(log, note, concurrency=1)
    assert seen == ["high", "first", "second", "low"]
    clock.advance(3_601)
    work(log, note)
    assert seen[-1] == "later"


def test_no_more_run_at_once_than_allowed(open_log):
    """Concurrency is held, and used, by threads and coroutines together."""
    log = open_log()
    gate = Gate()

    def blocks(ctx):
        return gate.wait()

    async def awaits(ctx):
        return await asyncio.to_thread(gate.wait)

    started = [log.executions.start(kind) for kind in ("blocks", "awaits") * 4]
    with log.worker([blocks, awaits], concurrency=3) as worker:
        for _ in range(3):
            assert gate.arrived.acquire(timeout=PATIENCE)
        assert not gate.arrived.acquire(timeout=0.1)
        assert worker.running == 3
        gate.open.set()
        assert [log.executions.result(one, PATIENCE) for one in started] == ["through"] * 8


def test_a_rate_is_held(open_log):
    """The burst of one second goes at once, the rest when the log's clock allows it."""
    clock = ManualClock()
    log = open_log(clock=clock)
    begun = threading.Semaphore(0)

    def counts(ctx):
        begun.release()

    for _ in range(5):
        log.executions.start("counts")
    with log.worker([counts], rate=2) as worker:
        for _ in range(2):
            assert begun.acquire(timeout=PATIENCE)
        assert not begun.acquire(timeout=0.1)
        clock.advance(1)
        worker._room.queue.changed.notify()
        for _ in range(2):
            assert begun.acquire(timeout=PATIENCE)
        assert not begun.acquire(timeout=0.1)


def test_a_worker_serves_its_queues_and_kinds_only(open_log):
    """What is somebody else's is left alone."""
    log = open_log()

    def job(ctx):
        return "done"

    mine, other, unknown = (
        log.executions.start("job"),
        log.executions.start("job", queue="x"),
        log.executions.start("y"),
    )
    work(log, job)
    assert log.executions.result(mine) == "done"
    assert {log.executions.summary(one).status for one in (other, unknown)} == {"queued"}
    work(log, job, queues=["x"])
    assert log.executions.result(other) == "done"


def test_two_workers_run_each_execution_once(open_log):
    """Several workers of one log share a queue; none runs what another has."""
    log = open_log()
    seen: list[int] = []

    def job(ctx, number):
        ctx.step("note", seen.append, number)

    started = [log.executions.start("job", number) for number in range(60)]
    with log.worker([job], concurrency=4), log.worker([job], concurrency=4):
        for one in started:
            log.executions.result(one, PATIENCE)
    assert sorted(seen) == list(range(60))
    assert {log.executions.summary(one).generation for one in started} == {0}


def test_what_is_changed_by_hand_while_a_worker_wants_it_is_run_afterwards(open_log):
    """A worker that finds an execution in somebody's hands comes back for it; due ones as well as left ones."""
    log = open_log()
    room = log._executions.room()
    job = lambda_named("job", lambda ctx: "done")
    started = [log.executions.start("job") for _ in range(2)]
    room.live.release(room.live.open(started[0], "job"))  # left by its program
    with room.live.hold(started[0]), room.live.hold(started[1]):
        worker = log.worker([job])
        worker.__enter__()
        while not worker._later:
            pass
    assert [log.executions.result(one, PATIENCE) for one in started] == ["done"] * 2
    worker.__exit__(None, None, None)


def test_resuming_and_rewinding_race_with_workers(open_log):
    """However close behind the change a worker is: what was queued again is run."""
    log = open_log()
    job = lambda_named("job", lambda ctx: ctx.step("one", lambda: "done"))
    with log.worker([job], concurrency=2):
        for _ in range(20):
            started = log.executions.start("job")
            assert log.executions.result(started, PATIENCE) == "done"
            log.executions.rewind(started, before="one")
            assert log.executions.result(started, PATIENCE) == "done"


def test_what_has_ended_is_not_work_however_often_it_is_asked_for(open_log):
    """Neither a second start nor a worker that comes late runs a completed execution again."""
    log = open_log()
    calls: list[int] = []
    job = lambda_named("job", lambda ctx, number: calls.append(number))
    started = log.executions.start("job", 7)
    row = log._executions.room().store.rows[started]
    work(log, job)
    assert log.executions.start("job", 7, id=started) == started
    work(log, job)
    late = ClaimedExecution(log._executions.room(), row, work_functions([job])["job"], RetryPolicy(0, 1.0, 9))
    with pytest.raises(ExecutionHeld, match="no work left"):
        late.run()
    assert calls == [7]
    assert log.executions.summary(started).generation == 0


def test_a_worker_inside_of_a_loop_says_how_it_is_meant(open_log):
    """run() blocks: on an event loop it refuses, and names what to await."""
    log = open_log()

    async def wrong():
        log.worker([print]).run()

    with pytest.raises(Invalid, match="event loop") as refused:
        asyncio.run(wrong())
    assert "run_async" in refused.value.hint


# -- trying again ---------------------------------------------------------------------------------------------


def test_a_failed_execution_is_tried_again_without_its_finished_steps(open_log):
    """Retries run the step that failed again, and nothing that was finished; later each time."""
    clock = ManualClock()
    log = open_log(clock=clock)
    calls: list[str] = []

    def flaky(ctx):
        ctx.step("first", calls.append, "first")
        return ctx.step("second", second)

    def second():
        calls.append("second")
        if calls.count("second") < 3:
            raise OSError("not yet")
        return "there"

    started = log.executions.start("flaky")
    for pause in (0, 10, 20):
        clock.advance(pause)
        work(log, flaky, retries=2, backoff=10)
    assert log.executions.result(started) == "there"
    assert calls == ["first", "second", "second", "second"]
    assert [event.what for event in log.executions.show(started).events].count("retried") == 2


def test_an_execution_fails_after_its_last_retry_and_not_before(open_log):
    """After the last one it has failed; in between nobody hears that it has."""
    log = open_log()

    def never(ctx):
        ctx.step("try", lambda: 1 / 0)

    started = log.executions.start("never")
    log.worker([never], retries=2, backoff=0).run(until_idle=True)
    with pytest.raises(ZeroDivisionError):
        log.executions.result(started)
    assert log.executions.summary(started).attempts == 3
    events = [event.what for event in log.executions.show(started).events]
    assert (events.count("retried"), events.count("failed"), events[-1]) == (2, 1, "failed")


def test_one_that_never_comes_to_an_end_is_given_up(open_log):
    """A program that takes its process down each time does not do so forever; it can be resumed by hand."""
    log = open_log()
    started = log.executions.start("poison")
    calls: list[int] = []

    def poison(ctx):
        calls.append(1)
        raise SystemExit  # as if the process had ended: no end is recorded

    for _ in range(5):
        work(log, poison, attempts_max=3)
    assert len(calls) == 3
    assert log.executions.summary(started).status == "aborted"
    with pytest.raises(ExecutionError, match="begun 3 times"):
        log.executions.result(started)
    log.executions.resume(started)
    work(log, lambda_named("poison", lambda ctx: "cured"), attempts_max=3)
    assert log.executions.result(started) == "cured"


def test_a_changed_program_stops_its_execution_and_not_the_worker(open_log, caplog):
    """Diverged: logged, and said in the note, left as it is, and finished by the program that began it."""
    log = open_log()
    gate = Gate()

    def program(ctx, word="old"):
        ctx.step("say", str.upper, word)
        ctx.step("gate", gate.wait)
        return word

    started = log.executions.start("program")
    with log.worker([lambda_named("program", lambda ctx: (program(ctx), ctx.step("end", print)))]) as worker:
        assert gate.arrived.acquire(timeout=PATIENCE)
        worker.stop()
        gate.open.set()
    other = log.executions.start("fine")
    changed = lambda_named("program", lambda ctx: program(ctx, "new"))
    for _ in range(2):  # at each start of a worker once, and no more
        work(log, changed, lambda_named("fine", lambda ctx: "fine"))
    assert log.executions.result(other) == "fine"
    found = log.executions.summary(started)
    assert found.status == "running"
    assert "step=say recorded=" in found.note
    logged = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(logged) == 2
    assert str(started) in logged[0].getMessage()
    work(log, program)
    assert log.executions.result(started) == "old"


def test_a_disk_that_refuses_a_commit_puts_executions_off(open_log, monkeypatch):
    """Nothing is lost and nothing has failed: the worker comes back when the journal can be written again."""
    log = open_log()
    monkeypatch.setattr("holdfast.execution.work.worker._TROUBLE_S", 0.05)
    calls: list[str] = []

    def job(ctx):
        ctx.step("first", calls.append, "first", effect="exactly_once_guarded", on_ambiguous="rerun")
        return "done"

    started = [log.executions.start("job") for _ in range(3)]
    refuse_next_commit(log.topic("t"), monkeypatch, Unavailable("the disk is full"), skip=1)
    with log.worker([job], concurrency=1):
        assert [log.executions.result(one, PATIENCE) for one in started] == ["done"] * 3
    assert {log.executions.summary(one).status for one in started} == {"completed"}


def test_a_log_that_has_failed_ends_its_worker_loudly(open_log, monkeypatch):
    """A failed sync is for good: run() raises, and a worker of the log that is opened again goes on."""
    log = open_log()
    monkeypatch.setattr("holdfast.execution.work.worker._TROUBLE_S", 0.05)
    job = lambda_named("job", lambda ctx: ctx.step("one", lambda: "done"))
    started = [log.executions.start("job") for _ in range(3)]
    refuse_next_commit(log.topic("t"), monkeypatch, DiskFailed("planted"), skip=1)
    with pytest.raises(Closed) as failed:
        log.worker([job], concurrency=1).run()
    assert failed.value.reason == "poisoned"
    with pytest.raises(HoldfastError):
        log.close()
    log = open_log()
    work(log, job)
    assert [log.executions.result(one, PATIENCE) for one in started] == ["done"] * 3


def test_no_more_is_queued_than_the_log_keeps(open_log):
    """A bound on what waits: the next one is refused, and taken when one has ended."""
    log = open_log(settings=Settings.from_mapping({"executions": {"executions_max": 2}}))
    first = log.executions.start("job")
    log.executions.start("job")
    with pytest.raises(Full, match="none of them has ended"):
        log.executions.start("job")
    assert len(log.executions.list()) == 2
    log.executions.cancel(first)
    log.executions.start("job")


# -- stopping -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stop", "with", "close"])
def test_stopping_finishes_steps_and_leaves_executions_to_be_gone_on_with(open_log, how):
    """A running step is recorded, the next one is not begun, and the next worker goes on behind it."""
    log = open_log()
    gate = Gate()
    calls: list[str] = []

    def program(ctx):
        ctx.step("first", gate.wait)
        try:
            ctx.step("second", calls.append, "second")
        except Exception:  # a worker that stops is no error
            calls.append("handler")
        return "end"

    async def coroutine(ctx):
        await ctx.step("first", gate.wait)
        try:
            await ctx.step("second", calls.append, "second")
        except Exception:
            calls.append("handler")
        return "end"

    started = [log.executions.start(kind) for kind in ("program", "coroutine")]
    worker = log.worker([program, coroutine])
    thread = threading.Thread(target=worker.run)
    if how == "with":
        worker.__enter__()
    else:
        thread.start()
    for _ in started:
        assert gate.arrived.acquire(timeout=PATIENCE)
    waiting = log.executions.start("program")  # taken, perhaps, or not: in any case it is done once in the end
    stops = {"stop": worker.stop, "close": log.close, "with": lambda: worker.__exit__(None, None, None)}
    stopper = threading.Thread(target=stops[how])
    stopper.start()
    while not worker._is_stopping:
        pass
    gate.open.set()
    stopper.join(PATIENCE)
    if how != "with":
        thread.join(PATIENCE)
    assert not stopper.is_alive()
    assert not thread.is_alive()
    assert calls == []
    if how == "close":
        log = open_log()
    assert {log.executions.summary(one).status for one in started} == {"running"}
    assert {log.executions.summary(one).attempts for one in started} == {0}
    shown = [log.executions.show(one, reveal=True).steps for one in started]
    assert [[(step.path, step.value) for step in steps] for steps in shown] == [[("first", "through")]] * 2
    work(log, program, coroutine)
    assert [log.executions.result(one) for one in (*started, waiting)] == ["end"] * 3
    assert calls == ["second"] * 3
    assert {log.executions.summary(one).generation for one in (*started, waiting)} == {0}


def test_a_program_that_swallows_everything_has_not_completed(open_log):
    """Even `except BaseException` around a step cannot make an end of a stop: the step was missed."""
    log = open_log()
    gate = Gate()

    def stubborn(ctx):
        ctx.step("first", gate.wait)
        try:
            return ctx.step("second", lambda: "second")
        except BaseException:
            return "swallowed"

    started = log.executions.start("stubborn")
    with log.worker([stubborn]) as worker:
        assert gate.arrived.acquire(timeout=PATIENCE)
        worker.stop()
        gate.open.set()
    assert log.executions.summary(started).status == "running"
    work(log, stubborn)
    assert log.executions.result(started) == "second"


def test_what_does_not_leave_off_in_time_is_not_waited_for(open_log, caplog):
    """Coroutines are cancelled, threads left alone; their executions stay as they are."""
    log = open_log()
    gate = Gate()

    def hangs(ctx):
        ctx.step("hang", gate.wait)

    async def waits(ctx):
        gate.arrived.release()
        await asyncio.Event().wait()

    started = [log.executions.start(kind) for kind in ("hangs", "waits")]
    worker = log.worker([hangs, waits], drain_timeout=0.05)
    with worker:
        for _ in started:
            assert gate.arrived.acquire(timeout=PATIENCE)
    assert "before its programs have left off" in caplog.text
    assert {log.executions.summary(one).status for one in started} == {"running"}
    gate.open.set()


def test_a_canceled_program_stops_and_the_worker_goes_on(open_log):
    """Cancel reaches a running program before its next step, in threads and on the loop."""
    log = open_log()
    gate = Gate()
    calls: list[str] = []

    def program(ctx):
        ctx.step("first", gate.wait)
        ctx.step("second", calls.append, "second")

    async def coroutine(ctx):
        await ctx.step("first", gate.wait)
        await ctx.step("second", calls.append, "second")

    started = [log.executions.start(kind) for kind in ("program", "coroutine")]
    with log.worker([program, coroutine, lambda_named("fine", lambda ctx: "fine")]):
        for _ in started:
            assert gate.arrived.acquire(timeout=PATIENCE)
        for one in started:
            assert log.executions.cancel(one) == "canceled"
        gate.open.set()
        assert log.executions.result(log.executions.start("fine"), PATIENCE) == "fine"
    assert calls == []
    for one in started:
        with pytest.raises(ExecutionCanceled):
            log.executions.result(one)


def test_a_worker_on_the_callers_loop(open_log):
    """run_async runs coroutine functions on this loop; cancelling it leaves executions as they are."""
    asyncio.run(on_the_callers_loop(open_log()))


async def on_the_callers_loop(log: Log) -> None:
    loop = asyncio.get_running_loop()
    begun = asyncio.Event()

    async def here(ctx, word):
        assert asyncio.get_running_loop() is loop
        if word == "wait":
            begun.set()
            await asyncio.Event().wait()
        return word

    started = await log.executions.start_async("here", "word")
    await log.worker([here]).run_async(until_idle=True)
    assert await log.executions.result_async(started) == "word"
    waits = await log.executions.start_async("here", "wait")
    running = asyncio.create_task(log.worker([here]).run_async())
    await asyncio.wait_for(begun.wait(), PATIENCE)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert log.executions.summary(waits).status == "running"
    with pytest.raises(NotFound):
        await log.executions.result_async("00000000-0000-0000-0000-000000000000")


def test_closing_the_log_from_inside_a_program_does_not_hang(open_log):
    """It cannot wait for itself."""
    log = open_log()

    def closes(ctx):
        ctx.step("before", lambda: None)
        log.close()

    started = log.executions.start("closes")
    worker = log.worker([closes])
    thread = threading.Thread(target=worker.run)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert open_log().executions.summary(started).status in ("running", "completed")


@pytest.mark.parametrize(
    ("functions", "options"),
    [
        ([], {}),
        ({}, {}),
        (print, {}),
        ("import", {}),
        (["import"], {}),
        ({"a/b": print}, {}),
        ({"": print}, {}),
        ([lambda ctx: 1], {}),
        ([print, print], {}),
        ([print], {"concurrency": 0}),
        ([print], {"concurrency": 10**6}),
        ([print], {"rate": 0}),
        ([print], {"queues": "default"}),
        ([print], {"retries": "two"}),
        ([print], {"retries": -1}),
        ([print], {"attempts_max": 0}),
        ([print], {"backoff": "1s"}),
    ],
)
def test_workers_that_make_no_sense_are_refused(open_log, functions, options):
    """Before anything runs, with a remedy."""
    log = open_log()
    with pytest.raises(Invalid) as refused:
        log.worker(functions, **options)
    assert refused.value.hint


def test_a_worker_runs_once_at_a_time(open_log):
    """The second run() is refused while the first one works."""
    log = open_log()
    with log.worker([print]) as worker:
        while not worker._is_serving:
            pass
        with pytest.raises(Invalid, match="running already"):
            worker.run()
