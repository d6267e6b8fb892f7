"""A log that comes back from a store that was compacted: its long files are its segments, and it goes on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import holdfast
from holdfast import Corrupt, Log, NotFound, Settings
from holdfast.results import RestoreReport
from holdfast.root.objects import documents
from holdfast.root.objects.documents import ExpiredDocument
from holdfast.store import layout
from holdfast.store.port import Body
from tests.rewriting import Compactor
from tests.segments.planting import TEN, files, fill, offsets
from tests.shipping.conftest import Root

pytestmark = pytest.mark.store

COUNT = 6
NEVER = {"interval_ms": 3_600_000}


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def keys(request, keyring):
    return keyring if request.param else None


@pytest.fixture
def compacted(open_quiet, root, keys) -> Compactor:
    """The root of a log that is gone, compacted twice; the files from before are gone, too."""
    log = open_quiet(segments=TEN, keyring=keys)
    fill(log, "orders", COUNT)
    log.ship(20)
    log.close()
    shutil.rmtree(log.path)
    compactor = Compactor(root.store, keys)
    compactor.rewrite((1, 3), remove=True)
    compactor.rewrite((0, 3), (3, 5), remove=True)
    assert root.segments("orders") == [0, 3, 5]
    return compactor


def bring(root: Root, path: Path, keys, **options) -> RestoreReport:
    return holdfast.restore(root.url, path, settings=Settings.from_mapping({}), keyring=keys, **options)


@pytest.fixture
def restored(compacted, root, tmp_path, keys, open_quiet) -> Log:
    bring(root, tmp_path / "back", keys)
    return open_quiet("back", segments=TEN, retention=NEVER, keyring=keys)


def numbers(log: Log) -> list[int]:
    return [int(path.name[:20]) for path in files(log, "orders")]


def test_a_restored_log_reads_its_long_files_and_goes_on(restored, root, compacted):
    """Forwards, backwards, by offset and by time; it seals and ships behind them, and its store stays sound."""
    topic = restored.topic("orders")
    assert offsets(topic) == list(range(10 * COUNT))
    assert numbers(restored) == [0, 3, 5]
    assert [r.offset for r in topic.read(reverse=True)] == list(range(10 * COUNT))[::-1]
    assert [r.offset for r in topic.read(start=25, end=42)] == list(range(25, 42))
    times = {r.offset: r.time for r in topic.read()}
    inside = [r.offset for r in topic.read(since=times[27], until=times[33])]
    assert inside == [o for o, t in times.items() if times[27] <= t <= times[33]]
    assert [r.offset for r in topic.read(since=times[27], until=times[33], reverse=True)] == inside[::-1]
    assert topic.read().to_arrow()["offset"].to_pylist() == list(range(10 * COUNT))
    fill(restored, "orders", 2)
    restored.ship(20)
    assert offsets(topic) == list(range(10 * COUNT + 20))
    assert restored.reconcile(deep=True).clean
    assert restored.reconcile(remote=True, deep=True).clean
    compacted.rewrite((3, 8), remove=True)
    assert restored.reconcile(remote=True, deep=True).clean


def test_a_restored_log_opens_again(restored, open_quiet, keys):
    restored.close()
    again = open_quiet("back", segments=TEN, keyring=keys)
    assert offsets(again.topic("orders")) == list(range(10 * COUNT))
    with holdfast.open(again.path, read_only=True, keyring=keys) as observer:
        assert [record.offset for record in observer.topic("orders").read(end=15)] == list(range(15))


def test_a_long_file_that_is_lost_on_the_store_comes_back_from_a_restored_log(restored, root):
    """The very file is here: no rewrite is needed."""
    long = root.keys(layout.segments_folder("orders", 0))[0]
    root.store.delete([long])
    assert [f.kind for f in restored.reconcile(remote=True).findings] == ["missing"]
    assert restored.reconcile(remote=True, fix=True).clean
    assert long in root.keys("topics/")


def test_retention_removes_a_long_file_as_a_whole(restored):
    """25 records stay wanted: the file of segments 0 to 2 goes; that of 3 and 4 has some of them, and stays."""
    restored.ship(20)
    restored.set_retention("orders", records_max=25)
    report = restored.retain()
    assert [(item.number, item.rows) for item in report.removed] == [(0, 30)]
    assert numbers(restored) == [3, 5]
    topic = restored.topic("orders")
    assert offsets(topic) == list(range(30, 10 * COUNT))
    with pytest.raises(NotFound):
        list(topic.read(start=29))
    assert restored.reconcile(deep=True).clean


def test_a_retirement_in_the_middle_of_a_long_file_holds(compacted, root, tmp_path, open_quiet, keys):
    """Its file comes back for the sake of what is left, and no more can be read."""
    document = ExpiredDocument(log=compacted.log, topic="orders", partition=0, upto=1, first=10, expired_us=1)
    compacted.store.create(layout.expired_key("orders", 0, 1), Body.of(documents.encode(document)))
    bring(root, tmp_path / "back", keys)
    log = open_quiet("back", segments=TEN, keyring=keys)
    assert offsets(log.topic("orders")) == list(range(10, 10 * COUNT))
    assert log.reconcile(deep=True).clean
    assert log.reconcile(remote=True, deep=True).clean


def test_a_rewrite_that_is_damaged_is_refused_before_anything_is_taken_over(compacted, root, tmp_path, keys):
    key = layout.rewrite_key("orders", 0, 1)
    root.replace(key, root.store.get(key)[:-40])
    claims = root.keys(layout.EPOCHS)
    with pytest.raises(Corrupt) as refused:
        bring(root, tmp_path / "back", keys)
    assert refused.value.path == key
    assert root.keys(layout.EPOCHS) == claims


def test_a_long_file_that_is_gone_is_refused_by_its_name(compacted, root, tmp_path, keys):
    long = root.keys(layout.segments_folder("orders", 0))[1]
    root.store.delete([long])
    with pytest.raises(Corrupt) as refused:
        bring(root, tmp_path / "back", keys)
    assert refused.value.path == long


def test_a_local_rewrite_that_is_damaged_is_reported_by_its_name(restored, open_quiet, keys):
    """Nothing is read wrongly; reconciliation says what it is."""
    restored.close()
    key = layout.rewrite_key("orders", 0, 1)
    path = restored.path / "segments" / key
    path.write_bytes(path.read_bytes()[:-40])
    again = open_quiet("back", segments=TEN, keyring=keys)
    with pytest.raises(Corrupt) as damage:
        list(again.topic("orders").read())
    assert damage.value.path == key
    assert key in [finding.name for finding in again.reconcile().findings]
