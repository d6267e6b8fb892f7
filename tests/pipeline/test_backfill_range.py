"""Which runs and offsets a backfill is about."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.errors import Invalid
from holdfast.reader.offsets import PartitionMark, ReadMarks
from holdfast.tables.table_run import Position, Reason, TableRun
from pyspark_holdfast.pipeline.backfill_range import (
    Range,
    clipped,
    parse_range,
    runs_between,
    spans_between,
    steps_in,
    steps_of,
    together,
    wanted_spans,
)
from pyspark_holdfast.pipeline.table_order import PlannedTable, ordered
from pyspark_holdfast.pipeline.topic_input import Spans
from tests.pipeline.test_table_order import made

pytestmark = pytest.mark.unit

PLANNED = ordered([made("paid", "orders")])[0]


def run(number: int, end: int, reason: Reason = "run") -> TableRun:
    marks = Position(source="log", marks={"0": end}, begins={"0": 0})
    return TableRun(
        pipeline="p",
        table="paid",
        kind="append",
        run=number,
        reason=reason,
        reads={"orders": marks},
        rows_in=0,
        rows_out=0,
        started_ms=0,
    )


def nothing(name: str, since: int | None, before: int | None) -> Spans:
    raise AssertionError("no times were asked for")


def met(range_: Range, *runs: TableRun) -> list[int]:
    return [step.run for step in steps_in(PLANNED, range_, steps_of(runs), nothing)]


def test_bounds_are_runs_times_or_offsets() -> None:
    assert parse_range(None, None).is_everything
    assert parse_range(3, None).runs == (3, 10**9)
    assert parse_range(None, "4").runs == (1, 4)
    noon = datetime(2026, 11, 15, 12, tzinfo=UTC)
    micros = round(noon.timestamp() * 1e6)
    assert parse_range("2026-11-15T12:00:00Z", None).times == parse_range(noon, "").times == (micros, None)
    assert parse_range(str(micros // 1000), None).times == (micros, None)
    offsets = ReadMarks("", {("orders", 0): PartitionMark(None, 12)})
    assert parse_range('{"orders":{"0":12}}', None).offsets == (offsets, None)
    assert parse_range(None, {"orders": {"0": 12}}).offsets == (None, offsets)


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (3, "2026-11-15T12:00:00Z"),
        (5, 4),
        ("2026-11-16T00:00:00Z", "2026-11-15T00:00:00Z"),
        ("yesterday", None),
        (0, None),
        (-1, None),
        (True, None),
        (datetime(2026, 1, 1), None),  # noqa: DTZ001
        ('{"orders":3}', None),
        ("1700000000", None),
    ],
)
def test_what_is_no_range_is_refused(begin: Any, end: Any) -> None:
    with pytest.raises(Invalid):
        parse_range(begin, end)


def test_runs_that_meet_offsets_are_computed_again() -> None:
    runs = [run(1, 10), run(2, 30), run(3, 30, "backfill"), run(4, 31)]
    assert met(Range(), *runs) == [1, 2, 4]
    assert met(parse_range('{"orders":{"0":10}}', '{"orders":{"0":30}}'), *runs) == [2]
    assert met(parse_range('{"orders":{"0":9}}', '{"orders":{"0":11}}'), *runs) == [1, 2]
    assert met(parse_range('{"orders":{"0":30}}', None), *runs) == [4]
    assert met(parse_range('{"orders":{"0":31}}', None), *runs) == []
    assert met(parse_range('{"orders":{"1":0}}', None), *runs) == []
    assert met(parse_range(2, 3), *runs) == [2]


def test_runs_whose_commits_are_gone_are_one_step() -> None:
    """What they read together is known, from where reading began; nothing is left out, and nothing is kept apart."""
    steps = steps_of([run(7, 70), run(8, 80)])
    assert [(step.first, step.run, step.is_joined) for step in steps] == [(1, 7, True), (8, 8, False)]
    assert spans_between(PLANNED.sources[0], steps[0].before, steps[0].after) == {0: (0, 70)}
    assert met(parse_range(8, 8), run(7, 70), run(8, 80)) == [8]
    assert met(parse_range(3, 4), run(7, 70), run(8, 80)) == [7]
    assert met(parse_range('{"orders":{"0":5}}', '{"orders":{"0":6}}'), run(7, 70), run(8, 80)) == [7]
    assert [step.run for step in steps_of([run(7, 70, "backfill"), run(8, 80)])] == [7, 8]
    assert steps_of([]) == []


def test_offsets_of_what_is_not_read_are_refused() -> None:
    with pytest.raises(Invalid, match="does not read"):
        wanted_spans(PLANNED, parse_range('{"ordres":{"0":1}}', None), nothing)
    only_tables: PlannedTable = ordered([made("a", "orders"), made("b", "a")])[1]
    with pytest.raises(Invalid, match="no offsets and times"):
        wanted_spans(only_tables, parse_range('{"orders":{"0":1}}', None), nothing)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.integers(0, 100), st.integers(0, 100))
def test_steps_cover_what_was_read_once(sizes: list[int], begin: int, end: int) -> None:
    """All steps together are all offsets; those that a range meets cover what of it was read."""
    ends = [sum(sizes[: at + 1]) for at in range(len(sizes))]
    steps = steps_of([run(at + 1, mark) for at, mark in enumerate(ends)])
    source = PLANNED.sources[0]
    spans = [spans_between(source, step.before, step.after)[0] for step in steps]
    assert [offset for span in spans for offset in range(*span)] == list(range(ends[-1]))
    first, last = (ReadMarks("", {("orders", 0): PartitionMark(None, offset)}) for offset in (begin, end))
    asked = Range(offsets=(first, last))
    found = {step.run for step in steps_in(PLANNED, asked, steps, nothing)}
    assert found == {at + 1 for at, span in enumerate(spans) if set(range(*span)) & set(range(begin, end))}


def test_an_input_that_came_later_was_read_from_its_beginning() -> None:
    source = ordered([made("a", "b"), made("b", "orders")])[1].sources[0]
    now = {"b": Position(source="t", version=9, run=5)}
    assert runs_between(source, {}, now) == (0, 5)
    assert runs_between(source, now, {}) == (0, 0)
    topic = PLANNED.sources[0]
    read = {"orders": Position(source="log", marks={"0": 7, "1": 3}, begins={"0": 5, "1": 1})}
    earlier = {"orders": Position(source="log", marks={"0": 6}, begins={"0": 5})}
    assert spans_between(topic, earlier, read) == {0: (6, 7), 1: (1, 3)}
    assert spans_between(topic, read, {}) == {}


def test_runs_that_read_joined_rows_are_one_step() -> None:
    """If a table that is read does not tell rows of its runs 1..5 apart, neither can those who read them."""
    planned = ordered([made("a", "orders"), made("b", "a")])[1]

    def read(number: int, upto: int) -> TableRun:
        reads = {"a": Position(source="t", version=upto, run=upto)}
        return replace(run(number, 0), reads=reads)

    steps = steps_of([read(1, 3), read(2, 5), read(3, 6), read(4, 9)])
    for joined, expected in (
        (0, [1, 2, 3, 4]),
        (3, [1, 2, 3, 4]),
        (4, [2, 3, 4]),
        (5, [2, 3, 4]),
        (6, [3, 4]),
        (99, [4]),
    ):
        found = together(planned, steps, {"a": joined})
        assert [step.run for step in found] == expected, joined
        assert found[0].first == 1
        assert found[-1].after == steps[-1].after
        assert runs_between(planned.sources[0], found[0].before, found[0].after)[0] == 0
    assert together(planned, [], {"a": 5}) == []


def test_spans_are_cut_to_what_was_read() -> None:
    assert clipped({0: (0, 100)}, {0: (5, 10)}) == {0: (5, 10)}
    assert clipped({0: (8, 9), 7: (0, 1)}, {0: (5, 10), 1: (0, 4)}) == {0: (8, 9), 1: (4, 4)}
    assert clipped({0: (20, 30)}, {0: (5, 10)}) == {0: (10, 10)}
