"""Repair: what is missing is asked for until it is here, and answered once, by somebody, in good time."""

from __future__ import annotations

import pytest
from tests.unit.channels.network import NOW, Machine, entry, message

from holdfast.channels.channel_events import RepairReady
from holdfast.channels.protocol.steps import Receive

pytestmark = pytest.mark.unit

both = pytest.mark.parametrize("dialect", ["nim", "rfc"])
T_MAX = {"nim": 300_000, "rfc": 120_000}
T_MIN = 30_000


def due(machine):
    """When each missing message will be asked for, from now."""
    return {message_id: request.due_ms - machine.now for message_id, request in machine.state.requests.items()}


def answers(machine):
    return [event.message_id for event in machine.of_kind(RepairReady)]


# -- asking ---------------------------------------------------------------------------------------------------


@both
def test_what_is_missing_will_be_asked_for_in_its_time(dialect):
    """Within the window, and at the time that the dialect gives to this participant and this message."""
    alice = Machine(dialect=dialect)
    alice.receive(message("b3", "b1", "b2"))
    expected = {
        name: alice.rules.dialect.request_delay_ms("alice", name, T_MIN, T_MAX[dialect]) for name in ("b1", "b2")
    }
    assert due(alice) == expected
    assert all(T_MIN <= delay < T_MAX[dialect] for delay in expected.values())


@both
def test_what_waits_here_itself_is_not_asked_for(dialect):
    """It is here; what it waits for is not."""
    alice = Machine(dialect=dialect)
    alice.receive(message("b2", "b1"))
    alice.receive(message("b3", "b2"))
    assert set(alice.state.requests) == {"b1"}


@both
def test_nobody_without_an_id_asks_or_answers(dialect):
    """Plain SDS, as an empty participant id means."""
    nobody = Machine("", dialect=dialect)
    nobody.receive(message("b1"))
    nobody.receive(message("b3", "b2", requests=[entry("b1", "bob")]))
    nobody.sweep_repairs()
    assert not nobody.state.requests
    assert not nobody.state.responses
    nobody.pass_ms(10 * T_MAX[dialect])
    sent = nobody.send("m1")
    assert (sent.sender_id, sent.repair_request) == ("", ())


@both
def test_a_message_that_comes_need_not_be_asked_for(dialect):
    alice = Machine(dialect=dialect)
    alice.receive(message("b2", "b1"))
    alice.receive(message("b1"))
    assert not alice.state.requests


@both
def test_a_message_that_is_marked_need_not_be_asked_for(dialect):
    alice = Machine(dialect=dialect)
    alice.receive(message("b3", "b1", "b2"))
    alice.mark("b1")
    assert set(alice.state.requests) == {"b2"}


@both
def test_requests_that_are_due_go_with_the_next_message(dialect):
    """None before, and none that is not due."""
    alice = Machine(dialect=dialect, repair_t_min_ms=1_000, repair_t_max_ms=1_000)
    alice.receive(message("b2", entry("b1", "bob", b"hint")))
    alice.pass_ms(999)
    assert alice.send("m1").repair_request == ()
    alice.receive(message("b4", "b3"))
    alice.pass_ms(1)
    assert alice.send("m2").repair_request == (entry("b1", "bob"),), "a hint serves nobody who asks or answers"


@both
def test_the_most_overdue_go_first_and_no_more_than_three(dialect):
    """Five are due; the others go with the message after."""
    alice = Machine(dialect=dialect, repair_t_min_ms=1_000, repair_t_max_ms=1_000)
    for number in (3, 1, 4, 0, 2):
        alice.receive(message(f"b{number}", f"x{number}", lamport=number))
        alice.pass_ms(1)
    alice.pass_ms(1_000)
    assert [one.message_id for one in alice.send("m1").repair_request] == ["x3", "x1", "x4"]
    assert [one.message_id for one in alice.send("m2").repair_request] == ["x0", "x2"]


@both
def test_a_request_is_repeated_until_the_message_is_here(dialect):
    """The reference implementation removes it when it is sent; if that message is lost nobody ever asks again."""
    alice = Machine(dialect=dialect, repair_t_min_ms=1_000, repair_t_max_ms=1_000)
    alice.receive(message("b2", "b1"))
    asked = 0
    for number in range(10):
        alice.pass_ms(500)
        asked += len(alice.send(f"m{number}").repair_request)
    assert asked == 5
    alice.receive(message("b1"))
    alice.pass_ms(1_000)
    assert alice.send("m10").repair_request == ()


@both
def test_a_request_heard_from_others_is_put_off_and_not_forgotten(dialect):
    """Somebody asked already; if nobody answers we ask, too."""
    alice = Machine(dialect=dialect, repair_t_min_ms=1_000, repair_t_max_ms=1_000)
    alice.receive(message("b2", "b1"))
    alice.pass_ms(900)
    alice.receive(message("c1", sender="carol", requests=[entry("b1")]))
    alice.pass_ms(100)
    assert alice.send("m1").repair_request == ()
    alice.pass_ms(900)
    assert alice.send("m2").repair_request == (entry("b1"),)


@both
def test_a_request_past_its_time_stays_while_somebody_waits(dialect):
    """The reference implementation drops it, and the message waits forever."""
    alice = Machine(dialect=dialect)
    alice.receive(message("b2", "b1"))
    alice.pass_ms(10 * T_MAX[dialect])
    alice.sweep_repairs()
    assert alice.send("m1").repair_request == (entry("b1"),)


@both
def test_a_request_past_its_time_goes_when_nobody_waits(dialect):
    """What only a sync message named: it was not to be had."""
    alice = Machine(dialect=dialect)
    alice.receive(message("s1", "b1", content=b""))
    last = due(alice)["b1"]
    alice.pass_ms(last + T_MAX[dialect])
    assert not alice.sweep_repairs().changed
    alice.pass_ms(1)
    assert alice.sweep_repairs().changed
    assert not alice.state.requests


@both
def test_of_too_many_requests_those_due_last_go(dialect):
    """And come back when there is room, since somebody waits for them."""
    alice = Machine(dialect=dialect, repairs_max=3)
    alice.receive(message("b1", *(f"x{number}" for number in range(6))))
    delays = {
        f"x{number}": alice.rules.dialect.request_delay_ms("alice", f"x{number}", T_MIN, T_MAX[dialect])
        for number in range(6)
    }
    first = sorted(delays, key=lambda name: (delays[name], name))
    assert set(alice.state.requests) == set(first[:3])
    alice.sweep_repairs()
    assert set(alice.state.requests) == set(first[:3]), "there is no room yet"
    alice.receive(message(first[0]))
    alice.sweep_repairs()
    assert len(alice.state.requests) == 3
    assert set(alice.state.requests) > set(first[1:3])
    alice.check()


@both
def test_what_came_and_found_no_room_is_asked_for_again(dialect):
    """Others wait for it: it must not be taken for settled because it was here for a moment."""
    alice = Machine(dialect=dialect, incoming_max=1)
    alice.receive(message("b3", entry("b2", "bob"), lamport=3))
    assert alice.receive(message("b2", "b1", lamport=2)).refused
    alice.sweep_repairs()
    assert set(alice.state.requests) == {"b1", "b2"}
    assert alice.state.requests["b2"].entry == entry("b2", "bob")
    alice.receive(message("b1", lamport=1))
    alice.receive(message("b2", "b1", lamport=2))
    assert alice.ready == ["b1", "b2", "b3"]


@both
def test_a_sweep_with_nothing_to_do_does_nothing(dialect):
    """With no requests, and with requests whose time has not come."""
    alice = Machine(dialect=dialect)
    assert not alice.sweep_repairs().changed
    alice.receive(message("b2", "b1"))
    effects = alice.sweep_repairs()
    assert not effects.changed
    assert effects.events == []


# -- answering ------------------------------------------------------------------------------------------------


@both
def test_a_request_for_what_we_have_is_answered_in_its_time(dialect):
    """With the message as it was, and once."""
    alice, bob = Machine(dialect=dialect), Machine("bob", dialect=dialect)
    original = bob.send("b1", b"hello")
    alice.receive(original)
    alice.receive(message("c1", sender="carol", requests=[entry("b1", "bob")]))
    delay = alice.rules.dialect.response_delay_ms("alice", "bob", "b1", T_MAX[dialect])
    assert alice.state.responses["b1"].due_ms == NOW + delay
    alice.pass_ms(delay - 1)
    alice.sweep_repairs()
    assert answers(alice) == []
    alice.pass_ms(1)
    alice.sweep_repairs()
    alice.sweep_repairs()
    (answer,) = alice.of_kind(RepairReady)
    assert alice.rules.dialect.decode(answer.data) == original.without_bloom()


@both
def test_a_message_that_left_history_meanwhile_is_not_answered(dialect):
    """Somebody else may have it; nothing of it was copied."""
    alice = Machine(dialect=dialect, history_max=2)
    alice.receive(message("b1"))
    alice.receive(message("q", requests=[entry("b1", "bob")]))
    alice.receive(message("b2"))
    alice.pass_ms(T_MAX[dialect])
    assert alice.sweep_repairs().changed
    assert answers(alice) == []
    assert not alice.state.responses


@both
def test_what_only_a_sync_message_named_is_not_asked_for_for_ever(dialect):
    """Five times; the next sync message names it again, if anybody still has it."""
    alice = Machine(dialect=dialect, repair_t_min_ms=1_000, repair_t_max_ms=1_000)
    alice.receive(message("s1", "b1", content=b""))
    asked = 0
    for number in range(20):
        alice.pass_ms(1_000)
        asked += len(alice.send(f"m{number}").repair_request)
    assert asked == 5
    assert not alice.state.requests
    alice.receive(message("s2", "b1", content=b""))
    assert set(alice.state.requests) == {"b1"}


@both
def test_only_answers_that_are_due_are_given(dialect):
    """The earliest first."""
    alice = Machine(dialect=dialect)
    for number in range(3):
        alice.receive(message(f"b{number}"))
    alice.receive(message("q", requests=[entry(f"b{number}", "bob") for number in range(3)]))
    times = {name: response.due_ms for name, response in alice.state.responses.items()}
    order = sorted(times, key=lambda name: (times[name], name))
    alice.now = times[order[1]]
    alice.sweep_repairs()
    assert answers(alice) == order[:2]
    assert set(alice.state.responses) == set(order[2:])


@both
def test_who_is_behind_is_answered_in_the_order_in_which_it_asks(dialect):
    """All at once: so what comes finds what it depends on, and need not wait. What was to be answered later, too."""
    alice = Machine(dialect=dialect)
    names = [f"b{number}" for number in range(20)]
    for name in names:
        alice.receive(message(name, sender="bob"))
    alice.receive(message("q", requests=[entry("b15", "bob")]))
    order = names[10:] + names[:10]
    alice.receive(message("r", requests=[entry(name, "bob") for name in order]))
    assert len({response.due_ms for name, response in alice.state.responses.items()}) == 1
    alice.now += 2_000
    alice.sweep_repairs()
    assert answers(alice) == order


@both
def test_the_sender_answers_at_once(dialect):
    alice = Machine(dialect=dialect)
    alice.send("m1")
    alice.receive(message("b1", requests=[entry("m1", "alice")]))
    alice.sweep_repairs()
    assert answers(alice) == ["m1"]


@both
@pytest.mark.parametrize("asked", [entry("unknown", "bob"), entry("b1", "")], ids=["not here", "no sender"])
def test_what_cannot_be_answered_is_ignored(dialect, asked):
    alice = Machine(dialect=dialect)
    alice.receive(message("b1"))
    alice.receive(message("q", requests=[asked]))
    assert not alice.state.responses


@both
def test_a_repeated_request_does_not_put_the_answer_off(dialect):
    """The reference implementation begins anew each time, so that many requests are never answered."""
    alice = Machine(dialect=dialect)
    alice.receive(message("b1"))
    alice.receive(message("q0", requests=[entry("b1", "bob")]))
    first = alice.state.responses["b1"].due_ms
    for number in range(1, 5):
        alice.pass_ms(100)
        alice.receive(message(f"q{number}", requests=[entry("b1", "bob")]))
    assert alice.state.responses["b1"].due_ms == first


@both
def test_an_answer_that_somebody_else_gave_is_not_given_again(dialect):
    """Also when what came is a duplicate for us; and that is a change, to be kept."""
    alice = Machine(dialect=dialect)
    alice.receive(message("b1"))
    alice.receive(message("q", requests=[entry("b1", "bob")]))
    effects = alice.take(Receive(message("b1")))
    assert effects.received.duplicate
    assert effects.changed
    alice.pass_ms(T_MAX[dialect])
    alice.sweep_repairs()
    assert answers(alice) == []


@both
def test_only_the_group_of_a_message_answers(dialect):
    """With ten groups about a tenth of all participants; the sender always."""
    asked = entry("b1", "bob")
    answering = []
    for number in range(200):
        machine = Machine(f"p{number}", dialect=dialect, response_groups=10)
        machine.receive(message("b1"))
        machine.receive(message("q", requests=[asked]))
        answering.append("b1" in machine.state.responses)
    assert 5 <= sum(answering) <= 45
    bob = Machine("bob", dialect=dialect, response_groups=10)
    bob.send("b1")
    bob.receive(message("q", requests=[asked]))
    assert "b1" in bob.state.responses


@both
def test_of_too_many_answers_those_due_last_go(dialect):
    alice = Machine(dialect=dialect, repairs_max=3)
    for number in range(8):
        alice.receive(message(f"b{number}"))
    for number in range(8):  # one by one: who asks for many at once is in a hurry
        alice.receive(message(f"q{number}", requests=[entry(f"b{number}", "bob")]))
    delays = {
        f"b{number}": alice.rules.dialect.response_delay_ms("alice", "bob", f"b{number}", T_MAX[dialect])
        for number in range(8)
    }
    assert set(alice.state.responses) == set(sorted(delays, key=lambda name: (delays[name], name))[:3])


@both
def test_requests_of_a_duplicate_are_not_taken(dialect):
    """A storm of one message asks for nothing new."""
    alice = Machine(dialect=dialect)
    alice.receive(message("b1"))
    alice.receive(message("q"))
    assert not alice.take(Receive(message("q", requests=[entry("b1", "bob")]))).changed
    assert not alice.state.responses


# -- clocks and restarts --------------------------------------------------------------------------------------


@both
def test_times_survive_a_restart(dialect):
    """They are absolute: a restart is no reason to wait longer."""
    alice = Machine(dialect=dialect)
    alice.receive(message("b1"))
    alice.receive(message("b3", "b2", requests=[entry("b1", "bob")]))
    before = alice.state.snapshot()
    alice.pass_ms(1_000)
    alice.restart()
    assert alice.state.snapshot() == before


@both
def test_what_ran_out_during_a_pause_does_not_all_happen_at_once(dialect):
    """Else everybody who was restarted answers everything in the same moment."""
    alice = Machine(dialect=dialect)
    for number in range(20):
        alice.receive(message(f"b{number}"))
    alice.receive(message("q", requests=[entry(f"b{number}", "bob") for number in range(20)]))
    alice.pass_ms(10 * T_MAX[dialect])
    alice.restart()
    alice.sweep_repairs()
    assert answers(alice) == []
    alice.pass_ms(T_MAX[dialect])
    alice.sweep_repairs()
    assert len(answers(alice)) == 20


@both
def test_a_request_that_ran_out_during_a_pause_is_made_all_the_same(dialect):
    """The reference implementation drops it without asking."""
    alice = Machine(dialect=dialect)
    alice.receive(message("b2", "b1"))
    alice.pass_ms(10 * T_MAX[dialect])
    alice.restart()
    alice.sweep_repairs()
    alice.pass_ms(T_MAX[dialect])
    assert alice.send("m1").repair_request == (entry("b1"),)


@both
@pytest.mark.parametrize("restarted", [False, True], ids=["sweep", "restart"])
def test_the_clock_going_back_starts_the_waits_anew(dialect, restarted):
    """Neither requests nor answers wait until it has caught up."""
    alice = Machine(dialect=dialect)
    alice.pass_ms(1_000 * T_MAX[dialect])
    alice.receive(message("b1"))
    alice.receive(message("b3", "b2", requests=[entry("b1", "bob")]))
    alice.now = NOW
    if restarted:
        alice.restart()
    else:
        assert alice.sweep_repairs().changed
    assert not alice.sweep_repairs().changed
    alice.pass_ms(T_MAX[dialect])
    alice.sweep_repairs()
    assert answers(alice) == ["b1"]
    assert alice.send("m1").repair_request == (entry("b2"),)


@both
def test_the_clock_going_forward_makes_waits_end_once(dialect):
    """Everything is due; nothing is lost or repeated."""
    alice = Machine(dialect=dialect)
    alice.receive(message("b1"))
    alice.receive(message("b3", "b2", requests=[entry("b1", "bob")]))
    alice.pass_ms(10**12)
    for _ in range(3):
        alice.sweep_repairs()
    assert answers(alice) == ["b1"]
    assert alice.send("m1").repair_request == (entry("b2"),)
    assert alice.send("m2").repair_request == ()


# -- several participants -------------------------------------------------------------------------------------


class Room:
    """Participants who hear everything, but for what is lost on the way to some of them."""

    def __init__(self, *names, dialect="nim", **settings):
        self.members = {name: Machine(name, dialect, **settings) for name in names}
        self.wire = []

    def say(self, name, message_id, lost_to=()):
        self.spread(self.members[name].send(message_id), lost_to)

    def spread(self, given, lost_to=()):
        self.wire.append(given.message_id)
        for name, member in self.members.items():
            if name not in lost_to:
                member.receive(given)

    def pass_ms(self, passed):
        """Let time pass; each answer is heard before the next one looks."""
        for member in self.members.values():
            member.pass_ms(passed)
        for member in self.members.values():
            for event in member.sweep_repairs().events:
                self.spread(member.rules.dialect.decode(event.data))

    def history(self):
        return {name: set(member.state.history.ids()) for name, member in self.members.items()}


@both
def test_a_single_gap_is_repaired(dialect):
    """Bob misses a message, asks for it with his next one, and gets it."""
    room = Room("alice", "bob", dialect=dialect, repair_t_min_ms=1_000, repair_t_max_ms=2_000)
    room.say("alice", "m1", lost_to={"bob"})
    room.say("alice", "m2")
    assert room.members["bob"].ready == []
    room.pass_ms(2_000)
    room.say("bob", "b1")
    room.pass_ms(2_000)
    assert room.members["bob"].ready == ["m1", "m2"]
    assert room.wire.count("m1") == 2


@both
def test_one_answer_is_enough(dialect):
    """The others hear it and keep quiet."""
    room = Room("alice", "bob", "carol", "dave", dialect=dialect, repair_t_min_ms=1_000, repair_t_max_ms=2_000)
    room.say("alice", "m1", lost_to={"bob"})
    room.say("alice", "m2")
    room.pass_ms(2_000)
    room.say("bob", "b1")
    assert all(room.members[name].state.responses for name in ("alice", "carol", "dave"))
    room.pass_ms(2_000)
    assert room.wire.count("m1") == 2
    assert not any(member.state.responses for member in room.members.values())


@both
def test_one_question_is_enough(dialect):
    """Those who miss the same hear that it was asked for."""
    room = Room("alice", "bob", "carol", dialect=dialect, repair_t_min_ms=1_000, repair_t_max_ms=1_000)
    room.say("alice", "m1", lost_to={"bob", "carol"})
    room.say("alice", "m2")
    for member in room.members.values():
        member.pass_ms(1_000)
    room.say("bob", "b1")
    assert room.members["carol"].send("c1").repair_request == ()
    room.pass_ms(1_000)
    assert room.members["carol"].ready == ["b1", "m1", "m2"]


@both
def test_several_gaps_are_repaired_in_batches(dialect):
    """Five missing, at most three asked for at once, all here in the end and in order."""
    room = Room("alice", "bob", dialect=dialect, repair_t_min_ms=1_000, repair_t_max_ms=2_000)
    for number in range(5):
        room.say("alice", f"m{number}", lost_to={"bob"})
    room.say("alice", "m5")
    for number in range(3):
        room.pass_ms(2_000)
        room.say("bob", f"b{number}")
    room.pass_ms(2_000)
    assert room.members["bob"].ready == [f"m{number}" for number in range(6)]
    assert len(set(map(frozenset, room.history().values()))) == 1


@both
def test_what_the_application_fetched_elsewhere_is_not_repaired(dialect):
    room = Room("alice", "bob", dialect=dialect, repair_t_min_ms=1_000, repair_t_max_ms=2_000)
    room.say("alice", "m1", lost_to={"bob"})
    room.say("alice", "m2")
    room.members["bob"].mark("m1")
    assert room.members["bob"].ready == ["m2"]
    room.pass_ms(2_000)
    room.say("bob", "b1")
    room.pass_ms(2_000)
    assert room.wire.count("m1") == 1


@both
def test_a_lost_request_and_a_lost_answer_are_made_good(dialect):
    """Everything may be lost once; the gap closes all the same."""
    room = Room("alice", "bob", dialect=dialect, repair_t_min_ms=1_000, repair_t_max_ms=2_000)
    room.say("alice", "m1", lost_to={"bob"})
    room.say("alice", "m2")
    room.pass_ms(2_000)
    room.say("bob", "b1", lost_to={"alice"})
    room.pass_ms(2_000)
    assert "m1" in room.members["bob"].state.requests
    room.members["bob"].pass_ms(2_000)
    room.say("bob", "b2")
    alice = room.members["alice"]
    alice.pass_ms(2_000)
    alice.sweep_repairs()  # nobody hears the answer
    room.pass_ms(2_000)
    room.say("bob", "b3")
    room.pass_ms(2_000)
    assert room.members["bob"].ready == ["m1", "m2"]
