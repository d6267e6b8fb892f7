"""What clients get, line by line of the table in `http_connection`: one connection in this process, over a real socket,
to an application that does what each test says. Time is counted in looks, so nothing waits for a clock.

Full, slow, silent and endless clients of a whole server: `test_hostile`; TLS: `test_shutdown`.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.clock import SystemClock
from holdfast.server.connections.connection_guard import ConnectionGuard
from holdfast.server.connections.http_connection import HttpConnection
from holdfast.server_settings import ServerSettings

pytestmark = pytest.mark.unit

PATIENCE = 60
HOST = b"host: localhost\r\n"
GET = b"GET /echo HTTP/1.1\r\n" + HOST + b"\r\n"
CHUNKED = b"POST /echo HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n"


def post(path: str, size: int, *more: bytes) -> bytes:
    """The head of a request with a body."""
    return b"POST %b HTTP/1.1\r\n%bcontent-length: %d\r\n%b\r\n" % (path.encode(), HOST, size, b"".join(more))


class Place:
    """One connection, its client, and the application behind it."""

    def __init__(self, **settings: Any) -> None:
        given = {"headers_bytes_max": 4096, "connections_max": 2, **settings}
        self.guard = ConnectionGuard(ServerSettings(**given), SystemClock())
        self.connection = HttpConnection(self.application, self.guard)
        self.go_on = asyncio.Event()
        """What `/wait` waits for."""
        self.seen: list[str] = []
        """Requests that the application got, and what became of those that it did not answer."""
        self.sent = 0
        self.headers: list[tuple[bytes, bytes]] = []

    async def connect(self) -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: self.connection, theirs)
        self.reader, self.writer = await asyncio.open_connection(sock=ours)

    async def application(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Any) -> None:
        path = scope["path"]
        self.seen.append(path)
        self.headers = scope["headers"]
        if path in ("/wait", "/gone"):
            await self.go_on.wait()
        if path == "/refuse":
            return await answer(send, b"no", status=413, headers=[(b"connection", b"close")])
        if path.startswith("/status/"):
            return await answer(send, b"", status=int(path[8:]))
        if path == "/stream":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while self.sent < 2**24 and not self.connection.transport.is_closing():
                await send({"type": "http.response.body", "body": b"x" * 10_000, "more_body": True})
                self.sent += 10_000
                await asyncio.sleep(0)
                if scope["query_string"] == b"short":
                    break
            return await send({"type": "http.response.body"})
        if path.startswith("/broken/"):
            lines = {"header": [(b"x", b"a\r\nb: c")], "long": [(b"content-length", b"1")]}
            lines["short"] = [(b"content-length", b"9")]
            return await answer(send, b"body", headers=lines[path[8:]])
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.seen.append("gone")
                return None
            body, more = body + message["body"], message["more_body"]
        await answer(send, body, headers=[(b"content-length", b"%d" % len(body))])
        if path == "/gone":
            assert (await receive())["type"] == "http.disconnect"
        return None

    async def turns(self, until: Callable[[], bool] = lambda: False, most: int = 50) -> None:
        """Let the loop turn, until something is so."""
        for _ in range(most):
            if until():
                return
            await asyncio.sleep(0)

    def look(self, times: int = 1000) -> None:
        """Let time pass."""
        for _ in range(times):
            self.connection.look()

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.turns()

    async def rest(self) -> bytes:
        """All that comes until the end."""
        async with asyncio.timeout(PATIENCE):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    async def answers(self, count: int) -> list[bytes]:
        """Whole answers, as status and body."""
        found = []
        for _ in range(count):
            async with asyncio.timeout(PATIENCE):
                head = await self.reader.readuntil(b"\r\n\r\n")
                size = re.search(rb"content-length: (\d+)", head)
                found.append(head[9:12] + b" " + (await self.reader.readexactly(int(size[1])) if size else b""))
        return found


async def answer(send: Any, body: bytes, status: int = 200, headers: Any = ()) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


def play(story: Callable[[Place], Awaitable[None]], **settings: Any) -> Place:
    """Run a test's story with a connection; at its end all is let go."""

    async def run() -> Place:
        place = Place(**settings)
        await place.connect()
        try:
            await story(place)
        finally:
            place.go_on.set()
            place.writer.transport.abort()
            await place.guard.end(asyncio.Semaphore(0), PATIENCE)
        assert not place.guard.open
        assert not place.guard.at_work
        return place

    return asyncio.run(run())


def statuses(said: bytes) -> list[bytes]:
    return re.findall(rb"HTTP/1\.1 (\d+) ", said)


def test_answers_are_the_same_wherever_a_request_is_cut() -> None:
    """At every byte, and byte by byte: of requests with and without bodies, in chunks, and of what is none."""
    body = b'{"a": "\x00\r\n\r\nGET / HTTP/1.1"}'
    said = (
        GET
        + post("/echo", len(body))
        + body
        + CHUNKED
        + b"5;a=b\r\nhello\r\n1\r\n!\r\n0\r\nx: y\r\n\r\n"
        + b"no request\r\n"
    )
    wanted = [b"200 ", b"200 " + body, b"200 hello!"]

    async def cut(place: Place, parts: list[bytes]) -> None:
        for part in parts:
            place.writer.write(part)
            await place.turns(most=3)
        assert await place.answers(3) == wanted
        assert statuses(await place.rest()) == [b"400"]

    for at in range(0, len(said), 3):
        play(lambda place, at=at: cut(place, [said[:at], said[at:]]))  # type: ignore[misc]
    play(lambda place: cut(place, [said[at : at + 1] for at in range(len(said))]))


@pytest.mark.parametrize(
    "behind", [b"no request\r\n\r\n", post("/echo", 9, b"host: b\r\n"), CHUNKED + b"zz\r\n", b"GET /ech"]
)
def test_what_is_no_request_is_answered_behind_those_before_it(behind: bytes) -> None:
    """Its refusal in the place of another answer would be taken for it. The last one here is late."""

    async def story(place: Place) -> None:
        await place.say(post("/wait", 2) + b"ok" + GET + behind)
        place.look()
        place.go_on.set()
        assert await place.answers(2) == [b"200 ok", b"200 "]
        await place.turns()
        if behind == b"GET /ech":
            place.look()
        assert statuses(await place.rest()) == [b"408" if behind == b"GET /ech" else b"400"]

    assert play(story).seen == ["/wait", "/echo"]


def test_nothing_comes_between_the_parts_of_an_answer() -> None:
    async def story(place: Place) -> None:
        await place.say(post("/stream?short", 5) + b"ab" + b"")
        head = await place.reader.readuntil(b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in head
        place.look()
        assert statuses(await place.rest()) == []

    play(story)


def test_sixteen_requests_may_wait_for_their_answers() -> None:
    async def story(place: Place) -> None:
        await place.say(post("/wait", 0) + GET * 16)
        assert not place.connection.transport.is_reading()  # type: ignore[attr-defined]
        place.go_on.set()
        assert statuses(await place.rest()) == [b"200"] * 16 + [b"400"]

    play(story)


def test_a_body_behind_a_request_at_work_is_not_read_and_not_late() -> None:
    async def story(place: Place) -> None:
        place.writer.write(post("/wait", 0) + post("/echo", 2_000_000))
        place.writer.write(b"x" * 2_000_000)
        await place.turns(lambda: not place.connection.transport.is_reading(), most=1000)  # type: ignore[attr-defined]
        place.look()
        place.go_on.set()
        assert [len(one) for one in await place.answers(2)] == [4, 2_000_004]

    play(story)


def test_no_more_of_a_body_is_read_than_is_taken() -> None:
    async def story(place: Place) -> None:
        place.writer.write(post("/wait", 8_000_000))
        place.writer.write(b"x" * 8_000_000)
        await place.turns(lambda: not place.connection.transport.is_reading(), most=1000)  # type: ignore[attr-defined]
        assert place.writer.transport.get_write_buffer_size() > 4_000_000
        place.go_on.set()
        assert [len(one) for one in await place.answers(1)] == [8_000_004]

    play(story)


@pytest.mark.parametrize(
    "endless",
    [b"0\r\nx: ", b"0\r\n", b"5;", b"5;a=", b"0\r\n" + b"x: y\r\n" * 3],
    ids=["trailer", "name", "chunk", "extension", "trailers"],
)
def test_what_is_no_body_has_an_end(endless: bytes) -> None:
    """A parser keeps a trailer until it is whole, and looks at each byte of an extension."""

    async def story(place: Place) -> None:
        await place.say(CHUNKED + endless)
        for _ in range(4):
            place.writer.write(b"x" * 3000)
            await place.turns(most=5)
        assert statuses(await place.rest()) == [b"431"]

    assert play(story).seen == ["/echo", "gone"]


def test_trailers_are_no_headers() -> None:
    async def story(place: Place) -> None:
        await place.say(CHUNKED + b"2\r\nok\r\n0\r\nauthorization: Bearer x\r\nhost: evil\r\n\r\n")
        assert await place.answers(1) == [b"200 ok"]

    assert play(story).headers == [(b"host", b"localhost"), (b"transfer-encoding", b"chunked")]


def test_a_head_behind_a_large_body_is_not_too_large() -> None:
    """Both come in one packet, and the head is cut."""

    async def story(place: Place) -> None:
        await place.say(post("/echo", 20_000) + b"x" * 20_000 + GET[:9])
        await place.say(GET[9:])
        assert [len(one) for one in await place.answers(2)] == [20_004, 4]

    play(story)


@pytest.mark.parametrize("path", ["/wait", "/stream"])
def test_who_takes_nothing_is_waited_for_and_then_cut_off(path: str) -> None:
    """An application does not run ahead of its client, and learns that it is gone."""

    async def story(place: Place) -> None:
        place.writer.write(post(path, 0))
        await place.turns(lambda: place.connection.writable is not None, most=300)
        await place.turns(most=300)
        assert place.sent < 1_000_000
        place.look()
        assert path == "/wait" or place.connection.transport.is_closing()

    play(story)


def test_heads_alone_where_there_is_no_body() -> None:
    """To HEAD, and with 204 and 304: the next answer follows at once."""

    async def story(place: Place) -> None:
        asked = [b"HEAD /echo", b"GET /status/204", b"GET /status/304", b"HEAD /stream?short", b"GET /echo"]
        await place.say(b"".join(one + b" HTTP/1.1\r\n" + HOST + b"\r\n" for one in asked))
        for status in (b"200", b"204", b"304", b"200"):
            head = await place.reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 " + status)
            assert b"chunked" not in head
        assert await place.answers(1) == [b"200 "]

    play(story)


@pytest.mark.parametrize("path", ["/stream?short", "/echo"])
def test_an_old_client_gets_no_chunks_and_no_word_before_its_answer(path: str) -> None:
    async def story(place: Place) -> None:
        expects = b"expect: 100-continue\r\nconnection: keep-alive\r\n"
        await place.say(post(path, 2, expects).replace(b"HTTP/1.1", b"HTTP/1.0") + b"ok" + GET)
        head, _, body = (await place.rest()).partition(b"\r\n\r\n")
        assert (statuses(head), b"chunked" in head, b"connection: close" in head) == ([b"200"], False, True)
        assert body == (b"ok" if path == "/echo" else b"x" * 10_000)

    assert len(play(story).seen) == 1


def test_a_client_that_asks_first_is_answered_first() -> None:
    """With 100 when its body is wanted, with a refusal where it is not."""

    async def story(place: Place) -> None:
        await place.say(post("/echo", 2, b"Expect: 100-Continue\r\n"))
        assert await place.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await place.say(b"ok" + post("/refuse", 2, b"expect: 100-continue\r\n"))
        assert await place.answers(1) == [b"200 ok"]
        assert statuses(await place.rest()) == [b"413"]

    play(story)


@pytest.mark.parametrize("goes_on", [True, False])
def test_who_was_refused_is_heard_out_for_a_while(goes_on: bool) -> None:
    """Bytes that nobody reads would take the answer from it; more than a few, or nothing, and it is cut off."""

    async def story(place: Place) -> None:
        await place.say(b"no request\r\n" + b"x" * 100_000)
        await place.say(b"x" * 100_000)
        assert statuses(await place.rest()) == [b"400"]
        assert place.guard.open
        if goes_on:
            place.writer.write(b"x" * 1_200_000)
        else:
            place.look()
        await place.turns(lambda: not place.guard.open)
        assert not place.guard.open

    play(story)


def test_half_a_body_is_not_given_as_a_whole_one() -> None:
    async def story(place: Place) -> None:
        await place.say(post("/echo", 9) + b"half")
        place.writer.write_eof()
        assert await place.rest() == b""

    assert play(story).seen == ["/echo", "gone"]


def test_who_waits_for_a_client_learns_that_it_has_gone() -> None:
    """Also in front of other requests."""

    async def story(place: Place) -> None:
        await place.say(post("/stream", 0) + GET * 2)
        place.writer.transport.abort()

    assert play(story).seen == ["/stream"]


@pytest.mark.parametrize("what", ["header", "long", "short"])
def test_an_answer_that_contradicts_itself_is_not_sent(what: str) -> None:
    async def story(place: Place) -> None:
        await place.say(b"GET /broken/%b HTTP/1.1\r\n%b\r\n" % (what.encode(), HOST) + GET)
        assert await place.rest() == b""

    assert play(story).seen == ["/broken/" + what]


def test_connections_beyond_the_limit_are_cut_off() -> None:
    async def story(place: Place) -> None:
        others = [socket.socketpair() for _ in range(2)]
        for one, _ in others:
            one.setblocking(False)
            made = HttpConnection(place.application, place.guard)
            await asyncio.get_running_loop().connect_accepted_socket(lambda made=made: made, one)  # type: ignore[misc]
        assert len(place.guard.open) == 2
        with others[1][1] as client:
            assert client.recv(9) == b""
        others[0][1].close()

    play(story)


@pytest.mark.parametrize("cut", [False, True])
def test_an_end_finishes_what_has_begun(cut: bool) -> None:
    """A request at work is answered, one whose head is not whole is not begun; a second signal cuts off both."""

    async def run() -> tuple[bytes, list[str]]:
        place = Place()
        await place.connect()
        await place.say(post("/wait", 2) + b"o")
        again = asyncio.Semaphore(0)
        ending = asyncio.create_task(place.guard.end(again, PATIENCE))
        await place.turns()
        if cut:
            again.release()
        else:
            place.writer.write(b"k" + GET)
            place.go_on.set()
        await ending
        assert not place.guard.at_work
        said = await place.rest()
        place.writer.close()
        return said, place.seen

    said, seen = asyncio.run(run())
    assert (statuses(said), b"connection: close" in said, seen) == (
        ([], False, ["/wait"]) if cut else ([b"200"], True, ["/wait"])
    )
