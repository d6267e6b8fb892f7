"""Transactions on the store: whatever was shipped when the machine is lost, none of them comes back by halves.

Every transaction appends its number to three topics. After each object that the log creates or deletes there, the
store is copied; each copy is what a lost machine may leave, and a log that is restored from it has the same numbers in
all three topics.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Log, Settings, Unavailable
from holdfast.root.objects import commit_batch
from holdfast.root.objects.commit_batch import CommitBatch
from holdfast.shipping.lanes import segment_lane
from holdfast.shipping.ownership import takeover
from holdfast.store import layout
from holdfast.store.port import Body
from tests.segments.planting import wait_for
from tests.shipping.conftest import Root
from tests.shipping.flaky import Faults, FlakyStore

pytestmark = pytest.mark.store

TOPICS = ("first", "second", "third")
ONE_BY_ONE = {"batch_size_threshold": 2, "max_in_flight_requests": 1}


@pytest.fixture
def states(root: Root, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, bytes]]:
    """The objects of the store after each change; requests that a fault holds hold up nobody else."""
    found: list[dict[str, bytes]] = []
    lock = threading.Lock()

    class Noted(FlakyStore):
        def __init__(self, store: Any, faults: Faults) -> None:
            super().__init__(_Noting(store), faults)

    class _Noting:
        def __init__(self, store: Any) -> None:
            self._store = store

        def __getattr__(self, name: str) -> Any:
            act = getattr(self._store, name)
            return act if name not in ("create", "delete") else lambda *given: noted(act, *given)

    def noted(act: Any, *given: Any) -> None:
        with lock:
            act(*given)
            found.append(root.everything())

    monkeypatch.setattr("tests.shipping.conftest.FlakyStore", Noted)
    return found


def commit(log: Log, number: int, **options: Any) -> None:
    with log.transaction(**options) as tx:
        for topic in TOPICS:
            tx.append(topic, b"%d" % number)
        tx.put("state", "newest", b"%d" % number)


def numbers(log: Log) -> dict[str, list[int]]:
    known = log.topics()
    return {topic: [int(r.payload) for r in log.topic(topic).read()] if topic in known else [] for topic in TOPICS}


def copied(make_root: Any, objects: dict[str, bytes]) -> Root:
    """A root with these objects."""
    copy: Root = make_root()
    for key, data in objects.items():
        copy.store.create(key, Body.of(data))
    return copy


def restored(make_root: Any, objects: dict[str, bytes], place: Path) -> Iterator[Log]:
    """The log that comes back from these objects."""
    copy = copied(make_root, objects)
    holdfast.restore(copy.url, place, settings=Settings.from_mapping({}), copy=True)
    with holdfast.open(place, settings=Settings.from_mapping({"segments": {"seal_on_close": False}})) as log:
        yield log


def made(states: list[dict[str, bytes]]) -> list[CommitBatch]:
    """All commit batches that ever were there."""
    found = {key: data for objects in states for key, data in objects.items() if layout.parse_batch_key(key)}
    return [commit_batch.decode(data, key) for key, data in found.items()]


def killed(log: Log, open_shipped: Any) -> Log:
    """The log as its next process finds it."""
    copy = Path(log.path).with_name("copy")
    shutil.copytree(log.path, copy, ignore=shutil.ignore_patterns("SOCKET"))
    log.close()
    return open_shipped(copy.name, shipping=ONE_BY_ONE)


def begin_outage(log: Log, faults: Faults) -> None:
    """The first transaction is shipped, the second one waits for the store, and nothing behind it is taken."""
    for topic in TOPICS:
        log.topic(topic)
    commit(log, 0, durability="shipped")
    batches = faults.count("create", "tail/")
    faults.away()
    commit(log, 1)
    faults.wait_seen("create", "tail/", batches + 1)


def until_trimmed(log: Log, topics: Sequence[str]) -> None:
    """Until the journal has nothing more of what was sealed."""
    heads = [log._journal.topics[topic][0] for topic in topics]
    wait_for(lambda: not any(log._journal.sealed_entries(head, 1) for head in heads))


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
    faults.wait_done("create", "first/0/segments/")
    commit(log, 5)
    gate.open()
    commit(log, 6, durability="shipped")
    log.ship()
    log.close()
    assert {1, 7} <= check(make_root, states, tmp_path)


@pytest.mark.parametrize("sealed", [TOPICS[:1], TOPICS[1:], TOPICS], ids=len)
@pytest.mark.parametrize("is_killed", [False, True], ids=["alive", "killed"])
def test_what_was_trimmed_before_it_was_shipped_comes_back_with_its_commits(
    open_shipped, make_root, states, tmp_path, faults: Faults, sealed, is_killed
):
    """The store was away while topics were sealed and trimmed: their commits are in no batch, or a part of them is."""
    log = open_shipped(shipping=ONE_BY_ONE)
    begin_outage(log, faults)
    for number in range(2, 8):
        commit(log, number)
        if number in (3, 6):
            for topic in sealed:
                log.seal(topic)
    until_trimmed(log, sealed)
    if is_killed:
        log = killed(log, open_shipped)
    faults.back()
    commit(log, 8, durability="shipped")
    assert [log.marks(topic)[0].shipped for topic in TOPICS] == [9, 9, 9]
    log.ship()
    assert [log.marks(topic)[0].settled for topic in sealed] == [7] * len(sealed)
    log.close()
    assert {1, 9} <= check(make_root, states, tmp_path)
    assert any(batch.segments for batch in made(states))


def test_a_restore_settles_what_a_batch_names(open_shipped, root, make_root, tmp_path, faults: Faults, monkeypatch):
    """The machine is lost when segments are named and not settled. The next owner settles them, also when
    it is interrupted; and the log goes on from there.
    """
    log = open_shipped(shipping=ONE_BY_ONE)
    begin_outage(log, faults)
    for number in range(2, 5):
        commit(log, number)
    log.seal()
    until_trimmed(log, TOPICS)
    gate = faults.hold("_manifest/")
    faults.back()
    commit(log, 5, durability="shipped")
    left, other = copied(make_root, root.everything()), copied(make_root, root.everything())
    gate.open()
    log.close()
    holdfast.restore(other.url, tmp_path / "other", settings=Settings.from_mapping({}))
    with holdfast.open(tmp_path / "other", read_only=True) as log:
        assert list(numbers(log).values()) == [list(range(6))] * 3
    assert not left.keys("topics/second/0/_manifest/")
    monkeypatch.setattr(takeover, "_PAUSE_S", 0.001)
    for interrupted in (".adopted", "topics/second/0/_manifest/", "topics/third/0/_manifest/00000000000000000001"):
        rule = left.faults.fail(interrupted)
        with pytest.raises(Unavailable, match="does not answer"):
            holdfast.restore(left.url, tmp_path / "back", settings=Settings.from_mapping({}))
        rule.end()
    report = holdfast.restore(left.url, tmp_path / "back", settings=Settings.from_mapping({}))
    assert (report.segments, report.lost_commits) == (3, 0)
    with holdfast.open(tmp_path / "back", settings=Settings.from_mapping({"store": {"url": left.url}})) as log:
        commit(log, 6, durability="shipped")
        log.seal()
        log.ship()
    for again in restored(make_root, left.everything(), tmp_path / "again"):
        assert list(numbers(again).values()) == [list(range(7))] * 3


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


def test_more_segments_than_may_wait_settle_one_by_one(open_shipped, root, faults: Faults, monkeypatch):
    """Nothing waits forever; only then may a restore find topics of which one is ahead."""
    monkeypatch.setattr(segment_lane, "WAITING_MAX", 5)
    log = open_shipped(shipping=ONE_BY_ONE)
    begin_outage(log, faults)
    for number in (2, 3):
        commit(log, number)
        log.seal()
    until_trimmed(log, TOPICS)
    faults.back()
    commit(log, 4, durability="shipped")
    log.ship()
    assert [log.marks(topic)[0].settled for topic in TOPICS] == [4, 4, 4]
    assert sum(len(batch.segments) for batch in root.batches()) <= 5


def test_readers_do_not_wait_for_ever_for_commits_that_cannot_be_sent(open_shipped, faults: Faults, monkeypatch):
    """Nobody may write batches there, say: segments settle, as late as the limit says, and all of them afterwards."""
    monkeypatch.setattr(segment_lane, "WAITING_MAX", 5)
    log = open_shipped()
    for topic in TOPICS:
        log.topic(topic)
    commit(log, 0, durability="shipped")
    denied = faults.refuse("tail/")
    for number in range(1, 5):
        commit(log, number)
        log.seal()
    partitions = [log._journal.topics[topic][0] for topic in TOPICS]
    wait_for(lambda: sum(one.sealed.segments - one.shipment.settled_segments for one in partitions) <= 5)
    assert log.stats().shipping.batches_total == 1
    denied.end()
    log.ship()
    assert [log.marks(topic)[0].settled for topic in TOPICS] == [5, 5, 5]
    assert [log.marks(topic)[0].shipped for topic in TOPICS] == [5, 5, 5]
