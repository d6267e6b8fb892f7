"""What has left history is answered from `_channels`: from its tail, from segments, encrypted or not; by its time."""

from __future__ import annotations

from contextlib import contextmanager

import msgspec
import pytest

import holdfast
from holdfast import Keyring, Settings
from holdfast.channels import Channels, HistoryEntry, SdsMessage
from holdfast.channels.protocol import answer_limits
from holdfast.channels.wire.detect import dialect
from holdfast.channels.wire.nim import NIM
from holdfast.errors import Unavailable
from holdfast.testing import ManualClock

pytestmark = pytest.mark.disk

ROOM = "room"


@contextmanager
def opened(directory, clock, keyring=None, **channels):
    settings = Settings.from_mapping({"channels": {"history_max": 5, "bloom_capacity": 100, **channels}})
    with holdfast.open(directory, settings=settings, clock=clock, keyring=keyring) as log:
        alice = log.channels("alice")
        alice.ensure_channel(ROOM)
        answers: list[SdsMessage] = []
        alice.set_callbacks(repair_ready=lambda event: answers.append(NIM.decode(event.data)))
        yield log, alice, answers


def wire(message_id: str, *causes: str, requests: tuple[str, ...] = (), sender: str = "bob") -> bytes:
    named = tuple(HistoryEntry(cause, b"hint", "bob") for cause in causes)
    asked = tuple(HistoryEntry(one, b"", "alice" if one[0] == "a" else "bob") for one in requests)
    return NIM.encode(SdsMessage(message_id, ROOM, 1, b"content of " + message_id.encode(), sender, named, b"", asked))


def converse(alice: Channels, clock: ManualClock) -> dict[str, SdsMessage]:
    """Forty messages, of both; tells what they were."""
    said = {}
    for number in range(20):
        clock.advance(60)
        alice.unwrap_received_message(wire(f"b{number}", *(f"b{cause}" for cause in range(max(0, number - 3), number))))
        said[f"b{number}"] = alice.channel(ROOM).state.history.get(f"b{number}")
        alice.wrap_outgoing_message(b"answer %d" % number, ROOM, f"a{number}")
        said[f"a{number}"] = alice.channel(ROOM).state.history.get(f"a{number}")
    return said


def ask(alice: Channels, clock: ManualClock, *message_ids: str, asker: str = "q") -> None:
    alice.unwrap_received_message(wire(asker, requests=message_ids, sender="carol"))
    for _ in range(10):
        clock.advance(1)
        alice.run_repair_sweep()


@pytest.mark.parametrize("keyring", [None, Keyring({"k1": b"\x05" * 32})], ids=["plain", "encrypted"])
@pytest.mark.parametrize("place", ["tail", "segments", "both"])
def test_what_has_left_history_is_answered_as_it_was(tmp_path, place, keyring):
    """Content, sender, time and causes, with their hints."""
    clock = ManualClock()
    with opened(tmp_path / "log", clock, keyring) as (log, alice, answers):
        said = converse(alice, clock)
        assert "b3" not in alice.channel(ROOM).history()
        if place == "tail":
            ask(alice, clock, "b3", "a4", "a17", "b0")
            assert {one.message_id: one for one in answers} == {name: said[name] for name in ("b3", "a4", "a17", "b0")}
            return
    with opened(tmp_path / "log", clock, keyring) as (log, alice, answers):  # closing sealed it all
        assert log.topic("_channels").watermark().offset > 30
        if place == "both":
            clock.advance(60)
            alice.wrap_outgoing_message(b"later", ROOM, "a90")
            said["a90"] = alice.channel(ROOM).state.history.get("a90")
            for number in range(10):
                alice.unwrap_received_message(wire(f"c{number}"))
            assert "a90" not in alice.channel(ROOM).history()
        ask(alice, clock, *(name for name in ("b3", "a4", "a17", "b0", "a90") if name in said))
        expected = {name: said[name] for name in ("b3", "a4", "a17", "b0", "a90") if name in said}
        assert {one.message_id: one for one in answers} == expected


def test_what_retention_has_removed_is_not_answered_and_troubles_nobody(tmp_path, caplog):
    clock = ManualClock()
    with opened(tmp_path / "log", clock) as (_, alice, _):
        converse(alice, clock)
    with opened(tmp_path / "log", clock) as (_, alice, _):
        for number in range(10):
            alice.unwrap_received_message(wire(f"c{number}"))
    with opened(tmp_path / "log", clock) as (log, alice, answers):
        log.set_retention("_channels", records_max=1)
        log.retain()
        ask(alice, clock, "b3", "a4", "b0", "c1")
        assert [one.message_id for one in answers] == ["c1"], "of a later segment"
        assert not alice.channel(ROOM).state.responses
        assert "not found" not in caplog.text


def test_a_read_that_fails_is_as_if_nothing_was_found(tmp_path, caplog):
    """It is logged, holds up nobody, and the next one is tried."""
    clock = ManualClock()
    with opened(tmp_path / "log", clock) as (_, alice, answers):
        converse(alice, clock)
        read = alice.backend._read

        def fail(**times):
            raise Unavailable("the disk is gone", hint="")

        alice.backend._read = fail
        ask(alice, clock, "b3", "b4", "b5", "b6")
        assert answers == []
        assert "the disk is gone" in caplog.text
        alice.backend._read = read
        ask(alice, clock, "b3", "b4", "b5", "b6", asker="q2")
        assert {one.message_id for one in answers} == {"b3", "b4", "b5", "b6"}


def test_no_lock_is_held_while_the_log_is_read(tmp_path):
    """Whatever it takes: the channel goes on meanwhile."""
    clock = ManualClock()
    with opened(tmp_path / "log", clock) as (_, alice, _):
        converse(alice, clock)
        read = alice.backend._read
        sent = []

        def slow(**times):
            sent.append(alice.wrap_outgoing_message(b"meanwhile", ROOM))  # would wait forever for a lock that is held
            return read(**times)

        alice.backend._read = slow
        ask(alice, clock, "b3", "b4", "b5", "b6")
        assert sent


def test_answers_from_the_log_have_the_same_budget(tmp_path, monkeypatch):
    """Who asks for everything does not get it all at once."""
    clock = ManualClock()
    monkeypatch.setattr(answer_limits, "_BUDGET_S", 400)
    limits = {"repair_bytes_per_s": 1}
    with opened(tmp_path / "log", clock, **limits) as (_, alice, answers):
        converse(alice, clock)
        ask(alice, clock, *(f"b{number}" for number in range(15)))
        assert 1 <= len(answers) <= 8


def test_what_says_nothing_of_what_was_remembered_goes_on_from_there(tmp_path):
    """As a snapshot of nim-sds: its history is known from then on, also when it has left; of records without causes no
    message is made.
    """
    clock = ManualClock()
    with opened(tmp_path / "log", clock) as (log, alice, _):
        converse(alice, clock)
        alice.close()
        forget(log)
    with opened(tmp_path / "log", clock) as (log, alice, answers):
        assert not log.kept_channel("alice", ROOM).known
        ready = []
        alice.set_callbacks(message_ready=lambda event: ready.append(event.message_id))
        alice.unwrap_received_message(wire("b18"))
        for number in range(8):
            alice.unwrap_received_message(wire(f"c{number}", "b18", "a19"))
        assert ready == [f"c{number}" for number in range(8)]
    with opened(tmp_path / "log", clock) as (log, alice, answers):
        assert alice.unwrap_received_message(wire("b18")).duplicate
        assert {"b18", "a19", "c0"} <= {one.message_id for one in log.kept_channel("alice", ROOM).known}
        ask(alice, clock, "b18", "c1", "c2", "c0", "a19")
        assert {one.message_id for one in answers} == {"c0", "c1", "c2"}


def forget(log) -> None:
    """Take from the space what another implementation would not have kept."""
    from holdfast.channels.keeping.storage import decode_meta, encode_meta, stored_message

    name = f"channel/alice/{ROOM}"
    items = {key: (number, body) for key, number, body in log._journal.spaces.load(name)}
    messages = [stored_message(body) for key, (_, body) in items.items() if key[:1] in (b"h", b"w")]
    history = {message.message_id: message for message in messages}
    meta = decode_meta(items[b"m"][1], elsewhere=history)
    gone = [key for key in items if key[:1] == b"k"]
    bare = msgspec.structs.replace(meta, filter_ids=0, filter_rolled=False, lost=())
    snapshot = encode_meta(bare, elsewhere=history)
    log._journal.spaces.change(name, [(b"m", 0, snapshot)], gone, timeout=5).result(5)


def test_both_formats_are_answered_in_their_own(tmp_path):
    """What the topic has is the message, not its bytes."""
    clock = ManualClock()
    settings = Settings.from_mapping({"channels": {"history_max": 2, "bloom_capacity": 100, "dialect": "rfc"}})
    with holdfast.open(tmp_path / "log", settings=settings, clock=clock) as log:
        alice = log.channels("alice")
        alice.ensure_channel(ROOM)
        said = [dialect("rfc").decode(alice.wrap_outgoing_message(b"%d" % number, ROOM)) for number in range(6)]
        answers = []
        alice.set_callbacks(repair_ready=lambda event: answers.append(dialect("rfc").decode(event.data)))
        asked = tuple(HistoryEntry(one.message_id, b"", "alice") for one in said)
        question = SdsMessage("q", ROOM, clock.now_us() // 1000, b"q", "carol", (), b"", asked)
        alice.unwrap_received_message(dialect("rfc").encode(question))
        for _ in range(10):
            clock.advance(1)
            alice.run_repair_sweep()
        assert {one.message_id for one in answers} == {one.message_id for one in said}
