"""The queue of what is not known to be kept: the latest word counts, nothing taken is forgotten before its time."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.sampling import examples
from tests.unit.channels.network import message

from holdfast.channels.keeping.pending_history import PendingHistory
from holdfast.channels.keeping.snapshot import Note
from holdfast.channels.protocol.state import MessageHistory

pytestmark = pytest.mark.unit


def history_of(*message_ids, limit=100):
    history = MessageHistory(limit, is_sorted=False)
    for message_id in message_ids:
        history.add(message(message_id))
    return history


def note(number):
    return Note("sent", f"m{number}", "alice", number, number)


def shown(update):
    return [one.message_id for one in update.append], list(update.evict)


def test_an_empty_queue_is_nothing_to_keep():
    pending = PendingHistory(10)
    assert not pending
    assert pending.ids() == ()


def test_the_latest_word_about_an_id_counts():
    """In both directions, and no id is in both lists."""
    pending = PendingHistory(10)
    pending.add(["a", "b"], [], [])
    pending.add([], ["a"], [])
    pending.add(["c"], ["b"], [])
    pending.add(["b"], [], [])
    _, update = pending.take(history_of("b", "c"))
    assert shown(update) == (["c", "b"], ["a"])


def test_an_id_queued_again_keeps_its_place():
    pending = PendingHistory(10)
    pending.add(["a", "b"], [], [])
    pending.add(["a"], [], [])
    assert shown(pending.take(history_of("a", "b"))[1]) == (["a", "b"], [])


def test_what_comes_and_goes_in_one_step_only_goes():
    """A cascade longer than history: the survivors, and ids that were never kept."""
    pending = PendingHistory(10)
    pending.add(["a", "b", "c"], ["a", "b"], [])
    assert shown(pending.take(history_of("c"))[1]) == (["c"], ["a", "b"])


def test_only_what_was_taken_is_forgotten_when_it_is_kept():
    """The reference implementation clears the whole queue, and loses what came meanwhile."""
    pending = PendingHistory(10)
    history = history_of("a", "b")
    pending.add(["a"], [], [])
    batch, _ = pending.take(history)
    pending.add(["b"], [], [])
    pending.kept(batch)
    assert pending.ids() == ("b",)
    assert shown(pending.take(history)[1]) == (["b"], [])


def test_what_is_under_way_is_not_known_to_be_kept():
    pending = PendingHistory(10)
    pending.add(["a"], ["x"], [])
    batch, _ = pending.take(history_of("a"))
    assert not pending
    assert pending.ids() == ("a", "x")
    pending.kept(batch)
    assert pending.ids() == ()


def test_what_failed_comes_back_in_order_below_what_came_since():
    """And a later word about an id still counts."""
    pending = PendingHistory(10)
    history = history_of("a", "b", "c")
    pending.add(["a"], ["x"], [note(1)])
    first, _ = pending.take(history)
    pending.add(["b", "x"], [], [note(2)])
    second, _ = pending.take(history)
    pending.add(["c"], ["a"], [note(3)])
    pending.failed([first, second])
    _, update = pending.take(history_of("b", "c", "x"))
    assert shown(update) == (["b", "x", "c"], ["a"])
    assert [one.message_id for one in update.notes] == ["m1", "m2", "m3"]


def test_of_too_many_notes_the_oldest_go_and_are_counted():
    """They are for onlookers; history is never dropped."""
    pending = PendingHistory(3)
    history = history_of("a", "b")
    pending.add(["a"], [], [note(number) for number in range(3)])
    batch, _ = pending.take(history)
    pending.add(["b"], [], [note(3), note(4)])
    pending.failed([batch])
    _, update = pending.take(history)
    assert [one.message_id for one in update.notes] == ["m2", "m3", "m4"]
    assert pending.notes_dropped == 2
    assert shown(update) == (["a", "b"], [])


def test_a_channel_that_is_gone_has_nothing_pending():
    pending = PendingHistory(10)
    pending.add(["a"], [], [])
    pending.take(history_of("a"))
    pending.add(["b"], [], [note(1)])
    pending.clear()
    assert not pending
    assert pending.ids() == ()


IDS = [f"m{number}" for number in range(6)]


class AgainstADisk(RuleBasedStateMachine):
    """Commits are kept in order, or all that are under way fail; whatever happens, the disk gets there."""

    def __init__(self):
        super().__init__()
        self.pending = PendingHistory(100)
        self.history = MessageHistory(3, is_sorted=False)
        self.disk = {}
        self.flights = []
        self.version = 0

    @rule(ids=st.lists(st.sampled_from(IDS), min_size=1, max_size=5))
    def step(self, ids):
        """Several messages come at once; some go again."""
        gone = []
        for message_id in ids:
            self.version += 1
            gone += self.history.add(message(message_id, lamport=self.version))
        stayed = [message_id for message_id in gone if message_id not in self.history]
        self.pending.add(ids, stayed, [])

    @rule()
    def take(self):
        self.flights.append(self.pending.take(self.history))

    @precondition(lambda self: self.flights)
    @rule()
    def keep_the_oldest(self):
        batch, update = self.flights.pop(0)
        self.write(update)
        self.pending.kept(batch)

    @precondition(lambda self: self.flights)
    @rule()
    def fail_them_all(self):
        self.pending.failed([batch for batch, _ in self.flights])
        self.flights.clear()

    def write(self, update):
        assert not {one.message_id for one in update.append} & set(update.evict)
        for one in update.append:
            self.disk[one.message_id] = one
        for message_id in update.evict:
            self.disk.pop(message_id, None)

    @invariant()
    def every_pending_append_is_in_history(self):
        assert set(self.pending._appends) <= set(self.history.ids())
        assert not set(self.pending._appends) & set(self.pending._evicts)

    @invariant()
    def what_is_not_on_disk_is_pending(self):
        known = {one.message_id: one for one in self.history.messages()}
        differing = {one for one in known.keys() | self.disk.keys() if known.get(one) != self.disk.get(one)}
        assert differing <= set(self.pending.ids())

    def teardown(self):
        """It comes back: everything under way, then the rest."""
        while self.flights:
            self.keep_the_oldest()
        batch, update = self.pending.take(self.history)
        self.write(update)
        self.pending.kept(batch)
        assert self.disk == {one.message_id: one for one in self.history.messages()}
        assert self.pending.ids() == ()


AgainstADisk.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestAgainstADisk = AgainstADisk.TestCase
