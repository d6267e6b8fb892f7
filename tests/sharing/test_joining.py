"""Members can join for as long as there is an owner, and get their turn: whatever becomes of the owner's socket, of its
descriptors and of the room in its queue.
"""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Callable

import pytest

from holdfast import Log
from holdfast.owner import wire
from holdfast.owner.group_frames import PackedGroup
from holdfast.sharing import socket_place
from holdfast.sharing.hosting.host import Host
from holdfast.sharing.hosting.listening import Listening
from tests.sharing.test_hostile_clients import Client, row, rows
from tests.stalled import stalled

pytestmark = pytest.mark.disk

Open = Callable[..., Log]
PATIENCE = 60


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def host_of(log: Log) -> Host:
    host = log._lifetime.shared._membership._host  # type: ignore[union-attr]
    assert isinstance(host, Host)
    return host


@pytest.mark.parametrize("becomes", ["nothing", "a file", "a dead socket"])
def test_a_socket_that_was_removed_is_made_anew(open_log: Open, becomes: str) -> None:
    owner, member = open_log(share=True), open_log(share=True)
    member.topic("t").append(b"0")
    place = owner.path / socket_place.NAME
    place.unlink()
    if becomes == "a file":
        place.touch()
    elif becomes == "a dead socket":
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(place))
    late = open_log(share=True)
    assert [log.topic("t").append(b"x").offset for log in (late, member, owner)] == [1, 2, 3]
    assert place.stat().st_mode & 0o777 == 0o600
    for log in (late, member, owner):
        log.close()
    assert not place.exists()


def test_an_owner_whose_directory_was_moved_away_leaves_the_next_ones_socket_alone(
    open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = open_log(share=True)
    moved.topic("t").append(b"old")
    before = host_of(moved)._listening
    os.rename(moved.path, moved.path.with_name("moved"))
    owner = open_log(share=True)
    mine = socket_place.name(owner.path)
    looks: list[Listening] = []
    look = Listening.look

    def counted(self: Listening, now: float) -> None:
        self._looked_at = 0.0  # it is time
        look(self, now)
        looks.append(self)

    monkeypatch.setattr(Listening, "look", counted)
    host_of(moved).wake()
    until(lambda: before in looks)
    assert socket_place.name(owner.path) == mine
    before.close()
    assert socket_place.name(owner.path) == mine
    monkeypatch.undo()
    assert not open_log(share=True).is_owner


def test_an_owner_without_descriptors_rests_instead_of_trying_all_the_time(open_log: Open) -> None:
    log = open_log(share=True)
    log.topic("t").append(b"0")
    host = host_of(log)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX) as client:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # nobody can open anything more
        try:
            client.connect(str(log.path / socket_place.NAME))
            until(lambda: not is_watched(host))
            log.topic("t").append(b"goes on meanwhile")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        client.settimeout(PATIENCE)
        client.sendall(b"\0" * 16)  # and then it is let in: and shown out at once, for what it says
        assert client.recv(1) == b""
    assert is_watched(host)
    assert log.topic("t").append(b"1").offset == 2


def is_watched(host: Host) -> bool:
    return any(key.data is host._listening for key in list(host._selector.get_map().values()))


def test_a_large_group_is_not_overtaken_for_ever_by_small_ones(open_log: Open) -> None:
    """They take the room that comes; so one that finds none stands in line, and the others behind it."""
    owner = open_log(share=True, journal={"queue_records_max": 10})
    owner.topic("t").append(b"0")
    owned = owner._journal.news.owned_here()  # type: ignore[union-attr]
    assert isinstance(owned, Log)
    host = host_of(owner)
    first, large, small = Client(owner), Client(owner), Client(owner)
    with stalled(owned.topic("t")):
        first.send(PackedGroup(1, rows(owner, *[row()] * 6)).buffers(1))
        until(lambda: len(host._waiting) == 1)
        large.send(PackedGroup(1, rows(owner, *[row()] * 8)).buffers(1))
        until(lambda: len(host._parked) == 1)
        for number in (1, 2, 3):
            small.send(PackedGroup(number, rows(owner, row())).buffers(1))
        until(lambda: len(host._parked) + len(host._waiting) >= 3)
    assert [place(large), place(small), place(small), place(small)] == [7, 15, 16, 17]
    for client in (first, large, small):
        client.close()


def test_what_is_sent_again_is_answered_while_others_wait_for_room(open_log: Open) -> None:
    """It needs none: a member that lost its connection is not kept waiting for what was stored long ago."""
    owner = open_log(share=True, journal={"queue_records_max": 10})
    owner.topic("t").append(b"0")
    owned = owner._journal.news.owned_here()  # type: ignore[union-attr]
    assert isinstance(owned, Log)
    host = host_of(owner)
    first, again = Client(owner), Client(owner)
    again.send(PackedGroup(1, rows(owner, row())).buffers(1))
    assert place(again) == 1
    with stalled(owned.topic("t")):
        for number in (1, 2):
            first.send(PackedGroup(number, rows(owner, *[row()] * 8)).buffers(1))
        until(lambda: len(host._parked) == 1)
        again.send(PackedGroup(1, rows(owner, row())).buffers(1))
        assert place(again) == 1
        assert [sequence for _, _, sequence in host._waiting] == [1]  # the writer still stands
    assert [place(first), place(first)] == [2, 10]
    for client in (first, again):
        client.close()


def place(client: Client) -> int:
    client.sock.settimeout(PATIENCE)
    kind, answer = client.receive()
    assert kind == wire.ANSWER
    assert isinstance(answer, wire.GroupAnswer)
    return answer.outcomes[0].runs[0].first


def test_a_waiter_for_room_is_noted_once(open_log: Open) -> None:
    """However long there is none: a store that is away for hours must not cost memory."""
    owner = open_log(share=True, journal={"queue_records_max": 10})
    owner.topic("t").append(b"0")
    owned = owner._journal.news.owned_here()  # type: ignore[union-attr]
    assert isinstance(owned, Log)
    host, client = host_of(owner), Client(owner)
    turns: list[None] = []
    retry = host._retry_parked
    with stalled(owned.topic("t")):
        client.send(PackedGroup(1, rows(owner, *[row()] * 6)).buffers(1))
        client.send(PackedGroup(2, rows(owner, *[row()] * 8)).buffers(1))
        until(lambda: len(host._parked) == 1)
        host._retry_parked = lambda: (retry(), turns.append(None))[1]  # type: ignore[method-assign]
        until(lambda: len(turns) > 10)
        assert len(owned._journal.room._calls) <= 1
    assert [place(client), place(client)] == [1, 7]
    client.close()
