"""Eight writers in eight processes, and the owner is killed again and again: nothing is lost, repeated or reordered."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import holdfast
from tests.sharing.member import SETTINGS
from tests.sharing.members import Member, check_log, owner_of, several

pytestmark = pytest.mark.crash


def kill_owners(directory: Path, seconds: float) -> None:
    """For so long, and at least twice."""
    with several(directory, 8) as members:
        ended: list[Member] = []
        deadline, kills = time.monotonic() + seconds, 0
        while time.monotonic() < deadline or kills < 2:
            members[kills % 8].wait_for(20)
            owner = next((one for one in members if one.pid == owner_of(directory)), None)
            if owner is None:  # a new one has the lock and has not written its pid yet
                continue
            owner.kill()
            kills += 1
            ended.append(owner)
            members[members.index(owner)] = fresh = Member(directory, f"n{kills}")
            for member in members:
                if member is not fresh:
                    member.wait_for(1)  # nobody hangs
            fresh.wait_for(1)
        for member in members:
            member.stop()
        stored = check_log(directory, ended + members)
        print(f"{kills} owners killed, {stored} records")


@pytest.mark.core
def test_nothing_is_lost_or_repeated_when_owners_are_killed_again_and_again(tmp_path: Path, is_sampled: bool) -> None:
    kill_owners(tmp_path / "log", 5 if is_sampled else 20)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_nothing_is_lost_or_repeated_in_ten_minutes_of_kills(tmp_path: Path) -> None:
    kill_owners(tmp_path / "log", 600)


def test_everybody_waits_for_an_owner_that_is_only_stopped(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    with several(directory, 3) as members:
        owner = next(one for one in members if one.pid == owner_of(directory))
        others = [one for one in members if one is not owner]
        os.kill(owner.pid, signal.SIGSTOP)
        time.sleep(0.3)  # what was answered before may still be on its way
        before = [len(one.lines) for one in others]
        time.sleep(0.5)
        assert [len(one.lines) for one in others] == before
        assert owner_of(directory) == owner.pid
        os.kill(owner.pid, signal.SIGCONT)
        for member in members:
            member.wait_for(5)
        for member in members:
            member.stop()
        check_log(directory, members)


def test_who_owns_the_log_alone_for_a_moment_does_not_end_those_who_share_it(tmp_path: Path) -> None:
    """A tool without `share=True` that comes between two owners: the others wait until it has left, and go on."""
    directory = tmp_path / "log"
    with several(directory, 2) as members:
        owner = next(one for one in members if one.pid == owner_of(directory))
        other = next(one for one in members if one is not owner)
        os.kill(other.pid, signal.SIGSTOP)
        owner.kill()
        with holdfast.open(directory, settings=SETTINGS) as alone:
            os.kill(other.pid, signal.SIGCONT)
            time.sleep(1.0)  # it looks for an owner many times
            assert alone.topic("events").partitions == 1
        other.wait_for(5)
        other.stop()
        check_log(directory, members)


def test_a_member_that_has_ended_by_itself_is_joined_like_the_others(tmp_path: Path) -> None:
    with several(tmp_path / "log", 1) as [member]:
        member.process.kill()
        member.process.wait(60)
    assert not any(reader.is_alive() for reader in member._readers)
    assert member.process.stdout.closed  # type: ignore[union-attr]
