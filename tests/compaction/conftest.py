"""Roots of small segments in memory, and compactions of them through the faults of their store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast import Log
from holdfast.results import CompactionReport
from holdfast.root import shared_stores
from holdfast.store.store_settings import StoreSettings
from tests.shipping.conftest import Root, faults, lines, make_root, open_shipped, root, spoiled, sweep
from tests.shipping.flaky import FlakyStore

__all__ = ["faults", "lines", "make_root", "open_shipped", "root", "spoiled", "sweep"]


@pytest.fixture
def log(open_shipped: Callable[..., Log]) -> Log:
    """A log that ships to `root`."""
    return open_shipped()


@pytest.fixture(autouse=True)
def spoiled_readers(root: Root) -> None:
    """What opens the root by its address goes through its faults, too."""
    shared_stores._opened[root.url, StoreSettings()] = FlakyStore(root.store, root.faults)


Compact = Callable[..., CompactionReport]


@pytest.fixture
def compact(root: Root) -> Compact:
    """Compact the root; replaced files stay, unless the test says how long they may."""

    def compact_now(*topics: str, **options: Any) -> CompactionReport:
        return holdfast.compact(root.url, topics, **options)

    return compact_now


def ship(log: Log, segments: int, rows: int = 3, *, topic: str = "orders", partitions: int = 1) -> None:
    """So many more segments in each partition, settled; payloads say their offset."""
    records = log.topic(topic, partitions=partitions)
    for _ in range(segments):
        for partition in range(partitions):
            first = records.marks()[partition].durable
            records.append_batch([b"%d" % (first + at) for at in range(rows)], partition=partition)
        log.seal(topic)
    log.ship(30)


def files(root: Root, topic: str = "orders", partition: int = 0) -> int:
    """How many segment files there are, in effect or not."""
    return len(root.segments(topic, partition))


def payloads(root: Root, topic: str = "orders", **options: Any) -> list[bytes]:
    """What a reader finds, in its order."""
    return holdfast.read(root.url, topic, **options).to_arrow()["payload"].to_pylist()


def expected(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % offset for offset in range(start, count)]
