"""Sending and receiving: what is carried, what is kept, what is delivered once, and what time does to it."""

from __future__ import annotations

import pytest
from tests.unit.channels.network import NOW, ROOM, Machine, entry, message

from holdfast.channels.channel_events import MessageReady, MissingDependencies, PeriodicSync
from holdfast.channels.protocol.steps import Receive, SendEphemeral
from holdfast.channels.wire.message import SdsMessage
from holdfast.errors import Full, Invalid

pytestmark = pytest.mark.unit

both = pytest.mark.parametrize("dialect", ["nim", "rfc"])
SECONDS = NOW // 1000


def read_filter(machine, given):
    settings = machine.rules.settings
    return machine.rules.dialect.read_filter(given.bloom_filter, settings.bloom_capacity, settings.bloom_error_rate)


# -- sending --------------------------------------------------------------------------------------------------


@both
def test_a_sent_message_says_who_sent_what_where(dialect):
    """And it is the sender's own: in history, in the filter, waiting for an acknowledgement."""
    alice = Machine(dialect=dialect)
    sent = alice.send("m1", b"hello")
    assert (sent.message_id, sent.channel_id, sent.sender_id, sent.content) == ("m1", ROOM, "alice", b"hello")
    assert alice.state.history.ids() == ["m1"]
    assert alice.state.history.get("m1").sender_id == "alice"
    assert alice.outgoing == ["m1"]
    assert alice.state.filter.ids == ["m1"]
    assert alice.ready == [], "nobody hears of what he sent himself"


@both
def test_an_echo_is_a_duplicate_with_its_content(dialect):
    """What a broadcast brings back changes nothing."""
    alice = Machine(dialect=dialect)
    sent = alice.send("m1", b"hello")
    before = alice.state.snapshot()
    effects = alice.take(Receive(sent))
    received = effects.received
    assert (received.content, received.missing, received.channel_id) == (b"hello", (), ROOM)
    assert received.own
    assert received.duplicate
    assert not effects.changed
    assert [*effects.events, *effects.notes, *effects.appended] == []
    assert alice.state.snapshot() == before
    assert alice.outgoing == ["m1"], "nobody acknowledges his own messages"


@both
def test_a_message_carries_the_filter_of_what_was_known_before_it(dialect):
    """It names neither itself nor less than everything else."""
    alice = Machine(dialect=dialect)
    first = alice.send("m1")
    alice.receive(message("b1"))
    second = alice.send("m2")
    assert "m1" not in read_filter(alice, first)
    known = read_filter(alice, second)
    assert "m1" in known
    assert "b1" in known
    assert "m2" not in known


@both
def test_a_message_names_the_newest_ten_with_their_senders(dialect):
    """Oldest first; the default of nim-sds."""
    alice = Machine(dialect=dialect)
    for number in range(12):
        alice.receive(message(f"b{number:02}", lamport=number + 1, sender=f"bob{number}"))
    named = alice.send("m1").causal_history
    assert [one.message_id for one in named] == [f"b{number:02}" for number in range(2, 12)]
    assert [one.sender_id for one in named] == [f"bob{number}" for number in range(2, 12)]


def test_the_number_of_named_messages_can_be_the_two_that_the_specification_suggests():
    alice = Machine(causal_history_max=2)
    for name in ("m1", "m2", "m3"):
        alice.send(name)
    assert [one.message_id for one in alice.send("m4").causal_history] == ["m2", "m3"]


def test_rfc_names_the_newest_by_lamport_time_and_nim_by_delivery():
    """LIP-109 orders by (Lamport time, id); nim-sds by when a message came."""
    newest = {}
    for dialect in ("nim", "rfc"):
        alice = Machine(dialect=dialect, causal_history_max=2)
        for name, lamport in (("late", 9), ("b", 5), ("a", 5), ("early", 1)):
            alice.receive(message(name, lamport=lamport))
        newest[dialect] = [one.message_id for one in alice.send("m1").causal_history]
    assert newest == {"nim": ["a", "early"], "rfc": ["b", "late"]}


@both
def test_retrieval_hints_go_with_the_names_and_come_with_what_is_missing(dialect):
    """Ours in what we send, theirs in what we lack, and none where there is none."""
    alice = Machine(dialect=dialect)
    alice.send("m1")
    alice.send("m2")
    named = alice.send("m3", hints={"m1": b"here"}).causal_history
    assert [one.retrieval_hint for one in named] == [b"here", b""]
    assert [one.retrieval_hint for one in alice.send("m4").causal_history] == [b"here", b"", b""], "it is remembered"
    missing = alice.receive(message("b1", entry("b0", hint=b"there"), entry("bx"))).missing
    assert [(one.message_id, one.retrieval_hint) for one in missing] == [("b0", b"there"), ("bx", b"")]
    assert alice.of_kind(MissingDependencies)[-1].missing == missing


@both
@pytest.mark.parametrize("content", [b"", bytes(2**20 + 1)], ids=["empty", "a byte too long"])
def test_content_that_cannot_be_sent_is_refused_and_nothing_changed(dialect, content):
    """A refusal leaves the state as it was: clock, requests, buffers."""
    alice = Machine(dialect=dialect, repair_t_min_ms=0, repair_t_max_ms=1)
    alice.receive(message("b1", "b0"))
    alice.pass_ms(10)
    before = alice.state.snapshot()
    with pytest.raises(Invalid):
        alice.send("m1", content)
    assert alice.state.snapshot() == before
    assert alice.state.history.ids() == []


@both
def test_content_of_exactly_the_limit_is_sent(dialect):
    alice, bob = Machine(dialect=dialect), Machine("bob", dialect=dialect)
    assert len(bob.receive(alice.send("m1", bytes(2**20))).content) == 2**20


@both
def test_sending_beyond_the_bound_is_refused_until_somebody_acknowledges(dialect):
    """The sender learns of it; nothing of the refused message is kept."""
    alice = Machine(dialect=dialect, outgoing_max=2)
    alice.send("m1")
    alice.send("m2")
    before = alice.state.snapshot()
    with pytest.raises(Full) as refusal:
        alice.send("m3")
    assert "outgoing_max" in refusal.value.hint
    assert alice.state.snapshot() == before
    assert alice.state.history.ids() == ["m1", "m2"]
    alice.receive(message("b1", "m1"))
    alice.send("m3")
    assert alice.outgoing == ["m2", "m3"]


@both
def test_a_reused_id_replaces_in_place(dialect):
    """As in nim-sds: history keeps the place, and both wait for an acknowledgement."""
    alice = Machine(dialect=dialect)
    for name in ("m1", "m2"):
        alice.send(name)
    alice.send("m1", b"again")
    assert alice.state.history.ids() == ["m1", "m2"]
    assert alice.state.history.get("m1").content == b"again"
    assert alice.outgoing == ["m1", "m2", "m1"]
    alice.check()


@both
def test_an_id_that_somebody_elses_waiting_message_has_cannot_be_sent(dialect):
    """Else that message would be taken for a duplicate of ours, and its content lost."""
    alice = Machine(dialect=dialect)
    alice.receive(message("x", "missing"))
    with pytest.raises(Invalid, match="waits"):
        alice.send("x")
    alice.receive(message("missing"))
    assert alice.ready == ["missing", "x"]


@both
def test_sending_again_what_others_already_name_releases_what_waits_for_it(dialect):
    """After a loss of state others may know our message before we do."""
    alice = Machine(dialect=dialect)
    alice.receive(message("reply", entry("m1", "alice")))
    assert alice.missing == {"reply": {"m1"}}
    alice.send("m1")
    assert alice.ready == ["reply"]
    assert not alice.state.requests
    assert alice.state.history.ids() == ["m1", "reply"]
    alice.check()


# -- receiving ------------------------------------------------------------------------------------------------


@both
def test_a_message_is_delivered_once_with_content_sender_and_time(dialect):
    """Everything an application needs is in the event."""
    alice = Machine(dialect=dialect)
    for _ in range(3):
        alice.receive(message("b1", lamport=7, content=b"hello", sender="bob"))
    assert alice.of_kind(MessageReady) == [MessageReady(ROOM, "b1", "bob", b"hello", 7)]


@both
def test_the_result_tells_a_duplicate_from_a_first_receipt(dialect):
    """And who sent it; nim-sds says neither."""
    alice = Machine(dialect=dialect)
    first, second = (alice.receive(message("b1")) for _ in range(2))
    assert (first.duplicate, second.duplicate) == (False, True)
    assert (first.sender_id, first.own) == ("bob", False)


@both
def test_a_duplicate_changes_nothing(dialect):
    """Neither clock, nor filter, nor buffers; and there is nothing to keep."""
    alice = Machine(dialect=dialect)
    alice.send("m1")
    alice.receive(message("b1"))
    before, known = alice.state.snapshot(), alice.state.filter.ids
    effects = alice.take(Receive(message("b1", "m1", requests=[entry("m1", "alice")])))
    assert not effects.changed
    assert [*effects.events, *effects.notes, *effects.appended] == []
    assert (alice.state.snapshot(), alice.state.filter.ids) == (before, known)


@both
def test_a_message_of_ours_that_we_forgot_is_remembered_but_not_delivered(dialect):
    """LIP-109 ignores one's own messages; others may depend on it, so it belongs into history."""
    alice = Machine(dialect=dialect)
    alice.receive(message("reply", entry("m1", "alice"), lamport=2))
    received = alice.receive(message("m1", sender="alice"))
    assert received.own
    assert alice.ready == ["reply"]
    assert alice.state.history.ids() == ["m1", "reply"]


def test_without_a_participant_id_no_message_is_our_own():
    """Plain SDS: there is nobody to recognise."""
    nobody = Machine("")
    assert not nobody.receive(message("b1", sender="")).own
    assert nobody.ready == ["b1"]


@both
def test_history_keeps_the_newest_and_evicts_the_oldest(dialect):
    """First in, first out; what is evicted is named, to be deleted where it is kept."""
    alice = Machine(dialect=dialect, history_max=3)
    alice.send("m1")
    evicted = []
    for number in range(5):
        effects = alice.take(Receive(message(f"b{number}", lamport=100 - number)))
        assert effects.appended == [f"b{number}"]
        evicted += effects.evicted
    assert alice.state.history.ids() == ["b2", "b3", "b4"]
    assert evicted == ["m1", "b0", "b1"]
    alice.check()


@both
def test_what_has_left_history_is_not_delivered_again(dialect):
    """History let it go; its id is known, before and after a restart."""
    alice = Machine(dialect=dialect, history_max=1)
    alice.receive(message("b1"))
    alice.receive(message("b2"))
    for _ in range(2):
        effects = alice.take(Receive(message("b1")))
        assert effects.received.duplicate
        assert not effects.changed
        assert not effects.notes
        assert alice.state.history.ids() == ["b2"]
        alice.restart()
    assert alice.ready == ["b1", "b2"]


@both
def test_what_was_here_does_not_wait_and_is_not_delivered_when_what_it_names_comes(dialect):
    """Whether it comes alone or with causes that are not here: a duplicate is one before it waits."""
    alice = Machine(dialect=dialect, history_max=1)
    alice.receive(message("b1", "met"))
    alice.mark("met")
    alice.receive(message("b2"))
    assert alice.ready == ["b1", "b2"]
    for number in range(1_001):  # what was marked is forgotten by now
        alice.mark(f"other {number}")
    assert alice.receive(message("b1", "met")).duplicate
    assert not alice.state.incoming
    assert alice.receive(message("met")).missing == ()
    assert alice.ready == ["b1", "b2", "met"]


@both
def test_beyond_what_is_remembered_a_message_is_new(dialect):
    """The bound is in ids; the oldest go first."""
    alice = Machine(dialect=dialect, history_max=2, remembered_max=3)
    for number in range(5):
        alice.receive(message(f"b{number}"))
        alice.check()
    assert alice.receive(message("b2")).duplicate
    assert not alice.receive(message("b1")).duplicate
    assert alice.ready == ["b0", "b1", "b2", "b3", "b4", "b1"]


@both
def test_what_was_marked_as_met_is_not_called_a_repetition_when_it_comes(dialect):
    """It is in the filter, but was never delivered."""
    alice = Machine(dialect=dialect)
    alice.mark("b1")
    assert not alice.receive(message("b1")).duplicate
    assert "b1" not in alice.state.met


# -- sync and ephemeral messages ------------------------------------------------------------------------------


@both
def test_a_sync_message_is_no_part_of_the_conversation(dialect):
    """Neither delivered, nor in history, nor in the filter; nim-sds does all three."""
    alice, bob = Machine(dialect=dialect), Machine("bob", dialect=dialect)
    alice.send("m1")
    sync = alice.sync("s1")
    assert sync.kind == "sync"
    bob.receive(sync)
    assert bob.ready == []
    assert bob.state.history.ids() == []
    assert bob.state.filter.ids == []
    assert alice.state.history.ids() == ["m1"]
    assert alice.of_kind(PeriodicSync)[0].channel_id == ROOM


@both
def test_a_sync_message_tells_what_is_missing(dialect):
    """The last message of a conversation is asked for, too, although nothing depends on it."""
    alice, bob = Machine(dialect=dialect), Machine("bob", dialect=dialect)
    alice.send("m1")
    received = bob.receive(alice.sync("s1"))
    assert bob.of_kind(MissingDependencies)[0].missing == (entry("m1", "alice"),)
    assert set(bob.state.requests) == {"m1"}
    assert received.message_id == "s1"
    assert not bob.state.incoming


@both
def test_a_sync_message_carries_requests_even_if_others_were_just_sent(dialect):
    """A channel in which nobody has anything to say is repaired all the same."""
    alice = Machine(dialect=dialect, repair_t_min_ms=5, repair_t_max_ms=6)
    alice.receive(message("b2", "b1"))
    assert alice.sync("s0").repair_request == ()
    alice.pass_ms(5)
    assert alice.sync("s1").repair_request == (entry("b1"),)


@both
def test_sync_messages_name_what_nobody_names(dialect):
    """Of messages sent at the same time some are named by none; in turns, if they are many."""
    alice = Machine(dialect=dialect, causal_history_max=2)
    for number in range(5):
        alice.receive(message(f"loose{number}", lamport=number + 1))
    for number in range(3):
        alice.receive(message(f"chain{number}", *([f"chain{number - 1}"] if number else []), lamport=10 + number))
    named = [{one.message_id for one in alice.sync(f"s{number}").causal_history} for number in range(3)]
    assert set().union(*named) == {*(f"loose{number}" for number in range(5)), "chain2"}
    assert all(len(some) == 2 for some in named)


@both
def test_what_left_history_is_not_asked_for_because_a_sync_message_names_it(dialect):
    """It would come back, let another one leave, and so on forever."""
    alice = Machine(dialect=dialect, history_max=1)
    alice.receive(message("old"))
    alice.receive(message("new"))
    alice.receive(message("s1", "old", content=b""))
    assert not alice.state.requests
    assert alice.of_kind(MissingDependencies) == []


@both
def test_there_is_no_sync_message_when_there_is_nothing_to_tell(dialect):
    alice = Machine(dialect=dialect)
    effects = alice.sync("s1")
    assert effects is None
    assert alice.events == []
    assert alice.state.lamport == 0


@both
def test_a_message_that_names_a_sync_message_need_not_wait_for_it(dialect):
    """nim-sds puts sync messages into history and so names them as causes."""
    alice = Machine(dialect=dialect)
    alice.receive(message("s1", content=b""))
    assert alice.receive(message("b1", "s1")).missing == ()
    alice.receive(message("b2", "s2"))
    alice.receive(message("s2", content=b""))
    assert alice.ready == ["b1", "b2"]
    alice.check()


@both
def test_a_sync_message_that_was_waited_for_is_a_change_to_keep(dialect):
    """It is remembered in memory alone; what waits for less than before is kept."""
    nobody = Machine("", dialect=dialect)  # who asks for nothing, so that there is no other change
    nobody.receive(message("b1", "s1", "x"))
    assert nobody.take(Receive(message("s1", content=b""))).changed
    nobody.restart()
    assert nobody.missing == {"b1": {"x"}}


@both
def test_content_under_the_id_of_a_sync_message_is_not_lost(dialect):
    """A stranger who sends a sync message under somebody's id does not keep his content from us."""
    alice = Machine(dialect=dialect)
    alice.receive(message("b1", content=b""))
    assert not alice.receive(message("b1", content=b"real")).duplicate
    assert alice.of_kind(MessageReady)[0].content == b"real"
    assert alice.receive(message("b1", content=b"")).duplicate


@both
def test_no_more_than_a_thousand_sync_messages_are_remembered(dialect):
    """Those that came last; an older one is a new one."""
    alice = Machine(dialect=dialect)
    for number in range(1_005):
        alice.receive(message(f"s{number}", content=b""))
    assert len(alice.state.synced) == 1_000
    assert "s4" not in alice.state.synced
    assert "s5" in alice.state.synced


def test_an_ephemeral_message_is_delivered_at_once_and_leaves_nothing():
    """It has no place in any order, so it neither waits nor is waited for."""
    alice, bob = Machine(dialect="rfc"), Machine("bob", dialect="rfc")
    bob.send("b1")
    data = bob.take(SendEphemeral(b"typing", "e1")).data
    before = alice.state.snapshot()
    effects = alice.take(Receive(bob.rules.dialect.decode(data)))
    assert effects.events == [MessageReady(ROOM, "e1", "bob", b"typing", None)]
    assert not effects.changed
    assert alice.state.snapshot() == before
    assert bob.outgoing == ["b1"]
    bob.receive(bob.rules.dialect.decode(data))
    assert bob.ready == [], "our own comes back"


def test_nim_has_no_ephemeral_messages_and_says_so():
    with pytest.raises(Invalid, match="ephemeral") as refusal:
        Machine().take(SendEphemeral(b"typing", "e1"))
    assert "rfc" in refusal.value.hint


# -- Lamport time ---------------------------------------------------------------------------------------------


def test_lamport_time_of_nim_is_in_seconds_and_moves_on_every_receipt():
    """Also for a message that has to wait; not for a duplicate."""
    alice = Machine()
    assert alice.send("m1").lamport == SECONDS + 1
    assert alice.send("m2").lamport == SECONDS + 2
    alice.receive(message("b1", lamport=SECONDS + 100))
    assert alice.state.lamport == SECONDS + 101
    alice.receive(message("b2", "missing", lamport=5))
    assert alice.state.lamport == SECONDS + 102
    alice.receive(message("b1", lamport=SECONDS + 100))
    assert alice.state.lamport == SECONDS + 102


def test_lamport_time_of_rfc_is_in_milliseconds_and_is_raised_by_delivery():
    """As LIP-109 says: max(now, L + 1) when sending, max(L, theirs) when delivering."""
    alice = Machine(dialect="rfc")
    assert alice.send("m1").lamport == NOW
    assert alice.send("m2").lamport == NOW + 1
    alice.receive(message("b2", "b1", lamport=NOW + 100))
    assert alice.state.lamport == NOW + 1, "it waits"
    alice.receive(message("b1", lamport=NOW + 50))
    assert alice.state.lamport == NOW + 100
    assert alice.send("m3").lamport == NOW + 101


@both
def test_lamport_time_never_goes_back(dialect):
    """Neither with the wall clock (by less than 18 hours), nor with messages from the past, nor over a restart."""
    alice = Machine(dialect=dialect)
    times = [alice.send("m0").lamport]
    for number, jump in enumerate((-3_600_000, 0, -54_000_000, 50, 7_200_000)):
        alice.pass_ms(jump)
        alice.receive(message(f"b{number}", lamport=number))
        alice.restart()
        times.append(alice.send(f"m{number + 1}").lamport)
    assert times == sorted(set(times))


# -- restart --------------------------------------------------------------------------------------------------


@both
def test_history_has_the_same_order_after_a_restart(dialect):
    """So the next eviction and the next causal history are the same, too."""
    alice = Machine(dialect=dialect, history_max=4, causal_history_max=2)
    for name, lamport in (("z", 9), ("a", 2), ("m", 5), ("b", 1)):
        alice.receive(message(name, lamport=lamport))
    twin = Machine(dialect=dialect, history_max=4, causal_history_max=2)
    twin.state = alice.state
    order, tail = alice.state.history.ids(), [one.message_id for one in alice.state.history.tail(2)]
    alice.restart()
    assert alice.state.history.ids() == order
    assert [one.message_id for one in alice.state.history.tail(2)] == tail
    assert alice.take(Receive(message("n", lamport=3))).evicted == ["z"]


@both
def test_a_message_that_waited_over_a_restart_is_delivered_with_its_content_and_is_in_the_filter(dialect):
    """The reference implementation has neither: applications park contents, and there are no acknowledgements."""
    alice = Machine(dialect=dialect)
    alice.receive(message("b2", "b1", content=b"parked", lamport=2))
    alice.restart()
    alice.receive(message("b1"))
    assert [(event.message_id, event.content) for event in alice.of_kind(MessageReady)] == [
        ("b1", b"content"),
        ("b2", b"parked"),
    ]
    known = read_filter(alice, alice.send("m1"))
    assert "b1" in known
    assert "b2" in known


@both
def test_kept_messages_carry_no_filters(dialect):
    """They would be nineteen kilobytes each and say what somebody knew long ago."""
    alice, bob = Machine(dialect=dialect), Machine("bob", dialect=dialect)
    bob.send("b0")
    lost = bob.send("b1")
    alice.receive(bob.send("b2"))
    alice.send("m1")
    alice.receive(message("q", requests=[entry("m1", "alice")]))
    snapshot = alice.state.snapshot()
    kept = [one.message for one in (*snapshot.outgoing, *snapshot.incoming)]
    assert len(kept) == 2
    assert lost.bloom_filter
    assert not any(one.bloom_filter for one in kept)
    assert [one.data for one in snapshot.responses] == [b""], "it is in history"
    alice.check()


@both
@pytest.mark.parametrize("message_id", ["", "ünï", "\udcff\udc80", "a" * 1024, "with space/and\0nul"])
def test_any_id_that_can_be_received_goes_through_everything(dialect, message_id):
    """Received, waited for, marked, named, asked for, answered and kept."""
    alice = Machine(dialect=dialect, repair_t_min_ms=0, repair_t_max_ms=1)
    alice.receive(message("b1", entry(message_id, "zed")))
    alice.pass_ms(10)
    asked = alice.send("m1").repair_request
    assert asked == (entry(message_id, "zed"),)
    alice.restart()
    alice.receive(SdsMessage(message_id, ROOM, 1, b"content", "zed"))
    assert alice.ready == [message_id, "b1"]
    alice.receive(message("b2", requests=[entry(message_id, "zed")]))
    assert set(alice.state.responses) == {message_id}
    assert message_id in [one.message_id for one in alice.send("m2").causal_history]
    alice.check()
