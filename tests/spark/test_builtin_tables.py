"""Tables that every log can have: bronze, channels, health. Judged by what the log itself says."""

from __future__ import annotations

import os
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from examples.channels_spark import play

import holdfast
from holdfast import Invalid, Keyring
from holdfast.store import layout
from holdfast.testing import ManualClock, run_table
from pyspark_holdfast.pipeline.builtin import bronze, channel_delivery, channel_messages, channels, health
from tests.spark.logs import fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Row = dict[str, Any]
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "builtin-tables.md"


def require_documented(frame: DataFrame, heading: str) -> None:
    """Each column stands in its part of the page."""
    part = PAGE.read_text().split(f"## `{heading}`")[1].split("\n## ")[0]
    assert not [name for name in frame.columns if f"`{name}`" not in part]


def load(spark: SparkSession, root: Path | str, topic: str, **options: str) -> DataFrame:
    return spark.read.format("holdfast").option("topic", topic).options(**options).load(str(root))


def rows(frame: DataFrame, *order: str) -> list[Row]:
    found: list[Row] = frame.toArrow().to_pylist()
    return sorted(found, key=lambda row: tuple(row[name] for name in order))


# -- bronze -------------------------------------------------------------------------------------------------


def test_bronze_has_a_row_for_every_record_with_its_place_and_its_bytes_as_text(
    spark: SparkSession, tmp_path: Path
) -> None:
    with holdfast.open(tmp_path / "log") as log:
        fill(log, "orders", partitions=2, seals=1, rows=12)
        log.topic("orders").append(b"\xff\x00", partition=1)
        log.seal()
        by_place = {(record.partition, record.offset): record for record in log.topic("orders").read()}
    found = rows(bronze("orders")(load(spark, tmp_path / "log", "orders")), "_partition", "_offset")
    assert [(row["_partition"], row["_offset"]) for row in found] == sorted(by_place)
    for row in found:
        record = by_place[row["_partition"], row["_offset"]]
        is_text = record.payload != b"\xff\x00"
        assert row["value"] == (record.payload.decode() if is_text else None)
        assert (row["_payload"], row["_problem"]) == ((None, None) if is_text else (record.payload, "not UTF-8"))
        assert (row["_key"], row["_kind"]) == (record.key, record.kind)
        assert {one["key"]: one["value"] for one in row["_headers"] or []} == (record.headers or {})
        assert row["_time"] == record.at


PAYLOADS: dict[bytes, str | None] = {
    b'{"id":"a","n":1}': None,
    b' \n{"id":"b","n":2,"more":[1]}\n': None,
    b'{"id":"c"}': None,
    b'{"id":"d","n":null}': None,
    b"{}": None,
    b'{"id":"e","n":"many"}': "does not fit the schema",
    b'{"id":"f","n":1.5}': "does not fit the schema",
    b'{"id":"g","n":4}, {"id":"h"}': "not a JSON object",
    b'{"id":"i","n":4}]': "not a JSON object",
    b'{"id":"j","n":4}} and on': "not a JSON object",
    b'{"id":"k","n":4} {"id":"l"}': "not a JSON object",
    b'[{"id":"m","n":4},{"id":"n"}]': "not a JSON object",
    b'{"id":"o"': "not a JSON object",
    b"null": "not a JSON object",
    b"7": "not a JSON object",
    b"": "not a JSON object",
    b"nothing": "not a JSON object",
    b'{"id":"\xff"}': "not UTF-8",
}


def test_a_payload_that_cannot_be_decoded_stays_and_says_why(spark: SparkSession, tmp_path: Path) -> None:
    """By a schema: what fits is decoded, whole; anything else is kept as bytes, with what is wrong, and no value."""
    import json

    with holdfast.open(tmp_path / "log") as log:
        log.topic("events", partitions=1).append_batch(list(PAYLOADS))
        log.seal()
    records = load(spark, tmp_path / "log", "events")
    require_documented(bronze("events")(records), "bronze")
    found = rows(bronze("events", schema="id string, n int")(records), "_offset")
    assert len(found) == len(PAYLOADS)
    for row, (payload, problem) in zip(found, PAYLOADS.items(), strict=True):
        assert (payload, row["_problem"]) == (payload, problem)
        fields = json.loads(payload) if problem is None else {}
        assert (row["id"], row["n"]) == (fields.get("id"), fields.get("n")), payload
        assert row["_payload"] == (payload if problem else None)
    kept = rows(bronze("events", schema="id string", keep_payload=True)(records), "_offset")
    assert [row["_payload"] for row in kept] == list(PAYLOADS)


def test_bronze_of_a_typed_topic_is_the_topic(spark: SparkSession, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "log") as log:
        log.topic("trades", schema=pa.schema([("symbol", pa.string())])).append([{"symbol": "ACME"}])
        log.seal()
    made = bronze("trades", called="trades_bronze")
    frame = load(spark, tmp_path / "log", "trades")
    assert made.name == "trades_bronze"
    assert made(frame).columns == frame.columns == ["_topic", "_partition", "_offset", "_time", "symbol"]


def test_a_schema_does_not_take_the_columns_of_the_log(spark: SparkSession) -> None:
    from pyspark.sql.types import StringType, StructField, StructType

    with pytest.raises(Invalid, match="columns=_offset") as refused:
        bronze("orders", schema=StructType([StructField("_offset", StringType())]))
    assert "keep_payload" in (refused.value.hint or "")


# -- channels -----------------------------------------------------------------------------------------------


def test_channel_tables_say_what_the_records_of_the_channels_say(spark: SparkSession, tmp_path: Path) -> None:
    """Of a conversation over a network that loses a third: each event, and what became of every message."""
    (root, _) = play(tmp_path)
    with holdfast.open(root, read_only=True) as log:
        records = list(log.topic("_channels").read())
    events = channel_messages()(load(spark, root, "_channels")).cache()
    assert [(row["kind"], row["channel"], row["_offset"]) for row in rows(events, "_offset")] == [
        (record.kind, (record.key or b"").decode(), record.offset) for record in records
    ]
    for frame in (events, channel_delivery()(events, events)):
        require_documented(frame, "channels")
    found = {
        (row["channel"], row["message_id"], row["participant_id"]): row
        for row in channel_delivery()(events, events).toArrow().to_pylist()
    }
    of_place: dict[tuple[str, str, str], list[holdfast.Record]] = defaultdict(list)
    sent: dict[tuple[str, str], holdfast.Record] = {}
    for record in records:
        headers = {name: value.decode() for name, value in (record.headers or {}).items()}
        message = (record.key or b"").decode(), headers["message_id"]
        of_place[(*message, headers["participant_id"])].append(record)
        if record.kind == "sent":
            sent[message] = record
    assert set(found) == set(of_place)
    for place, records in of_place.items():
        row, kinds = found[place], {record.kind: record for record in reversed(records)}
        delivered, origin = kinds.get("delivered"), sent.get(place[:2])
        assert row["delivered_at"] == (delivered.at if delivered else None)
        assert row["latency_ms"] == ((delivered.time - origin.time) // 1000 if delivered and origin else None)
        named = [set((one.headers or {})["missing"].decode().split("\n")) for one in records if one.kind == "missing"]
        assert set(row["waited_for"]) == set().union(*named)
        expected = next(kind for kind in ("acknowledged", "given_up", "sent", "delivered", "missing") if kind in kinds)
        assert row["state"] == {"missing": "waiting"}.get(expected, expected)
    assert {row["state"] for row in found.values()} >= {"acknowledged", "delivered", "waiting"}
    assert [one.name for one in channels()] == ["channel_messages", "channel_delivery"]


def test_channels_in_increments_are_the_channels_in_one_run(spark: SparkSession, tmp_path: Path) -> None:
    """What became of a message is corrected by what is recorded of it later, at whomever."""
    (root, _) = play(tmp_path)
    with holdfast.open(root, read_only=True) as log:
        records = list(log.topic("_channels").read())
    given = {"beside": [channel_messages("happened")], "then": {"happened": records[50:]}, "spark": spark}
    found = run_table(channel_delivery(), {"happened": records[:50]}, **given)
    events = channel_messages()(load(spark, root, "_channels"))
    place = ("channel", "message_id", "participant_id")
    assert found == rows(channel_delivery()(events, events), *place)
    assert {row["state"] for row in found} == {"acknowledged", "delivered", "waiting"}


# -- health -------------------------------------------------------------------------------------------------


def test_manifests_as_rows_open_no_segment_and_give_each_segment_once(spark: SparkSession, tmp_path: Path) -> None:
    """Of an encrypted log, without its keys, after compaction, all files gone; in whatever pieces it is read."""
    keyring = Keyring.generate()
    keyring.save(tmp_path / "keyring")
    with holdfast.open(tmp_path / "log", store=tmp_path / "store", keyring=keyring) as log:
        fill(log, "orders", partitions=2, seals=3, rows=20)
        log.topic("trades", schema=pa.schema([("n", pa.int64())])).append([{"n": 1}])
        log.seal()
        log.ship(60)
    report = holdfast.compact(str(tmp_path / "store"), "orders", keyring=f"file:{tmp_path / 'keyring'}")
    assert report.files_after < report.files_before
    for file in (tmp_path / "store").rglob("*.parquet"):
        file.unlink()
    frame = load(spark, tmp_path / "store", "orders,trades", emit="manifest", keyring=f"file:{tmp_path / 'keyring'}")
    found = rows(frame, "topic", "partition", "number")
    assert [(row["topic"], row["partition"], row["first_offset"], row["rows"]) for row in found] == [
        *[("orders", partition, first, 20) for partition in (0, 1) for first in (0, 20, 40)],
        ("trades", 0, 0, 1),
    ]
    assert all(row["is_encrypted"] and not row["is_lost"] for row in found)
    for row in found:
        slots = (tmp_path / "store" / layout.manifest_folder(row["topic"], row["partition"])).glob("*.json")
        stamps = {os.stat(path).st_mtime_ns // 1000 for path in slots}
        assert int(row["settled_at"].timestamp() * 1e6 + 0.5) in stamps
    pieces = []
    for begin, end in ((0, 7), (7, 20), (20, 21), (21, 60)):
        span = {
            "startingOffsets": f'{{"orders":{{"0":{begin},"1":{begin}}}}}',
            "endingOffsets": f'{{"orders":{{"0":{end},"1":{end}}}}}',
        }
        part = load(
            spark, tmp_path / "store", "orders", emit="manifest", keyring=f"file:{tmp_path / 'keyring'}", **span
        )
        pieces += part.select("number").collect()
    assert sorted(row.number for row in pieces) == [0, 0, 1, 1, 2, 2]


@pytest.mark.full("a stream and a sink beside what the other tests have: seconds")
def test_manifests_of_a_topic_that_spark_writes_and_as_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    """What a sink has committed is shown like what a log has sealed; a stream tells of each segment once."""
    place, landed, checkpoint = (str(tmp_path / name) for name in ("root", "landed", "checkpoint"))
    spark.range(20).repartition(2).write.format("holdfast").mode("append").option("topic", "numbers").save(place)
    stream = spark.readStream.format("holdfast").option("topic", "numbers").option("emit", "manifest").load(place)
    stream.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(
        landed
    ).awaitTermination()
    found = rows(load(spark, place, "numbers", emit="manifest"), "partition")
    assert [row["partition"] for row in found] == [0, 1]
    assert sum(row["rows"] for row in found) == 20
    assert rows(spark.read.parquet(landed), "partition") == found


def test_health_sums_up_hours_and_computes_only_those_that_got_a_segment(spark: SparkSession, tmp_path: Path) -> None:
    clock = ManualClock()
    clock.advance(3600 - clock.now_us() / 1e6 % 3600)  # to a full hour
    with holdfast.open(tmp_path / "log", clock=clock) as log:
        for _ in range(2):
            for wait in (30, 60, 90):
                log.topic("orders", partitions=1).append_batch([b"x" * 100] * wait)
                clock.advance(wait)
                log.seal()
            clock.advance(3600)
    segments, by_hour = health("orders")
    assert (segments.name, by_hour.name) == ("health_segments", "health")
    manifests = segments(load(spark, tmp_path / "log", "orders", emit="manifest")).cache()
    require_documented(by_hour(manifests, manifests), "health")
    found = rows(by_hour(manifests, manifests), "hour")
    assert [(row["segments"], row["rows"], row["puts"], row["rows_lost"]) for row in found] == [(3, 180, 6, 0)] * 2
    sizes = [one["bytes"] for one in rows(manifests, "number")]
    assert [row["bytes"] for row in found] == [sum(sizes[:3]), sum(sizes[3:])]
    for row in found:
        assert [row[f"seal_seconds_{what}"] for what in ("p50", "max")] == [60, 90]
        assert row["rows_per_second"] == 180 / 3600
        assert row["dollars"] == pytest.approx(6 * 0.005 / 1000)
    assert (found[1]["hour"] - found[0]["hour"]).total_seconds() == 3600
    assert found[0]["hour"] < datetime.now(UTC)
    new = manifests.where("number = 5")
    assert [row["segments"] for row in rows(by_hour(new, manifests), "hour")] == [3]


def test_health_needs_topics() -> None:
    for topics in ((), ("orders", "orders")):
        with pytest.raises(Invalid, match="health needs topics"):
            health(*topics)
