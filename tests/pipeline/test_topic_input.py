"""Topics as inputs: what is new, what is waited for, and leases."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import holdfast
from holdfast.clock import SystemClock
from holdfast.errors import Invalid
from holdfast.testing import ManualClock
from pyspark_holdfast.pipeline.topic_input import RootTopics, check_options

pytestmark = pytest.mark.disk

DAY = 86_400
RUN = "shop.0b5b7b1c-0000-4000-8000-00000000000"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store that a log ships to: five records in each of two partitions."""
    with holdfast.open(tmp_path / "log", store=tmp_path / "store") as log:
        for partition in (0, 1):
            log.topic("orders", partitions=2).append_batch([b"x"] * 5, partition=partition)
        log.seal()
        log.ship(60)
    return tmp_path / "store"


def topics(root: Path) -> RootTopics:
    return RootTopics(str(root), {}, SystemClock())


def test_what_is_new_lies_between_two_positions(root: Path) -> None:
    found = topics(root)
    assert found.new("orders", None) == {0: (0, 5), 1: (0, 5)}
    assert found.new("orders", {0: 3}) == {0: (3, 5), 1: (0, 5)}, "a partition that is new begins at its beginning"
    assert found.new("orders", {0: 5, 1: 5}) == {0: (5, 5), 1: (5, 5)}
    assert found.all_of("orders", None) == found.all_of("orders", {0: 3, 1: 5}) == {0: (0, 5), 1: (0, 5)}


def test_a_run_sees_the_same_until_it_looks_again(root: Path) -> None:
    """And what another process has read meanwhile is no loss; a root that has lost records is."""
    found = topics(root)
    assert found.ends("orders") == {0: 5, 1: 5}
    with holdfast.open(root.parent / "log", store=root) as log:
        log.topic("orders").append_batch([b"x"] * 2, partition=0)
        log.seal()
        log.ship(60)
    assert found.ends("orders") == {0: 5, 1: 5}
    assert found.new("orders", {0: 7, 1: 5}) == {0: (7, 7), 1: (5, 5)}
    found.look_again()
    assert found.new("orders", {0: 5, 1: 5}) == {0: (5, 7), 1: (5, 5)}
    with pytest.raises(Invalid, match="read more than the root has topic=orders partition=1 read=9 settled=5"):
        found.new("orders", {0: 7, 1: 9})
    with pytest.raises(Invalid, match="read more than the root has topic=orders partition=1 read=9 settled=5"):
        found.all_of("orders", {0: 7, 1: 9})


def test_a_lease_is_there_while_rows_are_read_and_dead_ones_go(root: Path) -> None:
    def leases() -> list[str]:
        return sorted(path.parent.name for path in (root / "leases").rglob("*.json"))

    found, needs = topics(root), {"orders": {0: (0, 5)}}
    with found.leased(RUN + "1", needs):
        assert leases() == [RUN + "1"]
    assert leases() == []
    for reader in (RUN + "2", "shop.service", "other." + RUN):  # the first was killed; the others are other readers
        with found.leased(reader, needs):
            (file,) = (root / "leases" / reader).iterdir()
            kept = file.read_bytes()
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(kept)
        os.utime(file, (0, 0))
    with found.leased(RUN + "3", needs):
        assert leases() == ["other." + RUN, RUN + "3", "shop.service"]
    with found.leased(RUN + "4", {"orders": {}}):
        assert RUN + "4" not in leases(), "nothing is read"


def test_a_clock_that_is_ahead_ends_no_lease_of_another_run(root: Path) -> None:
    needs = {"orders": {0: (0, 5)}}
    ahead = RootTopics(str(root), {}, ManualClock(SystemClock().now_us() + 400 * 86_400_000_000))
    with topics(root).leased(RUN + "1", needs), ahead.leased(RUN + "2", needs):
        assert sorted(path.name for path in (root / "leases").iterdir() if any(path.iterdir())) == [
            RUN + "1",
            RUN + "2",
        ]


def test_options_that_say_what_is_read_are_refused() -> None:
    check_options({"keyring": "env:KEY", "columns": "a", "failOnDataLoss": "false"}, "table=a")
    for name in ("startingOffsets", "ASOF", "topic", "includeTail", "maxBytesPerTrigger"):
        with pytest.raises(Invalid, match="says itself what is read"):
            check_options({name: "1"}, "table=a")
