"""The signal: no ring is missed, no sleeper is left, one wake-up per event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast.signals import Signal

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
