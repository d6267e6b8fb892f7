"""Clients of the socket that lie, stammer, hang up or only sit there: they are disconnected, and the log goes on."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import msgspec
import pytest

import holdfast
from holdfast import Log
from holdfast.journal.journal import Run
from holdfast.journal.queue.forwarded import ForwardedProduced, ForwardedRows, ForwardedUnit, Item
from holdfast.journal.state.operations import ChangeSpace
from holdfast.journal.state.partition import Partition
from holdfast.model.record_columns import Columns, EncodedRows
from holdfast.owner import wire
from holdfast.owner.group_frames import GroupHead, PackedGroup
from holdfast.sharing import socket_place
from holdfast.sharing.frame_reader import FrameReader, send
from holdfast.sharing.hosting import host
from holdfast.sharing.membership import settings_digests

pytestmark = pytest.mark.disk

Open = Callable[..., Log]


class Client:
    """Somebody who speaks the protocol, as far as it likes."""

    def __init__(self, log: Log, *, says_hello: bool = True) -> None:
        self.sock = socket_place.connect(log.path, 10)
        self.session = os.urandom(16)
        self._frames = FrameReader(self.sock, {**wire.FROM_OWNER, **wire.BEFORE_WELCOME})
        if says_hello:
            digests = settings_digests(log.settings)
            hello = wire.Hello(wire.PROTOCOL, "x", bytes.fromhex(log.id), self.session, 1, digests, os.urandom(32))
            self.send(wire.frame(wire.HELLO, hello))
            kind, said = self.receive()
            assert kind == wire.WELCOME, said

    def send(self, buffers: list[bytes | memoryview]) -> None:
        send(self.sock, buffers)

    def receive(self) -> tuple[int, msgspec.Struct | bytes]:
        while (found := self._frames.next()) is None:
            if not self._frames.fill():
                return 0, b"hung up"
        return found[0], wire.decoded(found[0], found[1])

    def is_hung_up(self) -> bool:
        try:
            return self.receive()[0] == 0
        except (ConnectionError, wire.BadFrame):
            return True

    def close(self) -> None:
        self.sock.close()


@pytest.fixture
def log(open_log: Open) -> Iterator[Log]:
    log = open_log(share=True)
    log.topic("t").consumer("c").close()  # which makes a topic of holdfast's own
    log.executions.start("k")
    assert "_executions" in log.topics()
    yield log
    offset = log.topic("t").append(b"goes on").offset  # it goes on, and what was taken can be read
    assert [record.payload for record in log.topic("t").read()][offset] == b"goes on"


def partition_of(log: Log, topic: str = "t") -> Partition:
    return log._journal.topics[topic][0]


def row(payload: bytes = b"x", time: int = 1, extra: object = None, unique: bytes | None = None) -> tuple[object, ...]:
    return payload, time, extra, unique


def rows(log: Log, *given: object) -> list[Item]:
    return [ForwardedRows(partition_of(log), list(given), 0)]  # type: ignore[arg-type]


def test_a_group_of_a_client_that_behaves_is_written(log: Log) -> None:
    client = Client(log)
    client.send(PackedGroup(1, rows(log, row(), row(extra=(b"key", b"kind", None)))).buffers(1))
    kind, answer = client.receive()
    assert kind == wire.ANSWER
    assert isinstance(answer, wire.GroupAnswer)
    assert (answer.sequence, answer.outcomes[0].runs[0].first) == (1, 0)
    client.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"\0" * 16,
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff" * 64,
        wire.HEADER.pack(wire.HELLO, 1, 0, 2**31, 0),
        wire.HEADER.pack(wire.HELLO, 1, 0, 1, 2**60),
        wire.HEADER.pack(wire.HELLO, 2, 0, 1, 0) + b"\0",
        wire.HEADER.pack(wire.HELLO, 1, 0, 3, 0) + b"\xc1\xc1\xc1",
        wire.HEADER.pack(wire.GROUP, 1, 0, 1, 0) + b"\0",
        wire.HEADER.pack(wire.BYE, 1, 0, 0, 0),
        wire.HEADER.pack(wire.CALL, 1, 0, 1, 0) + b"\0",
    ],
)
def test_who_does_not_begin_with_a_hello_is_hung_up_on(log: Log, sent: bytes) -> None:
    client = Client(log, says_hello=False)
    client.send([sent])
    assert client.is_hung_up()
    client.close()


def bad_items(log: Log) -> dict[str, list[Item]]:
    partition, stranger = partition_of(log), Partition(999, "u", 0, bytes(16), partition_of(log).signal)
    too_large = log.settings.journal.payload_bytes_max + 1

    def unit(*operations: object) -> list[Item]:
        return [ForwardedUnit(list(operations), 1, 1)]  # type: ignore[arg-type]

    return {
        "no items": [],
        "no rows": rows(log),
        "another log's partition": [ForwardedRows(stranger, [row()], 0)],  # type: ignore[list-item]
        "a payload that is text": rows(log, row("x")),  # type: ignore[arg-type]
        "a payload that is too large": rows(log, row(bytes(too_large))),
        "a time beyond 64 bits": rows(log, row(time=2**63)),
        "a time that is a fraction": rows(log, row(time=1.5)),  # type: ignore[arg-type]
        "a row with a hole": rows(log, (b"x", 1, None)),
        "a kind that is no text": rows(log, row(extra=(None, b"\xff", None))),
        "headers that do not decode": rows(log, row(extra=(None, None, b"\xc1"))),
        "a key that is too large": rows(log, row(extra=(bytes(10_000), None, None))),
        "a hash that is too short": rows(log, row(unique=b"short")),
        "no operations": unit(),
        "columns that do not fit": unit(Run.unplaced(partition, Columns([b"x", b"y"], [1]))),
        "an extra of nobody": unit(Run.unplaced(partition, Columns([b"x"], [1], {7: (b"k", None, None)}))),
        "a space without a name": unit(ChangeSpace(b"")),
        "a space of holdfast's own": unit(ChangeSpace(b"execution-requests", [(b"k", 0, b"v")])),
        "rows of holdfast's own topic": [ForwardedRows(partition_of(log, "_consumers"), [row()], 1)],
        "a batch of holdfast's own topic": unit(Run.unplaced(partition_of(log, "_executions"), Columns([b"x"], [1]))),
        "a producer of holdfast's own topic": [
            ForwardedProduced(b"p", 1, 1, ForwardedRows(partition_of(log, "_consumers"), [row()], 1))
        ],
        "a producer's batch of holdfast's own topic": [
            ForwardedProduced(b"p", 1, 1, unit(Run.unplaced(partition_of(log, "_consumers"), Columns([b"x"], [1])))[0])
        ],
        "a producer's change of a space": [
            ForwardedProduced(b"p", 1, 1, unit(ChangeSpace(b"consumers", [(b"k", 0, b"v")]))[0])
        ],
        "a space's key that is too large": unit(ChangeSpace(b"space/s", [(bytes(100_000), 0, b"")])),
        "typed rows in no number": unit(Run.unplaced(partition, EncodedRows(0, 1, 1, b"", b""))),
    }


def test_a_group_that_is_not_one_is_hung_up_on_and_writes_nothing(log: Log) -> None:
    for what, items in bad_items(log).items():
        client = Client(log)
        client.send(PackedGroup(1, items).buffers(1))
        assert client.is_hung_up(), what
        client.close()
    assert log.marks("t")[0].durable == 0


@pytest.mark.parametrize(
    "head",
    [GroupHead(1, 1, []), GroupHead(0, 0, []), GroupHead(2**63, 0, []), [1, 1, [["r", 1, -1]]], [1, 1, [["z", 1]]], []],
)
def test_a_head_that_says_nonsense_is_hung_up_on(log: Log, head: object) -> None:
    packed = msgspec.msgpack.encode(head)
    client = Client(log)
    client.send([wire.HEADER.pack(wire.GROUP, 1, 0, len(packed), 0) + packed])
    assert client.is_hung_up()
    client.close()


def test_bytes_that_are_changed_at_random_do_no_harm(log: Log, seed: int, is_sampled: bool) -> None:
    random = Random(seed)
    operations = [
        Run.unplaced(partition_of(log), Columns([b"x", b"y"], [1, 2])),
        ChangeSpace(b"space/s", [(b"k", 0, b"v")]),
    ]
    items: list[Item] = [*rows(log, row(), row(extra=(b"k", b"k", None))), ForwardedUnit(operations, 2, 4)]
    whole = b"".join(PackedGroup(1, items).buffers(1))
    for _ in range(100 if is_sampled else 2000):
        damaged = bytearray(whole)
        for _ in range(random.randint(1, 3)):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        cut = random.randrange(len(damaged)) if random.random() < 0.2 else len(damaged)
        client = Client(log)
        with suppress(ConnectionError):
            client.send([bytes(damaged[:cut])])
            client.sock.shutdown(socket.SHUT_WR)
            while client.receive()[0]:
                pass
        client.close()
    assert log.space("mine").get("k") is None
    assert all(record.payload is not None for record in log.topic("t").read())


def test_a_sequence_that_leaves_a_gap_is_an_error_and_nothing_else(log: Log) -> None:
    client = Client(log)
    client.send(PackedGroup(7, rows(log, row())).buffers(1))
    _, answer = client.receive()
    assert isinstance(answer, wire.GroupAnswer)
    assert answer.error is not None
    assert "expected=1" in answer.error.message
    client.close()


def test_a_call_that_nobody_knows_is_answered_with_an_error(log: Log) -> None:
    client = Client(log)
    for name, body in (("launch", b""), ("create_topic", b"\xc1"), ("create_topic", b"")):
        client.send(wire.frame(wire.CALL, wire.Call(1, name), body))
        kind, result = client.receive()
        assert kind == wire.RESULT
        assert isinstance(result, wire.Result)
        assert result.error is not None
    client.close()


def test_a_client_that_never_reads_is_hung_up_on(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.sharing.hosting.client_connection._UNSENT_BYTES_MAX", 1000)
    client = Client(log)
    client.sock.settimeout(60)
    call = b"".join(wire.frame(wire.CALL, wire.Call(1, "x" * 200)))
    with pytest.raises(ConnectionError):
        for _ in range(100_000):
            client.send([call])
    client.close()


def test_who_says_nothing_is_hung_up_on(open_log: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_HELLO_S", 0.0)
    log = open_log(share=True)
    client = Client(log, says_hello=False)
    client.sock.settimeout(60)
    assert client.is_hung_up()
    client.close()


def test_ten_thousand_idle_connections_are_refused_beyond_a_limit(log: Log) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    asked = 10_000 if hard == resource.RLIM_INFINITY or hard > 12_000 else hard // 2
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16_000) if hard >= 0 else 16_000, hard))
    held: list[socket.socket] = []
    refused = 0
    try:
        while len(held) < asked:
            with suppress(BlockingIOError):  # the line of those who wait is full
                held.append(socket_place.connect(log.path, 10))
        for sock in held:
            sock.setblocking(False)
            try:
                refused += bool(sock.recv(1))
            except BlockingIOError:
                pass
        assert log.topic("t").append(b"beside ten thousand").offset == 0
        assert refused > 0
    finally:
        for sock in held:
            sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_connections_leave_descriptors_to_the_owner(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
    try:
        assert socket_place.connections_max() == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert holdfast.__version__
