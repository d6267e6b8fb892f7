"""Merging by key: any increments of the same rows, in any order, end as one plain Python loop over them does."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Invalid
from holdfast.tables.key_numbers import KeyNumbers, check_key, check_order
from holdfast.tables.merging import (
    DELETED,
    Combine,
    Latest,
    Merge,
    MergeBuffer,
    from_tombstones,
    live_and_deleted,
    tombstone_schema,
)

pytestmark = pytest.mark.unit

LATEST = Latest(("tenant", "id"), ("at", "offset"))
SCHEMA = pa.schema([("tenant", pa.string()), ("id", pa.int32()), ("at", pa.int64()), ("offset", pa.int64())])
TOTALS = Combine(
    ("day", "user"),
    {"n": "sum", "total": "sum", "low": "min", "high": "max", "mean_sum": "sum", "mean_count": "sum"},
    means=("mean",),
)
DAYS = pa.schema(
    [
        ("day", pa.date32()),
        ("user", pa.string()),
        ("n", pa.int64()),
        ("total", pa.decimal128(20, 2)),
        ("low", pa.timestamp("us", "UTC")),
        ("high", pa.float64()),
        ("mean_sum", pa.int64()),
        ("mean_count", pa.int64()),
        ("mean", pa.float64()),
    ]
)


# -- the latest row -----------------------------------------------------------------------------------------


class KeyedTable:
    """What a task does for one bucket, without files."""

    def __init__(self) -> None:
        self.rows = SCHEMA.empty_table()
        self.tombstones = tombstone_schema(SCHEMA, LATEST).empty_table()

    def apply(self, changes: pa.Table) -> None:
        gathered = MergeBuffer(LATEST, rows_least=3)
        for batch in changes.to_batches(max_chunksize=2):
            gathered.add(pa.table(batch).rename_columns([*SCHEMA.names, DELETED]))
        merge = Merge(LATEST, gathered.rows())
        left = merge.others(self.rows)
        old = merge.others(from_tombstones(self.tombstones)).select(self.tombstones.column_names)
        rows, tombstones = live_and_deleted(merge.rows(), SCHEMA, LATEST)
        self.rows = pa.concat_tables([left, rows])
        self.tombstones = pa.concat_tables([old, tombstones])


@st.composite
def increments(draw: st.DrawFn) -> list[list[dict[str, Any]]]:
    """Rows with an order of their own each, shuffled and split."""
    tenants, ids = st.sampled_from(["a", "b", None]), st.sampled_from([1, 2, None])
    rows = [
        {"tenant": draw(tenants), "id": draw(ids), "at": draw(st.integers(0, 2)), "offset": n, "gone": draw(_GONE)}
        for n in range(draw(st.integers(0, 25)))
    ]
    shuffled = draw(st.permutations(rows))
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    return [shuffled[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True)]


_GONE = st.sampled_from([False, False, True, None])


@given(increments())
def test_any_increments_end_in_the_latest_row_of_each_key(increments: list[list[dict[str, Any]]]) -> None:
    table = KeyedTable()
    for rows in filter(None, increments):
        table.apply(pa.Table.from_pylist(rows, SCHEMA.append(pa.field("gone", pa.bool_()))))

    expected: dict[tuple[Any, Any], dict[str, Any]] = {}
    for row in sorted((row for rows in increments for row in rows), key=lambda row: (row["at"], row["offset"])):
        expected[row["tenant"], row["id"]] = row
    live = [{name: row[name] for name in SCHEMA.names} for row in expected.values() if not row["gone"]]
    assert _sorted(table.rows.to_pylist()) == _sorted(live)
    assert len(table.tombstones) == len(expected) - len(live)


def test_rows_without_an_order_are_the_oldest() -> None:
    rule = Latest(("id",), ("at",))
    rows = pa.table({"id": [1, 1, 1, 2, 2], "at": [None, 0.5, math.nan, math.nan, None], "n": [1, 2, 3, 4, 5]})

    assert rule.reduced(rows).sort_by("id")["n"].to_pylist() == [2, 4]


def test_of_equal_rows_the_new_one_counts() -> None:
    """So that a range that is computed again by better code replaces what the old code wrote."""
    merge = Merge(Latest(("id",), ("at",)), pa.table({"id": [1], "at": [5], "n": ["new"]}))

    left = merge.others(pa.table({"id": [1, 2], "at": [5, 5], "n": ["old", "other"]}))

    assert left["n"].to_pylist() == ["other"]
    assert merge.rows()["n"].to_pylist() == ["new"]


def test_of_equal_rows_that_are_gathered_the_last_counts() -> None:
    gathered = MergeBuffer(Latest(("id",), ("at",)), rows_least=2)
    for n in range(7):
        gathered.add(pa.table({"id": [1, 2], "at": [5, 5], "n": [n, n]}))

    assert gathered.rows().sort_by("id")["n"].to_pylist() == [6, 6]


# -- values added up ----------------------------------------------------------------------------------------


@st.composite
def partials(draw: st.DrawFn) -> list[dict[str, Any]]:
    days, users = st.sampled_from([dt.date(2024, 5, 1), dt.date(2024, 5, 2)]), st.sampled_from(["a", "", None])
    cents = st.none() | st.integers(-(10**9), 10**9).map(lambda n: Decimal(n) / 100)
    times = st.none() | st.integers(0, 10**9).map(lambda at: dt.datetime.fromtimestamp(at, dt.UTC))
    floats = st.none() | st.sampled_from([-1.5, 0.0, 2.5, math.nan, math.inf])
    value = st.none() | st.integers(-100, 100)
    found = []
    for _ in range(draw(st.integers(0, 20))):
        added = draw(value)
        found.append(
            {
                "day": draw(days),
                "user": draw(users),
                "n": 1,
                "total": draw(cents),
                "low": draw(times),
                "high": draw(floats),
                "mean_sum": added,
                "mean_count": int(added is not None),
                "mean": None,
            }
        )
    return found


@given(partials(), st.lists(st.integers(0, 20), max_size=4))
def test_values_add_up_in_any_increments(rows: list[dict[str, Any]], cuts: list[int]) -> None:
    stored = DAYS.empty_table()
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    for begin, end in pairwise(bounds):
        merge = Merge(TOTALS, pa.Table.from_pylist(rows[begin:end], DAYS))
        left = merge.others(stored)
        stored = pa.concat_tables([left, merge.rows()])

    assert _sorted(stored.to_pylist()) == _sorted(pa.Table.from_pylist(_added_up(rows), DAYS).to_pylist())


def _added_up(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """SQL's aggregates in plain Python: nulls do not count, NaN is the greatest."""
    groups: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["day"], row["user"]), []).append(row)
    found = []
    for (day, user), members in groups.items():
        have = {name: [row[name] for row in members if row[name] is not None] for name in DAYS.names[2:]}
        count = sum(have["mean_count"])
        found.append(
            {
                "day": day,
                "user": user,
                "n": len(members),
                "total": sum(have["total"], Decimal(0)) if have["total"] else None,
                "low": min(have["low"], default=None),
                "high": max(have["high"], key=lambda x: (math.isnan(x), x), default=None),
                "mean_sum": sum(have["mean_sum"]) if have["mean_sum"] else None,
                "mean_count": count,
                "mean": sum(have["mean_sum"]) / count if count else None,
            }
        )
    return found


def test_a_sum_that_does_not_fit_is_refused() -> None:
    rule = Combine(("id",), {"n": "sum"})
    for kind, most in ((pa.int64(), 2**63 - 1), (pa.decimal128(38, 0), Decimal("9" * 38))):
        rows = pa.table({"id": [1, 1], "n": pa.array([most, 1], kind)})
        with pytest.raises(Invalid, match="a sum does not fit its column column=n") as refused:
            rule.reduced(rows)
        assert "cast" in refused.value.hint


def test_a_mean_whose_digits_do_not_fit_is_refused() -> None:
    total, none = pa.array([Decimal("9" * 38)], pa.decimal128(38, 0)), pa.nulls(1, pa.decimal128(38, 4))
    rows = pa.table({"id": [1], "m_sum": total, "m_count": [2], "m": none})
    with pytest.raises(Invalid, match="a mean does not fit its column column=m"):
        Combine(("id",), {"m_sum": "sum", "m_count": "sum"}, means=("m",)).reduced(rows)


def test_means_of_decimals_are_rounded_as_spark_does() -> None:
    rule = Combine(("id",), {"m_sum": "sum", "m_count": "sum"}, means=("m",))
    totals, counts = [Decimal("10.00"), Decimal("-0.05"), None], [3, 1000, 0]
    rows = pa.table(
        {
            "id": [1, 2, 3],
            "m_sum": pa.array(totals, pa.decimal128(20, 2)),
            "m_count": pa.array(counts, pa.int64()),
            "m": pa.nulls(3, pa.decimal128(14, 4)),
        }
    )

    assert rule.reduced(rows)["m"].to_pylist() == [Decimal("3.3333"), Decimal("-0.0001"), None]


# -- keys ---------------------------------------------------------------------------------------------------

TIMES = [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime(1900, 1, 1, tzinfo=dt.UTC)]
KEYS = [
    pa.array([1, 2, None], pa.int8()),
    pa.array([2**40, -(2**40), None], pa.int64()),
    pa.array(["a", "", None]),
    pa.array([b"a", b"", None]),
    pa.array([True, False, None]),
    pa.array([Decimal("1.50"), Decimal("-1.50"), None], pa.decimal128(38, 2)),
    pa.array([dt.date(2024, 1, 1), dt.date(1900, 1, 1), None]),
    pa.array([*TIMES, None], pa.timestamp("us", "UTC")),
    pa.array([*TIMES, None], pa.timestamp("us")),
]


@pytest.mark.parametrize("column", KEYS, ids=lambda column: str(column.type))
def test_every_type_of_key_is_found_again(column: pa.Array) -> None:
    """Also as one of two columns, and null like any other value."""
    rows = pa.table({"id": column, "part": [0, 0, 0], "at": [1, 1, 1]})
    check_key(rows.schema, ["id"])
    for names in (["id"], ["part", "id"], ["id", "part"]):
        numbers = KeyNumbers(rows.slice(1), names)
        assert numbers.count == 2
        assert numbers.find(rows).to_pylist() == [None, 0, 1]
        assert numbers.find(rows.set_column(1, "part", [[1, 1, 1]])).to_pylist().count(None) >= (
            3 if len(names) > 1 else 1
        )


@pytest.mark.parametrize(
    "kind", [pa.float64(), pa.float32(), pa.list_(pa.int8()), pa.struct([("a", pa.int8())]), pa.null()], ids=str
)
def test_other_types_are_no_keys(kind: pa.DataType) -> None:
    with pytest.raises(Invalid, match="cannot be a key key=id"):
        check_key(pa.schema([("id", kind)]), ["id"])


def test_missing_columns_are_named_with_those_that_there_are() -> None:
    schema = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string()))])
    with pytest.raises(Invalid, match="no such column key=order_id") as refused:
        check_key(schema, ["order_id"])
    assert "id, tags" in refused.value.hint
    with pytest.raises(Invalid, match="has no order order_by=tags"):
        check_order(schema, ["tags"])


def test_a_key_of_many_columns_does_not_overflow() -> None:
    rows = 3000
    table = pa.table({f"c{n}": [(row * (n + 7)) % rows for row in range(rows)] for n in range(8)})

    numbers = KeyNumbers(table, table.column_names)

    assert numbers.find(table).to_pylist() == list(range(rows)) == numbers.of_rows.to_pylist()


def test_untouched_rows_are_known_by_their_keys_alone() -> None:
    merge = Merge(Latest(("id",), ("at",)), pa.table({"id": [1, None], "at": [1, 1]}))

    assert not merge.is_touched(pa.record_batch({"id": [2, 3]}))
    assert merge.is_touched(pa.record_batch({"id": [2, 1]}))
    assert merge.is_touched(pa.record_batch({"id": pa.array([None], pa.int64())}))
    assert not merge.is_touched(pa.record_batch({"id": pa.array([], pa.int64())}))


def _sorted(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))
