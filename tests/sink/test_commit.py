"""One object commits a batch: written once, whatever dies, is lost, or comes between."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random

import pyarrow as pa
import pytest

import holdfast
from holdfast.errors import Invalid, OutcomeUnknown, Unavailable
from holdfast.root import sink_batches
from holdfast.root.objects import documents
from holdfast.root.objects.documents import SegmentDocument, SinkBatchDocument
from holdfast.sink import write_steps
from holdfast.sink.sink_target import BatchMark
from holdfast.sink.task_files import WrittenTask
from holdfast.store import layout
from holdfast.store.port import StoreUnavailable
from tests.sampling import Some
from tests.shipping.flaky import Faults, FlakyStore
from tests.sink.sinks import CLOCK, ROWS, TASKS, Died, Place, Seen, Watched, batch_of, dying, write, written

pytestmark = pytest.mark.unit

WHOLE = sum(TASKS.values())


def test_batches_follow_each_other(place: Place) -> None:
    """Each batch is whole, partitions are tasks, offsets go on, and every segment has its manifest object."""
    for batch in range(3):
        done = write(place.target(), "q", batch)
        assert done.is_new
        assert place.newest().marks == {"q": batch}
    assert place.counted() == Counter({("q", 0): WHOLE, ("q", 1): WHOLE, ("q", 2): WHOLE})
    found = place.rows()
    offsets = {(row["_partition"], row["_offset"]) for row in found.to_pylist()}
    assert offsets == {(task, offset) for task, rows in TASKS.items() for offset in range(3 * rows)}
    assert all(row["_partition"] == row["task"] for row in found.to_pylist())
    assert len(place.objects("/_manifest/")) == len(place.objects("/segments/")) == 3 * len(TASKS)


def test_a_batch_that_is_written_again_is_known(place: Place) -> None:
    """Its rows are there once, the tasks write nothing, and a lower batch of the same writer is known, too."""
    write(place.target(), "q", 4)
    before, watched = place.objects(), Watched(place.store)
    place.use(watched)
    for batch in (4, 3, 0):
        assert not write(place.target(), "q", batch).is_new
    assert not [seen for seen in watched.seen if seen.verb == "create"]
    assert place.objects() == before
    assert write(place.target(), "q", 5).is_new
    assert place.counted() == Counter({("q", 4): WHOLE, ("q", 5): WHOLE})


def test_a_late_commit_of_a_dead_driver_is_known(place: Place) -> None:
    """Its tasks were done before the other driver committed the same batch: nothing twice, and no file stays."""
    mark = BatchMark("q", 0)
    prepared, done = written(place.target(), "q", 0, mark=mark)
    write(place.target(), "q", 0)
    assert not write_steps.commit(prepared, done, mark, CLOCK).is_new
    assert place.counted() == Counter({("q", 0): WHOLE})
    assert len(place.objects("/segments/")) == len(TASKS)


def test_an_empty_batch_leaves_its_mark(place: Place) -> None:
    """So the same batch with rows, however it came to that, is known; without a mark nothing is committed."""
    assert write(place.target(), "q", 0, {0: 0, 1: 0}).is_new
    assert not write(place.target(), "q", 0).is_new
    assert place.rows().num_rows == 0
    assert write(place.target(), "", tasks={}, is_marked=False).batch is None
    assert place.newest().number == 0
    assert write(place.target(), "q", 1).is_new
    assert place.counted() == Counter({("q", 1): WHOLE})


def test_a_first_write_without_rows_makes_the_topic(place: Place) -> None:
    """It can be read, with its columns."""
    write(place.target(), "", tasks={}, is_marked=False)
    assert place.rows().column_names[-4:] == ["writer", "batch", "task", "row"]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("first", [0, 1])
def test_killed_between_any_two_requests(place: Place, some: Some[int], first: int, after: bool) -> None:
    """A reader sees all of the batch or nothing of it, and the batch written again is there exactly once."""
    for batch in range(first):
        write(place.target(), "q", batch)
    counting = Watched(place.store)
    snapshot = dict(place.store._objects)  # type: ignore[attr-defined]
    place.use(counting)
    write(place.target(), "q", first)
    for at in some(range(len(counting.seen) + 1), 30):
        place.store._objects.clear()  # type: ignore[attr-defined]
        place.store._objects.update(snapshot)  # type: ignore[attr-defined]
        place.use(dying(place.store, at, after=after))
        try:
            write(place.target(), "q", first)
        except Died:
            pass
        place.use(place.store)
        seen = place.counted()
        assert seen[("q", first)] in (0, WHOLE), counting.seen[at : at + 1]
        write(place.target(), "q", first)
        write(place.target(), "q", first + 1)
        assert place.counted() == Counter({("q", batch): WHOLE for batch in range(first + 2)}), counting.seen[at:][:1]


@pytest.mark.parametrize("is_marked", [True, False])
def test_each_row_is_there_once_when_replies_are_lost(place: Place, some: Some[int], is_marked: bool) -> None:
    """Every create in turn is done and its reply lost: each row is there once, with a mark or without."""
    counting = Watched(place.store)
    place.use(counting)
    write(place.target(), "q", 0, is_marked=is_marked)
    creates = [seen.key for seen in counting.seen if seen.verb == "create"]
    for at in some(range(len(creates)), 8):
        other, count = Place(), [0]
        watched = Watched(other.store)

        def lose(number: int, seen: Seen, at: int = at, count: list[int] = count) -> None:
            count[0] += seen.verb == "create"
            if seen.verb == "create" and count[0] == at + 1:
                raise StoreUnavailable("the connection was reset", cause="reset")

        watched.after = lose
        other.use(watched)
        assert write(other.target(), "q", 0, is_marked=is_marked).is_new
        other.use(other.store)
        assert other.counted() == Counter({("q", 0): WHOLE}), creates[at]


def test_the_reply_to_the_commit_is_lost(place: Place) -> None:
    """The object is recognised as our own, with a mark and without one; nothing is removed."""
    for is_marked in (True, False):
        faults = Faults()
        faults.lose("/_sink/", times=1)
        place.use(FlakyStore(place.store, faults))
        assert write(place.target(), f"w{is_marked}", 0, is_marked=is_marked).is_new
        assert faults.count("create", "/_sink/") == 2
        place.use(place.store)
    assert place.counted() == Counter({("wTrue", 0): WHOLE, ("wFalse", 0): WHOLE})


def test_an_unknown_outcome_removes_nothing(place: Place) -> None:
    """The store did it and never said so: the error says that, the rows are there, and the batch again is known."""
    faults = Faults()
    faults.lose("/_sink/", times=None)
    faults.fail("/_sink/", verbs=("get",))
    place.use(FlakyStore(place.store, faults))
    with pytest.raises((OutcomeUnknown, Unavailable)):
        write(place.target(), "q", 0)
    place.use(place.store)
    assert place.counted() == Counter({("q", 0): WHOLE})
    assert not write(place.target(), "q", 0).is_new
    assert place.counted() == Counter({("q", 0): WHOLE})


def test_a_store_that_never_answers_the_commit(place: Place) -> None:
    """Nothing is part of the topic, the files stay for an operator who knows more, and writing again works."""
    faults = Faults()
    faults.fail("/_sink/")
    place.use(FlakyStore(place.store, faults))
    with pytest.raises(OutcomeUnknown, match="does not say"):
        write(place.target(), "q", 0)
    assert len(place.objects("/segments/")) == len(TASKS)
    place.use(place.store)
    assert place.counted() == Counter()
    assert write(place.target(), "q", 0).is_new
    assert place.counted() == Counter({("q", 0): WHOLE})


def test_manifest_objects_that_cannot_be_written_are_late(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """The batch is part of the topic all the same: it is no error, and the next writer does the rest."""
    faults = Faults()
    rule = faults.fail("/_manifest/")
    place.use(FlakyStore(place.store, faults))
    assert write(place.target(), "q", 0, is_marked=False).is_new
    assert "late" in caplog.text
    assert not place.objects("/_manifest/")
    assert place.counted() == Counter({("q", 0): WHOLE})
    with pytest.raises(Unavailable):  # at most one batch is not applied: the next is not committed before it is
        write(place.target(), "q", 1)
    rule.end()
    assert write(place.target(), "q", 1).is_new
    assert len(place.objects("/_manifest/")) == 2 * len(TASKS)
    assert place.counted() == Counter({("q", 0): WHOLE, ("q", 1): WHOLE})


def test_half_applied_batches_are_read_whole(place: Place) -> None:
    """Whatever manifest objects are there: the newest batch says what is part of the topic."""
    tasks = {0: 3, 1: 2, 2: 4}
    write(place.target(), "q", 0, tasks)
    write(place.target(), "q", 1, tasks)
    manifests = [key for key in place.objects("/_manifest/") if key.endswith("1.json")]
    for gone in range(1 << len(manifests)):
        removed = [key for bit, key in enumerate(manifests) if gone >> bit & 1]
        kept = {key: place.store.get(key) for key in removed}
        place.store.delete(removed)
        assert place.counted() == Counter({("q", 0): 9, ("q", 1): 9}), removed
        for key, data in kept.items():
            place.replace(key, data)


def test_manifest_objects_beyond_the_newest_batch_are_not_read(place: Place) -> None:
    """Somebody removed the batch, or wrote manifest objects alone: rows are part of the topic by a batch only."""
    write(place.target(), "q", 0)
    write(place.target(), "q", 1)
    place.store.delete([layout.sink_key("t", 1)])
    assert place.counted() == Counter({("q", 0): WHOLE})


def test_a_topic_grows_between_any_two_requests_of_a_reader(place: Place, some: Some[int]) -> None:
    """More partitions and a new column come with a batch: the reader sees it whole, with its columns, or not at all."""
    write(place.target(), "q", 0, {0: 1})
    counting = Watched(place.store)
    place.use(counting)
    assert place.rows().num_rows == 1
    for at in some(range(len(counting.seen)), 20):
        other = Place()
        write(other.target(), "q", 0, {0: 1})
        watched, busy = Watched(other.store), [False]

        def between(number: int, seen: Seen, at: int = at, other: Place = other, busy: list[bool] = busy) -> None:
            if number != at or busy[0]:
                return
            busy[0] = True
            grown = pa.table({"writer": ["r"], "batch": [0], "task": [0], "row": [0], "more": [1]})
            prepared = write_steps.prepare(other.target(), grown.schema, CLOCK)
            done = [write_steps.write_task(prepared, task, grown.to_batches(), None, CLOCK) for task in (0, 3)]
            write_steps.commit(prepared, done, None, CLOCK)

        watched.before = between
        other.use(watched)
        found = other.rows()
        assert found.num_rows in (1, 3), at
        assert found.num_rows == 1 or sorted(found.column("more").to_pylist(), key=str) == [1, 1, None]


@pytest.mark.parametrize("kind", ["batch", "stream", "three"])
def test_another_writer_comes_between_any_two_requests(place: Place, some: Some[int], kind: str) -> None:
    """Both are there, once and whole; files that had to be written anew leave nothing behind."""
    counting = Watched(place.store)
    place.use(counting)
    write(place.target(), "a", 0)
    steps = len(counting.seen)
    for at in some(range(steps), 12):
        other = Place()
        watched, busy = Watched(other.store), [False]

        def between(number: int, seen: Seen, at: int = at, other: Place = other, busy: list[bool] = busy) -> None:
            if number != at or busy[0]:
                return
            busy[0] = True
            write(other.target(), "b", 0, is_marked=kind == "stream")
            if kind == "three":
                write(other.target(), "c", 0, {0: 1, 5: 1})

        watched.before = between
        other.use(watched)
        assert write(other.target(), "a", 0).is_new
        other.use(other.store)
        expected = Counter({("a", 0): WHOLE, ("b", 0): WHOLE})
        assert other.counted() == (expected + Counter({("c", 0): 2}) if kind == "three" else expected), at
        named = {segment.key for number in range(other.newest().number + 1) for segment in _batch(other, number)}
        assert set(other.objects("/segments/")) == named
        assert len(other.objects("/_manifest/")) == len(named)


def _batch(place: Place, number: int) -> tuple[SegmentDocument, ...]:
    key = layout.sink_key("t", number)
    return documents.decode(place.store.get(key), key, SinkBatchDocument).segments


def test_rows_that_are_written_anew_keep_their_times_and_values(place: Place) -> None:
    """Only their offsets are others."""
    prepared, done = written(place.target(), "a", 0)
    before = {segment.partition: (segment.time_min, segment.time_max, segment.rows) for segment in _all(done)}
    write(place.target(), "b", 0)
    committed = write_steps.commit(prepared, done, None, CLOCK).batch
    assert committed is not None
    after = {segment.partition: (segment.time_min, segment.time_max, segment.rows) for segment in committed.segments}
    assert after == before
    rows = [row for row in place.rows().to_pylist() if row["writer"] == "a"]
    assert [(row["task"], row["row"]) for row in rows] == [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1)]
    assert [row["_offset"] for row in rows] == [3, 4, 5, 2, 3]


def _all(tasks: Sequence[WrittenTask]) -> list[SegmentDocument]:
    return [segment for task in tasks for segment in task.segments]


def test_many_writers_and_a_reader_at_once(place: Place, is_sampled: bool, seed: int) -> None:
    """Two streams and two batch writers: every batch is seen whole or not at all, all the time, and all are there."""
    batches, rng = (4 if is_sampled else 12), Random(seed)
    tasks = {writer: {task: rng.randrange(1, 4) for task in range(rng.randrange(1, 4))} for writer in "abcd"}
    write(place.target(), "first", 0, {0: 1})
    stop, problems = threading.Event(), list[BaseException]()

    def write_all(writer: str) -> None:
        try:
            for batch in range(batches):
                write(place.target(), writer, batch, tasks[writer], is_marked=writer in "ab")
                if writer in "ab":
                    write(place.target(), writer, batch, tasks[writer])  # again
        except BaseException as error:
            problems.append(error)

    def read_all() -> None:
        seen: Counter[tuple[str, int]] = Counter()
        try:
            while not stop.is_set():
                now = place.counted()
                assert all(now[one] == count for one, count in seen.items()), "rows went away"
                assert all(count == sum(tasks.get(who, {0: 1}).values()) for (who, _), count in now.items()), now
                seen = now
        except BaseException as error:
            problems.append(error)

    reader = threading.Thread(target=read_all)
    writers = [threading.Thread(target=write_all, args=(writer,)) for writer in "abcd"]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    assert not problems, problems
    expected = {(who, batch): sum(tasks[who].values()) for who in "abcd" for batch in range(batches)}
    assert place.counted() == Counter({("first", 0): 1, **expected})


def test_files_that_were_removed_before_the_commit_are_missed(place: Place) -> None:
    """A cleaning that knows nothing of the sink: nothing is committed that cannot be read."""
    prepared, done = written(place.target(), "q", 0)
    place.store.delete([_all(done)[0].key])
    with pytest.raises(Unavailable, match="removed before"):
        write_steps.commit(prepared, done, None, CLOCK)
    assert place.counted() == Counter()
    assert not place.objects("/segments/")


def test_a_batch_that_no_reader_would_take_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its object would be too large to be read: the topic stays as it is, and goes on."""
    write(place.target(), "q", 0)
    monkeypatch.setattr("holdfast.store.object_limits.SINK", 4096)
    with pytest.raises(Invalid, match="too many files") as raised:
        write(place.target(), "q", 1, dict.fromkeys(range(6), 1))
    assert "coalesce" in raised.value.hint
    assert len(place.objects("/segments/")) == len(TASKS)
    assert write(place.target(), "q", 1, {0: 1}).is_new


def test_a_refused_commit_removes_the_files(place: Place) -> None:
    """The topic was made with other columns meanwhile: nothing of this write stays."""
    prepared, done = written(place.target(), "q", 0)
    other = write_steps.prepare(place.target(), pa.schema({"writer": pa.int64()}), CLOCK)
    write_steps.commit(other, [], None, CLOCK)
    with pytest.raises(Unavailable, match="columns of this topic meanwhile"):
        write_steps.commit(prepared, done, None, CLOCK)
    assert not place.objects("/segments/")
    assert not place.objects("/_sink/")


def test_a_write_that_is_given_up_leaves_nothing(place: Place) -> None:
    """Some task has failed: what the others wrote is removed, and nothing was ever seen."""
    prepared, done = written(place.target(), "q", 0)
    assert len(place.objects("/segments/")) == len(TASKS)
    write_steps.give_up(prepared, done, CLOCK)
    assert not place.objects("/segments/")
    with pytest.raises(holdfast.NotFound):
        place.rows()


def test_a_task_that_fails_removes_its_own_files(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that are on the store already; and no attempt has the names of another, though all rows are equal."""
    monkeypatch.setattr("holdfast.sink.task_files._ROWS_MAX", 4)
    timed = pa.RecordBatch.from_arrays(
        [*batch_of("q", 0, 0, 3).columns, pa.array([0, 1, 2], pa.timestamp("us", "UTC"))], names=[*ROWS.names, "_time"]
    )
    prepared = write_steps.prepare(place.target(), timed.schema, CLOCK)

    def rows(*, failing: bool) -> Iterator[pa.RecordBatch]:
        yield from [timed] * 3
        if failing:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_steps.write_task(prepared, 0, rows(failing=True), None, CLOCK)
    assert not place.objects("/segments/")
    tries = [write_steps.write_task(prepared, 0, rows(failing=False), None, CLOCK) for _ in range(2)]
    assert len(_all(tries)) == len({segment.key for segment in _all(tries)}) == 6
    write_steps.commit(prepared, tries[:1], None, CLOCK)
    assert place.rows().column("row").to_pylist() == [0, 1, 2] * 3
    assert {segment.key for segment in _all(tries)} == set(place.objects("/segments/"))


def test_a_topic_with_thousands_of_batches_is_found_by_a_few_requests(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a long list is looked for by halves."""
    monkeypatch.setattr(sink_batches, "_PAGE", 4)
    for batch in range(150):
        write(place.target(), "q", batch, {0: 1} if batch % 50 == 0 else {})
    watched = Watched(place.store)
    for known in (-1, 0, 3, 100, 148, 149):
        watched.seen.clear()
        assert sink_batches.newest_number(watched, "t", known) == 149
        assert len(watched.seen) < 16, known


def test_checkpoints_are_written_now_and_then(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """As shipping does; readers use them, and see what they saw without."""
    monkeypatch.setattr("holdfast.root.batch_application.CHECKPOINT_EVERY", 3)
    for batch in range(7):
        write(place.target(), "q", batch)
    assert len(place.objects("/0/_checkpoints/")) == 2
    assert place.counted() == Counter({("q", batch): WHOLE for batch in range(7)})


def test_an_ordinary_topic_costs_no_request_more(place: Place, tmp_path: object) -> None:
    """Reading a log's topic asks for nothing of a sink's."""
    log = holdfast.open(f"{tmp_path}/log", store=place.url)
    with log:
        log.topic("plain").append(b"x")
        log.seal()
    watched = Watched(place.store)
    place.use(watched)
    assert place.rows("plain").num_rows == 1
    assert not [seen for seen in watched.seen if "_sink" in seen.key]
