"""Threads and tasks on the same channels: nothing is lost, nothing deadlocks, and the disk agrees with memory."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress

import pytest

from holdfast import Closed, NotFound
from holdfast.channels import ChannelData, Channels, ChannelSettings, HistoryEntry, MemoryPersistence, SdsMessage
from holdfast.channels.wire.nim import NIM
from holdfast.testing import Fault, FaultyDisk, ManualClock
from tests.channels import conversation
from tests.channels.conversation import bare
from tests.stalled import stalled

pytestmark = pytest.mark.disk

ROOMS = [f"room {number}" for number in range(4)]
THREADS, TASKS, EACH = 8, 8, 12


def wire(room: str, message_id: str, *causes: str) -> bytes:
    named = tuple(HistoryEntry(cause, b"", "bob") for cause in causes)
    return NIM.encode(SdsMessage(message_id, room, 1, b"content of " + message_id.encode(), "bob", named))


def kept(channels: Channels, room: str) -> ChannelData:
    """The channel as it should be kept."""
    channel = channels.channel(room)
    return ChannelData(channel.snapshot(), tuple(channel.state.history.messages()), dict(channel.state.hints))


def in_threads(*works: Callable[[], object]) -> None:
    """All at once; raises what any of them raised, and never hangs."""
    failures: list[BaseException] = []
    barrier = threading.Barrier(len(works))

    def run(work: Callable[[], object]) -> None:
        barrier.wait()
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "it hangs"
    if failures:
        raise failures[0]


class Listener:
    """Writes down what is ready, and that nobody tells two things about a channel at a time."""

    def __init__(self, channels: Channels) -> None:
        self.ready: dict[str, list[str]] = defaultdict(list)
        self.contents: dict[str, bytes] = {}
        self._busy: set[str] = set()
        channels.set_callbacks(message_ready=self.take)

    def take(self, event) -> None:
        assert event.channel_id not in self._busy, "called twice at once"
        self._busy.add(event.channel_id)
        self.ready[event.channel_id].append(event.message_id)
        self.contents[event.message_id] = event.content
        self._busy.discard(event.channel_id)


def busy_thread(channels: Channels, number: int) -> None:
    """Sends and receives chains backwards, so that every chain waits and is then a cascade."""
    for turn in range(EACH):
        room = ROOMS[(number + turn) % len(ROOMS)]
        channels.wrap_outgoing_message(b"content", room, f"a-{number}-{turn}")
        chain = [f"b-{number}-{turn}-{place}" for place in range(3)]
        for place in (2, 1, 0):
            causes = chain[place - 1 : place] if place else []
            channels.unwrap_received_message(wire(room, chain[place], *causes))
        if turn % 4 == 0:
            channels.run_repair_sweep()
            channels.check_unacknowledged_messages(room)
            channels.mark_dependencies_met([f"met-{number}-{turn}"], room)


async def busy_task(channels: Channels, number: int) -> None:
    for turn in range(EACH):
        room = ROOMS[(number + turn) % len(ROOMS)]
        await channels.wrap_outgoing_message_async(b"content", room, f"t-{number}-{turn}")
        await channels.unwrap_received_message_async(wire(room, f"u-{number}-{turn}-1", f"u-{number}-{turn}-0"))
        await channels.unwrap_received_message_async(wire(room, f"u-{number}-{turn}-0"))
        await channels.mark_dependencies_met_async([f"met-task-{number}-{turn}"], room)


def test_threads_and_tasks_share_channels_and_nothing_is_lost(open_log):
    """What was sent is in history, what was received is delivered once, in causal order, and all of it is on disk."""
    log = open_log()
    alice = log.channels("alice")
    listener = Listener(alice)

    async def tasks() -> None:
        await asyncio.gather(*(busy_task(alice, number) for number in range(TASKS)))

    works = [lambda number=number: busy_thread(alice, number) for number in range(THREADS)]
    for room in ROOMS:
        alice.ensure_channel(room)
    in_threads(*works, lambda: asyncio.run(tasks()))

    history = {message_id for room in ROOMS for message_id in alice.channel(room).history()}
    sent = {f"a-{n}-{turn}" for n in range(THREADS) for turn in range(EACH)}
    sent |= {f"t-{n}-{turn}" for n in range(TASKS) for turn in range(EACH)}
    got = {f"b-{n}-{turn}-{place}" for n in range(THREADS) for turn in range(EACH) for place in range(3)}
    got |= {f"u-{n}-{turn}-{place}" for n in range(TASKS) for turn in range(EACH) for place in range(2)}
    assert history == sent | got
    delivered = [message_id for room in ROOMS for message_id in listener.ready[room]]
    assert sorted(delivered) == sorted(got), "each once"
    for room in ROOMS:
        places = {message_id: place for place, message_id in enumerate(listener.ready[room])}
        for message_id, place in places.items():
            stem, _, step = message_id.rpartition("-")
            assert step == "0" or places[f"{stem}-{int(step) - 1}"] < place, "causes come first"
        assert alice.channel(room).persistence.ok
        assert bare(log.kept_channel("alice", room)) == kept(alice, room)
    records = [(one.kind, one.headers["message_id"].decode()) for one in log.topic("_channels").read()]
    assert sorted(name for kind, name in records if kind == "delivered") == sorted(got)
    assert sorted(name for kind, name in records if kind == "sent") == sorted(sent)
    log.close()
    again = open_log()
    for room in ROOMS:
        assert again.kept_channel("alice", room).history == tuple(alice.channel(room).state.history.messages())


@pytest.mark.parametrize("size", [2, 8])
def test_the_first_to_touch_a_channel_loads_it_for_all(size):
    """Once; nobody's message is lost with a context that another one replaced."""

    class Slow(MemoryPersistence):
        def load_channel(self, channel_id: str) -> ChannelData:
            data = super().load_channel(channel_id)
            threading.Event().wait(0.02)
            return data

    store = Slow()
    alice = Channels("alice", store, settings=ChannelSettings(accept_unknown_channels=True))
    in_threads(
        *(lambda n=n: alice.wrap_outgoing_message(b"x", ROOMS[0], f"a{n}") for n in range(size // 2)),
        *(lambda n=n: alice.unwrap_received_message(wire(ROOMS[0], f"b{n}")) for n in range(size - size // 2)),
    )
    assert store.calls.count(("load_channel", ROOMS[0])) == 1
    assert len(alice.channel(ROOMS[0]).history()) == size
    assert len(store.load_channel(ROOMS[0]).history) == size


def test_tasks_that_touch_a_channel_first_load_it_once(open_log):
    """On an event loop as well, with the log."""
    log = open_log()
    alice = log.channels("alice")

    async def main() -> None:
        await asyncio.gather(*(alice.wrap_outgoing_message_async(b"x", ROOMS[0], f"a{n}") for n in range(10)))

    asyncio.run(main())
    assert sorted(one.message_id for one in log.kept_channel("alice", ROOMS[0]).history) == [f"a{n}" for n in range(10)]


def test_closing_while_operations_run_ends_and_what_returned_before_is_kept(open_log):
    """Everybody else gets Closed; nobody hangs."""
    log = open_log()
    alice = log.channels("alice")
    returned: list[str] = []
    started = threading.Event()

    def work(number: int) -> None:
        with suppress(Closed):
            for turn in range(10_000):
                message_id = f"a-{number}-{turn}"
                alice.wrap_outgoing_message(b"content", ROOMS[number % 2], message_id)
                if not alice.closed:
                    returned.append(message_id)
                if len(returned) > 20:
                    started.set()

    def close() -> None:
        assert started.wait(30)
        log.close()

    in_threads(*(lambda number=number: work(number) for number in range(4)), close)
    before = list(returned)
    again = open_log()
    found = {one.message_id for room in ROOMS[:2] for one in again.kept_channel("alice", room).history}
    assert len(before) > 20
    assert set(before[-500:]) <= found


def test_removing_while_operations_run_leaves_a_whole_channel_or_none(open_log):
    """Those behind the removal create it anew, or learn that it was removed."""
    log = open_log()
    alice = log.channels("alice")

    def send(number: int) -> None:
        for turn in range(20):
            with suppress(Closed, NotFound):
                alice.wrap_outgoing_message(b"content", ROOMS[0], f"a-{number}-{turn}")

    def remove() -> None:
        for _ in range(10):
            alice.remove_channel(ROOMS[0])

    in_threads(*(lambda number=number: send(number) for number in range(4)), remove)
    alice.ensure_channel(ROOMS[0])
    alice.flush()
    assert bare(log.kept_channel("alice", ROOMS[0])) == kept(alice, ROOMS[0]) or not alice.channel(ROOMS[0]).history()


def test_a_disk_that_comes_and_goes_under_many_threads_ends_up_right(tmp_path):
    """Whichever commits were refused, in whichever order: in the end the disk has what memory has."""
    root = tmp_path / "disk"
    with FaultyDisk(root, record=False) as disk:
        log = conversation.open_log(root / "log", ManualClock(), checkpoint="64MiB")
        alice = log.channels("alice")
        for room in ROOMS:
            alice.ensure_channel(room)
        over = threading.Event()

        def trouble() -> None:
            while not over.wait(0.003):
                disk.arm(Fault(1, "enospc", op="write", sticky=True))
                over.wait(0.002)
                disk.disarm()

        def work() -> None:
            try:
                in_threads(*(lambda number=number: busy_thread(alice, number) for number in range(4)))
            finally:
                over.set()

        in_threads(trouble, work)
        disk.disarm()
        assert sum(alice.channel(room).stats().commits_failed_total for room in ROOMS) > 0
        alice.flush()
        for room in ROOMS:
            assert alice.channel(room).persistence.ok
            assert bare(log.kept_channel("alice", room)) == kept(alice, room)
        log.close()


def test_callbacks_may_call_any_operation(open_log):
    """Also on their own channel, from threads and from the timer; nobody waits for himself."""
    log = open_log()
    alice = log.channels("alice")
    answers: list[str] = []

    def answer(event) -> None:
        if event.message_id.startswith("b"):
            answers.append(event.message_id)
            alice.wrap_outgoing_message(b"answer", event.channel_id, f"to-{event.message_id}")
            alice.channel(event.channel_id).persistence  # noqa: B018
            alice.mark_dependencies_met(["whatever"], event.channel_id)

    alice.set_callbacks(message_ready=answer)
    for room in ROOMS:
        alice.ensure_channel(room)
    in_threads(
        *(lambda n=n: [alice.unwrap_received_message(wire(room, f"b-{n}-{room}")) for room in ROOMS] for n in range(4))
    )
    assert len(answers) == 16
    for room in ROOMS:
        assert sum(name.startswith("to-") for name in alice.channel(room).history()) == 4
        assert bare(log.kept_channel("alice", room)) == kept(alice, room)


def test_a_task_that_is_cancelled_leaves_its_message_sent(open_log):
    """A caller that no longer waits does not undo anything."""
    log = open_log()
    alice = log.channels("alice")
    alice.ensure_channel(ROOMS[0])

    async def main() -> None:
        with stalled(log.topic("_channels")):
            task = asyncio.ensure_future(alice.wrap_outgoing_message_async(b"x", ROOMS[0], "a1"))
            await asyncio.sleep(0.02)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await alice.wrap_outgoing_message_async(b"x", ROOMS[0], "a2")

    asyncio.run(main())
    assert [one.message_id for one in log.kept_channel("alice", ROOMS[0]).history] == ["a1", "a2"]


def test_the_timer_keeps_what_was_not_kept():
    """Nobody has to do anything: the next sweep heals."""
    settings = ChannelSettings(repair_sweep_interval_ms=5, buffer_sweep_interval_ms=5, sync_interval_ms=0)
    store = MemoryPersistence({"commit"})
    with Channels("alice", store, settings=settings) as alice:
        alice.wrap_outgoing_message(b"x", ROOMS[0], "a1")
        alice.start_periodic_tasks()
        store.failing_ops.clear()
        waited = threading.Event()
        for _ in range(1_000):
            if alice.channel(ROOMS[0]).persistence.ok:
                break
            waited.wait(0.005)
        assert [one.message_id for one in store.load_channel(ROOMS[0]).history] == ["a1"]
