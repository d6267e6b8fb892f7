"""Opening a shared log: who may, who is refused, and with which remedy."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import holdfast
from holdfast import Invalid, Keyring, Log, OutcomeUnknown, Settings, Unavailable
from holdfast.crypto.segment_key import MessageKeys
from holdfast.owner import wire
from holdfast.sharing import key_proof, membership, socket_place
from holdfast.sharing.frame_reader import FrameReader, receive_one, send
from holdfast.sharing.hosting import greeting

pytestmark = pytest.mark.disk

Open = Callable[..., Log]


def test_several_handles_are_one_log(open_log: Open) -> None:
    first, second = open_log(share=True), open_log(share=True)
    assert first.id == second.id
    assert first.topic("t", partitions=2).append(b"one", partition=1).offset == 0
    assert second.topic("t").append(b"two", partition=1).offset == 1
    assert [record.payload for record in first.topic("t").read()] == [b"one", b"two"]
    assert [marks.durable for marks in second.marks("t")] == [0, 2]
    first.close()  # the one that owns it; the other takes over
    assert second.topic("t").append(b"three", partition=1).offset == 2
    second.close()
    with open_log() as alone:
        assert [record.payload for record in alone.topic("t").read()] == [b"one", b"two", b"three"]


def test_a_shared_log_is_not_opened_alone_and_the_hint_says_how(open_log: Open) -> None:
    open_log(share=True)
    with pytest.raises(Unavailable) as refused:
        open_log()
    assert "share=True" in refused.value.hint


def test_a_log_that_is_open_alone_is_not_shared_and_the_hint_says_how(open_log: Open) -> None:
    open_log()
    with pytest.raises(Unavailable, match="does not share it") as refused:
        open_log(share=True)
    assert "share=True" in refused.value.hint


def test_a_shared_log_can_be_read_beside(open_log: Open) -> None:
    shared = open_log(share=True)
    shared.topic("t").append(b"one")
    with open_log(read_only=True) as reading:
        assert [record.payload for record in reading.topic("t").read()] == [b"one"]
    with pytest.raises(Invalid):
        open_log(read_only=True, share=True)


def test_other_settings_than_the_owners_are_refused_by_name(open_log: Open) -> None:
    open_log(share=True)
    with pytest.raises(Invalid, match=r"other settings than the log's owner: journal\.payload_bytes_max\n") as refused:
        open_log(share=True, journal={"payload_bytes_max": 1000})
    assert "same settings" in refused.value.hint


def test_what_a_process_does_for_itself_may_differ(tmp_path: Path) -> None:
    """A server beside web workers has settings of its own, and so has what each process tells about itself."""
    other = {
        "server": {"requests_max": 7},
        "telemetry": {"append_spans": "off"},
        "segments": {"seal_on_close": False},
        "journal": {"ack_timeout_ms": 50_000, "close_timeout_ms": 50_000},
        "shipping": {"shipped_timeout_ms": 50_000},
    }
    path = tmp_path / "log"
    with holdfast.open(path, share=True, settings={}) as first:
        with holdfast.open(path, share=True, settings=other) as log:
            assert log.topic("t").append(b"one").offset == 0
        assert first.topic("t").append(b"two").offset == 1


def test_all_other_settings_must_agree() -> None:
    """A setting that is added later is compared, unless somebody decides that it need not be."""
    compared = set(membership.settings_digests(Settings()))
    own = {f"{section}.{name}" for section in ("server", "telemetry") for name in _names(section)} | {
        "journal.ack_timeout_ms",
        "journal.close_timeout_ms",
        "segments.seal_on_close",
        "shipping.shipped_timeout_ms",
    }
    assert compared | own == {f"{s}.{name}" for s in Settings.__struct_fields__ for name in _names(s)}
    assert not compared & own


def _names(section: str) -> list[str]:
    return list(msgspec.to_builtins(getattr(Settings(), section)))


def test_another_store_than_the_owners_is_refused(open_log: Open, tmp_path: Path) -> None:
    open_log(share=True)
    with pytest.raises(Invalid, match=r"other settings than the log's owner: store\.url\n"):
        open_log(share=True, store=tmp_path / "store")


def test_an_encrypted_log_is_shared_only_with_its_keys(open_log: Open, keyring: Keyring) -> None:
    log = open_log(share=True, keyring=keyring)
    other = open_log(share=True, keyring=keyring)
    assert other.topic("t").append(b"secret").offset == 0
    assert [record.payload for record in log.topic("t").read()] == [b"secret"]
    for wrong in (None, Keyring.generate()):
        with pytest.raises(Invalid, match="keys"):
            open_log(share=True, keyring=wrong)


def test_an_older_client_is_refused_by_the_owner_and_an_older_owner_by_the_client(
    open_log: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = open_log(share=True)
    hello = membership.Membership.hello
    older = {"protocol": 0, "version": "0.0.9"}
    monkeypatch.setattr(membership.Membership, "hello", lambda *args: msgspec.structs.replace(hello(*args), **older))
    with pytest.raises(Invalid, match=r"another version .* version=0\.0\.9 .* owner_version=0\.1") as refused:
        open_log(share=True)
    assert "same version" in refused.value.hint
    monkeypatch.undo()
    monkeypatch.setattr(greeting, "Welcome", lambda _, __, *others: wire.Welcome(0, "0.0.9", *others))
    with pytest.raises(Invalid, match=r"another version .* version=0\.1.* owner_version=0\.0\.9"):
        open_log(share=True)
    monkeypatch.undo()
    assert log.topic("t").append(b"goes on").offset == 0


def test_a_proof_of_keys_is_worth_nothing_on_another_connection(open_log: Open, keyring: Keyring) -> None:
    """Neither a member's, though hello and session are the same, nor the owner's."""
    log = open_log(share=True, keyring=keyring)
    keys = MessageKeys(keyring, None, bytes.fromhex(log.id), os.urandom)
    hello = wire.Hello(
        wire.PROTOCOL,
        "x",
        bytes.fromhex(log.id),
        os.urandom(16),
        1,
        membership.settings_digests(log.settings),
        os.urandom(32),
        True,
    )
    seen: list[bytes] = []
    proof = welcome = None
    for expected in (wire.WELCOME, wire.REFUSED):
        with socket_place.connect(log.path, 5) as sock:
            sock.settimeout(20)
            send(sock, wire.frame(wire.HELLO, hello))
            challenge = receive_one(sock)[1]
            assert isinstance(challenge, wire.Challenge)
            seen.append(challenge.nonce)
            proof = proof or wire.Proof(key_proof.make_proof(keys, key_proof.HELLO, hello, challenge.nonce))
            send(sock, wire.frame(wire.PROOF, proof))
            kind, said, _ = receive_one(sock)
            assert kind == expected
            welcome = welcome or said
    assert seen[0] != seen[1]
    assert isinstance(welcome, wire.Welcome)
    key_proof.check_proof(keys, key_proof.WELCOME, hello, seen[0], welcome.proof)
    for other, nonce in ((hello, seen[1]), (msgspec.structs.replace(hello, nonce=bytes(32)), seen[0]), (hello, b"")):
        with pytest.raises(Invalid, match="same keys"):
            key_proof.check_proof(keys, key_proof.WELCOME, other, nonce, welcome.proof)


def test_the_hello_of_a_version_to_come_is_understood_far_enough_to_refuse_it(open_log: Open) -> None:
    log = open_log(share=True)
    sock = socket_place.connect(log.path, 5)
    said = {
        "protocol": 99, "version": "9.9", "log": bytes.fromhex(log.id), "session": bytes(16), "pid": 1, "settings": {},
        "nonce": bytes(32),
        "something": "new",
    }  # fmt: skip
    head = msgspec.msgpack.encode(said)
    send(sock, [wire.HEADER.pack(wire.HELLO, 1, 0, len(head), 0) + head])
    frames = FrameReader(sock, wire.BEFORE_WELCOME)
    assert frames.fill()
    found = frames.next()
    assert found is not None
    assert found[0] == wire.REFUSED
    assert " version=9.9 " in str(wire.decoded(*found[:2]))
    sock.close()


def test_the_socket_is_its_owners_alone(open_log: Open) -> None:
    log = open_log(share=True)
    mode = os.stat(log.path / "SOCKET").st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


def test_another_user_is_refused_at_both_ends(open_log: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(share=True)
    here = os.geteuid()
    monkeypatch.setattr(socket_place, "peer_user", lambda sock: here + 1)
    with pytest.raises(Unavailable, match="another user"):
        open_log(share=True)
    monkeypatch.setattr(socket_place, "check_peer", lambda sock: None)  # the client's own check
    plain = socket_place.connect(log.path, 5)
    monkeypatch.undo()
    plain.close()
    assert log.topic("t").append(b"goes on").offset == 0


def test_a_path_may_be_longer_than_an_address(tmp_path: Path, open_log: Open) -> None:
    name = "/".join(["a-rather-long-name-of-a-directory"] * 6)
    first, second = open_log(name, share=True), open_log(name, share=True)
    assert len(os.fsencode(first.path / "SOCKET")) > 108
    assert second.topic("t").append(b"one").offset == 0


def test_a_socket_that_a_dead_owner_left_is_replaced(tmp_path: Path, open_log: Open) -> None:
    open_log(share=True).close()
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "log" / "SOCKET"))
    left.close()
    with open_log(share=True) as log:
        assert log.topic("t").append(b"one").offset == 0


def test_nothing_is_left_behind_when_the_last_one_has_closed(open_log: Open) -> None:
    first, second = open_log(share=True), open_log(share=True)
    second.topic("t").append(b"one")
    first.close()
    second.close()
    assert not {"SOCKET", "durable.db-wal"} & set(os.listdir(first.path))


@pytest.mark.parametrize("last", [0, 1])
def test_the_last_one_out_seals(open_log: Open, last: int) -> None:
    logs = [open_log(share=True, segments={"seal_on_close": True}) for _ in range(2)]
    logs[1].topic("t").append(b"one")
    for log in (logs[1 - last], logs[last]):
        log.close()
    with open_log(segments={"seal_on_close": True}) as log:
        assert log.marks("t")[0].sealed == 1


def test_what_is_not_answered_in_time_is_an_unknown_outcome(open_log: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(share=True)
    other = open_log(share=True, journal={"ack_timeout_ms": 60_000, "flush_interval_ms": 10.0})  # one's own patience
    topic = other.topic("t")
    from holdfast.sharing.hosting.host import Host

    monkeypatch.setattr(Host, "_answer", lambda self: False)
    with pytest.raises(OutcomeUnknown) as unknown:
        topic.append(b"one", timeout=0.2)
    monkeypatch.undo()
    assert unknown.value.ticket is not None
    assert unknown.value.ticket.result(60).offset == 0  # type: ignore[union-attr]
    assert log.marks("t")[0].durable == 1
