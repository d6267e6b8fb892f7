"""Taking a shared log over where that is not possible now, or never again."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Closed, OutcomeUnknown, Unavailable
from holdfast.sharing.membership import Membership, Owner
from tests.sharing.shared_logs import shared

pytestmark = pytest.mark.disk


def block(directory: Path) -> None:
    """Nobody can listen here: as where the disk is full, or no descriptor is left."""
    socket = directory / "SOCKET"
    socket.unlink(missing_ok=True)
    socket.mkdir()


def test_a_member_that_cannot_take_over_now_does_so_later(tmp_path: Path) -> None:
    """What is sent meanwhile has an unknown outcome, and is written once."""
    directory = tmp_path / "log"
    with shared(directory) as (log, owner):
        topic = log.topic("t")
        topic.append(b"before")
        block(directory)
        owner.kill()
        with pytest.raises(OutcomeUnknown):
            topic.append(b"meanwhile", timeout=0.3)
        (directory / "SOCKET").rmdir()
        topic.append(b"after", timeout=30)
        assert [record.payload for record in topic.read()] == [b"before", b"meanwhile", b"after"]


def test_a_process_learns_why_it_cannot_open_a_log(tmp_path: Path) -> None:
    """And holds nothing afterwards."""
    directory = tmp_path / "log"
    holdfast.open(directory).close()
    block(directory)
    for _ in range(2):
        with pytest.raises(Unavailable, match="cannot listen in the log's directory"):
            holdfast.open(directory, share=True)
    (directory / "SOCKET").rmdir()
    assert not list(directory.glob("SOCKET*"))
    holdfast.open(directory, share=True).close()


@pytest.mark.parametrize("other", [False, True])
def test_a_member_begins_no_log_where_its_own_is_gone(tmp_path: Path, *, other: bool) -> None:
    """Nor does it write to another one that is there now."""
    directory, elsewhere, second = tmp_path / "log", tmp_path / "elsewhere", tmp_path / "second"
    if other:
        with holdfast.open(second) as log:
            log.topic("t").append(b"another log")
    with shared(directory) as (log, owner):
        topic = log.topic("t")
        topic.append(b"one")
        os.rename(directory, elsewhere)
        if other:
            shutil.move(second, directory)
        owner.kill()
        with pytest.raises((Closed, OutcomeUnknown), match="moved or removed"):
            topic.append(b"two", timeout=30)
        for call in (lambda: list(topic.read()), log.seal):
            with pytest.raises(Closed, match="not where it was opened"):
                call()
        assert (topic._journal.pending_records, topic._journal.drain(0)) == (0, True)  # nor does the process's end wait
        with pytest.raises(Closed, match="not where it was opened"):
            log.close()
    assert directory.exists() == other
    for path, payloads in [(elsewhere, [b"one"])] + [(directory, [b"another log"])] * other:
        with holdfast.open(path) as log:
            assert [record.payload for record in log.topic("t").read()] == payloads


def test_a_log_that_is_about_to_be_handed_over_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that asks for it in between gets it as it stays, or not at all: never one that is closed under it."""
    got: list[Owner | None] = []
    asking = threading.Event()

    def ask() -> None:
        asking.set()
        got.append(membership.keep())

    def hold_off(self: Membership, seconds: float) -> None:
        thread.start()
        assert asking.wait(60)
        thread.join(0.2)  # it waits for the hand-over, or has an answer that counts

    monkeypatch.setattr(Membership, "hold_off", hold_off)
    with holdfast.open(tmp_path / "log", share=True) as log:
        shared: Any = log._lifetime.shared
        membership: Membership = shared._membership
        thread = threading.Thread(target=ask)
        owner = membership.owner
        assert owner is not None
        membership._hand_over(owner)
        thread.join()
        assert got == [None] or owner.journal.end is None
