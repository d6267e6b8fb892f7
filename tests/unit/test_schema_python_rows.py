"""Rows of Python: what can be held exactly is held, and all else is refused."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from tests.schema_data import UTC, back, filled, one, refused, topic_of

from holdfast.model.schema import declare

pytestmark = pytest.mark.unit


@given(filled())
def test_rows_of_python_are_the_rows_of_arrow(case):
    """The same rows given as dicts are stored as the same batch."""
    declared, values, batch = case
    topic = declare(declared)
    rows = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    assert one(topic, rows).to_pydict() == one(topic, batch).to_pydict()


NAIVE = dt.datetime.fromisoformat("2020-01-01")


BERLIN = dt.timezone(dt.timedelta(hours=1))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), 1.0),
        (pa.int64(), np.float64(1)),
        (pa.int64(), True),
        (pa.int64(), Decimal(1)),
        (pa.int64(), "1"),
        (pa.int8(), 128),
        (pa.uint64(), -1),
        (pa.bool_(), 1),
        (pa.float64(), True),
        (pa.float64(), 2**53 + 1),
        (pa.float32(), 2**24 + 1),
        (pa.float16(), 2049),
        (pa.float32(), 1e300),
        (pa.float16(), 70000.0),
        (pa.string(), b"x"),
        (pa.string(), "\ud800"),
        (pa.string(), float("nan")),
        (pa.binary(), "x"),
        (pa.binary(3), b"xx"),
        (pa.date32(), dt.datetime(2020, 1, 1, 5, tzinfo=UTC)),
        (pa.date32(), 5),
        (pa.timestamp("us"), 5),
        (pa.timestamp("us"), dt.datetime(2020, 1, 1, tzinfo=BERLIN)),
        (pa.timestamp("us", "UTC"), NAIVE),
        (pa.timestamp("s"), NAIVE.replace(microsecond=1)),
        (pa.timestamp("s"), NAIVE.replace(microsecond=500_000)),
        (pa.timestamp("ms"), NAIVE.replace(microsecond=1)),
        (pa.timestamp("ns"), NAIVE.replace(year=9999)),
        (pa.timestamp("us"), pd.Timestamp("2020-01-01T00:00:00.000000001")),
        (pa.timestamp("us"), pd.NaT),
        (pa.time32("s"), dt.time(1, 1, 1, 1000)),
        (pa.time32("ms"), dt.time(1, 1, 1, 1)),
        (pa.duration("ms"), dt.timedelta(microseconds=1)),
        (pa.time64("us"), dt.time(1, tzinfo=UTC)),
        (pa.duration("s"), dt.timedelta(milliseconds=1)),
        (pa.duration("us"), pd.Timedelta(1, "ns")),
        (pa.decimal128(5, 1), Decimal("1.23")),
        (pa.decimal128(5, 1), 1.5),
        (pa.decimal128(5, 1), Decimal("1E-99999999")),
        (pa.decimal128(5, 1), Decimal("0E-99999999")),
        (pa.list_(pa.decimal256(70, 1)), [Decimal("1E+99999999")]),
        (pa.decimal128(5, 1), Decimal("NaN")),
        (pa.list_(pa.int64()), [1.0]),
        (pa.list_(pa.int64()), np.array([1.0])),
        (pa.list_(pa.int64()), {1}),
        (pa.list_(pa.string()), "ab"),
        (pa.list_(pa.uint8()), b"ab"),
        (pa.list_(pa.int64(), 2), [1]),
        (pa.struct([("x", pa.int64())]), {"x": 1, "typo": 2}),
        (pa.struct([("x", pa.int64())]), {"x": 1.0}),
        (pa.struct([("x", pa.int64())]), (1,)),
        (pa.map_(pa.string(), pa.int64()), {"k": 1.0}),
        (pa.map_(pa.string(), pa.int64()), [(None, 1)]),
        (pa.map_(pa.string(), pa.int64()), ["ab"]),
        (pa.dictionary(pa.int8(), pa.string()), 5),
    ],
    ids=str,
)
def test_python_values_that_would_be_changed_are_refused(kind, value):
    """Nothing is rounded, cut off, reinterpreted or dropped on the way in; the row is named, the value is not."""
    error = refused(topic_of(kind), [{"c": None}, {"c": value}], "'c'")
    assert "row=1" in error.message or "seconds" in error.message


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (pa.int8(), np.int64(5), 5),
        (pa.float64(), 5, 5.0),
        (pa.float32(), 0.5, 0.5),
        (pa.float64(), float("inf"), float("inf")),
        (pa.bool_(), np.bool_(True), True),
        (pa.decimal128(5, 1), 5, Decimal("5.0")),
        (pa.binary(), bytearray(b"x"), b"x"),
        (pa.timestamp("us", "UTC"), dt.datetime(2020, 1, 1, 1, tzinfo=BERLIN), dt.datetime(2020, 1, 1, tzinfo=UTC)),
        (pa.timestamp("us"), pd.Timestamp("2020-01-01"), NAIVE),
        (pa.uuid(), uuid.UUID(int=5), uuid.UUID(int=5)),
        (pa.list_(pa.uuid()), [uuid.UUID(int=5)], [uuid.UUID(int=5)]),
        (pa.list_(pa.int64()), (1, 2), [1, 2]),
        (pa.list_(pa.int64()), np.array([1, 2]), [1, 2]),
        (pa.map_(pa.string(), pa.int64()), {"k": 1}, [("k", 1)]),
        (pa.struct([("x", pa.int64()), ("y", pa.int64())]), {"y": 1}, {"x": None, "y": 1}),
    ],
    ids=str,
)
def test_python_values_that_fit_are_taken(kind, value, stored):
    """What can be held exactly is held."""
    topic = topic_of(kind)
    assert back(topic, one(topic, {"c": value})).to_pydict() == {"c": [stored]}
