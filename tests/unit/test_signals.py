"""The signal: no ring is missed, no sleeper is left, one wake-up per event loop."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import signal
import sys
import threading
import time
import weakref

import pytest

from holdfast import signals
from holdfast.signals import Flag, Signal

pytestmark = pytest.mark.unit


def test_what_happened_before_sleeping_is_noticed():
    """A sleeper that comes late looks before it sleeps."""
    assert Signal().sleep(lambda: True, 60)


def test_a_time_out_is_false_and_leaves_nothing_behind():
    """Sleeping in vain ends in time and leaves no lock in the signal."""
    signal = Signal()
    for _ in range(100):
        assert not signal.sleep(lambda: False, 0.0001)
    assert len(signal._sleepers) == 0


def test_no_ring_is_missed():
    """Many sleepers, many changes: everybody sees the change he waited for."""
    signal, state, missed = Signal(), [0], []

    def wait(for_value):
        while state[0] < for_value:
            if not signal.sleep(lambda: state[0] >= for_value, 10) and state[0] < for_value:
                missed.append(for_value)
                return

    threads = [threading.Thread(target=wait, args=(n % 500 + 1,)) for n in range(64)]
    for thread in threads:
        thread.start()
    for _ in range(500):
        state[0] += 1
        signal.notify()
    for thread in threads:
        thread.join(20)
    assert not missed
    assert not any(thread.is_alive() for thread in threads)


def test_one_call_wakes_all_coroutines_of_a_loop():
    """However many coroutines wait, the loop is called once per ring."""
    signal = Signal()

    async def main():
        loop = asyncio.get_running_loop()
        calls = []
        original = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *a, **k: calls.append(1) or original(*a, **k)
        futures = [signal.future(loop, 10) for _ in range(50)]
        futures[7].cancel()
        threading.Thread(target=signal.notify).start()
        await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), 10)
        return calls, futures

    calls, futures = asyncio.run(main())
    assert len(calls) == 1
    assert sum(f.cancelled() for f in futures) == 1


def test_a_loop_that_is_gone_does_not_matter():
    """Ringing for a closed event loop is no error."""
    signal = Signal()

    async def register():
        signal.future(asyncio.get_running_loop(), 10)

    asyncio.run(register())
    signal.notify()


def test_a_signal_handler_wakes_the_loop_that_it_interrupts():
    """It runs in the loop's thread, but not as one of its callbacks: the loop sleeps on unless it is woken."""
    ring = Signal()

    async def main() -> None:
        future = ring.future(asyncio.get_running_loop(), 600)
        kill = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
        kill.start()
        async with asyncio.timeout(60):
            await future
        kill.join()

    before = signal.signal(signal.SIGUSR1, lambda number, frame: ring.notify())
    try:
        asyncio.run(main())
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_futures_expire():
    """A future is done after the time-out even if nobody rings; the next one waits anew."""
    signal = Signal()

    async def main():
        loop = asyncio.get_running_loop()
        await asyncio.wait_for(signal.future(loop, 0.01), 5)
        assert not signal._loops
        second = signal.future(loop, 10)
        signal.notify()
        await asyncio.wait_for(second, 5)

    asyncio.run(main())


def test_every_future_has_its_own_deadline():
    """Futures with deadlines in any order end in the order of their deadlines; a notification wakes the rest."""
    signal = Signal()

    async def main():
        loop, ended = asyncio.get_running_loop(), []
        times = [0.08, 0.02, 30, 0.06, 0.02, 0.04, 40, 0.01]
        futures = [signal.future(loop, seconds) for seconds in times]
        for seconds, future in zip(times, futures, strict=True):
            future.add_done_callback(lambda _, seconds=seconds: ended.append(seconds))
        await asyncio.wait_for(futures[0], 10)
        assert not futures[2].done()
        assert not futures[6].done()
        await asyncio.sleep(0)
        assert ended == sorted(seconds for seconds in times if seconds < 1)
        assert len(signal._loops) == 1
        threading.Thread(target=signal.notify).start()
        await asyncio.wait_for(asyncio.gather(futures[2], futures[6]), 10)
        assert not signal._loops

    asyncio.run(main())


class Waits:
    """Awaitable: parks until the signal is given, or the time is over."""

    def __init__(self, signal, seconds=30.0, loop=None):
        self.signal, self.seconds, self.loop = signal, seconds, loop

    def __await__(self):
        yield self.signal.park(self.seconds, self.loop)


async def parked(signal, ended, name, seconds=30.0):
    """A task that notes its end, however it comes."""
    try:
        await Waits(signal, seconds)
    except asyncio.CancelledError as error:
        ended.append((name, *error.args))
        raise
    ended.append(name)


def test_all_parked_tasks_are_resumed_by_one_callback():
    """However many tasks are parked: one call from the other thread, none per task, and all in the order they came."""
    signal, ended, calls = Signal(), [], []

    async def main():
        loop = asyncio.get_running_loop()
        tasks = [asyncio.ensure_future(parked(signal, ended, n)) for n in range(50)]
        await asyncio.sleep(0)
        done = loop.create_future()
        tasks[-1].add_done_callback(done.set_result)
        for verb in ("call_soon", "call_soon_threadsafe"):
            plain = getattr(loop, verb)
            setattr(loop, verb, lambda call, *a, plain=plain, **k: calls.append(call) or plain(call, *a, **k))
        thread = threading.Thread(target=signal.notify)
        thread.start()
        await done
        thread.join()

    asyncio.run(main())
    assert ended == list(range(50))
    assert [getattr(call, "__name__", "") for call in calls].count("_wake") == 1
    assert len(calls) < 10


def test_a_parked_task_that_is_cancelled_wakes_alone():
    """With its message; one that is cancelled by a task of the same wake-up, or was before, is resumed once."""
    signal, ended, failures = Signal(), [], []

    async def first(others):
        await Waits(signal)
        others[2].cancel("by the first")

    async def main():
        others = []
        asyncio.get_running_loop().set_exception_handler(lambda _, failure: failures.append(failure))
        tasks = [asyncio.ensure_future(first(others))]
        others += [asyncio.ensure_future(parked(signal, ended, n)) for n in range(4)]
        await asyncio.sleep(0)
        others[1].cancel("before")
        others[1].cancel("twice")
        await asyncio.wait([others[1]])
        assert ended == [(1, "before")]
        asyncio.get_running_loop().call_soon(signal.notify)
        await asyncio.gather(*tasks, *others, return_exceptions=True)
        return [task.cancelled() for task in others]

    assert asyncio.run(main()) == [False, True, True, False]
    assert sorted(ended, key=str) == [(1, "before"), (2, "by the first"), 0, 3]
    assert not failures


def test_every_parked_task_has_its_own_deadline():
    """Those whose time is over end in the order of their deadlines, on a late loop, too; a signal resumes the rest."""
    signal, ended = Signal(), []

    async def main():
        times = [0.08, 0.02, 30, 0.06, 0.02, 0.04, 40, 0.01]
        tasks = [asyncio.ensure_future(parked(signal, ended, seconds, seconds)) for seconds in times]
        future = signal.future(asyncio.get_running_loop(), 0.05)
        await asyncio.sleep(0)
        time.sleep(0.05)  # the loop is late, and meets several at once
        await asyncio.wait_for(tasks[0], 10)
        assert future.done()
        assert ended == sorted(seconds for seconds in times if seconds < 1)
        assert len(signal._loops) == 1
        threading.Thread(target=signal.notify).start()
        await asyncio.wait_for(asyncio.gather(*tasks), 10)
        assert not signal._loops
        await asyncio.wait_for(Waits(signal, 0.01), 10)  # and when all have gone, the next one waits anew
        assert not signal._loops
        task = asyncio.ensure_future(parked(signal, ended, 50, 50))
        await asyncio.sleep(0)
        threading.Thread(target=signal.notify).start()
        await asyncio.wait_for(task, 10)

    asyncio.run(main())
    assert ended[-3:] == [30, 40, 50]


def test_a_task_that_stops_the_loop_takes_nobody_along():
    """SystemExit or Ctrl-C in a resumed task ends the run; when the loop runs again, the others are resumed."""
    signal, ended = Signal(), []

    async def exits():
        await Waits(signal)
        raise SystemExit(3)

    loop = asyncio.new_event_loop()
    try:
        tasks = [loop.create_task(parked(signal, ended, 0)), loop.create_task(exits())]
        tasks += [loop.create_task(parked(signal, ended, n)) for n in (1, 2)]
        loop.call_later(0.01, signal.notify)
        with pytest.raises(SystemExit):
            loop.run_until_complete(asyncio.wait(tasks))
        loop.run_until_complete(asyncio.wait_for(asyncio.wait(tasks), 10))
        assert isinstance(tasks[1].exception(), SystemExit)
    finally:
        loop.close()
    assert ended == [0, 1, 2]


@pytest.mark.parametrize("kind", [asyncio.Task, asyncio.tasks._PyTask], ids=["C", "Python"])
def test_a_parked_task_goes_on_in_its_own_context(kind):
    """Both kinds of tasks; what one of them sets is not seen by the others."""
    signal, name, found = Signal(), contextvars.ContextVar("name"), []

    async def named(n):
        name.set(n)
        await Waits(signal)
        found.append((n, name.get(), asyncio.current_task().get_name()))

    async def main():
        loop = asyncio.get_running_loop()
        tasks = [kind(named(n), loop=loop, name=str(n)) for n in range(5)]
        await asyncio.sleep(0)
        threading.Thread(target=signal.notify).start()
        await asyncio.wait_for(asyncio.gather(*tasks), 10)

    asyncio.run(main())
    assert found == [(n, n, str(n)) for n in range(5)]


def test_a_task_that_was_resumed_leaves_no_cycle():
    """Nothing waits for the collector: in a busy log it would have to run all the time."""
    signal = Signal()

    async def main():
        tasks = [asyncio.ensure_future(parked(signal, [], n)) for n in range(3)]
        await asyncio.sleep(0)
        signal.notify()
        await asyncio.gather(*tasks)
        return [weakref.ref(task) for task in tasks]

    gc.disable()
    try:
        assert [task() for task in asyncio.run(main())] == [None] * 3
    finally:
        gc.enable()


def test_a_task_that_got_another_loops_place_learns_of_it_and_asks_again():
    """The loop is guessed by the thread: a wrong guess is a RuntimeError in the task, and parks nobody."""
    signal, ended = Signal(), []

    async def again():
        with pytest.raises(RuntimeError, match="attached to a different loop"):
            await Waits(signal)
        await Waits(signal, 30.0, asyncio.get_running_loop())
        await parked(signal, ended, "guessed right from now on", 0.01)

    loops = [asyncio.new_event_loop() for _ in range(2)]
    try:
        first = loops[0].create_task(parked(signal, ended, "first"))
        loops[0].run_until_complete(asyncio.sleep(0))
        second = loops[1].create_task(again())
        loops[1].call_later(0.01, signal.notify)
        loops[1].run_until_complete(asyncio.wait_for(second, 10))
        loops[0].run_until_complete(asyncio.wait_for(first, 10))
    finally:
        for loop in loops:
            loop.close()
    assert ended == ["guessed right from now on", "first"]
    assert not signal._threads


@pytest.mark.parametrize("call", [Flag.set, lambda flag: flag.wait(0.001)], ids=["set", "wait"])
def test_a_flag_is_set_while_its_thread_is_stopped_anywhere_in_it(call):
    """By another thread, as a signal handler would wait for it; no lock is in the way."""
    stuck = []

    def stop_at(nth):
        flag, seen = Flag(), 0

        def trace(frame, event, _):
            nonlocal seen
            if frame.f_code.co_filename not in (threading.__file__, signals.__file__):
                return None
            frame.f_trace_opcodes = True
            if event == "opcode":
                seen += 1
                if seen == nth:
                    setter = threading.Thread(target=flag.set, daemon=True)
                    sys.settrace(None)
                    setter.start()
                    setter.join(5)
                    stuck.extend([nth] if setter.is_alive() else [])
            return trace

        sys.settrace(trace)
        try:
            call(flag)
        finally:
            sys.settrace(None)
        assert flag.is_set() or seen < nth
        return seen >= nth

    nth = 1
    while stop_at(nth) and not stuck:
        nth += 1
    assert not stuck
    assert nth > 10


def test_a_flag_that_is_set_lets_everybody_go_on_until_it_is_cleared():
    flag, gone = Flag(), []
    threads = [threading.Thread(target=lambda: gone.append(flag.wait())) for _ in range(8)]
    for thread in threads:
        thread.start()
    flag.set()
    for thread in threads:
        thread.join(30)
    assert gone == [True] * 8
    assert flag.wait(60)
    flag.clear()
    assert not flag.wait(0)
    assert not flag.is_set()
