"""Steps of one channel that find the writer busy: one unit, whole or not at all, and everybody learns of his own step.

The writer is held inside of a commit while steps are taken; all of them go with the unit that waits for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import pytest

import holdfast
from holdfast import Log, OutcomeUnknown, Settings, Unavailable
from holdfast.channels import ChannelData, ChannelMeta, Channels, HistoryUpdate
from holdfast.channels.keeping.log_backend import LogPersistence
from holdfast.journal.space_access import SpaceAccess
from holdfast.testing import Fault, FaultyDisk, ManualClock
from tests.channels import conversation
from tests.channels.conversation import (
    CHANNELS,
    REMOVAL,
    ROOM,
    SCRIPT,
    bare,
    memory,
    on_disk,
    records,
    states,
    take,
    wire,
)
from tests.channels.test_failing_persistence import Refusing
from tests.harness.cuts import Cut, examine, record
from tests.stalled import stalled

pytestmark = pytest.mark.disk

STATES = states()


class Units:
    """Counts the units that are made of channels."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        change = SpaceAccess.operations

        def counted(*args, **more):
            self.made += 1
            return change(*args, **more)

        monkeypatch.setattr(SpaceAccess, "operations", counted)


@contextmanager
def room_of(path: Path, **journal: object) -> Iterator[tuple[Log, Channels]]:
    settings = Settings.from_mapping({"journal": journal, "segments": {"seal_on_close": False}, "channels": CHANNELS})
    with holdfast.open(path / "log", settings=settings) as log:
        alice = log.channels("alice")
        alice.ensure_channel(ROOM)
        alice.wrap_outgoing_message(b"first", ROOM, "a0")
        yield log, alice


async def until(count: int, alice: Channels) -> None:
    """Wait until so many steps were taken."""
    while len(alice.channel(ROOM).history()) < count:
        await asyncio.sleep(0)


def ids(log: Log) -> list[str]:
    return [one.message_id for one in log.kept_channel("alice", ROOM).history]


def happened(log: Log) -> list[bytes]:
    return [message_id for _, _, message_id, _ in records(log)]


# -- one unit -------------------------------------------------------------------------------------------------


def test_steps_of_threads_and_tasks_that_find_the_writer_busy_are_one_unit(tmp_path, monkeypatch):
    """Each returns when it is durable; on disk is what the last of them left, and each has its record."""
    with room_of(tmp_path) as (log, alice):
        units = Units(monkeypatch)
        threads = [
            threading.Thread(target=alice.wrap_outgoing_message, args=(b"x", ROOM, f"thread {number}"))
            for number in range(2)
        ]

        async def main() -> None:
            with stalled(log.topic("_channels")):
                for thread in threads:
                    thread.start()
                tasks = [
                    asyncio.ensure_future(alice.wrap_outgoing_message_async(b"x", ROOM, f"task {number}"))
                    for number in range(3)
                ]
                await until(6, alice)
                assert not any(task.done() for task in tasks)
                assert ids(log) == ["a0"]
                partition = log._journal.topics["_channels"][0]
                assert (log._journal.appended(partition), partition.durable) == (6, 1), "records that will be"
            await asyncio.gather(*tasks)

        asyncio.run(main())
        for thread in threads:
            thread.join(30)
        assert units.made == 1
        assert alice.channel(ROOM).stats().commits_total == 2
        assert bare(on_disk(log)[0]) == memory(alice)
        assert [name.decode() for name in happened(log)] == ids(log) == alice.channel(ROOM).history()
        assert alice.channel(ROOM).persistence.ok


def test_a_step_never_joins_a_unit_that_the_writer_has_begun_with(tmp_path, monkeypatch):
    """It would be lost, and said to be durable; it has a unit of its own, and so has what comes behind it."""
    with room_of(tmp_path) as (log, alice):
        units, other = Units(monkeypatch), log.topic("other")
        other.append(b"it is there")
        backend = log._journal._backend
        commit, inside, go_on = backend.commit, threading.Event(), threading.Event()

        def held() -> None:
            backend.commit = commit
            inside.set()
            assert go_on.wait(30)
            commit()

        async def main() -> None:
            backend.commit = held
            sent = [asyncio.ensure_future(alice.wrap_outgoing_message_async(b"x", ROOM, "a1"))]
            await asyncio.to_thread(inside.wait, 30)
            other.submit(b"a group that has begun to gather")
            for message_id in ("a2", "a3"):
                sent.append(asyncio.ensure_future(alice.wrap_outgoing_message_async(b"x", ROOM, message_id)))
            await until(4, alice)
            assert units.made == 1
            go_on.set()
            await sent[0]
            await asyncio.gather(*sent)

        asyncio.run(main())
        assert units.made == 2
        assert ids(log) == ["a0", "a1", "a2", "a3"]
        assert bare(on_disk(log)[0]) == memory(alice)


def test_a_lone_step_waits_for_nobody(tmp_path, monkeypatch):
    """Each is a unit of its own, handed over at once."""
    with room_of(tmp_path) as (log, alice):
        units = Units(monkeypatch)
        for number in range(1, 4):
            alice.wrap_outgoing_message(b"x", ROOM, f"a{number}")
            assert units.made == number
            assert ids(log)[-1] == f"a{number}"


def test_events_are_reported_in_order_when_their_unit_is_durable(tmp_path):
    """Not before, although memory has long gone on."""
    with room_of(tmp_path) as (log, alice):
        delivered: list[str] = []
        alice.set_callbacks(message_ready=lambda event: delivered.append(event.message_id))

        async def main() -> None:
            with stalled(log.topic("_channels")):
                tasks = [
                    asyncio.ensure_future(
                        alice.unwrap_received_message_async(wire(f"b{n}", *([f"b{n - 1}"] if n else [])))
                    )
                    for n in (2, 1, 0, 3)
                ]
                await until(5, alice)
                for _ in range(5):
                    await asyncio.sleep(0)
                alice.run_repair_sweep()  # each call delivers what is settled, and nothing else
                assert delivered == []
            await asyncio.gather(*tasks)

        asyncio.run(main())
        assert delivered == ["b0", "b1", "b2", "b3"]
        assert ids(log) == ["a0", "b0", "b1", "b2", "b3"]


def test_a_caller_that_stops_waiting_takes_nobody_along(tmp_path):
    """Its step is kept, too."""
    with room_of(tmp_path) as (log, alice):

        async def main() -> None:
            with stalled(log.topic("_channels")):
                tasks = [
                    asyncio.ensure_future(alice.wrap_outgoing_message_async(b"x", ROOM, f"a{number}"))
                    for number in range(1, 4)
                ]
                await until(4, alice)
                tasks[0].cancel()
                tasks[1].cancel()
                await asyncio.wait(tasks[:2])
                assert not tasks[2].done()
            assert await tasks[2]
            assert [task.cancelled() for task in tasks] == [True, True, False]

        asyncio.run(main())
        assert ids(log) == ["a0", "a1", "a2", "a3"]


def test_all_steps_of_a_unit_that_is_refused_are_said_again(tmp_path):
    """Operations succeed in memory; the next one keeps all of them, in order, and each happened once."""
    with room_of(tmp_path) as (log, alice):
        room = alice.channel(ROOM)

        async def main() -> None:
            disk = Refusing(log)
            with stalled(log.topic("_channels")):
                disk.refusals = 2  # the stalled group itself, and ours
                tasks = [
                    asyncio.ensure_future(alice.wrap_outgoing_message_async(b"x", ROOM, f"a{number}"))
                    for number in range(1, 4)
                ]
                await until(4, alice)
            await asyncio.gather(*tasks)
            assert not room.persistence.ok
            assert room.persistence.pending == ("a1", "a2", "a3")
            assert room.stats().commits_failed_total == 1
            assert ids(log) == ["a0"]
            await alice.wrap_outgoing_message_async(b"x", ROOM, "a4")

        asyncio.run(main())
        assert room.persistence.ok
        assert bare(on_disk(log)[0]) == memory(alice)
        assert happened(log) == [b"a0", b"a1", b"a2", b"a3", b"a4"]


def test_a_unit_that_cannot_be_made_fails_alone(tmp_path, monkeypatch):
    """The journal goes on, and so does the channel."""
    with room_of(tmp_path) as (log, alice):
        with monkeypatch.context() as broken:
            broken.setattr("holdfast.channels.keeping.log_backend.encode_meta", lambda *args, **more: 1 // 0)
            alice.wrap_outgoing_message(b"x", ROOM, "a1")
        state = alice.channel(ROOM).persistence
        assert not state.ok
        assert "could not be made" in state.error
        log.topic("other").append(b"goes on")
        alice.wrap_outgoing_message(b"x", ROOM, "a2")
        assert alice.channel(ROOM).persistence.ok
        assert bare(on_disk(log)[0]) == memory(alice)
        assert ids(log) == ["a0", "a1", "a2"]


def test_removing_while_steps_wait_drops_them_and_wakes_everybody(tmp_path):
    """And the channel begins anew."""
    with room_of(tmp_path) as (log, alice):
        handed_over = threading.Event()
        change = log._journal.spaces.change

        def changed(*args, **more):
            ticket = change(*args, **more)
            handed_over.set()
            return ticket

        log._journal.spaces.change = changed

        async def main() -> None:
            with stalled(log.topic("_channels")):
                tasks = [
                    asyncio.ensure_future(alice.wrap_outgoing_message_async(b"x", ROOM, f"a{number}"))
                    for number in range(1, 4)
                ]
                await until(4, alice)
                removing = asyncio.ensure_future(alice.remove_channel_async(ROOM))
                await asyncio.to_thread(handed_over.wait, 30)
            await asyncio.gather(*tasks, removing)

        asyncio.run(main())
        assert log.kept_channel("alice", ROOM) == ChannelData()
        alice.ensure_channel(ROOM)
        alice.wrap_outgoing_message(b"x", ROOM, "new")
        assert ids(log) == ["new"]


def test_what_is_kept_after_a_drop_does_not_go_with_what_was_before_it(tmp_path):
    """The backend keeps the order of calls, whether the drop has been waited for or not."""
    with room_of(tmp_path) as (log, _):
        backend = LogPersistence(log._journal, "bob", ack_timeout_ms=20)
        backend.load_channel(ROOM)
        with stalled(log.topic("_channels")):
            before = backend.commit(ROOM, ChannelMeta(lamport=1), HistoryUpdate())
            assert backend.commit(ROOM, ChannelMeta(lamport=2), HistoryUpdate()) is before
            again = backend.commit(ROOM, ChannelMeta(lamport=2), HistoryUpdate(), reissue=True)
            assert again is not before, "what was before it may be bound to fail"
            with pytest.raises(OutcomeUnknown):
                backend.drop_channel(ROOM)
            assert backend.commit(ROOM, ChannelMeta(lamport=3), HistoryUpdate()) is not again
        log.flush()
        assert log.kept_channel("bob", ROOM) == ChannelData(ChannelMeta(lamport=3))


def test_a_hint_is_not_overtaken_by_the_eviction_of_its_message(tmp_path):
    """Else it would stay forever: what comes behind it does not go with a unit that is before it."""
    with room_of(tmp_path) as (log, alice):
        for number in range(1, CHANNELS["history_max"]):
            alice.wrap_outgoing_message(b"x", ROOM, f"a{number}")

        async def main() -> None:
            with stalled(log.topic("_channels")):
                tasks = [asyncio.ensure_future(alice.mark_dependencies_met_async(["elsewhere"], ROOM))]
                while not alice.channel(ROOM).snapshot().met:
                    await asyncio.sleep(0)
                alice.set_retrieval_hint(ROOM, "a0", b"hint")
                tasks.append(asyncio.ensure_future(alice.wrap_outgoing_message_async(b"x", ROOM, "last")))
                while "a0" in alice.channel(ROOM).history():
                    await asyncio.sleep(0)
            await asyncio.gather(*tasks)

        asyncio.run(main())
        keys = {key for key, _, _ in log._journal.spaces.load(f"channel/alice/{ROOM}")}
        assert not [key for key in keys if key.startswith(b"r")]
        assert bare(on_disk(log)[0]) == memory(alice)


def test_what_does_not_fit_into_the_group_has_a_unit_of_its_own(tmp_path, monkeypatch):
    """The bounds of groups hold for what joins as for what comes alone."""
    with room_of(tmp_path, group_bytes_max=20_000, payload_bytes_max=20_000) as (log, alice):
        units = Units(monkeypatch)

        async def main() -> None:
            with stalled(log.topic("_channels")):
                tasks = [
                    asyncio.ensure_future(alice.wrap_outgoing_message_async(b"x" * 3_000, ROOM, f"a{number}"))
                    for number in range(1, 6)
                ]
                await until(6, alice)
            await asyncio.gather(*tasks)

        asyncio.run(main())
        assert 1 < units.made <= 5
        assert bare(on_disk(log)[0]) == memory(alice)
        assert happened(log) == [b"a0", b"a1", b"a2", b"a3", b"a4", b"a5"]


# -- exactly before or after ----------------------------------------------------------------------------------


def impatient(directory: Path, clock: ManualClock) -> Log:
    """A log whose operations do not wait: while the writer is held, one after the other joins."""
    settings = Settings.from_mapping(
        {
            "journal": {"checkpoint_bytes": "32KiB"},
            "segments": {"seal_on_close": False},
            "channels": {**CHANNELS, "ack_timeout_ms": 0},
        }
    )
    return holdfast.open(directory, settings=settings, clock=clock)


def turns(seed: int) -> list[range]:
    """The script up to the removal, cut into turns of one to six operations."""
    rng, found, at = Random(seed), [], 0
    while at < REMOVAL:
        found.append(range(at, min(REMOVAL, at + rng.randint(1, 6))))
        at = found[-1].stop
    return found


@pytest.mark.parametrize("seed", range(4))
def test_however_steps_are_gathered_the_disk_is_as_after_the_last(tmp_path, monkeypatch, seed):
    """Compared with a twin that kept every step by itself: snapshot, history in its order, and records."""
    clock = ManualClock()
    with impatient(tmp_path / "log", clock) as log:
        alice = log.channels("alice")
        units = Units(monkeypatch)
        for number, turn in enumerate(turns(seed), 1):
            with stalled(log.topic("_channels")):
                for at in turn:
                    take(alice, clock, SCRIPT[at][1])
            log.flush()
            assert on_disk(log) == STATES[turn.stop]
            assert units.made == number
            assert alice.channel(ROOM).persistence.ok


def cut_turns(root: Path, seed: int) -> list[Cut[tuple[int, int]]]:
    """Lead the conversation turn by turn; promised are the two states that it may be in."""
    between = 0, 0

    def lead(disk: FaultyDisk) -> None:
        nonlocal between
        clock = ManualClock()
        with impatient(root / "log", clock) as log:
            alice = log.channels("alice")
            for turn in turns(seed):
                between = turn.start, turn.stop
                with stalled(log.topic("_channels")):
                    for at in turn:
                        take(alice, clock, SCRIPT[at][1])
                log.flush()

    return record(root, lead, lambda: between)


@pytest.mark.crash
def test_a_power_cut_leaves_all_of_a_unit_or_nothing(tmp_path):
    """Never some of the steps that were gathered."""
    looked = {"before": 0, "after": 0}

    def look(copy: Path, between: tuple[int, int]) -> None:
        with conversation.open_log(copy / "log", ManualClock()) as log:
            kept = on_disk(log)
        before, after = (STATES[number] for number in between)
        assert kept in (before, after), f"torn: between {between}"
        looked["after" if kept == after else "before"] += 1

    examine(cut_turns(tmp_path / "disk", 1)[::3], look, tmp_path / "states", 2)
    assert min(looked.values()) > 0, looked


def test_a_disk_that_is_full_for_a_turn_is_right_after_the_next(tmp_path):
    """Whatever was gathered while nothing could be kept."""
    root = tmp_path / "disk"
    with FaultyDisk(root, record=False) as disk:
        clock = ManualClock()
        log = impatient(root / "log", clock)
        alice = log.channels("alice")
        for number, turn in enumerate(turns(2)):
            with stalled(log.topic("_channels")):
                for at in turn:
                    take(alice, clock, SCRIPT[at][1])
                if number % 2:
                    disk.arm(Fault(1, "enospc", op="write", sticky=True))
            with suppress(Unavailable):
                log.flush()
            disk.disarm()
            alice.channel(ROOM).flush()
            log.flush()
            assert on_disk(log)[0] == STATES[turn.stop][0]
        log.close()
