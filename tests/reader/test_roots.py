"""What is a root, and what is none (any more); and reads that were begun and go on while retention works."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import holdfast
from holdfast.clock import SystemClock
from holdfast.errors import Corrupt, Invalid, NotFound
from holdfast.reader.open_root import SettledRoot
from holdfast.reader.read_options import parse_options
from holdfast.root.objects import documents
from holdfast.root.objects.documents import ExpiredDocument
from holdfast.store import layout
from holdfast.store.directory import DirectoryStore
from holdfast.store.port import Body
from pyspark_holdfast import DefaultSource

pytestmark = pytest.mark.disk


def filled(path: Path, segments: int = 3, **options: object) -> holdfast.Log:
    log = holdfast.open(path, **options)  # type: ignore[arg-type]
    for number in range(segments):
        log.topic("a").append_batch([b"%d" % number] * 10)
        log.seal()
    return log


def test_a_log_that_got_a_store_is_its_own_root_no_more(tmp_path: Path) -> None:
    """Its directory would show less and less of the truth, and nobody would notice."""
    filled(tmp_path / "log").close()
    assert holdfast.read(str(tmp_path / "log"), "a").count() == 30
    with filled(tmp_path / "log", 1, store=tmp_path / "store") as log:
        log.ship(30)
    with pytest.raises(NotFound, match="no log at this root") as caught:
        holdfast.read(str(tmp_path / "log"), "a")
    assert "store that the log ships to" in caught.value.hint
    assert holdfast.read(str(tmp_path / "store"), "a").count() == 40


def retire(store: Path, upto: int, first: int) -> None:
    """As retention does: say so first; files go later."""
    opened = DirectoryStore(store, SystemClock())
    log = documents.decode(opened.get(layout.LOG), layout.LOG, documents.LogDocument).log
    document = ExpiredDocument(log=log, topic="a", partition=0, upto=upto, first=first, expired_us=1)
    opened.create(layout.expired_key("a", 0, upto), Body.of(documents.encode(document)))


def test_a_frame_that_was_loaded_reads_what_it_saw_or_says_that_it_is_gone(tmp_path: Path) -> None:
    """Retention between two actions on one DataFrame makes no shorter answer."""
    filled(tmp_path / "log").close()
    root = tmp_path / "log" / "segments"
    source = DefaultSource({"path": str(root), "topic": "a"})
    schema = source.schema()

    def rows() -> int:
        reader = source.reader(schema)
        return sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task))

    assert rows() == 30
    retire(root, 1, 10)
    assert holdfast.read(str(root), "a").count() == 20
    assert rows() == 30
    next(iter(sorted(root.rglob("*.parquet")))).unlink()
    with pytest.raises(NotFound, match="expired before it was read"):
        rows()


def test_an_object_that_came_with_a_damaged_one_is_not_taken_for_proved_later(tmp_path: Path) -> None:
    """A root that is looked at again and again remembers what it has proved, and nothing that it only fetched."""
    filled(tmp_path / "log", 3).close()
    folder = tmp_path / "log" / "segments" / layout.manifest_folder("a", 0)
    later = sorted(folder.iterdir())[1:]
    kept = [path.read_bytes() for path in later]
    for path in later:
        path.unlink()
    root = SettledRoot.open(str(tmp_path / "log"), parse_options({"path": str(tmp_path), "topic": "a"})[1])
    assert len(root.segments(("a", 0))) == 1
    forged = msgspec.structs.replace(documents.decode_manifest(kept[0], ""), content="ab" * 32)
    later[0].write_bytes(documents.encode(forged))
    later[1].write_bytes(kept[1][:-5])
    with pytest.raises(Corrupt, match="damaged"):
        root.segments(("a", 0))
    later[1].unlink()
    with pytest.raises(Corrupt, match="does not follow"):
        root.segments(("a", 0))
    later[0].write_bytes(kept[0])
    assert len(root.segments(("a", 0))) == 2


def stream(root: Path, **options: str) -> object:
    source = DefaultSource({"path": str(root), "topic": "a", **options})
    return source.streamReader(source.schema())


def test_a_checkpoint_that_is_ahead_of_the_root_is_refused(tmp_path: Path) -> None:
    """Another log stands there, or an older copy of it: waiting for ever would look like a quiet stream."""
    filled(tmp_path / "log").close()
    reader = stream(tmp_path / "log")
    with pytest.raises(Invalid, match="ahead of the root topic=a partition=0 offset=31 settled=30"):
        reader.latestOffset({"a": {"0": 31}}, ReadAllAvailable())  # type: ignore[attr-defined]
    patient = stream(tmp_path / "log", failOnDataLoss="false")
    assert patient.latestOffset({"a": {"0": 31}}, ReadAllAvailable()) == {"a": {"0": 31}}  # type: ignore[attr-defined]


def test_a_lease_is_refused_where_nobody_would_honour_it(tmp_path: Path) -> None:
    filled(tmp_path / "log").close()
    with pytest.raises(Invalid, match="a lease needs a store"):
        stream(tmp_path / "log", reader="me").latestOffset({"a": {"0": 0}}, ReadAllAvailable())  # type: ignore[attr-defined]


def test_a_stream_goes_on_through_what_is_retired_but_still_there(tmp_path: Path) -> None:
    """Files stay for a while after retention named them, and longer by a lease; then it is told."""
    filled(tmp_path / "log").close()
    root = tmp_path / "log" / "segments"
    retire(root, 2, 20)
    reader = stream(root)
    tasks = reader.partitions({"a": {"0": 0}}, {"a": {"0": 30}})  # type: ignore[attr-defined]
    assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) == 30  # type: ignore[attr-defined]
    min(root.rglob("*.parquet")).unlink()
    with pytest.raises(NotFound, match="records have expired"):
        reader.partitions({"a": {"0": 0}}, {"a": {"0": 30}})  # type: ignore[attr-defined]
