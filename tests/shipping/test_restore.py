"""A log that comes back from its store: all that was shipped, and it goes on as if nothing had happened."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
import tracemalloc
from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import holdfast
from holdfast import Closed, HoldfastError, Invalid, Keyring, Log, Record, Settings
from holdfast.crypto.cipher import NotAuthentic
from holdfast.recovery import fetching
from holdfast.results import RestoreReport
from holdfast.root.objects import documents
from holdfast.root.objects.documents import EpochDocument, StartDocument
from holdfast.store import layout
from holdfast.testing.manual_clock import ManualClock
from tests.segments.planting import TEN, fill, wait_for
from tests.shipping.conftest import Root, mark

pytestmark = pytest.mark.store

Bring = Callable[..., RestoreReport]


class OwnCipher:
    """A cipher of one's own: no secret, but bound to its place."""

    name = "own-1"

    def __init__(self, key: bytes = b"k") -> None:
        self._key = key

    def encrypt(self, plaintext: bytes, associated: bytes) -> bytes:
        return self.mac(associated + plaintext)[:8] + bytes(byte ^ 7 for byte in plaintext)

    def decrypt(self, encrypted: bytes, associated: bytes) -> bytes:
        plaintext = bytes(byte ^ 7 for byte in encrypted[8:])
        if self.mac(associated + plaintext)[:8] != encrypted[:8]:
            raise NotAuthentic
        return plaintext

    def mac(self, message: bytes) -> bytes:
        return sha256(self._key + message).digest()


@pytest.fixture
def bring(root: Root, tmp_path: Path) -> Bring:
    """Bring a log back from `root`, or from another one (`of=`), into a directory of this name."""

    def bring_back(name: str = "back", *, of: Root | None = None, **options: object) -> RestoreReport:
        url = (root if of is None else of).url
        return holdfast.restore(url, tmp_path / name, settings=Settings.from_mapping({}), **options)

    return bring_back


def contents(log: Log) -> dict[str, list[object]]:
    """Everything that can be read, topic by topic."""
    found: dict[str, list[object]] = {}
    for name in log.topics():
        typed = name in log._journal.schemas
        topic = log.topic(name, schema="latest") if typed else log.topic(name)
        found[name] = list(topic.read())
    return found


def facts(log: Log) -> dict[str, object]:
    """What is known about topics besides their records."""
    journal = log._journal
    return {
        name: (
            [m.durable for m in log.marks(name)],
            [row.definition for row in journal.schemas.get(name, ())],
            journal.policies[name][1:4] if name in journal.policies else None,
            [partition.sealed.first_offset for partition in journal.topics[name]],
            journal.codecs.get(name),
        )
        for name in log.topics()
    }


def append_all(log: Log, count: int = 3) -> None:
    """Some of everything, and wait until it is on the store."""
    orders = log.topic("orders", partitions=3)
    for i in range(count):
        orders.append(b"p%d" % i, key=b"k%d" % i, headers={"h": b"%d" % i}, kind="made", time=-5 + i)
    orders.append_batch([Record(b"", key=b""), Record(b"x" * 5000, time=2**50), Record(b"bare")])
    log.topic("later", first_offset=1000).append_batch([b"a", b"b"])
    rows = log.topic("rows", schema=pa.schema({"n": pa.int64()}), partitions=2)
    rows.append([{"n": i} for i in range(count)], time=7, partition=1, durability="shipped")
    log.topic("orders").append(b"last", durability="shipped")


# -- everything comes back ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sealed", ["nothing", "some", "all"])
@pytest.mark.parametrize("keys", ["plain", "keyring", "cipher"])
def test_everything_that_was_shipped_comes_back(open_shipped, bring, sealed, keys, keyring):
    """Keys, headers, kinds, times, rows of two versions, offsets that begin later, empty topics, codecs, policies."""
    secret = {"plain": {}, "keyring": {"keyring": keyring}, "cipher": {"cipher": OwnCipher()}}[keys]
    log = open_shipped(**secret)
    log.topic("empty", partitions=4, first_offset=77, codec="json")
    append_all(log)
    if sealed != "nothing":
        log.seal()
    log.set_retention("orders", bytes_max=10**12, age_max=timedelta(days=400))
    wider = log.topic("rows", schema=pa.schema({"n": pa.int64(), "more": pa.string()}))
    wider.append([{"n": 9, "more": "x"}], partition=0, durability="shipped")
    if sealed == "some":
        append_all(log)
    if sealed == "all":
        log.seal()
        log.ship(20)
    expected, known, identity = contents(log), facts(log), log.id
    log.close()
    assert len(known) == 4
    report = bring(**secret)
    back = open_shipped("back", **secret)
    assert contents(back) == expected
    assert facts(back) == known
    assert back.id == identity == report.log
    assert report.records == sum(map(len, expected.values()))
    assert (report.topics, report.partitions, report.cut_batches, report.cut_records) == (4, 10, 0, 0)


def test_the_restored_log_goes_on_and_comes_back_again(open_shipped, bring, root):
    """Offsets and sequence numbers are dense, links are proved, it seals and ships; the old directory is shut out."""
    log = open_shipped(segments=TEN)
    fill(log, "orders", 2)
    log.ship(20)
    last = log.topic("orders").append(b"x", durability="shipped")
    log.close()
    for turn in range(1, 4):
        bring(f"back-{turn}")
        log = open_shipped(f"back-{turn}", segments=TEN)
        receipt = log.topic("orders").append(b"x", durability="shipped")
        assert (receipt.offset, receipt.seq) == (last.offset + 1, last.seq + 1)
        last = receipt
        if turn == 2:
            log.seal()
            log.ship(20)
        assert log.reconcile(deep=True).findings == ()
        assert log.reconcile(remote=True, deep=True).findings == ()
        assert [r.offset for r in log.topic("orders").read()] == list(range(last.offset + 1))
        log.close()
    with pytest.raises(Closed) as caught:
        open_shipped("back-2").topic("orders").append(b"x", durability="shipped")
    assert caught.value.reason == "fenced"
    starts = [document for document in root.manifest("orders") if isinstance(document, StartDocument)]
    assert len(starts) == 3


def test_an_empty_log_comes_back(open_shipped, bring, root):
    log = open_shipped()
    log.topic("empty")
    wait_for(lambda: root.topic_documents("empty") != [])
    log.close()
    assert bring().records == 0
    back = open_shipped("back")
    assert back.topic("empty").append(b"x", durability="shipped").offset == 0


def test_rotated_keys_come_back(open_shipped, bring, keyring):
    """Sealed under one key, in the tail under another, and all of it with the newest keyring."""
    log = open_shipped(keyring=keyring)
    append_all(log)
    log.seal()
    log.ship(20)
    append_all(log)
    newer = keyring.rotated("k2", clock=ManualClock(seed=8))
    log.rotate_key(newer)
    append_all(log)
    expected = contents(log)
    log.close()
    bring(keyring=newer)
    back = open_shipped("back", keyring=newer)
    assert contents(back) == expected
    append_all(back)
    back.close()
    bring("again", keyring=newer)
    assert len(contents(open_shipped("again", keyring=newer))["orders"]) == len(expected["orders"]) + 7


def test_key_epochs_are_given_anew_without_confusion(open_shipped, bring, keyring):
    """Many lives: each begins a key epoch, all settle at different times, and everything opens."""
    log = open_shipped(keyring=keyring)
    for turn in range(4):
        log.topic("orders").append(b"%d" % turn, durability="shipped")
        if turn == 1:
            log.seal()
            log.ship(20)
        log.close()
        bring(f"life-{turn}", keyring=keyring)
        log = open_shipped(f"life-{turn}", keyring=keyring)
    assert [record.payload for record in log.topic("orders").read()] == [b"0", b"1", b"2", b"3"]


def test_what_retention_on_the_store_retired_does_not_come_back(open_quiet, bring, sweep, root):
    log = open_quiet(segments=TEN, shipping={"store_bytes_max": 1, "delete_after_ms": 0})
    fill(log, "orders", 4)
    log.ship(20)
    sweep(log)
    log.close()
    assert root.segments("orders") == [3]
    report = bring()
    assert (report.expired, report.segments, report.records) == (3, 1, 10)
    back = open_quiet("back", segments=TEN)
    assert [r.offset for r in back.topic("orders").read()] == list(range(30, 40))
    fill(back, "orders", 1)
    back.ship(20)
    assert back.reconcile(deep=True).findings == ()


def test_what_was_retired_and_is_still_there_does_not_come_back_either(open_quiet, bring, sweep, root):
    log = open_quiet(segments=TEN, shipping={"store_bytes_max": 1})
    fill(log, "orders", 3)
    log.ship(20)
    sweep(log)
    log.close()
    assert root.segments("orders") == [0, 1, 2]
    assert bring().records == 10
    assert not list((open_quiet("back").path / "segments").rglob("*0000-*.parquet"))


def test_what_expired_before_the_store_came_does_not_come_back(open_log, open_shipped, bring):
    """Its place in the chain does, so that what follows is proved."""
    log = open_log(segments=TEN, retention={"records_max": 10, "interval_ms": 3_600_000})
    fill(log, "orders", 4)
    log.retain()
    log.close()
    log = open_shipped(segments=TEN)
    fill(log, "orders", 1)
    log.ship(20)
    expected = contents(log)
    log.close()
    report = bring()
    assert (report.expired, report.segments) == (3, 2)
    assert contents(open_shipped("back")) == expected


@pytest.mark.parametrize("lost", [0, 1], ids=["expired", "lost"])
def test_a_log_that_was_rebuilt_comes_back(open_log, open_shipped, bring, caplog, lost):
    """Also with rows that stand for files that were gone by then."""
    log = open_log(segments=TEN)
    fill(log, "orders", 4)
    log.close()
    sorted(log.path.rglob("*.parquet"))[lost].unlink()
    for path in log.path.glob("durable.db*"):
        path.unlink()
    holdfast.rebuild(log.path)
    log = open_shipped(segments=TEN)
    log.topic("orders").append(b"x", durability="shipped")
    log.ship(20)
    log.close()
    bring()
    back = open_shipped("back")
    whole = list(range(10, 41)) if not lost else [*range(10), *range(20, 41)]
    read = []
    for start in (10, 20) if not lost else (0, 20):
        end = 10 if start == 0 else 20 if start == 10 else None
        read += [record.offset for record in back.topic("orders").read(start, end)]
    assert read == whole
    assert ("10 records were lost then" in caplog.text) == bool(lost)


def test_nothing_of_a_rebuilt_log_is_acknowledged_before_its_segments_are_there(open_log, open_shipped, bring, faults):
    """Its numbers begin anew, so no gap in them tells that there is something before."""
    log = open_log(segments=TEN)
    fill(log, "orders", 2)
    log.close()
    for path in log.path.glob("durable.db*"):
        path.unlink()
    holdfast.rebuild(log.path)
    gate = faults.hold("/segments/")
    log = open_shipped(segments=TEN)
    ticket = log.topic("orders").submit(b"x")
    assert gate.arrived.wait(20)
    with pytest.raises(holdfast.Unavailable):
        ticket.shipped(0.3)
    gate.open()
    ticket.shipped(20)
    log.close()
    assert bring().records == 21


def test_without_commit_batches_all_that_is_settled_comes_back(open_shipped, bring):
    log = open_shipped(segments=TEN, shipping={"commit_batches": False})
    fill(log, "orders", 2).append(b"x")
    log.ship(20)
    log.close()
    assert bring().records == 20
    back = open_shipped("back", segments=TEN)
    assert back.topic("orders").append(b"next", durability="shipped").offset == 20
    back.close()
    assert bring("again").records == 21


# -- holes --------------------------------------------------------------------------------------------------


def ship_one_by_one(log: Log, count: int) -> None:
    for _ in range(count):
        log.topic("orders").append(b"x", durability="shipped")


def test_behind_a_missing_batch_nothing_comes_back(open_shipped, bring, root):
    """Whole commits up to the hole, the rest is reported, and the new owner writes the numbers anew."""
    log = open_shipped()
    ship_one_by_one(log, 2)
    log.topic("orders").append_batch([b"x"] * 5, durability="shipped")
    ship_one_by_one(log, 3)
    log.close()
    root.store.delete([layout.batch_key(1, 3, 3)])
    report = bring(accept_loss=True)
    assert (report.records, report.cut_batches, report.cut_records) == (2, 3, 3)
    back = open_shipped("back")
    receipt = back.topic("orders").append(b"next", durability="shipped")
    assert (receipt.offset, receipt.seq) == (2, 3)
    back.close()
    assert bring("again").records == 3
    assert [r.payload for r in open_shipped("again").topic("orders").read()] == [b"x", b"x", b"next"]


def test_batches_behind_a_hole_may_be_damaged(open_shipped, bring, root):
    """They stay, whatever they are."""
    log = open_shipped()
    ship_one_by_one(log, 3)
    log.close()
    root.store.delete([layout.batch_key(1, seq, seq) for seq in (2, 3)])
    root.store.create(layout.batch_key(1, 3, 3), holdfast.store.port.Body.of(b"garbage"))
    report = bring(accept_loss=True)
    assert (report.records, report.cut_batches, report.cut_records, report.lost_commits) == (1, 1, 0, 2)


def test_what_an_overtaken_owner_ships_does_not_count(open_shipped, bring, root):
    """Its batches arrive after the takeover, under numbers that the new owner uses, too."""
    log, slow = open_shipped(), root.faults
    log.topic("orders").append(b"both", durability="shipped")
    gate = slow.hold("tail/")
    tickets = [log.topic("orders").submit(b"zombie") for _ in range(3)]
    assert gate.arrived.wait(20)
    root.faults = type(slow)()
    bring()
    back = open_shipped("back")
    back.topic("orders").append(b"new", durability="shipped")
    gate.open()
    with pytest.raises(Closed):
        tickets[-1].shipped(20)
    assert max(batch.last_seq for batch in root.batches() if batch.epoch == 1) > 1
    back.topic("orders").append(b"newer", durability="shipped")
    back.close()
    report = bring("again")
    assert [r.payload for r in open_shipped("again").topic("orders").read()] == [b"both", b"new", b"newer"]
    assert report.cut_batches >= 1


# -- who may ------------------------------------------------------------------------------------------------


def claims(root: Root) -> list[EpochDocument]:
    keys = root.keys(layout.EPOCHS)
    return [documents.decode(root.store.get(key), key, EpochDocument) for key in keys]


def test_two_restores_at_once_end_with_one_owner(open_shipped, bring, root, tmp_path):
    """One ends as the owner and ships on; the other learns of it, by the restore or at the latest when it is opened."""
    log = open_shipped()
    append_all(log)
    expected = contents(log)
    log.close()
    barrier, outcomes = threading.Barrier(3), {}

    def run(name: str) -> None:
        barrier.wait()
        try:
            outcomes[name] = bring(name)
        except HoldfastError as error:
            outcomes[name] = error

    threads = [threading.Thread(target=run, args=(f"back-{i}",)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    done = {name: report for name, report in outcomes.items() if isinstance(report, RestoreReport)}
    refusals = [error for error in outcomes.values() if not isinstance(error, RestoreReport)]
    assert all(isinstance(error, Closed) and error.reason == "fenced" for error in refusals), refusals
    owner = max(done, key=lambda name: done[name].epoch)
    for name in done:
        back = open_shipped(name)
        assert contents(back) == expected
        if name != owner:
            with pytest.raises(Closed):
                back.topic("orders").append(b"no", durability="shipped")
            back.close()
    back.close()
    back = open_shipped(owner)
    back.topic("orders").append(b"mine", durability="shipped")
    back.close()
    assert bring("again").records == sum(map(len, expected.values())) + 1


def test_a_restore_that_was_overtaken_half_way_takes_nothing_from_the_winner(open_shipped, bring, root):
    """It claimed first, slept before it said what it adopts, and looked when less was there."""
    log = open_shipped()
    ship_one_by_one(log, 1)
    gate = root.faults.hold("tail/00000000000000000001/", verbs=("create",), times=1)
    ticket = log.topic("orders").submit(b"x")
    assert gate.arrived.wait(20)
    owners, root.faults = root.faults, type(root.faults)()
    sleeping = root.faults.hold(".adopted", times=1)
    slow: list[object] = []

    def restore_slowly() -> None:
        try:
            slow.append(bring("slow"))
        except HoldfastError as error:
            slow.append(error)

    thread = threading.Thread(target=restore_slowly)
    thread.start()
    assert sleeping.arrived.wait(20)
    gate.open()
    with pytest.raises(Closed):
        ticket.shipped(20)
    owners.heal()
    root.faults = type(root.faults)()
    assert bring("fast").records == 2  # what the old owner still sent is there, and counts from now on
    fast = open_shipped("fast")
    fast.topic("orders").append(b"next", durability="shipped")
    sleeping.open()
    thread.join(20)
    assert isinstance(slow[0], Closed)
    fast.topic("orders").append(b"next", durability="shipped")
    fast.close()
    assert bring("again").records == 4
    fast = open_shipped("again")
    assert fast.topic("orders").append(b"next", durability="shipped").offset == 4


def test_a_restore_that_was_overtaken_at_the_very_end_is_no_log(open_shipped, bring, tmp_path):
    """Another one came and went while it made its database: it learns of it, and run again it takes the log over."""
    log = open_shipped()
    append_all(log)
    log.close()

    def overtake(what: str, _done: int, _total: int) -> None:
        if what == "making the database":
            bring("faster")

    with pytest.raises(Closed) as caught:
        bring(progress=overtake)
    assert caught.value.reason == "fenced"
    assert not (tmp_path / "back" / "FORMAT").exists()
    assert bring().epoch == 4
    open_shipped("back").topic("orders").append(b"mine", durability="shipped")


def test_what_the_old_owner_still_says_about_a_topic_does_not_stop_the_new_one(open_shipped, bring, root):
    """It was idle and does not know: its document takes the next number, and the owner's goes above it."""
    log = open_shipped()
    log.topic("orders").append(b"x", durability="shipped")
    bring()
    back = open_shipped("back")
    back.topic("orders").append(b"x", durability="shipped")
    log.set_retention("orders", records_max=5)
    wait_for(lambda: len(root.topic_documents("orders")) == 2)
    back.set_retention("orders", records_max=7)
    back.topic("orders").append(b"x", durability="shipped")
    assert back.stats().shipping.ended is None
    back.close()
    limits = [document.retention for document in root.topic_documents("orders")]
    assert [limit and limit.records_max for limit in limits] == [None, 5, 7]
    bring("again")
    assert open_shipped("again")._journal.policies["orders"].records_max == 7


def test_a_segment_that_the_old_owner_settles_during_the_takeover_is_adopted(open_shipped, bring, root, faults):
    """It takes the slot that was to be ours: the start comes behind it, and its records come back once."""
    log = open_shipped(segments=TEN)
    fill(log, "orders", 1)
    log.ship(20)
    log.topic("orders").append_batch([b"x"] * 4, durability="shipped")
    gate = faults.hold("_manifest/", times=1)
    reports: list[RestoreReport] = []
    thread = threading.Thread(target=lambda: reports.append(bring()))
    thread.start()
    assert gate.arrived.wait(20)
    log.seal()
    with pytest.raises(Closed):
        log.ship(20)
    gate.open()
    thread.join(20)
    assert [isinstance(document, StartDocument) for document in root.manifest("orders")] == [False, False, True]
    assert (reports[0].records, reports[0].segments, reports[0].tail_records) == (14, 2, 0)
    back = open_shipped("back", segments=TEN)
    assert [r.offset for r in back.topic("orders").read()] == list(range(14))
    back.topic("orders").append(b"x", durability="shipped")
    back.seal()
    back.ship(20)
    assert mark(back).settled == 15


def test_whatever_was_acknowledged_before_the_takeover_is_there(open_shipped, bring):
    """While the old owner writes and seals as fast as it can, from several threads."""
    log = open_shipped(segments={"rows_max": 40})
    topic = log.topic("orders", partitions=2)
    shipped: set[tuple[int, int, bytes]] = set()
    ready = threading.Semaphore(0)

    def work(name: int) -> None:
        for i in range(100_000):
            try:
                receipt = topic.append(payload := b"%d-%d" % (name, i), durability="shipped")
            except Closed:
                return
            shipped.add((receipt.partition, receipt.offset, payload))
            ready.release()

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        assert ready.acquire(timeout=30)
    report = bring()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    back = {(r.partition, r.offset, r.payload) for r in open_shipped("back").topic("orders").read()}
    assert shipped <= back
    assert report.records == len(back)
    assert len(shipped) >= 100


# -- copies -------------------------------------------------------------------------------------------------


def test_a_copy_leaves_the_store_as_it_is(open_shipped, open_log, bring, root):
    """To the byte; it opens without a store, refuses one, and its owner goes on."""
    log = open_shipped(segments=TEN)
    fill(log, "orders", 2)
    log.ship(20)
    append_all_raw = log.topic("orders").append(b"x", durability="shipped")
    before = root.objects()
    report = bring("copy", copy=True)
    assert root.objects() == before
    assert (report.epoch, report.records) == (0, append_all_raw.offset + 1)
    with pytest.raises(Invalid, match="is a copy"):
        open_shipped("copy")
    copy = open_log("copy", segments=TEN)
    assert contents(copy) == contents(log)
    copy.topic("orders").append(b"mine alone")
    log.topic("orders").append(b"goes on", durability="shipped")
    assert len(root.keys(layout.EPOCHS)) == 1


def test_a_copy_can_be_made_while_the_owner_ships_settles_and_tidies_up(open_shipped, bring, tmp_path):
    """What it lists may be gone a moment later: it looks again."""
    log = open_shipped(segments={"rows_max": 20})
    topic = log.topic("orders")
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            topic.append_batch([b"%d" % n for n in range(10)])

    thread = threading.Thread(target=work)
    thread.start()
    try:
        last = -1
        for turn in range(4):
            shipped = topic.append(b"x", durability="shipped").offset
            report = bring(f"copy-{turn}", copy=True)
            assert report.records > shipped > last
            last = shipped
    finally:
        stop.set()
        thread.join(20)


def test_a_batch_that_is_settled_and_removed_after_it_was_listed_is_not_missed(
    open_shipped, bring, faults, sweep, root
):
    """Nor is it damage: the next look finds its records in a segment."""
    log = open_shipped(segments=TEN)
    log.topic("orders").append_batch([b"x"] * 4, durability="shipped")
    gate = faults.hold(".arrow", verbs=("get",), times=1)
    reports: list[RestoreReport] = []
    thread = threading.Thread(target=lambda: reports.append(bring(copy=True)))
    thread.start()
    assert gate.arrived.wait(20)
    log.seal()
    log.ship(20)
    sweep(log)
    assert root.batches() == []
    gate.open()
    thread.join(20)
    assert (reports[0].records, reports[0].tail_records) == (4, 0)


def test_a_copy_of_a_copy_attempt_may_become_a_takeover(open_shipped, bring, faults):
    """Interrupted as a copy, run again without: one directory, one claim."""
    log = open_shipped(segments=TEN)
    fill(log, "orders", 2)
    log.ship(20)
    log.close()
    faults.fail("-", verbs=("get_range",))
    with pytest.raises(holdfast.Unavailable):
        bring(copy=True)
    faults.heal()
    assert bring().epoch == 2
    assert len(contents(open_shipped("back"))["orders"]) == 20


# -- keys ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sealed", [True, False], ids=["segments", "tail"])
@pytest.mark.parametrize("given", ["none", "wrong key", "lacks the key", "cipher"])
def test_without_the_right_key_nobody_is_shut_out(open_shipped, bring, root, keyring, sealed, given):
    """The living owner does not notice, and with the right key the same directory takes over."""
    log = open_shipped(keyring=keyring)
    log.topic("orders").append(b"x", durability="shipped")
    if sealed:
        log.seal()
        log.ship(20)
    before = root.objects()
    wrong = {
        "none": {},
        "wrong key": {"keyring": Keyring.generate(clock=ManualClock(seed=99))},
        "lacks the key": {"keyring": Keyring.generate("other")},
        "cipher": {"cipher": OwnCipher()},
    }[given]
    with pytest.raises(Invalid):
        bring(**wrong)
    assert root.objects() == before
    log.topic("orders").append(b"goes on", durability="shipped")
    log.close()
    assert bring(keyring=keyring).records == 2


@pytest.mark.parametrize("sealed", [True, False], ids=["segments", "tail"])
def test_a_log_under_a_cipher_of_ones_own_needs_it(open_shipped, bring, root, keyring, sealed):
    """Nothing in its manifest names a key."""
    log = open_shipped(cipher=OwnCipher())
    log.topic("orders").append(b"x", durability="shipped")
    if sealed:
        log.seal()
        log.ship(20)
    before = root.objects()
    for wrong in ({}, {"keyring": keyring}):
        with pytest.raises(Invalid):
            bring(**wrong)
    assert root.objects() == before
    assert bring(cipher=OwnCipher()).records == 1


@pytest.mark.parametrize("sealed", [True, False], ids=["segments", "tail"])
def test_a_key_for_a_log_that_has_none_is_refused(open_shipped, bring, root, keyring, sealed):
    log = open_shipped()
    log.topic("orders").append(b"x", durability="shipped")
    if sealed:
        log.seal()
        log.ship(20)
    before = root.objects()
    with pytest.raises(Invalid, match="the log at this root has no keys"):
        bring(keyring=keyring)
    assert root.objects() == before
    assert bring().records == 1


# -- where to -----------------------------------------------------------------------------------------------


def test_only_a_new_or_empty_directory_is_taken(open_shipped, open_log, bring, root, tmp_path):
    """Nothing is written into a foreign one, not even a lock; nothing is claimed."""
    open_shipped().topic("orders").append(b"x", durability="shipped")
    before = root.objects()
    open_log("mine").close()
    (tmp_path / "diary").mkdir()
    (tmp_path / "diary" / "monday").write_text("rain")
    for name in ("mine", "diary"):
        with pytest.raises(Invalid) as caught:
            bring(name)
        assert "new or empty directory" in caught.value.hint
    assert [path.name for path in (tmp_path / "diary").iterdir()] == ["monday"]
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(Invalid, match="not a directory"):
        bring("file")
    assert root.objects() == before
    (tmp_path / "empty").mkdir()
    assert bring("empty").records == 1


def test_another_logs_interrupted_restore_is_refused(open_shipped, bring, root, make_root):
    other = make_root()
    for name, target in (("one", root), ("two", other)):
        log = open_shipped(name, to=target, segments=TEN)
        fill(log, "orders", 1)
        log.ship(20)
        log.close()
    other.faults.fail("-", verbs=("get_range",))
    with pytest.raises(holdfast.Unavailable):
        bring("back", of=other)
    with pytest.raises(Invalid, match="another log was being restored here"):
        bring("back")
    assert len(root.keys(layout.EPOCHS)) == 1
    other.faults.heal()
    assert bring("back", of=other).records == 10


def test_a_root_without_a_log_is_reported(bring, tmp_path):
    with pytest.raises(holdfast.NotFound, match="there is no log at this root"):
        bring()
    assert not (tmp_path / "back").exists()


def test_a_directory_where_a_restore_runs_is_not_taken_by_another_one(open_shipped, bring, faults):
    log = open_shipped(segments=TEN)
    fill(log, "orders", 1)
    log.ship(20)
    log.close()
    gate = faults.hold("segments/", verbs=("get_range",))
    thread = threading.Thread(target=bring)
    thread.start()
    assert gate.arrived.wait(20)
    with pytest.raises(holdfast.Unavailable, match="another handle"):
        bring()
    gate.open()
    thread.join(20)
    assert len(contents(open_shipped("back"))["orders"]) == 10


# -- interruptions and failures of the store ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "verbs"),
    [
        ("log.json", ("get",)),
        ("tail/", ("list",)),
        ("topics/", ("list",)),
        ("_manifest/", ("get",)),
        ("tail/", ("get",)),
        ("segments/", ("get_range",)),
        ("epochs/", ("create",)),
        (".adopted", ("create",)),
        ("_manifest/", ("create",)),
    ],
)
def test_a_store_that_fails_half_way_ends_it_and_running_it_again_goes_on(
    open_shipped, bring, root, faults, part, verbs, monkeypatch
):
    """Under the same claim, with what was fetched; nothing passes for a log meanwhile."""
    monkeypatch.setattr("holdfast.shipping.ownership.takeover._PAUSE_S", 0.001)
    log = open_shipped(segments=TEN)
    fill(log, "orders", 3).append(b"x", durability="shipped")
    log.ship(20)
    log.close()
    faults.fail(part, verbs=verbs)
    with pytest.raises(holdfast.Unavailable):
        bring()
    faults.heal()
    if (log.path.parent / "back").exists():
        with pytest.raises(Invalid, match="not a log"):
            open_shipped("back")
    report = bring()
    assert report.records == 31
    assert report.epoch == 2
    assert report.resumed == (3 if verbs == ("create",) else 0)
    assert len(contents(open_shipped("back"))["orders"]) == 31


@pytest.mark.parametrize("part", ["epochs/", ".adopted", "_manifest/"])
def test_lost_replies_change_nothing(open_shipped, bring, root, faults, part, monkeypatch):
    monkeypatch.setattr("holdfast.shipping.ownership.takeover._PAUSE_S", 0.001)
    log = open_shipped(segments=TEN)
    fill(log, "orders", 1)
    log.ship(20)
    log.close()
    faults.lose(part, times=1)
    assert bring().epoch == 2
    assert len([d for d in root.manifest("orders") if isinstance(d, StartDocument)]) == 1
    back = open_shipped("back", segments=TEN)
    fill(back, "orders", 1)
    back.ship(20)
    assert mark(back).settled == 20


def test_segments_that_are_here_are_not_fetched_again(open_shipped, bring, faults):
    """Unless they are not what they should be; what else lies beside them goes."""
    log = open_shipped(segments=TEN)
    fill(log, "orders", 4)
    log.ship(20)
    log.close()
    faults.fail("00003-", verbs=("get_range",))
    with pytest.raises(holdfast.Unavailable):
        bring()
    faults.heal()
    folder = log.path.parent / "back" / "segments" / layout.segments_folder("orders", 0)
    files = sorted(folder.iterdir())
    assert len(files) == 3
    files[1].write_bytes(b"damaged here")
    (folder / "stray.parquet").write_bytes(b"")
    seen = len(faults.seen)
    assert bring().resumed == 2
    fetched = {request.key for request in faults.seen[seen:] if request.verb == "get_range"}
    assert len(fetched) == 2
    back = open_shipped("back")
    assert back.reconcile(deep=True).findings == ()
    assert len(contents(back)["orders"]) == 40


# -- how it is called ---------------------------------------------------------------------------------------


def test_progress_never_goes_back_and_reaches_its_end(open_shipped, bring):
    log = open_shipped(segments=TEN)
    fill(log, "orders", 5)
    log.topic("many", partitions=7).append(b"x", durability="shipped")
    log.ship(20)
    log.close()
    calls: list[tuple[str, int, int]] = []
    threads: set[int] = set()
    inside = threading.Lock()

    def progress(what: str, done: int, total: int) -> None:
        assert inside.acquire(blocking=False), "called twice at the same time"
        calls.append((what, done, total))
        threads.add(threading.get_ident())
        inside.release()

    bring(progress=progress)
    by_step: dict[str, list[tuple[int, int]]] = {}
    for what, done, total in calls:
        by_step.setdefault(what, []).append((done, total))
    assert next(iter(by_step)) == "reading manifests"
    assert list(by_step)[-1] == "making the database"
    assert by_step["fetching segments"][-1] == (5, 5)
    assert by_step["reading manifests"][-1] == (8, 8)
    for steps in by_step.values():
        assert [done for done, _ in steps] == sorted(done for done, _ in steps)
        assert steps[-1][0] == steps[-1][1]


def test_it_works_inside_a_running_event_loop(open_shipped, bring):
    log = open_shipped()
    append_all(log)
    log.close()

    async def inside() -> RestoreReport:
        return bring()

    assert asyncio.run(inside()).epoch == 2


def test_memory_does_not_grow_with_the_size_of_a_segment(open_shipped, bring, monkeypatch, make_root, tmp_path):
    """Files come in pieces."""
    root = make_root(tmp_path / "store")
    monkeypatch.setattr(fetching, "_RANGE_BYTES", 64 * 2**10)
    log = open_shipped(to=root)
    clock = ManualClock(seed=3)
    for _ in range(24):
        log.topic("orders").append(clock.random_bytes(2**20), timeout=30)
    log.seal()
    log.ship(30)
    log.close()
    assert bring("warm", of=root, copy=True).bytes > 20 * 2**20
    tracemalloc.start()
    try:
        bring(of=root)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6 * 2**20


# -- random histories ---------------------------------------------------------------------------------------

QUIET = {
    "segments": {"seal_on_close": False, "age_max_ms": "1000h"},
    "disk": {"free_bytes_min": 0},
    "shipping": {"retry_base_delay_ms": 1, "checkpoint_every": 3, "batch_size_threshold": 3},
    "retention": {"interval_ms": 3_600_000},
}


class RestoreMachine(RuleBasedStateMachine):
    """Appends, seals, reopenings, losses of the machine; whatever was shipped is there, and nothing else than was
    appended.
    """

    keyed = False

    @initialize(first=st.sampled_from([0, 5, 2**40]))
    def begin(self, first):
        self.root = Path(tempfile.mkdtemp())
        self.url = f"memory://{uuid4().hex}"
        self.keyring = Keyring.generate(clock=ManualClock(seed=1)) if self.keyed else None
        self.lives = 0
        self.first = first
        self.model = {0: [], 1: []}
        self.shipped = {0: 0, 1: 0}
        self.columns = 1
        self.rows: list[int] = []
        self.log = self.open()

    def open(self):
        path = self.root / str(self.lives)
        log = holdfast.open(path, store=self.url, settings=Settings.from_mapping(QUIET), keyring=self.keyring)
        self.topic = log.topic("t", partitions=2, first_offset=self.first)
        self.typed = log.topic("rows", schema=self.schema())
        return log

    def schema(self):
        return pa.schema({f"c{i}": pa.int64() for i in range(self.columns)})

    @rule(partition=st.sampled_from([0, 1]), payloads=st.lists(st.binary(max_size=9), min_size=1, max_size=4))
    def append(self, partition, payloads):
        receipts = self.topic.append_batch(payloads, partition=partition)
        assert receipts[0].offset == self.first + len(self.model[partition])
        self.model[partition] += payloads

    @rule(count=st.integers(1, 3))
    def append_rows(self, count):
        rows = [{"c0": len(self.rows) + i} for i in range(count)]
        self.typed.append(rows)
        self.rows += [row["c0"] for row in rows]

    @precondition(lambda self: self.columns < 3)
    @rule()
    def widen(self):
        self.columns += 1
        self.typed = self.log.topic("rows", schema=self.schema())

    @rule()
    def seal(self):
        self.log.seal()

    @rule()
    def ship(self):
        """Everything is on the store now: the last one to be reported is the last one there is."""
        self.typed.append([{"c0": len(self.rows)}], durability="shipped")
        self.rows.append(len(self.rows))

    @rule()
    def settle(self):
        self.log.ship(20)

    @rule()
    def reopen(self):
        self.log.close()
        self.log = self.open()

    @rule(stays=st.booleans())
    def lose_the_machine(self, stays):
        """What was acknowledged as shipped is there; the rest may be."""
        shipped = [mark.shipped - self.first for mark in self.log.marks("t")]
        rows = self.log.marks("rows")[0].shipped
        if stays:
            self.log.close()
            shipped = [len(self.model[0]), len(self.model[1])]
            rows = len(self.rows)
        old = self.log
        self.lives += 1
        report = holdfast.restore(
            self.url, self.root / str(self.lives), settings=Settings.from_mapping(QUIET), keyring=self.keyring
        )
        old.close()
        self.log = self.open()
        for partition, kept in self.model.items():
            got = len(self.read(partition))
            assert got >= shipped[partition]
            del kept[got:]
        got = self.log.marks("rows")[0].durable
        assert got >= rows
        del self.rows[got:]
        assert report.records == sum(map(len, self.model.values())) + len(self.rows)
        self.check()

    def read(self, partition):
        records = list(self.topic.read(partition=partition))
        assert [r.offset for r in records] == list(range(self.first, self.first + len(records)))
        return [r.payload for r in records]

    def check(self):
        assert {partition: self.read(partition) for partition in (0, 1)} == self.model
        assert [row["c0"] for row in self.typed.read()] == self.rows
        assert self.log.reconcile().findings == ()

    def teardown(self):
        self.check()
        self.log.close()
        self.lives += 1
        report = holdfast.restore(
            self.url,
            self.root / str(self.lives),
            settings=Settings.from_mapping(QUIET),
            keyring=self.keyring,
            copy=True,
        )
        assert report.records == sum(map(len, self.model.values())) + len(self.rows)
        shutil.rmtree(self.root)


class KeyedRestoreMachine(RestoreMachine):
    """The same, encrypted."""

    keyed = True


small = settings(
    max_examples=12,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestRandomHistories = RestoreMachine.TestCase
TestRandomHistories.settings = small
TestKeyedRandomHistories = KeyedRestoreMachine.TestCase
TestKeyedRandomHistories.settings = small
