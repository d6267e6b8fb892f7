"""All channels of a participant: operations from threads and tasks, callbacks in order, timers, and their end."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.unit.channels.network import entry, message

from holdfast.channels import Channels, ChannelSettings, MemoryPersistence, MessageReady, NoPersistence, Persistence
from holdfast.channels.wire.detect import dialect as dialect_named
from holdfast.errors import Closed, Full, Invalid, NotFound, Unavailable
from holdfast.testing import ManualClock

pytestmark = pytest.mark.unit

both = pytest.mark.parametrize("dialect", ["nim", "rfc"])


def opened(*channel_ids, participant="alice", persistence=None, **settings):
    channels = Channels(participant, persistence, settings=ChannelSettings(**settings), clock=ManualClock())
    for channel_id in channel_ids:
        channels.ensure_channel(channel_id)
    return channels


def encoded(message_id, *causes, dialect="nim", **fields):
    return dialect_named(dialect).encode(message(message_id, *causes, **fields))


class HeldCommit:
    """A commit whose outcome is known when somebody says so."""

    def __init__(self):
        self._outcome = threading.Event()
        self.error = None

    @property
    def done(self):
        return self._outcome.is_set()

    def settle(self, error=None):
        self.error = error
        self._outcome.set()

    def result(self, timeout=None):
        if not self._outcome.wait(timeout):
            raise Unavailable("not yet")
        if self.error is not None:
            raise self.error

    def __await__(self):
        yield from asyncio.to_thread(self.result, 5).__await__()


class HeldPersistence(NoPersistence):
    """Hands out commits that somebody else settles."""

    def __init__(self):
        self.commits = []
        self.came = threading.Semaphore(0)

    def commit(self, channel_id, meta, update, *, reissue=False):
        self.commits.append(HeldCommit())
        self.came.release()
        return self.commits[-1]


class SlowLoading(MemoryPersistence):
    """Takes its time to load, so that others come meanwhile."""

    def load_channel(self, channel_id):
        data = super().load_channel(channel_id)
        time.sleep(0.05)
        return data


# -- channels -------------------------------------------------------------------------------------------------


def test_channels_are_made_with_defaults_and_none_is_open():
    """Until one is asked for; nothing is loaded before."""
    store = MemoryPersistence()
    channels = Channels("alice", store)
    assert channels.settings == ChannelSettings()
    assert channels.channels() == []
    assert store.calls == []
    with pytest.raises(NotFound):
        channels.channel("room")


def test_channels_come_and_go():
    """Ensured once or twice, removed once or twice."""
    channels = opened("a", "b", "a")
    assert channels.channels() == ["a", "b"]
    channels.remove_channel("a")
    channels.remove_channel("a")
    assert channels.channels() == ["b"]
    with pytest.raises(NotFound):
        channels.channel("a")


@both
def test_a_message_finds_its_channel_by_itself(dialect):
    """The bytes tell: nobody has to say which channel or which wire format."""
    alice = opened("a", "b", dialect=dialect)
    bob = opened("a", "b", participant="bob", dialect=dialect)
    received = bob.unwrap_received_message(alice.wrap_outgoing_message(b"hello", "b", "m1"))
    assert (received.channel_id, received.message_id, received.sender_id) == ("b", "m1", "alice")
    assert received.content == b"hello"
    assert bob.channel("b").history() == ["m1"]
    assert bob.channel("a").history() == []


@both
def test_channels_know_nothing_of_each_other(dialect):
    """Ids, dependencies, acknowledgements, filters, requests, clocks."""
    alice = opened("a", "b", dialect=dialect)
    alice.wrap_outgoing_message(b"content", "a", "m1")
    alice.wrap_outgoing_message(b"content", "b", "m1")
    alice.unwrap_received_message(encoded("x", "m1", "gone", channel="b", dialect=dialect))
    a, b = alice.channel("a").stats(), alice.channel("b").stats()
    assert (a.outgoing, a.incoming, a.requests) == (1, 0, 0)
    assert (b.outgoing, b.incoming, b.requests) == (0, 1, 1)
    alice.mark_dependencies_met(["gone"], "a")
    assert alice.channel("b").stats().incoming == 1
    alice.mark_dependencies_met(["gone"], "b")
    assert alice.channel("b").history() == ["m1", "x"]
    assert alice.channel("a").history() == ["m1"]


def test_events_name_their_channel():
    """Two ready, two sent, none missing, each where it belongs."""
    alice, bob = opened("a", "b"), opened("a", "b", participant="bob")
    of_kind = []
    bob.set_callbacks(
        message_ready=lambda event: of_kind.append(("ready", event.channel_id, event.message_id)),
        missing_dependencies=lambda event: of_kind.append(("missing", event.channel_id, event.message_id)),
    )
    alice.set_callbacks(message_sent=lambda event: of_kind.append(("sent", event.channel_id, event.message_id)))
    for channel_id in ("a", "b"):
        bob.unwrap_received_message(alice.wrap_outgoing_message(b"content", channel_id, f"{channel_id}1"))
        alice.unwrap_received_message(bob.wrap_outgoing_message(b"content", channel_id, f"{channel_id}2"))
    assert of_kind == [("ready", "a", "a1"), ("sent", "a", "a1"), ("ready", "b", "b1"), ("sent", "b", "b1")]


def test_setting_callbacks_replaces_all_of_them():
    channels = opened("room")
    of_kind = []
    channels.set_callbacks(message_ready=lambda event: of_kind.append(event.message_id))
    channels.unwrap_received_message(encoded("b1"))
    channels.set_callbacks()
    channels.unwrap_received_message(encoded("b2"))
    assert of_kind == ["b1"]


def test_a_channel_keeps_its_wire_format():
    """Another one is refused: when it is asked for, and when a message comes in it."""
    channels = Channels("alice")
    channels.ensure_channel("room", dialect="rfc")
    assert channels.channel("room").dialect == "rfc"
    with pytest.raises(Invalid, match="rfc"):
        channels.ensure_channel("room", dialect="nim")
    with pytest.raises(Invalid, match="wire format"):
        channels.unwrap_received_message(encoded("b1", dialect="nim"))
    assert channels.refused_total == 1
    assert channels.unwrap_received_message(encoded("b1", dialect="rfc")).content


@both
def test_a_channel_of_a_stranger_is_created_in_his_wire_format_when_that_is_allowed(dialect):
    """Whatever the default is."""
    other = {"nim": "rfc", "rfc": "nim"}[dialect]
    channels = opened(accept_unknown_channels=True, dialect=other)
    channels.unwrap_received_message(encoded("b1", dialect=dialect))
    assert channels.channel("room").dialect == dialect
    assert channels.channel("room").history() == ["b1"]


def test_a_kept_channel_has_the_wire_format_that_it_had():
    """A stranger cannot change it, nor can a default."""
    store = MemoryPersistence()
    with opened("room", persistence=store, dialect="rfc") as channels:
        channels.wrap_outgoing_message(b"content", "room")
    again = opened(persistence=store, dialect="nim", accept_unknown_channels=True)
    with pytest.raises(Invalid, match="rfc"):
        again.unwrap_received_message(encoded("b1", dialect="nim"))
    assert again.refused_total == 1
    assert again.channel("room").dialect == "rfc"


def test_what_is_refused_is_counted():
    """Noise, strangers, absurd times; an honest duplicate is not."""
    channels = opened("room")
    for data in (b"noise", encoded("b1", channel="other"), encoded("b1", lamport=2**60)):
        with pytest.raises((Invalid, NotFound)):
            channels.unwrap_received_message(data)
    for _ in range(2):
        channels.unwrap_received_message(encoded("b1"))
    assert channels.refused_total == 3
    assert channels.channel("room").stats().refused_total == 1
    assert channels.channel("room").stats().duplicates_total == 1


def test_ids_are_random_unless_they_are_given():
    """Equal contents are two messages."""
    channels = opened("room")
    for _ in range(3):
        channels.wrap_outgoing_message(b"same", "room")
    channels.wrap_outgoing_message(b"same", "room", "mine")
    ids = channels.channel("room").history()
    assert len(set(ids)) == 4
    assert ids[-1] == "mine"


def test_a_provider_of_hints_is_asked_once_for_each_message():
    """What it says goes with every message that names that one, and is kept."""
    asked = []

    def hint(channel_id, message_id):
        asked.append((channel_id, message_id))
        return b"at " + message_id.encode() if message_id != "m2" else None

    store = MemoryPersistence()
    channels = Channels("alice", store, clock=ManualClock(), retrieval_hint=hint)
    for name in ("m1", "m2", "m3"):
        data = channels.wrap_outgoing_message(b"content", "room", name)
    named = dialect_named("nim").decode(data).causal_history
    assert [(one.message_id, one.retrieval_hint) for one in named] == [("m1", b"at m1"), ("m2", b"")]
    assert asked == [("room", "m1"), ("room", "m2")]
    assert store.load_channel("room").hints == {"m1": b"at m1"}


def test_removing_forgets_everything():
    """A channel of the same name starts from nothing, repair included."""
    store = MemoryPersistence()
    channels = opened("room", persistence=store)
    channels.wrap_outgoing_message(b"content", "room", "m1")
    channels.unwrap_received_message(encoded("b2", "b1"))
    gone = channels.channel("room")
    channels.remove_channel("room")
    channels.ensure_channel("room")
    stats = channels.channel("room").stats()
    assert (stats.lamport, stats.history, stats.outgoing, stats.incoming, stats.requests) == (0, 0, 0, 0, 0)
    with pytest.raises(Closed, match="removed"):
        gone.take(None)


def test_reset_forgets_all_channels_and_tries_each():
    """The reference implementation stops at the first that fails."""
    store = MemoryPersistence()
    channels = opened("a", "b", "c", persistence=store)
    for channel_id in channels.channels():
        channels.wrap_outgoing_message(b"content", channel_id)
    refuse_drop_of(store, "a")
    with pytest.raises(Unavailable):
        channels.reset()
    assert channels.channels() == ["a"]
    assert channels.channel("a").stats().history == 1
    assert store.load_channel("b").history == ()


def refuse_drop_of(store, channel_id):
    dropped = store.drop_channel

    def drop(one):
        if one == channel_id:
            raise Unavailable("the disk is gone")
        dropped(one)

    store.drop_channel = drop


# -- callbacks ------------------------------------------------------------------------------------------------


def test_a_callback_may_send_in_the_same_channel():
    """It is called outside of all locks; what it causes is delivered after what is being delivered."""
    channels = opened("room")
    of_kind = []

    def reply(event):
        of_kind.append(event.message_id)
        if event.message_id == "b1":
            channels.wrap_outgoing_message(b"reply", "room", "reply")
            channels.unwrap_received_message(encoded("b4", lamport=4))
            of_kind.append("replied")

    channels.set_callbacks(message_ready=reply)
    channels.unwrap_received_message(encoded("b3", "b2", lamport=3))
    channels.unwrap_received_message(encoded("b2", "b1", lamport=2))
    channels.unwrap_received_message(encoded("b1", lamport=1))
    assert of_kind == ["b1", "replied", "b2", "b3", "b4"]
    assert channels.channel("room").history() == ["b1", "b2", "b3", "reply", "b4"]


def test_a_callback_may_remove_the_channel_or_close_everything():
    channels = opened("a", "b")
    channels.set_callbacks(message_ready=lambda event: channels.remove_channel(event.channel_id))
    channels.unwrap_received_message(encoded("b1", channel="a"))
    assert channels.channels() == ["b"]
    channels.set_callbacks(message_ready=lambda event: channels.close())
    channels.unwrap_received_message(encoded("b1", channel="b"))
    assert channels.closed


def test_a_callback_that_raises_spoils_nothing(caplog):
    """Neither the operation nor what is delivered after it; it is logged, without any content."""
    channels = opened("room")
    of_kind = []

    def fail(event):
        of_kind.append(event.message_id)
        raise ValueError("a bug in the application")

    channels.set_callbacks(message_ready=fail, missing_dependencies=fail)
    with caplog.at_level(logging.ERROR, logger="holdfast.channels"):
        channels.unwrap_received_message(encoded("b2", "b1", content=b"secret", lamport=2))
        received = channels.unwrap_received_message(encoded("b1", content=b"secret"))
    assert of_kind == ["b2", "b1", "b2"]
    assert not received.missing
    assert [record.action for record in caplog.records] == ["channel_callback_failed"] * 3
    assert "secret" not in caplog.text


def test_events_wait_for_what_they_tell_to_be_kept():
    """An application that hears of a message finds it on disk after a crash."""
    held = HeldPersistence()
    channels = Channels("alice", held, clock=ManualClock())
    channels.ensure_channel("room")
    of_kind = []
    channels.set_callbacks(message_ready=lambda event: of_kind.append(event.message_id))
    with ThreadPoolExecutor(3) as pool:
        receiving = []
        for number in range(3):
            receiving.append(pool.submit(channels.unwrap_received_message, encoded(f"b{number}", lamport=number)))
            assert held.came.acquire(timeout=5)
        held.commits[1].settle()
        time.sleep(0.02)
        assert of_kind == [], "the second is kept, but its turn comes after the first"
        held.commits[0].settle()
        receiving[0].result(5)
        receiving[1].result(5)
        assert of_kind == ["b0", "b1"], "the third is not kept yet"
        held.commits[2].settle()
        receiving[2].result(5)
    assert of_kind == ["b0", "b1", "b2"]


def test_an_operation_does_not_wait_longer_than_it_was_asked_to():
    """It succeeds in memory, tells what happened, and says that it is not kept yet."""
    held = HeldPersistence()
    channels = Channels("alice", held, settings=ChannelSettings(ack_timeout_ms=20), clock=ManualClock())
    channels.ensure_channel("room")
    of_kind = []
    channels.set_callbacks(message_ready=lambda event: of_kind.append(event.message_id))
    channels.unwrap_received_message(encoded("b1"))
    assert of_kind == ["b1"]
    assert channels.channel("room").persistence.pending == ("b1",)
    held.commits[0].settle()
    assert channels.channel("room").persistence.pending == ()


# -- threads and tasks ----------------------------------------------------------------------------------------

WORKERS, ROOMS, EACH = 8, ("r0", "r1", "r2", "r3"), 25


def conversation():
    """What 16 others say in four channels: chains, so that order matters."""
    streams = {}
    for worker in range(2 * WORKERS):
        sent = []
        for room in ROOMS:
            for number in range(EACH):
                causes = [f"{room}/{worker}/{number - 1}"] if number else []
                name = f"{room}/{worker}/{number}"
                sent.append(encoded(name, *causes, lamport=number, sender=f"w{worker}", channel=room))
        streams[worker] = sent
    return streams


@pytest.mark.parametrize("persistence", [NoPersistence, MemoryPersistence])
def test_threads_and_tasks_together_lose_nothing_and_deliver_once_in_order(persistence):
    """Eight threads and eight tasks on four channels, sending, receiving late first, and sweeping."""
    store = persistence()
    channels = Channels("alice", store, settings=ChannelSettings(history_max=5_000, lost_after_ms=0))
    ready = {room: [] for room in ROOMS}
    busy = Counter()

    def of_kind(event: MessageReady) -> None:
        busy[event.channel_id] += 1
        assert busy[event.channel_id] == 1, "two callbacks of one channel at once"
        ready[event.channel_id].append(event.message_id)
        busy[event.channel_id] -= 1

    channels.set_callbacks(message_ready=of_kind)
    streams = conversation()
    for room in ROOMS:
        channels.ensure_channel(room)

    def thread(worker: int) -> None:
        for at, data in enumerate(reversed(streams[worker])):
            channels.unwrap_received_message(data)
            if at % 10 == 0:
                channels.wrap_outgoing_message(b"ours", ROOMS[at // 10 % 4], f"t{worker}/{at}")
                channels.run_buffer_sweep()

    async def task(worker: int) -> None:
        for at, data in enumerate(streams[worker]):
            await channels.unwrap_received_message_async(data)
            if at % 10 == 0:
                await channels.wrap_outgoing_message_async(b"ours", ROOMS[at // 10 % 4], f"t{worker}/{at}")
                await asyncio.sleep(0)

    async def tasks() -> None:
        await asyncio.gather(*(task(worker) for worker in range(WORKERS, 2 * WORKERS)))

    with ThreadPoolExecutor(WORKERS) as pool:
        done = [pool.submit(thread, worker) for worker in range(WORKERS)]
        asyncio.run(tasks())
        for one in done:
            one.result(60)
    for room in ROOMS:
        theirs = {f"{room}/{worker}/{number}" for worker in range(2 * WORKERS) for number in range(EACH)}
        assert sorted(ready[room]) == sorted(theirs), "each once, none lost"
        places = {name: at for at, name in enumerate(ready[room])}
        for worker in range(2 * WORKERS):
            order = [places[f"{room}/{worker}/{number}"] for number in range(EACH)]
            assert order == sorted(order)
        history = channels.channel(room).history()
        ours = {f"t{worker}/{at}" for worker in range(16) for at in range(0, 100, 10) if ROOMS[at // 10 % 4] == room}
        assert len(history) == len(set(history))
        assert set(history) == theirs | ours
        assert not channels.channel(room).incoming()
        if isinstance(store, MemoryPersistence):
            kept = store.load_channel(room)
            assert [one.message_id for one in kept.history] == history
            assert kept.meta == channels.channel(room).snapshot()


def test_a_channel_that_many_touch_first_is_loaded_once():
    """And everybody works on the same one."""
    store = SlowLoading()
    channels = Channels("alice", store)
    barrier = threading.Barrier(8)

    def touch(number):
        barrier.wait(5)
        channels.wrap_outgoing_message(b"content", "room", f"m{number}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(touch, range(8)))
    assert store.calls.count(("load_channel", "room")) == 1
    assert sorted(channels.channel("room").history()) == [f"m{number}" for number in range(8)]


def test_many_channels_that_are_first_touched_at_once_are_all_there():
    """Both wire formats at once: what is spoken is known for each."""
    channels = Channels("alice", SlowLoading())
    barrier = threading.Barrier(8)

    def touch(number):
        barrier.wait(5)
        for part in range(2):
            channels.ensure_channel(f"{number}/{part}", dialect=("nim", "rfc")[(number + part) % 2])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(touch, range(8)))
    assert len(channels.channels()) == 16
    assert channels._open._spoken == ["nim", "rfc"]


def test_a_load_that_fails_leaves_nothing_behind():
    """The next one tries again."""
    store = MemoryPersistence({"load_channel"})
    channels = Channels("alice", store)
    with pytest.raises(Unavailable):
        channels.wrap_outgoing_message(b"content", "room")
    assert channels.channels() == []
    store.failing_ops.clear()
    channels.wrap_outgoing_message(b"content", "room", "m1")
    assert channels.channel("room").history() == ["m1"]


class BlockingPersistence(MemoryPersistence):
    """Waits for a disk."""

    blocks = True


@pytest.mark.parametrize("kind", ["held", "blocking"])
def test_blocking_an_event_loop_is_warned_of(kind):
    """With a commit that has to be waited for, and with a backend that waits itself; the warning names the caller."""
    held = HeldPersistence()
    store = held if kind == "held" else BlockingPersistence()
    channels = Channels("alice", store, settings=ChannelSettings(ack_timeout_ms=20))
    channels.ensure_channel("room")

    async def block():
        with pytest.warns(RuntimeWarning, match="_async") as warned:
            channels.wrap_outgoing_message(b"content", "room")
        assert warned[0].filename == __file__
        for commit in held.commits:
            commit.settle()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if kind == "blocking":
                await channels.wrap_outgoing_message_async(b"content", "room")

    asyncio.run(block())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        channels.unwrap_received_message(encoded("b1", "x"))


def test_no_warning_when_nothing_has_to_be_waited_for():
    async def work():
        channels = opened("room")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            channels.wrap_outgoing_message(b"content", "room")

    asyncio.run(work())


def test_every_operation_has_a_form_for_coroutines():
    """They do the same."""

    async def work():
        alice, bob = Channels("alice"), Channels("bob")
        for one in (alice, bob):
            await one.ensure_channel_async("room")
            await one.ensure_channel_async("room")
        await alice.wrap_outgoing_message_async(b"lost", "room", "m1")
        data = await alice.wrap_outgoing_message_async(b"content", "room", "m2")
        received = await bob.unwrap_received_message_async(data)
        assert [one.message_id for one in received.missing] == ["m1"]
        await bob.mark_dependencies_met_async(["m1"], "room")
        assert bob.channel("room").history() == ["m2"]
        with pytest.raises(NotFound):
            await bob.unwrap_received_message_async(encoded("b1", channel="other"))
        with pytest.raises(Invalid):
            await bob.unwrap_received_message_async(encoded("b1", lamport=2**60))
        assert bob.refused_total == 2
        await bob.remove_channel_async("room")
        await alice.reset_async()
        assert alice.channels() == bob.channels() == []

    asyncio.run(work())


def test_an_awaited_operation_hears_when_it_is_kept():
    """The loop goes on meanwhile."""
    held = HeldPersistence()
    channels = Channels("alice", held)
    channels.ensure_channel("room")
    of_kind = []
    channels.set_callbacks(message_ready=lambda event: of_kind.append(event.message_id))

    async def work():
        receiving = asyncio.create_task(channels.unwrap_received_message_async(encoded("b1")))
        while not held.commits:
            await asyncio.sleep(0)
        assert of_kind == []
        held.commits[0].settle()
        await asyncio.wait_for(receiving, 5)
        assert of_kind == ["b1"]

    asyncio.run(work())


# -- timers ---------------------------------------------------------------------------------------------------


def threads():
    return [one for one in threading.enumerate() if one.name == "holdfast-channels"]


def test_starting_the_periodic_tasks_twice_starts_them_once():
    """The reference implementation starts duplicates."""
    channels = Channels("alice")
    channels.start_periodic_tasks()
    channels.start_periodic_tasks()
    assert len(threads()) == 1
    channels.stop_periodic_tasks()
    channels.stop_periodic_tasks()
    assert threads() == []
    channels.start_periodic_tasks()
    channels.close()
    assert threads() == []


def test_a_short_interval_is_kept_and_is_no_busy_loop():
    """The reference implementation cuts a tenth of a second to 0. The sync names its channel and carries its bytes."""
    channels = Channels("alice", settings=ChannelSettings(sync_interval_ms=100))
    channels.ensure_channel("room")
    channels.wrap_outgoing_message(b"content", "room", "m1")
    syncs, enough = [], threading.Event()

    def of_kind(event):
        syncs.append((time.monotonic(), event))
        if len(syncs) == 5:
            enough.set()

    channels.set_callbacks(periodic_sync=of_kind)
    begun, used = time.monotonic(), time.process_time()
    channels.start_periodic_tasks()
    assert enough.wait(20)
    used, lasted = time.process_time() - used, time.monotonic() - begun
    channels.close()
    assert lasted >= 0.38, "the first comes at once, the others each after a tenth of a second"
    assert used < 0.3, "it slept in between"
    assert {event.channel_id for _, event in syncs} == {"room"}
    bob = Channels("bob")
    bob.ensure_channel("room")
    bob.unwrap_received_message(syncs[0][1].data)
    assert bob.channel("room").stats().requests == 1


def test_no_sync_when_it_is_turned_off():
    channels = Channels("alice", settings=ChannelSettings(sync_interval_ms=0, repair_sweep_interval_ms=5))
    channels.wrap_outgoing_message(b"content", "room")
    of_kind = []
    channels.set_callbacks(periodic_sync=of_kind.append)
    channels.start_periodic_tasks()
    time.sleep(0.05)
    channels.close()
    assert of_kind == []


def test_the_periodic_tasks_resend_and_repair():
    """Without anybody calling a sweep."""
    given = ChannelSettings(
        buffer_sweep_interval_ms=5, repair_sweep_interval_ms=5, resend_interval_ms=10, sync_interval_ms=0
    )
    channels = Channels("alice", settings=given)
    channels.wrap_outgoing_message(b"content", "room", "m1")
    resent, repaired = threading.Event(), threading.Event()
    channels.set_callbacks(resend_due=lambda _: resent.set(), repair_ready=lambda _: repaired.set())
    channels.unwrap_received_message(encoded("q", requests=[entry("m1", "alice")]))
    channels.start_periodic_tasks()
    assert resent.wait(20)
    assert repaired.wait(20)
    channels.close()


def test_a_periodic_task_that_fails_is_tried_again(caplog):
    """It is logged; the thread lives."""

    class Failing(Channels):
        swept = 0
        again = threading.Event()

        def run_repair_sweep(self):
            self.swept += 1
            if self.swept > 2:
                self.again.set()
            raise ValueError("a bug")

    channels = Failing("alice", settings=ChannelSettings(repair_sweep_interval_ms=1, sync_interval_ms=0))
    with caplog.at_level(logging.ERROR, logger="holdfast.channels"):
        channels.start_periodic_tasks()
        assert channels.again.wait(20)
        channels.close()
    assert {record.action for record in caplog.records} == {"channel_task_failed"}


def test_a_callback_of_the_timer_may_close_the_channels():
    """It does not wait for itself."""
    channels = Channels("alice", settings=ChannelSettings(sync_interval_ms=5))
    channels.wrap_outgoing_message(b"content", "room")
    closed = threading.Event()

    def close(event):
        channels.close()
        closed.set()

    channels.set_callbacks(periodic_sync=close)
    channels.start_periodic_tasks()
    assert closed.wait(20)
    assert channels.closed
    for one in threads():
        one.join(5)
    assert threads() == []


def test_a_sweep_goes_on_when_a_channel_is_removed_meanwhile():
    """The others are swept all the same, and their events delivered."""
    channels = opened("a", "b", resend_interval_ms=1)
    for channel_id in ("a", "b"):
        channels.wrap_outgoing_message(b"content", channel_id)
    channels._clock.advance(1)
    of_kind = []
    channels.set_callbacks(resend_due=lambda event: of_kind.append(event.channel_id))
    gone = channels.channel("a")
    gone.forget()
    channels.run_buffer_sweep()
    assert of_kind == ["b"]


# -- the end --------------------------------------------------------------------------------------------------


def test_closing_keeps_what_is_not_kept():
    """The reference implementation throws the queue away."""
    store = MemoryPersistence({"commit"})
    channels = opened("room", persistence=store)
    channels.wrap_outgoing_message(b"content", "room", "m1")
    assert not channels.channel("room").persistence.ok
    store.failing_ops.clear()
    channels.close()
    channels.close()
    assert [one.message_id for one in store.load_channel("room").history] == ["m1"]


def test_closing_says_when_something_could_not_be_kept():
    """And closes all the same."""
    store = MemoryPersistence({"commit"})
    channels = opened("room", persistence=store)
    channels.wrap_outgoing_message(b"content", "room", "m1")
    with pytest.raises(Unavailable, match="room"):
        channels.close()
    assert channels.closed
    channels.close()


def test_nothing_works_after_closing():
    """Every operation says so, in both forms."""
    store = MemoryPersistence()
    channels = opened("room", persistence=store)
    channels.wrap_outgoing_message(b"content", "room")
    data = encoded("b1")
    channels.close()
    calls = list(store.calls)
    for operation in (
        lambda: channels.wrap_outgoing_message(b"content", "room"),
        lambda: channels.unwrap_received_message(data),
        lambda: channels.mark_dependencies_met(["x"], "room"),
        lambda: channels.check_unacknowledged_messages("room"),
        channels.run_buffer_sweep,
        channels.run_repair_sweep,
        channels.run_periodic_sync,
        channels.start_periodic_tasks,
        lambda: channels.ensure_channel("room"),
        lambda: channels.remove_channel("room"),
        lambda: asyncio.run(channels.wrap_outgoing_message_async(b"content", "room")),
        lambda: asyncio.run(channels.unwrap_received_message_async(data)),
        lambda: asyncio.run(channels.mark_dependencies_met_async(["x"], "room")),
    ):
        with pytest.raises(Closed):
            operation()
    assert store.calls == calls


def test_a_block_closes_and_does_not_hide_its_error():
    store = MemoryPersistence({"commit"})
    with pytest.raises(ValueError, match="the reason"), opened("room", persistence=store) as channels:
        channels.wrap_outgoing_message(b"content", "room")
        raise ValueError("the reason")
    assert channels.closed


def test_unknown_ways_to_recover_are_refused():
    with pytest.raises(Invalid, match="recover"):
        Channels("alice", recover="somehow")


def test_the_port_says_what_a_backend_lacks():
    """A backend that forgot a method raises when it is called, not silently."""
    with pytest.raises(NotImplementedError):
        Persistence().load_channel("room")


def test_messages_do_not_create_more_channels_than_allowed():
    """Who lets strangers create channels still has a bound; those that are open go on."""
    settings = ChannelSettings(accept_unknown_channels=True, channels_max=2)
    alice, bob = Channels("alice", settings=settings), Channels("bob")
    for number in range(3):
        bob.ensure_channel(f"c{number}")
    sent = [bob.wrap_outgoing_message(b"x", f"c{number}") for number in range(3)]
    for data in sent[:2]:
        alice.unwrap_received_message(data)
    with pytest.raises(Full):
        alice.unwrap_received_message(sent[2])
    assert (alice.channels(), alice.refused_total) == (["c0", "c1"], 1)
    alice.unwrap_received_message(bob.wrap_outgoing_message(b"y", "c0"))
    alice.ensure_channel("c2")
    assert alice.channels() == ["c0", "c1", "c2"]


def test_a_history_shorter_than_what_a_peer_names_is_warned_of_once_and_stalls_nothing(caplog):
    """With the remedy; what has left history is known, and nobody waits for it."""
    ready = []
    channels = Channels("alice", settings=ChannelSettings(history_max=2))
    channels.set_callbacks(message_ready=lambda event: ready.append(event.message_id))
    channels.ensure_channel("room")
    for number in range(6):
        causes = [f"b{cause}" for cause in range(number)]
        channels.unwrap_received_message(encoded(f"b{number}", *causes))
    assert ready == [f"b{number}" for number in range(6)]
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == 1
    assert "raise it to 6" in warned[0]


@pytest.mark.parametrize("kind", ["thread", "loop"])
def test_the_periodic_tasks_hurry_where_somebody_is_behind(kind):
    """However long the intervals of sweeps and syncs are."""
    settings = ChannelSettings(repair_sweep_interval_ms=10**9, sync_interval_ms=10**9, buffer_sweep_interval_ms=10**9)
    channels = Channels("alice", settings=settings)
    channels.ensure_channel("room")
    asked = threading.Event()
    channels.set_callbacks(periodic_sync=lambda event: asked.set())

    async def on_loop():
        tasks = asyncio.create_task(channels.run_periodic_tasks_async())
        await asyncio.sleep(0)
        receive()
        assert await asyncio.to_thread(asked.wait, 20)
        tasks.cancel()

    def receive():
        channels.unwrap_received_message(encoded("b99", *(f"b{number}" for number in range(10))))

    with channels:
        if kind == "loop":
            asyncio.run(on_loop())
        else:
            channels.start_periodic_tasks()
            receive()
            assert asked.wait(20)
