"""holdfast.read: what was appended and is settled, row for row, without the log; or an error that says why."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from holdfast import Keyring, Log, Record
from holdfast.errors import Corrupt, Invalid, NotFound
from holdfast.reader.offsets import Where, parse_offsets
from holdfast.root.root_place import root_url
from holdfast.segments.file.segment_reader import SegmentReader
from holdfast.testing.manual_clock import ManualClock
from tests.segment_data import head, raw_batch, write
from tests.segments.planting import TEN, files, fill, wait_for, wait_published

pytestmark = pytest.mark.disk

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


def seal(log: Log, *names: str) -> None:
    """Seal, and wait until readers without the log know: manifest objects are written right after a seal."""
    log.seal()
    for name in names:
        sealed = {(name, number): marks.sealed for number, marks in enumerate(log.marks(name))}
        wait_for(lambda name=name, sealed=sealed: settled(log, name) == sealed)


def settled(log: Log, name: str) -> dict[Where, int]:
    try:
        return parse_offsets(read(log, name).marks).ends
    except NotFound:
        return {}


def read(log: Log | Path, topic: Any = "orders", **options: Any) -> holdfast.SettledReading:
    return holdfast.read(str(log if isinstance(log, Path) else log.path), topic, **options)


def offsets(reading: holdfast.SettledReading, partition: int = 0) -> list[int]:
    rows = reading.to_arrow().to_pylist()
    return [row["offset"] for row in rows if row["partition"] == partition]


@pytest.fixture
def orders(open_log) -> Log:
    """A raw topic of two partitions, three segments of ten records in the first, one of five in the other."""
    log = open_log(segments=TEN)
    log.topic("orders", partitions=2)
    fill(log, "orders", 3)
    log.topic("orders").append_batch([b"%d" % i for i in range(5)], partition=1)
    seal(log, "orders")
    return log


# -- rows ---------------------------------------------------------------------------------------------------


def test_raw_records_come_back_as_they_were_appended(open_log):
    log = open_log()
    topic = log.topic("orders")
    given = [
        Record(b"v", key=b"k", kind="order", headers={"trace": b"\0\xff", "ü": b""}, time=5),
        Record(b""),
        Record(b"x", key=b""),
        Record(b"y", headers={}, time=-7),
    ]
    for record in given:
        topic.append_batch([record])
    seal(log, "orders")
    rows = read(log).to_arrow().to_pylist()
    stored = list(topic.read())
    assert [(row["topic"], row["partition"], row["offset"]) for row in rows] == [("orders", 0, i) for i in range(4)]
    for row, record in zip(rows, stored, strict=True):
        assert (row["payload"], row["key"], row["kind"]) == (record.payload, record.key, record.kind)
        assert row["time"] == record.at
        headers = None if row["headers"] is None else {item["key"]: item["value"] for item in row["headers"]}
        assert headers == (None if record.headers is None else dict(record.headers))


def test_typed_rows_come_back_as_they_were_appended(open_log):
    log = open_log()
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("tags", pa.list_(pa.string())),
            pa.field("price", pa.decimal128(9, 2)),
            pa.field("colour", pa.dictionary(pa.int32(), pa.string())),
        ]
    )
    given = [
        {"id": 1, "tags": ["a", None], "price": None, "colour": "red"},
        {"id": 2, "tags": None, "price": 7, "colour": None},
    ]
    log.topic("items", schema=schema).append(given)
    seal(log, "items")
    reading = read(log, "items")
    assert reading.schema.names == ["_topic", "_partition", "_offset", "_time", "id", "tags", "price", "colour"]
    rows = reading.to_arrow().to_pylist()
    assert [{name: row[name] for name in given[0]} for row in rows] == given
    assert [(row["_topic"], row["_partition"], row["_offset"]) for row in rows] == [("items", 0, 0), ("items", 0, 1)]


def test_rows_come_by_partition_and_offset(orders):
    assert [(row["partition"], row["offset"]) for row in read(orders).to_arrow().to_pylist()] == [
        *((0, offset) for offset in range(30)),
        *((1, offset) for offset in range(5)),
    ]


def test_a_reading_can_be_read_again(orders):
    reading = read(orders)
    assert reading.to_arrow().equals(reading.to_arrow())


def test_nothing_is_read_that_is_not_settled(orders):
    orders.topic("orders").append(b"tail", partition=0)
    assert offsets(read(orders)) == list(range(30))


def test_a_topic_without_records_is_empty(open_log):
    log = open_log()
    log.topic("orders", partitions=3).append(b"x", partition=1)
    seal(log, "orders")
    reading = read(log)
    assert reading.marks == f'{{"{log.id}":{{"orders":{{"0":[0,0],"1":[0,1],"2":[0,0]}}}}}}'
    assert reading.to_arrow().num_rows == reading.count() == 1


def test_shares_of_a_segment_are_read_once_by_all_readers_together(tmp_path):
    """However many there are; a segment of ten row groups shared by twelve leaves some with nothing."""
    path = tmp_path / "segment.parquet"
    facts = write(path, head(7), [raw_batch(7, 950)])
    for parts in (1, 2, 3, 7, 10, 12):
        with SegmentReader(path, head(7), facts, None) as reader:
            found = [
                offset
                for part in range(parts)
                for batch in reader.batches(0, 2**62, columns=[], share=(part, parts))
                for offset in batch.column(0).to_pylist()
            ]
        assert found == list(range(7, 957))


# -- columns ------------------------------------------------------------------------------------------------


def test_columns_come_in_the_order_that_was_asked_for(orders):
    reading = read(orders, columns=["payload", "offset", "topic"])
    assert reading.schema.names == ["payload", "offset", "topic"]
    assert reading.to_arrow().to_pylist()[1] == {"payload": b"1", "offset": 1, "topic": "orders"}


def test_a_column_that_is_not_there_is_refused_with_those_that_are(orders):
    with pytest.raises(Invalid, match="no such columns") as refused:
        read(orders, columns=["value"])
    assert "payload" in refused.value.hint


def test_counting_opens_no_file(orders):
    shutil.rmtree(orders.path / "segments" / "topics" / "orders" / "0" / "segments")
    reading = read(orders)
    assert reading.count() == 35
    assert read(orders, columns=["partition", "offset"]).to_arrow().num_rows == 35
    with pytest.raises(Corrupt, match="a segment is missing"):
        reading.to_arrow()


def test_counting_what_is_proved_in_full_opens_every_file(orders):
    shutil.rmtree(orders.path / "segments" / "topics" / "orders" / "0" / "segments")
    with pytest.raises(Corrupt, match="a segment is missing"):
        read(orders, verify="full").count()


# -- schemas ------------------------------------------------------------------------------------------------

OLD, NEW = pa.schema({"a": pa.int64()}), pa.schema({"a": pa.int64(), "b": pa.string()})


@pytest.fixture
def grown(open_log) -> Log:
    """A typed topic whose schema has grown by a column."""
    log = open_log()
    log.topic("items", schema=OLD).append([{"a": 1}])
    seal(log, "items")
    log.topic("items", schema=NEW).append([{"a": 2, "b": "x"}])
    seal(log, "items")
    return log


def test_older_versions_are_read_with_the_newest_columns(grown):
    rows = read(grown, "items").to_arrow().select(["_offset", "a", "b"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(0, 1, None), (1, 2, "x")]


def test_strict_refuses_versions_that_differ(grown):
    with pytest.raises(Invalid, match="2 versions of their schema"):
        read(grown, "items", schema_mode="strict").to_arrow()
    one = read(grown, "items", schema_mode="strict", starting_offsets='{"items":{"0":1}}')
    assert one.to_arrow().num_rows == 1


def test_a_schema_that_grows_after_a_reading_was_made_does_not_change_it(open_log):
    """Records beyond its marks are not its business."""
    log = open_log()
    log.topic("items", schema=OLD).append([{"a": 1}])
    seal(log, "items")
    latest, known = (read(log, "items", schema_mode=mode) for mode in ("latest", "known"))
    log.topic("items", schema=NEW).append([{"a": 2, "b": "x"}])
    seal(log, "items")
    for reading in (latest, known):
        assert reading.schema.names[4:] == ["a"]
        assert reading.to_arrow().num_rows == 1


def test_chosen_columns_are_null_where_a_version_had_none(grown):
    assert read(grown, "items", columns=["b"]).to_arrow().column("b").to_pylist() == [None, "x"]


# -- which records ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "end"), [(0, 30), (3, 4), (9, 11), (10, 20), (15, 15), (29, 30), (30, 30)])
def test_offsets_choose_records_across_segments(orders, start, end):
    reading = read(
        orders,
        starting_offsets='{"orders":{"0":%d,"1":-1}}' % start,  # noqa: UP031
        ending_offsets='{"orders":{"0":%d}}' % end,  # noqa: UP031
    )
    assert offsets(reading) == list(range(start, end))
    assert reading.count() == end - start


def test_earliest_and_latest_stand_for_where_a_partition_begins_and_ends(orders):
    assert read(orders, starting_offsets="latest").count() == 0
    assert read(orders, starting_offsets='{"orders":{"0":-1,"1":-2}}').count() == 5
    assert read(orders, ending_offsets='{"orders":{"0":-1,"1":-2}}').count() == 30


def test_an_end_beyond_what_is_settled_is_refused_with_what_is(orders):
    with pytest.raises(Invalid, match="not settled yet topic=orders partition=0 offset=31 settled=30"):
        read(orders, ending_offsets='{"orders":{"0":31}}')


@pytest.mark.parametrize("place", ['{"ordres":{"0":3}}', '{"orders":{"2":3}}'])
@pytest.mark.parametrize("option", ["starting_offsets", "ending_offsets"])
def test_offsets_of_what_is_not_read_are_a_mistake(orders, option, place):
    with pytest.raises(Invalid, match="offsets name a partition that is not read"):
        read(orders, **{option: place})


@pytest.fixture
def timed(open_log) -> Log:
    """Records one second apart, ten to a segment, those of the last segment in disorder."""
    log = open_log(segments=TEN)
    topic = log.topic("orders")
    seconds = [*range(20), *(20 + i * 7 % 10 for i in range(10))]
    for first in range(0, 30, 10):
        times = [BEGINNING + timedelta(seconds=second) for second in seconds[first : first + 10]]
        topic.append_batch([Record(b"x", time=int(time.timestamp() * 1e6)) for time in times])
        topic.wait_sealed(first + 10, 30)
        wait_published(log, "orders", 0)
    return log


@pytest.mark.parametrize(("since", "before"), [(0, 30), (5, 6), (9, 21), (22, 25), (None, 12), (27, None), (40, 50)])
def test_times_choose_records_first_included_last_not(timed, since, before):
    start, end = (None if second is None else BEGINNING + timedelta(seconds=second) for second in (since, before))
    reading = read(timed, starting_timestamp=start, ending_timestamp=end)
    found = sorted(int((row["time"] - BEGINNING).total_seconds()) for row in reading.to_arrow().to_pylist())
    assert found == [second for second in range(30) if (since or 0) <= second < (30 if before is None else before)]
    assert reading.count() == len(found)


def test_times_leave_out_files_that_cannot_match(timed):
    files(timed, "orders")[0].unlink()
    reading = read(timed, starting_timestamp=BEGINNING + timedelta(seconds=10))
    assert offsets(reading) == list(range(10, 30))


def test_a_time_without_a_zone_is_refused(orders):
    with pytest.raises(Invalid, match="a time needs its zone"):
        read(orders, starting_timestamp=datetime(2026, 1, 1))  # noqa: DTZ001


def test_as_of_reads_the_same_while_more_is_written(orders):
    first = read(orders)
    before = first.to_arrow()
    for _ in range(3):
        fill(orders, "orders", 1)
        fill(orders, "orders", 1, partition=1)
        assert read(orders, as_of=first.marks).to_arrow().equals(before)
        assert first.to_arrow().equals(before)
    assert read(orders).count() > before.num_rows


def test_as_of_reads_from_where_the_other_read_began(orders):
    """Marks say both: where it began, and where it ended; a start that is asked for goes before."""
    first = read(orders, starting_offsets='{"orders":{"0":3,"1":-1}}')
    again = read(orders, as_of=first.marks)
    assert again.marks == first.marks
    assert again.to_arrow().equals(first.to_arrow())
    later = read(orders, as_of=first.marks, starting_offsets='{"orders":{"0":5}}')
    assert later.count() == first.count() - 2


def test_marks_of_a_read_are_where_the_next_one_begins(orders):
    """Given where offsets are asked for, they mean their ends."""
    first = read(orders)
    fill(orders, "orders", 1)
    more = read(orders, starting_offsets=first.marks)
    assert more.count() == read(orders).count() - first.count() > 0
    assert read(orders, ending_offsets=first.marks).to_arrow().equals(first.to_arrow())


def test_as_of_reads_no_partition_that_it_does_not_name(orders):
    marks = f'{{"{orders.id}":{{"orders":{{"1":[0,3]}}}}}}'
    assert offsets(read(orders, as_of=marks)) == []
    assert read(orders, as_of=marks).count() == 3


def test_marks_only_grow(orders):
    readings = [read(orders)]
    for _ in range(3):
        fill(orders, "orders", 1)
        readings.append(read(orders))
    counts = [reading.count() for reading in readings]
    assert all(before < after for before, after in pairwise(counts))


# -- several topics -----------------------------------------------------------------------------------------


@pytest.fixture
def several(open_log) -> Log:
    log = open_log()
    for name in ("orders", "payments", "other"):
        log.topic(name).append(name.encode())
    log.topic("items", schema=OLD).append([{"a": 1}])
    seal(log, "orders", "payments", "other", "items")
    return log


def test_several_topics_are_read_together(several):
    rows = read(several, ["payments", "orders"]).to_arrow().to_pylist()
    assert [(row["topic"], row["payload"]) for row in rows] == [("orders", b"orders"), ("payments", b"payments")]


def test_a_pattern_reads_all_topics_whose_whole_name_matches(several):
    reading = read(several, (), topic_pattern="o.*")
    assert reading.to_arrow().column("topic").to_pylist() == ["orders", "other"]
    assert read(several, (), topic_pattern="nothing").to_arrow().num_rows == 0


def test_topics_of_different_kinds_are_not_read_together(several):
    with pytest.raises(Invalid, match="topics with different columns"):
        read(several, ["orders", "items"])


def test_an_unknown_topic_is_reported_with_those_that_are_there(several):
    with pytest.raises(NotFound, match="no topic 'ordres'") as refused:
        read(several, "ordres")
    assert "orders" in refused.value.hint


def test_a_read_without_a_topic_is_refused(several):
    with pytest.raises(Invalid, match="give either topic or topicPattern"):
        read(several, ())


# -- places -------------------------------------------------------------------------------------------------


def test_a_log_is_named_by_its_directory_its_root_or_a_url(orders, monkeypatch):
    monkeypatch.chdir(orders.path.parent)
    path = orders.path
    for place in (
        str(path),
        f"{path}/",
        str(path / "segments"),
        path.name,
        f"./{path.name}/segments",
        f"file:{path}",
        f"file://{path}",
        path.as_uri(),
        (path / "segments").as_uri(),
    ):
        assert holdfast.read(place, "orders").count() == 35, place


def test_a_path_with_blanks_and_percents_is_the_same_for_readers_and_writers(open_log):
    log = open_log("a b%20c")
    log.topic("orders").append(b"x")
    seal(log, "orders")
    for place in (str(log.path), f"file:{log.path}", log.path.as_uri()):
        assert holdfast.read(place, "orders").count() == 1, place
    assert root_url("s3a://bucket/prefix") == "s3://bucket/prefix"


def test_where_there_is_no_log_is_reported(tmp_path):
    with pytest.raises(NotFound, match="there is no log at this root"):
        read(tmp_path)


def test_a_url_with_a_secret_is_refused_and_not_repeated():
    with pytest.raises(Invalid) as refused:
        holdfast.read("s3://key:hunter2@bucket/prefix", "orders")
    assert "hunter2" not in str(refused.value)


def test_settings_of_a_store_that_nobody_knows_are_refused(orders):
    with pytest.raises(Invalid, match="store: "):
        read(orders, store={"endpiont": "http://127.0.0.1:1"})


# -- what is gone -------------------------------------------------------------------------------------------


@pytest.fixture
def expired(open_log) -> Log:
    """Four segments of ten records, of which retention has taken the first two."""
    log = open_log(segments=TEN, retention={"records_max": 20, "interval_ms": 3_600_000})
    fill(log, "orders", 4)
    log.retain()
    log.close()
    return log


def test_a_partition_begins_with_what_retention_left(expired):
    reading = read(expired)
    assert offsets(reading) == list(range(20, 40))
    assert reading.count() == 20


def test_a_start_that_has_expired_is_an_error_with_what_is_missing(expired):
    with pytest.raises(NotFound, match=r"records have expired topic=orders partition=0 offsets=5\.\.19"):
        read(expired, starting_offsets='{"orders":{"0":5}}')
    assert read(expired, starting_offsets='{"orders":{"0":20}}').count() == 20


@pytest.mark.parametrize(("marks", "gone"), [("[0,30]", r"0\.\.19"), ("[15,40]", r"15\.\.19"), ("[0,20]", r"0\.\.19")])
def test_marks_that_retention_has_overtaken_are_an_error_with_what_is_left(expired, marks, gone):
    """And no shorter answer."""
    as_of = f'{{"{expired.id}":{{"orders":{{"0":{marks}}}}}}}'
    with pytest.raises(NotFound, match=rf"records have expired topic=orders partition=0 offsets={gone} first_left=20"):
        read(expired, as_of=as_of)
    left = read(expired, as_of=as_of, fail_on_data_loss=False)
    assert set(offsets(left)) <= set(range(20, 40))


@pytest.mark.parametrize(("marks", "there"), [("[20,30]", 10), ("[20,20]", 0), ("[0,0]", 0)])
def test_marks_that_are_still_there_are_read(expired, marks, there):
    """Also those that always were empty."""
    assert read(expired, as_of=f'{{"{expired.id}":{{"orders":{{"0":{marks}}}}}}}').count() == there


def test_without_fail_on_data_loss_a_read_goes_on_with_what_is_left_and_says_so(expired, caplog):
    caplog.set_level("WARNING", logger="holdfast")
    reading = read(expired, starting_offsets='{"orders":{"0":5}}', fail_on_data_loss=False)
    assert offsets(reading) == list(range(20, 40))
    assert any("records have expired" in record.getMessage() for record in caplog.records)


def test_what_expires_while_it_is_to_be_read_is_not_called_damage(open_log):
    log = open_log(segments=TEN)
    fill(log, "orders", 4)
    reading = read(log)
    log.set_retention("orders", records_max=20)
    log.retain()
    log.close()
    with pytest.raises(NotFound, match=r"a segment expired before it was read offsets=0\.\.9"):
        reading.to_arrow()


def test_records_that_a_rebuild_found_lost_are_an_error_or_left_out(open_log, open_shipped, root):
    log = open_log(segments=TEN)
    fill(log, "orders", 3)
    log.close()
    files(log, "orders")[1].unlink()
    (log.path / "durable.db").unlink()
    holdfast.rebuild(log.path)
    open_shipped().ship(20)
    with pytest.raises(Corrupt, match=r"records were lost offsets=10\.\.19") as lost:
        read(root).to_arrow()
    assert lost.value.offset == 10
    assert offsets(read(root, fail_on_data_loss=False)) == [*range(10), *range(20, 30)]


# -- keys ---------------------------------------------------------------------------------------------------


@pytest.fixture
def encrypted(open_log, keyring) -> Log:
    log = open_log(keyring=keyring)
    log.topic("orders").append_batch([b"secret %d" % i for i in range(20)])
    seal(log, "orders")
    return log


@pytest.fixture
def save_keys(tmp_path: Path) -> Callable[[Keyring], str]:
    def save(keyring: Keyring) -> str:
        keyring.save(tmp_path / "keys")
        return f"file:{tmp_path / 'keys'}"

    return save


def test_encrypted_topics_are_opened_with_the_keyring_that_is_named(encrypted, keyring, save_keys):
    rows = read(encrypted, keyring=save_keys(keyring)).to_arrow()
    assert rows.column("payload").to_pylist() == [b"secret %d" % i for i in range(20)]


def test_without_a_key_a_reader_learns_which_one_and_can_still_count(encrypted):
    reading = read(encrypted)
    assert reading.count() == 20
    with pytest.raises(Invalid, match="topic 'orders' is encrypted, and there is no key key_id=k1") as refused:
        reading.to_arrow()
    assert "encrypted=sealed" in refused.value.hint


def test_with_another_key_nothing_is_read(encrypted, save_keys):
    other = save_keys(Keyring.generate(clock=ManualClock(seed=99)))
    with pytest.raises((Invalid, Corrupt)) as refused:
        read(encrypted, keyring=other).to_arrow()
    assert b"secret" not in str(refused.value).encode()


def test_encrypted_blocks_are_given_as_they_are_to_those_who_ask(encrypted):
    reading = read(encrypted, encrypted="sealed")
    rows = reading.to_arrow()
    assert rows.schema.names[:2] == ["topic", "partition"]
    assert sum(rows.column("rows").to_pylist()) == 20
    assert b"secret" not in b"".join(rows.column("block").to_pylist())


def test_encrypted_blocks_of_a_plain_topic_do_not_exist(orders):
    with pytest.raises(Invalid, match="is not encrypted"):
        read(orders, encrypted="sealed").to_arrow()


# -- other tools --------------------------------------------------------------------------------------------


def test_pyarrow_polars_duckdb_and_pandas_take_a_reading_directly(orders):
    import duckdb
    import pandas as pd
    import polars as pl

    reading = read(orders)
    expected = reading.to_arrow().column("payload").to_pylist()
    assert pa.table(reading).column("payload").to_pylist() == expected
    assert pl.DataFrame(reading)["payload"].to_list() == reading.to_polars()["payload"].to_list() == expected
    assert isinstance(reading.to_pandas(), pd.DataFrame)
    assert reading.to_pandas()["payload"].tolist() == expected
    assert duckdb.sql('select count(*), max("offset") from reading').fetchall() == [(35, 29)]


def test_a_reading_tells_where_it_is_and_how_far_it_goes(orders):
    assert str(orders.path) in repr(read(orders))
    assert '{"orders":{"0":[0,30],"1":[0,5]}}' in repr(read(orders))
