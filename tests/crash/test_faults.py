"""Every I/O step fails once, one after the other: typed errors, no false acknowledgement, nothing lost."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from pathlib import Path

import pytest

import holdfast
from holdfast import Closed, OutcomeUnknown, Unavailable
from holdfast.journal.sqlite import migrations
from holdfast.journal.sqlite.sqlite_backend import SqliteBackend
from holdfast.testing import Fault, FaultyDisk
from holdfast.testing.fault import Kind
from tests.crash.workload import Notes, check, live, open_log, work
from tests.harness.faults import KINDS, attempt, fail_at, struck

pytestmark = pytest.mark.crash


def fresh(root: Path, notes: Notes) -> None:
    """A log that does not exist yet."""


def prepared(root: Path, notes: Notes) -> None:
    """A log with a life behind it."""
    live(root / "log", notes, rounds=1)


FIRST = migrations.migrations()
LATER = [*FIRST, (len(FIRST) + 1, "CREATE TABLE later(id INTEGER PRIMARY KEY); INSERT INTO later VALUES (1)")]
"""The schema as it is, and as it may be one day."""


def old_version(root: Path, notes: Notes) -> None:
    """A database of today's schema, before it was ever opened by a version that knows a later one."""
    (root / "log").mkdir(parents=True)
    (root / "log" / "durable.db").touch()
    backend = SqliteBackend(root / "log" / "durable.db")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(migrations, "migrations", lambda: FIRST)
        migrations.migrate(backend)
    backend.close()


def open_and_close(root: Path, notes: Notes) -> None:
    open_log(root / "log", notes).close()


def open_and_work(root: Path, notes: Notes) -> None:
    with open_log(root / "log", notes) as log:
        work(log, notes, turn=1)


SCENARIOS = {
    "create": (fresh, open_and_close),
    "open": (prepared, open_and_close),
    "migrate": (old_version, open_and_close),
    "append": (prepared, open_and_work),
}


def steps_of(tmp_path: Path, scenario: str, kind: Kind) -> range:
    """The steps of a scenario that may fail in this way."""
    prepare, act = SCENARIOS[scenario]
    root, notes = tmp_path / "whole", Notes()
    root.mkdir()
    prepare(root, notes)
    with FaultyDisk(root, record=False) as disk:
        act(root, notes)
    return range(1, len(struck(disk, kind)) + 1)


def fail(tmp_path: Path, scenario: str, kind: Kind, steps: Iterable[int], *, sticky: bool = False) -> int:
    """Run a scenario with each of these steps failing: neither the files as they are nor the poorest state after a cut
    has lost anything. Returns how many did fail.
    """
    prepare, act = SCENARIOS[scenario]
    template, past = tmp_path / "template", Notes()
    template.mkdir()
    prepare(template, past)

    def again(root: Path, disk: FaultyDisk) -> Notes:
        notes = past.copy()
        attempt(lambda: act(root, notes))
        return notes

    looked = 0
    for failed in fail_at(tmp_path, kind, steps, again, template=template, sticky=sticky):
        notes, looked = failed.outcome, looked + 1
        try:
            copy = failed.poorest()
            if notes.acked or (copy / "log" / "durable.db").exists():
                check(copy / "log", notes.acked, notes)
            check(failed.root / "log", notes.acked, notes)
        except Exception as error:
            raise AssertionError(f"{scenario}, {kind} at step {failed.nth}: {error!r}") from error
    return looked


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", ["create", "open", "migrate"])
def test_every_step_of_opening_may_fail(tmp_path, scenario, kind, some, monkeypatch):
    """A fault at any step of creating, opening or upgrading is a typed error, and the next open is whole."""
    if scenario == "migrate":
        monkeypatch.setattr(migrations, "migrations", lambda: LATER)
    assert fail(tmp_path, scenario, kind, some(steps_of(tmp_path, scenario, kind), 8)) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_appending_may_fail(tmp_path, kind, some):
    """A fault at any (here: every third) step of appending never makes an acknowledgement untrue."""
    assert fail(tmp_path, "append", kind, some(steps_of(tmp_path, "append", kind)[::3], 8)) > 3


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("sticky", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", list(SCENARIOS))
def test_every_step_of_everything_may_fail(tmp_path, scenario, kind, sticky):
    """Every step of every scenario, failing once or for good."""
    steps = fail(tmp_path, scenario, kind, count(1), sticky=sticky)
    print(f"{scenario}, {kind}, {'for good' if sticky else 'once'}: {steps} steps")


def test_a_failed_fsync_is_never_tried_again(tmp_path):
    """After the n-th fsync failed: no acknowledgement, no further write or sync, Closed for everybody later."""
    root = tmp_path / "disk"
    root.mkdir()
    with FaultyDisk(root) as disk:
        log = holdfast.open(root / "log")
        topic = log.topic("t")
        topic.append(b"safe")
        disk.arm(Fault(1, "fsync"))
        with pytest.raises(OutcomeUnknown):
            topic.append(b"perhaps")
        assert disk.fired
        disk.disarm()
        steps = disk.steps
        for _ in range(3):
            with pytest.raises(Closed) as caught:
                topic.append(b"no")
            assert caught.value.reason == "poisoned"
        with pytest.raises(Closed):
            log.close()
        later = [step for step in disk.log[steps:] if step.op in ("write", "sync")]
        assert later == [], f"wrote after a failed fsync: {later}"
        state = next(iter(disk.snapshot().states(limit=1)))
        copy = state.materialise(tmp_path / "cut")
    with holdfast.open(copy / "log") as log:
        assert [r.payload for r in log.topic("t").read()] == [b"safe"]


def test_a_failed_checkpoint_poisons_too(tmp_path):
    """A sync that fails while the write-ahead log is folded in stops the writer; acknowledged records stay."""
    outcomes = [fail_sync_around_checkpoint(tmp_path / str(nth), nth) for nth in range(1, 6)]
    assert "acknowledged, then poisoned" in outcomes
    assert set(outcomes) <= {"acknowledged, then poisoned", "unknown"}


def fail_sync_around_checkpoint(root: Path, nth: int) -> str:
    (root / "disk").mkdir(parents=True)
    outcome = "unknown"
    settings = holdfast.Settings.from_mapping({"journal": {"checkpoint_bytes": 1}})
    with FaultyDisk(root / "disk") as disk:
        log = holdfast.open(root / "disk" / "log", settings=settings)
        topic = log.topic("t")
        topic.append(b"before")
        log.flush()  # the checkpoint behind it is over
        disk.arm(Fault(nth, "fsync"))
        acked = [b"before"]
        with pytest.raises((Closed, OutcomeUnknown)):
            for i in range(50):
                topic.append(b"%d" % i)
                acked.append(b"%d" % i)
                outcome = "acknowledged, then poisoned"
        with pytest.raises(Closed) as caught:
            topic.append(b"later")
        assert caught.value.reason == "poisoned"
        with pytest.raises(Closed):
            log.close()
        for number, state in enumerate(disk.snapshot().states(limit=12, seed=nth)):
            copy = state.materialise(root / f"cut-{number}")
            with holdfast.open(copy / "log") as again:
                found = [r.payload for r in again.topic("t").read()]
                assert found[: len(acked)] == acked, state.describe()
    return outcome


def test_a_checkpoint_that_finds_no_room_is_made_later(tmp_path):
    """A disk that is full while the write-ahead log is folded in stops nobody: the groups are durable as they are."""
    refusals = [fill_disk_around_checkpoint(tmp_path / str(nth), nth) for nth in range(1, 31)]
    assert 0 in refusals  # there it was the checkpoint that found no room


def fill_disk_around_checkpoint(root: Path, nth: int) -> int:
    (root / "disk").mkdir(parents=True)
    settings = holdfast.Settings.from_mapping({"journal": {"checkpoint_bytes": 1, "group_file_bytes": 0}})
    acked, refusals = [], 0
    with FaultyDisk(root / "disk") as disk, holdfast.open(root / "disk" / "log", settings=settings) as log:
        log.topic("t").append(b"before")
        log.flush()  # the checkpoint behind it is over
        disk.arm(Fault(nth, "enospc", op="write"))
        for i in range(20):
            try:
                log.topic("t").append(b"%d" % i)
                acked.append(b"%d" % i)
            except Unavailable:
                refusals += 1
        assert disk.fired
        assert [record.payload for record in log.topic("t").read()] == [b"before", *acked]
    return refusals


def test_a_full_disk_refuses_and_recovers(tmp_path):
    """ENOSPC refuses the group, nothing is written, and appending goes on once there is room."""
    root = tmp_path / "disk"
    root.mkdir()
    with FaultyDisk(root) as disk:
        with holdfast.open(root / "log") as log:
            topic = log.topic("t")
            topic.append(b"before")
            disk.arm(Fault(1, "enospc", op="write", sticky=True))
            for _ in range(3):
                with pytest.raises(Unavailable, match="full"):
                    topic.append(b"refused")
            assert [r.payload for r in topic.read()] == [b"before"]
            disk.disarm()
            assert topic.append(b"after").offset == 1
            assert log.stats().journal.failed_groups_total == 3
        with holdfast.open(root / "log") as log:
            assert [r.payload for r in log.topic("t").read()] == [b"before", b"after"]
