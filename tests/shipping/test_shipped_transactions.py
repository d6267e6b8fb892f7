"""Transactions on the store: whatever was shipped when the machine is lost, none of them comes back by halves.

Every transaction appends its number to three topics. After each object that the log creates or deletes there, the
store is copied; each copy is what a lost machine may leave, and a log that is restored from it has the same numbers in
all three topics.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Log, Settings, Unavailable
from holdfast.store import layout
from holdfast.store.port import Body
from tests.shipping.conftest import Root
from tests.shipping.flaky import Faults, FlakyStore

pytestmark = pytest.mark.store

TOPICS = ("first", "second", "third")


@pytest.fixture
def states(root: Root, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, bytes]]:
    """The objects of the store after each change."""
    found: list[dict[str, bytes]] = []
    lock = threading.Lock()
    for verb in ("create", "delete"):
        act = getattr(FlakyStore, verb)

        def noted(self: FlakyStore, *given: Any, act: Any = act) -> None:
            with lock:
                act(self, *given)
                found.append(root.objects())

        monkeypatch.setattr(FlakyStore, verb, noted)
    return found


def commit(log: Log, number: int, **options: Any) -> None:
    with log.transaction(**options) as tx:
        for topic in TOPICS:
            tx.append(topic, b"%d" % number)
        tx.put("state", "newest", b"%d" % number)


def numbers(log: Log) -> dict[str, list[int]]:
    known = log.topics()
    return {topic: [int(r.payload) for r in log.topic(topic).read()] if topic in known else [] for topic in TOPICS}


def restored(make_root: Any, objects: dict[str, bytes], place: Path) -> Iterator[Log]:
    """The log that comes back from these objects."""
    copy = make_root()
    for key, data in objects.items():
        copy.store.create(key, Body.of(data))
    holdfast.restore(copy.url, place, settings=Settings.from_mapping({}), copy=True)
    with holdfast.open(place, settings=Settings.from_mapping({"segments": {"seal_on_close": False}})) as log:
        yield log


def check(make_root: Any, states: list[dict[str, bytes]], tmp_path: Path) -> set[int]:
    """No state has half a transaction; returns how many transactions were seen."""
    seen: set[int] = set()
    for at, objects in enumerate(states):
        if layout.LOG not in objects:
            continue
        for log in restored(make_root, objects, tmp_path / f"state-{at}"):
            found = numbers(log)
            whole = list(range(len(found["first"])))
            assert found == dict.fromkeys(TOPICS, whole), f"after {at + 1} changes: {found}"
            assert log.spaces() == []
            seen.add(len(whole))
    return seen


def test_every_state_of_the_store_has_whole_transactions(open_shipped, make_root, states, tmp_path, some):
    """While commits are shipped, topics are sealed one by one, and batches make way for segments."""
    log = open_shipped(shipping={"delete_after_ms": 0})
    for topic in TOPICS:
        log.topic(topic)
    for number in range(12):
        commit(log, number, durability="shipped" if number % 3 == 0 else "durable")
        if number % 4 == 3:
            log.seal(TOPICS[number // 4])
            log.ship()
    commit(log, 12, durability="shipped")
    log.close()
    assert len(check(make_root, [*some(states, 15), states[-1]], tmp_path)) > 3


def test_segments_do_not_get_ahead_of_commits(open_shipped, make_root, states, tmp_path, faults: Faults):
    """One topic is sealed here while the batch with the same transactions is held up: nothing of it shows early."""
    log = open_shipped()
    for topic in TOPICS:
        log.topic(topic)
    commit(log, 0, durability="shipped")
    gate = faults.hold("tail/")
    batches = faults.count("create", "tail/")
    for number in range(1, 5):
        commit(log, number)
    faults.wait_seen("create", "tail/", batches + 1)
    log.seal("first")
    gate.open()
    commit(log, 5, durability="shipped")
    log.ship()
    log.close()
    assert {1, 6} <= check(make_root, states, tmp_path)


def test_shipped_means_every_topic_of_it(open_shipped, faults: Faults):
    """The block waits for the store; a store that does not answer leaves a transaction that is durable here."""
    log = open_shipped(shipping={"shipped_timeout_ms": 300})
    for topic in TOPICS:
        log.topic(topic)
    commit(log, 0, durability="shipped")
    assert [log.marks(topic)[0].shipped for topic in TOPICS] == [1, 1, 1]
    gate = faults.hold("tail/")
    with pytest.raises(Unavailable, match="durable here"):
        commit(log, 1, durability="shipped")
    assert list(numbers(log).values()) == [[0, 1]] * 3
    gate.open()
    with log.transaction(durability="shipped") as tx:
        tx.put("state", "only here", b"spaces are not shipped: this waits for the disk alone")

    async def main() -> None:
        async with log.transaction(durability="shipped") as tx:
            for topic in TOPICS:
                tx.append(topic, b"2", idempotency_key="two")
        async with log.transaction(durability="shipped") as tx:
            known = [tx.append(topic, b"2", idempotency_key="two") for topic in TOPICS]
        assert [one.receipt.repeated for one in known] == [True, True, True]

    asyncio.run(main())
    assert [log.marks(topic)[0].shipped for topic in TOPICS] == [3, 3, 3]
