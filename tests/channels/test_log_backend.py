"""Backends with a disk: the log, with all that belongs to it, and one as a user might write it."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import apsw
import pytest

from holdfast import Closed, Corrupt, Invalid, Log, Unavailable
from holdfast.channels import (
    ChannelData,
    ChannelMeta,
    Channels,
    ChannelSettings,
    HistoryEntry,
    HistoryUpdate,
    Persistence,
    SdsMessage,
)
from holdfast.channels.keeping.log_backend import LogPersistence
from holdfast.channels.wire.message import text
from holdfast.channels.wire.nim import NIM
from holdfast.testing import ManualClock
from holdfast.testing.channel_contract import PersistenceContract
from holdfast.testing.channel_samples import ODD_IDS, sample_message, sample_meta
from tests.channels.sqlite_backend import SqliteBackend
from tests.stalled import stalled

pytestmark = pytest.mark.disk

ROOM = "room"


def wire(message_id: str, *causes: str, content: bytes = b"content", requests: tuple[HistoryEntry, ...] = ()) -> bytes:
    """What somebody else sends."""
    named = tuple(HistoryEntry(cause, b"", "bob") for cause in causes)
    return NIM.encode(SdsMessage(message_id, ROOM, 1, content, "bob", named, b"", requests))


@contextmanager
def full_disk(log: Log) -> Iterator[None]:
    """Every group is refused, as on a disk that is full; nothing of it is written."""
    backend = log._journal._backend
    commit = backend.commit

    def refuse() -> None:
        raise Unavailable("the disk is full", hint="make room")

    backend.commit = refuse
    try:
        yield
    finally:
        backend.commit = commit


# -- the contract ---------------------------------------------------------------------------------------------


class TestLogBackend(PersistenceContract):
    remembers = finds = True
    participant = "alice"

    @pytest.fixture
    def persistence(self, open_log) -> Persistence:
        self.open_log = open_log
        return self.opened()

    def opened(self) -> Persistence:
        self.log = self.open_log()
        topic = self.log._topics.own("_channels")
        (partition,) = self.log._journal.topics["_channels"]
        return LogPersistence(self.log._journal, self.participant, partition, read=topic.read)

    def reopen(self, persistence: Persistence) -> Persistence:
        self.log.close()
        return self.opened()

    def failing(self, persistence: Persistence) -> Iterator[None]:
        return full_disk(self.log)


class TestEncryptedLogBackend(TestLogBackend):
    participant = "\udcff/ü %2F"

    @pytest.fixture
    def persistence(self, open_log, keyring) -> Persistence:
        self.open_log = lambda: open_log(keyring=keyring)
        return self.opened()

    def reopen(self, persistence: Persistence) -> Persistence:
        self.log.close()
        return self.opened()


class TestSqliteBackend(PersistenceContract):
    atomic = False

    @pytest.fixture
    def persistence(self, tmp_path) -> Iterator[Persistence]:
        self.path = tmp_path / "channels.db"
        self.opened = [SqliteBackend(self.path)]
        yield self.opened[0]
        for backend in self.opened:
            backend.close()

    def reopen(self, persistence: Persistence) -> Persistence:
        persistence.close()
        self.opened.append(SqliteBackend(self.path))
        return self.opened[-1]

    @contextmanager
    def failing(self, persistence: Persistence) -> Iterator[None]:
        persistence.broken = True
        yield
        persistence.broken = False


def test_channels_run_on_a_backend_of_ones_own(tmp_path):
    """Send, receive, buffer, fail, restart: all that is asked of it are the methods of the port."""
    backend = SqliteBackend(tmp_path / "channels.db")
    with Channels("alice", backend) as alice:
        alice.ensure_channel(ROOM)
        alice.wrap_outgoing_message(b"hello", ROOM, "a1")
        alice.unwrap_received_message(wire("b2", "b1"))
        backend.broken = True
        alice.wrap_outgoing_message(b"again", ROOM, "a2")
        assert not alice.channel(ROOM).persistence.ok
        backend.broken = False
        alice.unwrap_received_message(wire("b1"))
        assert alice.channel(ROOM).persistence.ok
        before = alice.channel(ROOM).snapshot(), alice.channel(ROOM).history()
    again = SqliteBackend(tmp_path / "channels.db")
    with Channels("alice", again) as alice:
        alice.ensure_channel(ROOM)
        assert (alice.channel(ROOM).snapshot(), alice.channel(ROOM).history()) == before


def test_a_crash_between_the_two_writes_of_a_simple_backend_loses_no_message(tmp_path):
    """History is written first, so a message is then in both places; loading takes it for delivered."""
    backend = SqliteBackend(tmp_path / "channels.db")
    alice = Channels("alice", backend)
    alice.ensure_channel(ROOM)
    alice.unwrap_received_message(wire("b2", "b1"))
    backend.broken = True
    alice.unwrap_received_message(wire("b1"))
    backend.close()  # and the process is gone
    again = SqliteBackend(tmp_path / "channels.db")
    kept = again.load_channel(ROOM)
    assert [one.message_id for one in kept.history] == ["b1", "b2"]
    assert [one.message.message_id for one in kept.meta.incoming] == ["b2"]
    with Channels("alice", again) as alice:
        alice.ensure_channel(ROOM)
        assert alice.channel(ROOM).history() == ["b1", "b2"]
        assert alice.channel(ROOM).incoming() == []


# -- the log --------------------------------------------------------------------------------------------------


def test_closing_the_log_closes_its_channels_and_keeps_what_was_not_kept(open_log):
    """What failed before is on disk after log.close(), without anybody asking."""
    log = open_log()
    alice = log.channels("alice")
    alice.ensure_channel(ROOM)
    with full_disk(log):
        alice.wrap_outgoing_message(b"hello", ROOM, "a1")
        assert not alice.channel(ROOM).persistence.ok
    log.close()
    assert alice.closed
    with pytest.raises(Closed):
        alice.wrap_outgoing_message(b"too late", ROOM)
    assert [one.message_id for one in open_log().kept_channel("alice", ROOM).history] == ["a1"]


def test_a_participant_has_its_channels_once(open_log):
    """A second one would write over the first one; another participant has its own, in the same log."""
    log = open_log()
    alice = log.channels("alice")
    with pytest.raises(Invalid, match="open already"):
        log.channels("alice")
    bob = log.channels("bob")
    for one in (alice, bob):
        one.ensure_channel(ROOM)
    bob.unwrap_received_message(alice.wrap_outgoing_message(b"hello", ROOM, "a1"))
    assert log.kept_channels() == [("alice", ROOM), ("bob", ROOM)]
    assert log.kept_channel("alice", ROOM).meta.outgoing
    assert not log.kept_channel("bob", ROOM).meta.outgoing
    alice.close()
    again = log.channels("alice")
    again.ensure_channel(ROOM)
    assert again.channel(ROOM).history() == ["a1"]


def test_a_handle_that_only_reads_looks_at_channels_beside_their_owner(open_log):
    """It sees every commit, and can have no channels itself."""
    log = open_log()
    alice = log.channels("alice")
    alice.ensure_channel(ROOM)
    alice.wrap_outgoing_message(b"one", ROOM, "a1")
    observer = open_log(read_only=True)
    with pytest.raises(Invalid, match="reading only"):
        observer.channels("alice")
    assert observer.kept_channels() == [("alice", ROOM)]
    for number in range(2, 5):
        alice.wrap_outgoing_message(b"more", ROOM, f"a{number}")
        kept = observer.kept_channel("alice", ROOM)
        assert [one.message_id for one in kept.history] == [f"a{n}" for n in range(1, number + 1)]
        assert [one.message for one in kept.meta.outgoing] == list(kept.history)
    alice.remove_channel(ROOM)
    assert observer.kept_channels() == []
    assert observer.kept_channel("alice", ROOM) == ChannelData()


def test_what_happens_is_in_the_topic_in_the_same_commit(open_log):
    """Sent, delivered, missing, acknowledged, given up: each as a record, in the order in which it happened."""
    log = open_log()
    alice = log.channels("alice")
    alice.ensure_channel(ROOM)
    alice.wrap_outgoing_message(b"hello", ROOM, "a1")
    alice.unwrap_received_message(wire("b2", "b1", content=b"two"))
    alice.unwrap_received_message(wire("b1", "a1", content=b"one"))
    records = list(log.topic("_channels").read())
    assert [(one.kind, one.headers["message_id"], one.payload) for one in records] == [
        ("sent", b"a1", b"hello"),
        ("missing", b"b2", b""),
        ("acknowledged", b"a1", b""),
        ("delivered", b"b1", b"one"),
        ("delivered", b"b2", b"two"),
    ]
    assert {one.key for one in records} == {ROOM.encode()}
    assert records[1].headers["missing"] == b"b1"


def test_a_log_without_the_topic_keeps_channels_all_the_same(open_log):
    """topic=None leaves the records out."""
    log = open_log()
    alice = log.channels("alice", topic=None)
    alice.ensure_channel(ROOM)
    alice.wrap_outgoing_message(b"hello", ROOM, "a1")
    assert log.topics() == []
    assert [one.message_id for one in log.kept_channel("alice", ROOM).history] == ["a1"]


@pytest.mark.parametrize("participant", ["é" * 512, "p" * 1024, "\udcff" * 1024, "a/b", "a%2Fb"], ids=len)
def test_ids_at_their_limit_are_kept(open_log, participant):
    """Of participant, channel and message at once."""
    log = open_log()
    longest = "c" * 1024
    with log.channels(participant) as channels:
        for channel_id in (longest, ODD_IDS[-3]):
            channels.ensure_channel(channel_id)
            channels.wrap_outgoing_message(b"hello", channel_id, "m" * 1024)
            assert channels.channel(channel_id).persistence.ok
    assert log.kept_channels() == sorted([(participant, longest), (participant, ODD_IDS[-3])])
    assert [one.message_id for one in log.kept_channel(participant, longest).history] == ["m" * 1024]


def test_participants_whose_names_are_alike_are_not_mixed_up(open_log):
    """A slash in a participant's name is none between participant and channel."""
    log = open_log()
    names = [("a", "b/c"), ("a/b", "c"), ("a%2Fb", "c"), ("", "a/b/c")]
    for number, (participant, channel_id) in enumerate(names):
        with log.channels(participant) as channels:
            channels.ensure_channel(channel_id)
            channels.wrap_outgoing_message(b"hello", channel_id, f"m{number}")
    assert log.kept_channels() == sorted(names)
    for number, name in enumerate(names):
        assert [one.message_id for one in log.kept_channel(*name).history] == [f"m{number}"]


def test_the_snapshot_of_a_restart_is_that_of_the_life_before(open_log):
    """Everything that a channel knows: order, clocks, buffers, repairs, marks, hints."""
    clock = ManualClock()
    log = open_log(clock=clock)
    hints = {"a1": b"where a1 is"}
    alice = log.channels("alice", retrieval_hint=lambda channel_id, message_id: hints.get(message_id))
    alice.ensure_channel(ROOM, dialect="nim")
    alice.wrap_outgoing_message(b"hello", ROOM, "a1")
    alice.wrap_outgoing_message(b"hello", ROOM, "a2")
    alice.unwrap_received_message(wire("b3", "b1", "b2"))
    alice.mark_dependencies_met(["b1"], ROOM)
    alice.unwrap_received_message(wire("b9", requests=(HistoryEntry("a1", b"", "alice"),)))
    before = alice.channel(ROOM)
    state = before.snapshot(), before.history(), dict(before.state.hints)
    assert all(state)
    assert before.snapshot().met == ("b1",)
    assert before.snapshot().responses
    log.close()
    alice = open_log(clock=clock).channels("alice")
    alice.ensure_channel(ROOM)
    after = alice.channel(ROOM)
    assert (after.snapshot(), after.history(), dict(after.state.hints)) == state
    assert set(after.state.filter.ids) >= set(after.history())


# -- damage and recovery --------------------------------------------------------------------------------------


def damage(log: Log) -> None:
    """Change a byte of an item behind the log's back."""
    path = log._journal.path
    log.close()
    connection = apsw.Connection(str(path))
    [(rowid, body)] = connection.execute("SELECT rowid, body FROM space_items ORDER BY length(body) DESC LIMIT 1")
    connection.execute("UPDATE space_items SET body = ? WHERE rowid = ?", (body[:-1] + bytes([body[-1] ^ 1]), rowid))
    connection.close()


def test_a_damaged_channel_is_refused_and_reported_once(open_log, caplog):
    """Corrupt, from every operation that needs it; other channels are not concerned."""
    log = open_log()
    with log.channels("alice") as alice:
        alice.ensure_channel(ROOM)
        alice.wrap_outgoing_message(b"hello" * 50, ROOM)
    damage(log)
    alice = open_log().channels("alice")
    alice.ensure_channel("other")
    caplog.set_level(logging.ERROR, "holdfast.channels")
    with pytest.raises(Corrupt):
        alice.ensure_channel(ROOM)
    assert [one.action for one in caplog.records if one.name == "holdfast.channels"] == ["channel_not_loaded"]
    with pytest.raises(Corrupt):
        alice.wrap_outgoing_message(b"hello", ROOM)
    assert alice.channels() == ["other"]


def test_recovering_empty_must_be_asked_for(open_log, caplog):
    """Then the damaged channel starts from nothing, is reported, and is kept from then on."""
    log = open_log()
    with log.channels("alice") as alice:
        alice.ensure_channel(ROOM)
        alice.wrap_outgoing_message(b"hello" * 50, ROOM)
    damage(log)
    log = open_log()
    alice = log.channels("alice", recover="empty")
    alice.ensure_channel(ROOM)
    assert "channel_recovered_empty" in [one.action for one in caplog.records]
    assert alice.channel(ROOM).history() == []
    alice.wrap_outgoing_message(b"hello", ROOM, "a1")
    assert alice.channel(ROOM).persistence.ok
    log.close()
    assert [one.message_id for one in open_log().kept_channel("alice", ROOM).history] == ["a1"]


def test_a_snapshot_of_a_newer_version_is_refused(open_log):
    """Loudly: a channel is never begun anew because a newer holdfast has written it."""
    log = open_log()
    journal = log._journal
    journal.spaces.change(f"channel/alice/{ROOM}", [(b"m", 0, b"\x08\x63\x10\x00")], timeout=5).result()
    with pytest.raises(Corrupt, match="version=99") as caught:
        log.channels("alice").ensure_channel(ROOM)
    assert "another version" in caught.value.hint


def test_a_snapshot_of_another_version_is_read_with_a_migration(open_log):
    """The hook is given to the backend."""
    log = open_log()
    journal = log._journal
    journal.spaces.change(f"channel/alice/{ROOM}", [(b"m", 0, b"\x08\x63\x10\x07")], timeout=5).result()
    backend = LogPersistence(journal, "alice", migrations={99: lambda data: b"\x08\x01" + data[2:]})
    assert backend.load_channel(ROOM).meta == ChannelMeta(7)


def test_more_history_than_todays_limit_is_trimmed_when_loaded(open_log):
    """The oldest go, from disk with the next commit."""
    log = open_log()
    backend = LogPersistence(log._journal, "alice")
    backend.commit(ROOM, ChannelMeta(), HistoryUpdate(tuple(sample_message(f"m{n}") for n in range(30)))).result()
    small = Channels("alice", backend, settings=ChannelSettings(history_max=10))
    small.ensure_channel(ROOM)
    assert small.channel(ROOM).history() == [f"m{n}" for n in range(20, 30)]
    small.wrap_outgoing_message(b"hello", ROOM, "a1")
    kept = log.kept_channel("alice", ROOM)
    assert [one.message_id for one in kept.history] == [*(f"m{n}" for n in range(21, 30)), "a1"]


# -- large ----------------------------------------------------------------------------------------------------


def test_a_huge_cascade_is_kept_and_its_records_can_be_read(open_log):
    """Twenty messages of a megabyte become ready at once: more than one entry of a topic may hold."""
    log = open_log()
    alice = log.channels("alice")
    alice.ensure_channel(ROOM)
    megabyte = os.urandom(2**20)
    for number in range(20):
        alice.unwrap_received_message(wire(f"b{number}", "first", content=megabyte))
    alice.unwrap_received_message(wire("first"))
    assert alice.channel(ROOM).persistence.ok
    assert len(alice.channel(ROOM).history()) == 21
    log.close()
    log = open_log()
    assert len(log.kept_channel("alice", ROOM).history) == 21
    delivered = [one for one in log.topic("_channels").read() if one.kind == "delivered"]
    assert len(delivered) == 21
    assert {len(one.payload) for one in delivered} == {7, 2**20}


def test_an_outage_of_any_length_ends(open_log):
    """What gathered in memory may be more than the journal takes at once; then it goes in parts."""
    log = open_log(journal={"queue_bytes_max": "2MiB", "batch_bytes_max": "512KiB", "payload_bytes_max": "256KiB"})
    alice = log.channels("alice")
    alice.ensure_channel(ROOM)
    with full_disk(log):
        for number in range(30):
            alice.unwrap_received_message(wire(f"b{number}", content=os.urandom(200_000)))
        assert len(alice.channel(ROOM).persistence.pending) == 30
    alice.wrap_outgoing_message(b"hello", ROOM, "a1")
    assert alice.channel(ROOM).persistence.ok
    ids = [*(f"b{number}" for number in range(30)), "a1"]
    assert [one.message_id for one in log.kept_channel("alice", ROOM).history] == ids
    assert [text(one.headers["message_id"]) for one in log.topic("_channels").read()] == ids


def test_many_large_answers_do_not_make_a_snapshot_large(open_log):
    """What somebody misses is in history; the snapshot only says that it is to be sent."""
    log = open_log()
    alice = log.channels("alice")
    alice.ensure_channel(ROOM)
    for number in range(6):
        alice.unwrap_received_message(wire(f"b{number}", content=bytes(2**20)))
    requests = tuple(HistoryEntry(f"b{number}", b"", "bob") for number in range(6))
    alice.unwrap_received_message(wire("asking", requests=requests))
    assert alice.channel(ROOM).stats().responses == 6
    assert alice.channel(ROOM).persistence.ok
    bodies = {key: len(body) for key, _, body in log._journal.spaces.load(f"channel/alice/{ROOM}")}
    assert bodies[b"m"] < 10_000


# -- forks ----------------------------------------------------------------------------------------------------


def in_child(act) -> int:
    """Run in a forked child; its exit status."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)  # a thread may wait for a lock that nobody holds
        try:
            act()
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_child_refuses_and_harms_nothing(open_log):
    """Whatever lock was held when it was forked; the parent goes on."""
    log = open_log()
    alice = log.channels("alice")
    alice.ensure_channel(ROOM)
    alice.wrap_outgoing_message(b"hello", ROOM, "a1")
    alice.start_periodic_tasks()

    def act() -> None:
        operations = [
            lambda: alice.wrap_outgoing_message(b"child", ROOM, "c1"),
            lambda: alice.ensure_channel("new"),
            lambda: alice.unwrap_received_message(wire("b1")),
            lambda: alice.remove_channel(ROOM),
            alice.run_repair_sweep,
            log.kept_channels,
        ]
        for operation in operations:
            with pytest.raises(Closed) as caught:
                operation()
            assert caught.value.reason == "forked"
        assert alice.channel(ROOM).history() == ["a1"]
        alice.close()
        log.close()

    with alice.channel(ROOM).lock:
        assert in_child(act) == 0
    alice.wrap_outgoing_message(b"parent", ROOM, "a2")
    log.close()
    assert [one.message_id for one in open_log().kept_channel("alice", ROOM).history] == ["a1", "a2"]


# -- other processes ------------------------------------------------------------------------------------------


def test_another_process_sees_what_was_acknowledged(open_log):
    """A handle that only reads, elsewhere, while the owner has the log open."""
    log = open_log()
    alice = log.channels("alice")
    alice.ensure_channel(ROOM)
    alice.wrap_outgoing_message(b"hello", ROOM, "a1")
    code = (
        "import sys, holdfast\n"
        "with holdfast.open(sys.argv[1], read_only=True) as log:\n"
        "    print(log.kept_channels(), [m.message_id for m in log.kept_channel('alice', 'room').history])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(log.path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[('alice', 'room')] ['a1']"


def test_many_commits_under_way_become_one_group(open_log):
    """Nobody waits inside of the backend: what many threads commit meanwhile is stored together."""
    log = open_log()
    alice = log.channels("alice")
    topic = log.topic("_channels")
    rooms = [f"room {number}" for number in range(8)]
    for room in rooms:
        alice.ensure_channel(room)
    before = log.stats().journal.groups_total
    threads = [
        threading.Thread(target=alice.wrap_outgoing_message, args=(b"hello", room, f"in {room}")) for room in rooms
    ]
    with stalled(topic):
        for thread in threads:
            thread.start()
        while log.stats().journal.queue_records < len(rooms):
            pass
    for thread in threads:
        thread.join()
    assert log.stats().journal.groups_total - before <= 3
    assert all(log.kept_channel("alice", room).meta.outgoing for room in rooms)


def test_the_sample_of_the_contract_has_something_of_everything():
    """Else the contract would prove less than it says."""
    meta = sample_meta()
    assert all(getattr(meta, name) for name in meta.__struct_fields__)
