"""What sessions send, in group commits: together or not at all, packed with others, refused with others, bounded."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast
from holdfast import Closed, Full, Invalid, Keyring, Log, OutcomeUnknown, Settings, Unavailable
from holdfast.journal.journal import Run
from holdfast.journal.session_access import ForwardedProduced, ForwardedRows, ForwardedUnit, Outcome, fill
from holdfast.journal.state.operations import ChangeSpace
from holdfast.journal.state.partition import Partition
from holdfast.journal.state.spaces import stored_name
from holdfast.model.control_rows import DiskFailed
from holdfast.model.record_columns import Columns
from holdfast.testing.manual_clock import ManualClock
from tests.failing_commits import fail_commits, refuse_next_commit
from tests.stalled import stalled

pytestmark = pytest.mark.disk

ONE, TWO = b"1" * 16, b"2" * 16


@pytest.fixture(params=["files", "database", "keyed"])
def log(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Log]:
    settings = Settings.from_mapping({"journal": {"group_file_bytes": 0}} if request.param == "database" else {})
    keyring = Keyring({"k": bytes(32)}) if request.param == "keyed" else None
    with holdfast.open(tmp_path / "log", settings=settings, keyring=keyring) as log:
        log.topic("t", partitions=2)
        yield log


def part(log: Log, number: int = 0) -> Partition:
    return log._journal.topics["t"][number]


def rows(log: Log, *payloads: bytes, partition: int = 0, unique: bytes | None = None) -> ForwardedRows:
    made = [(payload, 1, None, unique) for payload in payloads]
    return ForwardedRows(part(log, partition), made, sum(map(len, payloads)))


def put(log: Log, session: bytes, sequence: int, *items, floor: int = 1) -> tuple[Outcome, ...]:
    sent = log._journal.sessions.put(session, sequence, floor, list(items), 20)
    assert sent.wait(20)
    return sent.outcomes()


def payloads(log: Log, partition: int = 0) -> list[bytes]:
    return [record.payload for record in log.topic("t").read(partition=partition)]


def test_rows_of_all_sessions_of_a_group_are_one_entry(log):
    """Eight processes that append to a partition at the same time pay for one entry, and each learns its own place."""
    sessions = [bytes([n]) * 16 for n in range(8)]
    before = log.stats().journal.entries_total
    with stalled(log.topic("t")):
        sent = [
            log._journal.sessions.put(one, 1, 1, [rows(log, *(b"%d.%d" % (n, i) for i in range(8)))], 20)
            for n, one in enumerate(sessions)
        ]
    assert all(one.wait(20) for one in sent)
    assert log.stats().journal.entries_total == before + 1
    for n, one in enumerate(sent):
        (run,) = one.outcomes()[0].runs
        assert (run.first, run.count) == (8 * n, 8)
    assert payloads(log) == [b"%d.%d" % (n, i) for n in range(8) for i in range(8)]


def test_all_kinds_of_items_go_together(log):
    """Rows, a batch, a transaction with a space, and a producer's record under one number; each has its outcome."""
    journal = log._journal
    batch = ForwardedUnit([Run.unplaced(part(log, 1), Columns([b"b1", b"b2"], [1, 1]))], 2, 4, alone=True)
    change = ChangeSpace(stored_name("space/s"), ((b"k", 0, b"v"),), ())
    transaction = ForwardedUnit([Run.unplaced(part(log), Columns([b"x"], [1])), change], 1, 1)
    produced = ForwardedProduced(b"device", 1, 1, rows(log, b"p"))
    outcomes = put(log, ONE, 1, rows(log, b"a", b"b"), batch, transaction, produced)
    assert [one.error for one in outcomes] == [None] * 4
    places = [(run.partition_id, run.first, run.count) for one in outcomes for run in one.runs]
    assert places == [(part(log).id, 0, 2), (part(log, 1).id, 0, 2), (part(log).id, 2, 1), (part(log).id, 3, 1)]
    assert (payloads(log), payloads(log, 1)) == ([b"a", b"b", b"x", b"p"], [b"b1", b"b2"])
    assert put(log, ONE, 1, rows(log, b"a", b"b"), batch, transaction, produced) == outcomes
    assert journal.sessions.last_produced(b"device") == 1
    (again,) = put(log, ONE, 2, ForwardedProduced(b"device", 1, 1, rows(log, b"p")))
    assert (again.runs[0].first, again.runs[0].repeated) == (3, True)
    (gap,) = put(log, ONE, 3, ForwardedProduced(b"device", 3, 1, rows(log, b"p")))
    with pytest.raises(Invalid, match="expected=2"):
        raise gap.error.error()
    assert payloads(log) == [b"a", b"b", b"x", b"p"]


def test_what_is_under_way_is_asked_for_again(log):
    """A connection that broke: the number that waits in the queue is the same one, and is written once."""
    with stalled(log.topic("t")):
        first = log._journal.sessions.put(ONE, 1, 1, [rows(log, b"a")], 20)
        again = log._journal.sessions.put(ONE, 1, 1, [rows(log, b"a")], 20)
        log._journal.sessions.put(ONE, 2, 1, [rows(log, b"b")], 20)
        assert again is first
        assert not again.done
    assert again.wait(20)
    assert put(log, ONE, 3, rows(log, b"c"))[0].runs[0].first == 2
    assert payloads(log) == [b"a", b"b", b"c"]


def test_idempotency_keys_are_known_among_forwarded_rows(log):
    """Rows with keys keep their meaning: a repeat has its original's place, and the others follow each other."""
    unique = b"k" * 16 + b"d" * 16
    put(log, ONE, 1, rows(log, b"once", unique=unique))
    mixed = [(b"x", 1, None, None), (b"once", 1, None, unique), (b"y", 1, None, None)]
    (outcome,) = put(log, ONE, 2, ForwardedRows(part(log), mixed, 6))
    run = Run.unplaced(part(log))
    fill(run, outcome.runs[0], log._journal.partitions)
    run.count = 3
    assert [run.place(index)[1] for index in range(3)] == [1, 0, 2]
    (misused,) = put(log, ONE, 3, ForwardedRows(part(log), [(b"z", 1, None, b"k" * 16 + b"e" * 16)], 1))
    ((_, refusal),) = misused.runs[0].refused
    with pytest.raises(Invalid, match="already in use for other content"):
        raise refusal.error()
    assert put(log, ONE, 3, rows(log, b"whatever")) == (misused,)
    assert payloads(log) == [b"once", b"x", b"y"]


def test_a_refused_group_is_not_stored_and_what_was_refused_stays_so(log, monkeypatch):
    """A full disk: nothing of the number is there; asked again it was refused; the next number comes with its floor."""
    put(log, ONE, 1, rows(log, b"a"))
    refuse_next_commit(log.topic("t"), monkeypatch, Unavailable("planted: the disk is full"))
    for _ in range(2):
        (refused,) = put(log, ONE, 2, rows(log, b"b"))
        with pytest.raises(Unavailable, match="planted"):
            raise refused.error.error()
    assert put(log, ONE, 3, rows(log, b"c"))[0].error is None
    assert payloads(log) == [b"a", b"c"]
    assert log._journal.sessions.last(ONE) == 3


def test_what_was_refused_before_a_crash_is_not_written_behind_later_ones(tmp_path, monkeypatch):
    """Number 2 was refused, 3 was written, and the owner died: 2 is refused for good, not written late."""
    with holdfast.open(tmp_path / "log") as log:
        put(log, ONE, 1, rows(log := log and _topic(log), b"a"))
        refuse_next_commit(log.topic("t"), monkeypatch, Unavailable("planted"))
        put(log, ONE, 2, rows(log, b"b"))
        put(log, ONE, 3, rows(log, b"c"))
    with holdfast.open(tmp_path / "log") as log, pytest.raises(Unavailable, match="later ones were written"):
        put(log, ONE, 2, rows(log, b"b"))
    with holdfast.open(tmp_path / "log") as log:
        assert payloads(log) == [b"a", b"c"]


def _topic(log: Log) -> Log:
    log.topic("t", partitions=2)
    return log


def test_a_producer_goes_on_only_behind_what_was_written(log, monkeypatch):
    """Number 2 is refused by the disk: 3 and 4, which were under way, are refused with it; then all come again."""
    device = log.producer("device")
    device.append("t", b"1", sequence=1, partition=0)
    with stalled(log.topic("t")):
        # A batch that fills a group on its own, so that the numbers behind it are in the next one.
        second = device.submit("t", b"2" * 2**20, sequence=2, partition=0)
        others = [device.submit("t", b"%d" % n, sequence=n, partition=0) for n in (3, 4)]
        neighbour = log.topic("t").submit(b"neighbour", partition=0)
        refuse_next_commit(log.topic("t"), monkeypatch, Unavailable("planted"), skip=1)
    with pytest.raises(Unavailable, match="planted"):
        second.result()
    for ticket in others:
        with pytest.raises(Unavailable, match="expected=2"):
            ticket.result()
    assert neighbour.result().offset == 1
    assert device.last == 1
    with pytest.raises(Invalid, match="expected=2"):
        device.append("t", b"3", sequence=3, partition=0)
    receipts = [device.append("t", b"%d" % n, sequence=n, partition=0) for n in (2, 3, 4)]
    assert [receipt.offset for receipt in receipts] == [2, 3, 4]
    assert payloads(log) == [b"1", b"neighbour", b"2", b"3", b"4"]


def test_a_poisoned_writer_leaves_nobody_waiting(log, monkeypatch):
    """A waiter for a number learns that its outcome is unknown; later ones that the log is closed."""
    put(log, ONE, 1, rows(log, b"a"))
    fail_commits(log.topic("t"), monkeypatch, DiskFailed("planted"))
    (outcome,) = put(log, ONE, 2, rows(log, b"b"))
    with pytest.raises(OutcomeUnknown):
        raise outcome.error.error()
    with pytest.raises(Closed, match="planted"):
        put(log, ONE, 3, rows(log, b"c"))
    with pytest.raises(Closed):
        log.close()


def test_three_times_as_many_sessions_as_there_may_be(tmp_path):
    """The oldest make room if they are idle; while all are busy a new one is refused, and nothing is written."""
    clock = ManualClock()
    settings = Settings.from_mapping({"journal": {"sessions_max": 5}})
    with holdfast.open(tmp_path / "log", settings=settings, clock=clock) as log:
        _topic(log)
        for n in range(15):
            if n and n % 5 == 0:
                (early,) = put(log, bytes([n]) * 16, 1, rows(log, b"early"))
                with pytest.raises(Full, match="sessions"):
                    raise early.error.error()
                clock.advance(61)
            put(log, bytes([n]) * 16, 1, rows(log, b"%d" % n))
        assert [info.name[0] for info in log._journal.sessions.all()] == [10, 11, 12, 13, 14]
        assert payloads(log) == [b"%d" % n for n in range(15)]
    with holdfast.open(tmp_path / "log", settings=settings, clock=clock) as log:
        assert [info.name[0] for info in log._journal.sessions.all()] == [10, 11, 12, 13, 14]
        assert put(log, bytes([14]) * 16, 1, rows(log, b"14"))[0].runs[0].first == 14


@pytest.mark.parametrize("reopens", [False, True])
def test_a_clock_that_was_set_back_keeps_no_place_taken(tmp_path, reopens):
    """Sessions whose last use is in the future are idle from now on: a minute later they make room, all of them."""
    clock = ManualClock()
    settings = Settings.from_mapping({"journal": {"sessions_max": 5}})
    log = holdfast.open(tmp_path / "log", settings=settings, clock=clock)
    _topic(log)
    for n in range(5):
        put(log, bytes([n]) * 16, 1, rows(log, b"%d" % n))
        clock.advance(1)
    clock.jump(-86_400)
    if reopens:
        log.close()
        log = holdfast.open(tmp_path / "log", settings=settings, clock=clock)
    (early,) = put(log, b"early".ljust(16), 1, rows(log, b"early"))
    with pytest.raises(Full, match="sessions"):
        raise early.error.error()
    clock.advance(61)
    for n in range(5, 10):
        put(log, bytes([n]) * 16, 1, rows(log, b"%d" % n))
    assert payloads(log) == [b"%d" % n for n in range(10)]
    assert [info.name[0] for info in log._journal.sessions.all()] == [5, 6, 7, 8, 9]
    log.close()
    with holdfast.open(tmp_path / "log", settings=settings, clock=clock) as log:
        assert put(log, bytes([9]) * 16, 1, rows(log, b"9"))[0].runs[0].first == 9


def test_a_clock_that_was_set_back_keeps_no_session_for_ever(tmp_path):
    """It expires as if it had been used when the clock was set back."""
    clock = ManualClock()
    settings = Settings.from_mapping({"journal": {"session_expiry_ms": 3_600_000}})
    with holdfast.open(tmp_path / "log", settings=settings, clock=clock) as log:
        _topic(log)
        put(log, ONE, 1, rows(log, b"one"))
        clock.jump(-86_400)
        put(log, TWO, 1, rows(log, b"two"))
        clock.advance(3601)
        put(log, TWO, 2, rows(log, b"two"), floor=2)
        assert [info.name for info in log._journal.sessions.all()] == [TWO]


def test_a_session_that_takes_no_answers_is_bounded(log):
    """What is kept for it is bounded, whatever its floor says."""
    for n in range(1, 65):
        put(log, ONE, n, rows(log, b"x"))
    with pytest.raises(Invalid, match="not taken its answers"):
        put(log, ONE, 65, rows(log, b"x"))
    put(log, ONE, 65, rows(log, b"x"), floor=2)


@pytest.mark.parametrize(
    ("session", "sequence", "floor"), [(b"short", 1, 1), (ONE, 0, 0), (ONE, 1, 2), (ONE, 2**62 + 1, 1), (ONE, 1, 0)]
)
def test_a_session_that_makes_no_sense_is_refused(log, session, sequence, floor):
    """Before anything is queued."""
    with pytest.raises(Invalid):
        put(log, session, sequence, rows(log, b"x"), floor=floor)
    assert payloads(log) == []


def test_an_interrupted_producer_has_written_its_number_or_not(log, some):
    """Ctrl-C anywhere: the number is in the log with its record, or neither is; sent again it is there once."""
    device = log.producer("device")
    topic = log.topic("t")
    written = 0
    for step in some(range(1, 110), 50):
        number = (device.last or 0) + 1
        with _interrupted(step):
            device.submit(topic, b"%d" % number, sequence=number, partition=0)
        log.topic("t").submit(b"neighbour", partition=0).result()
        device.append(topic, b"%d" % number, sequence=number, partition=0)
        written = number
    own = [payload for payload in payloads(log) if payload != b"neighbour"]
    assert own == [b"%d" % n for n in range(1, written + 1)]


_WHERE = ("commit/forwarded.py", "commit/session_commits.py", "sessions/session_state.py", "sessions/session_table.py")


class _interrupted:
    """Raise KeyboardInterrupt at the n-th line that is executed where sessions enter a group."""

    def __init__(self, step: int) -> None:
        self._left = step

    def _trace(self, frame, event, _arg):
        if not frame.f_code.co_filename.endswith(_WHERE):
            return self._trace
        if event == "line":
            self._left -= 1
            if self._left == 0:
                raise KeyboardInterrupt
        return self._trace

    def __enter__(self):
        import sys

        sys.settrace(self._trace)

    def __exit__(self, kind, *_):
        import sys

        sys.settrace(None)
        return kind is KeyboardInterrupt


def test_numbers_sent_by_many_threads_at_once_are_written_once(log):
    """Each of eight threads sends the same numbers, in order: the first writes, the others get its answer."""
    offsets: list[list[int]] = [[] for _ in range(8)]

    def work(mine: list[int]) -> None:
        for n in range(1, 21):
            try:
                mine.append(put(log, ONE, n, rows(log, b"%d" % n), floor=1)[0].runs[0].first)
            except Invalid:  # a gap: somebody else is not that far
                mine.append(-1)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in offsets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert payloads(log) == [b"%d" % n for n in range(1, 21)]
    for mine in offsets:
        assert mine == list(range(20))


def test_typed_rows_are_forwarded(log):
    """Batches of a typed topic, encoded by their sender."""
    typed = log.topic("typed", schema=pa.schema([("a", pa.int64())]))
    prepared = typed._prepared([{"a": 1}, {"a": 2}], None, None, None)
    unit = ForwardedUnit([Run.unplaced(*prepared.parts[0])], 2, prepared.size, alone=True)
    outcomes = put(log, ONE, 1, unit)
    assert (outcomes[0].runs[0].first, outcomes[0].runs[0].count) == (0, 2)
    assert put(log, ONE, 1, unit) == outcomes
    assert [row["a"] for row in typed.read()] == [1, 2]


def test_killed_while_sessions_wait_in_a_file(tmp_path):
    """Sessions whose groups never reached the database are found in the file, by readers and by the next owner."""
    child = os.fork()
    if not child:
        log = _topic(holdfast.open(tmp_path / "log"))
        put(log, ONE, 1, rows(log, b"a"))
        put(log, TWO, 1, rows(log, b"b"))
        put(log, ONE, 2, rows(log, b"c"), floor=2)
        assert log._journal._backend.filed.late.sessions
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    with holdfast.open(tmp_path / "log", read_only=True) as log:
        assert (log._journal.sessions.last(ONE), log._journal.sessions.last(TWO)) == (2, 1)
    with holdfast.open(tmp_path / "log") as log:
        assert put(log, ONE, 2, rows(log, b"c"), floor=2)[0].runs[0].first == 2
        assert put(log, TWO, 1, rows(log, b"b"))[0].runs[0].first == 1
        assert payloads(log) == [b"a", b"b", b"c"]
