"""Retention of executions: by status and age, in bounded commits, whole; limits hold."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from uuid import UUID

import pytest

import holdfast
from holdfast import Full, Invalid, Log, Settings, Unavailable
from holdfast.errors import ExecutionHeld
from holdfast.execution.journal import pruning
from holdfast.execution.journal.commit_parts import DATA_PREFIX
from holdfast.execution.steps.claim_check import put_aside
from holdfast.journal.journal import Journal
from holdfast.testing import ManualClock
from tests.executions.by_hand import append, entries, finish, live_of, opened, steps
from tests.executions.test_live_journal import begin, result
from tests.executions.waiting_room import room_of
from tests.failing_commits import refuse_next_commit

pytestmark = pytest.mark.disk


def open_with(path: Path, clock: ManualClock | None = None, **executions: int) -> Log:
    settings = Settings.from_mapping(
        {"executions": executions, "segments": {"seal_on_close": False}, "journal": {"clock_jump_max_ms": 1e13}}
    )  # here all clocks are right
    log = holdfast.open(path / "log", settings=settings, clock=clock or ManualClock(seed=1))
    wait_for_first_look(log)
    return log


def wait_for_first_look(log: Log) -> None:
    """The log looks at once for what it can prune, an hour later again: from now on only the test prunes."""
    looked = threading.Event()
    background = room_of(log).background
    background.every(3_600_000, "looked", looked.set)  # tasks run in one thread, in the order in which they were given
    assert looked.wait(60)
    background.drop("looked")


def ended(log: Log, status: str = "completed") -> UUID:
    execution = opened(log)
    append(log, execution, result("a"))
    finish(log, execution, status)
    return execution


def test_status_and_age_decide(tmp_path):
    """Those that completed are kept for a week, others for a month; what runs is kept forever."""
    clock = ManualClock(seed=1)
    with open_with(tmp_path, clock) as log:
        completed, failed = ended(log), ended(log, "failed")
        canceled, running = ended(log, "canceled"), opened(log)
        clock.advance(6.9 * 86_400)
        assert log.executions.prune() == 0
        clock.advance(0.2 * 86_400)
        assert log.executions.prune(dry_run=True) == 1
        assert log.executions.prune() == 1
        assert completed not in room_of(log).store.rows
        clock.advance(23 * 86_400)
        assert log.executions.prune() == 2
        assert set(room_of(log).store.rows) == {running}
        for gone in (completed, failed, canceled):
            assert entries(log, gone) == []
    with open_with(tmp_path, clock) as log:
        assert set(room_of(log).store.rows) == {running}
        assert [name for name in log._journal.spaces.names() if "execution/" in name] == [f"execution/{running}"]


def test_an_id_that_was_pruned_begins_afresh(tmp_path):
    """6.1-6: an interrupted removal never makes a reused id replay an old result: it goes whole, with its row."""
    clock = ManualClock(seed=1)
    with open_with(tmp_path, clock) as log:
        execution = ended(log)
        clock.advance(8 * 86_400)
        log.executions.prune()
        opened(log, "another kind", execution)
        assert not live_of(log, execution).resumed
        assert steps(log, execution) == []
        append(log, execution, result("new"))
        assert steps(log, execution) == ["new"]


def test_a_removal_that_fails_removes_nothing(tmp_path, monkeypatch):
    """The rows are back, and the journals were never gone."""
    clock = ManualClock(seed=1)
    with open_with(tmp_path, clock) as log:
        execution = ended(log)
        clock.advance(8 * 86_400)
        refuse_next_commit(log, monkeypatch, Unavailable("the disk is full"))
        with pytest.raises(Unavailable):
            log.executions.prune()
        assert execution in room_of(log).store.rows
        assert steps(log, execution) == ["a"]
        assert log.executions.prune() == 1


def test_values_that_are_kept_by_reference_go_with_it(tmp_path):
    """Nothing of an execution is left behind."""
    clock = ManualClock(seed=1)
    with open_with(tmp_path, clock) as log:
        live = begin(log)
        _, operations, size = put_aside(log._journal, live.id, "a", b"large")
        live.store.write(live.journal, result("a"), operations, size=size).result()
        live.finish("completed").result()
        room_of(log).live.release(live)
        assert log._journal.spaces.known(DATA_PREFIX)
        clock.advance(8 * 86_400)
        assert log.executions.prune() == 1
        assert [name for name in log._journal.spaces.names() if str(live.id) in name] == []


def test_commits_of_a_removal_are_bounded(tmp_path, monkeypatch):
    """Batches count executions and entries: 25 executions in batches of 10 are three commits."""
    clock = ManualClock(seed=1)
    monkeypatch.setattr(pruning, "_BATCH", 10)
    with open_with(tmp_path, clock) as log:
        for _ in range(25):
            ended(log)
        clock.advance(8 * 86_400)
        sizes: list[int] = []
        transact = Journal.transact

        def counted(self, operations, *, records, **more):
            sizes.append(records)
            return transact(self, operations, records=records, **more)

        monkeypatch.setattr(Journal, "transact", counted)
        assert log.executions.prune() == 25
        assert sizes == [10, 10, 5]


def test_the_log_prunes_by_itself_piece_by_piece(tmp_path, monkeypatch):
    """Opening the log is enough; other duties of its thread come in between."""
    monkeypatch.setattr(pruning, "_BATCH", 10)
    clock = ManualClock(seed=1)
    with open_with(tmp_path, clock) as log:
        for _ in range(25):
            ended(log)
    clock.advance(8 * 86_400)
    with open_with(tmp_path, clock) as log:
        rows = room_of(log).store.rows
        again = room_of(log).pruning
        for _ in range(1000):
            if not rows:
                break
            again.again()
            log.flush()
        assert not rows


def test_prune_and_reopen_race_and_nothing_is_lost(tmp_path):
    """Twenty times: it is pruned and begins afresh, or is reopened and keeps its past; never half of each."""
    clock = ManualClock(seed=1)
    with open_with(tmp_path, clock) as log:
        for _ in range(20):
            execution = ended(log)
            clock.advance(8 * 86_400)
            pruned: list[int] = []
            thread = threading.Thread(target=lambda pruned=pruned: pruned.append(log.executions.prune()))
            thread.start()
            opened(log, execution=execution)
            resumed = live_of(log, execution).resumed
            thread.join()
            assert pruned == [0 if resumed else 1]
            assert steps(log, execution) == (["a"] if resumed else [])
            assert room_of(log).store.rows[execution].status == "running"
            append(log, execution, result("b"))


def test_executions_max_holds(tmp_path):
    """At the limit the oldest that ended goes; where none has, a new one is refused."""
    with open_with(tmp_path, executions_max=30) as log:
        for _ in range(100):
            ended(log)
            assert len(room_of(log).store.rows) <= 30
        running = [opened(log) for _ in range(30)]
        with pytest.raises(Full, match="none of them has ended") as caught:
            opened(log)
        assert "executions_max" in caught.value.hint
        finish(log, running[0], "completed")
        opened(log)
        assert running[0] not in room_of(log).store.rows
    with open_with(tmp_path, executions_max=30) as log:
        assert len(room_of(log).store.rows) == 30


def test_journal_bytes_max_holds(tmp_path):
    """Bytes of all journals together are bounded; ending an execution always is possible."""
    with open_with(tmp_path, journal_bytes_max=2**20) as log:
        execution = opened(log)

        def fill() -> None:
            for number in range(100):
                append(log, execution, result(str(number), bytes(100_000)))

        with pytest.raises(Unavailable, match="none of them has ended"):
            fill()
        assert len(steps(log, execution)) == 11
        assert 2**20 <= room_of(log).store.rows.bytes_total < 1.2 * 2**20
        with pytest.raises(Full):
            opened(log)
        finish(log, execution, "failed")
        other = opened(log)
        append(log, other, result("a", bytes(500_000)))
        assert execution not in room_of(log).store.rows
        assert room_of(log).store.rows.bytes_total < 2**20


def test_sizes_survive_a_crash_about(tmp_path, open_log):
    """A row is written again when its journal has grown: a log that was not closed knows how large its journals are."""
    log = open_log("log")
    live = begin(log)
    for number in range(40):
        live.write(result(str(number), bytes(100_000))).result()
    copied = tmp_path / "copy"
    shutil.copytree(tmp_path / "log", copied, ignore=shutil.ignore_patterns("SOCKET"))
    with holdfast.open(copied) as crashed:
        assert room_of(crashed).store.rows.bytes_total > 2_900_000


def test_what_somebody_changes_by_hand_is_not_pruned(tmp_path):
    """Held is held."""
    clock = ManualClock(seed=1)
    with open_with(tmp_path, clock) as log:
        execution = ended(log)
        clock.advance(8 * 86_400)
        chosen = room_of(log).pruning.prunable()
        with room_of(log).live.hold(execution):
            assert log.executions.prune() == 0
            assert room_of(log).pruning._remove(chosen) == (0, None)  # nor if it was chosen just before
            with pytest.raises(ExecutionHeld):
                opened(log, execution=execution)
        assert log.executions.prune() == 1


def test_limits_that_cannot_hold_are_refused():
    """An index has a bounded number of rows."""
    with pytest.raises(Invalid, match="executions_max"):
        Settings.from_mapping({"executions": {"executions_max": 100_001}})
    with pytest.raises(Invalid, match="steps_max"):
        Settings.from_mapping({"executions": {"steps_max": -1}})
