"""Retention on real logs: what goes, when, why, and what never does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

import holdfast
from holdfast import Invalid, Keyring, Log, NotFound, Settings, Topic, Unavailable
from holdfast.journal.state.operations import Control, Expire
from holdfast.segments.retention.retention_report import RetentionReport
from holdfast.store import layout
from holdfast.testing import Fault, FaultyDisk
from holdfast.testing.manual_clock import ManualClock
from tests.segments.planting import ROWS, TEN, files, fill, offsets, states, wait_for

pytestmark = pytest.mark.disk

DAY = 86_400
NEVER = {"interval_ms": 3_600_000}


@pytest.fixture
def open_quiet(open_log: Callable[..., Log]) -> Callable[..., Log]:
    """Opens logs in which retention is applied when the test asks, and not before."""

    def open_one(name: str = "log", **options: object) -> Log:
        log = open_log(name, **options)
        roller = log._maintenance._roller
        if roller is not None:
            roller.chores.clear()
        return log

    return open_one


def numbers(report: RetentionReport) -> list[tuple[str, int, int]]:
    return [(item.topic, item.partition, item.number) for item in report.removed]


# -- limits ---------------------------------------------------------------------------------------------------


def test_by_count_the_oldest_segments_go_while_the_rest_holds_enough(open_quiet):
    log = open_quiet(segments=TEN, retention={**NEVER, "records_max": 25})
    topic = fill(log, "orders", 5)
    report = log.retain()
    assert numbers(report) == [("orders", 0, 0), ("orders", 0, 1)]
    assert {item.why for item in report.removed} == {"count"}
    assert offsets(topic) == list(range(20, 50))


def test_by_bytes_the_oldest_segments_go_while_the_rest_holds_enough(open_quiet):
    log = open_quiet(segments=TEN, retention=NEVER)
    topic = fill(log, "orders", 5)
    sizes = [path.stat().st_size for path in files(log, "orders")]
    log.set_retention("orders", bytes_max=sum(sizes[3:]))
    report = log.retain()
    assert [item.number for item in report.removed] == [0, 1, 2]
    assert {item.why for item in report.removed} == {"bytes"}
    assert [item.bytes for item in report.removed] == sizes[:3]
    assert report.bytes_freed == sum(sizes[:3])
    assert offsets(topic) == list(range(30, 50))


def test_by_age_a_segment_goes_once_its_seal_is_older_than_the_limit(open_quiet):
    clock = ManualClock()
    log = open_quiet(segments=TEN, retention={**NEVER, "age_max_ms": 2 * DAY * 1000}, clock=clock)
    topic = fill(log, "orders", 1)
    clock.advance(DAY)
    fill(log, "orders", 1)
    clock.advance(DAY)
    assert log.retain().removed == ()
    clock.advance(1)
    report = log.retain()
    assert [(item.number, item.why) for item in report.removed] == [(0, "age")]
    assert offsets(topic) == list(range(10, 20))


def test_the_times_that_users_give_do_not_matter_for_age(open_quiet):
    clock = ManualClock()
    log = open_quiet(segments=TEN, retention={**NEVER, "age_max_ms": DAY * 1000}, clock=clock)
    topic = log.topic("orders")
    topic.append(b"from the past", time=1)
    topic.append(b"from the future", time=clock.now_us() + 10**15)
    log.seal()
    assert log.retain().removed == ()
    clock.advance(DAY + 1)
    assert len(log.retain().removed) == 1


def test_a_clock_set_back_removes_nothing_and_harms_nothing(open_quiet):
    clock = ManualClock()
    log = open_quiet(segments=TEN, retention={**NEVER, "age_max_ms": DAY * 1000}, clock=clock)
    topic = fill(log, "orders", 2)
    clock.jump(-365 * DAY)
    fill(log, "orders", 2)
    assert log.retain().removed == ()
    assert offsets(topic) == list(range(40))
    clock.jump(365 * DAY)
    # Those sealed in the wrong year look old, but stand behind two that are not.
    assert log.retain().removed == ()
    clock.advance(DAY + 1)
    assert len(log.retain().removed) == 4


def test_the_newest_sealed_segment_may_go_and_the_tail_never_does(open_quiet):
    clock = ManualClock()
    log = open_quiet(segments=TEN, retention={**NEVER, "age_max_ms": 1000}, clock=clock)
    topic = fill(log, "orders", 2)
    topic.append_batch([b"tail"] * 3)
    clock.advance(DAY)
    assert len(log.retain().removed) == 2
    assert [record.payload for record in topic.read()] == [b"tail"] * 3


def test_limits_hold_for_each_partition_alone(open_quiet):
    log = open_quiet(segments=TEN, retention={**NEVER, "records_max": 10})
    topic = log.topic("orders", partitions=2)
    fill(log, "orders", 4, partition=0)
    fill(log, "orders", 1, partition=1)
    assert numbers(log.retain()) == [("orders", 0, 0), ("orders", 0, 1), ("orders", 0, 2)]
    assert offsets(topic, 1) == list(range(10))


# -- policies -------------------------------------------------------------------------------------------------


def test_without_limits_nothing_ever_goes(open_quiet):
    clock = ManualClock()
    log = open_quiet(segments=TEN, retention=NEVER, clock=clock)
    fill(log, "orders", 5)
    clock.advance(1000 * DAY)
    assert log.retain().removed == ()


def test_a_topics_own_policy_replaces_the_settings(open_quiet):
    log = open_quiet(segments=TEN, retention={**NEVER, "records_max": 10})
    fill(log, "short", 3)
    fill(log, "long", 3)
    log.set_retention("long", records_max=20)
    assert numbers(log.retain()) == [("short", 0, 0), ("short", 0, 1), ("long", 0, 0)]


def test_a_policy_without_limits_keeps_a_topic_whatever_the_settings_say(open_quiet):
    log = open_quiet(segments=TEN, retention={**NEVER, "records_max": 1})
    fill(log, "kept", 3)
    log.set_retention("kept")
    assert log.retain().removed == ()


@pytest.mark.parametrize("keyed", [False, True])
def test_a_policy_outlives_a_restart(open_quiet, keyring, keyed):
    keys = keyring if keyed else None
    with open_quiet(segments=TEN, retention=NEVER, keyring=keys) as log:
        fill(log, "orders", 3)
        log.set_retention("orders", bytes_max=10**9, age_max=timedelta(days=1), records_max=10)
    log = open_quiet(segments=TEN, retention=NEVER, keyring=keys)
    # The chore of the new owner may have come first.
    log.retain()
    assert offsets(log.topic("orders")) == list(range(20, 30))


def test_the_newest_policy_counts(open_quiet):
    log = open_quiet(segments=TEN, retention=NEVER)
    fill(log, "orders", 4)
    log.set_retention("orders", records_max=10)
    log.set_retention("orders", records_max=30)
    assert [item.number for item in log.retain().removed] == [0]


def test_a_policy_for_a_topic_that_is_not_there_is_refused(open_quiet):
    with pytest.raises(NotFound):
        open_quiet().set_retention("nobody", records_max=1)


# -- the log-wide budget --------------------------------------------------------------------------------------


def segment_bytes(log: Log, *topics: str) -> int:
    return sum(path.stat().st_size for topic in topics for path in files(log, topic))


def test_the_budget_takes_the_oldest_segments_of_any_topic(open_quiet):
    clock = ManualClock()
    budget = {**NEVER, "disk_bytes_max": 10**9, "headroom_bytes": 0}
    log = open_quiet(segments=TEN, retention=budget, clock=clock)
    for name in ("b", "a", "b", "a"):
        fill(log, name, 1)
        clock.advance(1)
    assert log.retain().removed == ()
    lower_budget(log, by=1)
    report = log.retain(dry_run=True)
    assert numbers(report) == [("b", 0, 0)]
    assert {item.why for item in report.removed} == {"budget"}
    lower_budget(log, by=report.bytes_freed + 1)
    assert numbers(log.retain()) == [("b", 0, 0), ("a", 0, 0)]


def lower_budget(log: Log, *, by: int) -> None:
    """Let the budget be so many bytes less than what the log takes now."""
    retention = log._maintenance._retention
    assert retention is not None
    used = retention.used_bytes(list(log._journal.partitions.values()))
    retention._settings = msgspec.structs.replace(retention._settings, disk_bytes_max=used - by, headroom_bytes=0)


def test_headroom_is_kept_free_below_the_budget(open_quiet):
    limit = 10**9
    log = open_quiet(segments=TEN, retention={**NEVER, "disk_bytes_max": limit, "headroom_bytes": limit - 1})
    fill(log, "orders", 3)
    report = log.retain()
    # One byte is left for everything: all segments go, and it is said how much is still too much.
    assert len(report.removed) == 3
    assert report.bytes_short > 0
    assert files(log, "orders") == []


def test_the_budget_counts_what_the_limits_take_anyway(open_quiet):
    log = open_quiet(segments=TEN, retention={**NEVER, "disk_bytes_max": 10**9, "headroom_bytes": 0})
    fill(log, "orders", 4)
    log.set_retention("orders", records_max=10)
    lower_budget(log, by=1)
    assert [(item.number, item.why) for item in log.retain().removed] == [(0, "count"), (1, "count"), (2, "count")]


# -- what stays -----------------------------------------------------------------------------------------------


def test_no_mark_moves_back(open_quiet):
    log = open_quiet(segments=TEN, retention={**NEVER, "records_max": 1})
    topic = fill(log, "orders", 5)
    before = topic.watermark(), topic.marks()
    log.retain()
    assert (topic.watermark(), topic.marks()) == before
    log.set_retention("orders", age_max=timedelta(microseconds=1))
    wait_for(lambda: not log.retain().removed and not files(log, "orders"))
    assert (topic.watermark(), topic.marks()) == before
    log.close()
    again = open_quiet(segments=TEN).topic("orders")
    assert (again.watermark(), again.marks()) == before
    assert again.append(b"next").offset == 50


@pytest.mark.parametrize("keyed", [False, True])
def test_rows_and_chain_stay_when_files_go(open_quiet, keyring, keyed):
    keys = keyring if keyed else None
    log = open_quiet(segments=TEN, retention={**NEVER, "records_max": 10}, keyring=keys)
    fill(log, "orders", 4)
    log.retain()
    assert states(log, "orders") == [3, 3, 3, 1]
    fill(log, "orders", 1)
    report = log.reconcile(deep=True)
    assert report.findings == ()
    assert report.segments == 5


def test_files_are_gone_when_retain_returns(open_quiet):
    log = open_quiet(segments=TEN, retention={**NEVER, "records_max": 10})
    fill(log, "orders", 4)
    kept = files(log, "orders")[3:]
    log.retain()
    assert files(log, "orders") == kept


def test_what_went_is_counted(open_quiet):
    log = open_quiet(segments=TEN, retention={**NEVER, "records_max": 10})
    fill(log, "orders", 4)
    report = log.retain()
    stats = log.stats().segments
    assert stats.segments == 1
    assert stats.expired_segments_total == 3
    assert stats.expired_bytes_total == report.bytes_freed


def test_hundreds_of_segments_go_in_one_run(open_quiet):
    log = open_quiet(segments={"rows_max": 1, "seal_on_close": False}, retention={**NEVER, "records_max": 1})
    topic = log.topic("orders")
    for _ in range(230):
        topic.submit(b"x")
        topic.append(b"x", timeout=30)
    log.seal()
    log.retain()
    assert len(files(log, "orders")) == 1
    assert log.reconcile().findings == ()


# -- dry run --------------------------------------------------------------------------------------------------


def test_a_dry_run_says_exactly_what_then_goes(open_quiet):
    log = open_quiet(segments=TEN, retention={**NEVER, "disk_bytes_max": 10**9, "headroom_bytes": 0})
    for name in ("a", "b"):
        fill(log, name, 4)
    log.set_retention("a", records_max=20)
    lower_budget(log, by=segment_bytes(log, "a") // 2 + 100)
    before = files(log, "a"), files(log, "b"), states(log, "a"), states(log, "b")
    said = log.retain(dry_run=True)
    assert said.dry_run
    assert {item.why for item in said.removed} == {"count", "budget"}
    assert len(set(numbers(said))) == len(said.removed), "what the limits take is not taken again for the budget"
    assert (files(log, "a"), files(log, "b"), states(log, "a"), states(log, "b")) == before
    done = log.retain()
    assert not done.dry_run
    assert (done.removed, done.bytes_freed, done.bytes_short) == (said.removed, said.bytes_freed, said.bytes_short)


def test_a_handle_that_only_looks_cannot_retain(open_quiet):
    open_quiet(segments=TEN)
    with pytest.raises(Invalid, match="reading only"):
        open_quiet(read_only=True).retain()


# -- by itself ------------------------------------------------------------------------------------------------


def test_retention_runs_by_itself(open_log):
    log = open_log(segments=TEN, retention={"interval_ms": 5, "records_max": 10})
    fill(log, "orders", 4)
    wait_for(lambda: len(files(log, "orders")) == 1)


def test_retention_runs_after_sealing_without_waiting_for_its_interval(open_log):
    log = open_log(segments=TEN, retention={**NEVER, "records_max": 10})
    fill(log, "orders", 4)
    wait_for(lambda: len(files(log, "orders")) == 1)


def test_a_failing_retention_is_reported_and_tried_again(open_log, monkeypatch):
    log = open_log(segments=TEN, retention={"interval_ms": 5})
    topic = fill(log, "orders", 4)
    perform = log._journal.perform

    def fail(*operations: Control) -> None:
        if any(isinstance(operation, Expire) for operation in operations):
            raise Unavailable("the disk is full", hint="free space")
        perform(*operations)

    monkeypatch.setattr(log._journal, "perform", fail)
    log.set_retention("orders", records_max=30)
    wait_for(lambda: log.stats().segments.last_error == "the disk is full")
    assert topic.append(b"next").offset == 40
    monkeypatch.undo()
    wait_for(lambda: states(log, "orders") == [3, 1, 1, 1])


# -- reading --------------------------------------------------------------------------------------------------


def test_reading_after_expiry_begins_with_the_first_that_is_left(open_quiet):
    log = open_quiet(segments=TEN, retention={**NEVER, "records_max": 15})
    topic = fill(log, "orders", 5)
    log.retain()
    assert offsets(topic) == list(range(30, 50))
    assert [record.offset for record in topic.read(reverse=True)] == list(range(49, 29, -1))
    assert [record.offset for record in topic.read(-50)] == list(range(30, 50))


def test_asking_for_what_has_expired_says_where_to_go_on(open_quiet):
    log = open_quiet(segments=TEN, retention={**NEVER, "records_max": 15})
    topic = fill(log, "orders", 5)
    position = topic.read(limit=5)
    assert len(list(position)) == 5
    log.retain()
    for start in (0, 29, position.position):
        with pytest.raises(NotFound) as caught:
            list(topic.read(start))
        assert "start=30" in caught.value.hint


def test_readers_beside_retention_see_a_suffix_or_an_error(open_log):
    """Each read gives a dense run up to its end, or says NotFound; never a hole, never Corrupt."""
    log = open_log(segments=TEN, retention={"interval_ms": 1, "records_max": 30})
    topic = log.topic("orders")
    stop = threading.Event()
    problems: list[object] = []
    reads = [0, 0]

    def read(lane: int) -> None:
        while not stop.is_set():
            end = topic.marks()[0].durable
            try:
                got = [record.offset for record in topic.read(end=end)]
            except NotFound:
                continue
            except Exception as error:
                problems.append(error)
                return
            if got and got != list(range(got[0], end)):
                problems.append((got[0], len(got), end))
            reads[lane] += 1

    readers = [threading.Thread(target=read, args=(lane,)) for lane in (0, 1)]
    for reader in readers:
        reader.start()
    for _ in range(60):
        topic.append_batch([b"x"] * ROWS, timeout=30)
    log.seal()
    wait_for(lambda: log.stats().segments.expired_segments_total >= 50)
    stop.set()
    for reader in readers:
        reader.join()
    assert problems == []
    assert min(reads) > 0


def test_a_reading_under_way_learns_when_the_rest_of_it_expires(open_quiet):
    log = open_quiet(segments=TEN, retention=NEVER)
    topic = fill(log, "orders", 5)
    reading = topic.read()
    assert next(reading).offset == 0
    log.set_retention("orders", records_max=10)
    log.retain()
    with pytest.raises(NotFound) as caught:
        list(reading)
    assert "start=40" in caught.value.hint


# -- a full disk ----------------------------------------------------------------------------------------------


def full_once(log: Log, monkeypatch: pytest.MonkeyPatch, during: Callable[[], None] = lambda: None) -> list[Path]:
    """Refuse the first Expire, as a full disk does; collects the emptied files that are there at the second."""
    perform = log._journal.perform
    seen: list[Path] = []
    calls = 0

    def refuse_once(*operations: Control) -> None:
        nonlocal calls
        if isinstance(operations[0], Expire):
            calls += 1
            if calls == 1:
                raise Unavailable("the disk is full", hint="free space")
            if calls == 2:
                seen.extend(sorted(log.path.rglob("*" + layout.EXPIRED)))
                during()
        perform(*operations)

    monkeypatch.setattr(log._journal, "perform", refuse_once)
    return seen


def full_log(open_quiet: Callable[..., Log], keys: Keyring | None = None) -> tuple[Log, Topic]:
    log = open_quiet(segments=TEN, retention=NEVER, keyring=keys)
    topic = fill(log, "orders", 5)
    return log, topic


@pytest.mark.parametrize("keyed", [False, True])
def test_on_a_full_disk_the_oldest_file_makes_room_for_the_commit(open_quiet, keyring, monkeypatch, keyed):
    log, topic = full_log(open_quiet, keyring if keyed else None)
    oldest = files(log, "orders")[0]
    sizes: list[int] = []
    seen = full_once(log, monkeypatch, lambda: sizes.extend(path.stat().st_size for path in seen))
    log.set_retention("orders", records_max=20)
    log.retain()
    assert seen == [oldest.with_name(oldest.name + layout.EXPIRED)]
    assert sizes == [0]
    assert offsets(topic) == list(range(30, 50))
    assert states(log, "orders") == [3, 3, 3, 1, 1]
    assert log.reconcile(deep=True).findings == ()
    assert list(log.path.rglob("*" + layout.EXPIRED)) == []


def test_an_emptied_file_whose_commit_has_not_come_is_no_damage(open_quiet, monkeypatch):
    log, topic = full_log(open_quiet)
    reports = []
    caught: list[BaseException] = []

    def look() -> None:
        reports.append(log.reconcile(deep=True))
        try:
            list(topic.read())
        except NotFound as error:
            caught.append(error)

    full_once(log, monkeypatch, look)
    log.set_retention("orders", records_max=20)
    log.retain()
    assert reports[0].findings == ()
    assert reports[0].in_flight > 0
    assert len(caught) == 1


def test_a_repair_leaves_an_emptied_file_where_it_is(open_quiet, monkeypatch):
    log, _ = full_log(open_quiet)
    reports = []
    full_once(log, monkeypatch, lambda: reports.append(log.reconcile(fix=True)))
    log.set_retention("orders", records_max=20)
    log.retain()
    assert (reports[0].mode, reports[0].repairs, reports[0].findings) == ("fix", (), ())


def test_a_commit_that_comes_after_its_time_out_is_finished_all_the_same(open_quiet, monkeypatch):
    """`perform` gives up waiting for a stalled disk, and then the commit comes."""
    log, topic = full_log(open_quiet)
    perform = log._journal.perform
    calls = 0

    def late(*operations: Control) -> None:
        nonlocal calls
        perform(*operations)
        if isinstance(operations[0], Expire):
            calls += 1
            if calls == 1:
                raise Unavailable("the journal did not answer", hint="the disk may be stalled")

    monkeypatch.setattr(log._journal, "perform", late)
    log.set_retention("orders", records_max=20)
    log.retain()
    log.retain()
    assert states(log, "orders") == [3, 3, 3, 1, 1]
    assert len(files(log, "orders")) == 2
    assert offsets(topic) == list(range(30, 50))


def test_an_emptied_file_of_a_dead_owner_is_expired_by_the_next(open_quiet):
    with open_quiet(segments=TEN, retention=NEVER) as log:
        fill(log, "orders", 4)
        oldest = files(log, "orders")[0]
    oldest.rename(oldest.with_name(oldest.name + layout.EXPIRED)).write_bytes(b"")
    log = open_quiet(segments=TEN, retention=NEVER)
    assert states(log, "orders") == [3, 1, 1, 1]
    assert offsets(log.topic("orders")) == list(range(10, 40))
    assert log.reconcile(deep=True).findings == ()


def test_a_disk_that_is_really_full_is_made_room_on(tmp_path):
    """ENOSPC at the first write of the Expire commit, by the disk itself."""
    root = tmp_path / "full"
    settings = Settings.from_mapping({"segments": dict(TEN), "retention": NEVER})
    with FaultyDisk(root) as faulty, holdfast.open(root, settings=settings) as log:
        topic = fill(log, "orders", 4)
        log.set_retention("orders", records_max=20)
        faulty.arm(Fault(1, "enospc", op="write"))
        log.retain()
        assert faulty.fired == 1
        assert offsets(topic) == list(range(20, 40))
        assert log.reconcile(deep=True).findings == ()
