"""Single rows: what is taken is stored as a batch of that row would be, and what cannot be stored is never taken."""

# ruff: noqa: DTZ001

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from tests.schema_data import LEAVES, encode_rows, filled, one, topic_of

from holdfast.errors import Invalid
from holdfast.model import frame
from holdfast.model.schema import declare
from holdfast.segments.typed.row_message import decode_rows
from holdfast.segments.typed.row_times import content_of
from holdfast.segments.typed.single_rows import SingleRows

pytestmark = pytest.mark.unit

UTC = dt.UTC
VIENNA = ZoneInfo("Europe/Vienna")
ODD = [
    0, 1, -1, 127, 128, 255, 256, 2**24, 2**24 + 1, 2**31, 2**53, 2**53 + 1, 2**63, -(2**63), 2**64, 10**30, True,
    0.0, -0.0, 1.5, math.nan, math.inf, -math.inf, 1e300, 3.4028234663852886e38, 3.5e38, 5e-324,
    "", "abc", "grüße", "\ud800", "x" * 3000, b"", b"abc", b"\xff" * 16, bytearray(b"abc"), memoryview(b"abc"),
    UUID(int=7), Decimal("1.50"), Decimal("-0"), Decimal("99999.999"), Decimal("1E+3"), Decimal("1E-99999"),
    Decimal("NaN"), Decimal(10) ** 40, dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.datetime(1, 1, 1),
    dt.datetime(1600, 1, 1), dt.datetime(2026, 1, 1, 2, 3, 4, 567891), dt.datetime(2026, 1, 1, 2, 3, 4, 567000),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999999), dt.datetime(2026, 1, 1, tzinfo=UTC),
    dt.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=VIENNA), dt.datetime(1850, 1, 1, tzinfo=VIENNA),
    dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=14))),
    dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(microseconds=1))),
    dt.time(1, 2, 3), dt.time(1, 2, 3, 4), dt.time(1, 2, 3, 4000), dt.time(1, tzinfo=UTC), dt.timedelta(1),
    dt.timedelta.max, dt.timedelta(microseconds=1), dt.timedelta(days=110_000), [], [1], [None], [1.5, "a"], (1, 2, 3),
    {}, {"f0": 1}, {"f1": 2}, {"a": None}, {1: 2}, {None: 1}, [("a", 1)], [("a", 1), ("a", 2)], [["a", 1]], object(),
    np.int64(5), np.float64(5.5), np.array([1, 2, 3]), np.datetime64("2026-01-01"),
]  # fmt: skip
"""What somebody may put into a column of any type."""
NESTED = [
    pa.list_(pa.int64()), pa.list_(pa.field("item", pa.int64(), False)), pa.large_list(pa.string()),
    pa.list_(pa.float64(), 3), pa.struct([pa.field("f0", pa.int8(), False)]),
    pa.struct([("f0", pa.int8()), ("a", pa.uuid())]),
    pa.map_(pa.string(), pa.int64()), pa.map_(pa.int64(), pa.field("value", pa.int64(), False)),
    pa.dictionary(pa.int8(), pa.string()), pa.list_(pa.dictionary(pa.int8(), pa.int64())),
]  # fmt: skip
MORE = [
    pa.timestamp("ns"),
    pa.timestamp("ms", "Europe/Vienna"),
    pa.timestamp("ns", "UTC"),
    pa.time64("ns"),
    pa.duration("ms"),
]
KINDS = [*LEAVES, *MORE, *NESTED, pa.duration("ns"), pa.binary(16), pa.decimal128(38, 38), pa.decimal64(10, 0)]


def encoded(topic, rows, times=None):
    """The message of rows that were taken one by one."""
    single = SingleRows(topic)
    taken = [single.taken(row) for row in rows]
    body = single.encode([(cells, 1 if times is None else times[at]) for at, (cells, _) in enumerate(taken)]).body
    _, _, message = frame.decode_typed(bytes(body))
    assert len(body) <= single.overhead + sum(size for _, size in taken) + 8 * len(rows), "the size is no bound"
    return bytes(message)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_value_that_is_taken_is_stored_as_before(kind):
    """Whatever is put into a column: it is taken only if a batch takes it, and then the stored bytes are the same."""
    topic = topic_of(kind)
    single = SingleRows(topic)
    for value in [*ODD, None]:
        if single.taken({"c": value}) is not None:
            assert encoded(topic, [{"c": value}]) == encode_rows(one(topic, {"c": value})), repr(value)[:100]


@given(filled())
def test_rows_one_by_one_are_the_rows_of_a_batch(case):
    """Rows of any schema, taken singly and encoded together, say what the same rows say in one batch."""
    declared, data, _ = case
    topic = declare(declared)
    rows = [dict(zip(data, values, strict=True)) for values in zip(*data.values(), strict=True)]
    single = SingleRows(topic)
    plain = [row for row in rows if single.taken(row) is not None]
    if plain:
        stored = decode_rows(encoded(topic, plain), topic.stored)
        assert content_of(stored) == content_of(one(topic, plain))


def test_plain_values_are_taken():
    """Python's own values of every type but half floats are taken: rows of them cost little one by one."""
    plain = {
        "b": (pa.bool_(), True), "i": (pa.uint8(), 255), "d": (pa.float64(), -0.0), "whole": (pa.float64(), 5),
        "f": (pa.float32(), math.nan), "n": (pa.decimal128(10, 2), Decimal("1.5")), "s": (pa.string(), "grüße"),
        "v": (pa.string_view(), "a"), "y": (pa.large_binary(), b"a"), "u": (pa.uuid(), UUID(int=1)),
        "day": (pa.date32(), dt.date(2026, 1, 1)),
        "at": (pa.timestamp("us", "UTC"), dt.datetime(2026, 1, 1, tzinfo=VIENNA)),
        "ns": (pa.timestamp("ns"), dt.datetime(2026, 1, 1)), "t": (pa.time32("s"), dt.time(1)),
        "span": (pa.duration("ms"), dt.timedelta(1)), "l": (pa.list_(pa.int64()), [1, None]),
        "x": (pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]), {"b": ["q"]}),
        "m": (pa.map_(pa.string(), pa.int64()), {"a": 1}), "c": (pa.dictionary(pa.int32(), pa.string()), "red"),
    }  # fmt: skip
    topic = declare(pa.schema([(name, kind) for name, (kind, _) in plain.items()]))
    row = {name: value for name, (_, value) in plain.items()}
    assert encoded(topic, [row]) == encode_rows(one(topic, row))
    assert SingleRows(topic).taken({"i": 1}) is not None, "absent columns are null"
    assert SingleRows(topic).taken({"i": 1, "other": 2}) is None


def test_what_a_caller_changes_later_does_not_show():
    """A row is copied when it is taken, all the way down."""
    kind = pa.struct([("l", pa.list_(pa.int64())), ("m", pa.map_(pa.string(), pa.list_(pa.int64())))])
    topic = topic_of(kind)
    row = {"c": {"l": [1], "m": {"k": [2]}}}
    expected = encode_rows(one(topic, row))
    single = SingleRows(topic)
    cells, _ = single.taken(row)
    row["c"]["l"].append(9)
    row["c"]["m"]["k"].append(9)
    row["c"]["m"]["z"] = []
    row.clear()
    _, _, message = frame.decode_typed(bytes(single.encode([(cells, 1)]).body))
    assert bytes(message) == expected


def test_times_are_kept_per_row():
    """Equal times are stored once, others each."""
    topic = topic_of(pa.int64())
    single = SingleRows(topic)
    cells = [single.taken({"c": n})[0] for n in range(3)]
    same = single.encode([(one, 5) for one in cells])
    other = single.encode([(one, at) for one, at in zip(cells, (5, 3, 9), strict=True)])
    assert (same.time_min, same.time_max, len(frame.decode_typed(bytes(same.body))[1])) == (5, 5, 8)
    assert (other.time_min, other.time_max, len(frame.decode_typed(bytes(other.body))[1])) == (3, 9, 24)


def test_a_large_row_goes_alone():
    """A row of 64 KiB and more is not gathered."""
    assert SingleRows(topic_of(pa.string())).taken({"c": "x" * 70_000}) is None


def test_what_is_refused_is_refused_with_the_same_words():
    """A row that is not taken gets its refusal from where batches get theirs."""
    topic = topic_of(pa.int8(), nullable=False)
    for row in ({"c": 128}, {"c": None}, {}, {"c": 1, "d": 2}, {"c": "a"}):
        assert SingleRows(topic).taken(row) is None
        with pytest.raises(Invalid):
            one(topic, row)
