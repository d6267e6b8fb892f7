"""Loss of the journal: never silent. `fail` is the default, `continue-undurable` is chosen."""

from __future__ import annotations

import asyncio
import logging

import pytest

from holdfast import Closed, Invalid, Unavailable
from holdfast.execution.journal.entries import SignalSent
from holdfast.execution.journal.journal_loss import checked_policy
from tests.executions.test_live_journal import begin, paths, result
from tests.executions.waiting_room import room_of
from tests.failing_commits import refuse_next_commit

pytestmark = pytest.mark.disk


def full() -> Unavailable:
    return Unavailable("the disk is full")


def test_by_default_a_loss_is_an_error(open_log, monkeypatch):
    """The program gets an error, and nothing goes on without a journal."""
    log = open_log()
    live = begin(log)
    refuse_next_commit(log, monkeypatch, full())
    with pytest.raises(Unavailable):
        live.write(result("a")).result()
    assert not live.is_undurable


def test_who_chose_to_goes_on_with_one_warning_and_a_count(open_log, monkeypatch, caplog):
    """From the first loss on nothing more is recorded; a later run begins behind what is durable."""
    log = open_log()
    live = begin(log)
    live.continue_undurable()
    live.write(result("kept")).result()
    refuse_next_commit(log, monkeypatch, full())
    with caplog.at_level(logging.WARNING, "holdfast.executions"):
        live.write(result("lost")).result()
        assert live.is_undurable
        live.write(result("also lost")).result()
        asyncio.run(awaited(live))
    assert [record.action for record in caplog.records if record.name == "holdfast.executions"] == [
        "execution_undurable"
    ]
    assert str(live.id) in caplog.text
    assert live.loss.lost == 3
    ended = live.finish("completed")
    ended.result()
    assert live.row.status == "running"
    room_of(log).live.release(live)
    again = begin(log, live.id)
    assert paths(log, live.id) == ["kept"]
    assert again.look("lost") is None


async def awaited(live) -> None:
    await live.write(result("lost, too"))


def test_also_when_the_log_is_gone(open_log):
    """A closed log is a lost journal."""
    log = open_log()
    strict, lenient = begin(log), begin(log)
    lenient.continue_undurable()
    log.close()
    with pytest.raises(Closed):
        strict.write(result("a"))
    lenient.write(result("a")).result()
    assert lenient.is_undurable
    assert lenient.finish("completed") is None


def test_what_others_hand_over_is_never_lost_silently(open_log, monkeypatch):
    """The sender of a signal learns that it was not stored, whatever the program chose."""
    log = open_log()
    live = begin(log)
    live.continue_undurable()
    live.opened.result()
    refuse_next_commit(log, monkeypatch, full())
    with pytest.raises(Unavailable):
        live.write(SignalSent("go", b"id", b"", 1)).result()


def test_the_policy_is_one_of_two():
    """Refused before anything runs."""
    assert checked_policy("fail") == "fail"
    assert checked_policy("continue-undurable") == "continue-undurable"
    with pytest.raises(Invalid, match="on_journal_loss"):
        checked_policy("ignore")
