"""Columns of a sink's topic: raw or typed, grown or refused, before anything is written."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.errors import Invalid
from holdfast.segments.file.segment_reader import SegmentReader
from holdfast.segments.keys.key_hash import hash_key
from holdfast.sink import write_steps
from holdfast.sink.topic_columns import looks_raw
from tests.sink.sinks import CLOCK, Place

pytestmark = pytest.mark.unit

US = pa.timestamp("us", "UTC")
NAIVE = datetime(2026, 1, 2, tzinfo=UTC).replace(tzinfo=None)
BROKEN = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
KEY, VALUE = pa.field("key", pa.string()), pa.field("value", pa.binary())


def put(place: Place, table: pa.Table, topic: str = "t") -> None:
    """One task writes a table."""
    prepared = write_steps.prepare(place.target(topic), table.schema, CLOCK)
    done = write_steps.write_task(prepared, 0, table.to_batches(max_chunksize=2), None, CLOCK)
    write_steps.commit(prepared, [done], None, CLOCK)


def user_rows(place: Place, topic: str = "t") -> list[dict[str, object]]:
    rows = place.rows(topic).to_pylist()
    return [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]


def test_all_kinds_of_columns_come_back(place: Place) -> None:
    """Nested ones, nulls, decimals, times: what was written is what is read."""
    rows = [
        {
            "i": 1,
            "s": "ä",
            "b": b"\0",
            "d": Decimal("1.250"),
            "t": datetime(2026, 1, 2, 3, tzinfo=UTC),
            "xs": [1, None],
            "st": {"a": 1, "b": None},
            "m": [("k", 1.5)],
            "f": 0.5,
            "n": NAIVE,
        },
        dict.fromkeys(["i", "s", "b", "d", "t", "xs", "st", "m", "f", "n"]),
    ]
    schema = pa.schema(
        {
            "i": pa.int64(),
            "s": pa.string(),
            "b": pa.binary(),
            "d": pa.decimal128(20, 3),
            "t": pa.timestamp("us", "Asia/Tokyo"),
            "xs": pa.list_(pa.int64()),
            "st": pa.struct({"a": pa.int32(), "b": pa.string()}),
            "m": pa.map_(pa.string(), pa.float64()),
            "f": pa.float32(),
            "n": pa.timestamp("us"),
        }
    )
    table = pa.Table.from_pylist(rows * 3, schema=schema)
    put(place, table)
    assert user_rows(place) == table.to_pylist()


def test_required_columns_become_nullable(place: Place) -> None:
    """A DataFrame changes its mind about nulls from one plan to the next: also inside of columns."""
    strict = pa.struct([pa.field("a", pa.int64(), nullable=False)])
    put(place, pa.Table.from_pylist([{"x": {"a": 1}}], schema=pa.schema([pa.field("x", strict, nullable=False)])))
    put(place, pa.Table.from_pylist([{"x": None}], schema=pa.schema({"x": pa.struct({"a": pa.int64()})})))
    assert user_rows(place) == [{"x": {"a": 1}}, {"x": None}]


def test_columns_are_matched_by_name_and_may_be_missing_or_new(place: Place) -> None:
    """In any order; a missing one is null, a new one is added, and the schema grows by versions."""
    put(place, pa.table({"a": [1], "b": ["x"]}))
    put(place, pa.table({"b": ["y"], "a": [2]}))
    put(place, pa.table({"c": [0.5], "a": [3]}))
    put(place, pa.table({"b": ["z"]}))
    assert user_rows(place) == [
        {"a": 1, "b": "x", "c": None},
        {"a": 2, "b": "y", "c": None},
        {"a": 3, "b": None, "c": 0.5},
        {"a": None, "b": "z", "c": None},
    ]
    assert len(place.objects("/_topic/")) == 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"a": pa.string()}, "changed its type"),
        ({"A": pa.int64()}, "capitals only"),
        ({"a": pa.int64(), "x": pa.null()}, "cannot be stored"),
        ({"a": pa.int64(), "_offset": pa.int64()}, "another topic's rows"),
        ({"a": pa.int64(), "_time": pa.timestamp("us")}, "with a zone"),
        ({"a": pa.int64(), "_x": pa.int64()}, "do not start with"),
    ],
)
def test_anything_else_is_refused_before_anything_is_written(
    place: Place, given: dict[str, pa.DataType], words: str
) -> None:
    """With the column's name and a remedy."""
    put(place, pa.table({"a": [1]}))
    before = place.objects()
    with pytest.raises(Invalid, match=words) as raised:
        write_steps.prepare(place.target(), pa.schema(given), CLOCK)
    assert raised.value.hint
    assert place.objects() == before


@pytest.mark.parametrize(
    ("given", "is_raw"),
    [
        ([VALUE], True),
        ([pa.field("value", pa.string())], True),
        ([KEY, VALUE], True),
        ([KEY, VALUE, pa.field("timestamp", US), pa.field("kind", pa.string())], True),
        ([pa.field("value", pa.int64())], False),
        ([pa.field("key", pa.int64()), VALUE], False),
        ([KEY], False),
        ([KEY, VALUE, pa.field("amount", pa.int64())], False),
    ],
)
def test_what_looks_raw(given: list[pa.Field], is_raw: bool) -> None:
    """Columns that are named as a raw topic's, with a payload of text or bytes."""
    assert looks_raw(pa.schema(given)) is is_raw


def test_raw_segments_have_an_index_of_their_keys(place: Place, tmp_path: Path) -> None:
    """As sealed ones have: readers by key need not read all of them."""
    put(place, pa.table({"key": ["k", None, "l"], "value": [b"1", b"2", b"3"]}), "raw")
    (key,) = place.objects("/segments/")
    (tmp_path / "file").write_bytes(place.store.get(key))
    with SegmentReader(tmp_path / "file", None, None, None) as reader:
        ((_, _, index),) = reader.key_indexes()
        assert index is not None
        assert [bool(index.spans(key, hash_key(key))) for key in (b"k", b"l", b"m")] == [True, True, False]
        reader.verify()


def test_raw_records_come_back(place: Place) -> None:
    """Under Kafka's names or ours; what is not given is null, and a time is that of the write."""
    headers = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
    full = pa.table(
        {
            "key": ["k", None],
            "value": [b"v", b""],
            "kind": ["order", None],
            "timestamp": pa.array([5, 6], pa.timestamp("us", "UTC")),
            "headers": pa.array([[{"key": "h", "value": b"1"}], None], headers),
        }
    )
    put(place, full, "raw")
    put(place, pa.table({"payload": [b"p"]}), "raw")
    rows = place.rows("raw").to_pylist()
    assert [(row["key"], row["payload"], row["kind"], row["headers"]) for row in rows] == [
        (b"k", b"v", "order", [{"key": "h", "value": b"1"}]),
        (None, b"", None, None),
        (None, b"p", None, None),
    ]
    assert [row["time"].microsecond for row in rows[:2]] == [5, 6]
    assert rows[2]["time"].year >= 2026


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([VALUE, pa.field("offset", pa.int64())], "place of their own"),
        ([VALUE, pa.field("time", US), pa.field("timestamp", US)], "two columns with times"),
        ([VALUE, pa.field("timestamp", pa.int64())], "with a zone"),
        ([VALUE, pa.field("kind", pa.int64())], "another type"),
        ([VALUE, pa.field("headers", pa.string())], "another type"),
    ],
)
def test_raw_columns_that_mean_nothing_are_refused(place: Place, given: list[pa.Field], words: str) -> None:
    """None of them is left out silently."""
    with pytest.raises(Invalid, match=words):
        write_steps.prepare(place.target(), pa.schema(given), CLOCK)


def test_a_topic_stays_what_it_is(place: Place) -> None:
    """Raw records do not go into a topic of rows as such, nor rows into one of raw records."""
    put(place, pa.table({"value": [b"x"]}), "raw")
    put(place, pa.table({"a": [1]}), "typed")
    with pytest.raises(Invalid, match="raw records"):
        write_steps.prepare(place.target("raw"), pa.schema({"a": pa.int64()}), CLOCK)
    put(place, pa.table({"value": [b"y"]}), "typed")  # a column of that name
    assert user_rows(place, "typed") == [{"a": 1, "value": None}, {"a": None, "value": b"y"}]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (pa.table({"value": pa.array([b"x", None])}), "has no value"),
        (pa.table({"a": [1, 2], "_time": pa.array([1, None], US)}), "a time is null"),
        (pa.table({"value": [b"x"], "timestamp": pa.array([None], US)}), "a time is null"),
        (pa.table({"s": BROKEN}), "not UTF-8"),
    ],
)
def test_values_that_cannot_be_stored_fail_the_task(place: Place, table: pa.Table, words: str) -> None:
    """And nothing of it stays."""
    with pytest.raises(Invalid, match=words) as raised:
        put(place, table)
    assert raised.value.hint
    assert not place.objects("/segments/")


def test_times_of_rows(place: Place) -> None:
    """The column `_time` gives them; it is no column of the topic's own."""
    put(place, pa.table({"a": [1, 2], "_time": pa.array([7, 3], US)}))
    rows = place.rows().to_pylist()
    assert [row["_time"].microsecond for row in rows] == [7, 3]
    assert list(rows[0])[-1] == "a"
