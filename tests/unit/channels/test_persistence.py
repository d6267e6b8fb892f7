"""Channels over restarts and failures, on a backend in memory: the promises of nim-sds, and where ours go further."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.unit.channels.network import NOW, ROOM, entry, message

from holdfast.channels import Channels, ChannelSettings, MemoryPersistence, NoPersistence
from holdfast.channels.channel import Channel
from holdfast.channels.keeping.persistence import Persistence
from holdfast.channels.keeping.snapshot import ChannelData, ChannelMeta, RepairRequest, RepairResponse
from holdfast.channels.wire.nim import NIM
from holdfast.errors import Closed, Corrupt, Unavailable
from holdfast.testing import ManualClock
from holdfast.testing.channel_contract import PersistenceContract

pytestmark = pytest.mark.unit


class TestMemory(PersistenceContract):
    remembers = finds = True

    @pytest.fixture
    def persistence(self) -> Persistence:
        return MemoryPersistence()

    def reopen(self, persistence: Persistence) -> Persistence:
        return persistence  # it outlives its users

    @contextmanager
    def failing(self, persistence: Persistence) -> Iterator[None]:
        persistence.failing_ops.add("update_history")
        yield
        persistence.failing_ops.clear()


class TestNothing(PersistenceContract):
    keeps = False

    @pytest.fixture
    def persistence(self) -> Persistence:
        return NoPersistence()

    def reopen(self, persistence: Persistence) -> Persistence:
        return NoPersistence()


class Life:
    """A participant that is started again and again on the same disk and clock."""

    def __init__(self, participant: str = "alice", **settings: object) -> None:
        self.store = MemoryPersistence()
        self.clock = ManualClock(NOW * 1000)
        self.settings = ChannelSettings(**settings)
        self.participant = participant
        self.events: list[object] = []
        self.start()

    def start(self) -> None:
        """As after a kill: nothing is flushed."""
        self.channels = Channels(self.participant, self.store, settings=self.settings, clock=self.clock)
        self.channels.set_callbacks(
            message_ready=self.events.append, message_sent=self.events.append, repair_ready=self.events.append
        )
        self.channels.ensure_channel(ROOM)

    @property
    def room(self) -> Channel:
        return self.channels.channel(ROOM)

    @property
    def kept(self) -> ChannelData:
        return self.store.load_channel(ROOM)

    @property
    def kept_ids(self) -> list[str]:
        return [one.message_id for one in self.kept.history]

    def send(self, message_id: str) -> bytes:
        return self.channels.wrap_outgoing_message(b"content", ROOM, message_id)

    def receive(self, message_id: str, *causes: str, **more: object):
        return self.channels.unwrap_received_message(NIM.encode(message(message_id, *causes, **more)))

    def pass_ms(self, passed: int) -> None:
        self.clock.advance(passed / 1000)


def outgoing(room: Channel) -> list[str]:
    return [one.message.message_id for one in room.outgoing()]


# -- write, restart, read -------------------------------------------------------------------------------------


def test_unacknowledged_messages_survive_a_restart():
    """With when they were sent, how often, and their content."""
    alice = Life(resend_interval_ms=1_000)
    alice.send("a1")
    alice.pass_ms(1_001)
    alice.channels.run_buffer_sweep()
    before = alice.room.outgoing()
    alice.start()
    assert alice.room.outgoing() == before
    assert before[0].attempts == 1


def test_the_lamport_clock_survives_a_restart():
    """It is exactly where it was."""
    alice = Life()
    alice.send("a1")
    alice.receive("b1", lamport=NOW // 1000 + 50)
    before = alice.room.stats().lamport
    alice.start()
    assert alice.room.stats().lamport == before == NOW // 1000 + 51


def test_delivered_messages_survive_a_restart_and_fill_the_filter():
    """The filter is not kept: it is made of history."""
    alice = Life()
    for number in range(3):
        alice.receive(f"b{number}")
    alice.start()
    assert alice.room.history() == ["b0", "b1", "b2"]
    assert all(f"b{number}" in alice.room.state.filter for number in range(3))
    assert alice.receive("b1").duplicate


def test_an_acknowledgement_is_kept():
    """What was acknowledged is not sent again after a restart."""
    alice = Life()
    alice.send("a1")
    alice.send("a2")
    alice.receive("b1", "a1")
    assert [one.message.message_id for one in alice.kept.meta.outgoing] == ["a2"]
    alice.start()
    assert outgoing(alice.room) == ["a2"]


def test_removing_a_channel_drops_it_once_and_leaves_nothing():
    """One call, and no part of its state is left, in memory or kept."""
    alice = Life()
    alice.send("a1")
    alice.receive("b2", "b1")
    alice.receive("b3", requests=[entry("a1", "alice")])
    alice.channels.set_retrieval_hint(ROOM, "a1", b"hint")
    alice.store.calls.clear()
    alice.channels.remove_channel(ROOM)
    assert alice.store.calls == [("drop_channel", ROOM)]
    assert alice.kept == ChannelData()
    assert alice.channels.channels() == []


def test_without_persistence_everything_works():
    """Until the process ends."""
    alice, bob = Channels("alice"), Channels("bob")
    for one in (alice, bob):
        one.ensure_channel(ROOM)
    bob.unwrap_received_message(alice.wrap_outgoing_message(b"hello", ROOM, "a1"))
    alice.unwrap_received_message(bob.wrap_outgoing_message(b"hello", ROOM, "b1"))
    assert alice.channel(ROOM).history() == bob.channel(ROOM).history() == ["a1", "b1"]
    assert outgoing(alice.channel(ROOM)) == []
    assert alice.channel(ROOM).persistence.ok
    alice.close()


def test_the_lamport_clock_only_grows_over_a_restart():
    """Also when nobody's clock has moved; and what is sent is added to what was sent before."""
    alice = Life()
    first = NIM.decode(alice.send("a1"))
    alice.start()
    second = NIM.decode(alice.send("a2"))
    assert second.lamport == first.lamport + 1
    assert outgoing(alice.room) == ["a1", "a2"]


def test_state_survives_many_restarts():
    """Each life adds one message."""
    alice = Life()
    for number in range(4):
        alice.send(f"a{number}")
        alice.start()
        assert outgoing(alice.room) == alice.room.history() == [f"a{n}" for n in range(number + 1)]


def test_buffered_messages_survive_a_restart_with_what_they_wait_for():
    """And with their content: who receives them later gets it."""
    alice = Life()
    alice.receive("b3", "b1", "b2", content=b"the content")
    alice.receive("b1")
    before = alice.room.incoming()
    alice.start()
    assert alice.room.incoming() == before
    assert before[0].missing == ("b2",)
    alice.events.clear()
    alice.receive("b2")
    assert [(one.message_id, one.content) for one in alice.events] == [("b2", b"content"), ("b3", b"the content")]


def test_a_channel_that_was_removed_and_created_again_is_new():
    """Its clock starts from nothing."""
    alice = Life()
    alice.send("a1")
    alice.channels.remove_channel(ROOM)
    alice.channels.ensure_channel(ROOM)
    assert (alice.room.stats().lamport, alice.room.history(), alice.room.outgoing()) == (0, [], [])
    alice.start()
    assert alice.room.stats().lamport == 0


def test_requests_survive_a_restart_at_their_time():
    """T_req is a point in time, not a wait that begins anew."""
    alice = Life()
    alice.receive("b2", "b1")
    before = alice.room.snapshot().requests
    alice.pass_ms(5_000)
    alice.start()
    assert alice.room.snapshot().requests == before
    assert before[0].due_ms > NOW


def test_eviction_goes_on_after_a_restart_where_it_was():
    """With room for three: two are gone, and the next one to go is the oldest that is left."""
    alice = Life(history_max=3)
    for number in range(1, 6):
        alice.receive(f"m{number}")
    alice.start()
    assert alice.room.history() == alice.kept_ids == ["m3", "m4", "m5"]
    alice.receive("m6")
    assert alice.room.history() == alice.kept_ids == ["m4", "m5", "m6"]


def test_a_cascade_goes_on_over_a_restart():
    """c waits for b, b waits for a; a comes in the next life."""
    alice = Life()
    alice.receive("c", "b")
    alice.receive("b", "a")
    alice.start()
    alice.events.clear()
    alice.receive("a")
    assert [one.message_id for one in alice.events] == ["a", "b", "c"]
    assert alice.room.history() == alice.kept_ids == ["a", "b", "c"]
    assert alice.kept.meta.incoming == ()


# -- where it goes further ------------------------------------------------------------------------------------


def test_a_message_that_was_both_delivered_and_waiting_is_taken_for_delivered():
    """As a crash between the two writes of a simple backend leaves it; those that waited for it are released."""
    alice = Life()
    alice.receive("c", "b")
    alice.receive("b", "a")
    alice.store.update_history(ROOM, update_of("a", "b"))
    alice.start()
    assert alice.room.history() == ["a", "b", "c"]
    assert alice.room.incoming() == []
    assert [one.message_id for one in alice.events] == ["c"]
    alice.channels.flush()
    assert alice.kept_ids == ["a", "b", "c"]


def update_of(*message_ids: str):
    from holdfast.channels.keeping.snapshot import HistoryUpdate

    return HistoryUpdate(tuple(message(message_id) for message_id in message_ids))


def test_marks_survive_a_restart():
    """An id that was marked as met is not waited for in the next life either (1.3)."""
    alice = Life()
    alice.channels.mark_dependencies_met(["b1"], ROOM)
    alice.start()
    assert alice.receive("b2", "b1").missing == ()


def test_a_restored_message_that_is_delivered_is_in_the_filter():
    """Others see at once that we have it (1.3)."""
    alice = Life()
    alice.receive("b2", "b1")
    alice.start()
    alice.receive("b1")
    assert {"b1", "b2"} <= set(alice.room.state.filter.ids)


def test_answers_that_were_due_meanwhile_wait_anew():
    """Else every participant that was away would answer at once."""
    alice = Life()
    for number in range(20):
        alice.receive(f"b{number}")
    alice.receive("ask", requests=[entry(f"b{number}", "bob") for number in range(20)])
    assert len(alice.room.snapshot().responses) == 20
    alice.pass_ms(3_600_000)
    alice.start()
    alice.events.clear()
    alice.channels.run_repair_sweep()
    assert alice.events == []
    dues = {one.due_ms - alice.clock.now_us() // 1000 for one in alice.room.snapshot().responses}
    assert len(dues) > 10
    assert all(0 < due <= 300_000 for due in dues)


def test_requests_that_were_due_long_ago_are_made_all_the_same():
    """Nobody gives up on a message only because the process was away."""
    alice = Life()
    alice.receive("b2", "b1")
    alice.pass_ms(3_600_000)
    alice.start()
    alice.channels.run_repair_sweep()
    [request] = alice.room.snapshot().requests
    alice.pass_ms(request.due_ms - alice.clock.now_us() // 1000)
    assert [one.message_id for one in NIM.decode(alice.send("a1")).repair_request] == ["b1"]


def test_times_of_a_clock_that_was_wrong_are_not_believed():
    """A wait that would end next year begins anew."""
    alice = Life()
    ahead = NOW + 365 * 86_400_000
    meta = ChannelMeta(
        requests=(RepairRequest(entry("x"), ahead),), responses=(RepairResponse(entry("y", "bob"), ahead, b"data"),)
    )
    alice.store.save_channel_meta(ROOM, meta)
    alice.start()
    snapshot = alice.room.snapshot()
    assert all(one.due_ms <= NOW + 300_000 for one in (*snapshot.requests, *snapshot.responses))


def test_a_history_beyond_the_limit_is_trimmed_when_it_is_loaded():
    """In memory at once, on disk with the next commit."""
    alice = Life()
    for number in range(10):
        alice.receive(f"b{number}")
    alice.settings = ChannelSettings(history_max=4)
    alice.start()
    assert alice.room.history() == ["b6", "b7", "b8", "b9"]
    assert set(alice.room.persistence.pending) == {f"b{number}" for number in range(6)}
    alice.channels.run_buffer_sweep()
    assert alice.kept_ids == ["b6", "b7", "b8", "b9"]


def test_ids_that_a_backend_returns_twice_are_one_message():
    """The later one, in the place of the first; as history itself would have it."""
    alice = Life()

    class Doubling(MemoryPersistence):
        def load_channel(self, channel_id: str) -> ChannelData:
            return ChannelData(history=(message("a"), message("b"), message("a", content=b"newer")))

    alice.store = Doubling()
    alice.start()
    assert alice.room.history() == ["a", "b"]
    assert alice.room.state.history.get("a").content == b"newer"


def test_filters_that_came_from_elsewhere_are_not_kept_in_memory():
    """A snapshot of version 1 has them."""
    alice = Life()
    heavy = message("b1", bloom=bytes(1_000))
    alice.store.update_history(ROOM, update_of("b0"))
    alice.store.save_channel_meta(ROOM, ChannelMeta(incoming=()))
    alice.store._kept(ROOM).history["b1"] = heavy
    alice.start()
    assert not any(one.bloom_filter for one in alice.room.state.history.messages())


# -- failure policy -------------------------------------------------------------------------------------------


def test_a_channel_that_cannot_be_loaded_is_not_begun():
    """Every operation that needs it raises; nothing is registered, and nothing is written over what is kept."""
    alice = Life()
    alice.send("a1")
    alice.store.failing_ops.add("load_channel")
    again = Channels("alice", alice.store, settings=ChannelSettings(accept_unknown_channels=True))
    for operation in (
        lambda: again.ensure_channel(ROOM),
        lambda: again.wrap_outgoing_message(b"x", ROOM),
        lambda: again.unwrap_received_message(NIM.encode(message("b1"))),
    ):
        with pytest.raises(Unavailable, match="load_channel"):
            operation()
    assert again.channels() == []
    alice.store.failing_ops.clear()
    assert alice.kept_ids == ["a1"]
    again.ensure_channel(ROOM)
    assert again.channel(ROOM).history() == ["a1"]


@pytest.mark.parametrize("failing", ["save_channel_meta", "update_history", "commit"])
def test_a_send_that_cannot_be_kept_succeeds_in_memory(failing):
    """And the next operation keeps both."""
    alice = Life()
    alice.store.failing_ops.add(failing)
    assert NIM.decode(alice.send("a1")).message_id == "a1"
    assert alice.room.history() == outgoing(alice.room) == ["a1"]
    assert alice.kept == ChannelData()
    state = alice.room.persistence
    assert (state.ok, state.retrying_since_ms, state.pending) == (False, NOW, ("a1",))
    assert failing in state.error
    alice.store.failing_ops.clear()
    alice.send("a2")
    assert alice.kept_ids == ["a1", "a2"]
    assert alice.kept.meta == alice.room.snapshot()
    assert (alice.room.persistence.ok, alice.room.persistence.pending) == (True, ())


def test_what_could_not_be_kept_gathers_and_goes_together():
    """One, two, then none: all three are on disk, in order."""
    alice = Life()
    alice.store.failing_ops.add("update_history")
    alice.send("a1")
    assert alice.room.persistence.pending == ("a1",)
    alice.pass_ms(1_000)
    alice.send("a2")
    assert alice.room.persistence.pending == ("a1", "a2")
    assert alice.room.persistence.retrying_since_ms == NOW
    alice.store.failing_ops.clear()
    alice.send("a3")
    assert alice.room.persistence.pending == ()
    assert alice.kept_ids == ["a1", "a2", "a3"]


def test_the_latest_word_about_a_message_counts():
    """Evicted and back again while nothing could be kept: it is on disk, at its new place."""
    alice = Life(history_max=2)
    alice.receive("b1")
    alice.receive("b2")
    alice.store.failing_ops.add("update_history")
    alice.receive("b3")  # b1 goes
    alice.send("b1")  # and comes back, as one of ours; b2 goes
    alice.store.failing_ops.clear()
    alice.channels.run_buffer_sweep()
    assert alice.room.history() == alice.kept_ids == ["b3", "b1"]


def test_an_operation_that_changes_nothing_keeps_what_was_not_kept():
    """Marking an id that nobody waits for is enough."""
    alice = Life()
    alice.channels.mark_dependencies_met(["nobody's"], ROOM)
    alice.store.failing_ops.add("update_history")
    alice.send("a1")
    alice.store.failing_ops.clear()
    alice.channels.mark_dependencies_met(["nobody's"], ROOM)
    assert alice.kept_ids == ["a1"]


def test_a_channel_that_cannot_be_dropped_stays():
    """Removing and resetting raise, memory is as it was, and nothing is half gone."""
    alice = Life()
    alice.send("a1")
    alice.store.failing_ops.add("drop_channel")
    for operation in (lambda: alice.channels.remove_channel(ROOM), alice.channels.reset):
        with pytest.raises(Unavailable, match="drop_channel"):
            operation()
    assert alice.room.history() == alice.kept_ids == ["a1"]
    alice.store.failing_ops.clear()
    alice.channels.remove_channel(ROOM)
    assert alice.kept == ChannelData()


def test_a_drop_that_seemed_to_fail_and_did_not_loses_nothing():
    """The channel believes that it is still there: the next commit says everything again, in order."""

    class Liar(MemoryPersistence):
        def drop_channel(self, channel_id: str) -> None:
            super().drop_channel(channel_id)
            raise TimeoutError("no answer")

    alice = Life()
    alice.store = Liar()
    alice.start()
    alice.send("a1")
    alice.receive("b1")
    alice.receive("b3", "b2")
    with pytest.raises(Unavailable) as caught:
        alice.channels.remove_channel(ROOM)
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert not alice.kept_ids
    alice.send("a2")
    assert alice.kept_ids == alice.room.history() == ["a1", "b1", "a2"]
    assert alice.kept.meta == alice.room.snapshot()


def test_reset_tries_every_channel():
    """One that cannot be dropped does not save the others (1.3)."""
    alice = Life()
    for number in range(3):
        alice.channels.ensure_channel(f"room {number}")
        alice.channels.wrap_outgoing_message(b"x", f"room {number}")

    drop = alice.store.drop_channel

    def stubborn(channel_id: str) -> None:
        if channel_id == "room 1":
            raise OSError("no")
        drop(channel_id)

    alice.store.drop_channel = stubborn
    with pytest.raises(Unavailable):
        alice.channels.reset()
    assert alice.channels.channels() == ["room 1"]
    assert alice.store.load_channel("room 1").history
    assert not alice.store.load_channel("room 2").history


def test_recovering_empty_is_for_damage_only():
    """A disk that is away is not a damaged one."""
    alice = Life()
    alice.send("a1")
    alice.store.failing_ops.add("load_channel")
    again = Channels("alice", alice.store, recover="empty")
    with pytest.raises(Unavailable):
        again.ensure_channel(ROOM)
    alice.store.failing_ops.clear()
    assert alice.kept_ids == ["a1"]


def test_a_backends_own_failures_come_through_as_ours_with_their_cause():
    """And those of ours as they are."""
    for raised, expected in ((KeyError("x"), Unavailable), (Corrupt("damaged"), Corrupt), (Closed("over"), Closed)):

        class Failing(MemoryPersistence):
            def load_channel(self, channel_id: str, raised: Exception = raised) -> ChannelData:
                raise raised

        with pytest.raises(expected) as caught:
            Channels("alice", Failing()).ensure_channel(ROOM)
        assert caught.value is raised or caught.value.__cause__ is raised
        assert caught.value.hint or raised is caught.value


def test_closing_keeps_what_was_not_kept():
    """And says so when it cannot."""
    alice = Life()
    alice.store.failing_ops.add("commit")
    alice.send("a1")
    with pytest.raises(Unavailable, match=ROOM):
        alice.channels.close()
    assert alice.channels.closed
    alice.start()
    alice.store.failing_ops.add("commit")
    alice.send("a2")
    alice.store.failing_ops.clear()
    alice.channels.close()
    assert alice.kept_ids == ["a2"]
