"""What a member of a shared log shows is durable: by the owner's word, without a sync of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest

import holdfast
from holdfast import Log, Settings
from holdfast.journal.groups.preallocated_file import GroupFile
from holdfast.journal.shared_number import SharedNumber
from holdfast.journal.sqlite.group_file_store import GroupFileStore
from tests.harness.cuts import Cut, examine, record
from tests.sharing.member import SETTINGS
from tests.sharing.members import Member, owner_of, several
from tests.sharing.shared_logs import join, shared

pytestmark = pytest.mark.disk

Open = Callable[..., Log]
Some = Callable[..., list[Cut[int]]]
WRITER = "holdfast-writer"


def payloads(log: Log, topic: str = "t", start: int | None = None) -> list[bytes]:
    return [record.payload for record in log.topic(topic).read(start=start)]


class Syncs:
    """Syncs of files of groups in this process, but for those of an owner's writer; which can be held."""

    def __init__(self) -> None:
        self.count = 0
        self.held = threading.Event()
        """The writer has written a group, and is about to sync it."""
        self.go_on = threading.Event()
        self.go_on.set()

    def hold(self) -> None:
        """Let the next group's sync wait."""
        self.held.clear()
        self.go_on.clear()


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Syncs]:
    syncs, sync = Syncs(), GroupFile.sync

    def counted(file: GroupFile) -> None:
        if threading.current_thread().name == WRITER:
            syncs.held.set()
            assert syncs.go_on.wait(60)
        elif threading.current_thread().name != "holdfast-group-files":
            syncs.count += 1
        sync(file)

    monkeypatch.setattr(GroupFile, "sync", counted)
    yield syncs
    syncs.go_on.set()


# -- no sync, and nothing late ----------------------------------------------------------------------------


def test_a_member_syncs_nothing_and_reads_what_it_has_appended_at_once(tmp_path: Path, syncs: Syncs) -> None:
    with shared(tmp_path / "log") as (log, _):
        follower = iter(log.topic("t").follow(start=0))
        for number in range(60):
            assert log.topic("t").append(b"%d" % number).offset == number
            assert payloads(log, start=number) == [b"%d" % number]
            assert next(follower).payload == b"%d" % number
            assert log.marks("t")[0].durable == number + 1
        assert syncs.count == 0


def test_what_was_acknowledged_to_one_member_is_read_by_another_at_once(tmp_path: Path, syncs: Syncs) -> None:
    """One that hears of it by another way, such as an answer of a web server, finds it: also where nobody follows."""
    directory = tmp_path / "log"
    with several(directory, 2, tasks=2) as members, holdfast.open(directory, share=True, settings=SETTINGS) as log:
        for number in range(60):
            member = members[number % 2]
            member.wait_for(1)
            payload, offset = member.lines[-1].split()
            found = log.topic("events").read(start=int(offset))
            assert next(iter(found)).payload.decode() == payload
        assert syncs.count == 0
        for member in members:
            member.stop()


def test_after_a_takeover_there_is_nothing_to_sync_either(tmp_path: Path, syncs: Syncs) -> None:
    directory = tmp_path / "log"
    with several(directory, 2, tasks=1) as members, holdfast.open(directory, share=True, settings=SETTINGS) as log:
        members[0].wait_for(10)
        for _ in range(2):
            owner = next((one for one in members if one.pid == owner_of(directory)), None)
            assert owner is not None
            owner.kill()
            members[members.index(owner)] = Member(directory, f"n{owner.pid}", tasks=1)
            for member in members:
                member.wait_for(10)
            if log.is_owner:
                break
            log.topic("events").append(b"x:0")  # answered: so we have met the new owner
            before = syncs.count
            for _ in range(10):
                members[0].wait_for(2)
                assert payloads(log, "events")
            assert syncs.count == before
        for member in members:
            member.stop()


def test_a_member_without_its_owners_word_still_syncs(open_log: Open, syncs: Syncs) -> None:
    """A handle that only reads; and a member where the system has no memory to share."""
    log = open_log(share=True)
    log.topic("t").append(b"one")
    with open_log(read_only=True) as reading:
        assert payloads(reading) == [b"one"]
    assert syncs.count


def test_a_member_that_read_before_the_log_was_handed_over_reads_on(open_log: Open) -> None:
    """A small log leaves no file of groups behind, and the next owner's first one has the name of one that was read."""
    first, second, third = (open_log(share=True) for _ in range(3))
    with open_log(read_only=True) as reading:
        readers = (second, third, reading)
        first.topic("t").append(b"one")
        assert [payloads(log) for log in readers] == [[b"one"]] * 3
        first.close()
        second.topic("t").append(b"two")
        assert [payloads(log) for log in readers] == [[b"one", b"two"]] * 3


def test_members_do_without_the_owners_word_where_there_is_none(
    open_log: Open, syncs: Syncs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SharedNumber, "create", lambda of, value: None)
    owner, member = open_log(share=True), open_log(share=True)
    assert member.topic("t").append(b"one").offset == 0
    assert payloads(member) == payloads(owner) == [b"one"]
    assert syncs.count


# -- nothing early ----------------------------------------------------------------------------------------


def test_a_group_that_is_not_synced_yet_is_shown_by_no_member(open_log: Open, syncs: Syncs) -> None:
    owner, member = open_log(share=True), open_log(share=True)
    owner.topic("t").append(b"one")
    follower = iter(member.topic("t").follow(start=0))
    assert next(follower).payload == b"one"
    syncs.hold()
    ticket = owner.topic("t").submit(b"two")
    assert syncs.held.wait(60)
    for log in (owner, member):
        assert payloads(log) == [b"one"]
        assert log.marks("t")[0].durable == 1
    assert syncs.count == 0
    syncs.go_on.set()
    ticket.result()
    assert payloads(owner) == payloads(member) == [b"one", b"two"]
    assert next(follower).payload == b"two"
    assert syncs.count == 0


def test_who_only_reads_beside_an_owner_shows_it_after_a_sync_of_its_own(open_log: Open, syncs: Syncs) -> None:
    owner = open_log(share=True)
    owner.topic("t").append(b"one")
    syncs.hold()
    ticket = owner.topic("t").submit(b"two")
    assert syncs.held.wait(60)
    with open_log(read_only=True) as reading:
        assert payloads(reading) == [b"one", b"two"]
    assert syncs.count
    syncs.go_on.set()
    ticket.result()


# -- and it stays -----------------------------------------------------------------------------------------

CUT = Settings.from_mapping({"journal": {"group_file_bytes": "64KiB"}, "segments": {"seal_on_close": False}})


def life(root: Path) -> list[Cut[int]]:
    """Appends of two owners, one after the other, and a member that looks before each step; promises what it showed."""
    shown, member, looking = 0, None, threading.Lock()

    def look() -> int:
        nonlocal shown
        if member is not None and looking.acquire(blocking=False):  # its own steps come here, too
            try:
                shown = max(shown, len(payloads(member)))
            finally:
                looking.release()
        return shown

    def live(_disk: object) -> None:
        nonlocal member
        first = holdfast.open(root / "log", share=True, settings=CUT)
        first.topic("t").append(b"0")
        member = second = holdfast.open(root / "log", share=True, settings=CUT)
        for number in range(1, 12):
            (first, second)[number % 2].topic("t").append(b"%d" % number)
        first.close()
        for number in range(12, 18):
            second.topic("t").append(b"%d" % number)
        look()
        member = None
        second.close()

    return record(root, live, look)


def holds(copy: Path, shown: int) -> None:
    with holdfast.open(copy / "log", settings=CUT) as log:
        found = payloads(log)
    assert len(found) >= shown, f"shown and lost: {shown - len(found)}"
    assert found == [b"%d" % number for number in range(len(found))]


def on_files_of_groups(cuts: list[Cut[int]]) -> list[Cut[int]]:
    return [cut for cut in cuts if "/groups/" in cut.name and cut.promise]


@pytest.mark.crash
def test_nothing_that_a_member_showed_is_lost_in_a_power_cut(tmp_path: Path, some: Some) -> None:
    cuts = life(tmp_path / "disk")
    ours = on_files_of_groups(cuts)
    assert max(cut.promise for cut in cuts) == 18
    assert {"write", "sync"} <= {cut.op for cut in ours}
    assert examine([*some(ours, 16, full=60), cuts[-1]], holds, tmp_path / "states", 3)


@pytest.mark.crash
def test_this_test_would_notice_an_owner_that_speaks_too_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: everything that is written counts as durable."""
    with monkeypatch.context() as patch:
        durable = GroupFileStore.durable
        patch.setattr(GroupFileStore, "durable", lambda self: (durable(self)[0], 2**40))
        cuts = life(tmp_path / "disk")
    with pytest.raises(AssertionError, match="shown and lost"):
        examine([cut for cut in on_files_of_groups(cuts) if cut.op == "sync"], holds, tmp_path / "states", 4)


@pytest.mark.crash
def test_what_followers_showed_is_there_when_owners_were_killed(tmp_path: Path) -> None:
    """At the same offsets, also from before and in the middle of takeovers."""
    directory = tmp_path / "log"
    with several(directory, 3) as members, join_member(directory) as log:
        shown: list[bytes] = []
        follower = iter(log.topic("events").follow(start=0))
        for _ in range(3):
            shown += [record.payload for record in islice(follower, 200)]
            owner = next((one for one in members if one.pid == owner_of(directory)), None)
            if owner is not None:
                owner.kill()
                members[members.index(owner)] = Member(directory, f"n{owner.pid}")
            shown += [record.payload for record in islice(follower, 200)]
        for member in members:
            member.kill()
        members.clear()
        assert payloads(log, "events")[: len(shown)] == shown
    with holdfast.open(directory, settings=SETTINGS) as alone:
        assert payloads(alone, "events")[: len(shown)] == shown


def join_member(directory: Path) -> Log:
    return holdfast.open(directory, share=True, settings=SETTINGS)


# -- the descriptor ---------------------------------------------------------------------------------------


def test_members_that_come_and_go_leave_no_descriptor_behind(tmp_path: Path) -> None:
    with shared(tmp_path / "log") as (log, _):
        log.topic("t").append(b"one")
        with join(tmp_path / "log") as other:
            assert payloads(other) == [b"one"]
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            with join(tmp_path / "log") as other:
                assert payloads(other) == [b"one"]
        assert len(os.listdir("/proc/self/fd")) <= before
