"""Reconciliation of a root in which a sink writes, too: its topics are looked at, repaired where that is safe, kept."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.root.objects import documents
from holdfast.root.sink_batches import NOTHING
from holdfast.store import layout
from tests.rewriting import Compactor
from tests.sink_topics import SinkTopic

pytestmark = pytest.mark.store


@pytest.fixture
def log(open_shipped):
    log = open_shipped()
    log.topic("orders").append(b"1", durability="shipped")
    log.seal()
    log.ship(20)
    return log


@pytest.fixture
def sink(log, root):
    sink = SinkTopic(root.store)
    sink.write({0: [[b"a"], [b"b"]], 1: [[b"c"]]})
    sink.write({0: [[b"d"]], 2: [[b"e"]]})
    sink.write({})
    sink.write({0: [[b"f"]], 1: [[b"g"], [b"h"]]})
    return sink


def found(log, *, deep=False, fix=False):
    report = log.reconcile(remote=True, deep=deep, fix=fix)
    return [(finding.kind, finding.name) for finding in report.findings]


def spoil(root, key):
    data = bytearray(root.store.get(key))
    data[len(data) // 2] ^= 1
    root.replace(key, bytes(data))


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("fix", [False, True])
def test_a_sinks_topic_is_no_finding_and_stays_as_it_is(log, sink, deep, fix):
    """Also while a task has written files that no batch names, in a partition that the topic does not have yet."""
    sink.written(0, sink.newest.ends["0"], [b"coming"])
    sink.written(7, NOTHING, [b"coming"])
    before = sink.objects()
    report = log.reconcile(remote=True, deep=deep, fix=fix)
    assert (report.findings, report.repairs) == ((), ())
    assert report.segments >= 8
    assert sink.objects() == before


def test_a_batch_that_is_not_applied_is_no_finding_and_is_applied_by_repairs(log, sink, root):
    batch = sink.write({0: [[b"i"], [b"j"]], 3: [[b"k"]]}, applied=False)
    before = sink.objects()
    assert found(log) == found(log, deep=True) == []
    assert sink.objects() == before
    assert found(log, fix=True) == []
    added = {key: root.store.get(key) for key in sink.objects() if key not in before}
    assert added == {
        layout.manifest_key("spark", one.partition, one.slot): documents.encode(one) for one in batch.segments
    }


@pytest.mark.sampled(4)
@pytest.mark.parametrize("place", [(0, 0), (0, 1), (0, 2), (0, 3), (1, 2)])
@pytest.mark.parametrize("damage", ["gone", "spoiled"])
def test_manifest_objects_are_written_again_from_batches(log, sink, root, place, damage):
    """The last one of the newest batch, which is (1, 2), says that the batch is applied: it may still be on its way."""
    key = layout.manifest_key("spark", *place)
    before = sink.objects()
    root.store.delete([key]) if damage == "gone" else spoil(root, key)
    is_coming = damage == "gone" and place == (1, 2)
    assert found(log) == [("missing" if damage == "gone" else "content_mismatch", key)] * (not is_coming)
    assert sink.objects() != before
    assert found(log, fix=True) == []
    assert sink.objects() == before
    assert found(log, deep=True) == []


def test_what_is_known_nowhere_else_is_reported_and_left(log, sink, root):
    """A batch, a file, a document of the topic: with what to do, and nothing is changed."""
    files = {segment.slot: segment.key for segment in root.manifest("spark", 0)}
    spoil(root, layout.sink_key("spark", 1))
    spoil(root, files[2])
    root.store.delete([files[0]])
    before = sink.objects()
    assert found(log) == [("missing", files[0])]
    expected = [
        ("content_mismatch", layout.sink_key("spark", 1)),
        ("missing", files[0]),
        ("content_mismatch", files[2]),
    ]
    assert found(log, deep=True) == found(log, deep=True, fix=True) == expected
    assert sink.objects() == before
    root.store.delete([layout.sink_key("spark", 0)])
    assert ("missing", layout.sink_key("spark", 0)) in found(log)
    spoil(root, layout.sink_key("spark", 3))
    assert ("content_mismatch", layout.sink_key("spark", 3)) in found(log)
    spoil(root, layout.topic_key("spark", 2))
    assert ("content_mismatch", layout.topic_key("spark", 2)) in found(log)


def test_a_manifest_object_beyond_the_newest_batch_is_reported(log, sink, root):
    """Readers do not show what no batch says."""
    newest = layout.sink_key("spark", 3)
    data = root.store.get(newest)
    root.store.delete([newest])
    assert set(found(log)) == {
        ("untracked", layout.manifest_key("spark", *place)) for place in ((0, 3), (1, 1), (1, 2))
    }
    root.replace(newest, data)
    assert found(log) == []


def test_joined_and_retired_files_are_not_missed(log, sink, root):
    Compactor(root.store, topic="spark").rewrite((0, 2), remove=True)
    assert found(log, deep=True) == []
    long = next(info.key for info in root.store.list(layout.segments_folder("spark", 0) + "/"))
    root.store.delete([long])
    assert found(log) == [("missing", long)]


def test_a_number_that_no_sink_wrote_keeps_no_pass_busy(log, sink, root):
    """One name, which anybody can write."""
    root.replace(layout.sink_key("spark", 2**40), root.store.get(layout.sink_key("spark", 3)))
    kinds = {kind for kind, _ in found(log)}
    assert kinds == {"gap", "content_mismatch"}


def test_a_foreign_object_among_batches_is_reported(log, sink, root):
    root.replace("topics/spark/_sink/notes.txt", b"x")
    assert found(log) == [("untracked", "topics/spark/_sink/notes.txt")]


def test_a_log_that_lost_its_store_rebuilds_what_is_its_own(log, sink, root):
    """And touches nothing else."""
    before = sink.objects()
    root.store.delete(root.keys("topics/orders/"))
    log.rebuild_store()
    log.topic("orders").append(b"2", durability="shipped")
    assert found(log, deep=True) == []
    assert sink.objects() == before
    assert [row["payload"] for row in holdfast.read(root.url, "spark").to_arrow().to_pylist()][:1] == [b"a"]
