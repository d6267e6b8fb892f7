"""Causal order: what depends comes after what it depends on, waits as long as it must, and never for nothing."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest
from tests.unit.channels.network import NOW, Machine, entry, message

from holdfast.channels.channel_events import DependenciesLost, MessageReady, MissingDependencies
from holdfast.channels.keeping.snapshot import BufferedMessage, ChannelData, ChannelMeta
from holdfast.channels.protocol.state import restored
from holdfast.channels.protocol.steps import Receive, Resume

pytestmark = pytest.mark.unit

both = pytest.mark.parametrize("dialect", ["nim", "rfc"])
HOUR = 3_600_000


# -- waiting and delivering -----------------------------------------------------------------------------------


@both
def test_missing_dependencies_are_reported_and_resolved(dialect):
    """The third waits for the second, the second for the first; marking the first delivers both."""
    alice = Machine(dialect=dialect)
    third = alice.receive(message("m3", "m2", lamport=3))
    second = alice.receive(message("m2", "m1", lamport=2))
    assert third.missing == (entry("m2"),)
    assert second.missing == (entry("m1"),)
    assert [event.message_id for event in alice.of_kind(MissingDependencies)] == ["m3", "m2"]
    assert alice.missing == {"m3": {"m2"}, "m2": {"m1"}}
    alice.mark("m1")
    assert alice.ready == ["m2", "m3"]
    assert not alice.state.incoming
    assert not alice.state.waiting


@both
def test_what_only_the_filter_knows_is_still_missing(dialect):
    """A filter errs: what it says about ids that never were here counts for nothing."""
    alice = Machine(dialect=dialect, bloom_capacity=1, history_max=1)
    alice.receive(message("old"))
    stranger = next(name for name in (f"x{number}" for number in range(10**6)) if name in alice.state.filter)
    assert alice.receive(message("b1", stranger)).missing == (entry(stranger),)


@both
def test_nobody_waits_for_what_has_left_history(dialect):
    """It was delivered, and is known to have been, also after a restart."""
    alice = Machine(dialect=dialect, history_max=1)
    alice.receive(message("old"))
    alice.receive(message("new"))
    assert alice.state.history.ids() == ["new"]
    assert alice.receive(message("b1", "old")).missing == ()
    alice.restart()
    assert alice.receive(message("b2", "old", "new")).missing == ()
    assert alice.ready == ["old", "new", "b1", "b2"]


@both
def test_what_a_message_releases_is_reported_after_it(dialect):
    """The reference implementation tells dependents first."""
    alice = Machine(dialect=dialect)
    for number in range(5, 1, -1):
        alice.receive(message(f"m{number}", f"m{number - 1}", lamport=number))
    effects = alice.take(Receive(message("m1")))
    assert alice.ready == ["m1", "m2", "m3", "m4", "m5"]
    assert effects.appended == ["m1", "m2", "m3", "m4", "m5"]


@both
def test_those_released_at_once_come_by_lamport_time_and_id(dialect):
    """Not by arrival and not by hash, so it is the same everywhere and every time."""
    waiting = [message(name, "root", lamport=lamport) for name, lamport in (("d", 5), ("b", 7), ("c", 5), ("a", 7))]
    orders = set()
    for arrival in permutations(waiting):
        alice = Machine(dialect=dialect)
        for one in arrival:
            alice.receive(one)
        alice.receive(message("root"))
        orders.add(tuple(alice.ready))
    assert orders == {("root", "c", "d", "a", "b")}


@both
def test_a_message_with_two_causes_waits_for_both(dialect):
    """A diamond is closed by its last edge."""
    alice = Machine(dialect=dialect)
    alice.receive(message("end", "left", "right", lamport=4))
    alice.receive(message("left", "start", lamport=2))
    alice.receive(message("right", "start", lamport=3))
    alice.receive(message("start"))
    assert alice.ready == ["start", "left", "right", "end"]
    alice.check()


@both
def test_a_cause_that_is_named_twice_is_one_cause(dialect):
    """It is reported twice, as it was named, and waited for once."""
    alice = Machine(dialect=dialect)
    assert len(alice.receive(message("b1", "x", "x")).missing) == 2
    alice.check()
    alice.receive(message("x"))
    assert alice.ready == ["x", "b1"]
    alice.check()


@both
def test_a_long_chain_is_delivered_in_one_step(dialect):
    """Neither recursion nor squares of its length; history keeps the newest."""
    alice = Machine(dialect=dialect, history_max=100, repairs_max=10)
    for number in range(2_000, 0, -1):
        alice.receive(message(f"m{number:04}", f"m{number - 1:04}", lamport=number))
    effects = alice.take(Receive(message("m0000", lamport=0)))
    assert alice.ready == [f"m{number:04}" for number in range(2_001)]
    assert len(effects.appended) == 2_001
    assert len(effects.evicted) == 1_901
    alice.check()


@both
@pytest.mark.parametrize("seed", range(5))
def test_any_arrival_gives_a_causal_order(dialect, seed):
    """A random conversation, received in a random order with repetitions."""
    random = Random(seed)
    sent = []
    for number in range(60):
        causes = random.sample([one.message_id for one in sent], min(len(sent), random.randrange(4)))
        sent.append(message(f"m{number}", *causes, lamport=number))
    arrival = [*sent, *random.choices(sent, k=40)]
    random.shuffle(arrival)
    alice = Machine(dialect=dialect)
    for one in arrival:
        alice.receive(one)
        alice.check()
    assert sorted(alice.ready) == sorted(one.message_id for one in sent)
    place = {message_id: at for at, message_id in enumerate(alice.ready)}
    assert all(place[cause.message_id] < place[one.message_id] for one in sent for cause in one.causal_history)


# -- receiving again while it waits ---------------------------------------------------------------------------


@both
def test_a_waiting_message_that_comes_again_waits_for_no_more_than_before(dialect):
    """The reference implementation overwrites what it waits for, and undoes what was marked as met."""
    alice = Machine(dialect=dialect)
    waiting = message("b3", "b1", "b2")
    alice.receive(waiting)
    alice.mark("b1")
    again = alice.receive(waiting)
    assert again.duplicate
    assert again.missing == (entry("b2"),)
    assert alice.missing == {"b3": {"b2"}}
    alice.receive(message("b2"))
    assert alice.ready == ["b2", "b3"]


@both
def test_a_waiting_message_that_comes_again_changes_nothing(dialect):
    """No clock, no filter, no new wait; it is reported again, as in nim-sds."""
    alice = Machine(dialect=dialect)
    alice.receive(message("b2", "b1"))
    before, known = alice.state.snapshot(), alice.state.filter.ids
    alice.pass_ms(1_000)
    effects = alice.take(Receive(message("b2", "b1")))
    assert not effects.changed
    assert effects.notes == []
    assert (alice.state.snapshot(), alice.state.filter.ids) == (before, known)
    assert len(alice.of_kind(MissingDependencies)) == 2


@both
@pytest.mark.parametrize("forged", [b"forged", b""], ids=["content", "sync"])
def test_a_waiting_message_is_not_replaced_by_another_with_its_id(dialect, forged):
    """The forger of an id can neither change what was said nor let it out before its time."""
    alice = Machine(dialect=dialect)
    alice.receive(message("b2", "b1", content=b"real", lamport=2))
    received = alice.receive(message("b2", content=forged, sender="mallory"))
    assert (received.content, received.missing) == (b"real", (entry("b1"),))
    assert alice.ready == []
    alice.receive(message("b1"))
    assert [(event.message_id, event.content) for event in alice.of_kind(MessageReady)][1] == ("b2", b"real")
    alice.check()


# -- marking as met -------------------------------------------------------------------------------------------


@both
def test_what_was_marked_as_met_holds_for_later_messages(dialect):
    """The reference implementation forgets it at once."""
    alice = Machine(dialect=dialect)
    alice.mark("x")
    assert alice.receive(message("b1", "x")).missing == ()
    assert alice.ready == ["b1"]


@both
def test_what_was_marked_as_met_is_kept(dialect):
    """Over a restart, too."""
    alice = Machine(dialect=dialect)
    alice.mark("x")
    alice.restart()
    assert alice.receive(message("b1", "x")).missing == ()


@both
def test_marking_what_is_known_changes_nothing(dialect):
    """There is nothing to keep."""
    alice = Machine(dialect=dialect)
    alice.receive(message("b1"))
    alice.mark("x")
    assert not alice.mark("b1", "x", "x").changed


@both
def test_no_more_than_a_thousand_marks_are_remembered(dialect):
    """The oldest go; what depends on them waits again."""
    alice = Machine(dialect=dialect)
    alice.mark(*(f"x{number}" for number in range(1_005)))
    assert len(alice.state.met) == 1_000
    assert alice.receive(message("b1", "x4")).missing
    assert not alice.receive(message("b2", "x5")).missing


@both
def test_a_marked_message_is_acknowledged_by_our_filter(dialect):
    """The application has it from elsewhere: its sender may know."""
    alice, bob = Machine(dialect=dialect), Machine("bob", dialect=dialect)
    bob.send("b1")
    alice.mark("b1")
    for name in ("m1", "m2"):
        bob.receive(alice.send(name))
    assert bob.outgoing == []


# -- what never comes -----------------------------------------------------------------------------------------


@both
def test_a_message_waits_for_ever_by_default(dialect):
    alice = Machine(dialect=dialect)
    alice.receive(message("b2", "b1"))
    alice.pass_ms(1_000 * HOUR)
    alice.sweep_buffers()
    assert alice.ready == []
    assert set(alice.state.incoming) == {"b2"}


@both
def test_what_is_lost_is_reported_and_the_rest_delivered(dialect):
    """Only after the time that was set, and not a moment earlier."""
    alice = Machine(dialect=dialect, lost_after_ms=HOUR)
    alice.receive(message("b2", entry("b1", "zed", b"hint"), lamport=2))
    alice.receive(message("b3", "b2", lamport=3))
    alice.pass_ms(HOUR)
    alice.sweep_buffers()
    assert alice.ready == []
    alice.pass_ms(1)
    alice.sweep_buffers()
    assert [(event.message_id, event.lost) for event in alice.of_kind(DependenciesLost)] == [
        ("b2", (entry("b1", "zed", b"hint"),))
    ], "b3 waited for b2, which was not lost"
    assert alice.ready == ["b2", "b3"]
    assert "b1" not in alice.state.requests
    alice.check()


@both
def test_a_lost_message_is_not_acknowledged_by_our_filter(dialect):
    """Its sender would stop sending what nobody has."""
    alice, bob = Machine(dialect=dialect, lost_after_ms=HOUR), Machine("bob", dialect=dialect)
    bob.send("b1")
    alice.receive(message("c1", entry("b1", "bob"), sender="carol"))
    alice.pass_ms(HOUR + 1)
    alice.sweep_buffers()
    assert alice.ready == ["c1"]
    for name in ("m1", "m2"):
        bob.receive(alice.send(name))
    assert bob.outgoing == ["b1"]


@both
def test_a_lost_message_that_comes_after_all_is_delivered(dialect):
    """Late is better than never; it is no repetition."""
    alice = Machine(dialect=dialect, lost_after_ms=HOUR)
    alice.receive(message("b2", "b1"))
    alice.pass_ms(HOUR + 1)
    alice.sweep_buffers()
    assert not alice.receive(message("b1")).duplicate
    assert alice.ready == ["b2", "b1"]


@both
def test_a_late_joiner_catches_up(dialect):
    """Somebody who never had the past: it is lost for him, the present is not."""
    alice = Machine(dialect=dialect, lost_after_ms=HOUR)
    for number in range(10, 20):
        alice.receive(message(f"b{number}", *(f"b{number - back}" for back in (3, 2, 1)), lamport=number))
    alice.pass_ms(HOUR + 1)
    alice.sweep_buffers()
    assert alice.ready == [f"b{number}" for number in range(10, 20)]
    assert not alice.state.incoming
    alice.check()


@both
def test_a_self_dependency_does_not_wait_for_itself(dialect):
    """The reference implementation keeps it forever."""
    alice = Machine(dialect=dialect)
    assert alice.receive(message("b1", "b1")).missing == ()
    assert alice.ready == ["b1"]


@both
@pytest.mark.parametrize("size", [2, 3])
def test_a_cycle_waits_for_ever_by_default_and_holds_up_nobody_else(dialect, size):
    """No honest sender makes one."""
    alice = Machine(dialect=dialect)
    for number in range(size):
        alice.receive(message(f"c{number}", f"c{(number + 1) % size}", lamport=number))
    alice.receive(message("b1", lamport=9))
    alice.pass_ms(1_000 * HOUR)
    alice.sweep_buffers()
    assert alice.ready == ["b1"]
    assert len(alice.state.incoming) == size
    alice.check()


@both
@pytest.mark.parametrize("size", [2, 3])
def test_a_cycle_is_broken_at_its_first_message_when_time_is_up(dialect, size):
    """And what depends on the cycle follows."""
    alice = Machine(dialect=dialect, lost_after_ms=HOUR)
    for number in range(size):
        alice.receive(message(f"c{number}", f"c{(number + 1) % size}", lamport=number))
    alice.receive(message("tail", "c0", lamport=9))
    alice.pass_ms(HOUR)
    alice.sweep_buffers()
    assert alice.ready == []
    alice.pass_ms(1)
    alice.sweep_buffers()
    # c0 waits for c1 and goes ahead; the last of the cycle waited for c0, and so backwards.
    assert alice.ready == ["c0", *(f"c{number}" for number in range(size - 1, 0, -1)), "tail"]
    assert [event.message_id for event in alice.of_kind(DependenciesLost)] == ["c0"]
    assert not alice.state.incoming
    alice.check()


@both
def test_a_cycle_that_may_still_be_released_is_not_broken(dialect):
    """It also waits for something that can come; that is lost first."""
    alice = Machine(dialect=dialect, lost_after_ms=HOUR)
    alice.receive(message("c0", "c1", lamport=1))
    alice.pass_ms(HOUR)
    alice.receive(message("c1", "c0", "x", lamport=2))
    alice.pass_ms(1)
    alice.sweep_buffers()
    assert alice.ready == [], "c1 has not waited long enough to give up x"
    alice.pass_ms(HOUR)
    alice.sweep_buffers()
    assert alice.ready == ["c0", "c1"]
    alice.check()


@both
def test_the_clock_going_back_starts_the_wait_anew(dialect):
    """Else a message that came before the clock was set right would wait for years."""
    alice = Machine(dialect=dialect, lost_after_ms=HOUR)
    alice.pass_ms(1_000 * HOUR)
    alice.receive(message("b2", "b1"))
    alice.now = NOW
    assert alice.sweep_buffers().changed
    alice.pass_ms(HOUR)
    alice.sweep_buffers()
    assert alice.ready == []
    alice.pass_ms(1)
    alice.sweep_buffers()
    assert alice.ready == ["b2"]


# -- no room --------------------------------------------------------------------------------------------------


@both
def test_a_message_that_finds_no_room_is_refused_as_if_it_had_been_lost(dialect):
    """Not kept, not in our filter, not heard by our clock; its sender does not learn that we have it."""
    alice, bob = Machine(dialect=dialect, incoming_max=2), Machine("bob", dialect=dialect)
    bob.send("b9")
    for name in ("b1", "b2"):
        alice.receive(message(name, "x"))
    lamport = alice.state.lamport
    effects = alice.take(Receive(message("b9", "x", lamport=NOW // 1000)))
    assert effects.received.refused
    assert effects.notes == []
    assert set(alice.state.incoming) == {"b1", "b2"}
    assert alice.state.lamport == lamport
    for name in ("m1", "m2"):
        bob.receive(alice.send(name))
    assert bob.outgoing == ["b9"]
    alice.check()


@both
def test_a_refused_message_is_taken_when_it_comes_again_and_there_is_room(dialect):
    alice = Machine(dialect=dialect, incoming_max=1)
    alice.receive(message("b1", "x"))
    refused = message("b2", "y", lamport=2)
    assert alice.receive(refused).refused
    alice.receive(message("x"))
    assert not alice.receive(refused).refused
    alice.receive(message("y"))
    assert alice.ready == ["x", "b1", "y", "b2"]


@both
def test_a_full_buffer_keeps_nothing_out_that_need_not_wait(dialect):
    """What everybody waits for is the one that must come in."""
    alice = Machine(dialect=dialect, incoming_max=2)
    for name in ("b1", "b2"):
        alice.receive(message(name, "x"))
    assert not alice.receive(message("x")).refused
    assert alice.ready == ["x", "b1", "b2"]


# -- after a restart ------------------------------------------------------------------------------------------


@both
def test_what_waits_for_nothing_any_more_is_delivered_after_a_restart(dialect):
    """Kept state may be older than kept history; the two are brought together."""
    machine = Machine(dialect=dialect)
    meta = ChannelMeta(
        5,
        incoming=(
            BufferedMessage(message("b3", "b2", lamport=3), ("b2",)),
            BufferedMessage(message("b2", "b1", lamport=2), ("b1", "b1", "b2")),
            BufferedMessage(message("b1"), ()),
        ),
        dialect=dialect,
    )
    machine.state = restored(machine.rules, ChannelData(meta, (message("b1"),)), NOW).state
    machine.take(Resume())
    assert machine.ready == ["b2", "b3"]
    assert machine.state.history.ids() == ["b1", "b2", "b3"]
    machine.check()
