"""A process that forks after it has opened a shared log: parent and child both go on."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast

pytestmark = [pytest.mark.crash, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]

SETTINGS = {"journal": {"ack_timeout_ms": 60_000}, "segments": {"seal_on_close": False}}


def forked(work: Callable[[], None]) -> int:
    """Run something in a forked child; its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
        sys.stdout.flush()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def check_ended(*pids: int) -> None:
    for pid in pids:
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0


def test_children_append_through_the_log_and_the_topic_that_they_inherited(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "log", share=True, settings=SETTINGS) as log:
        topic = log.topic("t")
        topic.append(b"parent 0")

        def work() -> None:
            for number in range(20):
                topic.append(f"child {os.getpid()} {number}".encode())
            assert log.topic("t") is topic
            assert topic.read()
            log.close()

        children = [forked(work) for _ in range(3)]
        for number in range(1, 20):
            topic.append(f"parent {number}".encode())
        check_ended(*children)
        stored = [record.payload.decode() for record in topic.read()]
    assert len(stored) == len(set(stored)) == 80
    for who in {payload.rsplit(" ", 1)[0] for payload in stored}:
        numbers = [int(payload.rsplit(" ", 1)[1]) for payload in stored if payload.startswith(f"{who} ")]
        assert numbers == list(range(20)), who


def test_a_dead_parent_does_not_stay_the_owner_through_its_child(tmp_path: Path) -> None:
    read, write = os.pipe()

    def parent() -> None:
        log = holdfast.open(tmp_path / "log", share=True, settings=SETTINGS)
        topic = log.topic("t")
        topic.append(b"parent")

        def child() -> None:
            topic.append(b"child")
            os.write(write, str(os.getpid()).encode().rjust(10))
            os.read(hold, 1)

        hold, held = os.pipe()
        forked(child)
        os.write(write, b"x")
        signal.pause()
        os.close(held)

    pid = forked(parent)
    try:
        child = b""
        while len(child) < 11:
            child += os.read(read, 11)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    with holdfast.open(tmp_path / "log", share=True, settings=SETTINGS) as log:
        log.topic("t").append(b"another")
        assert [record.payload for record in log.topic("t").read()] == [b"parent", b"child", b"another"]
    os.kill(int(child.replace(b"x", b"")), signal.SIGKILL)


def test_what_the_parent_was_not_answered_for_is_written_once(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "log", share=True, settings=SETTINGS) as log:
        topic = log.topic("t")
        tickets = [topic.submit(str(number).encode()) for number in range(2000)]
        child = forked(lambda: (topic.append(b"child"), log.close()))  # type: ignore[func-returns-value,arg-type]
        for number, ticket in enumerate(tickets):
            ticket.result()
            assert number >= 0
        check_ended(child)
        stored = [record.payload for record in topic.read()]
    assert [payload for payload in stored if payload != b"child"] == [str(number).encode() for number in range(2000)]
    assert stored.count(b"child") == 1
