"""A sink's topic as a Delta table: whole batches, in all partitions at once, whatever comes in between."""

from __future__ import annotations

import random
from pathlib import Path

import deltalake
import polars
import pyarrow as pa
import pytest

import holdfast
from holdfast import Corrupt, Invalid, Keyring
from holdfast.publish.publication import Publisher
from holdfast.root.batch_application import is_applied, manifest_key_of
from holdfast.root.objects import documents
from holdfast.store import layout
from holdfast.store.directory import DirectoryStore
from holdfast.store.port import Body, Store
from tests.publish.counting_store import CLOCK, publisher_of
from tests.rewriting import Compactor
from tests.sink_topics import SinkTopic

pytestmark = pytest.mark.store


class Place:
    """A root in a directory with one topic of a sink."""

    def __init__(self, path: Path, **options: object) -> None:
        self.path = path
        self.sink = SinkTopic(DirectoryStore(path, CLOCK), **options)

    def publisher(self) -> Publisher:
        return publisher_of(DirectoryStore(self.path, CLOCK))

    @property
    def table(self) -> str:
        return str(self.path / layout.table_folder(self.sink.topic))

    def shown(self, version: int | None = None) -> list[tuple[int, bytes]]:
        """What deltalake reads: partition and payload."""
        rows = deltalake.DeltaTable(self.table, version=version).to_pyarrow_table().to_pylist()
        return sorted((row["partition"], row["payload"]) for row in rows)

    def read(self, **options: object) -> list[tuple[int, bytes]]:
        """What holdfast reads."""
        rows = holdfast.read(str(self.path), self.sink.topic, **options).to_arrow().to_pylist()
        return sorted((row["partition"], row["payload"]) for row in rows)


READS = ({}, {"include_tail": True}, {"verify": "full"})


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "root")


def test_a_sinks_topic_is_published_and_followed(place):
    """New rows, new partitions, an empty batch: the table shows what is there, in one version per publication."""
    place.sink.write({0: [[b"a", b"b"]], 1: [[b"c"]]})
    first = place.publisher().publish("spark")
    assert (first.state, first.rows, first.commits) == ("published", 3, 1)
    assert place.shown() == [(0, b"a"), (0, b"b"), (1, b"c")]
    place.sink.write({1: [[b"d"], [b"e"]], 4: [[b"f"]]})
    place.sink.write({})
    assert place.publisher().publish("spark").commits == 1
    assert place.shown() == place.read() == [(0, b"a"), (0, b"b"), (1, b"c"), (1, b"d"), (1, b"e"), (4, b"f")]
    assert place.publisher().publish("spark").state == "unchanged"
    frame = polars.read_delta(place.table)
    assert sorted(frame["payload"].to_list()) == [b"a", b"b", b"c", b"d", b"e", b"f"]


def test_a_batch_whose_manifest_objects_are_missing_is_published_as_a_whole(place):
    """They are written first: they follow from the batch."""
    place.sink.write({0: [[b"a"]]})
    batch = place.sink.write({0: [[b"b"], [b"c"]], 1: [[b"d"]]}, applied=False)
    place.sink.store.create(manifest_key_of(batch.segments[0]), Body.of(documents.encode(batch.segments[0])))
    place.publisher().publish("spark")
    assert place.shown() == [(0, b"a"), (0, b"b"), (0, b"c"), (1, b"d")]
    assert is_applied(place.sink.store, batch)


def test_looking_ahead_writes_nothing(place):
    """And tells of what is applied."""
    place.sink.write({0: [[b"a"]]})
    place.sink.write({0: [[b"b"]]}, applied=False)
    before = place.sink.objects()
    assert place.publisher().publish("spark", dry_run=True).added == 1
    assert place.sink.objects() == before


class Interrupted(DirectoryStore):
    """Has a sink commit and apply one more batch while somebody publishes: at the n-th look at a manifest."""

    def __init__(self, path: Path, sink: SinkTopic, at: int) -> None:
        super().__init__(path, CLOCK)
        self._sink, self._left = sink, at

    def list(self, prefix, after=None):
        if "_manifest" in prefix or "_rewrites" in prefix:
            self._left -= 1
            if not self._left:
                self._sink.write({0: [[b"x"]], 1: [[b"y"]], 2: [[b"z"]]})
                for partition in (0, 1):
                    compactor = Compactor(self._sink.store.files, topic="spark", partition=partition)
                    compactor.rewrite((0, 2))
        return super().list(prefix, after)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("at", range(1, 8))
@pytest.mark.parametrize("published", [False, True], ids=["new", "followed"])
def test_a_batch_that_comes_while_a_table_is_made_is_shown_as_a_whole_or_not_at_all(place, at, published):
    """Also when its files are joined with older ones at once."""
    place.sink.write({0: [[b"a"]], 1: [[b"b"]]})
    if published:
        place.publisher().publish("spark")
        place.sink.write({1: [[b"c"]]})
    expected = place.read()
    store: Store = Interrupted(place.path, place.sink, at)
    publisher_of(store).publish("spark")
    later = [(0, b"x"), (1, b"y"), (2, b"z")]
    assert place.shown() in (expected, sorted(expected + later))
    place.publisher().publish("spark")
    assert place.shown() == place.read()
    versions = deltalake.DeltaTable(place.table).version()
    for version in range(versions + 1):
        seen = place.shown(version)
        assert not set(seen) & set(later) or set(later) <= set(seen), version


def test_a_manifest_object_that_was_lost_stops_the_publication(place):
    """Rather than that half a batch is shown."""
    place.sink.write({0: [[b"a"], [b"b"]], 1: [[b"c"]]})
    place.sink.write({0: [[b"d"]]})
    place.sink.store.delete([layout.manifest_key("spark", 1, 0)])
    with pytest.raises(Corrupt, match="a manifest object is missing"):
        place.publisher().publish("spark")
    assert not (Path(place.table) / "_delta_log").exists()


def test_a_topic_without_a_batch_is_an_empty_table(place):
    place.sink.describe(2)
    assert place.publisher().publish("spark").rows == 0
    assert place.shown() == []


def test_columns_that_are_added_are_shown(tmp_path):
    narrow, wide = pa.schema({"n": pa.int64()}), pa.schema({"n": pa.int64(), "name": pa.string()})
    place = Place(tmp_path / "root", schema=narrow)
    place.sink.write({0: [[{"n": 1}]]})
    place.publisher().publish("spark")
    place.sink.describe(1, wide)
    place.sink.write({0: [[{"n": 2, "name": "two"}]]})
    place.publisher().publish("spark")
    rows = deltalake.DeltaTable(place.table).to_pyarrow_table().to_pylist()
    assert sorted((row["n"], row["name"]) for row in rows) == [(1, None), (2, "two")]


def test_a_keyed_roots_topic_is_refused_as_a_logs_is(tmp_path):
    keyring = Keyring.generate("k")
    place = Place(tmp_path / "root", keyring=keyring)
    place.sink.write({0: [[b"a"]]})
    with pytest.raises(Invalid, match="encrypted"):
        place.publisher().publish("spark")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("turn", range(3))
def test_whatever_happens_to_a_sinks_topic_every_reader_agrees(place, seed, turn):
    """Batches, applied or not or half, compactions and publications in any order: the rows are those of a list."""
    chance = random.Random(seed + turn)
    rows: list[tuple[int, bytes]] = []
    place.sink.write({})
    for step in range(25):
        deed = chance.choice(["write", "write", "write", "half", "compact", "publish"])
        if deed in ("write", "half"):
            made = {
                partition: [
                    [b"%d-%d-%d" % (step, partition, n) for n in range(chance.randrange(1, 4))]
                    for _ in range(chance.randrange(1, 3))
                ]
                for partition in chance.sample(range(4), chance.randrange(0, 4))
            }
            batch = place.sink.write(made, applied=deed == "write")
            rows += [(partition, row) for partition, parts in made.items() for part in parts for row in part]
            for segment in batch.segments[: chance.randrange(3)] if deed == "half" else ():
                if segment.partition == batch.segments[0].partition:
                    place.sink.store.create(manifest_key_of(segment), Body.of(documents.encode(segment)))
            assert place.read(**chance.choice(READS)) == sorted(rows)
        elif deed == "compact":
            holdfast.compact(str(place.path), "spark")
        else:
            place.publisher().publish("spark")
            assert place.shown() == sorted(rows)
    place.publisher().publish("spark")
    holdfast.compact(str(place.path), "spark")
    place.publisher().publish("spark")
    assert place.shown() == sorted(rows)
    assert sorted(polars.read_delta(place.table)["payload"].to_list()) == sorted(row for _, row in rows)
    for options in READS:
        assert place.read(**options) == sorted(rows), options
