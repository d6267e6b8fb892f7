"""Every I/O step of sealing, expiring and repairing fails, once or for good: nothing acknowledged is lost.

A segment that cannot be written stays in the journal's tail and is written anew later; only the database's own I/O may
poison a log. After each fault the log goes on in the same process if it can, is opened again, and must then satisfy
the same check as after a power cut, also in the poorest state that the disk may be in by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from threading import Lock

import pytest

from holdfast import Closed, HoldfastError, Log, OutcomeUnknown, Unavailable
from holdfast.testing import Fault, FaultyDisk
from holdfast.testing.fault import Kind
from tests.crash.segment_cuts import life, look
from tests.crash.segment_workload import (
    KEPT,
    RAW,
    Notes,
    check,
    expire,
    fill,
    open_log,
    plant,
    published,
    read_all,
    remember,
    require_clean,
    require_records,
)
from tests.harness.faults import KINDS, Failed, attempt, fail_at, struck

JOURNAL = ("log/durable.db", "log/groups/")

pytestmark = pytest.mark.crash


def prepare(directory: Path, notes: Notes) -> None:
    """Two segments in each partition and a tail, so that there is something to seal and something to expire."""
    with notes.open(directory) as log:
        for turn in ("a", "b"):
            fill(log, notes, turn)
            log.seal()
        fill(log, notes, "c")
        remember(directory, notes)
        plant(log, notes)


def act(log: Log, notes: Notes) -> list[HoldfastError | None]:
    """Everything that touches segments, going on whatever fails, as a service would."""
    return [
        attempt(lambda: log.seal()),
        attempt(lambda: fill(log, notes, "d")),
        attempt(lambda: expire(log, notes)),
        attempt(lambda: log.seal()),
        attempt(lambda: log.retain()),
        attempt(lambda: log.reconcile(fix=True)),
    ]


def run(directory: Path, notes: Notes, disk: FaultyDisk) -> None:
    """Open, act, and once the disk is whole again go on as far as possible; then close."""
    opened: list[Log] = []
    refused = attempt(lambda: opened.append(notes.open(directory)))
    if refused is None:
        log = opened[0]
        act(log, notes)
        disk.disarm()
        go_on(log, disk)
        attempt(log.close)
    disk.disarm()


def go_on(log: Log, disk: FaultyDisk) -> None:
    """With the disk whole again the same handle seals everything, unless the database had failed under it."""
    error = attempt(log.seal)
    if error is None:
        return
    assert isinstance(error, Closed), f"not sealed although the disk is whole: {error!r}"
    assert error.reason == "poisoned"
    blamed = [step for step in disk.failed if step.name.startswith(JOURNAL)]
    assert blamed, f"poisoned without the journal having failed: {disk.failed}"


def fail(tmp_path: Path, kind: Kind, steps: Iterable[int], *, keyed: bool, sticky: bool) -> Iterator[Failed[Notes]]:
    """Run it again and again, with these steps failing, until there is no such step any more."""
    past = Notes(keyed=keyed)
    prepare(tmp_path / "template" / "log", past)

    def again(root: Path, disk: FaultyDisk) -> Notes:
        notes = past.copy()
        run(root / "log", notes, disk)
        return notes

    return fail_at(tmp_path, kind, steps, again, template=tmp_path / "template", sticky=sticky)


def own_steps(tmp_path: Path, kind: Kind, *, keyed: bool) -> list[int]:
    """Which of the steps that this kind of fault may strike are holdfast's own; the others are the database's."""
    notes = Notes(keyed=keyed)
    prepare(tmp_path / "whole" / "log", notes)
    with FaultyDisk(tmp_path / "whole", record=False) as disk:
        run(tmp_path / "whole" / "log", notes, disk)
    return [
        nth
        for nth, step in enumerate(struck(disk, kind), 1)
        if not step.name.startswith(("log/durable.db", "log/groups/"))
    ]


def examine(failed: Failed[Notes]) -> None:
    """Nothing is lost: not as it is, and not in the poorest state if the power is cut after all that."""
    notes = failed.outcome
    try:
        require_new_files_after_failed_syncs(failed.disk)
        promise = notes.promise()._replace(marks={})
        check(failed.poorest() / "log", promise, notes, go_on=False)
        check(failed.root / "log", promise, notes)
    except Exception as error:
        raise AssertionError(f"step {failed.nth}, failed: {failed.disk.failed[:3]}: {error!r}") from error


def require_new_files_after_failed_syncs(disk: FaultyDisk) -> None:
    """A segment file whose fsync failed is never synced again and never gets a name: it is removed."""
    for failed in disk.failed:
        if failed.op == "sync" and failed.name.endswith(".parquet.tmp"):
            later = [step for step in disk.log[failed.number :] if step.name == failed.name]
            assert not later or later[0].op == "delete", f"touched after its fsync failed: {later[0]}"


@pytest.mark.parametrize(
    ("kind", "keyed", "sticky", "stride"),
    [
        ("eio", False, False, 9),
        ("eio", True, True, 23),
        ("enospc", True, False, 11),
        ("enospc", False, True, 23),
        ("short_write", True, False, 3),
        ("fsync", False, False, 5),
        ("fsync", True, False, 5),
    ],
)
def test_steps_may_fail(tmp_path, kind, keyed, sticky, stride, some, is_sampled):
    """A fault at some of the steps, once or for good: typed errors, sealing goes on, nothing is lost."""
    steps = own_steps(tmp_path, kind, keyed=keyed)
    chosen = some(steps, 4, full=len(steps) // stride)
    looked = [examine(failed) for failed in fail(tmp_path, kind, chosen, keyed=keyed, sticky=sticky)]
    assert len(looked) > (0 if is_sampled else 2)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("sticky", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "encrypted"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_step_may_fail(tmp_path, kind, keyed, sticky):
    """Every step, failing once or for good."""
    looked = [examine(failed) for failed in fail(tmp_path, kind, count(1), keyed=keyed, sticky=sticky)]
    print(f"{kind}, {'encrypted' if keyed else 'plain'}, {'for good' if sticky else 'once'}: {len(looked)} steps")


# -- one by one -------------------------------------------------------------------------------------------


@pytest.fixture
def log_on_a_faulty_disk(tmp_path):
    """An open log with two segments in each partition and a tail, on a disk that fails on request."""
    notes = Notes(keyed=True)
    with FaultyDisk(tmp_path / "disk") as disk, notes.open(tmp_path / "disk" / "log") as log:
        for turn in ("a", "b"):
            fill(log, notes, turn)
            log.seal()
        fill(log, notes, "c")
        yield log, notes, disk
        disk.disarm()


def test_a_failed_seal_is_reported(log_on_a_faulty_disk):
    """The caller gets a typed error, the records stay readable, and asking again succeeds."""
    log, _, disk = log_on_a_faulty_disk
    before = read_all(log)
    disk.arm(Fault(1, "enospc", op="rename"))
    with pytest.raises(Unavailable, match="cannot write a segment"):
        log.seal(RAW)
    assert disk.fired
    assert read_all(log) == before
    assert log.stats().segments.seal_failures_total == 1
    log.seal(RAW)
    assert read_all(log) == before
    require_clean(log)


def test_sealing_goes_on_by_itself(tmp_path):
    """A ripe tail whose seal failed is sealed by the next attempt, which comes without being asked for."""
    notes = Notes(keyed=True)
    with FaultyDisk(tmp_path / "disk") as disk, notes.open(tmp_path / "disk" / "log", rows_max=KEPT) as log:
        disk.arm(Fault(1, "eio", op="rename"))
        fill(log, notes, "a")
        for partition in (0, 1):
            log.topic(RAW).wait_sealed(KEPT, timeout=30, partition=partition)
        assert disk.fired
        assert log.stats().segments.seal_failures_total == 1
        require_clean(log)


def fail_at_last(disk: FaultyDisk, fault: Fault, *steps: tuple[str, str]) -> None:
    """Wait for these steps (operation, end of the name), one after the other; the fault strikes at the last of them."""
    awaited = list(steps)

    def watch(number: int, op: str, name: str) -> None:
        if awaited and op == awaited[0][0] and name.endswith(awaited[0][1]):
            awaited.pop(0)
            if not awaited:
                disk.arm(fault)

    disk.on_step = watch


def test_a_file_whose_fsync_failed_is_not_used_again(log_on_a_faulty_disk):
    """After the fsync of a segment failed the file is removed, and another one is written and synced."""
    log, _, disk = log_on_a_faulty_disk
    fail_at_last(disk, Fault(1, "fsync"), ("sync", ".parquet.tmp"))
    with pytest.raises(Unavailable, match="cannot write a segment"):
        log.seal(RAW)
    assert [step.name.endswith(".parquet.tmp") for step in disk.failed] == [True]
    disk.disarm()
    log.seal()
    require_new_files_after_failed_syncs(disk)
    require_clean(log)


@pytest.mark.parametrize("sticky", [False, True], ids=["once", "and it cannot be removed"])
def test_a_file_whose_name_was_not_synced_is_given_up(log_on_a_faulty_disk, sticky):
    """The rename is done, its sync fails: the finished file goes before another one takes its number."""
    log, _, disk = log_on_a_faulty_disk
    fail_at_last(disk, Fault(1, "eio", sticky=sticky), ("rename", ".parquet.tmp"), ("sync", "/segments"))
    with pytest.raises(Unavailable, match="cannot write a segment"):
        log.seal(RAW)
    assert disk.failed[0].op == "sync"
    disk.disarm()
    log.seal()
    require_clean(log)


def test_a_folder_whose_name_was_not_synced_is_synced_later(tmp_path):
    """The sync of a new folder's name fails: later seals must not rely on it being durable, since it is not."""
    notes = Notes()
    with FaultyDisk(tmp_path / "disk") as disk:
        with notes.open(tmp_path / "disk" / "log") as log:
            fill(log, notes, "a")
            fail_at_last(disk, Fault(1, "fsync"), ("mkdir", "topics/raw"), ("sync", "segments/topics"))
            with pytest.raises(Unavailable, match="cannot write a segment"):
                log.seal(RAW)
            disk.disarm()
            log.seal(RAW)
        poorest = next(iter(disk.snapshot().states(limit=1)))
        check(poorest.materialise(tmp_path / "cut") / "log", notes.promise(), notes)


def test_a_removal_that_was_not_synced_is_synced_later(tmp_path):
    """Retention unlinks, the sync fails: the segment is not called expired before its file is gone for good."""
    notes = Notes()
    prepare_plain(tmp_path / "disk" / "log", notes)
    with FaultyDisk(tmp_path / "disk") as disk:
        with notes.open(tmp_path / "disk" / "log") as log:
            fail_at_last(disk, Fault(1, "fsync"), ("delete", ".parquet"), ("sync", "/segments"))
            attempt(lambda: expire(log, notes))  # or the roller's own retention met it
            assert [step.op for step in disk.failed] == ["sync"]
            disk.disarm()
            log.retain()
        poorest = next(iter(disk.snapshot().states(limit=1)))
        promise = notes.promise()
        copy = poorest.materialise(tmp_path / "cut") / "log"
        with open_log(copy, None) as log:
            require_clean(log)
        check(copy, promise, notes)


def test_a_log_in_doubt_repairs_nothing(tmp_path):
    """The commit of a seal may or may not be durable: its file is nobody's to move until the log is opened again."""
    notes = Notes(keyed=True)
    with FaultyDisk(tmp_path / "disk") as disk:
        log = notes.open(tmp_path / "disk" / "log")
        fill(log, notes, "a")
        fail_at_last(disk, Fault(1, "fsync"), ("rename", ".parquet.tmp"), ("sync", "durable.db-wal"))
        with pytest.raises((OutcomeUnknown, Closed)):
            log.seal(RAW)
        disk.disarm()
        with pytest.raises(Closed):
            log.reconcile(fix=True)
        with pytest.raises(Closed):
            log.close()
        assert not (log.path / "quarantine").exists()
        check(log.path, notes.promise(), notes)


def test_a_read_that_fails_once_does_not_end_sealing(tmp_path):
    """The roller cannot read the database when it begins: it goes on when it can."""
    notes = Notes()
    prepare_plain(tmp_path / "disk" / "log", notes)
    with notes.open(tmp_path / "disk" / "log") as log:
        fill(log, notes, "c")
    for nth in range(1, 40):
        with FaultyDisk(tmp_path / "disk", fail=Fault(nth, "eio", op="read"), record=False) as disk:
            opened: list[Log] = []
            if attempt(lambda opened=opened: opened.append(notes.open(tmp_path / "disk" / "log"))) is None:
                error = attempt(opened[0].seal)
                disk.disarm()
                assert not isinstance(error, Closed) or error.reason == "poisoned", f"the roller is gone, nth={nth}"
                attempt(opened[0].close)
            if not disk.fired:
                break


# -- a full disk ------------------------------------------------------------------------------------------


def retention_at_rest(log: Log) -> Lock:
    """While this is held the roller does not apply retention by itself: it must not come before the fault."""
    return log._maintenance._retention._lock


def relieve(disk: FaultyDisk) -> None:
    """From now on nothing can be written, until a file that was given up is emptied."""
    recorder = disk.on_step

    def room_at_last(number: int, op: str, name: str) -> None:
        if op == "sync" and name.endswith(".expired"):
            disk.disarm()
        if recorder is not None:
            recorder(number, op, name)

    disk.on_step = room_at_last
    disk.arm(Fault(1, "enospc", op="write", sticky=True))


def test_retention_frees_room_on_a_full_disk(log_on_a_faulty_disk):
    """Not even the commit fits: the oldest file is emptied first, then all that was to go goes."""
    log, notes, disk = log_on_a_faulty_disk
    with retention_at_rest(log):
        notes.retained = True
        log.set_retention(RAW, records_max=KEPT)
        relieve(disk)
    log.retain()
    assert disk.fired
    assert any(step.name.endswith(".expired") and step.op == "truncate" for step in disk.log)
    assert [published(log)[RAW, partition].first for partition in (0, 1)] == [5, 5]
    assert not list(log.path.rglob("*.expired"))
    require_records(log, notes.promise(), notes)
    require_clean(log)


@pytest.mark.parametrize("again", ["in the same process", "after opening"])
def test_a_disk_that_stays_full_is_reported_and_finished_later(tmp_path, again):
    """No room even then: a typed error, everything that was to stay is there, and it is finished when there is room."""
    notes = Notes()
    prepare_plain(tmp_path / "disk" / "log", notes)
    with FaultyDisk(tmp_path / "disk") as disk:
        with notes.open(tmp_path / "disk" / "log") as log:
            with retention_at_rest(log):
                notes.retained = True
                log.set_retention(RAW, records_max=KEPT)
                disk.arm(Fault(1, "enospc", op="write", sticky=True))
            with pytest.raises(Unavailable, match="full"):
                log.retain()
            promise = notes.promise()
            disk.disarm()
            if again == "in the same process":
                log.retain()
                require_records(log, promise, notes)
                require_clean(log)
        check(tmp_path / "disk" / "log", promise, notes)


def prepare_plain(directory: Path, notes: Notes) -> None:
    with notes.open(directory) as log:
        for turn in ("a", "b"):
            fill(log, notes, turn)
            log.seal()


def expire_on_a_full_disk(directory: Path, notes: Notes) -> None:
    """Retention that has to empty a file before it can commit."""
    with notes.open(directory) as log:
        assert notes.disk is not None
        with retention_at_rest(log):
            notes.retained = True
            log.set_retention(RAW, records_max=KEPT)
            relieve(notes.disk)
        log.retain()


def test_a_cut_while_room_is_made_on_a_full_disk_loses_nothing(tmp_path, some):
    """The power is cut at every step of that, too."""
    notes = Notes(keyed=True)
    prepare_plain(tmp_path / "disk" / "log", notes)
    cuts = life(tmp_path / "disk", notes, expire_on_a_full_disk)
    begun = next(turn for turn, cut in enumerate(cuts) if cut.name.endswith(".expired"))
    around = cuts[begun - 8 : begun + 60]
    assert any(cut.op == "truncate" and cut.name.endswith(".expired") for cut in around)
    assert len(around) > 50
    assert look(some(around, 20), notes, tmp_path / "states") >= 20


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "encrypted"])
def test_every_state_after_a_cut_on_a_full_disk(tmp_path, keyed):
    """The same at every step, in up to sixty states each."""
    notes = Notes(keyed=keyed)
    prepare_plain(tmp_path / "disk" / "log", notes)
    cuts = life(tmp_path / "disk", notes, expire_on_a_full_disk)
    looked = look(cuts, notes, tmp_path / "states", 60)
    print(f"{len(cuts)} cuts, {looked} states, all whole")
