"""What a restore takes from commit batches that overlap, end early, or lie behind a hole: one course of events each.

All three were found by the simulation as logs that came back with a tail that did not end at its head.
"""

from __future__ import annotations

from random import Random

import pytest

from holdfast.root import tail_walk
from holdfast.root.objects.commit_batch import CommitBatch, TailEntry
from tests.simulation.model_log import LOG_ID, ModelLog, end_of

pytestmark = pytest.mark.unit

ONE, OTHER = ("t", 0), ("t", 1)
IDS = {ONE: 1, OTHER: 2}


def a_log(commits: int) -> ModelLog:
    """A log with one entry per commit, in two partitions by turns."""
    log = ModelLog("a", [ONE, OTHER])
    for number in range(1, commits + 1):
        log._group += 1
        log._append(log.all_partitions[number % 2], number, 1, Random(number).randbytes(8))
    return log


def batch(log: ModelLog, epoch: int, first: int, last: int, without: tuple[int, ...] = ()) -> CommitBatch:
    """A commit batch of a log, without entries that were settled or trimmed when it was made."""
    entries = [log.entries[seq] for seq in range(first, last + 1) if seq not in without]
    rows = [TailEntry("t", entry.partition_id - 1, entry.seq, *entry[2:]) for entry in entries]
    return CommitBatch(LOG_ID, epoch, first, last, (), rows)


def check(walked: tail_walk.TailContents, batches: list[CommitBatch], settled: dict[tuple[str, int], int]) -> None:
    """The entries that are brought back end where the walk says that they end."""
    ends = dict(settled)
    for entry in tail_walk.entries(batches, settled, walked.last_seq, IDS):
        where = ("t", entry.partition_id - 1)
        assert entry.first == ends[where]
        ends[where] = end_of(entry)
    assert ends == {where: walked.ends.get(where, settled[where]) for where in ends}


def test_an_entry_that_a_newer_batch_left_out_does_not_turn_the_walk_back() -> None:
    """Epoch 1 sent 4 alone, behind a hole; epoch 2 sent 2 to 5 anew, without 4, which was settled by then."""
    log = a_log(5)
    batches = [batch(log, 1, 1, 1), batch(log, 2, 2, 5, without=(2, 4)), batch(log, 1, 4, 4)]
    settled = {ONE: 2, OTHER: 0}
    walked = tail_walk.walk(LOG_ID, batches, settled, 0, 5)
    assert (walked.last_seq, walked.ends) == (5, {OTHER: 3})
    check(walked, batches, settled)


def test_a_commit_behind_a_hole_does_not_count_although_segments_hold_it() -> None:
    """2 was trimmed and is nowhere, so 4 does not follow; 5 is in a segment, and its number is given anew."""
    log = a_log(5)
    batches = [batch(log, 1, 1, 5, without=(2,))]
    settled = {ONE: 0, OTHER: 3}
    walked = tail_walk.walk(LOG_ID, batches, settled, 0, 5)
    assert (walked.last_seq, walked.ends) == (3, {})
    check(walked, batches, settled)


def test_a_commit_behind_the_limit_does_not_count_although_segments_hold_it() -> None:
    """The limit was said on the store: what comes behind it is garbage there."""
    log = a_log(5)
    batches = [batch(log, 1, 1, 5)]
    settled = {ONE: 2, OTHER: 3}
    assert tail_walk.walk(LOG_ID, batches, settled, 0, 3).last_seq == 3


def test_a_batch_that_was_adopted_in_part_says_nothing_about_the_rest() -> None:
    """Commits 4 and 5 were written anew by the next owner."""
    old, new = a_log(5), a_log(3)
    for number in (4, 5):
        new._group += 1
        new._append(new.all_partitions[number % 2], number, 2, b"of the new owner")
    batches = [tail_walk.cut(batch(old, 1, 1, 5), 3), batch(new, 3, 4, 5)]
    settled = {ONE: 0, OTHER: 0}
    walked = tail_walk.walk(LOG_ID, batches, settled, 0, 5)
    assert (walked.last_seq, walked.ends) == (5, {ONE: 3, OTHER: 4})
    check(walked, batches, settled)
