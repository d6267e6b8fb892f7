"""Coroutines that append to a shared log: their own loop forwards. Whatever becomes of it, nobody waits for nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from holdfast import Log
from holdfast.journal.commit import forwarder
from holdfast.journal.queue import group, queue, queued_groups
from holdfast.sharing import frame_reader, loop_driver, owner_link, unanswered, unsent
from holdfast.sharing.loop_driver import LoopDriver
from holdfast.sharing.owner_link import SocketLink
from tests.harness.interrupts import interrupt_at
from tests.sharing.shared_logs import OwnerProcess, join, shared

pytestmark = pytest.mark.disk

Open = Callable[..., Log]
_MODULES = (
    forwarder, queue, queued_groups, group, owner_link, loop_driver, unanswered, unsent, frame_reader,
)  # fmt: skip
OURS = {module.__file__ for module in _MODULES}
_TURN = LoopDriver._run.__code__


@pytest.fixture
def loop() -> Iterator[AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def link_of(log: Log) -> SocketLink:
    link = log._journal.link
    assert isinstance(link, SocketLink)
    return link


async def append(log: Log, *payloads: bytes) -> list[int]:
    topic = log.topic("t")
    return [receipt.offset for receipt in await asyncio.gather(*map(topic.append_async, payloads))]


def give_turns(log: Log, loop: AbstractEventLoop) -> LoopDriver:
    """Append until the loop has turns."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        loop.run_until_complete(append(log, b"warm"))
        turns = link_of(log)._loop_driver
        if turns is not None and turns.loop is loop:
            return turns
    raise AssertionError("the loop got no turns")


def payloads(log: Log) -> list[bytes]:
    return [record.payload for record in log.topic("t").read() if record.payload != b"warm"]


def test_a_loop_that_appends_forwards_by_itself(tmp_path: Path, loop: AbstractEventLoop) -> None:
    with shared(tmp_path / "log") as (log, _):
        turns = give_turns(log, loop)
        before = turns.count
        sent = [b"%d" % number for number in range(100)]
        for payload in sent:
            loop.run_until_complete(append(log, payload))
        assert turns.count > before
        assert payloads(log) == sent


def test_a_blocked_loop_holds_nobody_up(tmp_path: Path, loop: AbstractEventLoop) -> None:
    """It has brought something, and then does not come back; threads append, and what it brought is written, too."""
    with shared(tmp_path / "log") as (log, _):
        give_turns(log, loop)
        topic = log.topic("t")

        async def block() -> list[bytes]:
            ticket = topic.submit(b"brought")
            done = threading.Event()
            thread = threading.Thread(target=lambda: (topic.append(b"beside"), done.set()))
            thread.start()
            assert done.wait(60)  # the loop is blocked meanwhile
            assert ticket.result(60).offset >= 0
            with pytest.warns(RuntimeWarning, match="blocks the event loop"):
                assert topic.append(b"from a coroutine that may not block, and does").offset >= 0
            thread.join()
            return payloads(log)

        assert len(loop.run_until_complete(block())) == 3


def test_a_loop_that_stopped_or_was_closed_leaves_nothing_undone(tmp_path: Path, loop: AbstractEventLoop) -> None:
    with shared(tmp_path / "log") as (log, _):
        give_turns(log, loop)

        async def leave() -> None:
            log.topic("t").submit(b"left behind")

        loop.run_until_complete(leave())
        log.flush(60)
        loop.close()
        log.topic("t").append(b"after the loop")
        assert payloads(log) == [b"left behind", b"after the loop"]
        with closing(asyncio.new_event_loop()) as other:
            give_turns(log, other)
            other.run_until_complete(append(log, b"by another loop"))
        assert payloads(log)[-1] == b"by another loop"


def test_two_loops_in_two_threads_append_side_by_side(tmp_path: Path) -> None:
    async def many(log: Log, name: int) -> None:
        for number in range(50):
            await append(log, *(b"%d-%d-%d" % (name, number, one) for one in range(4)))

    with shared(tmp_path / "log") as (log, _):
        threads = [threading.Thread(target=lambda name=name: asyncio.run(many(log, name))) for name in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert len(set(payloads(log))) == len(payloads(log)) == 400


def test_an_idle_loop_gives_its_turns_back(tmp_path: Path, loop: AbstractEventLoop) -> None:
    """Then nothing wakes up in this process any more, until something is to do."""
    with shared(tmp_path / "log") as (log, _):
        turns = give_turns(log, loop)
        deadline = time.monotonic() + 60
        while link_of(log)._loop_driver is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert turns.is_over
        assert give_turns(log, loop) is not turns


def test_an_idle_loop_makes_room_for_one_that_is_busy(tmp_path: Path, loop: AbstractEventLoop) -> None:
    with shared(tmp_path / "log") as (log, _), closing(asyncio.new_event_loop()) as other:
        give_turns(log, other)
        assert give_turns(log, loop).loop is loop  # `other` is there, and does nothing


def test_a_loop_that_cannot_watch_a_socket_appends_all_the_same(tmp_path: Path, loop: AbstractEventLoop) -> None:
    asked = []

    def add_reader(*given: object) -> None:
        asked.append(given)
        raise NotImplementedError

    with shared(tmp_path / "log") as (log, _):
        loop.add_reader = add_reader  # type: ignore[assignment]
        for number in range(10):
            loop.run_until_complete(append(log, b"%d" % number))
        assert payloads(log) == [b"%d" % number for number in range(10)]
        assert len(asked) == 1


def test_a_large_batch_of_a_coroutine_does_not_block_its_loop(tmp_path: Path, loop: AbstractEventLoop) -> None:
    """More than the socket takes at once is sent on by the thread; what comes behind it keeps its place."""
    with shared(tmp_path / "log") as (log, _):
        give_turns(log, loop)
        topic = log.topic("t")

        async def send() -> None:
            await asyncio.gather(
                topic.append_batch_async([bytes([number]) * 500_000 for number in range(12)]),
                topic.append_async(b"behind"),
            )

        loop.run_until_complete(send())
        assert payloads(log) == [*(bytes([number]) * 500_000 for number in range(12)), b"behind"]


def test_owners_are_killed_while_a_loop_forwards(tmp_path: Path, loop: AbstractEventLoop) -> None:
    directory = tmp_path / "log"
    owner = OwnerProcess(directory)
    with join(directory) as log:
        sent = []
        for generation in range(3):
            give_turns(log, loop)
            asked = loop.create_task(append(log, *(b"%d-%d" % (generation, one) for one in range(100))))
            sent += [b"%d-%d" % (generation, one) for one in range(100)]
            loop.call_soon(owner.kill)
            loop.run_until_complete(asked)
            owner = OwnerProcess(directory)
        assert payloads(log) == sent
    owner.kill()


# -- Ctrl-C -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", range(8))
def test_an_interrupt_at_any_line_of_a_turn_loses_nothing_and_writes_nothing_twice(
    open_log: Open, loop: AbstractEventLoop, offset: int
) -> None:
    first, log = open_log(share=True), open_log(share=True)  # one owns it, the other is its client
    assert first.is_owner
    sent: list[bytes] = []
    times = missed = 0
    for nth in count(1 + offset, 8):
        give_turns(log, loop)
        more = [b"%d-%d" % (nth, one) for one in range(3)]
        sent += more
        asked = loop.create_task(append(log, *more))
        struck = interrupt_at(nth, lambda asked=asked: loop.run_until_complete(asked), OURS, _TURN)
        loop.run_until_complete(asked)
        assert payloads(log) == sent, nth
        times += struck
        missed = 0 if struck else missed + 1  # the thread may have been faster than the loop
        if missed == 5:
            break
    assert times > 5
    stats = log.stats().journal
    assert (stats.queue_records, stats.queue_bytes) == (0, 0)
