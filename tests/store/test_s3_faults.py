"""One exchange against servers that misbehave, and what the remote learns from them for its next attempt."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import socket
import ssl
import struct
from base64 import b64encode
from contextlib import asynccontextmanager
from email.utils import formatdate
from hashlib import sha256
from typing import NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from holdfast.clock import SystemClock
from holdfast.store.credentials import CredentialSource
from holdfast.store.port import AlreadyExists, Body, StoreRefused, StoreUnavailable
from holdfast.store.s3 import http
from holdfast.store.s3.async_pool import AsyncPool
from holdfast.store.s3.async_store import AsyncS3Store
from holdfast.store.s3.bucket_address import S3Address
from holdfast.store.s3.connections import Endpoint
from holdfast.testing.manual_clock import ManualClock

pytestmark = pytest.mark.store

BODY = Body.of(b"four kilobytes, nearly" * 180)
BIG = Body.of(b"x" * (3 * 2**20 + 17))
HANG, CLOSE, RESET = "hang", "close", "reset"


class Asked(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


def reply(status=200, body=b"", **headers):
    names = {"content-length": str(len(body)), **{name.replace("_", "-"): value for name, value in headers.items()}}
    head = "".join(f"{name}: {value}\r\n" for name, value in names.items())
    return f"HTTP/1.1 {status} said so\r\n{head}\r\n".encode() + body


def error(status, code, extra="", **headers):
    return reply(status, f"<Error><Code>{code}</Code>{extra}</Error>".encode(), **headers)


class Server:
    """Answers by script: bytes to send, with HANG, CLOSE or RESET behind them; without a body if it is not to read."""

    def __init__(self, script, *, tls=None, reads_body=True, host="127.0.0.1", port=0):
        self._script, self._tls, self._reads_body = script, tls, reads_body
        self._host, self.port = host, port
        self.asked: list[Asked] = []
        self._tasks = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, self._host, self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def endpoint(self):
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    async def _serve(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        try:
            while await self._answer(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader, writer):
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = lines[0].split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}
        size = int(headers.get("content-length", 0)) if self._reads_body and method == "PUT" else 0
        self.asked.append(Asked(method, path, headers, await reader.readexactly(size)))
        for step in self._script(self.asked[-1]):
            if step is HANG:
                await asyncio.sleep(60)
            elif step is CLOSE:
                return False
            elif step is RESET:
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                writer.transport.abort()
                return False
            else:
                writer.write(step)
                await writer.drain()
        return True


async def nobody(connection):
    """These pools ask nothing."""


@asynccontextmanager
async def connected(script, **options):
    """One connection to a scripted server."""
    async with Server(script, **options) as server:
        endpoint = Endpoint("127.0.0.1", server.port, False)
        pool = AsyncPool(endpoint, nobody, target=1, connect_timeout=5, heartbeat=60, clock=ManualClock())
        pool.start()
        try:
            yield server, await pool.acquire(5)
        finally:
            await pool.close()


def ask(connection, method="GET", body=None, timeout=5.0, **options):
    headers = {"host": "x"} | ({"content-length": str(body.size)} if body is not None else {})
    return http.request(connection, method, "/k", headers, body, timeout=timeout, **options)


def exchange(script, method="GET", body=None, timeout=5.0, server_options=None, **options):
    """One request: its response or the error, whether the connection may be used again, and what the server saw."""

    async def run():
        async with connected(lambda _: script, **(server_options or {})) as (server, connection):
            try:
                outcome = await ask(connection, method, body, timeout, **options)
            except (StoreUnavailable, StoreRefused) as failure:
                outcome = failure
            return outcome, connection.reusable, server.asked

    return asyncio.run(run())


# -- one exchange -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "body", "reusable"),
    [
        ([reply(200, b"hello", x_a="B")], b"hello", True),
        ([reply(200)], b"", True),
        ([reply(200, b"hello")[:50], reply(200, b"hello")[50:]], b"hello", True),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", reply(200, b"hello")], b"hello", True),
        ([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"], b"hello", True),
        ([reply(200, b"hello", connection="close"), CLOSE], b"hello", False),
        ([b"HTTP/1.0 200 OK\r\n\r\nhello", CLOSE], b"hello", False),
        ([reply(200, b"hello") + b"more"], b"hello", False),
        ([reply(200, b"b" * 3_000_000)], b"b" * 3_000_000, True),
    ],
)
def test_an_answer_comes_whole_and_says_whether_the_connection_lives_on(script, body, reusable):
    """As h11 has it: framed by length, in chunks or by the end."""
    response, may_be_used_again, _ = exchange(script)
    assert (response.status, response.body, may_be_used_again) == (200, body, reusable)


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ([CLOSE], "reset"),
        ([RESET], "reset"),
        ([reply(200, b"hello")[:-2], CLOSE], "truncated"),
        ([reply(200, b"hello")[:-2], RESET], "truncated"),
        ([b"HTTP/1.1 200", CLOSE], "truncated"),
        ([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n", CLOSE], "truncated"),
        ([HANG], "timeout"),
        ([reply(200, b"hello")[:-2], HANG], "timeout"),
        ([b"SSH-2.0-OpenSSH\r\n\r\n", HANG], "other"),
        ([b"\x15\x03\x01\x00\x02\x02\x46" * 10_000, HANG], "other"),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n", HANG], "other"),
    ],
)
@pytest.mark.parametrize(("method", "body"), [("GET", None), ("PUT", BODY), ("PUT", BIG)])
def test_what_goes_wrong_has_a_name(script, cause, method, body):
    """And the connection is not used again; nothing is sent twice."""
    failure, reusable, asked = exchange(script, method, body, timeout=1 if cause == "timeout" else 10)
    assert isinstance(failure, StoreUnavailable)
    assert (failure.cause, reusable, len(asked)) == (cause, False, 1)


def test_a_connection_that_died_before_it_was_used_again_is_not_replaced_behind_ones_back():
    """Of a PUT the outcome is unknown then: it is reported, and not sent over another connection."""

    async def run():
        scripts = iter([[reply(200)], [RESET]])
        async with connected(lambda _: next(scripts)) as (server, connection):
            await ask(connection, "PUT", BODY)
            with pytest.raises(StoreUnavailable) as caught:
                await ask(connection, "PUT", BODY)
            assert (caught.value.cause, len(server.asked)) == ("reset", 2)

    asyncio.run(run())


@pytest.mark.parametrize(
    "headers",
    [{"host": "x", "a": "secret\r\nb: c"}, {"host": "x", "a": "secret\u20ac"}, {"host": "x", "a b": "secret"}],
)
def test_what_http_cannot_carry_is_refused_without_repeating_it(headers):
    """And nothing is sent."""

    async def run():
        async with connected(lambda _: [reply(200)]) as (server, connection):
            with pytest.raises(StoreRefused) as caught:
                await http.request(connection, "GET", "/k", headers, timeout=5)
            assert "secret" not in f"{caught.value} {caught.value.__cause__}"
            assert not server.asked
            assert not connection.reusable

    asyncio.run(run())


def test_bodies_arrive_as_they_are(tmp_path):
    """Small, large, empty, from memory and from a file."""
    path = tmp_path / "segment"
    path.write_bytes(BIG.data)
    for body in (BODY, BIG, Body.of(b""), Body.file(path, BIG.size, BIG.sha256)):
        response, reusable, asked = exchange([reply(200)], "PUT", body)
        assert (response.status, reusable) == (200, True)
        assert sha256(asked[0].body).digest() == body.sha256


def test_an_answer_that_does_not_wait_for_the_body_is_taken():
    """A server that refuses early says why; the rest is not sent, and the connection not used again."""
    response, reusable, _ = exchange(
        [error(503, "SlowDown"), HANG], "PUT", Body.of(b"x" * 2**25), timeout=5, server_options={"reads_body": False}
    )
    assert (response.status, reusable) == (503, False)


def test_a_success_before_the_body_was_sent_is_none():
    """Nobody can have stored what was not sent."""
    failure, reusable, _ = exchange(
        [reply(200), HANG], "PUT", Body.of(b"x" * 2**25), timeout=5, server_options={"reads_body": False}
    )
    assert (failure.cause, reusable) == ("other", False)


def test_a_body_is_not_piled_up_before_a_slow_server():
    """However large it is, only a piece of it waits in memory; and standing still has an end."""

    async def run():
        async with connected(lambda _: [HANG], reads_body=False) as (_, connection):
            piled_up = []
            write = connection.write

            def watched(data):
                write(data)
                piled_up.append(connection._transport.get_write_buffer_size())

            connection.write = watched
            with pytest.raises(StoreUnavailable) as caught:
                await ask(connection, "PUT", Body.of(b"x" * 2**26), timeout=60, stall=0.2)
            assert caught.value.cause == "timeout"
            assert 0 < max(piled_up) <= 2 * 2**20
            assert sum(piled_up) > 0

    asyncio.run(run())


def test_a_slow_line_gets_through_as_long_as_it_moves():
    """Time is measured by what moves: 1 MiB may take longer than the time for a small request."""

    async def run():
        async def trickle(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 65536\r\n\r\n")
            for _ in range(16):
                await asyncio.sleep(0.15)
                writer.write(b"x" * 4096)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(trickle, "127.0.0.1", 0)
        endpoint = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1], False)
        pool = AsyncPool(endpoint, nobody, target=1, connect_timeout=5, heartbeat=60, clock=ManualClock())
        pool.start()
        response = await ask(await pool.acquire(5), timeout=2)
        assert len(response.body) == 65536
        await pool.close()
        server.close()

    asyncio.run(run())


def test_answers_are_bounded():
    """Of an error the beginning is enough; an object that is too large is refused."""
    failure, reusable, _ = exchange([reply(200, b"x" * 1001)], limit=1000)
    assert (type(failure), reusable) == (http.AnswerTooLarge, False)
    response, _, _ = exchange([reply(200, b"x" * 1000)], limit=1000)
    assert len(response.body) == 1000
    response, reusable, _ = exchange([reply(500, b"x" * 2**20), HANG])
    assert (response.status, reusable) == (500, False)
    assert len(response.body) == http.ERROR_BYTES_MAX


@pytest.mark.parametrize("size", [BIG.size - 1, BIG.size + 1, 2**20])
def test_a_file_that_changed_is_not_sent_as_if_it_had_not(tmp_path, size):
    """Its length is what was promised, or the request ends."""
    path = tmp_path / "segment"
    path.write_bytes(b"x" * size)
    failure, reusable, _ = exchange([reply(200)], "PUT", Body.file(path, BIG.size, BIG.sha256))
    assert (failure.cause, reusable) == ("bad_digest", False)


def test_a_file_that_cannot_be_read_is_a_failure_of_the_disk(tmp_path):
    """Not of the store."""
    failure, _, _ = exchange([reply(200)], "PUT", Body.file(tmp_path / "none", 2**20, BIG.sha256))
    assert failure.cause == "disk"


# -- what the remote learns -------------------------------------------------------------------------------


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "keys"
    path.write_text("access_key_id=first\nsecret_access_key=secret-one\nsession_token=token-one")
    path.chmod(0o600)
    return path


@asynccontextmanager
async def remote_at(endpoint, keys, clock=None, **options):
    settings = {"pool_size": 2, "request_timeout": 5, "connect_timeout": 5, "heartbeat": 60} | options
    ca_file = settings.pop("ca_file", "")
    address = S3Address("logs", "root", endpoint, settings.pop("region", "us-east-1"), True, ca_file)
    remote = AsyncS3Store(address, CredentialSource(f"file:{keys}"), clock=clock or SystemClock(), **settings)
    await remote.start()
    try:
        yield remote
    finally:
        await remote.close()


async def warm(remote):
    """All connections are open and credentials at hand: requests that start together are under way together."""
    remote._endpoint_state.credentials.get()
    while remote.pool().healthy < remote.pool().target:
        await asyncio.sleep(0.005)


async def failure_of(work):
    with pytest.raises((StoreUnavailable, StoreRefused)) as caught:
        await work
    return caught.value


def outcome(script, keys, call):
    """What one call to a remote ends with, at a server with one answer."""

    async def run():
        async with Server(lambda _: script) as server, remote_at(server.endpoint, keys) as remote:
            try:
                return await call(remote)
            except (StoreUnavailable, StoreRefused, AlreadyExists) as failure:
                return failure

    return asyncio.run(run())


def test_a_create_says_all_that_it_must(keys):
    """The condition, the hash of the payload, once signed and once to be kept, the length, the session token."""

    async def run():
        async with Server(lambda _: [reply(200)]) as server, remote_at(server.endpoint, keys) as remote:
            await remote.create("a/b c", BODY)
            (asked,) = server.asked
            assert (asked.method, asked.path, asked.body) == ("PUT", "/logs/root/a/b%20c", BODY.data)
            assert asked.headers["if-none-match"] == "*"
            assert asked.headers["x-amz-content-sha256"] == BODY.sha256.hex()
            assert asked.headers["x-amz-checksum-sha256"] == b64encode(BODY.sha256).decode()
            assert asked.headers["content-length"] == str(BODY.size)
            assert asked.headers["x-amz-security-token"] == "token-one"
            assert asked.headers["host"] == f"127.0.0.1:{server.port}"

    asyncio.run(run())


def test_already_exists_is_its_own_answer(keys):
    """The shipper reads back and compares."""
    assert isinstance(outcome([error(412, "PreconditionFailed")], keys, lambda r: r.create("k", BODY)), AlreadyExists)


def test_a_conflict_is_no_loss(keys):
    """Somebody else is writing the key right now: try again."""
    failure = outcome([error(409, "ConditionalRequestConflict")], keys, lambda r: r.create("k", BODY))
    assert (type(failure), failure.cause) == (StoreUnavailable, "conflict")


def test_a_busy_store_says_how_long_to_wait(keys):
    """Retry-After reaches the waiter."""
    failure = outcome([error(503, "SlowDown", retry_after="3")], keys, lambda r: r.create("k", BODY))
    assert (failure.cause, failure.retry_after) == ("slow_down", 3.0)


def test_a_store_that_kept_other_bytes_is_not_believed(keys):
    """It says itself what it kept."""
    other = b64encode(sha256(b"other").digest()).decode()
    failure = outcome([reply(200, x_amz_checksum_sha256=other)], keys, lambda r: r.create("k", BODY))
    assert failure.cause == "bad_digest"


def test_what_is_read_is_checked(keys):
    """Against the hash that the store gives with it, unless that is one of parts."""
    digest = b64encode(sha256(b"hello").digest()).decode()
    assert outcome([reply(200, b"hello", x_amz_checksum_sha256=digest)], keys, lambda r: r.read("k")) == b"hello"
    assert outcome([reply(200, b"hello", x_amz_checksum_sha256="QQ==-2")], keys, lambda r: r.read("k")) == b"hello"
    failure = outcome([reply(200, b"hallo", x_amz_checksum_sha256=digest)], keys, lambda r: r.read("k"))
    assert (type(failure), failure.cause) == (StoreUnavailable, "bad_digest")


def test_an_object_of_unknown_length_counts_only_with_its_hash(keys):
    """Where the end of the connection is the end of the object, nobody can tell that some of it is missing."""
    digest = b64encode(sha256(b"hello").digest()).decode().encode()
    bare = b"HTTP/1.1 200 OK\r\n\r\nhello"
    proved = b"HTTP/1.1 200 OK\r\nx-amz-checksum-sha256: %b\r\n\r\nhello" % digest
    assert outcome([bare, CLOSE], keys, lambda r: r.read("k")).cause == "truncated"
    assert outcome([proved, CLOSE], keys, lambda r: r.read("k")) == b"hello"


def test_only_the_store_itself_can_say_that_an_object_is_not_there(keys):
    """A 404 of something in between would be a licence to move a mark."""

    def script(asked):
        if asked.method == "HEAD":
            return [b"HTTP/1.1 404 Not Found\r\ncontent-length: 9\r\n\r\n"]
        return [reply(404, b"<html></html>")]

    async def run():
        async with Server(script) as server, remote_at(server.endpoint, keys) as remote:
            assert (await failure_of(remote.head("k"))).cause == "other"
            assert (await failure_of(remote.read("k"))).cause == "other"

    asyncio.run(run())
    assert outcome([error(404, "NoSuchKey")], keys, lambda r: r.read("k")) is None
    assert outcome([reply(404, x_amz_request_id="1")], keys, lambda r: r.head("k")) is None


def test_an_answer_to_head_without_an_explanation_is_explained(keys):
    """By asking the same with GET, whose answers have a body."""

    def script(asked):
        if asked.method == "HEAD":
            return [b"HTTP/1.1 400 Bad Request\r\ncontent-length: 9\r\n\r\n"]
        return [error(400, "ExpiredToken")]

    async def run():
        async with Server(script) as server, remote_at(server.endpoint, keys) as remote:
            failure = await failure_of(remote.head("k"))
            assert (type(failure), failure.cause) == (StoreUnavailable, "credentials")
            assert [asked.method for asked in server.asked] == ["HEAD", "GET"]
            assert server.asked[1].headers["range"] == "bytes=0-0"

    asyncio.run(run())


@pytest.mark.parametrize("wrong_by", [-7200.0, 7200.0])
def test_a_clock_that_is_wrong_is_corrected(keys, wrong_by):
    """The next attempt succeeds, and so do all after it, in a clock's whole day."""
    true = ManualClock(1_700_000_000_000_000)
    ours = ManualClock(1_700_000_000_000_000 + int(wrong_by * 1e6))

    def script(asked):
        said = datetime.datetime.strptime(asked.headers["x-amz-date"] + "+0000", "%Y%m%dT%H%M%SZ%z").timestamp()
        date = formatdate(true.now_us() / 1e6, usegmt=True)
        if abs(said - true.now_us() / 1e6) > 900:
            return [error(403, "RequestTimeTooSkewed", date=date)]
        return [reply(200, date=date)]

    async def run():
        async with Server(script) as server, remote_at(server.endpoint, keys, ours, pool_size=4) as remote:
            await warm(remote)
            failures = await asyncio.gather(*(failure_of(remote.create(f"k{n}", BODY)) for n in range(4)))
            assert {(type(each), each.cause) for each in failures} == {(StoreUnavailable, "clock_skew")}
            for _ in range(3):
                await remote.create("k", BODY)
                ours.advance(3600)
                true.advance(3600)

    asyncio.run(run())


def test_a_clock_that_cannot_be_corrected_is_refused(keys):
    """A store that refuses the time that it said itself, or says none, will go on doing so."""
    now = formatdate(SystemClock().now_us() / 1e6, usegmt=True)
    for headers in ({"date": now}, {}):
        failure = outcome([error(403, "RequestTimeTooSkewed", **headers)], keys, lambda r: r.create("k", BODY))
        assert (type(failure), failure.cause) == (StoreRefused, "clock_skew")


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidAccessKeyId"])
def test_credentials_that_are_refused_are_loaded_anew(tmp_path, monkeypatch, code):
    """The next request is signed with what is found then."""
    monkeypatch.setenv("SHOP_ACCESS_KEY_ID", "first")
    monkeypatch.setenv("SHOP_SECRET_ACCESS_KEY", "secret-one")

    def script(asked):
        return [reply(200) if "Credential=second/" in asked.headers["authorization"] else error(403, code)]

    async def run():
        async with Server(script) as server:
            address = S3Address("logs", "", server.endpoint, "r", True)
            source = CredentialSource("env:SHOP")
            remote = AsyncS3Store(
                address, source, pool_size=1, request_timeout=5, connect_timeout=5, heartbeat=60, clock=SystemClock()
            )
            await remote.start()
            failure = await failure_of(remote.create("k", BODY))
            assert failure.cause == "credentials"
            assert isinstance(failure, StoreUnavailable if code == "ExpiredToken" else StoreRefused)
            monkeypatch.setenv("SHOP_ACCESS_KEY_ID", "second")
            await remote.create("k", BODY)
            await remote.close()

    asyncio.run(run())


US, EU = "s3.us-east-1.amazonaws.com", "s3.eu-west-1.amazonaws.com"


@pytest.fixture
def aws(monkeypatch):
    """Two of S3's own names lead to two addresses of this machine: a redirect may lead from one to the other."""
    addresses = {US: "127.0.0.1", EU: "127.0.0.2"}
    look_up = socket.getaddrinfo
    found = lambda host, *more, **options: look_up(addresses.get(host, host), *more, **options)  # noqa: E731
    monkeypatch.setattr(socket, "getaddrinfo", found)


@pytest.mark.parametrize("status", [301, 307, 308])
def test_a_redirect_is_followed_by_the_next_attempt(keys, aws, caplog, status):
    """The whole pool moves, and it is logged; of many requests that were redirected at once, the first one teaches."""

    async def run():
        script = lambda asked: [reply(status, location=f"http://{EU}:{here.port}{asked.path}")]  # noqa: E731
        async with (
            Server(script) as here,
            Server(lambda _: [reply(200)], host="127.0.0.2", port=here.port) as there,
            remote_at(f"http://{US}:{here.port}", keys, pool_size=8) as remote,
        ):
            await warm(remote)
            failures = await asyncio.gather(*(failure_of(remote.create(f"k{n}", BODY)) for n in range(8)))
            assert {(type(each), each.cause) for each in failures} == {(StoreUnavailable, "redirect")}
            await asyncio.gather(*(remote.create(f"k{n}", BODY) for n in range(8)))
            assert {asked.headers["host"] for asked in there.asked} == {f"{EU}:{there.port}"}
            assert len(there.asked) == 8

    asyncio.run(run())
    logged = [record for record in caplog.records if getattr(record, "action", "") == "store_redirect"]
    assert [(record.levelname, EU in record.getMessage()) for record in logged] == [("WARNING", True)]


def test_a_region_that_the_store_names_is_signed_for(keys):
    """AuthorizationHeaderMalformed says which."""

    def script(asked):
        if "/eu-west-1/s3/" in asked.headers["authorization"]:
            return [reply(200)]
        return [error(400, "AuthorizationHeaderMalformed", "<Region>eu-west-1</Region>")]

    async def run():
        async with Server(script) as server, remote_at(server.endpoint, keys) as remote:
            assert (await failure_of(remote.create("k", BODY))).cause == "redirect"
            await remote.create("k", BODY)

    asyncio.run(run())


def test_redirects_in_a_circle_are_refused(keys, aws):
    """After five; and one that leads nowhere at once."""

    async def run():
        def script(asked):
            elsewhere = US if asked.headers["host"].startswith(EU) else EU
            return [reply(307, location=f"http://{elsewhere}:{one.port}{asked.path}")]

        async with (
            Server(script) as one,
            Server(script, host="127.0.0.2", port=one.port),
            remote_at(f"http://{US}:{one.port}", keys) as remote,
        ):
            failures = [await failure_of(remote.create("k", BODY)) for _ in range(6)]
            assert [type(each) for each in failures] == [StoreUnavailable] * 5 + [StoreRefused]
            assert {each.cause for each in failures} == {"redirect"}

    asyncio.run(run())
    failure = outcome([reply(301)], keys, lambda r: r.create("k", BODY))
    assert (type(failure), failure.cause) == (StoreRefused, "redirect")


def test_a_place_that_a_redirect_named_and_that_does_not_answer_is_left(keys, aws):
    """The configured one is asked again."""
    away = True

    async def run():
        nonlocal away

        def script(asked):
            return [reply(307, location=f"http://{EU}:{server.port}{asked.path}") if away else reply(200)]

        async with Server(script) as server, remote_at(f"http://{US}:{server.port}", keys, connect_timeout=1) as remote:
            assert (await failure_of(remote.create("k", BODY))).cause == "redirect"
            assert (await failure_of(remote.create("k", BODY))).cause == "refused"
            away = False
            await remote.create("k", BODY)

    asyncio.run(run())


def test_a_store_that_is_not_there_is_reported_by_its_reason(keys):
    """A name that nobody knows."""

    async def run():
        async with remote_at("http://store.invalid:1", keys, connect_timeout=2) as remote:
            assert (await failure_of(remote.create("k", BODY))).cause == "dns"

    asyncio.run(run())


def test_no_error_shows_a_secret(keys):
    """Nor any object that may be printed."""

    async def run():
        script = lambda _: [error(403, "SignatureDoesNotMatch", "secret-one")]  # noqa: E731
        async with Server(script) as server, remote_at(server.endpoint, keys) as remote:
            failure = await failure_of(remote.create("k", BODY))
            shown = f"{failure} {failure!r} {remote!r} {remote.pool()!r} {vars(remote)!r}"
            assert "secret-one" not in shown
            assert "token-one" not in shown

    asyncio.run(run())


def test_the_heartbeat_is_a_signed_head_of_the_logs_own_object(keys):
    """Any answer will do; without credentials it is asked unsigned."""

    async def run():
        script = lambda _: [reply(404, x_amz_request_id="1")]  # noqa: E731
        async with Server(script) as server, remote_at(server.endpoint, keys, pool_size=1, heartbeat=0.02) as remote:
            while remote.pool().heartbeats_total < 2:
                await asyncio.sleep(0.005)
            asked = server.asked[0]
            assert (asked.method, asked.path) == ("HEAD", "/logs/root/log.json")
            assert "authorization" in asked.headers
            keys.unlink()
            remote._endpoint_state.credentials.invalidate()
            beats = remote.pool().heartbeats_total
            while remote.pool().heartbeats_total < beats + 3:
                await asyncio.sleep(0.005)
            assert "authorization" not in server.asked[-1].headers
            assert remote.pool().replaced_total == 0

    asyncio.run(run())


# -- TLS --------------------------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path):
    """A certificate for 127.0.0.1 that only those trust who are asked to."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "store")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "certificate.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(signed.public_bytes(serialization.Encoding.PEM) + private)
    return path


def server_context(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def test_tls_with_a_certificate_of_ones_own(keys, certificate):
    """Small and large objects, over connections that are used again."""

    async def run():
        script = lambda asked: [reply(200, b"hello" if asked.method == "GET" else b"")]  # noqa: E731
        server = Server(script, tls=server_context(certificate))
        async with server, remote_at(server.endpoint, keys, ca_file=str(certificate)) as remote:
            for n in range(5):
                await remote.create(f"k{n}", BODY)
            await remote.create("big", BIG)
            assert await remote.read("k") == b"hello"
            assert remote.pool().replaced_total == 0
            assert server.asked[5].body == BIG.data

    asyncio.run(run())


def test_a_certificate_that_nobody_vouches_for_is_not_trusted(keys, certificate):
    """The reason says so, and nothing was sent."""

    async def run():
        server = Server(lambda _: [reply(200)], tls=server_context(certificate))
        async with server, remote_at(server.endpoint, keys, connect_timeout=2) as remote:
            assert (await failure_of(remote.create("k", BODY))).cause == "tls"
            assert not server.asked

    asyncio.run(run())


def test_a_certificate_for_another_name_is_not_trusted(keys, certificate):
    """localhost is not 127.0.0.1."""

    async def run():
        async with Server(lambda _: [reply(200)], tls=server_context(certificate)) as server:
            endpoint = f"https://localhost:{server.port}"
            async with remote_at(endpoint, keys, ca_file=str(certificate), connect_timeout=2) as remote:
                assert (await failure_of(remote.create("k", BODY))).cause == "tls"

    asyncio.run(run())
