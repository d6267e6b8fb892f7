"""What is a root, and what is none (any more); and reads that were begun and go on while retention works."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

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


def stream(root: Path, **options: str) -> Any:
    source = DefaultSource({"path": str(root), "topic": "a", **options})
    return source.streamReader(source.schema())


def test_a_checkpoint_that_is_ahead_of_the_root_is_refused(tmp_path: Path) -> None:
    """An older copy of it stands there: waiting forever, or ending with nothing, would look like a quiet stream."""
    with filled(tmp_path / "log") as log:
        start = {log.id: {"a": {"0": 31}}}
    for is_now in (False, True):
        reader = stream(tmp_path / "log")
        if is_now:
            reader.prepareForTriggerAvailableNow()
        with pytest.raises(Invalid, match="ahead of the root topic=a partition=0 offset=31 settled=30") as refused:
            reader.latestOffset(start, ReadAllAvailable())
        assert "put the newer one back" in refused.value.hint
    patient = stream(tmp_path / "log", failOnDataLoss="false")
    assert patient.latestOffset(start, ReadAllAvailable()) == start


@pytest.fixture
def anew(tmp_path: Path) -> tuple[str, Callable[[], str]]:
    """A log of 30 records, by its id; and how another one with 50 gets into its place, which tells its id."""
    with filled(tmp_path / "log") as log:
        first = log.id

    def replaced() -> str:
        shutil.rmtree(tmp_path / "log")
        with filled(tmp_path / "log", 5) as other:
            return other.id

    return first, replaced


OTHER = "another log than the one at this root log={} expected={}"


def test_offsets_of_a_stream_are_refused_at_a_log_that_was_made_anew(
    tmp_path: Path, anew: tuple[str, Callable[[], str]]
) -> None:
    """Under every trigger, at the start and while it runs: its first records would be passed over."""
    first, replaced = anew
    running = stream(tmp_path / "log")
    start = running.latestOffset(running.initialOffset(), ReadAllAvailable())
    assert start == {first: {"a": {"0": 30}}}
    other = replaced()
    with pytest.raises(Invalid, match=f"another log log={other} expected={first}"):
        running.latestOffset(start, ReadAllAvailable())
    at_once = stream(tmp_path / "log")
    at_once.prepareForTriggerAvailableNow()
    for reader in (stream(tmp_path / "log"), at_once):
        for asked in (
            lambda reader=reader: reader.latestOffset(start, ReadAllAvailable()),
            lambda reader=reader: reader.latestOffset(start, ReadMaxRows(5)),
            lambda reader=reader: reader.partitions({first: {"a": {"0": 0}}}, start),
            lambda reader=reader: reader.commit(start),
        ):
            with pytest.raises(Invalid, match=OTHER.format(other, first)) as refused:
                asked()
            assert "checkpointLocation" in refused.value.hint
    with pytest.raises(Invalid, match="name no log"):
        stream(tmp_path / "log").latestOffset({"a": {"0": 30}}, ReadAllAvailable())


def test_marks_are_refused_at_a_log_that_was_made_anew(tmp_path: Path, anew: tuple[str, Callable[[], str]]) -> None:
    first, replaced = anew
    root = tmp_path / "log"
    marks = holdfast.read(str(root), "a").marks
    source = DefaultSource({"path": str(root), "topic": "a"})
    schema = source.schema()  # this is when a DataFrame is pinned
    other = replaced()
    for name in ("as_of", "starting_offsets", "ending_offsets"):
        with pytest.raises(Invalid, match=OTHER.format(other, first)) as refused:
            holdfast.read(str(root), "a", **{name: marks})
        assert "read the root that they were taken from" in refused.value.hint
    for name in ("asOf", "startingOffsets", "endingOffsets"):
        with pytest.raises(Invalid, match=OTHER.format(other, first)):
            DefaultSource({"path": str(root), "topic": "a", name: marks}).schema()
    with pytest.raises(Invalid, match="what was loaded belongs to " + OTHER.format(other, first)):
        source.reader(schema).partitions()
    assert holdfast.read(str(root), "a", ending_offsets={"a": {"0": 30}}).count() == 30  # whichever log is there


def test_a_lease_is_refused_where_nobody_would_honour_it(tmp_path: Path) -> None:
    filled(tmp_path / "log").close()
    with pytest.raises(Invalid, match="a lease needs a store"):
        reader = stream(tmp_path / "log", reader="me")
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())


def test_a_stream_goes_on_through_what_is_retired_but_still_there(tmp_path: Path) -> None:
    """Files stay for a while after retention named them, and longer by a lease; then that is reported."""
    filled(tmp_path / "log").close()
    root = tmp_path / "log" / "segments"
    retire(root, 2, 20)
    reader = stream(root)
    begin, end = ({reader._opened().log: {"a": {"0": offset}}} for offset in (0, 30))
    tasks = reader.partitions(begin, end)
    assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) == 30
    min(root.rglob("*.parquet")).unlink()
    with pytest.raises(NotFound, match="records have expired"):
        reader.partitions(begin, end)
