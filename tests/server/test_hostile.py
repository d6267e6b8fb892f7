"""Hostile clients: whatever they send, or do not send, the server answers others and the log goes on."""

from __future__ import annotations

import http.client
import os
import random
import resource
import socket
import struct
import time
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest

from holdfast import errors
from holdfast.owner.wire import HEADER
from holdfast.server.api_answers import ARROW
from tests.hostile.mutations import flipped, other_value
from tests.remote import groups
from tests.server.conftest import PATIENCE, Server, serving

pytestmark = pytest.mark.disk

HEAD = b"POST /v1/topics/t/records HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def hasty(tmp_path_factory):
    """A server that is quickly out of patience, and has few places."""
    with serving() as start:
        directory = tmp_path_factory.mktemp("hasty") / "log"
        yield start(
            directory,
            headers_timeout_ms=1000,
            body_timeout_ms=1000,
            idle_timeout_ms=2000,
            send_timeout_ms=500,
            connections_max=50,
            headers_bytes_max=16384,
            heartbeat_ms=100,
            followers_max=3,
            requests_max=8,
        )


@pytest.fixture(autouse=True)
def goes_on(hasty: Server):
    """After each of these tests the log takes records and gives them back, and nothing was said that must not be."""
    yield
    reply = patiently(lambda: hasty.post("/v1/topics/after/records", {"payload": "still here"}))
    assert reply.status == 200
    place = f"{reply.json['partition']}/{reply.json['offset']}"
    assert patiently(lambda: hasty.get(f"/v1/topics/after/records/{place}")).body == b"still here"


def patiently(ask):
    """A client that is refused for lack of places comes again."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            reply = ask()
            if reply.status not in (429, 503):
                return reply
        except (ConnectionError, http.client.HTTPException):
            pass
        assert time.monotonic() < deadline


def drained(client: socket.socket) -> bytes:
    """What comes until the other side closes."""
    found = b""
    try:
        while part := client.recv(65536):
            found += part
    except ConnectionError:
        pass
    return found


def test_who_sends_nothing_is_let_go(hasty):
    with hasty.socket() as client:
        assert drained(client) == b""


def test_who_sends_headers_drop_by_drop_is_let_go(hasty):
    """The whole of them has one deadline, however lively the connection looks."""
    with hasty.socket() as client:
        client.settimeout(PATIENCE)
        said = b""
        try:
            for byte in HEAD * 50:
                client.sendall(bytes([byte]))
                client.settimeout(0.02)
                try:
                    said += client.recv(65536)
                    break
                except TimeoutError:
                    continue
        except ConnectionError:
            pass
    assert said == b"" or said.startswith(b"HTTP/1.1 408 ")


def test_who_sends_a_body_drop_by_drop_is_let_go(hasty):
    with hasty.socket() as client:
        client.sendall(HEAD + b"content-length: 1000\r\n\r\n{")
        assert drained(client).startswith(b"HTTP/1.1 408 ")


def test_who_stays_without_a_request_is_let_go(hasty):
    with hasty.socket() as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert drained(client).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "headers",
    [b"x: " + b"a" * 20000 + b"\r\n", b"x: " + b"a" * 10_000_000, b"a: b\r\n" * 200, b"a" * 100_000 + b": b\r\n"],
    ids=["one", "endless", "many", "name"],
)
def test_headers_that_are_too_large_are_refused(hasty, headers):
    with hasty.socket() as client:
        try:
            client.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + headers + b"\r\n")
        except ConnectionError:
            pass
        answer = drained(client)
    assert (answer == b"" and len(headers) > 2**20) or answer.startswith(b"HTTP/1.1 431 ")


def test_an_endless_path_is_refused(hasty):
    with hasty.socket() as client:
        try:
            client.sendall(b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n")
        except ConnectionError:
            pass
        answer = drained(client)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),  # a TLS hello
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nhost: evil\r\n\r\n",
        b"GET http://evil.example/v1 HTTP/1.1\r\nhost: evil.example\r\n\r\n",
        b"GET /v1 HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        b"GET /%00%0d%0aX:y HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /v1/topics/%ff%fe/records HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /v1/topics/t\r\nx HTTP/1.1\r\nhost: localhost\r\n\r\n",
        HEAD + b"content-length: -5\r\n\r\n",
        HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
        HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"transfer-encoding: gzip\r\n\r\n",
        HEAD + b'transfer-encoding: gzip, chunked\r\n\r\n10\r\n{"payload": "x"}\r\n0\r\n\r\n',
        HEAD.replace(b"1.1", b"1.0") + b'transfer-encoding: chunked\r\n\r\n10\r\n{"payload": "x"}\r\n0\r\n\r\n',
        HEAD.replace(b"1.1", b"2.0") + b'content-length: 16\r\n\r\n{"payload": "x"}',
        HEAD + b'holdfast-key: a\r\nholdfast-key: b\r\ncontent-length: 16\r\n\r\n{"payload": "x"}',
        b"GET http://evil.example/v1 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        HEAD + b"holdfast-key: \xff\xfe\r\ncontent-length: 2\r\n\r\n{}",
        HEAD + b"holdfast-sequence: 99999999999999999999999\r\nholdfast-producer: p\r\ncontent-length: 2\r\n\r\n{}",
        b"OPTIONS * HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"CONNECT evil:443 HTTP/1.1\r\nhost: evil:443\r\n\r\n",
        b"TRACE / HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ],
)
def test_strange_requests_get_an_answer_or_an_end(hasty, request_bytes):
    """Never 200 for what was not asked, never 500."""
    with hasty.socket() as client:
        client.sendall(request_bytes)
        try:
            answer = client.recv(65536)
        except ConnectionError:
            answer = b""
    assert (
        answer == b""
        or int(answer.split()[1]) // 100 == 4
        or b"/v1 HTTP/1.1\r\nhost: localhost\r\nupgrade" in request_bytes
    ), answer
    assert b"evil" not in answer


@pytest.mark.parametrize("length", [b"", b"content-length: 50\r\n", b"transfer-encoding: chunked\r\n"])
def test_nothing_hides_behind_a_request_to_upgrade(hasty, length):
    """Others would take what follows for its body, or for another protocol: here it is read as nothing."""
    first = HEAD.replace(b"POST", b"POST" if length else b"GET") + b"connection: upgrade\r\nupgrade: h2c\r\n" + length
    hidden = b"GET /v1/topics HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with hasty.socket() as client:
        client.sendall(first + b"\r\n")
        said = client.recv(65536)
        try:
            client.sendall(hidden)
        except ConnectionError:
            pass
        said += drained(client)
    assert said.count(b"HTTP/1.1 ") == 1, said


def test_fuzzed_requests(hasty, seed):
    """Valid requests with bytes changed, cut and repeated, many on one connection."""
    chance = random.Random(seed)
    corpus = [
        HEAD + b'content-length: 16\r\n\r\n{"payload": "x"}',
        b"GET /v1/topics/after/records?start=0&limit=5 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        HEAD + b'transfer-encoding: chunked\r\n\r\n10\r\n{"payload": "x"}\r\n0\r\n\r\n',
        b"GET /v1/topics/after/follow?start=0 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"PUT /v1/topics/x HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}",
    ]
    for _ in range(150):
        request = bytearray(chance.choice(corpus) * chance.choice((1, 1, 1, 3)))
        for _ in range(chance.randrange(1, 6)):
            at = chance.randrange(len(request))
            change = chance.randrange(3)
            if change == 0:
                request[at] = chance.randrange(256)
            elif change == 1:
                del request[at : at + chance.randrange(1, 20)]
            else:
                request[at:at] = request[at : at + chance.randrange(1, 40)]
            if not request:
                break
        try:
            with hasty.socket() as client:
                client.sendall(bytes(request))
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.setblocking(False)
                try:
                    answer = client.recv(65536)
                except BlockingIOError:
                    continue
        except ConnectionError:
            continue
        assert not answer.startswith(b"HTTP/1.1 500"), bytes(request)


def test_fuzzed_bodies(serve, tmp_path, seed):
    """Of every kind: an answer or a typed refusal; what was taken is read as it was, before and after sealing."""
    chance, server = random.Random(seed), serve(tmp_path / "log")
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    made = server.ask("PUT", "/v1/topics/rows", schema.serialize().to_pybytes(), {"content-type": ARROW})
    assert made.status in (200, 201)
    server.append("raw", "first")
    raw = msgspec.json.decode(server.get("/v1/client/topics/raw").body)["ids"][0]
    for number in range(300):
        method, path, kind, body = chance.choice(bodies(schema, number, raw))
        headers = {"content-type": kind, "holdfast-session": f"{number:032x}"}
        sent = changed_group(chance, body) if path == "/v1/groups" else changed(chance, kind, body)
        reply = server.ask(method, path, sent, headers)
        is_refused = 400 <= reply.status < 500 and reply.kind in errors.__dict__
        assert is_refused or reply.status in (200, 201), (sent, reply)
    before = {name: stored(server, name) for name in ("raw", "rows")}
    assert server.post("/v1/seal").status == 200
    assert {name: stored(server, name) for name in before} == before
    assert all(table.num_rows for table in before.values())


def changed(chance: random.Random, kind: str, body: bytes) -> bytes:
    """Other values, where it can be taken apart; else other bytes; now and then as it is."""
    codec = {"application/json": msgspec.json, "application/msgpack": msgspec.msgpack}.get(kind)
    way = chance.random()
    if way < 0.15:
        return body
    if codec is None or way < 0.4:
        return flipped(chance, body)
    try:
        return codec.encode(one_changed(chance, codec.decode(body)))
    except OverflowError:  # a number that MessagePack does not have
        return body + body


def changed_group(chance: random.Random, body: bytes) -> bytes:
    """Bytes of it, or a value of its head, with a header that fits."""
    if chance.random() < 0.5:
        return flipped(chance, body)
    kind, _, _, head, _ = HEADER.unpack_from(body)
    at = HEADER.size + head
    try:
        changed_head = msgspec.msgpack.encode(one_changed(chance, msgspec.msgpack.decode(body[HEADER.size : at])))
    except OverflowError:
        return body + body
    return HEADER.pack(kind, 1, 0, len(changed_head), len(body) - at) + changed_head + body[at:]


def one_changed(chance: random.Random, value: object) -> object:
    """One value somewhere inside."""
    if isinstance(value, list) and value:
        at = chance.randrange(len(value))
        return [*value[:at], one_changed(chance, value[at]), *value[at + 1 :]]
    if isinstance(value, dict) and value and chance.random() < 0.9:
        name = chance.choice(list(value))
        return {**value, name: one_changed(chance, value[name])}
    return other_value(chance, value)


def bodies(schema: pa.Schema, number: int, partition: int) -> list[tuple[str, str, str, bytes]]:
    """One valid body of each kind: method, path, type, bytes."""
    rows = pa.table({"id": [1, 2, None], "name": ["a", None, "c" * 50]}, schema=schema)
    raw = pa.table({"payload": [b"a", b"b" * 50], "key": [b"k", None], "kind": ["x", None]})
    run = groups.rows(partition, b"a", b"b", keys=[b"k", None])
    unit = groups.unit(groups.space("s", b"k", b"v"))
    operations = [{"append": "raw", "record": {"payload": "x"}}, {"append": "rows", "row": {"id": 1, "name": "n"}}]
    started = [number.to_bytes(16, "big"), "start", {
        "id": str(UUID(int=number)), "kind": "k", "queue": "q", "priority": 0, "due_us": 0,
        "input": msgspec.msgpack.encode([[1], {"a": 2}]),
    }]  # fmt: skip
    records = [{"payload": "x", "key": "k", "headers": {"a": "b"}, "time": "2026-01-31T12:00:00Z"}, {"payload": "y"}]
    lines = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
    posts: list[tuple[str, str, bytes]] = [
        ("topics/raw/records", "application/json", msgspec.json.encode(records)),
        ("topics/raw/records", "application/x-ndjson", lines),
        ("topics/raw/records", ARROW, stream(raw)),
        ("topics/rows/records", ARROW, stream(rows)),
        ("topics/rows/records", "application/json", msgspec.json.encode(rows.to_pylist())),
        ("transactions", "application/json", msgspec.json.encode({"operations": operations})),
        ("groups", "application/msgpack", groups.packed(run, unit)),
        ("client/executions", "application/msgpack", msgspec.msgpack.encode(started)),
        ("executions", "application/json", b'{"kind": "k", "args": [1, {"a": [2.5]}], "priority": 3}'),
        ("topics/raw/consumers/c/members", "application/json", b'{"start": "first", "patience": 0}'),
    ]  # fmt: skip
    found = [("POST", "/v1/" + path, kind, body) for path, kind, body in posts]
    return [*found, ("PUT", "/v1/topics/rows", ARROW, schema.serialize().to_pybytes())]


def stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def stored(server: Server, topic: str) -> pa.Table:
    """All that a topic has, as Arrow."""
    reply = server.get(f"/v1/topics/{topic}/records?limit=100000", headers={"accept": ARROW})
    assert reply.status == 200, reply
    table = pa.ipc.open_stream(reply.body).read_all()
    table.validate(full=True)
    return table


def test_thousands_of_idle_connections_are_bounded(hasty):
    """Those beyond the limit are closed at once, those below it when their time is over; the server keeps its files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(10_000, soft - 200)
    clients = []
    try:
        for _ in range(wanted):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", hasty.port))
            clients.append(client)
            if len(clients) % 1000 == 0:
                assert descriptors(hasty) < 250
        assert descriptors(hasty) < 250
    finally:
        for client in clients:
            client.close()


def descriptors(server: Server) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def test_a_reader_that_does_not_read_is_cut_off(hasty):
    """Its page is not kept forever, and others are served meanwhile."""
    hasty.append("big", *["x" * 1_000_000] * 8)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", hasty.port))
        client.sendall(b"GET /v1/topics/big/records?bytes_max=16000000 HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert client.recv(10).startswith(b"HTTP")
        before = descriptors(hasty)
        deadline = time.monotonic() + PATIENCE
        while descriptors(hasty) >= before and time.monotonic() < deadline:
            assert hasty.get("/healthz").status == 200
        assert descriptors(hasty) < before


def test_followers_are_bounded(hasty):
    hasty.append("watched", "x")
    clients = [hasty.socket() for _ in range(3)]
    try:
        for client in clients:
            client.sendall(b"GET /v1/topics/watched/follow HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert client.recv(65536).startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 429 "))
        full = hasty.get("/v1/topics/watched/follow")
        assert (full.status, full.kind) == (429, "Full")
    finally:
        for client in clients:
            client.close()


def test_a_follower_before_another_request_is_noticed_when_its_client_goes(hasty):
    """A client that does not wait for answers hides nobody: places of followers come back."""
    hasty.append("hidden", "x")
    follow = b"GET /v1/topics/hidden/follow HTTP/1.1\r\nhost: localhost\r\n\r\n"
    for _ in range(12):
        with hasty.socket() as client:
            client.sendall(follow * 3)
            assert client.recv(65536).startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 429 "))
    deadline = time.monotonic() + PATIENCE
    while True:
        with hasty.socket() as client:
            client.sendall(follow)
            if client.recv(65536).startswith(b"HTTP/1.1 200 "):
                break
        assert time.monotonic() < deadline


def test_half_a_connection_is_no_problem(hasty):
    """A client that has said all and closed its side gets its answer; one that vanishes leaves nothing behind."""
    with hasty.socket() as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        drained(client)
    before = descriptors(hasty)
    for _ in range(20):
        with hasty.socket() as client:
            client.sendall(HEAD + b"content-length: 100\r\n\r\n{")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    deadline = time.monotonic() + PATIENCE
    while descriptors(hasty) > before + 2:
        assert time.monotonic() < deadline


def test_nothing_of_a_request_reaches_the_servers_words(serve, tmp_path):
    """No payload, key, token or path of a client, whatever goes wrong; and nothing that forges a line."""
    server = serve(tmp_path / "log")
    secret = "sEcReT-pAyLoAd"
    server.post("/v1/topics/t/records", {"payload": secret, "key": secret})
    server.post("/v1/topics/t/records", f'{{"payload": "{secret}", "payload_encoding": 5}}')
    server.get(f"/v1/topics/t/records?key={secret}&limit={secret}")
    server.get(f"/v1/{secret}%0aerror:%20forged")
    server.get("/v1", token=secret)
    server.post("/v1/promises/resolve", {"token": secret})
    server.post("/v1/transactions", {"operations": [{"append": secret, "record": {"payload": secret}}]})
    with server.socket() as client:
        client.sendall(secret.encode() * 1000)
        drained(client)
    (server.directory / "durable.db").chmod(0o600)
    code, said = server.stop()
    assert code == 0
    assert secret not in said
    assert "forged" not in said
