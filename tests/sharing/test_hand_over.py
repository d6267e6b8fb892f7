"""Owners that leave on purpose, one after the other: a rolling restart loses, repeats and refuses nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.journal.commit.writer import Writer
from holdfast.journal.queue.group import Group
from holdfast.log_directory import Directory
from holdfast.owner.peer import Peer
from holdfast.sharing.hosting.host import Host
from tests.sharing.member import SETTINGS
from tests.sharing.members import Member, check_log, owner_of, several

pytestmark = pytest.mark.crash


def test_a_rolling_restart_loses_and_repeats_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    with several(directory, 3) as members:
        ended = []
        for number in range(3):
            owner = next((one for one in members if one.pid == owner_of(directory)), members[0])
            fresh = Member(directory, f"r{number}")
            fresh.wait_for(2)
            owner.stop()  # it closes the log as a program does that ends
            ended.append(owner)
            members[members.index(owner)] = fresh
            for member in members:
                member.wait_for(2)
        for member in members:
            member.stop()
        check_log(directory, ended + members)


def test_all_leave_at_once_and_the_log_is_whole(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    with several(directory, 3) as members:
        for member in members:
            assert member.process.stdin is not None
            member.process.stdin.close()
        for member in members:
            member.stop()
        check_log(directory, members)
        assert not (directory / "SOCKET").exists()


def test_an_owner_in_this_process_leaves_again_and_again(tmp_path: Path) -> None:
    options = {"share": True, "settings": SETTINGS}
    stays = holdfast.open(tmp_path / "log", **options)  # type: ignore[arg-type]
    topic, tickets = stays.topic("t"), []
    for number in range(8):
        other = holdfast.open(tmp_path / "log", **options)  # type: ignore[arg-type]
        tickets += [topic.submit(f"stays {number}-{n}".encode()) for n in range(50)]
        other.topic("t").append(f"other {number}".encode())
        stays, other, topic = (stays, other, topic) if number % 2 else (other, stays, other.topic("t"))
        other.close()  # by turns the one that owns it and the one that does not
    assert all(ticket.result().offset >= 0 for ticket in tickets)
    stored = [record.payload for record in topic.read()]
    stays.close()
    assert len(stored) == len(set(stored)) == 8 * 51


def test_the_end_of_a_process_that_did_not_close_the_log_loses_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    with several(directory, 2) as members:
        owner = next(one for one in members if one.pid == owner_of(directory))
        other = next(one for one in members if one is not owner)
        owner.process.send_signal(signal.SIGINT)  # Ctrl-C: its block ends, the log is closed and handed over
        owner.join()
        other.wait_for(5)
        other.stop()
        check_log(directory, members)


def test_an_owner_whose_disk_fails_is_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"share": True, "settings": SETTINGS}
    first = holdfast.open(tmp_path / "log", **options)  # type: ignore[arg-type]
    second = holdfast.open(tmp_path / "log", **options)  # type: ignore[arg-type]
    second.topic("t").append(b"one")
    failures = iter([OSError(5, "the disk failed")])
    commit = Writer._commit

    def failing(self: Writer, group: Group) -> None:
        for failure in failures:
            raise failure
        commit(self, group)

    monkeypatch.setattr(Writer, "_commit", failing)
    assert second.topic("t").append(b"two").offset == 1  # by an owner that has opened the log anew
    assert first.topic("t").append(b"three").offset == 2
    second.close()
    first.close()


LEAVES = """
import sys, threading, holdfast
log = holdfast.open(sys.argv[1], share=True, settings={"segments": {"seal_on_close": False}})
tickets = [log.topic("t").submit(b"%d" % number) for number in range(500)]
if sys.argv[2] == "forgets":
    del log, tickets
"""


@pytest.mark.parametrize("how", ["exits", "forgets"])
@pytest.mark.parametrize("owns", [True, False])
def test_a_process_that_ends_without_closing_the_log_loses_nothing(tmp_path: Path, how: str, owns: bool) -> None:
    options = {"share": True, "settings": {"segments": {"seal_on_close": False}}}
    log = None if owns else holdfast.open(tmp_path / "log", **options)  # type: ignore[arg-type]
    done = subprocess.run(
        [sys.executable, "-c", LEAVES, str(tmp_path / "log"), how],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    log = log or holdfast.open(tmp_path / "log", **options)  # type: ignore[arg-type]
    assert [record.payload for record in log.topic("t").read()] == [b"%d" % number for number in range(500)]
    log.close()


SEALS = {"segments": {"seal_on_close": True}}


def test_a_log_that_was_handed_over_to_somebody_who_leaves_too_is_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All workers of a server get SIGTERM at once: each may count on another one that does not stay, either."""
    monkeypatch.setattr(Host, "callers", lambda self: [Peer(bytes(16), 0, lambda name, body: None)])
    with holdfast.open(tmp_path / "log", share=True, settings=SEALS) as log:
        log.topic("t").append(b"one")
    with holdfast.open(tmp_path / "log", read_only=True) as log:
        assert log.marks("t")[0].sealed == 1


def test_an_owner_that_is_followed_seals_nothing_when_it_leaves(tmp_path: Path) -> None:
    first = holdfast.open(tmp_path / "log", share=True, settings=SEALS)
    second = holdfast.open(tmp_path / "log", share=True, settings=SEALS)
    first.topic("t").append(b"one")
    first.close()
    assert second.marks("t")[0].sealed == 0
    second.close()
    with holdfast.open(tmp_path / "log", read_only=True) as log:
        assert log.marks("t")[0].sealed == 1


def test_a_log_that_cannot_be_opened_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was never a member must not open the log again to close it, perhaps with other settings."""
    tries = []

    def failing(asked: object, directory: Directory) -> None:
        directory.release()
        tries.append(directory)
        raise holdfast.Unavailable("the disk is away", hint="wait")

    monkeypatch.setattr("holdfast.log.open_log.open_locked", failing)
    with pytest.raises(holdfast.Unavailable, match="away"):
        holdfast.open(tmp_path / "log", share=True)
    assert len(tries) == 1
