"""Reading segments and tail as one ordered stream: each record once, whatever moves meanwhile, and no silent holes."""

from __future__ import annotations

import itertools
import random
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from holdfast import Corrupt, Invalid, NotFound, Record
from holdfast.segments.file import segment_reader
from tests.segments.test_roller import eventually, sealing, tail_entries

pytestmark = pytest.mark.disk


@pytest.fixture(params=["plain", "encrypted"])
def log(request, open_log, keyring):
    ring = keyring if request.param == "encrypted" else None
    return open_log(segments=sealing(block_rows=4, row_group_rows=8), keyring=ring)


def filled(log, name="t", sealed=(7, 12, 1, 9), tail=(3, 1, 4), **options):
    """A topic with segments of these sizes and a tail of entries of these; payloads are the offsets."""
    topic = log.topic(name, **options)
    first = topic.marks()[0].durable
    for count in sealed:
        topic.append_batch([b"%d" % (first + i) for i in range(count)])
        log.seal(name)
        first += count
    for count in tail:
        topic.append_batch([b"%d" % (first + i) for i in range(count)])
        first += count
    eventually(lambda: tail_entries(log) == len(tail))
    return topic


def offsets(reading):
    return [record.offset for record in reading]


def places(reading):
    return [(record.partition, record.offset) for record in reading]


def files(log, topic="t", partition=0):
    return sorted(Path(log.path).glob(f"segments/topics/{topic}/{partition}/segments/*.parquet"))


# -- windows -----------------------------------------------------------------------------------------------

TOTAL = 7 + 12 + 1 + 9 + 3 + 1 + 4


def window(items, start, end, limit, reverse):
    """What a list would answer."""
    total = len(items)
    first = 0 if start is None else max(0, total + start) if start < 0 else start
    last = total if end is None else max(0, total + end) if end < 0 else min(end, total)
    found = items[first : max(first, last)]
    return (found[::-1] if reverse else found)[:limit]


EDGES = (None, 0, 1, 6, 7, 8, 19, 20, 28, 29, 30, 32, 36, 37, 50, -1, -5, -8, -9, -37, -90)


@pytest.mark.parametrize("reverse", [False, True])
def test_every_window_is_that_of_a_list(log, reverse):
    topic = filled(log)
    model = list(range(TOTAL))
    windows = list(itertools.product(EDGES, EDGES, (None, 0, 1, 9)))
    for start, end, limit in random.Random(1).sample(windows, 200):
        wanted = window(model, start, end, limit, reverse)
        assert offsets(topic.read(start, end, limit, reverse)) == wanted, (start, end, limit)


@pytest.mark.parametrize("reverse", [False, True])
def test_every_window_is_the_same_as_arrow(log, reverse):
    topic = filled(log)
    model = list(range(TOTAL))
    windows = list(itertools.product(EDGES, EDGES, (None, 0, 1, 9)))
    for start, end, limit in random.Random(2).sample(windows, 60):
        wanted = window(model, start, end, limit, reverse)
        table = topic.read(start, end, limit, reverse).to_arrow()
        assert table.column("offset").to_pylist() == wanted, (start, end, limit)
        assert table.column("payload").to_pylist() == [b"%d" % offset for offset in wanted]


def test_records_are_the_same_before_and_after_sealing(log):
    topic = log.topic("t")
    many = [
        Record(b"", key=b"", kind="k", headers={}, time=5),
        Record(b"\0" * 100, headers={"ü": b"\xff", "a": b""}, time=-5),
        Record(b"plain"),
        Record(b"x", key=b"\xff\xfe", time=2**62),
    ]
    topic.append_batch(many)
    for record in many:
        topic.append(record.payload, key=record.key, kind=record.kind, headers=record.headers)
    before, table = list(topic.read()), topic.read().to_arrow()
    log.seal("t")
    eventually(lambda: tail_entries(log) == 0)
    assert list(topic.read()) == before
    assert topic.read().to_arrow().equals(table)


def test_limits_that_make_no_sense_are_refused(log):
    topic = log.topic("t")
    for wrong in ({"limit": -1}, {"bytes_max": -1}, {"partition": 1}, {"start": "nonsense"}, {"start": '{"0":-1}'}):
        with pytest.raises(Invalid):
            topic.read(**wrong)


# -- times -------------------------------------------------------------------------------------------------


def timed(log, times, every=5, tail=7):
    """A topic whose records have these times, sealed after every few, with a tail; times go through both paths."""
    topic = log.topic("t")
    cut = len(times) - tail
    for start in range(0, cut, every):
        topic.append_batch([Record(b"", time=time) for time in times[start : min(cut, start + every)]])
        log.seal("t")
    for start in range(cut, len(times), 2):
        topic.append_batch([Record(b"", time=time) for time in times[start : start + 2]])
    return topic


FAR = 2**62
SHUFFLED = [5, 5, 5, -7, FAR, 0, 3, -FAR, 9, 5, 1, 2, FAR, -1, 7, 7, 7, 7, 7, 8, 100, 50, 25, 12, 6, 3, 1, 0, -50, 5, 5]


@pytest.mark.parametrize("reverse", [False, True])
def test_times_in_any_order_are_found_in_a_closed_interval(log, reverse):
    topic = timed(log, SHUFFLED)
    bounds = [None, -FAR, -50, -1, 0, 1, 5, 7, 8, 99, 100, FAR, FAR + 1]
    pairs = list(itertools.product(bounds, bounds))
    for since, until in random.Random(3).sample(pairs, 50):
        wanted = [
            offset
            for offset, time in enumerate(SHUFFLED)
            if (since is None or time >= since) and (until is None or time <= until)
        ]
        wanted = wanted[::-1] if reverse else wanted
        assert offsets(topic.read(since=since, until=until, reverse=reverse)) == wanted, (since, until)
        table = topic.read(since=since, until=until, reverse=reverse).to_arrow()
        assert table.column("offset").to_pylist() == wanted, (since, until)


def test_times_and_offsets_and_a_limit_together(log):
    topic = timed(log, SHUFFLED)
    inside = [offset for offset, time in enumerate(SHUFFLED) if 0 <= time <= 9 and 3 <= offset < 28]
    assert offsets(topic.read(3, 28, since=0, until=9)) == inside
    assert offsets(topic.read(3, 28, 4, since=0, until=9)) == inside[:4]
    assert offsets(topic.read(3, 28, 4, True, since=0, until=9)) == inside[::-1][:4]


def test_both_ends_of_an_interval_may_be_dates(log):
    topic = log.topic("t")
    noon = datetime(2020, 1, 1, 12, tzinfo=UTC)
    for hour in range(6):
        topic.append(b"", time=noon + timedelta(hours=hour))
    log.seal("t")
    found = topic.read(since=noon + timedelta(hours=2), until=noon + timedelta(hours=4))
    assert offsets(found) == [2, 3, 4]


def test_pages_by_time_meet_every_record_once(log):
    topic = timed(log, SHUFFLED)
    wanted = [offset for offset, time in enumerate(SHUFFLED) if time >= 5]
    got, position, pages = [], None, 0
    while True:
        page = topic.read(position, limit=3, since=5)
        got += offsets(page)
        position, pages = page.position, pages + 1
        if page.exhausted:
            break
    assert got == wanted
    assert pages == -(-len(wanted) // 3)


def test_segments_without_such_times_are_not_opened(log, opened_files):
    topic = timed(log, [i // 5 for i in range(60)], tail=0)
    assert offsets(topic.read(since=4, until=4)) == list(range(20, 25))
    assert len(opened_files) == 1


# -- bytes -------------------------------------------------------------------------------------------------


def test_bytes_are_limited_but_the_first_record_is_always_given(log):
    topic = log.topic("t")
    topic.append_batch([b"x" * 100] * 4)
    log.seal("t")
    topic.append_batch([b"x" * 100] * 4)
    assert offsets(topic.read(bytes_max=0)) == [0]
    assert offsets(topic.read(bytes_max=99)) == [0]
    assert offsets(topic.read(bytes_max=250)) == [0, 1]
    assert offsets(topic.read(bytes_max=500)) == [0, 1, 2, 3, 4]
    assert offsets(topic.read(bytes_max=250, reverse=True)) == [7, 6]
    assert offsets(topic.read(bytes_max=10_000)) == list(range(8))


def test_an_empty_first_record_does_not_let_a_large_second_one_through(log):
    topic = log.topic("t")
    topic.append_batch([b"", b"x" * 1000, b"x"])
    assert offsets(topic.read(bytes_max=10)) == [0]


def test_arrow_is_limited_in_bytes_and_gets_on(log):
    topic = log.topic("t")
    for _ in range(3):
        topic.append_batch([b"x" * 1000] * 10)
        log.seal("t")
    got, position = [], None
    while True:
        page = topic.read(position, bytes_max=2500)
        found = page.to_arrow().column("offset").to_pylist()
        assert 1 <= len(found) <= 2
        got += found
        position = page.position
        if page.exhausted:
            break
    assert got == list(range(30))


def test_keys_and_headers_count(log):
    topic = log.topic("t")
    topic.append_batch([Record(b"", key=b"k" * 60, headers={"h": b"v" * 39}) for _ in range(4)])
    assert offsets(topic.read(bytes_max=200)) == [0, 1]


# -- partitions and positions ------------------------------------------------------------------------------


def spread(log, counts=(5, 9, 2), sealed=True):
    topic = log.topic("t", partitions=len(counts))
    for partition, count in enumerate(counts):
        for i in range(count):
            topic.append(b"%d" % i, partition=partition)
        if sealed and partition != 1:
            log.seal("t")
    return topic


def test_partitions_are_chosen_by_number(log):
    topic = spread(log)
    assert places(topic.read(partition=1)) == [(1, i) for i in range(9)]
    assert {p for p, _ in places(topic.read(partition=[2, 0]))} == {0, 2}
    assert sorted(places(topic.read())) == [(p, i) for p, n in enumerate((5, 9, 2)) for i in range(n)]
    assert sorted(topic.read(partition=[0, 0, 2]).to_arrow().column("partition").to_pylist()) == [0] * 5 + [2] * 2


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("size", [1, 4, 16])
def test_pages_meet_every_record_of_every_partition_once(log, reverse, size):
    topic = spread(log)
    got, position = [], None
    for _ in range(40):
        page = topic.read(end=position, limit=size, reverse=True) if reverse else topic.read(position, limit=size)
        got += places(page)
        position = page.position
        if page.exhausted:
            break
    assert len(got) == len(set(got)) == 16
    for partition in range(3):
        found = [offset for p, offset in got if p == partition]
        assert found == sorted(found, reverse=reverse)


def test_pages_as_arrow_meet_every_record_once(log):
    topic = spread(log)
    got, position = [], None
    for _ in range(40):
        page = topic.read(position, limit=3)
        table = page.to_arrow()
        got += list(zip(table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True))
        position = page.position
        if page.exhausted:
            break
    assert sorted(got) == [(p, i) for p, n in enumerate((5, 9, 2)) for i in range(n)]


def test_a_page_that_ends_with_the_last_record_says_that_there_is_no_more(log):
    topic = filled(log, sealed=(5,), tail=(5,))
    for form in (list, lambda reading: reading.to_arrow()):
        for limit, exhausted in ((9, False), (10, True), (11, True)):
            page = topic.read(limit=limit)
            form(page)
            assert page.exhausted is exhausted
            page = topic.read(limit=limit, reverse=True)
            form(page)
            assert page.exhausted is exhausted


def test_a_page_of_records_by_time_that_ends_with_the_last_one_says_so(log):
    topic = timed(log, [1, 2, 3, 1, 1, 1, 1, 1], every=3, tail=2)
    page = topic.read(since=2, limit=2)
    assert offsets(page) == [1, 2]
    assert page.exhausted
    for form in (list, lambda reading: reading.to_arrow()):
        page = topic.read(since=1, limit=8)
        form(page)
        assert page.exhausted
        page = topic.read(since=1, limit=7)
        form(page)
        assert not page.exhausted


def test_the_least_advanced_partition_comes_first(log):
    topic = spread(log, (6, 6))
    page = topic.read(limit=4)
    assert places(page) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    page = topic.read(page.position, limit=4)
    assert places(page) == [(1, 0), (1, 1), (1, 2), (1, 3)]
    page = topic.read(page.position, limit=4)
    assert places(page) == [(0, 4), (0, 5), (1, 4), (1, 5)]


def test_a_busy_partition_does_not_keep_a_reader_from_the_others(log):
    """Every page is smaller than what arrives in partition 0 meanwhile; partition 1 is reached all the same."""
    topic = log.topic("t", partitions=2)
    topic.append_batch([b""] * 6, partition=0)
    topic.append_batch([b""] * 3, partition=1)
    seen, position = set(), None
    for _ in range(8):
        page = topic.read(position, limit=3)
        seen |= set(places(page))
        position = page.position
        topic.append_batch([b""] * 4, partition=0)
    assert {(1, 0), (1, 1), (1, 2)} <= seen


def test_paging_while_records_arrive_and_are_sealed_misses_and_repeats_nothing(log):
    topic = log.topic("t", partitions=3)
    got, position = [], None
    for turn in range(30):
        for i in range(5):
            topic.append(b"", partition=(turn + i) % 3)
        if turn % 4 == 3:
            log.seal("t")
        page = topic.read(position, limit=4)
        got += places(page)
        position = page.position
    got += places(topic.read(position))
    assert len(got) == len(set(got)) == 150
    for partition in range(3):
        found = [offset for p, offset in got if p == partition]
        assert found == list(range(50))


def test_a_position_is_good_after_reopening(open_log):
    log = open_log(segments={"seal_on_close": True})
    topic = spread(log)
    page = topic.read(limit=7)
    got = places(page)
    log.close()
    topic = open_log(segments=sealing()).topic("t")
    got += places(topic.read(page.position))
    assert sorted(got) == [(p, i) for p, n in enumerate((5, 9, 2)) for i in range(n)]


def test_a_reading_that_was_left_in_the_middle_knows_where_it_was(log):
    topic = filled(log)
    reading = topic.read()
    for record in reading:
        if record.offset == 10:
            break
    assert not reading.exhausted
    assert offsets(topic.read(reading.position)) == list(range(11, TOTAL))


def test_a_reading_is_used_once(log):
    topic = filled(log)
    reading = topic.read()
    next(iter(reading))
    with pytest.raises(Invalid, match="used once"):
        reading.to_arrow()


def test_what_arrives_later_is_not_in_a_reading(log):
    topic = filled(log)
    reading = topic.read()
    topic.append(b"later")
    log.seal("t")
    assert offsets(reading) == list(range(TOTAL))


# -- while it moves ----------------------------------------------------------------------------------------


@pytest.mark.sampled(6)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("at", [0, 1, 255, 256, 257, 599])
def test_a_read_that_spans_a_seal_sees_each_record_once(log, reverse, at):
    """More entries than a page of the journal has, so that the rest is looked up after they were trimmed."""
    topic = log.topic("t")
    for ticket in [topic.submit_batch([b"%d" % i]) for i in range(600)]:
        ticket.result()
    reading = topic.read(reverse=reverse)
    got = [next(reading).offset for _ in range(at)]
    log.seal("t")
    eventually(lambda: tail_entries(log) == 0)
    got += offsets(reading)
    assert got == (list(range(600))[::-1] if reverse else list(range(600)))


@pytest.mark.parametrize("reverse", [False, True])
def test_a_read_that_spans_a_seal_of_a_part_sees_each_record_once(open_log, reverse):
    log = open_log(segments=sealing())
    topic = log.topic("t")
    for ticket in [topic.submit_batch([b"%d" % i]) for i in range(400)]:
        ticket.result()
    reading = topic.read(reverse=reverse)
    got = [next(reading).offset for _ in range(10)]
    log.seal("t")
    for ticket in [topic.submit_batch([b"later"]) for _ in range(300)]:
        ticket.result()
    log.seal("t")
    eventually(lambda: tail_entries(log) == 0)
    got += offsets(reading)
    assert got == (list(range(400))[::-1] if reverse else list(range(400)))


@pytest.mark.parametrize("reverse", [False, True])
def test_an_arrow_read_that_spans_a_seal_sees_each_record_once(log, reverse):
    topic = filled(log, sealed=(5,), tail=())
    for ticket in [topic.submit_batch([bytes(40_000)]) for _ in range(400)]:
        ticket.result()
    batches = topic.read(reverse=reverse).batches()
    got = next(batches).column(1).to_pylist()
    assert len(got) < 405
    log.seal("t")
    eventually(lambda: tail_entries(log) == 0)
    for batch in batches:
        got += batch.column(1).to_pylist()
    assert got == (list(range(405))[::-1] if reverse else list(range(405)))


def test_reads_see_each_record_once_while_everything_moves(open_log):
    """Readers in both directions and as Arrow, beside a writer and a roller that never rest."""
    log = open_log(segments=sealing(rows_max=20, trim_entries=3, idle_ratio=0))
    topic = log.topic("t")
    stop, wrong = threading.Event(), []

    def look(form):
        while not stop.is_set():
            try:
                got = form()
                if got != list(range(len(got))):
                    wrong.append(got)
            except Exception as error:
                wrong.append(error)
                return

    forms = (
        lambda: offsets(topic.read()),
        lambda: offsets(topic.read(reverse=True))[::-1],
        lambda: topic.read().to_arrow().column("offset").to_pylist(),
    )
    threads = [threading.Thread(target=look, args=(form,)) for form in forms]
    for thread in threads:
        thread.start()
    for i in range(200):
        topic.append(b"%d" % i)
    eventually(lambda: log.stats().segments.segments >= 5)  # appends may be faster than the roller
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_another_process_that_reads_sees_each_record_once_while_it_is_sealed(open_log):
    """A second handle has its own view of the border; entries vanish under it, and it finds them in segments."""
    import holdfast

    log = open_log(segments=sealing())
    topic = log.topic("t")
    for ticket in [topic.submit_batch([b"%d" % i]) for i in range(600)]:
        ticket.result()
    with holdfast.open(log.path, read_only=True) as other:
        for reverse in (False, True):
            reading = other.topic("t").read(reverse=reverse)
            got = [next(reading).offset for _ in range(10)]
            log.seal("t")
            eventually(lambda: tail_entries(log) == 0)
            got += offsets(reading)
            assert got == (list(range(600))[::-1] if reverse else list(range(600)))


# -- how much is touched -----------------------------------------------------------------------------------


@pytest.fixture
def opened_files(monkeypatch):
    """The paths of segment files that were opened."""
    paths = []
    begin = segment_reader.SegmentReader.__init__

    def counted(self, path, *rest, **how):
        paths.append(path)
        begin(self, path, *rest, **how)

    monkeypatch.setattr(segment_reader.SegmentReader, "__init__", counted)
    return paths


def test_the_last_hundred_records_touch_one_file(log, opened_files):
    topic = filled(log, sealed=(150,) * 4, tail=())
    assert offsets(topic.read(-100)) == list(range(500, 600))
    assert len(opened_files) == 1
    assert offsets(topic.read(limit=100, reverse=True)) == list(range(599, 499, -1))
    assert len(opened_files) == 2


def test_a_read_of_the_tail_touches_no_file(log, opened_files):
    topic = filled(log)
    assert offsets(topic.read(-8)) == list(range(TOTAL - 8, TOTAL))
    assert offsets(topic.read(limit=8, reverse=True)) == list(range(TOTAL - 1, TOTAL - 9, -1))
    assert opened_files == []


def test_a_point_read_touches_one_file(log, opened_files):
    topic = filled(log)
    for offset in range(29):
        assert offsets(topic.read(offset, limit=1)) == [offset]
        assert len(opened_files) == offset + 1


# -- expired, missing, damaged -----------------------------------------------------------------------------


def expire(log, keep):
    log.set_retention("t", records_max=keep)
    log.retain()
    assert next(log.topic("t").read()).offset > 0


def test_reading_begins_with_the_first_record_that_is_left(log):
    topic = filled(log, sealed=(10, 10, 10), tail=(5,))
    expire(log, 10)
    assert offsets(topic.read()) == list(range(20, 35))
    assert offsets(topic.read(reverse=True)) == list(range(34, 19, -1))
    assert topic.read().to_arrow().column("offset").to_pylist() == list(range(20, 35))
    assert offsets(topic.read(-1000)) == list(range(20, 35))


def test_asking_for_what_has_expired_says_where_to_begin(log):
    topic = filled(log, sealed=(10, 10), tail=())
    expire(log, 10)
    for start in (0, 9, '{"0":3}'):
        with pytest.raises(NotFound, match="below offset 10 have expired") as caught:
            list(topic.read(start))
        assert "start=10" in caught.value.hint
        with pytest.raises(NotFound):
            topic.read(start).to_arrow()
    assert offsets(topic.read(10)) == list(range(10, 20))


@pytest.mark.parametrize("reverse", [False, True])
def test_a_record_that_expires_under_a_reader_is_not_found_and_says_what_is_left(log, reverse):
    topic = filled(log, sealed=(10, 10, 10), tail=(5,))
    reading = topic.read(reverse=reverse)
    got = [next(reading).offset]
    expire(log, 10)
    with pytest.raises(NotFound, match="below offset 20 have expired") as caught:
        for record in reading:
            got.append(record.offset)
    assert "start=20" in caught.value.hint
    assert got == (list(range(34, 19, -1)) if reverse else list(range(10)))


def damaged(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[:-20])


def emptied(path):
    path.write_bytes(b"")


@pytest.mark.parametrize("harm", [Path.unlink, damaged, cut, emptied], ids=["missing", "damaged", "cut", "emptied"])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_lost_segment_says_what_is_lost_and_what_can_still_be_read(log, harm, reverse):
    topic = filled(log, sealed=(10, 10, 10), tail=(5,))
    path = files(log)[1]
    harm(path)
    got = []
    with pytest.raises(Corrupt) as caught:
        for record in topic.read(reverse=reverse):
            got.append(record.offset)
    before = list(range(34, 19, -1)) if reverse else list(range(10))
    assert got[: len(before)] == before
    assert set(got) <= set(before) | set(range(10, 20))
    error = caught.value
    assert (error.path, error.topic, error.partition) == (str(path), "t", 0)
    assert 10 <= error.offset < 20
    assert "end=10" in error.hint
    assert "start=20" in error.hint
    assert offsets(topic.read(20)) == list(range(20, 35))
    assert offsets(topic.read(end=10)) == list(range(10))
    with pytest.raises(Corrupt):
        topic.read().to_arrow()


def test_a_missing_segment_names_its_span(log):
    topic = filled(log, sealed=(10, 10), tail=())
    files(log)[1].unlink()
    with pytest.raises(Corrupt, match=r"offsets=10\.\.19") as caught:
        list(topic.read())
    assert "end=10" in caught.value.hint
    assert "start=" not in caught.value.hint


def test_a_segment_of_another_place_is_not_believed(log):
    """Two files with the same number of rows change places: names are right, contents are not."""
    topic = filled(log, sealed=(10, 10), tail=())
    first, second = files(log)
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    with pytest.raises(Corrupt):
        list(topic.read())


# -- following ---------------------------------------------------------------------------------------------


def test_following_goes_across_seals(log):
    topic = filled(log)
    follower = topic.follow(0)
    got = [next(follower).offset for _ in range(TOTAL)]
    log.seal("t")
    eventually(lambda: tail_entries(log) == 0)
    for _ in range(3):
        topic.append_batch([b"x"] * 5)
        log.seal("t")
    topic.append(b"tail")
    got += [next(follower).offset for _ in range(16)]
    assert got == list(range(TOTAL + 16))


def test_a_follower_that_fell_behind_retention_learns_where_to_go_on(log):
    topic = filled(log, sealed=(10, 10, 10), tail=(5,))
    follower = topic.follow(0)
    expire(log, 10)
    with pytest.raises(NotFound, match="below offset 20 have expired"):
        next(follower)
    follower = topic.follow(20)
    assert [next(follower).offset for _ in range(15)] == list(range(20, 35))


def test_a_follower_gives_what_comes_before_damage_once_and_then_the_damage(log):
    topic = filled(log, sealed=(10, 10, 10), tail=(5,))
    files(log)[1].unlink()
    follower = topic.follow(0)
    got = []
    for _ in range(3):
        with pytest.raises(Corrupt):
            for record in follower:
                got.append(record.offset)
                assert len(got) < 50
        assert got == list(range(10))


# -- Arrow -------------------------------------------------------------------------------------------------

RAW = ["partition", "offset", "time", "key", "kind", "headers", "payload"]


def test_arrow_has_all_of_a_record(log):
    topic = log.topic("t")
    topic.append(b"p", key=b"k", kind="x", headers={"h": b"v"}, time=7)
    log.seal("t")
    topic.append(b"q", time=8)
    table = topic.read().to_arrow()
    assert table.schema.names == RAW == topic.read().schema.names
    first, second = table.to_pylist()
    assert (first["key"], first["kind"], first["headers"], first["payload"]) == (
        b"k",
        "x",
        [{"key": "h", "value": b"v"}],
        b"p",
    )
    assert (second["key"], second["kind"], second["headers"], second["payload"]) == (None, None, None, b"q")
    assert [value.value for value in table.column("time")] == [7, 8]


def test_an_empty_reading_is_an_empty_table(log):
    table = log.topic("t").read().to_arrow()
    assert (table.num_rows, table.schema.names) == (0, RAW)


def test_polars_pandas_and_duckdb_take_a_reading(log):
    topic = filled(log)
    assert topic.read().to_polars()["offset"].to_list() == list(range(TOTAL))
    assert pl.DataFrame(topic.read())["offset"].to_list() == list(range(TOTAL))
    assert topic.read().to_pandas()["offset"].tolist() == list(range(TOTAL))
    assert pa.table(topic.read()).column("offset").to_pylist() == list(range(TOTAL))
    reading = topic.read(since=0)  # DuckDB finds it by its name
    assert duckdb.sql('SELECT sum("offset") FROM reading').fetchall() == [(sum(range(TOTAL)),)]
    assert reading.exhausted


def test_arrow_backwards_is_backwards(log):
    topic = filled(log)
    table = topic.read(reverse=True).to_arrow()
    assert table.column("payload").to_pylist() == [b"%d" % i for i in range(TOTAL)][::-1]


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_reading_that_is_given_up_leaves_no_thread_to_be_joined(open_log, keyring, encrypted):
    """The garbage collector ends it, in any thread at any moment: a join there would deadlock a thread that starts."""
    log = open_log(segments=sealing(row_group_rows=10), **({"keyring": keyring} if encrypted else {}))
    topic = log.topic("t")
    topic.append_batch([b"%d" % i for i in range(100)])
    log.seal()
    eventually(lambda: tail_entries(log) == 0)
    before = threading.active_count()
    suspended = [iter(topic.read()), iter(topic.read().batches()), iter(topic.read(reverse=True))]
    for reading in suspended:
        next(reading)
    assert threading.active_count() == before
