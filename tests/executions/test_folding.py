"""Folding: a long journal gets shorter, and nobody notices."""

from __future__ import annotations

import threading

import pytest

import holdfast
from holdfast import Full, Settings, Unavailable
from holdfast.execution.execution_settings import ExecutionSettings
from holdfast.execution.journal.entries import AttemptFailed, EffectIntent, Heartbeat, StepResult
from tests.executions.by_hand import append, entries, fold_now, opened, release, steps
from tests.executions.test_live_journal import begin, result
from tests.executions.waiting_room import room_of
from tests.failing_commits import refuse_next_commit

pytestmark = pytest.mark.disk


def blocks(log, execution) -> int:
    return len(room_of(log).store.items(execution))


def test_a_fold_keeps_results_and_leaves_out_what_no_longer_matters(open_log):
    """Intents and heartbeats of finished steps go; those of a step that is not finished, or failed, stay."""
    log = open_log()
    execution = opened(log)
    guarded = "exactly_once_guarded"
    for path in ("a", "b"):
        append(log, execution, EffectIntent(path, b"k" * 32, guarded, 1))
        append(log, execution, AttemptFailed(path, 1, "OSError", 1, 2))
        append(log, execution, Heartbeat(path, b"half", 3))
    append(log, execution, result("a", b"A"))
    before = entries(log, execution)
    assert fold_now(log, execution) == len(before)
    assert blocks(log, execution) == 1
    found = entries(log, execution)
    assert [(type(entry).__name__, entry.path) for entry in found] == [
        ("AttemptFailed", "a"),
        ("EffectIntent", "b"),
        ("AttemptFailed", "b"),
        ("Heartbeat", "b"),
        ("StepResult", "a"),
    ]
    append(log, execution, result("b"))
    release(log, execution)
    log.close()
    again = open_log()
    live = begin(again, execution)
    assert live.look("a").result.payload == b"A"
    assert live.look("b").intent is None or live.look("b").result is not None
    assert live.journal.folded_steps == 1


def test_an_error_that_was_taken_back_stays_so(open_log):
    """Whatever stretches it is folded in: the attempt that failed takes the error back, and the later result counts."""
    log = open_log()
    execution = opened(log)
    live = room_of(log).live.get(execution)
    for folds in (False, True):
        error = StepResult("a", b"k" * 32, "idempotent", b"error", 1, is_error=True)
        for entry in (error, AttemptFailed("a", 1, "OSError", 1, 2), result("a", b"value")):
            live.store.write(live.journal, entry).result()
            if folds:
                fold_now(log, execution)
        fold_now(log, execution)
    release(log, execution)
    again = begin(log, execution)
    assert again.look("a").result.payload == b"value"


def test_folding_twice_folds_what_came_since(open_log):
    """A second fold leaves the first one alone."""
    log = open_log()
    execution = opened(log)
    for number in range(10):
        append(log, execution, result(str(number)))
    assert fold_now(log, execution) == 11
    assert fold_now(log, execution) == 0
    for number in range(10, 20):
        append(log, execution, result(str(number)))
    assert fold_now(log, execution) == 10
    assert blocks(log, execution) == 2
    assert steps(log, execution) == [str(number) for number in range(20)]


def test_a_fold_that_fails_changes_nothing(open_log, monkeypatch):
    """One commit: the old blocks are there, or the folded one."""
    log = open_log()
    execution = opened(log)
    for number in range(5):
        append(log, execution, result(str(number)))
    refuse_next_commit(log, monkeypatch, Unavailable("the disk is full"))
    with pytest.raises(Unavailable):
        fold_now(log, execution)
    assert steps(log, execution) == [str(number) for number in range(5)]
    assert blocks(log, execution) == 6


def test_entries_that_arrive_during_a_fold_are_kept(open_log):
    """Exactly what was read is replaced, not what lies between."""
    log = open_log()
    execution = opened(log)
    stop = threading.Event()
    written: list[str] = []

    def write() -> None:
        while not stop.is_set():
            path = str(len(written))
            append(log, execution, result(path))
            written.append(path)

    writer = threading.Thread(target=write)
    writer.start()
    while len(written) < 20:
        pass
    folded = sum(fold_now(log, execution) for _ in range(20))
    stop.set()
    writer.join()
    assert folded
    assert steps(log, execution) == written
    release(log, execution)
    log.close()
    assert steps(open_log(), execution) == written


def test_a_long_execution_folds_itself_and_goes_on(tmp_path):
    """At nine tenths of the limit it is folded in the background: folded steps count no more."""
    settings = Settings.from_mapping({"executions": {"steps_max": 50}, "segments": {"seal_on_close": False}})
    with holdfast.open(tmp_path / "log", settings=settings) as log:
        live = begin(log)
        for number in range(400):
            path = live.place("step")
            live.write(result(path), acked=number % 5 == 0)
        assert live.journal.folded_steps > 300
        room_of(log).live.release(live)
        again = begin(log, live.id)
        for _ in range(400):
            assert again.look(again.place("step")).result is not None
        assert len([None for record in again.recorded.all().values() if record.result]) == 400


def test_steps_that_cannot_be_folded_are_limited(tmp_path):
    """What is not finished is not folded: a program that only begins steps is stopped at the limit."""
    settings = Settings.from_mapping({"executions": {"steps_max": 50}})
    assert settings.executions == ExecutionSettings(steps_max=50)
    with holdfast.open(tmp_path / "log", settings=settings) as log:
        live = begin(log)

        def run() -> None:
            for _ in range(1000):
                live.place("step")

        with pytest.raises(Full, match="up to 50 steps"):
            run()
        assert live._steps == 51


def test_a_fold_has_every_result(open_log):
    """A fold of nothing but results has all of them."""
    log = open_log()
    execution = opened(log)
    for number in range(30):
        append(log, execution, result(str(number), bytes([number]) * 1000))
    fold_now(log, execution)
    found = [entry for entry in entries(log, execution) if isinstance(entry, StepResult)]
    assert [entry.payload for entry in found] == [bytes([number]) * 1000 for number in range(30)]
