"""A session that the log has forgotten looks like one that never sent anything: what it sends again is not believed."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast import Full, Log, OutcomeUnknown
from holdfast.journal.session_access import ForwardedRows
from holdfast.journal.sessions import session_table
from holdfast.journal.sessions.outcomes import Outcome
from holdfast.owner.wire import BadFrame, GroupAnswer
from holdfast.sharing.hosting.host import Host
from holdfast.sharing.unanswered import UnansweredGroups
from holdfast.testing.manual_clock import ManualClock

pytestmark = pytest.mark.disk

PATIENCE = 60
SETTINGS = {"journal": {"sessions_max": 2, "ack_timeout_ms": 60_000}, "segments": {"seal_on_close": False}}


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def payloads(log: Log) -> list[bytes]:
    return [record.payload for record in log.topic("t").read()]


def crowd(log: Log) -> None:
    """Others come, and take the places of all sessions that are idle."""
    owned = log._journal.news.owned_here()  # type: ignore[union-attr]
    assert isinstance(owned, Log)
    journal = owned._journal
    partition = owned.topic("t")._partitions.parts[0]
    for _ in range(2):
        rows = [(b"crowd", 0, None, None)]
        sent = journal.sessions.put(os.urandom(16), 1, 1, [ForwardedRows(partition, rows, 10)], PATIENCE)
        until(lambda sent=sent: sent.done)


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("is_forgotten", [True, False])
def test_what_was_sent_before_the_log_forgot_its_sender_is_not_written_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_forgotten: bool, is_first: bool
) -> None:
    """Also where it was the very first that the sender sent, and no answer ever said that it is known."""
    monkeypatch.setattr(session_table, "IDLE_MIN_US", -(10**12))  # a minute has gone by
    owner = holdfast.open(tmp_path / "log", share=True, settings=SETTINGS)
    member = holdfast.open(tmp_path / "log", share=True, settings=SETTINGS)
    (owner if is_first else member).topic("t").append(b"0")
    member.topic("t")
    answer = Host._answer
    monkeypatch.setattr(Host, "_answer", lambda self: False)  # the owner is about to die: it answers nobody
    ticket = member.topic("t").submit(b"1")
    until(lambda: payloads(owner) == [b"0", b"1"])
    if is_forgotten:
        crowd(owner)
    link = member._lifetime.shared._link  # type: ignore[union-attr]
    before = link._sock
    before.shutdown(socket.SHUT_RDWR)
    until(lambda: link._sock not in (before, None))
    monkeypatch.setattr(Host, "_answer", answer)
    if is_forgotten:
        with pytest.raises(OutcomeUnknown, match="forgotten"):
            ticket.result(PATIENCE)
    else:
        assert ticket.result(PATIENCE).offset == 1
    member.topic("t").append(b"2")  # and it goes on
    assert [payload for payload in payloads(owner) if payload != b"crowd"] == [b"0", b"1", b"2"]
    member.close()
    owner.close()


def test_what_an_owner_knew_and_the_next_does_not_is_not_sent_again(tmp_path: Path) -> None:
    """Nor is what was sent long ago, to a log that does not know its sender; by either clock."""
    clock, waiting = ManualClock(), Waiter()
    groups = UnansweredGroups(clock, remembered_us=60_000_000)
    groups.frame(groups.add([], waiting))  # type: ignore[arg-type]
    clock.advance(20)
    assert [group.sequence for group in groups.again(0)] == [1]  # it cannot have been forgotten: it never arrived
    assert [group.sequence for group in groups.again(1)] == [1]
    assert groups.again(0) == []  # known before, not known now
    groups.frame(groups.add([], waiting))  # type: ignore[arg-type]
    clock.jump(3600)
    groups.add([], waiting)  # type: ignore[arg-type]
    assert [group.sequence for group in groups.again(0)] == [3]  # which was not sent yet
    groups.frame(groups.add([], waiting))  # type: ignore[arg-type]
    clock.advance(100)
    clock.jump(-7200)
    assert [group.sequence for group in groups.again(0)] == [3]
    assert [type(answer) for answer in waiting.answers] == [OutcomeUnknown] * 3


def test_an_answer_to_what_was_never_sent_is_that_of_a_broken_owner() -> None:
    """To believe its number would make what is on its way seem forgotten: the connection is given up instead."""
    groups, waiting = UnansweredGroups(ManualClock(), remembered_us=60_000_000), Waiter()
    groups.frame(groups.add([], waiting))  # type: ignore[arg-type]
    for number in (2, 2**62):
        with pytest.raises(BadFrame, match="was not sent"):
            groups.take(GroupAnswer(number, (Outcome(),)))
    assert [group.sequence for group in groups.again(0)] == [1]
    assert waiting.answers == []


class Waiter:
    """What waits for answers."""

    def __init__(self) -> None:
        self.answers: list[object] = []

    def answered(self, answer: object) -> None:
        self.answers.append(answer)


def test_a_process_for_which_there_is_no_session_learns_so_at_once(tmp_path: Path) -> None:
    """And not after its time-out, by an error that says nothing; when there is a place again it goes on."""
    options = {"share": True, "settings": SETTINGS}
    first, second, third = (holdfast.open(tmp_path / "log", **options) for _ in range(3))  # type: ignore[arg-type]
    for log in (first, second):
        log.topic("t").append(b"one")
    for _ in range(2):
        with pytest.raises(Full, match="there are 2 sessions already") as refused:
            third.topic("t").append(b"two", timeout=PATIENCE)
        assert "journal.sessions_max" in refused.value.hint
    assert payloads(third) == [b"one", b"one"]
    for log in (third, second, first):
        log.close()  # nothing is left to wait for
