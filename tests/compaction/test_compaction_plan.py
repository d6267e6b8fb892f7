"""Which files become one: whatever they weigh, and that planning again finds nothing to do."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.compaction.compaction_plan import FileRun, plan
from holdfast.model.segment import NO_CHAIN, NO_CONTENT, Segment, SegmentFacts, SegmentHead
from holdfast.root.objects.documents import SegmentDocument
from holdfast.root.rewrites import InEffect

pytestmark = pytest.mark.unit

TARGET = 1_000_000
FRAME = 4096


def segment(number: int, size: int, first: int, rows: int = 1, schema: int = 0, key_id: str = "") -> SegmentDocument:
    head = SegmentHead(
        log_id=bytes(16),
        topic="orders",
        partition=0,
        number=number,
        first=first,
        epoch=1,
        schema=bytes([schema]) * 16,
        previous=NO_CHAIN,
    )
    facts = SegmentFacts(
        rows=rows,
        size=size + FRAME,
        time_min=0,
        time_max=1,
        sha256=bytes([number % 256]) * 32,
        content=b"c" * 32,
        footer=bytes(16),
        key_id=key_id,
    )
    return SegmentDocument.of(Segment(head=head, facts=facts), slot=number, chain=NO_CHAIN, sealed_us=number)


def manifest(*sizes: int) -> list[SegmentDocument]:
    return [segment(number, size, number) for number, size in enumerate(sizes)]


def in_effect(segments: list[SegmentDocument]) -> list[InEffect]:
    return [InEffect(one, one.number + 1) for one in segments]


def numbers(runs: list[FileRun]) -> list[tuple[int, int]]:
    return [run.numbers for run in runs]


def applied(files: list[InEffect], runs: list[FileRun]) -> list[InEffect]:
    """The files after these runs became one file each, of whatever size."""
    starts = {run.numbers[0]: run for run in runs}
    inside = {file.segment.number for run in runs for file in run.files}
    made = []
    for file in files:
        number = file.segment.number
        if number in starts:
            run = starts[number]
            joined = msgspec.structs.replace(run.first, rows=run.rows, size=run.bytes // 7 + 1)
            made.append(InEffect(joined, run.numbers[1], 0))
        elif number not in inside:
            made.append(file)
    return made


def test_small_neighbours_become_one():
    segments = manifest(*[1000] * 10)
    assert numbers(plan(segments, in_effect(segments), TARGET)) == [(0, 10)]


def test_a_run_ends_before_it_exceeds_the_target():
    segments = manifest(*[400_000] * 5)
    assert numbers(plan(segments, in_effect(segments), TARGET)) == [(0, 2), (2, 4)]


def test_a_file_of_half_the_target_stays():
    segments = manifest(1000, 1000, TARGET // 2, 1000, 1000)
    assert numbers(plan(segments, in_effect(segments), TARGET)) == [(0, 2), (3, 5)]


def test_one_file_is_no_run():
    segments = manifest(1000)
    assert plan(segments, in_effect(segments), TARGET) == []
    assert plan([], [], TARGET) == []


def test_runs_do_not_cross_schemas_nor_encryption():
    segments = [
        *(segment(number, 1000, number) for number in range(2)),
        *(segment(number, 1000, number, schema=1) for number in range(2, 4)),
        *(segment(number, 1000, number, schema=1, key_id="k") for number in range(4, 6)),
    ]
    runs = plan(segments, in_effect(segments), TARGET)
    assert numbers(runs) == [(0, 2), (2, 4), (4, 6)]
    assert [run.first.key_id for run in runs] == ["", "", "k"]


def test_what_is_retired_or_lost_is_left_alone():
    segments = manifest(*[1000] * 8)
    segments[5] = msgspec.structs.replace(segments[5], size=0, content=NO_CONTENT.hex())
    assert numbers(plan(segments, in_effect(segments), TARGET, retired=2)) == [(2, 5), (6, 8)]


def test_a_large_file_is_not_written_again_for_a_few_small_ones():
    """Or a compaction after every segment would write the same rows over and over."""
    segments = manifest(400_000, 10_000, 10_000)
    assert numbers(plan(segments, in_effect(segments), TARGET)) == [(1, 3)]
    segments = manifest(400_000, 60_000, 60_000)
    assert numbers(plan(segments, in_effect(segments), TARGET)) == [(0, 3)]


def test_rows_are_written_a_few_times_however_often_somebody_compacts():
    segments: list[SegmentDocument] = []
    files: list[InEffect] = []
    written = 0
    for number in range(400):
        segments.append(segment(number, 1000, number))
        files.append(InEffect(segments[-1], number + 1))
        runs = plan(segments, files, TARGET)
        written += sum(run.rows for run in runs)
        files = applied(files, runs)
    assert written < 400 * 16
    assert len(files) < 20


sizes = st.lists(st.one_of(st.integers(1, 5000), st.integers(1, TARGET)), max_size=60)


@given(sizes, st.lists(st.integers(0, 2), min_size=60, max_size=60), st.integers(0, 60))
def test_planning_again_finds_nothing(sizes: list[int], schemas: list[int], retired: int):
    segments = [segment(number, size, number, schema=schemas[number]) for number, size in enumerate(sizes)]
    files = in_effect(segments)
    runs = plan(segments, files, TARGET, retired=retired)
    assert plan(segments, applied(files, runs), TARGET, retired=retired) == []
    for run in runs:
        assert len(run.files) > 1
        assert run.first.number >= retired
        assert len({file.segment.schema for file in run.files}) == 1
        assert [file.segment.number for file in run.files] == list(range(*run.numbers)), "neighbours"
        assert sum(file.segment.size - FRAME for file in run.files) <= TARGET
    assert numbers(runs) == sorted(numbers(runs))


@given(sizes, st.data())
def test_growing_partitions_stay_compact(sizes: list[int], data: st.DataObject):
    """Compacted, appended, compacted again: never more small files beside each other than the rule allows."""
    segments: list[SegmentDocument] = []
    files: list[InEffect] = []
    for number, size in enumerate(sizes):
        segments.append(segment(number, size, number))
        files.append(InEffect(segments[-1], number + 1))
        if data.draw(st.booleans()):
            files = applied(files, plan(segments, files, TARGET))
    files = applied(files, plan(segments, files, TARGET))
    assert [file.segment.number for file in files] == [0, *[file.upto for file in files[:-1]]] if files else True
    assert plan(segments, files, TARGET) == []
