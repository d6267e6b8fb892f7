"""What publishing costs: requests and bytes, counted; one more segment costs the same however long the history is."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.publish.delta import delta_log
from holdfast.store.directory import DirectoryStore
from tests.publish.counting_store import CLOCK, CountingStore, publisher_of
from tests.publish.test_delta_table import fill
from tests.publish.worlds import World

pytestmark = pytest.mark.disk


def test_one_more_segment_costs_the_same_whatever_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Five segments or sixty: the same requests in the same order. Only the names that a directory lists are more."""
    costs = {}
    for history in (5, 60):
        world = World(tmp_path / str(history))
        try:
            for _ in range(history):
                fill(world, rows=1, partitions=1)
            world.publisher().publish("orders")
            fill(world, rows=1, partitions=1)
            world.publisher().publish("orders")
            fill(world, rows=1, partitions=1)
            store = CountingStore(DirectoryStore(world.root, CLOCK))
            assert publisher_of(store).publish("orders").commits == 1
            costs[history] = ([verb for verb, _ in store.requests], store.bytes_read)
        finally:
            world.close()
    assert costs[5][0] == costs[60][0]
    assert len(costs[5][0]) <= 16
    assert abs(costs[5][1] - costs[60][1]) < 100


def test_nothing_new_costs_no_write(tmp_path: Path):
    world = World(tmp_path)
    try:
        fill(world, rows=1, partitions=1)
        world.publisher().publish("orders")
        store = CountingStore(DirectoryStore(world.root, CLOCK))
        publisher_of(store).publish("orders")
        assert not [verb for verb, _ in store.requests if verb in ("create", "delete")]
    finally:
        world.close()


def test_many_segments_go_in_few_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A commit has a limit; what is more goes into the next one, in order."""
    from holdfast.publish import publication
    from tests.publish.worlds import delta_rows

    monkeypatch.setattr(publication, "_SEGMENTS_AT_ONCE", 3)
    monkeypatch.setattr(publication, "_AT_ONCE_LEAST", 1)
    monkeypatch.setattr(delta_log, "_CHECKPOINT_LEAST", 2)
    world = World(tmp_path)
    try:
        for _ in range(8):
            fill(world, rows=1, partitions=1)
        world.join("orders", 0, 0, 2)
        report = world.publisher().publish("orders")
        assert (report.commits, report.version) == (4, 3)
        assert delta_rows(world.table("orders")) == world.expected("orders")
        assert [len(delta_rows(world.table("orders"), version)) for version in range(4)] == [3, 6, 8, 8]
    finally:
        world.close()
