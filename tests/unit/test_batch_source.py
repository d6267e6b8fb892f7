"""Commit batches that are cut from entries read ahead are those that reading each by itself would give."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.journal.state.commit_counts import CommitCounts
from holdfast.model.entry import Entry
from holdfast.shipping.lanes import batch_source as module
from holdfast.shipping.lanes.batch_source import JournalSource, first_batch
from holdfast.shipping.shipping_settings import ShippingSettings

pytestmark = pytest.mark.unit


def entries_of(groups: list[list[int]]) -> list[Entry]:
    """Commits with bodies of these sizes, all of one partition."""
    sizes = [(number, size) for number, group in enumerate(groups) for size in group]
    return [
        Entry(seq, 1, seq - 1, 1, number, 0, 0, 0, 0, 0, bytes(16), bytes(16), bytes(size))
        for seq, (number, size) in enumerate(sizes, 1)
    ]


class FakePartition:
    """A partition of which nothing is sealed or settled."""

    topic, number, settled, refusal = "t", 0, 0, None
    sealed = SimpleNamespace(sealed_offset=0)


class FakeJournal:
    """Entries in memory, cut as the journal does it; `reads` counts."""

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries
        self.reads = 0
        self.commits = CommitCounts(entries[-1].seq if entries else 0)
        self.partitions: Any = {1: FakePartition()}

    def entries_after(self, seq: int, groups_max: int, bytes_max: int) -> tuple[list[Entry], bool]:
        self.reads += 1
        left = [entry for entry in self.entries if entry.seq > seq]
        end = self._end(left, groups_max, bytes_max)
        return left[:end], end < len(left)

    @staticmethod
    def _end(left: list[Entry], groups_max: int, bytes_max: int) -> int:
        """The journal's rule, said differently: the longest run of whole commits within both limits, or one commit."""
        ends = [i + 1 for i, e in enumerate(left) if i + 1 == len(left) or left[i + 1].group_number != e.group_number]
        fitting = [end for end in ends[:groups_max] if sum(len(entry.body) for entry in left[:end]) <= bytes_max]
        return max([*fitting, *ends[:1]], default=0)


class NoKeys:
    """A journal that remembers no idempotency keys."""

    def last_id_upto(self, seq: int) -> int:
        return 0

    def rows(self, after: int, first_seq: int, last_seq: int) -> list[Any]:
        return []


def taken(journal: FakeJournal, groups_max: int, bytes_max: int) -> list[tuple[int, int, int]]:
    settings = ShippingSettings(batch_size_threshold=groups_max, batch_bytes_max=bytes_max)
    source = JournalSource(journal, settings, NoKeys())  # type: ignore[arg-type]
    source.start(0)
    batches = []
    while (batch := source.take()) is not None:
        batches.append((batch.first_seq, batch.last_seq, len(batch.entries)))
    return batches


commits = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=4), max_size=40)


@given(groups=commits, groups_max=st.integers(1, 5), bytes_max=st.integers(1, 100), ahead=st.integers(1, 200))
def test_batches_read_ahead_are_those_that_are_read_one_by_one(
    groups: list[list[int]], groups_max: int, bytes_max: int, ahead: int
) -> None:
    journal = FakeJournal(entries_of(groups))
    expected, cursor = [], 0
    while (page := journal.entries_after(cursor, groups_max, bytes_max)[0]) != []:
        expected.append((cursor + 1, page[-1].seq, len(page)))
        cursor = page[-1].seq
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_AHEAD_BYTES", ahead)
        assert taken(journal, groups_max, bytes_max) == expected


def test_many_small_batches_take_few_reads() -> None:
    journal = FakeJournal(entries_of([[10]] * 160))
    assert len(taken(journal, 1, 1)) == 160
    assert journal.reads <= 160 // 16 + 1


def test_no_part_of_a_commit_is_missing_behind_its_batch() -> None:
    """Of commits 1-3, 4-6, 7-9 and 10-12 some entries were trimmed, the last ones among them; each number is in the
    batch whose commit it belongs to, or in an earlier one.
    """
    for ahead in (1, 10_000):
        journal = FakeJournal(entries_of([[10] * 3] * 4))
        journal.entries = [entry for entry in journal.entries if entry.seq not in (3, 6, 7, 8, 10, 11, 12)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "_AHEAD_BYTES", ahead)
            patch.setattr(module, "_AHEAD_BATCHES", 1)
            settings = ShippingSettings(batch_size_threshold=1, batch_bytes_max=10)
            source = JournalSource(journal, settings, NoKeys())  # type: ignore[arg-type]
            source.start(0)
            patch.setattr(source, "unsettled", lambda: {"all that is sealed": 9})
            batches = []
            while (batch := source.take()) is not None:
                batches.append((batch.first_seq, batch.last_seq, len(batch.entries), bool(batch.needs)))
        assert batches == [(1, 3, 2, True), (4, 8, 2, True), (9, 12, 1, True)]
        assert (source.taken_upto, source.pending()) == (12, (0, 0))


def test_what_was_trimmed_as_a_whole_is_a_batch_without_entries() -> None:
    journal = FakeJournal(entries_of([[10]] * 3))
    journal.entries = []
    source = JournalSource(journal, ShippingSettings(), NoKeys())  # type: ignore[arg-type]
    source.start(1)
    assert source.take() is None
    assert source.taken_upto == 3
    source.start(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "unsettled", lambda: {"all that is sealed": 9})
        batch = source.take()
    assert batch is not None
    assert (batch.first_seq, batch.last_seq, batch.entries, batch.needs_upto) == (2, 3, [], 3)


def test_what_does_not_fill_a_batch_is_read_again_with_what_came_since() -> None:
    journal = FakeJournal(entries_of([[10]] * 5))
    source = JournalSource(journal, ShippingSettings(batch_size_threshold=4, batch_bytes_max=1_000), NoKeys())  # type: ignore[arg-type]
    source.start(0)
    first = source.take()
    journal.entries = entries_of([[10]] * 8)
    journal.commits.publish(8, 30)
    second = source.take()
    assert first is not None
    assert second is not None
    assert (first.last_seq, second.first_seq, second.last_seq) == (4, 5, 8)


def test_while_something_read_ahead_is_left_much_is_pending() -> None:
    journal = FakeJournal(entries_of([[10]] * 2))
    source = JournalSource(journal, ShippingSettings(batch_size_threshold=1), NoKeys())  # type: ignore[arg-type]
    source.start(0)
    source.take()
    assert source.pending()[0] > 1_000
    source.take()
    assert source.pending() == (0, 0)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([], (0, False)),
        ([[5, 5]], (2, True)),
        ([[4], [4], [4]], (2, True)),
        ([[4], [4]], (2, False)),
        ([[50], [1]], (1, True)),
        ([[9]], (1, False)),
    ],
)
def test_a_batch_ends_where_the_limits_say(groups: list[list[int]], expected: tuple[int, bool]) -> None:
    assert first_batch(entries_of(groups), 3, 10) == expected
