"""Classification: every damage is found, and nothing else, whatever the writers are doing meanwhile."""

from __future__ import annotations

import subprocess
import sys
from itertools import chain, pairwise
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.segment_data import head

from holdfast import Invalid
from holdfast.model.control_rows import EXPIRED, EXPIRING, LIVE, LOST, SegmentRow
from holdfast.model.segment import Segment, SegmentFacts, StoredFile
from holdfast.reconcile.classify import Classification, Finding, SealedMark, classify
from holdfast.store.layout import segment_name, temporary_name

pytestmark = pytest.mark.unit


def name_of(number: int, attempt: int = 0) -> str:
    return segment_name(number, digest_of(number, attempt))


def digest_of(number: int, attempt: int = 0) -> bytes:
    return bytes([attempt, number % 256]) * 16


def row(number: int, first: int | None = None, rows: int = 10, size: int = 100, state: int = LIVE) -> SegmentRow:
    first = number * 10 if first is None else first
    facts = SegmentFacts(
        rows=rows,
        size=size,
        time_min=0,
        time_max=0,
        sha256=digest_of(number),
        content=bytes(32),
        footer=bytes(16),
        key_id="",
    )
    segment = Segment(head=head(first, number=number), facts=facts)
    return SegmentRow.of(segment, partition_id=1, sealed_us=0, state=state)


def file_of(of: SegmentRow, size: int | None = None) -> StoredFile:
    return StoredFile(name_of(of.number), of.size if size is None else size)


def three(middle: int = LIVE) -> list[SegmentRow]:
    return [row(0), row(1, state=middle), row(2)]


SEALED = SealedMark(2, 30)


def only(result: Classification) -> Finding:
    assert len(result.findings) == 1, result.findings
    return result.findings[0]


# Rows against their files.


def test_rows_and_files_that_agree_give_no_finding():
    rows = three()
    result = classify(rows, map(file_of, reversed(rows)), SEALED)
    assert result == Classification(checked_segments=3, checked_files=3, bytes_expected=300, bytes_actual=300)


def test_a_partition_without_anything_is_clean():
    assert classify([], [], SealedMark(None, 0)) == Classification()


def test_a_live_row_without_its_file_is_missing():
    rows = three()
    result = classify(rows, [file_of(rows[0]), file_of(rows[2])], SEALED)
    finding = only(result)
    assert (finding.kind, finding.number, finding.name) == ("missing", 1, name_of(1))
    assert (finding.first, finding.rows, finding.expected, finding.actual) == (10, 10, 100, None)
    assert (result.bytes_expected, result.bytes_actual, result.checked_files) == (300, 200, 2)


def test_a_file_of_another_size_is_a_size_mismatch():
    rows = three()
    result = classify(rows, [file_of(rows[0]), file_of(rows[1], 1100), file_of(rows[2])], SEALED)
    finding = only(result)
    assert (finding.kind, finding.number, finding.expected, finding.actual) == ("size_mismatch", 1, 100, 1100)
    assert not finding.garbage
    assert (result.bytes_expected, result.bytes_actual) == (300, 1300)


def test_an_expiring_row_may_have_its_file_or_not():
    rows = three(EXPIRING)
    gone = classify(rows, [file_of(rows[0]), file_of(rows[2])], SEALED)
    there = classify(rows, map(file_of, rows), SEALED)
    assert (gone.findings, there.findings) == ((), ())
    assert (gone.in_flight, there.in_flight) == (0, 1)
    assert (there.checked_files, there.bytes_expected, there.bytes_actual) == (2, 200, 200)


def test_an_expired_rows_file_is_provable_garbage():
    rows = three(EXPIRED)
    finding = only(classify(rows, map(file_of, rows), SEALED))
    assert (finding.kind, finding.number, finding.garbage) == ("untracked", 1, True)
    assert "expired" in finding.detail


def test_a_lost_rows_file_that_is_back_is_untracked_but_never_garbage():
    rows = three(LOST)
    finding = only(classify(rows, map(file_of, rows), SEALED))
    assert (finding.kind, finding.number, finding.garbage) == ("untracked", 1, False)
    assert "lost" in finding.detail


@pytest.mark.parametrize("state", [EXPIRED, LOST])
def test_expired_and_lost_rows_need_no_file(state):
    rows = three(state)
    result = classify(rows, [file_of(rows[0]), file_of(rows[2])], SEALED)
    assert result == Classification(checked_segments=3, checked_files=2, bytes_expected=200, bytes_actual=200)


def test_a_state_from_the_future_is_refused():
    with pytest.raises(Invalid, match="state") as caught:
        classify([row(0, state=9)], [], SealedMark(0, 10))
    assert caught.value.hint


# Files without a row.


@pytest.mark.parametrize("state", [LIVE, EXPIRING, EXPIRED, LOST])
def test_a_file_with_another_hash_than_its_row_is_untracked(state):
    rows = three(state)
    kept = [file_of(r) for r in rows if r.state == LIVE]
    finding = only(classify(rows, [*kept, StoredFile(name_of(1, attempt=9), 7)], SEALED))
    assert (finding.kind, finding.number, finding.actual, finding.garbage) == ("untracked", 1, 7, False)


@pytest.mark.parametrize("name", ["notes.txt", "", "1.parquet", name_of(1) + ".expired", name_of(1).upper(), "x.tmp"])
def test_a_name_that_is_not_ours_is_untracked_and_never_garbage(name):
    rows = three()
    finding = only(classify(rows, [*map(file_of, rows), StoredFile(name, 7)], SEALED, in_flight=[1, 3]))
    assert (finding.kind, finding.number, finding.name, finding.garbage) == ("untracked", None, name, False)


def test_a_dead_orphan_above_the_mark_is_found():
    rows = three()
    finding = only(classify(rows, [*map(file_of, rows), StoredFile(name_of(3), 7)], SEALED, in_flight=[4]))
    assert (finding.kind, finding.number, finding.garbage) == ("untracked", 3, False)


def test_leftovers_of_a_partition_without_rows_are_found():
    findings = classify([], [StoredFile(name_of(0), 7), StoredFile(temporary_name(0), 7)], SealedMark(None, 0)).findings
    assert {(f.kind, f.garbage) for f in findings} == {("untracked", False), ("untracked", True)}


def test_an_unfinished_file_that_nobody_writes_is_provable_garbage():
    rows = three()
    for number in (1, 3):
        finding = only(classify(rows, [*map(file_of, rows), StoredFile(temporary_name(number), 7)], SEALED))
        assert (finding.kind, finding.number, finding.garbage) == ("untracked", number, True)


@pytest.mark.parametrize("name", [name_of(3), name_of(3, attempt=9), temporary_name(3)])
def test_files_of_numbers_in_flight_are_counted_and_not_reported(name):
    rows = three()
    result = classify(rows, [*map(file_of, rows), StoredFile(name, 7)], SEALED, in_flight=[3])
    assert (result.findings, result.in_flight, result.checked_files) == ((), 1, 3)


@pytest.mark.parametrize("name", [name_of(1, attempt=9), temporary_name(1)])
def test_nothing_at_or_below_the_mark_is_in_flight(name):
    rows = three()
    result = classify(rows, [*map(file_of, rows), StoredFile(name, 7)], SEALED, in_flight=[1])
    assert (only(result).kind, result.in_flight) == ("untracked", 0)


def test_a_partition_before_its_first_seal_may_have_files_in_flight():
    result = classify([], [StoredFile(temporary_name(0), 7)], SealedMark(None, 0), in_flight={0})
    assert (result.findings, result.in_flight) == ((), 1)


# Above the mark.


def test_rows_above_the_mark_are_counted_and_never_judged():
    rows = [row(0), row(2, first=999), row(2, first=5), row(7, state=EXPIRED)]
    result = classify(rows, [file_of(rows[0])], SealedMark(0, 10))
    assert (result.findings, result.in_flight, result.checked_segments) == ((), 3, 1)


def test_a_row_above_the_mark_vouches_for_files_of_its_number():
    rows = [row(0), row(1)]
    files = [file_of(rows[0]), file_of(rows[1], 7), StoredFile(temporary_name(1), 7)]
    result = classify(rows, files, SealedMark(0, 10))
    assert (result.findings, result.in_flight) == ((), 2)


def test_before_the_first_seal_no_row_is_judged():
    result = classify(three(), [], SealedMark(None, 0))
    assert (result.findings, result.in_flight, result.checked_segments) == ((), 3, 0)


# Numbers and spans.


def test_offsets_between_two_rows_that_are_in_neither_are_a_gap():
    rows = [row(0), row(1, first=14), row(2, first=24)]
    finding = only(classify(rows, map(file_of, rows), SealedMark(2, 34)))
    assert (finding.kind, finding.number, finding.first, finding.rows) == ("gap", 1, 10, 4)
    assert (finding.expected, finding.actual) == (10, 14)


def test_offsets_in_two_rows_are_an_overlap():
    rows = [row(0), row(1, first=7), row(2, first=17)]
    finding = only(classify(rows, map(file_of, rows), SealedMark(2, 27)))
    assert (finding.kind, finding.number, finding.first, finding.rows) == ("overlap", 1, 7, 3)


def test_a_row_is_compared_with_the_row_just_before_it():
    rows = [row(0, rows=30), row(1), row(2)]
    finding = only(classify(rows, map(file_of, rows), SEALED))
    assert (finding.kind, finding.number, finding.first, finding.rows) == ("overlap", 1, 10, 20)


@pytest.mark.parametrize("state", [EXPIRING, EXPIRED, LOST])
def test_spans_of_all_states_must_meet(state):
    rows = [row(0, state=state), row(1, first=11, state=state)]
    assert only(classify(rows, [], SealedMark(1, 21))).kind == "gap"


def test_a_row_missing_from_the_numbering_is_a_gap():
    rows = three()
    finding = only(classify([rows[0], rows[2]], [file_of(rows[0]), file_of(rows[2])], SEALED))
    assert (finding.kind, finding.number, finding.first, finding.rows) == ("gap", 1, 10, 10)


def test_a_hole_in_the_numbering_is_a_gap_even_if_the_spans_meet():
    rows = [row(0), row(2, first=10)]
    finding = only(classify(rows, map(file_of, rows), SealedMark(2, 20)))
    assert (finding.kind, finding.number, finding.first, finding.rows) == ("gap", 1, 10, 0)


def test_the_first_rows_of_the_manifest_cannot_vanish_unseen():
    rows = three()
    finding = only(classify(rows[2:], [file_of(rows[2])], SEALED))
    assert (finding.kind, finding.number, finding.first, finding.rows) == ("gap", 0, 0, 20)


def test_a_manifest_that_ends_before_the_mark_is_a_gap():
    rows = three()
    finding = only(classify(rows[:2], map(file_of, rows[:2]), SEALED))
    assert (finding.kind, finding.number, finding.first, finding.rows) == ("gap", 2, 20, 10)
    assert only(classify([], [], SEALED)).rows == 30


def test_a_manifest_that_ends_beyond_the_mark_is_an_overlap():
    rows = three()
    finding = only(classify(rows, map(file_of, rows), SealedMark(2, 28)))
    assert (finding.kind, finding.first, finding.rows) == ("overlap", 28, 2)


def test_the_end_is_compared_with_the_mark_although_rows_follow():
    rows = three()
    finding = only(classify(rows, map(file_of, rows), SealedMark(1, 23)))
    assert (finding.kind, finding.first, finding.rows) == ("gap", 20, 3)


def test_a_repeated_number_is_one_finding_and_the_first_row_stands():
    rows = [row(0), row(1), row(1, first=55), row(2)]
    finding = only(classify(rows, map(file_of, rows), SEALED))
    assert (finding.kind, finding.number, finding.first) == ("overlap", 1, 55)


def test_a_number_that_is_claimed_twice_proves_nothing_to_be_garbage():
    rows = [row(0), row(1, state=EXPIRED), row(1), row(2)]
    findings = classify(rows, map(file_of, rows), SEALED).findings
    assert sorted(f.kind for f in findings) == ["overlap", "untracked"]
    assert not any(f.garbage for f in findings)


def test_rows_out_of_order_are_a_wrong_call():
    with pytest.raises(Invalid, match="sorted"):
        classify([row(1), row(0)], [], SEALED)
    with pytest.raises(Invalid, match="sorted"):
        classify([row(1)], [], SEALED, after=SealedMark(2, 30))


# Pages.


def test_gaps_and_overlaps_across_pages_are_found():
    for first, kind in ((13, "gap"), (8, "overlap")):
        result = classify(
            [row(1, first=first)],
            [StoredFile(name_of(1), 100)],
            SealedMark(9, 999),
            after=SealedMark(0, 10),
            last=False,
        )
        assert only(result).kind == kind


def test_a_number_repeated_across_pages_is_found():
    assert only(classify([row(0)], [], SealedMark(9, 999), after=SealedMark(0, 10), last=False)).kind == "overlap"


def test_only_the_last_page_is_compared_with_the_mark():
    page, files = [row(0)], [StoredFile(name_of(0), 100)]
    assert classify(page, files, SealedMark(1, 20), last=False).findings == ()
    assert only(classify(page, files, SealedMark(1, 20), last=True)).kind == "gap"


def test_the_page_on_which_rows_pass_the_mark_is_compared_with_it_and_no_later_one():
    mark, after = SealedMark(0, 12), SealedMark(0, 10)
    assert only(classify([row(1)], [], mark, after=after, last=False)).kind == "gap"
    assert classify([row(2)], [], mark, after=SealedMark(1, 20), last=True).findings == ()


def test_a_page_passes_over_files_that_other_pages_judge():
    files = [
        StoredFile(name_of(0, attempt=9), 7),
        StoredFile(name_of(1), 100),
        StoredFile(name_of(2), 7),
        StoredFile("x", 7),
    ]
    result = classify([row(1)], files, SealedMark(9, 999), after=SealedMark(0, 10), last=False)
    assert (result.findings, result.checked_files) == ((), 1)


# Any partition, any damage, any noise.


class Partition(NamedTuple):
    rows: list[SegmentRow]
    files: list[StoredFile]
    mark: SealedMark


@st.composite
def partitions(draw, min_size: int = 0) -> Partition:
    """A consistent partition: rows in any state, some above the mark."""
    shape = st.tuples(st.integers(1, 50), st.integers(1, 10**6), st.sampled_from([LIVE, LIVE, EXPIRING, EXPIRED, LOST]))
    rows, first = [], 0
    for number, (count, size, state) in enumerate(draw(st.lists(shape, min_size=min_size, max_size=20))):
        rows.append(row(number, first, count, size, state))
        first += count
    index = draw(st.integers(-1, len(rows) - 1))
    mark = SealedMark(index, rows[index].end) if index >= 0 else SealedMark(None, 0)
    files = [
        file_of(r)
        for r in rows
        if r.state == LIVE or (r.state == EXPIRING and draw(st.booleans())) or (r.number > index and r.number % 2)
    ]
    return Partition(rows, draw(st.permutations(files)), mark)


@st.composite
def noise(draw, partition: Partition) -> tuple[list[StoredFile], set[int]]:
    """Files of numbers that somebody is writing, above the mark."""
    start = -1 if partition.mark.index is None else partition.mark.index
    numbers = draw(st.sets(st.integers(start + 1, start + 40), max_size=6))
    names = [maker(n) for n in sorted(numbers) for maker in (name_of, temporary_name, lambda n: name_of(n, 9))]
    known = {name_of(one.number) for one in partition.rows}
    return [StoredFile(name, 5) for name in names if name not in known and draw(st.booleans())], numbers


DAMAGES = (
    "remove file",
    "resize file",
    "add twin",
    "add temporary",
    "drop row",
    "repeat row",
    "expire row",
    "lose row",
)


class Planted(NamedTuple):
    partition: Partition
    expected: set[tuple[str, int | None, str | None]]
    garbage: set[str]


def plant(partition: Partition, damages: dict[int, str], foreign: set[str]) -> Planted:
    """Damage the partition, and say by kind, number and name what must be found."""
    rows, files = list(partition.rows), list(partition.files)
    expected: set[tuple[str, int | None, str | None]] = set()
    garbage: set[str] = set()
    for number, damage in damages.items():
        victim = partition.rows[number]
        file, twin = file_of(victim), StoredFile(name_of(number, 9), 3)
        if damage == "remove file":
            files.remove(file)
            expected.add(("missing", number, name_of(number)))
        elif damage == "resize file":
            files[files.index(file)] = file_of(victim, victim.size + 1)
            expected.add(("size_mismatch", number, name_of(number)))
        elif damage == "add twin":
            files.append(twin)
            expected.add(("untracked", number, twin.name))
        elif damage == "add temporary":
            files.append(StoredFile(temporary_name(number), 3))
            expected.add(("untracked", number, temporary_name(number)))
            garbage.add(temporary_name(number))
        elif damage == "drop row":
            rows.remove(victim)
            expected |= {("gap", number, None), ("untracked", number, name_of(number))}
        elif damage == "repeat row":
            rows.insert(rows.index(victim), victim)
            expected.add(("overlap", number, name_of(number)))
        else:
            rows[rows.index(victim)] = victim._replace(state=EXPIRED if damage == "expire row" else LOST)
            expected.add(("untracked", number, name_of(number)))
            garbage |= {name_of(number)} if damage == "expire row" else set()
    files += [StoredFile(name, 1) for name in foreign]
    expected |= {("untracked", None, name) for name in foreign}
    return Planted(Partition(rows, files, partition.mark), expected, garbage)


@st.composite
def planted(draw) -> Planted:
    partition = draw(partitions(min_size=1))
    top = -1 if partition.mark.index is None else partition.mark.index
    live = [r.number for r in partition.rows if r.state == LIVE and r.number <= top]
    damages = draw(st.dictionaries(st.sampled_from(live), st.sampled_from(DAMAGES))) if live else {}
    for number in sorted(damages):
        if damages[number] == "drop row" and damages.get(number - 1) == "drop row":
            del damages[number]  # two neighbours make one gap
    foreign = draw(st.sets(st.sampled_from(["a", "b.parquet", "c.tmp"])))
    return plant(partition, damages, foreign)


def found(result: Classification) -> set[tuple[str, int | None, str | None]]:
    triples = [(f.kind, f.number, f.name) for f in result.findings]
    assert len(triples) == len(set(triples))
    return set(triples)


@given(partitions())
def test_a_consistent_partition_gives_no_finding(partition):
    assert classify(*partition).findings == ()


@given(planted())
def test_planted_damage_gives_exactly_its_findings(case):
    result = classify(*case.partition)
    assert found(result) == case.expected
    assert {finding.name for finding in result.findings if finding.garbage} == case.garbage


@given(planted(), st.data())
def test_what_is_in_flight_never_changes_a_finding(case, data):
    files, numbers = data.draw(noise(case.partition))
    rows, listing, mark = case.partition
    quiet, noisy = classify(rows, listing, mark), classify(rows, listing + files, mark, numbers)
    assert noisy.findings == quiet.findings
    assert noisy.in_flight == quiet.in_flight + len(files)
    assert (noisy.checked_files, noisy.bytes_actual) == (quiet.checked_files, quiet.bytes_actual)


@given(planted(), st.data())
def test_the_order_of_the_listing_does_not_matter(case, data):
    rows, listing, mark = case.partition
    assert classify(rows, data.draw(st.permutations(listing)), mark) == classify(rows, listing, mark)


@given(planted(), st.data())
def test_pages_together_equal_the_whole(case, data):
    rows, listing, mark = case.partition
    files, numbers = data.draw(noise(case.partition))
    listing = listing + files
    cuts = sorted(data.draw(st.sets(st.integers(0, len(rows)))))
    cuts = [cut for cut in cuts if not 0 < cut < len(rows) or rows[cut - 1].number < rows[cut].number]
    bounds = [0, *cuts, len(rows)]
    pages = [
        classify(
            rows[start:end],
            listing,
            mark,
            numbers,
            after=SealedMark(rows[start - 1].number, rows[start - 1].end) if start else None,
            last=place == len(bounds) - 2,
        )
        for place, (start, end) in enumerate(pairwise(bounds))
    ]
    columns = zip(*map(msgspec.structs.astuple, pages), strict=True)
    findings, *counts = columns
    together = Classification(tuple(chain.from_iterable(findings)), *map(sum, counts))
    assert together == classify(rows, listing, mark, numbers)


def test_judging_needs_neither_journal_nor_arrow():
    """Spark's executors import all three pure modules without a writer."""
    modules = (
        "holdfast.reconcile.classify, holdfast.segments.retention.retention_plan, holdfast.segments.manifest.time_tree"
    )
    code = f"import sys, {modules}; print([m for m in ('holdfast.journal', 'apsw', 'pyarrow') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
