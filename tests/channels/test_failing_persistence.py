"""Disks that refuse, break or hang: operations succeed in memory, the channel says so, and the disk is right later.

Right means: as if nothing had happened, compared with a twin that never failed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

import holdfast
from holdfast import Closed, Corrupt, Full, HoldfastError, Log, OutcomeUnknown, Settings, Unavailable
from holdfast.channels import (
    ChannelData,
    ChannelMeta,
    Channels,
    ChannelSettings,
    Commit,
    HistoryUpdate,
    MemoryPersistence,
    Persistence,
    PersistenceState,
)
from holdfast.channels.protocol import steps
from holdfast.channels.wire.message import raw
from holdfast.channels.wire.nim import NIM
from holdfast.testing import Fault, FaultyDisk, ManualClock
from tests.channels import conversation
from tests.channels.conversation import (
    CHANNELS,
    REMOVAL,
    ROOM,
    SCRIPT,
    Noting,
    bare,
    memory,
    on_disk,
    records,
    states,
    take,
    wire,
)
from tests.stalled import stalled

pytestmark = pytest.mark.disk

STATES = states()
SPOKEN = SCRIPT[:REMOVAL]
"""The operations that succeed in memory whatever the disk says."""

HEALINGS: dict[str, Callable[[Channels], object]] = {
    "an operation": lambda channels: channels.mark_dependencies_met([], ROOM),
    "a duplicate": lambda channels: channels.unwrap_received_message(wire("kept long ago")),
    "a buffer sweep": Channels.run_buffer_sweep,
    "a repair sweep": Channels.run_repair_sweep,
    "a flush": Channels.flush,
    "closing": Channels.close,
}
"""What makes the disk right again, each without changing the channel itself."""


def events_of(channels: Channels) -> list[object]:
    heard: list[object] = []
    kinds = (
        "message_ready", "message_sent", "message_given_up", "missing_dependencies", "dependencies_lost",
        "repair_ready", "resend_due", "periodic_sync",
    )  # fmt: skip
    channels.set_callbacks(**dict.fromkeys(kinds, heard.append))
    return heard


class Pair:
    """Two participants in memory that do the same; the disk of one fails."""

    def __init__(self) -> None:
        self.stores = Noting(), Noting()
        self.clocks = ManualClock(), ManualClock()
        settings = ChannelSettings(**CHANNELS)
        self.channels = [
            Channels("alice", store, settings=settings, clock=clock)
            for store, clock in zip(self.stores, self.clocks, strict=True)
        ]
        self.heard = [events_of(one) for one in self.channels]
        for one in self.channels:
            one.ensure_channel(ROOM)
            one.unwrap_received_message(wire("kept long ago"))

    @property
    def ill(self) -> Channels:
        return self.channels[0]

    def take(self, operation) -> None:
        first, second = (take(one, clock, operation) for one, clock in zip(self.channels, self.clocks, strict=True))
        assert first == second
        assert self.heard[0] == self.heard[1]

    def agree(self) -> bool:
        return self.stores[0].load_channel(ROOM) == self.stores[1].load_channel(ROOM)


# -- every operation, every method ----------------------------------------------------------------------------


@pytest.mark.parametrize("healing", HEALINGS)
@pytest.mark.parametrize("failing", ["commit", "save_channel_meta", "update_history"])
def test_every_operation_succeeds_in_memory_and_is_kept_later(failing, healing):
    """Each in turn fails to be kept; what comes after makes the disk what it would have been."""
    for number, (name, operation) in enumerate(SPOKEN):
        pair = Pair()
        for _, earlier in SPOKEN[:number]:
            pair.take(earlier)
        before = pair.stores[0].load_channel(ROOM)
        pair.stores[0].failing_ops.add(failing)
        pair.take(operation)
        state = pair.ill.channel(ROOM).persistence
        assert not state.ok, name
        assert state.retrying_since_ms == pair.clocks[0].now_us() // 1000, name
        assert failing in (state.error or ""), name
        assert pair.stores[0].load_channel(ROOM) == before, name
        pair.stores[0].failing_ops.clear()
        for one in pair.channels:
            HEALINGS[healing](one)
        assert pair.ill.channel(ROOM).persistence.ok, name
        assert pair.ill.channel(ROOM).persistence.pending == (), name
        kept, twin = (store.load_channel(ROOM) for store in pair.stores)
        assert kept.meta == twin.meta, name
        assert {one.message_id for one in kept.history} == {one.message_id for one in twin.history}, name
        assert pair.stores[0].notes == pair.stores[1].notes, name


@pytest.mark.parametrize("failing", ["commit", "save_channel_meta", "update_history"])
def test_a_whole_conversation_succeeds_while_nothing_can_be_kept(failing):
    """And one commit at the end keeps all of it."""
    pair = Pair()
    pair.stores[0].failing_ops.add(failing)
    for _, operation in SPOKEN:
        pair.take(operation)
        room = pair.ill.channel(ROOM)
        assert not room.persistence.ok
        assert set(room.persistence.pending) >= set(room.history()) - {"kept long ago"}
    pair.stores[0].failing_ops.clear()
    pair.stores[0].calls.clear()
    pair.ill.close()
    assert pair.stores[0].calls == [("commit", ROOM)]
    assert pair.agree()
    # With room for six notes the oldest are gone: they are for onlookers.
    notes_max = CHANNELS["history_max"]
    assert pair.stores[0].notes[1:] == pair.stores[1].notes[-notes_max:]


def test_a_failure_is_logged_once_and_so_is_its_end(caplog):
    """Not once for every message."""
    caplog.set_level(logging.INFO, "holdfast.channels")
    store = MemoryPersistence({"commit"})
    channels = Channels("alice", store)
    for _ in range(10):
        channels.wrap_outgoing_message(b"x", ROOM)
    store.failing_ops.clear()
    for _ in range(10):
        channels.wrap_outgoing_message(b"x", ROOM)
    assert [one.action for one in caplog.records] == ["channel_not_kept", "channel_kept"]


def test_a_hint_that_cannot_be_kept_spoils_nothing(caplog):
    """It is logged, and goes with messages all the same."""
    store = MemoryPersistence({"set_retrieval_hint"})
    channels = Channels("alice", store, retrieval_hint=lambda channel_id, message_id: b"asked for")
    channels.wrap_outgoing_message(b"x", ROOM, "a1")
    channels.set_retrieval_hint(ROOM, "a1", b"hint")
    channels.wrap_outgoing_message(b"x", ROOM, "a2")
    assert channels.channel(ROOM).persistence.ok
    assert channels.channel(ROOM).outgoing()[1].message.causal_history[0].retrieval_hint == b"hint"
    assert "channel_hint_not_kept" in [one.action for one in caplog.records]


@pytest.mark.parametrize("error", [OSError("no"), Unavailable("not now"), Corrupt("damaged"), Closed("over")], ids=type)
def test_loading_dropping_and_resetting_raise_what_happened(error, caplog):
    """As ours, with the cause, logged once each."""

    class Broken(MemoryPersistence):
        broken = False

        def load_channel(self, channel_id: str) -> ChannelData:
            if self.broken:
                raise error
            return super().load_channel(channel_id)

        def drop_channel(self, channel_id: str) -> None:
            if self.broken:
                raise error
            super().drop_channel(channel_id)

    store = Broken()
    channels = Channels("alice", store)
    channels.wrap_outgoing_message(b"x", ROOM, "a1")
    store.broken = True
    caplog.clear()
    for operation, action in (
        (lambda: channels.ensure_channel("other"), "channel_not_loaded"),
        (lambda: channels.remove_channel(ROOM), "channel_not_dropped"),
        (lambda: channels.remove_channel("other"), "channel_not_dropped"),
        (channels.reset, "channel_not_dropped"),
    ):
        with pytest.raises(HoldfastError) as caught:
            operation()
        assert isinstance(caught.value, Unavailable | Corrupt | Closed)
        assert caught.value is error or caught.value.__cause__ is error
        assert [one.action for one in caplog.records] == [action]
        caplog.clear()
    assert channels.channel(ROOM).history() == ["a1"]


# -- a log on a full disk -------------------------------------------------------------------------------------


@contextmanager
def on_faulty_disk(tmp_path: Path) -> Iterator[tuple[FaultyDisk, Log, Channels, ManualClock]]:
    root = tmp_path / "disk"
    with FaultyDisk(root, record=False) as disk:
        clock = ManualClock()
        log = conversation.open_log(root / "log", clock, checkpoint="8MiB")
        alice = log.channels("alice")
        alice.ensure_channel(ROOM)
        try:
            yield disk, log, alice, clock
        finally:
            disk.disarm()
            try:
                log.close()
            except Closed:
                pass


def test_every_operation_outlives_a_full_disk(tmp_path):
    """Each is refused by the disk; when there is room again an operation or a flush keeps it."""
    healings = [HEALINGS[name] for name in ("an operation", "a flush")]
    with on_faulty_disk(tmp_path) as (disk, log, alice, clock):
        for number, (name, operation) in enumerate(SPOKEN):
            before = on_disk(log)
            disk.arm(Fault(1, "enospc", op="write", sticky=True))
            take(alice, clock, operation)
            state = alice.channel(ROOM).persistence
            assert (state.ok, state.retrying_since_ms) == (False, clock.now_us() // 1000), name
            assert "full" in (state.error or ""), name
            disk.disarm()
            assert on_disk(log) == before, name
            healings[number % len(healings)](alice)
            assert alice.channel(ROOM).persistence.ok, name
            assert on_disk(log) == STATES[number + 1], name


def test_a_conversation_on_a_full_disk_is_kept_when_the_log_is_closed(tmp_path):
    """All of it, in order, although nothing of it was kept before."""
    with on_faulty_disk(tmp_path) as (disk, log, alice, clock):
        disk.arm(Fault(1, "enospc", op="write", sticky=True))
        for _, operation in SPOKEN:
            take(alice, clock, operation)
        assert on_disk(log)[0] == ChannelData()
        disk.disarm()
        log.close()
        with conversation.open_log(log.path, clock) as log:
            data, found = STATES[REMOVAL]
            # With room for six notes the oldest are gone: they are for onlookers.
            assert on_disk(log) == (data, found[-CHANNELS["history_max"] :])


def test_dropping_on_a_full_disk_raises_and_loses_nothing(tmp_path):
    """The channel is as it was, and is kept by the very next operation."""
    with on_faulty_disk(tmp_path) as (disk, log, alice, clock):
        for _, operation in SCRIPT[:5]:
            take(alice, clock, operation)
        disk.arm(Fault(1, "enospc", op="write", sticky=True))
        for operation in (lambda: alice.remove_channel(ROOM), alice.reset):
            with pytest.raises(Unavailable, match="full"):
                operation()
        disk.disarm()
        alice.wrap_outgoing_message(b"next", ROOM, "next")
        assert alice.channel(ROOM).persistence.ok
        assert bare(on_disk(log)[0]) == memory(alice)
        alice.remove_channel(ROOM)
        assert on_disk(log)[0] == ChannelData()


def test_new_channels_of_a_participant_do_not_inherit_a_failure(tmp_path):
    """After a disk that was full to the end, the first operation of the next channels is kept."""
    with on_faulty_disk(tmp_path) as (disk, log, alice, clock):
        take(alice, clock, SCRIPT[0][1])
        disk.arm(Fault(1, "enospc", op="write", sticky=True))
        take(alice, clock, SCRIPT[1][1])
        with pytest.raises(Unavailable):
            alice.close()
        disk.disarm()
        again = log.channels("alice")
        again.ensure_channel(ROOM)
        assert again.channel(ROOM).history() == ["a1"]
        again.wrap_outgoing_message(b"next", ROOM, "next")
        assert again.channel(ROOM).persistence.ok
        assert bare(on_disk(log)[0]) == memory(again)


def test_a_channel_on_a_disk_that_cannot_be_read_is_not_loaded(tmp_path):
    """Unavailable, and not an empty channel."""
    with on_faulty_disk(tmp_path) as (disk, log, alice, clock):
        take(alice, clock, SCRIPT[0][1])
        alice.close()
        again = log.channels("alice", recover="empty")
        disk.arm(Fault(1, "eio", op="read", sticky=True))
        with pytest.raises(Unavailable):
            again.ensure_channel(ROOM)
        disk.disarm()
        again.ensure_channel(ROOM)
        assert again.channel(ROOM).history() == ["a1"]


def test_what_was_evicted_and_came_back_meanwhile_is_kept_in_its_new_place(open_log):
    """And once: the place that it had before is free."""
    log = open_log(settings=Settings.from_mapping({"channels": {"history_max": 2}}))
    alice = log.channels("alice")
    alice.ensure_channel(ROOM)
    for message_id in ("b1", "b2"):
        alice.unwrap_received_message(wire(message_id))
    disk = Refusing(log)
    disk.refusals = 2
    alice.unwrap_received_message(wire("b3"))  # b1 goes
    alice.wrap_outgoing_message(b"content", ROOM, "b1")  # and comes back, as one of ours; b2 goes
    alice.run_buffer_sweep()
    assert [one.message_id for one in on_disk(log)[0].history] == alice.channel(ROOM).history() == ["b3", "b1"]
    alice.unwrap_received_message(wire("b4"))
    assert [one.message_id for one in on_disk(log)[0].history] == ["b1", "b4"]


# -- a log that is poisoned -----------------------------------------------------------------------------------


def test_every_operation_outlives_a_failed_fsync(tmp_path):
    """The log writes no more; channels go on in memory, say so, and closing neither hangs nor lies."""
    for number, (name, operation) in enumerate(SPOKEN[:-1]):
        with on_faulty_disk(tmp_path / str(number)) as (disk, log, alice, clock):
            for _, earlier in SPOKEN[:number]:
                take(alice, clock, earlier)
            disk.arm(Fault(1, "fsync"))
            take(alice, clock, operation)
            disk.disarm()
            for _ in range(2):
                assert not alice.channel(ROOM).persistence.ok, name
                take(alice, clock, SPOKEN[number + 1][1])
            room = alice.channel(ROOM)
            assert "stopped writing" in room.persistence.error, name
            alice.set_retrieval_hint(ROOM, room.history()[-1], b"hint")
            for raising in (lambda: alice.ensure_channel("other"), lambda: alice.remove_channel(ROOM)):
                try:
                    raising()
                except Closed as error:
                    assert error.reason == "poisoned"
            with pytest.raises(Unavailable):
                alice.close()
            with pytest.raises(Closed):
                log.close()
        with conversation.open_log(log.path, ManualClock()) as log:
            assert on_disk(log) in (STATES[number], STATES[number + 1]), name


# -- a slow disk ----------------------------------------------------------------------------------------------


def impatient(tmp_path: Path, clock: ManualClock, ack_timeout_ms: float = 10) -> Log:
    """A log whose operations wait for so long, no longer; where one must succeed, long enough for a busy machine."""
    settings = Settings.from_mapping(
        {
            "journal": {"ack_timeout_ms": max(10 * ack_timeout_ms, 5000)},
            "segments": {"seal_on_close": False},
            "channels": {**CHANNELS, "ack_timeout_ms": ack_timeout_ms},
        }
    )
    return holdfast.open(tmp_path / "log", settings=settings, clock=clock)


def test_operations_do_not_wait_for_a_disk_that_hangs(tmp_path):
    """They return after the time-out, the channel says that it is not kept, and when the disk goes on all of it is."""
    clock = ManualClock()
    with impatient(tmp_path, clock) as log:
        alice = log.channels("alice")
        alice.ensure_channel(ROOM)
        take(alice, clock, SCRIPT[0][1])
        with stalled(log.topic("_channels")):
            since = clock.now_us() // 1000 + 250
            for _, operation in SPOKEN[1:]:
                take(alice, clock, operation)
                state = alice.channel(ROOM).persistence
                assert (state.ok, state.retrying_since_ms) == (False, since)
            assert set(state.pending) >= {"b1", "a2", "b7", "a4"}
            assert on_disk(log) == STATES[1]
            with pytest.raises(Unavailable):
                alice.flush()
        log.flush()
        assert alice.channel(ROOM).persistence == PersistenceState(True, None, (), None)
        assert on_disk(log) == STATES[REMOVAL]


def test_a_drop_that_hangs_and_happens_later_loses_nothing(tmp_path):
    """A caller that saw it fail goes on; the next commit says everything again."""
    clock = ManualClock()
    with impatient(tmp_path, clock, ack_timeout_ms=1000) as log:
        alice = log.channels("alice")
        for _, operation in SCRIPT[:7]:
            take(alice, clock, operation)
        with stalled(log.topic("_channels")), pytest.raises(Unavailable):
            alice.remove_channel(ROOM)
        log.flush()
        assert on_disk(log)[0] == ChannelData(), "this time it did happen"
        alice.wrap_outgoing_message(b"next", ROOM, "next")
        assert alice.channel(ROOM).persistence.ok
        assert bare(on_disk(log)[0]) == memory(alice)


def test_closing_on_a_disk_that_hangs_ends(tmp_path):
    """It raises after its time-outs; what was handed over is kept when the disk goes on."""
    clock = ManualClock()
    with impatient(tmp_path, clock) as log:
        alice = log.channels("alice")
        alice.ensure_channel(ROOM)
        with stalled(log.topic("_channels")):
            take(alice, clock, SCRIPT[0][1])
            with pytest.raises(Unavailable):
                alice.close()
        log.flush()
        assert on_disk(log) == STATES[1]


# -- many commits under way -----------------------------------------------------------------------------------


class Refusing:
    """A disk that refuses whole groups, on request."""

    def __init__(self, log: Log) -> None:
        self._backend = log._journal._backend
        self._commit = self._backend.commit
        self._backend.commit = self.commit
        self.refusals = 0

    def commit(self) -> None:
        if self.refusals:
            self.refusals -= 1
            raise Unavailable("the disk is full", hint="make room")
        self._commit()


def converse_blindly(tmp_path: Path, seed: int, *, queue_max: int) -> tuple[int, int]:
    """Take steps without waiting while groups are refused, and look at the disk through a handle of one's own.

    Whenever one looks, what is kept is exactly what it was after some step, and never goes back. Returns how often
    groups were refused, and how often a step was refused for lack of room.
    """
    rng, clock = Random(seed), ManualClock()
    settings = Settings.from_mapping(
        {
            "journal": {"queue_records_max": queue_max},
            "segments": {"seal_on_close": False},
            "channels": {**CHANNELS, "history_max": 8},
        }
    )
    refused = 0

    async def talk(log: Log, observer: Log) -> None:  # on a loop nobody waits for room
        nonlocal refused
        disk = Refusing(log)
        alice = log.channels("alice")
        await alice.ensure_channel_async(ROOM)
        room = alice.channel(ROOM)
        past: list[ChannelData] = [ChannelData()]
        happened: list[tuple[object, ...]] = []
        flights, at = [], 0
        for number in range(60):
            clock.advance(0.5)
            if rng.random() < 0.15:
                disk.refusals = rng.randint(1, 3)
            failed = room.stats().commits_failed_total
            effects, flight = room.take(some_step(rng, number))
            flights.append(flight)
            past.append(memory(alice))
            happened += [(one.kind, one.at_ms * 1000, raw(one.message_id), one.content) for one in effects.notes]
            refused += flights[-1].commit is None and room.stats().commits_failed_total > failed
            if rng.random() < 0.3:
                await asyncio.gather(*(one.commit for one in flights if one.commit), return_exceptions=True)
                flights.clear()
            at = look(observer, past, at)
        disk.refusals = 0
        await asyncio.to_thread(alice.flush)
        assert room.persistence.ok
        assert bare(observer.kept_channel("alice", ROOM)) == past[-1]
        heard = iter(happened)
        assert all(record in heard for record in records(observer)), "in order, and nothing twice"

    with (
        holdfast.open(tmp_path / "log", settings=settings, clock=clock) as log,
        holdfast.open(tmp_path / "log", settings=settings, clock=clock, read_only=True) as observer,
    ):
        asyncio.run(talk(log, observer))
        return log.stats().journal.failed_groups_total, refused


def some_step(rng: Random, number: int) -> steps.Input:
    if rng.random() < 0.5:
        return steps.Send(b"content", f"a{number}")
    if rng.random() < 0.3:  # perhaps it was evicted, and comes back
        return steps.Receive(NIM.decode(wire(f"b{rng.randint(0, number)}")))
    causes = [f"b{number - rng.randint(1, 4)}"] if rng.random() < 0.5 else []
    return steps.Receive(NIM.decode(wire(f"b{number}", *causes)))


def look(observer: Log, past: list[ChannelData], at: int) -> int:
    """After which step the channel on disk is; it is a whole one, and not an earlier one than before."""
    data = bare(observer.kept_channel("alice", ROOM))
    found = [number for number, state in enumerate(past) if state == data and number >= at]
    assert found, f"no step left it so: {[one.message_id for one in data.history]}, lamport={data.meta.lamport}"
    return found[0]


def test_steps_under_way_are_never_kept_with_a_hole(tmp_path):
    """While groups are refused in between: no history id is lost, and no snapshot is ahead of its history."""
    refusals = [converse_blindly(tmp_path / str(seed), seed, queue_max=1_000)[0] for seed in range(3)]
    assert sum(refusals) > 5


def test_steps_that_find_no_room_are_never_kept_with_a_hole(tmp_path):
    """A step that is refused at once, behind others that are under way, is not overtaken by later ones."""
    refused = [converse_blindly(tmp_path / str(seed), seed, queue_max=3)[1] for seed in range(3)]
    assert sum(refused) > 5


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_seeds_of_steps_under_way(tmp_path):
    """The same, for longer."""
    for seed in range(300):
        converse_blindly(tmp_path / str(seed), seed, queue_max=(1_000, 3, 6)[seed % 3])


def test_a_step_that_finds_no_room_is_not_overtaken(tmp_path):
    """One is under way, a larger one is refused, a small one would fit: it is not kept before the larger one."""
    clock = ManualClock()
    settings = Settings.from_mapping(
        {"journal": {"queue_records_max": 3}, "segments": {"seal_on_close": False}, "channels": CHANNELS}
    )

    async def talk(log: Log) -> None:  # on a loop nobody waits for room
        alice = log.channels("alice")
        await alice.ensure_channel_async(ROOM)
        room = alice.channel(ROOM)
        for number in (3, 2, 1):
            await alice.unwrap_received_message_async(wire(f"b{number}", f"b{number - 1}"))
        with stalled(log.topic("_channels")):
            room.take(steps.Send(b"content", "under way"))
            expected = memory(alice)
            room.take(steps.Receive(NIM.decode(wire("b0"))))
            room.take(steps.Send(b"content", "small"))
            assert not room.persistence.ok
        log.flush()
        assert bare(on_disk(log)[0]) == expected
        assert not room.persistence.ok, "what is under way says nothing about what was refused"
        assert room.persistence.pending == ("b0", "b1", "b2", "b3", "small")
        await alice.mark_dependencies_met_async([], ROOM)
        assert room.persistence.ok
        assert bare(on_disk(log)[0]) == memory(alice)

    with holdfast.open(tmp_path / "log", settings=settings, clock=clock) as log:
        asyncio.run(talk(log))


class Deferred(Persistence):
    """Answers on request: the least that a backend that answers later has to do."""

    blocks = False

    def __init__(self) -> None:
        self.handed_over: list[tuple[Answer, ChannelMeta, HistoryUpdate, bool]] = []
        self.full = False

    def load_channel(self, channel_id: str) -> ChannelData:
        return ChannelData()

    def commit(
        self, channel_id: str, meta: ChannelMeta, update: HistoryUpdate, *, reissue: bool = False
    ) -> Commit | None:
        if self.full:
            raise Full("no room")
        self.handed_over.append((Answer(), meta, update, reissue))
        return self.handed_over[-1][0]

    def ids(self, number: int) -> list[str]:
        return [message.message_id for message in self.handed_over[number][2].append]


class Answer:
    """A commit whose outcome is set by hand."""

    def __init__(self) -> None:
        self.done = False
        self.error: HoldfastError | None = None

    def give(self, error: HoldfastError | None = None) -> None:
        self.done, self.error = True, error

    def result(self, timeout: float | None = None) -> None:
        if not self.done:
            raise OutcomeUnknown("no answer yet")
        if self.error is not None:
            raise self.error

    def __await__(self) -> Iterator[None]:
        yield from ()
        self.result()


def test_what_says_everything_again_waits_for_what_is_under_way():
    """It could not be complete: what is under way may yet fail, and then it would be kept without that."""
    store = Deferred()
    alice = Channels("alice", store, settings=ChannelSettings(ack_timeout_ms=0))
    alice.ensure_channel(ROOM)
    alice.wrap_outgoing_message(b"x", ROOM, "under way")
    store.full = True
    alice.wrap_outgoing_message(b"x", ROOM, "refused")
    store.full = False
    alice.wrap_outgoing_message(b"x", ROOM, "behind")
    assert [store.ids(number) for number in range(len(store.handed_over))] == [["under way"]]
    store.handed_over[0][0].give(Unavailable("the disk is full"))
    alice.run_repair_sweep()
    assert store.ids(-1) == ["under way", "refused", "behind"]
    assert store.handed_over[-1][3], "and it says that it is complete"
    assert [note.message_id for note in store.handed_over[-1][2].notes] == ["under way", "refused", "behind"]
    store.handed_over[-1][0].give()
    assert alice.channel(ROOM).persistence == PersistenceState(True, None, (), None)


def test_what_is_said_again_has_the_order_of_history():
    """A message that came, went and came back meanwhile is behind those that came before its return."""
    store = Deferred()
    alice = Channels("alice", store, settings=ChannelSettings(ack_timeout_ms=0, history_max=2))
    alice.ensure_channel(ROOM)
    alice.unwrap_received_message(wire("b1"))
    store.full = True
    for message_id in ("b2", "b3"):
        alice.unwrap_received_message(wire(message_id))
    alice.wrap_outgoing_message(b"content", ROOM, "b1")
    store.full = False
    store.handed_over[0][0].give(Unavailable("the disk is full"))
    alice.run_repair_sweep()
    update = store.handed_over[-1][2]
    assert store.ids(-1) == alice.channel(ROOM).history() == ["b3", "b1"]
    assert (update.evict, update.displaced) == (("b2",), ("b1",))


def test_what_was_kept_is_not_said_again():
    """Only what was taken by a commit that succeeded is forgotten; what came meanwhile is not."""
    store = Deferred()
    alice = Channels("alice", store, settings=ChannelSettings(ack_timeout_ms=0))
    alice.ensure_channel(ROOM)
    for message_id in ("a1", "a2", "a3"):
        alice.wrap_outgoing_message(b"x", ROOM, message_id)
    assert [store.ids(number) for number in range(3)] == [["a1"], ["a2"], ["a3"]]
    store.handed_over[0][0].give()
    store.handed_over[1][0].give(Unavailable("the disk is full"))
    assert alice.channel(ROOM).persistence.pending == ("a2", "a3")
    alice.run_repair_sweep()
    assert store.ids(3) == ["a2", "a3"]
    store.handed_over[2][0].give(Unavailable("behind one that failed"))
    store.handed_over[3][0].give()
    assert alice.channel(ROOM).persistence == PersistenceState(True, None, (), None)


def test_closing_says_again_what_was_under_way_and_failed(tmp_path):
    """A commit that fails while somebody closes is tried once more, complete."""
    clock = ManualClock()
    with conversation.open_log(tmp_path / "log", clock) as log:
        disk = Refusing(log)
        alice = log.channels("alice")
        alice.ensure_channel(ROOM)
        room = alice.channel(ROOM)
        waits, flush = threading.Event(), room.flush

        def flush_and_tell() -> object:
            flight = flush()
            waits.set()
            return flight

        room.flush = flush_and_tell
        closing = threading.Thread(target=alice.close)
        with stalled(log.topic("_channels")):
            for number in range(3):
                room.take(steps.Send(b"content", f"a{number}"))
            disk.refusals = 2  # the stalled group itself, and ours
            closing.start()
            assert waits.wait(30)
        closing.join()
        assert [one.message_id for one in on_disk(log)[0].history] == ["a0", "a1", "a2"]
