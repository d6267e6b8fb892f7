"""Every I/O step fails once, one after the other: typed errors, no false acknowledgement, nothing lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

import holdfast
from holdfast import Closed, HoldfastError, OutcomeUnknown, Unavailable
from holdfast.journal.sqlite.migrations import migrate
from holdfast.journal.sqlite.sqlite_backend import SqliteBackend
from holdfast.testing import Fault, FaultyDisk
from holdfast.testing.fault import Kind
from tests.crash.workload import Notes, check, live, open_log, work

pytestmark = pytest.mark.crash

KINDS: list[Kind] = ["eio", "enospc", "short_write", "fsync"]


def fresh(root: Path, notes: Notes) -> None:
    """A log that does not exist yet."""


def prepared(root: Path, notes: Notes) -> None:
    """A log with a life behind it."""
    live(root / "log", notes, rounds=1)


def old_version(root: Path, notes: Notes) -> None:
    """A database of schema version 1, before it was ever opened by this version."""
    (root / "log").mkdir(parents=True)
    (root / "log" / "durable.db").touch()
    backend = SqliteBackend(root / "log" / "durable.db")
    migrate(backend, upto=1)
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


def deepcopy_notes(notes: Notes) -> Notes:
    twin = Notes()
    twin.acked, twin.known, twin.keyring = dict(notes.acked), set(notes.known), notes.keyring
    return twin


def fail_each_step(
    tmp_path: Path, prepare: Callable[..., None], act: Callable[..., None], kind: Kind, *, sticky: bool, stride: int
) -> Iterator[tuple[int, Path, Notes, FaultyDisk]]:
    """Run the scenario again and again, with step 1, 2, 3 … failing, until there is no such step any more."""
    template, past = tmp_path / f"{kind}-template", Notes()
    template.mkdir()
    prepare(template, past)
    for nth in count(1, stride):
        root = shutil.copytree(template, tmp_path / f"{kind}-{nth}")
        notes = deepcopy_notes(past)
        with FaultyDisk(root, fail=Fault(nth, kind, sticky=sticky)) as disk:
            try:
                act(root, notes)
            except HoldfastError as error:
                assert error.hint, f"an error without a hint: {error!r}"
            disk.disarm()
            yield nth, root, notes, disk
        shutil.rmtree(root)
        if not disk.fired:
            return


def examine(root: Path, notes: Notes, disk: FaultyDisk, where: str) -> None:
    """After the fault: neither the files as they are nor the poorest state after a cut has lost anything."""
    try:
        poorest = next(iter(disk.snapshot().states(limit=1)))
        copy = poorest.materialise(root.with_name(root.name + "-cut"))
        if notes.acked or (copy / "log" / "durable.db").exists():
            check(copy / "log", notes.acked, notes)
        shutil.rmtree(copy)
        check(root / "log", notes.acked, notes)
    except Exception as error:
        raise AssertionError(f"{where}: {error!r}") from error


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", ["create", "open", "migrate"])
def test_every_step_of_opening_may_fail(tmp_path, scenario, kind):
    """A fault at any step of creating, opening or upgrading is a typed error, and the next open is whole."""
    prepare, act = SCENARIOS[scenario]
    steps = 0
    for nth, root, notes, disk in fail_each_step(tmp_path, prepare, act, kind, sticky=False, stride=1):
        examine(root, notes, disk, f"{scenario}, {kind} at step {nth}")
        steps = nth
    assert steps > 2


@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_appending_may_fail(tmp_path, kind):
    """A fault at any (here: every third) step of appending never makes an acknowledgement untrue."""
    steps = 0
    for nth, root, notes, disk in fail_each_step(tmp_path, *SCENARIOS["append"], kind, sticky=False, stride=3):
        examine(root, notes, disk, f"append, {kind} at step {nth}")
        steps = nth
    assert steps > 10


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("sticky", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", list(SCENARIOS))
def test_every_step_of_everything_may_fail(tmp_path, scenario, kind, sticky):
    """Every step of every scenario, failing once or for good."""
    steps = 0
    for nth, root, notes, disk in fail_each_step(tmp_path, *SCENARIOS[scenario], kind, sticky=sticky, stride=1):
        examine(root, notes, disk, f"{scenario}, {kind} at step {nth}")
        steps = nth
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
