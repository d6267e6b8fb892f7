"""Manifest objects that the store lost at the end of a partition: readers and restores of the root learn of it."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import Corrupt, Log, Settings
from holdfast.crypto.keyring import Keyring
from holdfast.root import shared_stores
from holdfast.root.objects import documents, frontiers
from holdfast.root.objects.documents import FrontierDocument
from holdfast.shipping.lanes.segment_lane import SegmentLane
from holdfast.shipping.shipping_marks import ShippedMarks
from holdfast.store import layout
from holdfast.store.store_settings import StoreSettings
from tests.segments.planting import TEN
from tests.shipping.conftest import Root
from tests.sink_topics import SinkTopic

pytestmark = pytest.mark.store


def said(root: Root) -> FrontierDocument:
    """The newest frontier of a root."""
    key = root.keys(layout.FRONTIERS)[-1]
    return documents.decode(root.bare(key), key, FrontierDocument)


def newest_manifest(root: Root, partition: int = 0) -> str:
    return root.keys(layout.manifest_folder("orders", partition))[-1]


def settle(log: Log, count: int, topic: str = "orders") -> None:
    for n in range(count):
        log.topic(topic).append(b"%d" % n)
    log.seal()
    log.ship(20)


@pytest.fixture(params=["plain", "keyed"])
def keyring(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    if request.param == "plain":
        return None
    path = tmp_path / "keyring"
    holdfast.Keyring.generate().save(path)
    return f"file:{path}"


@pytest.fixture
def settled(open_shipped: Callable[..., Log], root: Root, keyring: str | None) -> Root:
    """Thirty records in three segments, settled; the log is closed."""
    log = open_shipped(segments=TEN, keyring=keyring)
    settle(log, 30)
    log.close()
    return root


@pytest.fixture
def bring(root: Root, tmp_path: Path, keyring: str | None) -> Callable[..., Any]:
    def bring_back(name: str = "back", **options: Any) -> Any:
        return holdfast.restore(root.url, tmp_path / name, settings=Settings(), keyring=keyring, **options)

    return bring_back


def test_a_closed_log_says_exactly_how_far_it_is(settled):
    assert said(settled).settled == {"orders": {"0": 30}}
    assert said(settled).seq == 30
    assert len(settled.keys(layout.FRONTIERS)) == 1


def test_a_lost_newest_manifest_object_stops_a_restore(settled, bring):
    settled.store.delete([newest_manifest(settled)])
    before = settled.objects()
    for options in ({}, {"copy": True}):
        with pytest.raises(Corrupt, match="topic=orders partition=0 there=20 settled=30") as caught:
            bring(**options)
        assert "--accept-loss" in caught.value.hint
    assert settled.objects() == before


def test_a_restore_that_accepts_the_loss_reports_it_and_the_next_one_is_not_stopped(
    settled, bring, open_shipped, keyring, lines
):
    settled.store.delete([newest_manifest(settled)])
    report = bring(accept_loss=True)
    assert report.records == 20
    (lost,) = report.lost_settled
    assert (lost.topic, lost.partition, lost.first, lost.records) == ("orders", 0, 20, 10)
    assert any("there=20 settled=30" in claim for claim in report.not_proved)
    assert "there=20 settled=30" in lines("restored_with_loss")[0]
    log = open_shipped("back", segments=TEN, keyring=keyring)
    settle(log, 5)
    log.close()
    again = bring("again")
    assert (again.records, again.lost_settled) == (25, ())


def test_a_restore_speaks_above_owners_whose_claims_are_lost(settled, bring, keyring):
    """Else what they said outranks what it says: readers would be refused for a loss that was accepted, forever."""
    settled.store.delete([*settled.keys(layout.EPOCHS), newest_manifest(settled)])
    before = said(settled).epoch
    assert bring(accept_loss=True).records == 20
    assert said(settled).epoch == before + 1
    assert holdfast.read(settled.url, "orders", keyring=keyring, include_tail=True).count() == 20


def test_a_reader_learns_of_it_and_may_insist(settled, keyring):
    settled.store.delete([newest_manifest(settled)])
    for tail in (False, True):
        with pytest.raises(Corrupt, match="there=20 settled=30") as caught:
            holdfast.read(settled.url, "orders", keyring=keyring, include_tail=tail)
        assert (caught.value.path, caught.value.offset) == (layout.manifest_folder("orders", 0), 20)
    assert holdfast.read(settled.url, "orders", keyring=keyring, fail_on_data_loss=False).count() == 20
    assert holdfast.read(settled.url, "orders", keyring=keyring, ending_offsets={"orders": {"0": 20}}).count() == 20


@pytest.mark.parametrize("keyring", [None])
def test_a_table_shows_what_is_left_and_its_publisher_learns_of_it(settled):
    settled.store.delete([newest_manifest(settled)])
    (report,) = holdfast.publish_tables(settled.url, topics=["orders"])
    assert report.state == "damaged"
    assert "there=20 settled=30" in str(report.reason)
    (report,) = holdfast.publish_tables(settled.url, topics=["orders"], dry_run=True)
    assert (report.state, report.rows) == ("unchanged", 20)


def test_the_owner_puts_back_what_was_lost(settled, open_shipped, keyring):
    settled.store.delete([newest_manifest(settled)])
    log = open_shipped(segments=TEN, keyring=keyring)
    settle(log, 1)
    assert holdfast.read(settled.url, "orders", keyring=keyring).count() == 31


def test_compaction_retention_and_topics_of_sinks_are_no_loss_and_hide_none(
    settled, open_shipped, bring, keyring, monkeypatch
):
    """All who change a root beside its owner: nobody is alarmed by them, and what is lost then is noticed."""
    monkeypatch.setitem(shared_stores._opened, (settled.url, StoreSettings()), settled.store)
    assert holdfast.compact(settled.url, keyring=keyring, delete_after_ms=0).files_after == 1
    holdfast.compact(settled.url, keyring=keyring, delete_after_ms=0)
    sink = SinkTopic(settled.store, keyring=None if keyring is None else Keyring.from_reference(keyring))
    sink.describe(1)
    sink.write({0: [[b"a", b"b"]]})
    with open_shipped(segments=TEN, keyring=keyring, shipping={"store_bytes_max": 1, "delete_after_ms": 0}) as log:
        settle(log, 5)
        assert log.reconcile(remote=True, deep=True).clean
    for tail in (False, True):
        read = partial(holdfast.read, settled.url, keyring=keyring, include_tail=tail)
        offsets = read("orders").to_arrow()["offset"].to_pylist()
        assert offsets == list(range(offsets[0], 35))
        assert read("spark").count() == 2
    assert bring(copy=True).lost_settled == ()
    settled.store.delete([newest_manifest(settled)])
    for look in (partial(holdfast.read, settled.url, "orders", keyring=keyring), partial(bring, "again")):
        with pytest.raises(Corrupt, match="there=30 settled=35"):
            look()
    assert holdfast.read(settled.url, "spark", keyring=keyring).count() == 2


def test_a_topic_of_which_everything_is_gone_is_missed(settled, keyring):
    settled.store.delete(settled.keys("topics/orders/"))
    for chosen in ({"topic": "orders"}, {"topic_pattern": ".*"}):
        with pytest.raises(Corrupt, match="there=0 settled=30"):
            holdfast.read(settled.url, **chosen, keyring=keyring)


@pytest.fixture
def own(open_log: Callable[..., Log], keyring: str | None) -> Path:
    """A log without a store, of thirty records in three segments; closed."""
    log = open_log("own", settings=Settings.from_mapping({"segments": TEN}), keyring=keyring)
    for n in range(30):
        log.topic("orders").append(b"%d" % n)
    log.seal()
    log.close()
    return log.path


def test_a_log_s_own_directory_says_so_too(own, open_log, keyring):
    folder = own / "segments" / layout.manifest_folder("orders", 0)
    newest = max(folder.iterdir())
    newest.unlink()
    with pytest.raises(Corrupt, match="there=20 settled=30"):
        holdfast.read(str(own), "orders", keyring=keyring)
    log = open_log("own", settings=Settings.from_mapping({"segments": TEN}), keyring=keyring)
    log.seal()
    log.close()
    assert newest.exists()
    assert holdfast.read(str(own), "orders", keyring=keyring).count() == 30
    assert len(list((own / "segments" / layout.FRONTIERS).rglob("*.json"))) == 1


@pytest.mark.parametrize("left", [20, 0])
def test_a_missing_frontier_is_missed(settled, bring, keyring, left):
    """Whatever removed it may have removed manifest objects, all of them too: what is left is not taken for all."""
    manifests = settled.keys(layout.manifest_folder("orders", 0))
    settled.store.delete([*settled.keys(layout.FRONTIERS), *manifests[left // 10 :]])
    before = settled.objects()
    for look in (partial(holdfast.read, settled.url, "orders", keyring=keyring), bring, partial(bring, copy=True)):
        with pytest.raises(Corrupt, match="there is no frontier"):
            look()
    assert settled.objects() == before
    assert holdfast.read(settled.url, "orders", keyring=keyring, fail_on_data_loss=False).count() == left
    report = bring(accept_loss=True)
    assert report.records == left
    assert any("there is no frontier" in claim for claim in report.not_proved)


@pytest.mark.parametrize("damage", ["missing", "damaged", "forged"])
def test_reconciling_finds_a_frontier_that_is_not_what_it_should_be_and_has_it_written_anew(
    settled, open_shipped, keyring, damage
):
    log = open_shipped(segments=TEN, keyring=keyring)
    settle(log, 5)
    frontier = said(settled)
    key = frontiers.key_of(frontier)
    if damage == "missing":
        settled.store.delete(settled.keys(layout.FRONTIERS))
    elif damage == "damaged":
        settled.replace(key, settled.store.get(key).replace(b"orders", b"others"))
    else:
        more = documents.encode(msgspec.structs.replace(frontier, settled={"orders": {"0": 10**6}}))
        settled.replace(key, more)
    (finding,) = log.reconcile(remote=True).findings
    assert finding.name == layout.FRONTIERS
    assert finding.kind == ("missing" if damage == "missing" else "content_mismatch")
    assert log.reconcile(remote=True, fix=True).clean
    assert said(settled).settled == {"orders": {"0": 35}}
    assert log.reconcile(remote=True).clean


@pytest.mark.parametrize("is_lost", [False, True])
def test_marks_that_a_crash_left_behind_the_frontier_hide_no_loss_and_are_none(
    open_shipped, root, monkeypatch, is_lost
):
    with monkeypatch.context() as patch:
        patch.setattr(ShippedMarks, "note", lambda self: True)
        log = open_shipped(segments=TEN)
        settle(log, 30)
        log.close()
    assert said(root).settled == {"orders": {"0": 30}}
    if is_lost:
        root.store.delete([newest_manifest(root)])

    may_ship, run = threading.Event(), SegmentLane.run

    async def late(lane: SegmentLane) -> None:
        while not may_ship.is_set():
            await asyncio.sleep(0.01)
        await run(lane)

    monkeypatch.setattr(SegmentLane, "run", late)
    log = open_shipped(segments=TEN)
    try:
        assert log.topic("orders").marks()[0].settled == 0
        found = log.reconcile(remote=True).findings
        assert [(one.kind, one.name) for one in found] == ([("missing", layout.FRONTIERS)] if is_lost else [])
        assert all("there=20 settled=30" in one.detail for one in found)
    finally:
        may_ship.set()
    log.ship(20)
    assert log.topic("orders").marks()[0].settled == 30
    assert log.reconcile(remote=True).clean


def test_a_directory_that_was_rolled_back_is_found_by_readers(settled, open_shipped, keyring, tmp_path):
    shutil.copytree(tmp_path / "log", tmp_path / "older")
    log = open_shipped(segments=TEN, keyring=keyring)
    settle(log, 10)
    log.close()
    shutil.rmtree(tmp_path / "log")
    (tmp_path / "older").rename(tmp_path / "log")
    with holdfast.open(tmp_path / "log", store=settled.url, keyring=keyring, read_only=True) as looking:
        found = looking.reconcile(remote=True).findings
    assert [(one.kind, one.name) for one in found] == [("content_mismatch", layout.FRONTIERS)]
