"""Commit batches as a restore reads them: each entry once, whole commits, up to the first hole; damage is reported."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.crypto import digests
from holdfast.errors import Corrupt
from holdfast.model.entry import RAW, Entry, Place, header_of
from holdfast.root import tail_walk
from holdfast.root.objects.commit_batch import CommitBatch, TailEntry, TailKey
from holdfast.root.tail_walk import TailContents, walk
from holdfast.store import layout

pytestmark = pytest.mark.unit

LOG = bytes(range(16))
A, B = ("a", 0), ("b", 1)
FIRSTS = {A: 0, B: 0}
NO_LIMIT = 2**62


class Journal:
    """Makes entries as a journal would: chained in their partitions, numbered in their order."""

    def __init__(self, firsts: dict[tuple[str, int], int] = FIRSTS, seq: int = 0) -> None:
        self.ends = dict(firsts)
        self.links: dict[tuple[str, int], bytes] = {}
        self.seq, self.group = seq, 0
        self.entries: list[TailEntry] = []

    def commit(self, *parts: tuple[tuple[str, int], int], key_epoch: int = 0, schema: bytes = b"") -> list[TailEntry]:
        """One commit: so many records for each of these partitions."""
        self.group += 1
        made = [self._entry(where, count, key_epoch, schema) for where, count in parts]
        self.entries += made
        return made

    def _entry(self, where: tuple[str, int], count: int, key_epoch: int, schema: bytes) -> TailEntry:
        self.seq += 1
        link = self.links.get(where, digests.NO_LINK)
        body = b"%d" % self.seq
        draft = Entry(
            self.seq, 0, self.ends[where], count, self.group, RAW, 0, key_epoch, 5, 9, link, b"", body, schema
        )
        digest = digests.digest(header_of(Place(LOG, *where), draft), body)
        self.ends[where] += count
        self.links[where] = digest
        return TailEntry(*where, *draft[:1], *draft._replace(digest=digest)[2:])


def batch(
    entries: list[TailEntry], *, first: int | None = None, last: int | None = None, epoch: int = 1, keys: str = ""
) -> CommitBatch:
    found = tuple(TailKey(number, "s", keys, b"", b"", b"") for number in sorted({e.key_epoch for e in entries} - {0}))
    return CommitBatch(LOG, epoch, first or entries[0].seq, last or entries[-1].seq, found, entries)


def walked(batches: list[CommitBatch], settled=FIRSTS, floor: int = 0, limit: int = NO_LIMIT) -> TailContents:
    return walk(LOG, batches, settled, floor, limit)


def brought(batches: list[CommitBatch], found: TailContents, settled=FIRSTS) -> list[int]:
    """The numbers of the entries that come back."""
    return [entry.seq for entry in tail_walk.entries(batches, settled, found.last_seq, {A: 1, B: 2})]


def test_everything_is_taken_once_and_in_order():
    journal = Journal()
    one, two = journal.commit((A, 2), (B, 1)), journal.commit((A, 3))
    batches = [batch(one), batch(two)]
    found = walked(batches)
    assert (found.last_seq, found.last_group, found.records, found.cut_records) == (3, 2, 6, 0)
    assert (found.ends, found.links) == (journal.ends, journal.links)
    assert brought(batches, found) == [1, 2, 3]


def test_no_batches_end_at_the_floor():
    assert walked([], floor=7).last_seq == 7


def test_nothing_counts_beyond_the_limit_and_commits_stay_whole():
    journal = Journal()
    batches = [batch(journal.commit((A, 1)) + journal.commit((A, 1), (B, 1)) + journal.commit((B, 1)))]
    found = walked(batches, limit=2)
    assert (found.last_seq, found.records, found.cut_records) == (1, 1, 3)
    assert brought(batches, found) == [1]


def test_what_segments_hold_is_passed_over():
    journal = Journal()
    batches = [batch(journal.commit((A, 2)) + journal.commit((B, 1)) + journal.commit((A, 2)))]
    settled = {A: 2, B: 0}
    found = walked(batches, settled)
    assert (found.last_seq, found.records, found.ends) == (3, 3, {A: 4, B: 1})
    assert brought(batches, found, settled) == [2, 3]


def test_entries_that_are_settled_and_left_out_are_no_hole():
    journal = Journal()
    journal.commit((A, 2))
    rest = journal.commit((B, 1)) + journal.commit((A, 2))
    batches = [batch(rest, first=1)]
    assert walked(batches, {A: 2, B: 0}).last_seq == 3


def test_a_hole_in_a_partition_cuts_everything_behind_it():
    """Entry 2 was trimmed and its segment never arrived: neither 3 nor 4, of another partition, comes back."""
    journal = Journal()
    one = journal.commit((A, 1))
    journal.commit((A, 1))
    rest = journal.commit((A, 1), (B, 1)) + journal.commit((B, 1))
    batches = [batch(one), batch(rest, first=2)]
    found = walked(batches)
    assert (found.last_seq, found.records, found.cut_records) == (1, 1, 3)
    assert found.ends == {A: 1}
    assert brought(batches, found) == [1]


def test_a_hole_where_no_entry_is_missing_is_damage():
    """The floor says that everything up to 1 is settled, and no segment has it."""
    journal = Journal()
    journal.commit((A, 3))
    rest = journal.commit((A, 1))
    with pytest.raises(Corrupt, match="segments are missing that a floor counts on from=0") as caught:
        walked([batch(rest)], floor=1)
    assert caught.value.path == layout.batch_key(1, 2, 2)
    assert walked([batch(rest)], {A: 3, B: 0}, floor=1).last_seq == 2


def test_overlaps_that_agree_are_taken_once():
    journal = Journal()
    one, two, three = (journal.commit((A, 1)) for _ in range(3))
    batches = [batch(one + two), batch(two + three, epoch=2)]
    found = walked(batches)
    assert (found.last_seq, found.records) == (3, 3)
    assert brought(batches, found) == [1, 2, 3]


def test_overlaps_that_disagree_are_damage():
    journal, other = Journal(), Journal()
    one = journal.commit((A, 1)) + journal.commit((A, 1))
    twin = other.commit((A, 1)) + other.commit((A, 2))
    with pytest.raises(Corrupt, match="disagree about an entry seq=2") as caught:
        walked([batch(one), batch(twin, epoch=2)])
    assert caught.value.path == layout.batch_key(2, 1, 2)


def test_what_was_not_adopted_does_not_disagree_with_what_was_written_anew():
    journal, other = Journal(), Journal()
    old = journal.commit((A, 1)) + journal.commit((A, 1)) + journal.commit((A, 1))
    other.commit((A, 1))
    new = other.commit((A, 2)) + other.commit((B, 1))
    batches = [tail_walk.cut(batch(old), 1), batch(new, epoch=3)]
    found = walked(batches)
    assert (found.last_seq, found.ends) == (3, {A: 3, B: 1})
    assert brought(batches, found) == [1, 2, 3]


def test_an_entry_that_follows_another_history_is_damage():
    """The offset fits, the link does not."""
    journal, other = Journal(), Journal()
    one = journal.commit((A, 1))
    other.commit((B, 1))
    other.commit((A, 1))
    stray = other.commit((A, 1))
    with pytest.raises(Corrupt, match="does not follow the one before it"):
        walked([batch(one, last=2), batch(stray)])


def test_an_entry_that_begins_before_the_end_is_damage():
    journal, other = Journal(), Journal()
    one = journal.commit((A, 3))
    other.commit((B, 1))
    stray = other.commit((A, 1))
    with pytest.raises(Corrupt, match="does not follow the one before it"):
        walked([batch(one), batch(stray)])


@pytest.mark.parametrize(
    "change", [{"count": 2}, {"partition": 1}, {"body": b"x"}, {"time_min": 6}, {"link": bytes(16)}]
)
def test_an_entry_that_was_changed_is_damage(change):
    journal = Journal({**FIRSTS, ("a", 1): 0})
    journal.commit((A, 1))
    entries = journal.commit((A, 1))
    with pytest.raises(Corrupt, match="digest does not match"):
        walked([batch([entries[0]._replace(**change)])], {A: 1, ("a", 1): 1})


def test_an_entry_of_a_partition_that_nobody_knows_is_damage():
    with pytest.raises(Corrupt, match="that the store does not know") as caught:
        walked([batch(Journal().commit((A, 1)))], {B: 0})
    assert (caught.value.path, caught.value.topic) == (layout.batch_key(1, 1, 1), "a")


def test_another_logs_batch_is_damage():
    with pytest.raises(Corrupt, match="belongs to another log"):
        walk(bytes(16), [batch(Journal().commit((A, 1)))], FIRSTS, 0, NO_LIMIT)


def test_keys_and_schemas_are_those_of_what_counts():
    journal = Journal()
    entries = journal.commit((A, 1), key_epoch=4, schema=b"s" * 16) + journal.commit((B, 1), key_epoch=5)
    found = walked([batch(entries)], limit=1)
    assert [key.number for key in found.keys] == [4]
    assert found.schemas == {("a", b"s" * 16)}


def test_two_keys_under_one_number_are_damage():
    journal = Journal()
    one, two = journal.commit((A, 1), key_epoch=4), journal.commit((A, 1), key_epoch=4)
    with pytest.raises(Corrupt, match="disagree about a key epoch"):
        walked([batch(one, keys="k1"), batch(two, keys="k2")])


def test_a_key_of_entries_that_do_not_count_does_not_disagree():
    """The old owner's epoch 5 was cut, and the new owner gave the number anew."""
    journal, other = Journal(), Journal()
    old = journal.commit((A, 1), key_epoch=4) + journal.commit((A, 1), key_epoch=5)
    other.commit((A, 1), key_epoch=4)
    new = other.commit((A, 2), key_epoch=5)
    found = walked([tail_walk.cut(batch(old, keys="old"), 1), batch(new, epoch=3, keys="new")])
    assert [(key.number, key.key_id) for key in found.keys] == [(4, "old"), (5, "new")]


commits = st.lists(
    st.lists(st.tuples(st.sampled_from([A, B]), st.integers(1, 3)), min_size=1, max_size=3), min_size=1, max_size=10
)


@given(commits, st.data())
def test_whatever_the_batches_are_the_walk_brings_a_prefix_of_whole_commits(history, data):
    """Cut anywhere, overlapping, with settled entries left out or not: what comes back continues the segments."""
    journal = Journal()
    groups = [journal.commit(*parts) for parts in history]
    settled_upto = data.draw(st.integers(0, len(groups)), label="settled commits")
    settled = {A: 0, B: 0}
    for entry in (entry for group in groups[:settled_upto] for entry in group):
        settled[entry.topic, entry.partition] = entry.first + entry.count
    batches, start = [], 0
    while start < len(groups):
        end = data.draw(st.integers(start + 1, len(groups)), label="end of batch")
        back = data.draw(st.integers(0, start), label="begins at")
        entries = [entry for group in groups[back:end] for entry in group]
        left = [e for e in entries if e.first >= settled[e.topic, e.partition] or data.draw(st.booleans())]
        batches.append(batch(left, first=entries[0].seq, last=entries[-1].seq, epoch=len(batches) + 1))
        start = end
    batches.sort(key=lambda b: (b.first_seq, b.last_seq))
    whole = walked(batches, settled)
    assert {**settled, **whole.ends} == journal.ends
    assert whole.cut_records == 0
    limit = data.draw(st.integers(0, journal.seq), label="limit")
    found = walked(batches, settled, limit=limit)
    assert found.last_seq <= limit
    for group in groups:
        beyond = {e.seq <= found.last_seq for e in group if e.first >= settled[e.topic, e.partition]}
        assert len(beyond) < 2, "a commit was torn"
    rows = list(tail_walk.entries(batches, settled, found.last_seq, {A: 1, B: 2}))
    at = dict(settled)
    for row in rows:
        where = A if row.partition_id == 1 else B
        assert row.first == at[where]
        at[where] += row.count
    assert at == {**settled, **found.ends}
    assert found.records + found.cut_records == whole.records
