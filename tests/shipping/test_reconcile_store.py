"""Reconciliation with the store: planted damage is found, all of it and nothing else; repairs are careful; a busy log
has no false finding.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import Closed, Corrupt, Invalid, Log, Unavailable
from holdfast.reconcile.manifest_walk import ManifestWalk, PartitionFacts, Slot
from holdfast.reconcile.reconcile_report import ReconcileReport
from holdfast.root.objects import checkpoint, commit_batch, documents
from holdfast.root.objects.commit_batch import CommitBatch
from holdfast.root.objects.documents import (
    AdoptedDocument,
    EpochDocument,
    ExpiredDocument,
    FloorDocument,
    SegmentDocument,
    StartDocument,
)
from holdfast.store import layout
from holdfast.store.port import Body, Store
from tests.observer import observing
from tests.segments.planting import ROWS, TEN, edit, files, fill, wait_for
from tests.shipping.conftest import Root, mark

pytestmark = pytest.mark.store

Found = set[tuple[str, str, int, int | None, str | None]]

NUMBERS = pa.schema([pa.field("number", pa.int64())])
MORE = pa.schema([pa.field("number", pa.int64()), pa.field("text", pa.string())])


@pytest.fixture(params=["memory", "directory"])
def either(request: pytest.FixtureRequest, make_root: Callable[..., Root], tmp_path: Path) -> Root:
    return make_root("memory" if request.param == "memory" else tmp_path / "store")


@pytest.fixture
def log(open_shipped: Callable[..., Log]) -> Log:
    return shipped(open_shipped(segments=TEN, shipping={"checkpoint_every": 3}))


def shipped(log: Log) -> Log:
    """Four settled segments in each of two partitions, one in another topic, and a tail in commit batches."""
    log.topic("orders", partitions=2)
    for name, partition, segments in (("orders", 0, 4), ("orders", 1, 4), ("other", 0, 1)):
        fill(log, name, segments, partition=partition)
    log.ship(20)
    for _ in range(3):
        log.topic("orders").append(b"next", durability="shipped")
    return log


def found(report: ReconcileReport) -> Found:
    got = [(f.kind, f.topic, f.partition, f.number, f.name) for f in report.findings]
    assert len(set(got)) == len(got), "a problem is reported once"
    assert all(finding.where == "store" and finding.detail for finding in report.findings)
    return set(got)


def replace(root: Root, key: str, data: bytes) -> None:
    root.store.delete([key])
    root.store.create(key, Body.of(data))


def flipped(data: bytes) -> bytes:
    return data[:40] + bytes([data[40] ^ 1]) + data[41:]


def segment_keys(root: Root, topic: str = "orders", partition: int = 0) -> list[str]:
    return root.keys(layout.segments_folder(topic, partition) + "/")


def manifest_key(slot: int, partition: int = 0) -> str:
    return layout.manifest_key("orders", partition, slot)


def tail_keys(root: Root) -> list[str]:
    return [key for key in root.keys(layout.TAIL) if layout.parse_batch_key(key)]


# -- what is sound --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("deep", [False, True])
def test_a_sound_store_has_no_finding(open_shipped, either, keyring, keyed, deep):
    log = shipped(open_shipped(to=either, segments=TEN, keyring=keyring if keyed else None))
    report = log.reconcile(remote=True, deep=deep)
    assert (report.findings, report.complete, report.deep, report.where) == ((), True, deep, "store")
    assert report.segments == 9
    assert report.bytes_actual == report.bytes_expected > 0
    # segments, their manifest objects, batches, and besides: the log and two topics; deep: the claim
    assert report.files == 9 + 9 + len(tail_keys(either)) + 4 + deep


def test_a_store_that_has_nothing_yet_has_no_finding(open_shipped):
    assert open_shipped().reconcile(remote=True, deep=True).clean


def test_a_handle_that_only_looks_compares_too(log, root, open_shipped):
    """From the database alone; the owner goes on."""
    wait_for(lambda: not log.unshipped())
    log.close()
    observer = open_shipped(read_only=True)
    assert observer.reconcile(remote=True, deep=True).clean
    key = segment_keys(root)[1]
    root.store.delete([key])
    assert found(observer.reconcile(remote=True)) == {("missing", "orders", 0, 1, key)}


def test_segments_that_only_the_store_has_are_no_finding(open_shipped, root):
    """Retention here says nothing about the store."""
    log = shipped(open_shipped(segments=TEN))
    log.set_retention("orders", records_max=ROWS)
    log.retain()
    assert len(files(log, "orders")) < 4
    assert log.reconcile(remote=True, deep=True).clean
    key = segment_keys(root)[0]
    root.store.delete([key])
    assert found(log.reconcile(remote=True)) == {("missing", "orders", 0, 0, key)}


def test_segments_that_are_retired_on_the_store_are_not_missing(log, root):
    document = ExpiredDocument(log=log.id, topic="orders", partition=0, upto=2, first=2 * ROWS, expired_us=0)
    root.store.create(layout.expired_key("orders", 0, 2), Body.of(documents.encode(document)))
    keys = segment_keys(root)
    root.store.delete(keys[:1])
    report = log.reconcile(remote=True, deep=True)
    assert (report.findings, report.in_flight) == ((), 1)
    root.store.delete(keys[1:3])
    assert found(log.reconcile(remote=True)) == {("missing", "orders", 0, 2, keys[2])}


def test_what_lies_above_settled_is_in_flight_and_left_alone(log, root):
    """Whatever it is: nothing there was promised to anybody yet."""
    planted = [
        f"{layout.segments_folder('orders', 0)}/{layout.segment_name(4, b'x' * 32)}",
        f"{layout.segments_folder('orders', 0)}/{layout.segment_name(900, b'y' * 32)}",
        manifest_key(4),
        layout.batch_key(1, 10**6, 10**6 + 1),
    ]
    for key in planted:
        root.store.create(key, Body.of(b"on its way"))
    before = root.objects()
    for fix in (False, True):
        report = log.reconcile(remote=True, deep=True, fix=fix)
        assert (report.findings, report.repairs, report.in_flight) == ((), (), 4)
    assert root.objects() == before


def test_a_log_that_was_brought_back_from_its_store_has_no_finding(log, root, tmp_path, open_shipped):
    """Its slots have starts among them."""
    log.close()
    for name in ("second", "third"):
        holdfast.restore(root.url, tmp_path / name)
        taken = open_shipped(name, segments=TEN)
        fill(taken, "orders", 2)
        taken.ship(20)
        assert taken.reconcile(remote=True, deep=True).clean
        assert taken.reconcile(remote=True).clean
        taken.close()
    assert sum(isinstance(document, StartDocument) for document in root.manifest("orders")) == 2


# -- damage ---------------------------------------------------------------------------------------------------


def a_missing_segment(log: Log, root: Root) -> Found:
    key = segment_keys(root)[1]
    root.store.delete([key])
    return {("missing", "orders", 0, 1, key)}


def all_segments_missing(log: Log, root: Root) -> Found:
    keys = segment_keys(root, partition=1)
    root.store.delete(keys)
    return {("missing", "orders", 1, number, key) for number, key in enumerate(keys)}


def a_short_segment(log: Log, root: Root) -> Found:
    key = segment_keys(root)[3]
    replace(root, key, root.store.get(key)[:-1])
    return {("size_mismatch", "orders", 0, 3, key)}


def a_segment_of_another_hash(log: Log, root: Root) -> Found:
    key = f"{layout.segments_folder('orders', 0)}/{layout.segment_name(2, b'z' * 32)}"
    root.store.create(key, Body.of(b"an overtaken owner's"))
    return {("untracked", "orders", 0, 2, key)}


def a_foreign_name_among_segments(log: Log, root: Root) -> Found:
    key = f"{layout.segments_folder('orders', 0)}/notes.txt"
    root.store.create(key, Body.of(b"x"))
    return {("untracked", "orders", 0, None, key)}


def a_foreign_name_among_manifest_objects(log: Log, root: Root) -> Found:
    key = layout.manifest_folder("orders", 1) + "notes.txt"
    root.store.create(key, Body.of(b"x"))
    return {("untracked", "orders", 1, None, key)}


def a_foreign_folder(log: Log, root: Root) -> Found:
    keys = [f"{layout.partition_folder('orders', 1)}/{name}" for name in ("a/x", "manifesto", "zoo/y")]
    for key in keys:
        root.store.create(key, Body.of(b"x"))
    return {("untracked", "orders", 1, None, key) for key in keys}


def a_foreign_name_in_the_tail(log: Log, root: Root) -> Found:
    root.store.create("tail/notes.txt", Body.of(b"x"))
    return {("untracked", "", -1, None, "tail/notes.txt")}


def a_missing_manifest_object(log: Log, root: Root) -> Found:
    root.store.delete([manifest_key(1)])
    return {("missing", "orders", 0, 1, manifest_key(1))}


def the_last_manifest_object_missing(log: Log, root: Root) -> Found:
    root.store.delete([manifest_key(3, 1)])
    return {("missing", "orders", 1, 3, manifest_key(3, 1))}


def a_short_manifest_object(log: Log, root: Root) -> Found:
    replace(root, manifest_key(2), root.store.get(manifest_key(2))[:-2])
    return {("content_mismatch", "orders", 0, 2, manifest_key(2))}


def a_start_in_place_of_a_segment(log: Log, root: Root) -> Found:
    document = StartDocument(
        log=log.id, topic="orders", partition=0, slot=1, epoch=9, nonce="", number=1, first=ROWS, adopted_seq=0
    )
    replace(root, manifest_key(1), documents.encode(document))
    return {("content_mismatch", "orders", 0, 1, manifest_key(1))}


def a_damaged_checkpoint(log: Log, root: Root) -> Found:
    (key,) = root.keys(layout.checkpoints_folder("orders", 0))
    replace(root, key, flipped(root.store.get(key)))
    return {("content_mismatch", "orders", 0, None, key)}


def a_checkpoint_of_other_segments(log: Log, root: Root) -> Found:
    (key,) = root.keys(layout.checkpoints_folder("orders", 1))
    rows = [documents.decode_manifest(root.store.get(manifest_key(slot, 1)), "") for slot in range(3)]
    rows[2] = msgspec.structs.replace(rows[2], sealed_us=1, check="")
    replace(root, key, checkpoint.encode(rows))
    return {("content_mismatch", "orders", 1, None, key)}


def a_missing_topic_document(log: Log, root: Root) -> Found:
    key = layout.topic_key("orders", 1)
    root.store.delete([key])
    return {("missing", "orders", -1, None, key)}


def a_damaged_topic_document(log: Log, root: Root) -> Found:
    key = layout.topic_key("other", 1)
    replace(root, key, flipped(root.store.get(key)))
    return {("content_mismatch", "other", -1, None, key)}


def a_topic_document_of_another_topic(log: Log, root: Root) -> Found:
    key = layout.topic_key("other", 1)
    replace(root, key, root.store.get(layout.topic_key("orders", 1)))
    return {("content_mismatch", "other", -1, None, key)}


def a_missing_log_document(log: Log, root: Root) -> Found:
    root.store.delete([layout.LOG])
    return {("missing", "", -1, None, layout.LOG)}


def another_logs_document(log: Log, root: Root) -> Found:
    replace(root, layout.LOG, documents.encode(documents.LogDocument(log="00" * 16, created_us=1)))
    return {("content_mismatch", "", -1, None, layout.LOG)}


def a_missing_claim(log: Log, root: Root) -> Found:
    claim = EpochDocument(log=log.id, epoch=3, purpose="open", nonce="", claimed_us=0, host="", pid=0)
    root.store.create(layout.epoch_key(3), Body.of(documents.encode(claim)))
    return {("missing", "", -1, None, layout.epoch_key(2))}


def a_damaged_retirement(log: Log, root: Root) -> Found:
    key = layout.expired_key("orders", 0, 1)
    root.store.create(key, Body.of(b"{}"))
    return {("content_mismatch", "orders", 0, None, key)}


def a_missing_batch(log: Log, root: Root) -> Found:
    root.store.delete(tail_keys(root)[1:2])
    return {("gap", "", -1, None, layout.TAIL)}


def all_batches_missing(log: Log, root: Root) -> Found:
    root.store.delete(tail_keys(root))
    return {("gap", "", -1, None, layout.TAIL)}


def a_false_floor(log: Log, root: Root) -> Found:
    """Above what is settled: commits below it would not be looked for."""
    last = layout.parse_batch_key(tail_keys(root)[-1]).last_seq
    key = layout.floor_key(1, last)
    root.store.create(key, Body.of(documents.encode(FloorDocument(log=log.id, epoch=1, seq=last))))
    return {("content_mismatch", "", -1, None, key)}


SHALLOW = [
    a_false_floor,
    a_missing_segment, all_segments_missing, a_short_segment, a_segment_of_another_hash, a_foreign_name_among_segments,
    a_foreign_name_among_manifest_objects, a_foreign_folder, a_foreign_name_in_the_tail, a_missing_manifest_object,
    the_last_manifest_object_missing, a_short_manifest_object, a_start_in_place_of_a_segment, a_damaged_checkpoint,
    a_checkpoint_of_other_segments, a_missing_topic_document, a_damaged_topic_document,
    a_topic_document_of_another_topic, a_missing_log_document, another_logs_document, a_missing_claim,
    a_damaged_retirement, a_missing_batch, all_batches_missing,
]  # fmt: skip


def a_changed_segment(log: Log, root: Root) -> Found:
    key = segment_keys(root, "other")[0]
    replace(root, key, flipped(root.store.get(key)))
    return {("content_mismatch", "other", 0, 0, key)}


def a_changed_manifest_object(log: Log, root: Root) -> Found:
    """Same size, and whole in itself: only its bytes differ."""
    document = documents.decode_manifest(root.store.get(manifest_key(1)), "")
    assert isinstance(document, SegmentDocument)
    other = msgspec.structs.replace(document, content="00" * 32)
    replace(root, manifest_key(1), documents.encode(other))
    return {("content_mismatch", "orders", 0, 1, manifest_key(1))}


def a_damaged_manifest_object(log: Log, root: Root) -> Found:
    replace(root, manifest_key(0, 1), flipped(root.store.get(manifest_key(0, 1))))
    return {("content_mismatch", "orders", 1, 0, manifest_key(0, 1))}


def a_damaged_batch(log: Log, root: Root) -> Found:
    key = tail_keys(root)[-1]
    replace(root, key, flipped(root.store.get(key)))
    return {("content_mismatch", "", -1, None, key)}


def a_batch_under_another_name(log: Log, root: Root) -> Found:
    first, last = tail_keys(root)[-2:]
    replace(root, last, root.store.get(first))
    return {("content_mismatch", "", -1, None, last)}


def a_damaged_claim(log: Log, root: Root) -> Found:
    replace(root, layout.epoch_key(1), flipped(root.store.get(layout.epoch_key(1))))
    return {("content_mismatch", "", -1, None, layout.epoch_key(1))}


def a_forged_batch(log: Log, root: Root) -> Found:
    """Whole in itself; its entries are not those of the journal."""
    key = tail_keys(root)[-1]
    batch = commit_batch.decode(root.store.get(key), key)
    forged = [entry._replace(body=b"forged", digest=bytes(16)) for entry in batch.entries]
    replace(root, key, commit_batch.encode(batch._replace(entries=forged)))
    return {("content_mismatch", "", -1, None, key)}


def a_damaged_floor(log: Log, root: Root) -> Found:
    key = layout.floor_key(1, 1)
    root.store.create(key, Body.of(flipped(documents.encode(FloorDocument(log=log.id, epoch=1, seq=1)))))
    return {("content_mismatch", "", -1, None, key)}


def a_damaged_adoption(log: Log, root: Root) -> Found:
    key = layout.adopted_key(1, 1)
    root.store.create(key, Body.of(flipped(documents.encode(AdoptedDocument(log=log.id, epoch=1, seq=1)))))
    return {("content_mismatch", "", -1, None, key)}


DEEP = [
    a_forged_batch, a_damaged_floor, a_damaged_adoption,
    a_changed_segment, a_changed_manifest_object, a_damaged_manifest_object, a_damaged_batch,
    a_batch_under_another_name, a_damaged_claim,
]  # fmt: skip


@pytest.mark.parametrize("plant", SHALLOW)
def test_planted_damage_is_found_and_nothing_else(log, root, plant):
    planted = plant(log, root)
    assert found(log.reconcile(remote=True)) == planted
    assert found(log.reconcile(remote=True, deep=True)) == planted


@pytest.mark.parametrize("plant", DEEP)
def test_damage_inside_of_objects_is_found_by_a_deep_pass(log, root, plant):
    planted = plant(log, root)
    assert log.reconcile(remote=True).clean
    assert found(log.reconcile(remote=True, deep=True)) == planted


def test_a_hole_among_batches_says_which_commits_are_gone(log, root):
    names = [layout.parse_batch_key(key) for key in tail_keys(root)]
    a_missing_batch(log, root)
    (finding,) = log.reconcile(remote=True).findings
    assert (finding.expected, finding.actual) == (names[1].first_seq, names[2].first_seq)


def test_a_missing_segment_says_what_it_held(log, root):
    a_missing_segment(log, root)
    (finding,) = log.reconcile(remote=True).findings
    assert (finding.first, finding.rows) == (ROWS, ROWS)
    assert finding.expected > 0
    assert finding.actual is None


def test_a_damaged_manifest_here_ends_the_pass(log, open_shipped, root):
    """Nothing is judged on the word of a row that does not match its stamp."""
    log.close()
    edit(log.path, "UPDATE segments SET size = size + 1 WHERE number = 2")
    with pytest.raises(Corrupt, match="does not match its stamp"):
        open_shipped(read_only=True).reconcile(remote=True)


def test_segments_whose_schema_the_topics_document_does_not_know_are_found(open_shipped, root):
    log = open_shipped(segments=TEN)
    topic = log.topic("rows", schema=NUMBERS)
    topic.append([{"number": 1}])
    log.seal()
    log.ship(20)
    log.topic("rows", schema=MORE).append([{"number": 2, "text": "b"}])
    log.seal()
    log.ship(20)
    assert log.reconcile(remote=True, deep=True).clean
    newest = root.keys(layout.topic_folder("rows"))[-1]
    root.store.delete([newest])
    (finding,) = log.reconcile(remote=True).findings
    assert "schema" in finding.detail


def test_a_schema_is_described_before_its_first_segment_is_settled(open_shipped, root, faults):
    """Also while the lane is at work on older segments of the same partition."""
    log = open_shipped(segments=TEN, shipping={"commit_batches": False})
    log.topic("rows", schema=NUMBERS).append([{"number": 1}])
    gate = faults.hold("/segments/", times=1)
    log.seal()
    assert gate.arrived.wait(20)
    log.topic("rows", schema=MORE).append([{"number": 2, "text": "b"}])
    log.seal()
    gate.open()
    log.ship(20)
    assert log.reconcile(remote=True).clean


# -- races ----------------------------------------------------------------------------------------------------


class Racing:
    """A store in which something happens right after a folder was listed."""

    def __init__(self, store: Store, folder: str, act: Callable[[], None]) -> None:
        self._store, self._folder, self._act = store, folder, act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def list(self, prefix: str, after: str | None = None) -> Iterator[Any]:
        listing = list(self._store.list(prefix, after))
        if prefix == self._folder:
            self._folder = ""
            self._act()
        return iter(listing)


def race(log: Log, folder: str, act: Callable[[], None]) -> None:
    side = log._store.reconciler().side
    side.store = Racing(side.store, folder, act)


def test_a_segment_that_is_retired_and_removed_after_the_listing_is_no_finding(log, root):
    def retire() -> None:
        document = ExpiredDocument(log=log.id, topic="orders", partition=0, upto=2, first=2 * ROWS, expired_us=0)
        root.store.create(layout.expired_key("orders", 0, 2), Body.of(documents.encode(document)))
        root.store.delete(segment_keys(root)[:2])

    race(log, layout.expired_folder("orders", 0), retire)
    assert log.reconcile(remote=True, deep=True).clean


def test_a_segment_that_is_settled_after_the_mark_was_read_is_in_flight(log, root):
    def settle() -> None:
        fill(log, "orders", 1)
        log.ship(20)

    race(log, layout.expired_folder("orders", 0), settle)
    report = log.reconcile(remote=True)
    assert report.clean
    assert report.in_flight
    assert report.segments == 9


def test_batches_that_a_listing_missed_with_their_floor_are_no_hole(log, root):
    """A listing is no snapshot: it may be taken before the floor was written, and after the batches were removed."""
    last = layout.parse_batch_key(tail_keys(root)[-1]).last_seq
    floor = documents.encode(FloorDocument(log=log.id, epoch=1, seq=last))
    root.store.delete(root.keys(layout.TAIL))
    race(log, layout.TAIL, lambda: root.store.create(layout.floor_key(1, last), Body.of(floor)))
    assert log.reconcile(remote=True).clean


def test_an_object_that_comes_back_after_the_listing_is_no_finding(log, root):
    key = segment_keys(root)[1]
    data = root.store.get(key)
    root.store.delete([key])
    race(log, layout.segments_folder("orders", 0) + "/", lambda: root.store.create(key, Body.of(data)))
    assert log.reconcile(remote=True).clean


# -- repairs --------------------------------------------------------------------------------------------------


AS_IT_WAS = [
    a_missing_segment, all_segments_missing, a_short_segment, a_changed_segment, a_missing_manifest_object,
    the_last_manifest_object_missing, a_short_manifest_object, a_start_in_place_of_a_segment,
    a_changed_manifest_object, a_damaged_manifest_object, a_missing_topic_document, a_damaged_topic_document,
    a_topic_document_of_another_topic, a_missing_log_document, another_logs_document,
]  # fmt: skip
"""What follows from what is here, byte for byte."""
SENT_AGAIN = [a_missing_batch, all_batches_missing, a_damaged_batch, a_batch_under_another_name, a_forged_batch]
"""What the shipper sends again, perhaps in other batches."""
REMOVED = [a_segment_of_another_hash, a_damaged_checkpoint, a_checkpoint_of_other_segments, a_false_floor]
"""What can never count, or can be made again."""


@pytest.mark.parametrize("plant", AS_IT_WAS)
def test_what_is_proved_here_is_brought_back_as_it_was(log, root, plant):
    before = root.objects()
    planted = plant(log, root)
    report = log.reconcile(remote=True, deep=True, fix=True)
    assert (report.findings, report.mode) == ((), "fix")
    assert {(repair.action, repair.path) for repair in report.repairs} == {("restored", name) for *_, name in planted}
    assert root.objects() == before
    assert log.reconcile(remote=True, deep=True).clean


@pytest.mark.parametrize("plant", SENT_AGAIN)
def test_commits_that_are_missing_or_altered_are_sent_again(log, root, plant, tmp_path):
    """And a restore has all of them."""
    plant(log, root)
    report = log.reconcile(remote=True, deep=True, fix=True)
    assert (report.findings, {repair.action for repair in report.repairs}) == ((), {"restored"})
    assert log.reconcile(remote=True, deep=True).clean
    expected = [record.payload for record in log.topic("orders").read(partition=0)]
    holdfast.restore(root.url, tmp_path / "copy", copy=True)
    with holdfast.open(tmp_path / "copy") as copy:
        assert [record.payload for record in copy.topic("orders").read(partition=0)] == expected


def test_a_lost_batch_whose_commits_are_in_segments_by_now_is_covered_by_the_next_one(log, root, tmp_path):
    """There is nothing to send again: the repair waits for nothing, and what comes behind is no hole of a restore."""
    fill(log, "other", 1)
    log.ship(20)
    root.store.delete(tail_keys(root)[-1:])
    assert log.reconcile(remote=True, deep=True, fix=True).findings == ()
    log.topic("orders").append(b"behind", partition=0, durability="shipped")
    holdfast.restore(root.url, tmp_path / "copy", copy=True)
    with holdfast.open(tmp_path / "copy") as copy:
        assert [record.payload for record in copy.topic("orders").read(partition=0)][-1] == b"behind"


@pytest.mark.parametrize("plant", REMOVED)
def test_what_can_never_count_is_removed(log, root, plant):
    before = root.objects()
    ((_, _, _, _, key),) = plant(log, root)
    report = log.reconcile(remote=True, deep=True, fix=True)
    assert (report.findings, [(repair.action, repair.path) for repair in report.repairs]) == ((), [("removed", key)])
    assert root.objects() == {other: data for other, data in before.items() if other != key}
    assert log.reconcile(remote=True, deep=True).clean


@pytest.mark.parametrize("plant", [a_damaged_floor, a_damaged_adoption])
def test_what_its_name_says_is_written_again(log, root, plant):
    ((*_, key),) = plant(log, root)
    report = log.reconcile(remote=True, deep=True, fix=True)
    assert (report.findings, [repair.path for repair in report.repairs]) == ((), [key])
    assert log.reconcile(remote=True, deep=True).clean


def test_a_damaged_retirement_is_written_again_as_of_now(log, root):
    """Files go later than they would have, and never sooner."""
    a_damaged_retirement(log, root)
    report = log.reconcile(remote=True, deep=True, fix=True)
    assert (report.findings, len(report.repairs)) == ((), 1)
    document = documents.decode(root.store.get(report.repairs[0].path), "", ExpiredDocument)
    assert (document.upto, document.first) == (1, ROWS)
    assert document.expired_us > 0


def test_a_missing_claim_below_our_own_is_filled_in(open_shipped, root):
    for _ in range(3):
        log = open_shipped(segments=TEN)
        log.topic("orders").append(b"x", durability="shipped")
        log.close()
    log = open_shipped(segments=TEN)
    log.topic("orders").append(b"x", durability="shipped")
    root.store.delete([layout.epoch_key(2)])
    report = log.reconcile(remote=True, fix=True)
    assert (report.findings, [repair.path for repair in report.repairs]) == ((), [layout.epoch_key(2)])
    assert log.reconcile(remote=True, deep=True).clean


def test_a_missing_start_is_written_again_where_it_must_have_been(log, root, tmp_path, open_shipped):
    """What it said about its owner is gone; where the next segment begins is not."""
    log.close()
    holdfast.restore(root.url, tmp_path / "second")
    taken = open_shipped("second", segments=TEN)
    fill(taken, "orders", 2)
    taken.ship(20)
    root.store.delete([manifest_key(4)])
    (finding,) = taken.reconcile(remote=True).findings
    assert (finding.kind, finding.name) == ("missing", manifest_key(4))
    assert taken.reconcile(remote=True, fix=True).clean
    assert taken.reconcile(remote=True, deep=True).clean
    start = root.manifest("orders")[4]
    assert isinstance(start, StartDocument)
    assert (start.number, start.first) == (4, 4 * ROWS)


def test_segments_that_an_overtaken_owner_left_behind_are_garbage(open_shipped, root, tmp_path):
    """It had uploaded them, and found its slots taken: they can never count, and `fix` removes them."""
    old = open_shipped(segments=TEN)
    old.topic("orders").append_batch([b"x"] * 5, durability="shipped")
    holdfast.restore(root.url, tmp_path / "second")
    question = root.faults.hold("epochs/", verbs=["head"])
    old.topic("orders").append_batch([b"zombie"] * 5)
    old.seal()
    wait_for(lambda: bool(segment_keys(root)))
    question.open()
    with pytest.raises(Closed):
        old.ship(20)
    old.close()
    taken = open_shipped("second", segments=TEN)
    taken.topic("orders").append_batch([b"y"] * 5, durability="shipped")
    taken.seal()
    taken.ship(20)
    orphans = [
        key
        for key in segment_keys(root)
        if key not in {f"{layout.segments_folder('orders', 0)}/{path.name}" for path in files(taken, "orders")}
    ]
    assert len(orphans) == 1
    findings = {finding.name: (finding.kind, finding.garbage) for finding in taken.reconcile(remote=True).findings}
    assert findings.pop(orphans[0]) == ("untracked", True)
    assert all(layout.parse_batch_key(name) and garbage for name, (_, garbage) in findings.items())  # what it also left
    assert taken.reconcile(remote=True, fix=True).clean
    assert taken.reconcile(remote=True, deep=True).clean
    assert taken.reconcile(remote=True, deep=True).repairs == ()
    assert len(segment_keys(root)) == len(files(taken, "orders"))


def test_a_segment_of_another_hash_is_no_garbage_while_the_true_one_is_gone(log, root):
    """It may hold the same records: somebody should look at it."""
    ((*_, key),) = a_segment_of_another_hash(log, root)
    log.set_retention("orders", records_max=ROWS)
    log.retain()
    assert len(files(log, "orders")) < 3
    gone = next(other for other in segment_keys(root) if other != key and "-" in other and f"{2:020d}" in other)
    root.store.delete([gone])
    report = log.reconcile(remote=True, fix=True)
    assert {(finding.kind, finding.name, finding.garbage) for finding in report.findings} == {
        ("missing", gone, False),
        ("untracked", key, False),
    }
    assert key in set(root.keys())


@pytest.mark.parametrize(
    "plant",
    [
        plant
        for plant in SHALLOW + DEEP
        if plant
        not in {
            *AS_IT_WAS,
            *SENT_AGAIN,
            *REMOVED,
            a_damaged_floor,
            a_damaged_adoption,
            a_damaged_retirement,
            a_missing_claim,
        }
    ],
)
def test_everything_else_is_left_as_it_is_and_reported(log, root, plant):
    planted = plant(log, root)
    before = root.objects()
    report = log.reconcile(remote=True, deep=True, fix=True)
    assert (found(report), report.repairs) == (planted, ())
    assert root.objects() == before


@pytest.mark.parametrize("plant", [a_missing_segment, a_short_segment])
def test_a_segment_whose_own_file_is_not_right_is_not_touched(log, root, plant):
    planted = plant(log, root)
    before = root.objects()
    number = next(iter(planted))[3]
    path = files(log, "orders")[number]
    path.write_bytes(flipped(path.read_bytes()))
    report = log.reconcile(remote=True, fix=True)
    assert (found(report), report.repairs) == (planted, ())
    assert root.objects() == before


def test_a_segment_that_retention_removed_here_is_not_touched(log, root):
    log.set_retention("orders", records_max=ROWS)
    log.retain()
    planted = a_short_segment(log, root) if len(files(log, "orders")) == 4 else a_missing_segment(log, root)
    before = root.objects()
    report = log.reconcile(remote=True, fix=True)
    assert (found(report), report.repairs) == (planted, ())
    assert root.objects() == before


def test_a_log_that_was_taken_over_repairs_nothing(log, root, tmp_path):
    """The holder of a higher claim owns the store; the repair is refused before anything changes."""
    a_short_segment(log, root)
    a_missing_manifest_object(log, root)
    claim = EpochDocument(log=log.id, epoch=2, purpose="restore", nonce="", claimed_us=0, host="", pid=0)
    root.store.create(layout.epoch_key(2), Body.of(documents.encode(claim)))
    before = root.objects()
    with pytest.raises(Closed, match="taken this log over"):
        log.reconcile(remote=True, fix=True)
    assert root.objects() == before


def test_batches_of_an_owner_that_was_overtaken_are_garbage(log, root, tmp_path, open_shipped):
    """They came after the takeover had said what it adopts."""
    log.close()
    holdfast.restore(root.url, tmp_path / "second")
    taken = open_shipped("second", segments=TEN)
    taken.topic("orders").append(b"new", durability="shipped")
    last = max(layout.parse_batch_key(key).last_seq for key in tail_keys(root))
    late = layout.batch_key(1, last + 5, last + 6)
    sent = CommitBatch(bytes.fromhex(taken.id), 1, last + 5, last + 6, (), ())
    root.store.create(late, Body.of(commit_batch.encode(sent)))
    (finding,) = taken.reconcile(remote=True, deep=True).findings
    assert (finding.kind, finding.name, finding.garbage) == ("untracked", late, True)
    report = taken.reconcile(remote=True, deep=True, fix=True)
    assert [(repair.action, repair.path) for repair in report.repairs] == [("removed", late)]
    assert late not in set(root.keys())
    assert taken.reconcile(remote=True, deep=True).clean


def test_a_batch_behind_a_takeover_that_cannot_be_read_is_not_removed(log, root, tmp_path, open_shipped):
    """It may have shown that something was lost."""
    log.close()
    holdfast.restore(root.url, tmp_path / "second")
    taken = open_shipped("second", segments=TEN)
    taken.topic("orders").append(b"new", durability="shipped")
    last = max(layout.parse_batch_key(key).last_seq for key in tail_keys(root))
    late = layout.batch_key(1, last + 5, last + 6)
    root.store.create(late, Body.of(b"damaged"))
    report = taken.reconcile(remote=True, deep=True, fix=True)
    assert (report.repairs, report.evidence) == ((), 1)
    assert late in set(root.keys())


def test_settled_batches_that_were_left_behind_are_no_finding_and_removed_by_a_repair(log, root):
    log.seal()
    log.ship(20)
    left = tail_keys(root)
    last = layout.parse_batch_key(left[-1]).last_seq
    floor = documents.encode(FloorDocument(log=log.id, epoch=1, seq=last))
    root.store.create(layout.floor_key(1, last), Body.of(floor))
    report = log.reconcile(remote=True, deep=True)
    assert (report.findings, report.in_flight) == ((), len(left))
    report = log.reconcile(remote=True, fix=True)
    assert {repair.path for repair in report.repairs} == set(left)
    assert not tail_keys(root)


def test_a_missing_object_among_starts_is_brought_back(log, root, tmp_path, open_shipped):
    """The objects around it tell that it is a segment's, and whose."""
    log.close()
    holdfast.restore(root.url, tmp_path / "second")
    taken = open_shipped("second", segments=TEN)
    fill(taken, "orders", 2)
    taken.ship(20)
    before = root.objects()
    for slot, number in ((3, 3), (5, 4)):  # on both sides of the start in slot 4
        root.store.delete([manifest_key(slot)])
        assert found(taken.reconcile(remote=True)) == {("missing", "orders", 0, number, manifest_key(slot))}
        assert taken.reconcile(remote=True, fix=True).clean
        assert root.objects() == before
    root.store.delete([manifest_key(4)])
    assert found(taken.reconcile(remote=True)) == {("missing", "orders", 0, None, manifest_key(4))}


def test_the_store_of_an_idle_log_can_be_repaired(log, root, open_shipped):
    log.seal()
    log.ship(20)
    log.close()
    again = open_shipped(segments=TEN)
    a_missing_segment(again, root)
    assert len(again.reconcile(remote=True, fix=True).repairs) == 1


# -- asking ---------------------------------------------------------------------------------------------------


def test_a_log_without_a_store_has_nothing_to_compare_with(open_log):
    with pytest.raises(Invalid, match="no store"):
        open_log(segments=TEN).reconcile(remote=True)


def test_a_log_that_was_opened_without_its_store_learns_where_it_is_shipped_to(log, root, open_log):
    log.close()
    with pytest.raises(Invalid, match="no store") as refused:
        open_log(read_only=True).reconcile(remote=True)
    assert root.url in refused.value.hint


def test_another_store_is_refused(log, make_root, open_shipped):
    log.close()
    other = open_shipped(to=make_root(), read_only=True)
    with pytest.raises(Invalid, match="is shipped to"):
        other.reconcile(remote=True)


def test_a_closed_log_refuses(log):
    log.reconcile(remote=True)
    log.close()
    with pytest.raises(Closed):
        log.reconcile(remote=True)


def test_a_store_that_is_away_is_no_finding_but_an_error(log, faults):
    faults.away()
    with pytest.raises(Unavailable):
        log.reconcile(remote=True)
    faults.back()
    assert log.reconcile(remote=True).clean


def test_the_local_report_and_its_counts_stay_as_they_are(log, root):
    local = log.reconcile()
    a_missing_segment(log, root)
    log.reconcile(remote=True)
    assert log.last_reconcile == local
    assert log.stats().segments.reconcile_findings == {}
    assert (local.where, local.clean) == ("log", True)


def test_a_shallow_pass_asks_for_no_segment_and_not_for_every_manifest_object(log, root, faults):
    """What it costs does not grow with the number of segments, but for listings."""

    def gets() -> int:
        before = faults.count("get") + faults.count("get_range") + faults.count("head")
        assert log.reconcile(remote=True).clean
        return faults.count("get") + faults.count("get_range") + faults.count("head") - before

    few = gets()
    fill(log, "orders", 7)
    log.ship(20)
    wait_for(lambda: layout.checkpoint_key("orders", 0, 8) in set(root.keys()))
    assert gets() == few
    assert faults.count("get_range") == 0


# -- the walk -------------------------------------------------------------------------------------------------


class Written:
    """Manifest objects of a partition with starts among them, and what is wrong with them."""

    def __init__(self, kinds: list[bool], wrong: dict[int, str]) -> None:
        self.numbers: list[int | None] = []
        self.objects: list[bytes | None] = []
        number = 0
        for slot, is_segment in enumerate(kinds):
            self.numbers.append(number if is_segment else None)
            data = self.due(number, slot) if is_segment else self.start(number, slot)
            number += is_segment
            harms = {"missing": None, "damaged": flipped(data), "lying": self.start(99, slot)}
            self.objects.append(harms.get(wrong.get(slot, ""), data))
        self.of = PartitionFacts("ab" * 16, "t", 0, len(kinds), number)

    def due(self, number: int, slot: int) -> bytes:
        return documents.encode(
            SegmentDocument(
                log="ab" * 16,
                topic="t",
                partition=0,
                slot=slot,
                number=number,
                first=number * 10,
                rows=10,
                size=5,
                time_min=0,
                time_max=1,
                sha256="11" * 32,
                content="22" * 32,
                footer="33" * 16,
                previous="44" * 32,
                chain="55" * 32,
                schema="00" * 16,
                key_id="",
                epoch=1,
                sealed_us=1,
            )
        )

    def start(self, number: int, slot: int) -> bytes:
        return documents.encode(
            StartDocument(
                log="ab" * 16,
                topic="t",
                partition=0,
                slot=slot,
                epoch=1,
                nonce="",
                number=number,
                first=0,
                adopted_seq=0,
            )
        )

    def walk(self, *, deep: bool) -> list[Slot]:
        sizes = {slot: len(data) for slot, data in enumerate(self.objects) if data is not None}
        return list(ManifestWalk(self.of, sizes, self.due, self.objects.__getitem__, deep=deep))


kinds = st.lists(st.booleans(), min_size=1, max_size=12)


@given(kinds, st.booleans())
def test_a_walk_over_whole_objects_finds_nothing_and_tells_starts_from_segments(of, deep):
    written = Written(of, {})
    assert [(judged.number, judged.problem) for judged in written.walk(deep=deep)] == [
        (number, None) for number in written.numbers
    ]


@settings(max_examples=300)
@given(kinds, st.data())
def test_a_walk_finds_every_harmed_object_and_no_other(of, data):
    """And where one alone is harmed, it knows what stood there; nothing is said or written on the word of a liar."""
    deep = data.draw(st.booleans())
    harms = st.sampled_from(["missing", "lying"] + ["damaged"] * deep)  # a shallow walk trusts a size
    wrong = data.draw(st.dictionaries(st.integers(0, len(of) - 1), harms, max_size=4))
    written = Written(of, wrong)
    judged = written.walk(deep=deep)
    kinds_of = {slot: "missing" if harm == "missing" else "content_mismatch" for slot, harm in wrong.items()}
    assert {slot.slot: slot.problem for slot in judged if slot.problem} == kinds_of
    for slot in judged:
        assert slot.number in (written.numbers[slot.slot], None)
        assert slot.start is None or written.numbers[slot.slot] is None
        if slot.due is not None:
            assert slot.due == written.due(written.numbers[slot.slot], slot.slot)
        if len(wrong) == 1:
            assert slot.number == written.numbers[slot.slot]


# -- a busy log -----------------------------------------------------------------------------------------------

LOOKER = """
    import json, sys, threading
    import holdfast
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    with holdfast.open(sys.argv[1], read_only=True, store=sys.argv[2]) as log:
        while not stop.is_set():
            report = log.reconcile(remote=True, deep=True)
            found = [[f.kind, f.topic, f.partition, f.number, f.name, f.detail] for f in report.findings]
            print(json.dumps({"found": found, "segments": report.segments}), flush=True)
"""


PATIENCE = 60


class Busy:
    """A log in which everything happens at once, and those who compare it with its store."""

    def __init__(self, log: Log, store: Path) -> None:
        self.log, self.store = log, store
        self.reports: list[ReconcileReport] = []
        self.looks: list[dict[str, Any]] = []
        self.errors: list[BaseException] = []
        self._stop = threading.Event()

    def run(self, seconds: float) -> None:
        acts: list[Callable[[], None]] = [lambda: self._write("a"), lambda: self._write("b"), self._seal, self._retain]
        acts += [lambda: self._compare(deep=False), lambda: self._compare(deep=True)]
        acts += [lambda: self._compare(deep=True, fix=True)]
        threads = [threading.Thread(target=self._guarded, args=(act,)) for act in acts]
        with observing(LOOKER, str(self.log.path), str(self.store), looks=self.looks):
            for thread in threads:
                thread.start()
            deadline = time.monotonic() + seconds + PATIENCE
            while not self._stop.wait(seconds) and not was_busy(self) and time.monotonic() < deadline:
                pass  # the machine is slow: it takes longer until enough has happened
            self._stop.set()
            for thread in threads:
                thread.join()

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            while not self._stop.is_set():
                act()
        except BaseException as error:
            self.errors.append(error)
            self._stop.set()

    def _write(self, name: str) -> None:
        topic = self.log.topic(name)
        end = topic.append_batch([b"x"] * ROWS, timeout=30)[-1].offset
        topic.wait_sealed(end - 5 * ROWS, 30)

    def _seal(self) -> None:
        self.log.seal(timeout=30)
        time.sleep(0.01)

    def _retain(self) -> None:
        self.log.retain()
        time.sleep(0.01)

    def _compare(self, *, deep: bool, fix: bool = False) -> None:
        self.reports.append(self.log.reconcile(remote=True, deep=deep, fix=fix))


def was_busy(busy: Busy) -> bool:
    try:
        check_it_was_busy(busy)
    except AssertionError:
        return False
    return True


def run_busy(open_log: Callable[..., Log], store: Path, seconds: float) -> None:
    log = open_log(
        store=str(store),
        segments=TEN | {"idle_ratio": 0},
        retention={"interval_ms": 1, "records_max": 3 * ROWS},
        shipping={"checkpoint_every": 5, "store_bytes_max": 20_000, "delete_after_ms": 1, "batch_size_threshold": 1},
    )
    for name in ("a", "b"):
        log.topic(name).append(b"first", durability="shipped")
    # Its modules are loaded by one thread: pytest compiles them anew, which CPython 3.11 cannot do in two at once.
    log.reconcile(remote=True)
    busy = Busy(log, store)
    busy.run(seconds)
    assert busy.errors == []
    assert [report.findings for report in busy.reports if report.findings] == []
    assert [look["found"] for look in busy.looks if look["found"]] == []
    # A repair may only ever take settled batches, which go anyway.
    repairs = {(repair.action, repair.path.partition("/")[0]) for report in busy.reports for repair in report.repairs}
    assert repairs <= {("removed", "tail")}
    check_it_was_busy(busy)


def check_it_was_busy(busy: Busy) -> None:
    """A test in which nothing happens proves nothing."""
    stats = busy.log.stats()
    assert stats.shipping is not None
    assert stats.shipping.ended is None
    assert stats.shipping.segments_total > 20
    assert stats.segments.expired_segments_total > 10
    assert any(report.in_flight for report in busy.reports)
    assert {(report.deep, report.mode) for report in busy.reports} >= {
        (False, "report"),
        (True, "report"),
        (True, "fix"),
    }
    assert len(busy.looks) > 2
    assert any(look["segments"] for look in busy.looks)
    root = Root(str(busy.store))
    assert root.keys(layout.expired_folder("a", 0))
    assert len(root.segments("a")) < mark(busy.log, "a").settled // ROWS
    assert [key for key in root.keys(layout.TAIL) if layout.parse_floor_key(key)]


def test_a_busy_log_has_no_finding_on_its_store(open_log, tmp_path, is_sampled):
    run_busy(open_log, tmp_path / "store", 4 if is_sampled else 15)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_busy_log_has_no_finding_on_its_store_for_ten_minutes(open_log, tmp_path):
    run_busy(open_log, tmp_path / "store", 600)
