"""Rows of typed topics as JSON and back. Pure, and driven by Hypothesis."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import Invalid
from holdfast.model.row_json import Row, parse_rows, plain_rows
from holdfast.model.schema import declare
from holdfast.segments.typed.conform import conform

pytestmark = pytest.mark.unit

SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("f", pa.float64()),
        ("t", pa.string()),
        ("b", pa.binary()),
        ("yes", pa.bool_()),
        ("us", pa.timestamp("us", "UTC")),
        ("ms", pa.timestamp("ms")),
        ("day", pa.date32()),
        ("clock", pa.time64("us")),
        ("d", pa.decimal128(30, 10)),
        ("took", pa.duration("us")),
        ("word", pa.dictionary(pa.int32(), pa.string())),
        ("many", pa.list_(pa.binary())),
        ("pairs", pa.map_(pa.string(), pa.decimal128(10, 2))),
        ("inner", pa.struct([("at", pa.timestamp("us", "UTC")), ("n", pa.int32())])),
    ]
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
MOMENTS = st.datetimes(timezones=st.just(UTC))
VALUES = {
    "i": st.integers(-(2**63), 2**63 - 1),
    "f": st.floats(allow_nan=False, allow_infinity=False),
    "t": TEXT,
    "b": st.binary(max_size=10),
    "yes": st.booleans(),
    "us": MOMENTS,
    "ms": st.datetimes().map(lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000)),
    "day": st.dates(),
    "clock": st.times(),
    "d": st.decimals(-(10**19), 10**19, places=10),
    "took": st.timedeltas(timedelta(days=-(10**6)), timedelta(days=10**6)),
    "word": TEXT,
    "many": st.lists(st.none() | st.binary(max_size=5), max_size=3),
    "pairs": st.dictionaries(TEXT, st.decimals(-(10**7), 10**7, places=2), max_size=3).map(lambda d: list(d.items())),
    "inner": st.fixed_dictionaries({"at": st.none() | MOMENTS, "n": st.none() | st.integers(-(2**31), 2**31 - 1)}),
}
ROWS = st.lists(
    st.fixed_dictionaries({name: st.none() | value for name, value in VALUES.items()}), min_size=1, max_size=4
)


@settings(max_examples=60, deadline=None)
@given(ROWS)
def test_what_is_printed_can_be_appended(rows: list[Row]) -> None:
    """A row as JSON, read back, is the same row in every column: nothing is rounded, cut or taken for another type."""
    topic = declare(SCHEMA)
    (batch,) = conform(topic, rows, rows_max=100)
    declared = pa.record_batch(
        [column.cast(kind.type) for column, kind in zip(batch.columns, SCHEMA, strict=True)], schema=SCHEMA
    )
    lines = b"\n".join(msgspec.json.encode(row) for row in plain_rows(declared, len(rows)))
    (again,) = conform(topic, parse_rows(lines, SCHEMA), rows_max=100)
    assert again.equals(batch)


def test_rows_look_as_documented() -> None:
    """Bytes are base64, times ISO 8601, decimals text, durations numbers, maps lists of pairs."""
    row = {
        "b": b"\xff", "us": datetime(2026, 1, 2, 3, 4, 5, 600, tzinfo=UTC), "ms": datetime.fromisoformat("2026-01-02"),
        "day": date(2026, 1, 2), "clock": time(3, 4), "d": Decimal("1.5"), "took": timedelta(seconds=1),
        "pairs": [("k", Decimal("0.25"))], "inner": {"at": None, "n": 7}, "many": [b"", None],
    }  # fmt: skip
    batch = pa.RecordBatch.from_pylist([row], schema=SCHEMA)
    found = json.loads(msgspec.json.encode(plain_rows(batch, 1)[0]))
    assert {name: value for name, value in found.items() if value is not None} == {
        "b": "/w==",
        "us": "2026-01-02T03:04:05.0006Z",
        "ms": "2026-01-02T00:00:00",
        "day": "2026-01-02",
        "clock": "03:04:00",
        "d": "1.5000000000",
        "took": 1000000,
        "pairs": [["k", "0.25"]],
        "inner": {"at": None, "n": 7},
        "many": ["", None],
    }


def test_times_that_python_lacks_are_still_printed() -> None:
    """Nanoseconds are printed to the last digit, and a time beyond the calendar as a number."""
    schema = pa.schema([("ns", pa.timestamp("ns")), ("us", pa.timestamp("us"))])
    batch = pa.record_batch([pa.array([1], pa.timestamp("ns")), pa.array([2**62], pa.timestamp("us"))], schema=schema)
    assert plain_rows(batch, 1) == [{"ns": "1970-01-01T00:00:00.000000001", "us": 2**62}]


def test_nanoseconds_are_refused_and_not_cut() -> None:
    """A text with nanoseconds stays a text, which the topic refuses: cutting it would lose something."""
    schema = pa.schema([("ns", pa.timestamp("ns"))])
    (row,) = parse_rows(b'{"ns": "1970-01-01T00:00:00.000000001"}', schema)
    with pytest.raises(Invalid, match="does not fit column='ns'"):
        conform(declare(schema), [row], rows_max=10)


@pytest.mark.parametrize("text", [b"[1]", b"1", b"{", b'{"secret": nonsense}', b"\xff"])
def test_what_is_no_object_is_refused_without_repeating_it(text: bytes) -> None:
    """A line that is no JSON object is Invalid, and the message holds nothing of it."""
    with pytest.raises(Invalid) as refused:
        parse_rows(text, SCHEMA)
    assert "secret" not in str(refused.value)


def test_digits_are_not_rounded_on_the_way_to_a_decimal() -> None:
    """A decimal written as a JSON number keeps all its digits."""
    (row,) = parse_rows(b'{"d": 12345678901234567.0123456789}', SCHEMA)
    assert row["d"] == Decimal("12345678901234567.0123456789")
