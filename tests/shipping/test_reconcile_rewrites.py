"""Reconciliation with a store that was compacted: long files are expected, replaced ones are not missed, and damage to
either, or to what says so, is found and repaired from what is here.
"""

from __future__ import annotations

import threading

import pytest

import holdfast
from holdfast import Log
from holdfast.reconcile.reconcile_report import ReconcileReport
from holdfast.store import layout
from tests.rewriting import Compactor
from tests.segments.planting import TEN, fill, offsets
from tests.shipping.conftest import Root

pytestmark = pytest.mark.store

COUNT = 6


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def keys(request, keyring):
    return keyring if request.param else None


@pytest.fixture
def log(open_quiet, keys):
    log = open_quiet(segments=TEN, keyring=keys)
    fill(log, "orders", COUNT)
    log.ship(20)
    return log


@pytest.fixture
def compactor(log, root, keys):
    return Compactor(root.store, keys)


def found(report: ReconcileReport) -> list[tuple[str, str]]:
    assert report.complete
    return sorted((finding.kind, (finding.name or "").rpartition("orders/0/")[2]) for finding in report.findings)


def check(log: Log, *, fix: bool = False, deep: bool = True) -> list[tuple[str, str]]:
    return found(log.reconcile(remote=True, deep=deep, fix=fix))


def in_folder(key: str) -> str:
    return key.rpartition("orders/0/")[2]


@pytest.mark.parametrize("deep", [False, True])
def test_a_compacted_store_has_no_finding(log, compactor, root, deep):
    """Before its replaced files go, and after; also where a rewrite replaces another's files, or has none."""
    compactor.rewrite((0, 2), (2, 4))
    assert check(log, deep=deep) == []
    compactor.rewrite((0, 5))
    compactor.rewrite()
    assert check(log, deep=deep) == []
    compactor.sweep()
    assert root.segments("orders") == [0, 5]
    report = log.reconcile(remote=True, deep=deep)
    assert found(report) == []
    assert report.segments == COUNT
    assert report.bytes_actual == report.bytes_expected > 0
    assert check(log, fix=True, deep=deep) == []


def test_what_an_intent_announces_is_in_flight_and_garbage_afterwards(log, compactor, root):
    """A compactor that was overtaken left a file: as long as its intent stands it may be cleaning up itself."""
    intent = compactor.intend((1, 4))
    long = compactor.written(1, 4).segment.key
    assert check(log, fix=True) == []
    compactor.rewrite((0, 3), remove=True)
    assert check(log, fix=True) == []
    assert long in root.keys("topics/")
    root.store.delete([intent])
    assert check(log) == [("untracked", in_folder(long))]
    assert check(log, fix=True) == []
    assert long not in root.keys("topics/")
    assert check(log) == []


def test_a_file_that_nobody_announced_is_found(log, compactor):
    long = compactor.written(1, 4).segment.key
    assert check(log, deep=False) == [("untracked", in_folder(long))]


@pytest.mark.parametrize("harm", ["missing", "size_mismatch", "content_mismatch"])
def test_a_long_file_that_is_lost_or_damaged_is_made_again_of_the_segments_here(
    log, compactor, root, harm, keys, tmp_path
):
    """A rewrite with the next number puts it in place; the old one stays, and readers see all records."""
    long = compactor.rewrite((1, 4), remove=True).outputs[0].segment.key
    spoil(root, long, harm)
    assert check(log) == [(harm, in_folder(long))]
    assert check(log, fix=True) == []
    assert len(compactor.rewrites) == 2
    assert check(log) == []
    assert root.keys(layout.intents_folder("orders", 0)) == []
    if keys is not None:
        keys.save(tmp_path / "keys")
    got = holdfast.read(root.url, "orders", keyring=f"file:{tmp_path / 'keys'}" if keys else None).to_arrow()
    assert got["offset"].to_pylist() == list(range(10 * COUNT))


def spoil(root: Root, key: str, harm: str) -> None:
    data = root.store.get(key)
    root.store.delete([key])
    if harm != "missing":
        root.replace(key, data[:-9] if harm == "size_mismatch" else data[:50] + bytes([data[50] ^ 1]) + data[51:])


def test_a_long_file_that_is_nowhere_else_stays_a_finding(open_quiet, root, keyring):
    """Retention has removed the segments here: nothing is written, whatever is asked for."""
    log = open_quiet(segments=TEN, retention={"interval_ms": 3_600_000, "records_max": 10})
    fill(log, "orders", COUNT)
    log.ship(20)
    long = Compactor(root.store).rewrite((0, 4), remove=True).outputs[0].segment.key
    assert len(log.retain().removed) == COUNT - 1
    root.store.delete([long])
    assert check(log, fix=True) == [("missing", in_folder(long))]
    assert len(Compactor(root.store).rewrites) == 1


def test_a_damaged_rewrite_is_found_and_taken_back(log, compactor, root):
    """It swapped files that are here: they are uploaded again, and count again. The long file is garbage then."""
    long = compactor.rewrite((0, 3), remove=True).outputs[0].segment.key
    compactor.rewrite((0, 5), remove=True)
    key = layout.rewrite_key("orders", 0, 0)
    root.replace(key, root.store.get(key)[:-30])
    assert ("content_mismatch", in_folder(key)) in check(log)
    check(log, fix=True)
    assert root.keys(layout.rewrites_folder("orders", 0)) == []
    assert check(log, fix=True) == []
    assert check(log) == []
    assert root.segments("orders") == list(range(COUNT))
    assert long not in root.keys("topics/")


def test_a_rewrite_that_does_not_fit_is_found(log, compactor, root, keys):
    """A writer to the store may say anything; with keys it is not even read."""
    document = compactor.rewrite((0, 3))
    key = layout.rewrite_key("orders", 0, 0)
    data = root.store.get(key)
    root.store.delete([key])
    other = layout.rewrite_key("orders", 0, 1)
    root.replace(other, data)
    assert ("missing", in_folder(key)) in check(log, deep=False)
    root.store.delete([other])
    assert check(log, fix=True) == []
    assert document.outputs[0].segment.key not in root.keys("topics/")


def test_a_rewrite_that_tells_all_wrongly_is_found(log, compactor, root):
    """Readers may begin with it: what it says of earlier files must be so."""
    first = compactor.rewrite((0, 2))
    compactor.rewrite((3, 5), kept=first.outputs)
    assert check(log) == []
    compactor.rewrite((2, 3), kept=())
    key = layout.rewrite_key("orders", 0, 2)
    assert ("content_mismatch", in_folder(key)) in check(log, deep=False)


def test_foreign_names_in_the_folders_of_rewrites_are_found(log, compactor, root):
    compactor.rewrite((0, 2))
    strange = [layout.intents_folder("orders", 0) + "note.txt", layout.rewrites_folder("orders", 0) + "note.txt"]
    for key in strange:
        root.replace(key, b"?")
    assert check(log, deep=False) == sorted(("untracked", in_folder(key)) for key in strange)


def test_a_pass_beside_a_compactor_has_no_finding(log, compactor, root):
    """Files come and go while they are compared: each is in effect, replaced, or on its way."""
    stop, failed = threading.Event(), []

    def compact() -> None:
        try:
            for upto in range(2, COUNT + 1):
                intent = compactor.intend((0, upto))
                compactor.rewrite((0, upto), remove=True)
                root.store.delete([intent])
        except BaseException as error:
            failed.append(error)
        finally:
            stop.set()

    thread = threading.Thread(target=compact)
    thread.start()
    while not stop.is_set():
        assert check(log, fix=True, deep=False) == []
    thread.join()
    assert failed == []
    assert check(log, fix=True) == []
    assert root.segments("orders") == [0]
    assert offsets(log.topic("orders")) == list(range(10 * COUNT))
