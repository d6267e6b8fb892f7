"""kill -9 of the owner, of compactors and of publishers around one topic, in turn, while all of them work.

A reader then, holdfast or another engine, sees whole states: every row once, dense from somewhere to somewhere,
and the same row wherever it is seen. Nothing that was there goes but by retention. In the end the table shows what is
read.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

import holdfast
from tests.crash.table_victim import PARTITIONS
from tests.harness.kills import Victim
from tests.publish.worlds import Table, delta_rows, keyed

pytestmark = pytest.mark.crash

WORKERS = ("own", "compact", "compact", "publish")


class Run:
    """One log, one root, and the processes around it."""

    def __init__(self, path: Path, seed: int) -> None:
        self._directory, self._store = path / "log", path / "store"
        self._rng = Random(seed)
        self._victims: dict[int, Victim] = {}
        self.seen: Table = {}
        """Every row that anybody saw."""
        self.ends = dict.fromkeys(range(PARTITIONS), 0)

    @property
    def root(self) -> str:
        return self._store.as_uri()

    def work(self, kills: int) -> None:
        """Kill one after the other; look after each, while the others are at work, and when nobody is."""
        try:
            self._start(0)
            self._victims[0].until(3, "shipped")
            for _ in range(kills):
                for at in range(len(WORKERS)):
                    self._start(at)
                at = self._rng.randrange(len(WORKERS))
                self._victims[at].until(1)
                self._victims.pop(at).kill()
                self.look()
        finally:
            with ExitStack() as ending:  # each of them, also when one had ended by itself
                for victim in self._victims.values():
                    ending.callback(victim.kill)
        self.look()

    def _start(self, at: int) -> None:
        if at not in self._victims:
            self._victims[at] = Victim("tests.crash.table_victim", WORKERS[at], self._directory, self.root)

    def look(self) -> tuple[Table, Table]:
        """What is read, and what the table shows."""
        table = delta_rows(self._store / "topics/orders")
        read = keyed(holdfast.read(self.root, "orders", fail_on_data_loss=False).to_arrow())
        for rows in (table, read):
            for place, row in rows.items():
                assert self.seen.setdefault(place, row) == row, place
            for partition in range(PARTITIONS):
                offsets = sorted(offset for number, offset in rows if number == partition)
                assert offsets == list(range(offsets[0], offsets[-1] + 1))
        for partition in range(PARTITIONS):
            end = max(offset for number, offset in read if number == partition)
            assert end >= self.ends[partition]
            self.ends[partition] = end
        return read, table

    def finish(self) -> tuple[Table, Table]:
        """Bring the table up to date, and look."""
        holdfast.publish_tables(self.root)
        return self.look()


def run(path: Path, seed: int, kills: int) -> None:
    one = Run(path, seed)
    one.work(kills)
    read, table = one.finish()
    first = {
        partition: min(offset for number, offset in read if number == partition) for partition in range(PARTITIONS)
    }
    # A joined file goes as a whole: rows in it that are retired may still be shown.
    assert {place: row for place, row in table.items() if place[1] >= first[place[0]]} == read
    report = holdfast.compact(one.root, target_size="64KiB", delete_after_ms=0)
    assert not report.problems
    assert one.finish()[0] == read
    with holdfast.open(path / "log", store=one.root) as log:
        found = log.reconcile(remote=True, deep=True)
        assert not found.findings, found.findings


def test_kills_around_a_published_topic_leave_whole_states(tmp_path, seed, is_sampled):
    run(tmp_path, seed, kills=2 if is_sampled else 4)


@pytest.mark.soak
@pytest.mark.parametrize("more", range(4))
def test_many_kills_around_a_published_topic_leave_whole_states(tmp_path, seed, more):
    run(tmp_path, seed + more, kills=60)
