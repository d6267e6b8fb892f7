"""The disk guard on real logs: appends are refused in time, everything else goes on, and it ends by itself."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import Log, Topic, Unavailable, disk
from tests.segments.planting import TEN, fill, offsets, wait_for

pytestmark = pytest.mark.disk

FLOOR = 1_000_000


class FreeSpace:
    """What the disk says about its free space: a number, or an error."""

    def __init__(self) -> None:
        self.says: int | OSError = 10**12
        self.asked = 0

    def __call__(self, path: Path) -> int:
        self.asked += 1
        if isinstance(self.says, OSError):
            raise self.says
        return self.says


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> FreeSpace:
    space = FreeSpace()
    monkeypatch.setattr(disk, "free_bytes", space)
    return space


@pytest.fixture
def guarded(open_log: Callable[..., Log]) -> Log:
    return open_log(
        segments=TEN, retention={"interval_ms": 3_600_000}, disk={"free_bytes_min": FLOOR, "check_interval_ms": 1}
    )


def refuses(topic: Topic) -> bool:
    return not topic.offer(b"x")


def set_free(space: FreeSpace, says: int | OSError) -> None:
    """Let the disk say this, and wait until the guard has heard it and what it did about it is done."""
    space.says = says
    asked = space.asked
    wait_for(lambda: space.asked >= asked + 2)


def test_below_the_floor_an_append_is_refused_with_a_remedy(space, guarded):
    topic = guarded.topic("orders")
    set_free(space, FLOOR - 1)
    with pytest.raises(Unavailable) as caught:
        topic.append(b"x")
    assert "nearly full" in caught.value.message
    assert f"free={FLOOR - 1} needed={FLOOR}" in caught.value.message
    assert "holdfast retain" in caught.value.hint
    assert topic.marks()[0].appended == 0


def test_a_burst_between_two_looks_does_not_pass_the_floor(monkeypatch, open_log):
    """The writer looks too, the sooner the less room there is; and what is to be sealed once more has its room."""
    mib, floor = 2**20, 256 * 2**20
    stored = [0]
    monkeypatch.setattr(disk, "free_bytes", lambda path: floor + 160 * mib - 2 * stored[0])
    log = open_log(disk={"free_bytes_min": floor, "check_interval_ms": 3_600_000})
    topic = log.topic("orders")
    block = [bytes(mib // 8)] * 8
    with pytest.raises(Unavailable, match="nearly full"):
        for _ in range(160):
            topic.append_batch(block)
            stored[0] += mib
    left = disk.free_bytes(Path()) - floor
    assert left - stored[0] + 8 * mib >= 0  # free for the seal of all that is in the tail
    assert stored[0] > 40 * mib  # and no refusal long before


def test_what_waits_to_be_stored_has_its_room(space, open_log):
    """It was taken: it is stored however little is free then, and once more when it is sealed."""
    limits = {"free_bytes_min": FLOOR, "check_interval_ms": 1}
    log = open_log(journal={"flush_interval_ms": 60_000}, disk=limits)
    topic = log.topic("orders")
    while log.stats().journal.queue_bytes < FLOOR:
        assert topic.offer(bytes(10_000))
    set_free(space, 3 * FLOOR - 1)
    assert refuses(topic)
    set_free(space, 4 * FLOOR)
    assert not refuses(topic)


def test_no_file_is_prepared_below_the_floor(monkeypatch, open_log):
    """Zeros for the next groups do not take the room that is kept: groups go through the database instead."""
    monkeypatch.setattr(disk, "free_bytes", lambda path: FLOOR + 2**20)
    log = open_log(segments={"seal_on_close": False}, disk={"free_bytes_min": FLOOR})
    topic = log.topic("orders")
    for _ in range(60):
        topic.append(bytes(10_000))
    assert max(file.stat().st_size for file in (log.path / "groups").iterdir()) < 2**20


def test_at_the_floor_appends_are_taken(space, guarded):
    set_free(space, FLOOR)
    assert guarded.topic("orders").append(b"x").offset == 0


def test_below_the_floor_an_offer_answers_false(space, guarded):
    topic = guarded.topic("orders")
    set_free(space, 0)
    assert topic.offer(b"x") is False
    assert guarded.stats().journal.offered_dropped_total == 1


def test_below_the_floor_a_batch_is_refused_as_a_whole(space, guarded):
    topic = guarded.topic("orders")
    set_free(space, 0)
    with pytest.raises(Unavailable):
        topic.append_batch([b"x", b"y"])
    assert topic.marks()[0].appended == 0


def test_below_the_floor_reading_goes_on(space, guarded):
    topic = fill(guarded, "orders", 2)
    topic.append(b"next")
    set_free(space, 0)
    assert offsets(topic) == list(range(21))


def test_below_the_floor_sealing_goes_on(space, guarded):
    topic = guarded.topic("orders")
    topic.append_batch([b"x"] * 5)
    set_free(space, 0)
    guarded.seal(timeout=30)
    assert topic.watermark().offset == 5


def test_below_the_floor_retention_goes_on(space, guarded):
    topic = fill(guarded, "orders", 3)
    set_free(space, 0)
    guarded.set_retention("orders", records_max=10)
    guarded.retain()
    assert offsets(topic) == list(range(20, 30))


def test_below_the_floor_reconciliation_goes_on(space, guarded):
    fill(guarded, "orders", 2)
    set_free(space, 0)
    assert guarded.reconcile(deep=True).findings == ()


def test_a_log_opened_on_a_full_disk_is_read_and_refuses_appends(space, open_log):
    with open_log(segments=TEN) as log:
        fill(log, "orders", 2)
    space.says = 0
    log = open_log(segments=TEN, disk={"free_bytes_min": FLOOR, "check_interval_ms": 1})
    wait_for(lambda: log.stats().segments.free_bytes == 0)
    topic = log.topic("orders")
    assert offsets(topic) == list(range(20))
    wait_for(lambda: refuses(topic))


def test_appends_are_taken_again_by_themselves(space, guarded):
    topic = guarded.topic("orders")
    set_free(space, 0)
    assert refuses(topic)
    set_free(space, 2 * FLOOR)
    assert topic.append(b"x").offset == 0


def test_a_waiter_for_room_learns_at_once_when_the_disk_runs_low(space, guarded):
    """A batch in the queue when the guard strikes is stored; the next one is refused, nobody hangs."""
    topic = guarded.topic("orders")
    tickets = [topic.submit(b"x") for _ in range(100)]
    set_free(space, 0)
    assert [ticket.result(30).offset for ticket in tickets] == list(range(100))
    with pytest.raises(Unavailable):
        topic.append(b"x", timeout=30)


def test_a_disk_that_cannot_be_asked_stops_nothing(space, guarded):
    topic = guarded.topic("orders")
    set_free(space, OSError(errno.EIO, "Input/output error"))
    assert topic.append(b"x").offset == 0
    assert guarded.stats().segments.last_error == "cannot look at the disk: Input/output error"
    guarded.seal(timeout=30)


def test_a_negative_answer_stops_nothing(space, guarded):
    topic = guarded.topic("orders")
    set_free(space, -4096)
    assert topic.append(b"x").offset == 0
    guarded.seal(timeout=30)


def test_a_disk_that_cannot_be_asked_does_not_lift_a_refusal(space, guarded):
    topic = guarded.topic("orders")
    set_free(space, 0)
    set_free(space, OSError(errno.EIO, "Input/output error"))
    assert refuses(topic)


@pytest.fixture
def never_at_rest(guarded: Log) -> Iterator[Log]:
    """A log with a partition that fills faster than it can be sealed, all the time."""
    topic = guarded.topic("busy")
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            try:
                topic.append_batch([b"x"] * 10, timeout=30)
            except Unavailable:
                stop.wait(0.001)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        wait_for(lambda: guarded.stats().segments.tail_records > 200)
        yield guarded
    finally:
        stop.set()
        writer.join()


def test_a_partition_that_is_never_at_rest_does_not_keep_the_guard_from_its_turn(space, never_at_rest):
    asked = space.asked
    wait_for(lambda: space.asked > asked + 3)


def test_a_partition_that_is_never_at_rest_does_not_keep_others_from_being_sealed(space, never_at_rest):
    topic = never_at_rest.topic("quiet")
    topic.append(b"x")
    never_at_rest.seal("quiet", timeout=20)
    assert topic.watermark().offset == 1


def test_a_disk_that_fills_up_is_reported_before_anything_is_refused(space, open_log, caplog):
    caplog.set_level("INFO", logger="holdfast.segments")
    limits = {"free_bytes_min": FLOOR, "free_bytes_warning": 2 * FLOOR, "check_interval_ms": 1}
    topic = open_log(disk=limits).topic("orders")

    def actions() -> list[str]:
        return [record.action for record in caplog.records if record.action.startswith("disk_")]

    set_free(space, 2 * FLOOR)
    assert actions() == []
    for free in (2 * FLOOR - 1, FLOOR + 10_000, FLOOR + 10_001):  # once, not at every look
        set_free(space, free)
        assert not refuses(topic)
    assert actions() == ["disk_filling"]
    set_free(space, FLOOR - 1)
    assert refuses(topic)
    set_free(space, 10**12)
    assert actions() == ["disk_filling", "disk_low", "disk_roomy", "disk_ok"]
    assert "holdfast retain" in next(one.getMessage() for one in caplog.records if "refused:" in one.getMessage())


def test_without_a_floor_the_disk_is_not_asked(space, open_log):
    log = open_log(segments=TEN, disk={"free_bytes_min": 0, "check_interval_ms": 1})
    space.says = 0
    fill(log, "orders", 2)
    assert space.asked == 0


def test_the_free_space_is_in_the_stats(space, guarded):
    set_free(space, 5 * FLOOR)
    assert guarded.stats().segments.free_bytes == 5 * FLOOR


def test_the_free_space_is_that_of_the_logs_own_disk(tmp_path):
    assert 0 < disk.free_bytes(tmp_path) < 2**63


def test_a_log_below_the_floor_closes_and_seals(space, open_log):
    log = open_log(segments={**TEN, "seal_on_close": True}, disk={"free_bytes_min": FLOOR, "check_interval_ms": 1})
    topic = log.topic("orders")
    topic.append_batch([b"x"] * 3)
    set_free(space, 0)
    log.close()
    assert open_log(read_only=True).topic("orders").watermark().offset == 3
