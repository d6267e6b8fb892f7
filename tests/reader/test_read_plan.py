"""From manifests to tasks: exactly the records that are wanted, each once, in order, however they are shared out."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Corrupt, Invalid
from holdfast.reader.read_plan import Piece, Task, TimeBounds, pieces_of, tasks_of
from holdfast.store import layout
from tests.reader.manifests import end_of, lost_segment, manifests, segment

pytestmark = pytest.mark.unit

NO_BOUNDS = TimeBounds()
MIB = 2**20
splits = st.integers(1, 400 * MIB)


def read_piece(piece: Piece, groups: int) -> list[int]:
    """The offsets that a piece brings if its segment has so many row groups, as `SegmentReader.batches` takes them."""
    rows, beginning = piece.facts.rows, piece.head.first
    groups = min(groups, rows)
    part, parts = piece.share
    found: list[int] = []
    for group in range(groups * part // parts, groups * (part + 1) // parts):
        first = beginning + rows * group // groups
        last = beginning + rows * (group + 1) // groups
        found += range(max(first, piece.start), min(last, piece.end))
    return found


def read_tasks(tasks: list[Task], groups: int) -> list[int]:
    return [offset for task in tasks for piece in task.pieces for offset in read_piece(piece, groups)]


@st.composite
def spans(draw):
    """A partition's segments, and where a read of it begins and ends."""
    segments = draw(manifests(min_size=1))
    first, end = segments[0].first, end_of(segments)
    start = draw(st.integers(first, end))
    return segments, start, draw(st.integers(start, end))


@given(spans(), splits, st.integers(0, 40), st.integers(1, 50))
def test_tasks_together_bring_exactly_the_wanted_offsets_once_and_in_order(span, split_bytes, min_tasks, groups):
    segments, start, end = span
    tasks = tasks_of(pieces_of(segments, start, end, NO_BOUNDS), split_bytes, min_tasks)
    assert read_tasks(tasks, groups) == list(range(start, end))


@given(manifests(min_size=1), st.integers(-1500, 1500), st.integers(-1500, 1500))
def test_segments_are_left_out_by_time_only_where_no_record_can_match(segments, since, until):
    bounds = TimeBounds(since=since, until=until)
    taken = {piece.head.number for piece in pieces_of(segments, 0, 2**62, bounds)}
    assert taken == {s.number for s in segments if s.time_max >= since and s.time_min <= until}


@given(spans(), splits)
def test_a_task_ends_before_a_piece_that_would_put_most_of_itself_over_the_limit(span, split_bytes):
    segments, start, end = span
    for task in tasks_of(pieces_of(segments, start, end, NO_BOUNDS), split_bytes):
        whole = [msgspec.structs.replace(piece, share=(0, 1)).cost() // piece.share[1] for piece in task.pieces]
        *others, last = whole
        assert not others or sum(others) + last // 2 <= split_bytes


@given(spans(), splits, st.integers(0, 10))
def test_the_same_question_has_the_same_tasks(span, split_bytes, min_tasks):
    segments, start, end = span
    first, second = (
        [task.encode() for task in tasks_of(pieces_of(segments, start, end, NO_BOUNDS), split_bytes, min_tasks)]
        for _ in range(2)
    )
    assert first == second


@given(spans())
def test_a_task_comes_back_from_its_bytes(span):
    segments, start, end = span
    for task in tasks_of(pieces_of(segments, start, end, NO_BOUNDS), MIB):
        assert Task.decode(task.encode()) == task


def test_a_large_segment_is_shared_by_several_tasks():
    pieces = pieces_of([segment(0, 1000, size=400 * MIB)], 0, 1000, NO_BOUNDS)
    tasks = tasks_of(pieces, 128 * MIB)
    assert len(tasks) == 4  # even ones, none above the limit
    assert [piece.share for task in tasks for piece in task.pieces] == [(i, len(tasks)) for i in range(len(tasks))]


def test_small_segments_are_read_many_to_a_task():
    segments = [segment(10 * i, 10, number=i, size=5000) for i in range(240)]
    assert len(tasks_of(pieces_of(segments, 0, 2400, NO_BOUNDS), 128 * MIB)) <= 16


def test_more_tasks_are_made_where_more_are_asked_for():
    one = [segment(0, 1000, size=30 * MIB)]
    assert len(tasks_of(pieces_of(one, 0, 1000, NO_BOUNDS), 128 * MIB)) == 1
    assert len(tasks_of(pieces_of(one, 0, 1000, NO_BOUNDS), 128 * MIB, 6)) == 6


def test_every_core_gets_something_to_do():
    segments = [segment(10 * i, 10, number=i, size=40 * MIB) for i in range(8)]
    sizes = {cores: len(tasks_of(pieces_of(segments, 0, 80, NO_BOUNDS), 512 * MIB, cores=cores)) for cores in (1, 4)}
    assert sizes == {1: 1, 4: 4}


@pytest.mark.parametrize(("split_bytes", "min_tasks"), [(1, 0), (128 * MIB, 10**9)])
def test_shares_never_get_so_small_that_a_planner_drowns_in_them(split_bytes, min_tasks):
    """A reader with splitBytes=1, or one that asks for a billion partitions, gets many tasks, and memory stays."""
    segments = [segment(1000 * i, 1000, number=i, size=100 * MIB) for i in range(5)]
    tasks = tasks_of(pieces_of(segments, 0, 5000, NO_BOUNDS), split_bytes, min_tasks)
    assert 400 <= len(tasks) <= 600
    assert read_tasks(tasks, 1000) == list(range(5000))


def test_narrow_columns_need_fewer_tasks():
    segments = [segment(1000 * i, 1000, number=i, size=100 * MIB) for i in range(8)]
    wide, narrow = (
        len(tasks_of(pieces_of(segments, 0, 8000, NO_BOUNDS), 64 * MIB, width=width)) for width in (None, 8)
    )
    assert narrow < wide


def test_nothing_to_read_is_no_task():
    assert tasks_of([], 128 * MIB, 8) == []
    assert list(pieces_of([], 0, 10, NO_BOUNDS)) == []
    assert list(pieces_of([segment(0, 10)], 5, 5, NO_BOUNDS)) == []


@pytest.mark.parametrize(("split_bytes", "min_tasks"), [(0, 0), (-1, 0), (1, -1)])
def test_tasks_without_room_are_refused(split_bytes, min_tasks):
    with pytest.raises(Invalid):
        tasks_of([], split_bytes, min_tasks)


def test_a_lost_segment_is_corrupt_with_its_place_and_left_out_on_demand():
    segments = [segment(0, 10), lost_segment(10, 5, number=1), segment(15, 10, number=2)]
    with pytest.raises(Corrupt, match=r"records were lost offsets=10\.\.14") as lost:
        list(pieces_of(segments, 0, 25, NO_BOUNDS))
    assert lost.value.path == layout.manifest_key("orders", 0, 1)
    assert lost.value.offset == 10
    assert [piece.head.number for piece in pieces_of(segments, 0, 25, NO_BOUNDS, skip_lost=True)] == [0, 2]


def test_a_lost_segment_that_nobody_asks_for_harms_nobody():
    segments = [segment(0, 10), lost_segment(10, 5, number=1), segment(15, 10, number=2)]
    assert [piece.head.number for piece in pieces_of(segments, 0, 10, NO_BOUNDS)] == [0]
    assert [piece.head.number for piece in pieces_of(segments, 15, 25, NO_BOUNDS)] == [2]


def test_a_piece_holds_all_that_proves_its_file():
    document = segment(20, 10, number=3, size=77, times=(5, 9), schema="ab" * 16)
    (piece,) = pieces_of([document], 22, 40, NO_BOUNDS)
    assert (piece.start, piece.end, piece.is_whole) == (22, 30, False)
    assert piece.key == layout.segment_key("orders", 0, 3, bytes.fromhex(document.sha256))
    head, facts = piece.head, piece.facts
    assert (head.number, head.first, head.schema.hex()) == (3, 20, document.schema)
    assert (facts.rows, facts.size, facts.footer.hex(), facts.content.hex()) == (
        10,
        77,
        document.footer,
        document.content,
    )
    assert msgspec.structs.replace(piece, start=20).is_whole
