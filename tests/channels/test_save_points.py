"""How often a channel is kept: the table of the reference, line by line, counted.

A commit stands for one snapshot and at most one change of history. Where ours differ from nim-sds the test says so.
"""

from __future__ import annotations

import pytest

from holdfast.channels import Channels, ChannelSettings, HistoryEntry, MemoryPersistence, SdsMessage
from holdfast.channels.keeping.persistence import Commit
from holdfast.channels.keeping.snapshot import ChannelMeta, HistoryUpdate
from holdfast.channels.wire.nim import NIM
from holdfast.errors import Full, Invalid, NotFound, Unavailable
from holdfast.testing import ManualClock

pytestmark = pytest.mark.unit

ROOM = "room"


class Counting(MemoryPersistence):
    """Remembers every call, and what each commit changed."""

    def __init__(self) -> None:
        super().__init__()
        self.updates: list[HistoryUpdate] = []

    def commit(
        self, channel_id: str, meta: ChannelMeta, update: HistoryUpdate, *, reissue: bool = False
    ) -> Commit | None:
        self.updates.append(update)
        return super().commit(channel_id, meta, update, reissue=reissue)


class Counted:
    """A participant whose calls are counted from each `calls` to the next."""

    def __init__(self, **settings: object) -> None:
        self.store = Counting()
        self.clock = ManualClock()
        self.settings = ChannelSettings(accept_unknown_channels=True, **settings)
        self.start()

    def start(self) -> None:
        self.channels = Channels("alice", self.store, settings=self.settings, clock=self.clock)
        self.calls()

    def calls(self) -> list[str]:
        """The methods that were called since, and nothing else."""
        found = [name for name, _ in self.store.calls]
        self.store.calls.clear()
        return found

    @property
    def update(self) -> tuple[list[str], list[str]]:
        """The last change of history: appended and evicted."""
        last = self.store.updates[-1]
        return [one.message_id for one in last.append], list(last.evict)

    def send(self, message_id: str = "a1") -> None:
        self.channels.wrap_outgoing_message(b"content", ROOM, message_id)

    def receive(self, message_id: str, *causes: str, requests: tuple[str, ...] = (), content: bytes = b"c") -> None:
        self.channels.unwrap_received_message(wire(message_id, *causes, requests=requests, content=content))


def wire(message_id: str, *causes: str, requests: tuple[str, ...] = (), content: bytes = b"c") -> bytes:
    named = tuple(HistoryEntry(cause, b"", "bob") for cause in causes)
    asked = tuple(HistoryEntry(one, b"", "bob") for one in requests)
    return NIM.encode(SdsMessage(message_id, ROOM, 1, content, "bob", named, b"", asked))


@pytest.fixture
def alice() -> Counted:
    """A participant in a room."""
    one = Counted()
    one.channels.ensure_channel(ROOM)
    one.calls()
    return one


# -- the first touch ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["ensure", "send", "receive", "buffer"])
def test_the_first_touch_of_a_channel_loads_it_once(operation):
    """And later ones do not."""
    alice = Counted()
    first = {
        "ensure": lambda: alice.channels.ensure_channel(ROOM),
        "send": alice.send,
        "receive": lambda: alice.receive("b1"),
        "buffer": lambda: alice.receive("b2", "b1"),
    }[operation]
    first()
    assert alice.calls() == (["load_channel"] if operation == "ensure" else ["load_channel", "commit"])
    alice.send("a2")
    alice.receive("b9")
    assert alice.calls() == ["commit", "commit"]


def test_ensuring_a_channel_writes_nothing(alice):
    """It is created with its first message."""
    alice.channels.ensure_channel(ROOM)
    assert alice.calls() == []
    alice.channels.ensure_channel("other")
    assert alice.calls() == ["load_channel"]


# -- sending --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", bytes(2**20 + 1), "text"], ids=["empty", "too large", "no bytes"])
def test_what_may_not_be_sent_costs_nothing(alice, content):
    """Not even in a channel that is loaded."""
    with pytest.raises(Invalid):
        alice.channels.wrap_outgoing_message(content, ROOM)
    assert alice.calls() == []


def test_a_sender_that_is_refused_for_lack_of_room_costs_nothing():
    """Full changes nothing, so there is nothing to keep."""
    alice = Counted(outgoing_max=1)
    alice.send("a1")
    alice.calls()
    with pytest.raises(Full):
        alice.send("a2")
    assert alice.calls() == []


def test_sending_is_one_commit_with_its_own_message(alice):
    """And with what it pushes out of history."""
    alice.send("a1")
    assert alice.calls() == ["commit"]
    assert alice.update == (["a1"], [])
    small = Counted(history_max=1)
    small.send("a1")
    small.send("a2")
    assert small.update == (["a2"], ["a1"])


def test_an_ephemeral_message_costs_nothing():
    """Neither sent nor received."""
    alice = Counted(dialect="rfc")
    alice.channels.ensure_channel(ROOM)
    alice.calls()
    data = alice.channels.wrap_ephemeral_message(b"hello", ROOM)
    alice.channels.unwrap_received_message(data)
    assert alice.calls() == []


# -- receiving ------------------------------------------------------------------------------------------------


def test_what_is_no_message_costs_nothing(alice):
    """Undecodable, absurd, or for a channel of somebody else."""
    with pytest.raises(Invalid):
        alice.channels.unwrap_received_message(b"\xff\xff")
    absurd = NIM.encode(SdsMessage("b1", ROOM, 2**62, b"c", "bob"))
    with pytest.raises(Invalid):
        alice.channels.unwrap_received_message(absurd)
    strict = Channels("alice", alice.store)
    with pytest.raises(NotFound):
        strict.unwrap_received_message(wire("b1"))
    assert alice.calls() == []


def test_a_delivered_message_is_one_commit(alice):
    """Snapshot and history together."""
    alice.receive("b1")
    assert alice.calls() == ["commit"]
    assert alice.update == (["b1"], [])


def test_a_cascade_is_one_commit(alice):
    """All that becomes ready, in the order in which it does."""
    for number in range(5, 0, -1):
        alice.receive(f"b{number}", f"b{number - 1}")
    alice.calls()
    alice.receive("b0")
    assert alice.calls() == ["commit"]
    assert alice.update == ([f"b{number}" for number in range(6)], [])


def test_a_cascade_beyond_the_limit_is_one_commit_of_the_survivors():
    """What came and went in one step is only said to be gone."""
    alice = Counted(history_max=2)
    for number in range(4, 0, -1):
        alice.receive(f"b{number}", f"b{number - 1}")
    alice.calls()
    alice.receive("b0")
    assert alice.calls() == ["commit"]
    assert alice.update == (["b3", "b4"], ["b0", "b1", "b2"])


def test_a_buffered_message_is_one_commit_without_history(alice):
    """Nothing was delivered."""
    alice.receive("b2", "b1")
    assert alice.calls() == ["commit"]
    assert alice.update == ([], [])


def test_a_duplicate_that_changes_nothing_costs_nothing(alice):
    """Ours: nim-sds writes its whole snapshot again. Delivered, sent by us, waiting, or a sync message."""
    alice.send("a1")
    alice.receive("b1")
    alice.receive("b3", "b2")
    alice.receive("sync", content=b"")
    alice.calls()
    for _ in range(50):
        alice.receive("a1")
        alice.receive("b1")
        alice.receive("b3", "b2")
        alice.receive("sync", content=b"")
    assert alice.calls() == []


def test_a_duplicate_that_settles_a_repair_is_one_commit(alice):
    """The participant that sent it again has answered for us."""
    alice.receive("b1")
    alice.receive("b2", requests=("b1",))
    assert len(alice.channels.channel(ROOM).snapshot().responses) == 1
    alice.calls()
    alice.receive("b1")
    assert alice.calls() == ["commit"]
    assert alice.update == ([], [])
    alice.receive("b1")
    assert alice.calls() == []


def test_a_duplicate_keeps_what_was_not_kept(alice):
    """As in nim-sds: the queue goes with whatever comes next."""
    alice.store.failing_ops.add("commit")
    alice.receive("b1")
    alice.store.failing_ops.clear()
    alice.calls()
    alice.receive("b1")
    assert alice.calls() == ["commit"]
    assert alice.update == (["b1"], [])
    alice.receive("b1")
    assert alice.calls() == []


# -- marking --------------------------------------------------------------------------------------------------


def test_marking_in_a_channel_that_is_not_loaded_costs_nothing(alice):
    """It is refused."""
    with pytest.raises(NotFound):
        alice.channels.mark_dependencies_met(["b1"], "another room")
    assert alice.calls() == []


def test_marking_is_one_commit_with_what_it_releases(alice):
    """And a mark that is there already costs nothing; ours: nim-sds always writes."""
    alice.receive("b3", "b1", "b2")
    alice.calls()
    alice.channels.mark_dependencies_met(["b1", "b2"], ROOM)
    assert alice.calls() == ["commit"]
    assert alice.update == (["b3"], [])
    alice.channels.mark_dependencies_met(["b1", "b2", "b3"], ROOM)
    assert alice.calls() == []


# -- sweeps ---------------------------------------------------------------------------------------------------


def test_sweeps_of_unchanged_channels_cost_nothing(alice):
    """Nobody waits too long."""
    alice.send("a1")
    alice.receive("b2", "b1")
    alice.calls()
    for _ in range(3):
        alice.channels.run_buffer_sweep()
        alice.channels.run_repair_sweep()
        alice.channels.check_unacknowledged_messages(ROOM)
    assert alice.calls() == []


def test_a_sweep_is_one_commit_for_each_channel_that_it_changes(alice):
    """Whatever the number of messages."""
    for room in ("changed", "changed too", "idle"):
        alice.channels.ensure_channel(room)
    for room in ("changed", "changed too"):
        for _ in range(3):
            alice.channels.wrap_outgoing_message(b"x", room)
    alice.calls()
    alice.clock.advance(61)
    alice.channels.run_buffer_sweep()
    assert sorted(alice.store.calls) == [("commit", "changed"), ("commit", "changed too")]


def test_a_repair_that_is_due_is_one_commit(alice):
    """It leaves the buffer."""
    alice.receive("b1")
    alice.receive("b2", requests=("b1",))
    alice.clock.advance(301)
    alice.calls()
    alice.channels.run_repair_sweep()
    assert alice.calls() == ["commit"]
    alice.channels.run_repair_sweep()
    assert alice.calls() == []


def test_a_sweep_keeps_what_was_not_kept(alice):
    """Ours: in nim-sds it would have to wait for the next message."""
    alice.store.failing_ops.add("commit")
    alice.send("a1")
    alice.store.failing_ops.clear()
    alice.calls()
    alice.channels.run_repair_sweep()
    assert alice.calls() == ["commit"]
    assert alice.update == (["a1"], [])
    alice.channels.run_repair_sweep()
    assert alice.calls() == []


def test_a_sync_is_one_commit_where_there_is_anything_to_tell(alice):
    """Ours: the clock has moved, and a clock must not go back."""
    alice.channels.run_periodic_sync()
    assert alice.calls() == []
    alice.send("a1")
    alice.calls()
    alice.channels.run_periodic_sync()
    assert alice.calls() == ["commit"]
    assert alice.update == ([], [])


# -- removing, ending, looking --------------------------------------------------------------------------------


def test_removing_is_one_drop_whether_it_is_loaded_or_not(alice):
    """Ours: nim-sds leaves the data of a channel that is not loaded where they are."""
    alice.send("a1")
    alice.calls()
    alice.channels.remove_channel(ROOM)
    assert alice.calls() == ["drop_channel"]
    alice.channels.remove_channel(ROOM)
    assert alice.calls() == ["drop_channel"]


def test_resetting_is_one_drop_for_each_channel_that_is_loaded(alice):
    """And nothing else."""
    alice.channels.ensure_channel("other")
    alice.calls()
    alice.channels.reset()
    assert alice.calls() == ["drop_channel", "drop_channel"]
    alice.channels.reset()
    assert alice.calls() == []


def test_looking_costs_nothing(alice):
    """Getters, callbacks, starting and stopping, and closing when everything is kept."""
    alice.send("a1")
    alice.calls()
    room = alice.channels.channel(ROOM)
    room.history(), room.outgoing(), room.incoming(), room.snapshot(), room.stats(), repr(room)
    assert room.persistence.ok
    alice.channels.set_callbacks()
    alice.channels.flush()
    alice.channels.close()
    assert alice.calls() == []


def test_closing_is_one_commit_for_each_channel_that_is_not_kept(alice):
    """Ours: nim-sds forgets what was pending."""
    alice.channels.ensure_channel("other")
    alice.store.failing_ops.add("commit")
    for number in range(3):
        alice.send(f"a{number}")
    alice.store.failing_ops.clear()
    alice.calls()
    alice.channels.close()
    assert alice.calls() == ["commit"]
    assert alice.update == (["a0", "a1", "a2"], [])


def test_closing_tries_once_where_nothing_can_be_kept(alice):
    """Nobody hangs on a broken disk."""
    alice.store.failing_ops.add("commit")
    alice.send("a1")
    alice.calls()
    with pytest.raises(Unavailable):
        alice.channels.close()
    assert 1 <= alice.calls().count("commit") <= 2


def test_a_retrieval_hint_is_one_call_and_no_commit(alice):
    """And one for what is not in history is none."""
    alice.send("a1")
    alice.calls()
    alice.channels.set_retrieval_hint(ROOM, "a1", b"hint")
    assert alice.calls() == ["set_retrieval_hint"]
    alice.channels.set_retrieval_hint(ROOM, "unknown", b"hint")
    assert alice.calls() == []
