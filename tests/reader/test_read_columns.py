"""The columns of a read: which there are, and how the rows of any segment become them, values unchanged."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Invalid
from holdfast.model.schema import declare
from holdfast.reader import read_columns as module
from holdfast.reader.read_columns import (
    ENCRYPTED,
    KAFKA,
    PARTITION,
    RAW,
    TOPIC,
    RowShaper,
    choose,
    columns_of,
    schema_of,
    sources_of,
)
from holdfast.segments.file.segment_columns import RAW_SCHEMA
from tests.segment_data import raw_batch

pytestmark = pytest.mark.unit

TYPED = declare(pa.schema({"city": pa.string(), "count": pa.int32()}))


def shaping(names: list[str] | None = None, target: pa.Schema | None = None) -> RowShaper:
    chosen = choose(RAW, names)
    return RowShaper([column.source for column in chosen], target or schema_of(chosen), is_raw=True)


def test_raw_topics_have_the_columns_of_their_files():
    assert [column.name for column in columns_of(None)] == ["topic", "partition", *RAW_SCHEMA.names]


def test_sparks_users_get_kafkas_columns():
    assert [column.name for column in columns_of(None, kafka_names=True)] == [
        "topic",
        "partition",
        "offset",
        "timestamp",
        "key",
        "value",
        "headers",
        "kind",
    ]
    assert sorted(column.source for column in KAFKA) == sorted(column.source for column in RAW)


def test_typed_topics_have_the_users_columns_behind_ours():
    assert [column.name for column in columns_of(TYPED)] == [
        "_topic",
        "_partition",
        "_offset",
        "_time",
        "city",
        "count",
    ]


def test_everything_may_be_null():
    assert all(field.nullable for columns in (RAW, ENCRYPTED, columns_of(TYPED)) for field in schema_of(columns))


@given(st.lists(st.sampled_from([column.name for column in RAW])))
def test_columns_are_chosen_in_the_order_that_was_asked_for(names):
    assert [column.name for column in choose(RAW, names)] == names


def test_a_column_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(Invalid, match="no such columns columns=\\['value'\\]") as refused:
        choose(RAW, ["offset", "value"])
    assert "payload" in refused.value.hint


@pytest.mark.parametrize(
    ("columns", "kind"), [(KAFKA, {"is_raw": True}), (ENCRYPTED, {"is_raw": False, "is_encrypted": True})]
)
def test_names_alone_tell_where_columns_come_from(columns, kind):
    names = [column.name for column in columns]
    assert sources_of(names, **kind) == tuple(column.source for column in columns)


def test_a_users_column_comes_from_the_files_column_of_its_name():
    """Also one that is called as a raw column of ours."""
    assert sources_of(["_topic", "_offset", "topic", "value"], is_raw=False) == (TOPIC, "_offset", "topic", "value")


def test_rows_of_a_file_become_rows_of_the_result():
    batch = raw_batch(40, 25)
    rows = shaping().shape(batch, "orders", 3)
    assert rows.schema == schema_of(RAW)
    assert set(rows.column("topic").to_pylist()) == {"orders"}
    assert set(rows.column("partition").to_pylist()) == {3}
    for name in RAW_SCHEMA.names:
        assert rows.column(name).to_pylist() == batch.column(name).to_pylist()


def test_a_batch_larger_than_those_before_gets_its_topic_and_partition_too():
    shape = shaping(["topic", "partition"])
    for count in (1, 70_000, 3):
        rows = pa.RecordBatch.from_arrays([pa.arange(0, count)], names=["offset"])
        found = shape.shape(rows, "ü", 7)
        assert found.num_rows == count
        assert found.column(0).unique().to_pylist() == ["ü"]
        assert found.column(1).unique().to_pylist() == [7]
        found.validate(full=True)


def test_batches_of_several_topics_keep_their_own():
    shape = shaping(["topic", "partition"])
    rows = pa.RecordBatch.from_arrays([pa.arange(0, 2)], names=["offset"])
    found = [shape.shape(rows, topic, partition).to_pylist()[0] for topic, partition in (("a", 0), ("b", 0), ("a", 1))]
    assert [(row["topic"], row["partition"]) for row in found] == [("a", 0), ("b", 0), ("a", 1)]


def test_a_column_that_came_with_a_later_version_is_null():
    columns = columns_of(TYPED)
    rows = pa.RecordBatch.from_pydict({"_offset": pa.array([5]), "city": pa.array(["Ulm"])})
    found = RowShaper([c.source for c in columns], schema_of(columns), is_raw=False).shape(rows, "t", 0)
    assert found.select(["_offset", "city", "count"]).to_pylist() == [{"_offset": 5, "city": "Ulm", "count": None}]


def test_a_wider_type_is_made_and_a_value_that_does_not_fit_is_refused():
    rows = pa.RecordBatch.from_pydict({"count": pa.array([1, 300], pa.int32())})
    wide = RowShaper(["count"], pa.schema([pa.field("count", pa.int64())]), is_raw=False).shape(rows, "t", 0)
    assert wide.column(0).to_pylist() == [1, 300]
    with pytest.raises(Invalid, match="column 'count' does not fit its type type=int8 stored=int32") as refused:
        RowShaper(["count"], pa.schema([pa.field("count", pa.int8())]), is_raw=False).shape(rows, "t", 0)
    assert "300" not in str(refused.value)


@pytest.mark.parametrize(
    ("names", "needs_file"),
    [
        ([], False),
        (["offset"], False),
        (["topic", "partition", "offset"], False),
        (["time"], True),
        (["offset", "payload"], True),
    ],
)
def test_a_file_is_needed_only_for_what_the_manifest_does_not_know(names, needs_file):
    assert shaping(names).needs_file is needs_file


def test_only_the_chosen_columns_are_asked_of_a_file():
    assert shaping(["topic", "payload", "offset"]).needs == ["payload", "offset"]
    assert tuple(column.source for column in RAW[:2]) == (TOPIC, PARTITION)


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 25])
def test_rows_that_are_made_are_those_of_the_span(monkeypatch, count):
    monkeypatch.setattr(module, "_CHUNK_ROWS", 10)
    batches = list(shaping(["offset", "topic", "partition"]).made("orders", 2, 100, 100 + count))
    assert [row for batch in batches for row in batch.to_pylist()] == [
        {"offset": offset, "topic": "orders", "partition": 2} for offset in range(100, 100 + count)
    ]
    assert all(batch.num_rows <= 10 for batch in batches)


def test_rows_without_a_column_still_have_a_number():
    shape = shaping([])
    assert [batch.num_rows for batch in shape.made("orders", 0, 5, 12)] == [7]
    found = shape.shape(raw_batch(0, 9), "orders", 0)
    assert (found.num_rows, found.num_columns) == (9, 0)


def test_made_rows_of_typed_topics_have_their_own_name_for_offsets():
    columns = choose(columns_of(TYPED), ["_offset", "_topic"])
    (rows,) = RowShaper([c.source for c in columns], schema_of(columns), is_raw=False).made("t", 0, 3, 5)
    assert rows.to_pylist() == [{"_offset": 3, "_topic": "t"}, {"_offset": 4, "_topic": "t"}]


@pytest.mark.parametrize("name", ["offset", "time", "timestamp", "topic", "partition", "key", "value"])
def test_a_users_column_with_a_name_of_ours_is_the_users(name):
    """Of a typed topic nothing but what begins with an underscore is the log's; its file is needed, and its values."""
    columns = choose(columns_of(declare(pa.schema({name: pa.int64()}))), [name])
    shape = RowShaper([c.source for c in columns], schema_of(columns), is_raw=False)
    assert shape.needs_file
    rows = pa.RecordBatch.from_pydict({"_offset": pa.array([5]), name: pa.array([1000])})
    assert shape.shape(rows, "t", 0).to_pylist() == [{name: 1000}]
    assert sources_of([name], is_raw=False) == (name,)


@pytest.mark.parametrize(
    ("stored", "values", "is_fit"),
    [
        (pa.float64(), [0.5, None, float("nan"), float("inf")], True),
        (pa.float64(), [], True),
        (pa.float64(), [0.1], False),
        (pa.float64(), [1e308], False),
        (pa.float16(), [0.5], True),
        (pa.decimal128(20, 2), [Decimal("0.25"), None], True),
        (pa.decimal128(20, 2), [Decimal("123456789.25")], False),
    ],
)
def test_a_value_that_would_be_rounded_does_not_fit(stored, values, is_fit):
    rows = pa.RecordBatch.from_arrays([pa.array(values, stored)], names=["price"])
    shape = RowShaper(["price"], pa.schema([pa.field("price", pa.float32())]), is_raw=False)
    if is_fit:
        assert shape.shape(rows, "t", 0).num_rows == len(values)
    else:
        with pytest.raises(Invalid, match="column 'price' does not fit its type"):
            shape.shape(rows, "t", 0)
