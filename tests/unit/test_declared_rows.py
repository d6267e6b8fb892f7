"""Restored rows: what was declared is given back, also to later versions of a schema."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from tests.schema_data import TWO, back, filled, one, topic_of

from holdfast.errors import Corrupt, Invalid
from holdfast.model.schema import declare, evolve
from holdfast.segments.typed.declared_rows import restore

pytestmark = pytest.mark.unit


@given(filled())
def test_rows_come_back_as_they_were_declared(case):
    """Append, encode, decode, restore: the declared schema and the values are what was put in."""
    declared, values, batch = case
    topic = declare(declared)
    restored = back(topic, one(topic, batch))
    restored.validate(full=True)
    assert restored.schema.equals(topic.declared, check_metadata=True)
    assert restored.to_pydict() == values


@given(filled())
@settings(max_examples=200)
def test_the_stored_form_survives_parquet(case):
    """A file of stored rows has the stored schema and the same values when it is read again."""
    declared, values, batch = case
    topic = declare(declared)
    stored = one(topic, batch)
    file = io.BytesIO()
    pq.write_table(pa.Table.from_batches([stored]), file)
    table = pq.read_table(io.BytesIO(file.getvalue()))
    assert table.schema.equals(topic.stored)
    assert table.to_pydict() == stored.to_pydict()
    assert restore(table, topic, topic).to_pydict() == values


def test_older_rows_get_nulls_in_added_columns():
    """Rows of every older version read as rows of the newest one, batch or table."""
    new = declare(
        pa.schema(
            [
                pa.field("n1", pa.dictionary(pa.int32(), pa.string())),
                pa.field("a", pa.int64(), False),
                pa.field("n2", pa.list_(pa.uuid())),
                pa.field("b", pa.string()),
                pa.field("n3", pa.map_(pa.string(), pa.field("value", pa.int64(), False))),
            ]
        )
    )
    assert evolve(TWO, new) is new
    batch = one(TWO, [{"a": 1, "b": "x"}, {"a": 2}])
    for rows in (batch, pa.Table.from_batches([batch, batch])):
        restored = restore(rows, TWO, new)
        restored.validate(full=True)
        assert type(restored) is type(rows)
        assert restored.schema.equals(new.declared, check_metadata=True)
        assert restored.to_pylist()[:2] == [
            {"n1": None, "a": 1, "n2": None, "b": "x", "n3": None},
            {"n1": None, "a": 2, "n2": None, "b": None, "n3": None},
        ]
    nothing = pa.Table.from_batches([], schema=TWO.stored)
    assert restore(nothing, TWO, new).schema.equals(new.declared, check_metadata=True)


def test_a_projection_stays_one():
    """Only the columns that are there come back; `columns` says exactly which, with added ones."""
    new = declare(pa.schema([pa.field("n", pa.int8()), *TWO.declared]))
    batch = one(TWO, [{"a": 1, "b": "x"}])
    only = batch.select(["b"])
    assert restore(only, TWO, new).to_pylist() == [{"b": "x"}]
    assert restore(only, TWO, new, columns=["b", "n"]).to_pylist() == [{"n": None, "b": "x"}]
    assert restore(batch, TWO, new, columns=["a"]).to_pylist() == [{"a": 1}]
    for wrong in (["a"], ["nope"]):
        with pytest.raises(Invalid):
            restore(only, TWO, new, columns=wrong)


def test_columns_of_the_log_are_kept_in_front():
    """Offsets and times beside the rows are left as they are."""
    batch = one(TWO, [{"a": 1, "b": "x"}])
    fields = [*TWO.stored, pa.field("_offset", pa.int64(), False)]
    beside = pa.RecordBatch.from_arrays([*batch.columns, pa.array([7])], schema=pa.schema(fields))
    restored = restore(beside, TWO, TWO)
    assert restored.to_pylist() == [{"_offset": 7, "a": 1, "b": "x"}]
    assert restored.schema.field("_offset") == fields[-1]


def test_rows_that_are_not_of_their_schema_are_corrupt():
    """An unknown column, another type, or a value that was never declared so."""
    with pytest.raises(Corrupt, match="has not"):
        restore(pa.table({"q": [1]}), TWO, TWO)
    with pytest.raises(Corrupt, match="type"):
        restore(pa.table({"a": ["x"]}), TWO, TWO)
    seconds = topic_of(pa.timestamp("s"))
    with pytest.raises(Corrupt):
        restore(pa.table({"c": pa.array([5001], pa.timestamp("ms"))}), seconds, seconds)


def test_rows_are_not_restored_to_an_older_version():
    """A column would be lost: the call is wrong."""
    older = declare(pa.schema([pa.field("a", pa.int64(), False)]))
    with pytest.raises(Invalid):
        restore(one(TWO, {"a": 1}), TWO, older)
