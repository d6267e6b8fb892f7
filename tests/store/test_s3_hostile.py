"""Somebody else answers in the store's place: nothing of ours goes to strangers, and nothing eats the memory.

The stranger is a second listener; what counts is that nobody ever calls there.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.clock import SystemClock
from holdfast.errors import Corrupt
from holdfast.store.port import Body, StoreRefused, StoreUnavailable
from holdfast.store.s3 import http, listing
from holdfast.store.s3.async_store import AsyncS3Store
from holdfast.store.s3.blocking_pool import run_now
from holdfast.store.s3.bucket_address import S3Address
from holdfast.store.s3.s3_store import EMPTY_PAGES_MAX, S3Store
from tests.store import shipped_logs
from tests.store.conftest import GivenCredentials, OpenS3
from tests.store.fault_proxy import Fault, FaultProxy, always, first
from tests.store.servers import BUCKET, REGION, S3Server

pytestmark = pytest.mark.store

Proxy = Callable[..., FaultProxy]
BODY = Body.of(b"content" * 1000)


class Stranger:
    """Listens beside the store, and remembers who called."""

    def __init__(self) -> None:
        self.calls = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def _answer(self) -> None:
        while True:
            try:
                caller, _ = self._listening.accept()
            except OSError:
                return
            self.calls += 1
            caller.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            caller.close()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(5)


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    started = Stranger()
    yield started
    started.close()


def raw(status: int, body: str, **headers: str) -> Fault:
    fields = {"Content-Type": "application/xml", "Content-Length": str(len(body.encode())), **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return Fault("hostile", "reply", reply=f"HTTP/1.1 {status} No\r\n{head}\r\n{body}".encode())


def redirects(port: int) -> dict[str, Fault]:
    to = f"127.0.0.1:{port}"
    named = f"<Error><Code>TemporaryRedirect</Code><Endpoint>{to}</Endpoint></Error>"
    return {
        **{f"location {status}": raw(status, "", Location=f"http://{to}/logs/x/k") for status in (301, 302, 307, 308)},
        "location with the bucket in front": raw(307, "", Location=f"http://{BUCKET}.{to}/x/k"),
        **{f"endpoint {status}": raw(status, named) for status in (301, 307, 400)},
        "another region": raw(301, named, **{"x-amz-bucket-region": "eu-west-1"}),
        "by name": raw(307, "", Location=f"http://localhost:{port}/logs/x/k"),
    }


REDIRECTS = pytest.mark.parametrize("kind", list(redirects(0)))
VERBS: list[Callable[[S3Store], object]] = [
    lambda store: store.create("k", BODY),
    lambda store: store.get("k"),
    lambda store: store.get_range("k", 0, 1),
    lambda store: store.head("k"),
    lambda store: list(store.list("")),
    lambda store: store.delete(["k"]),
    lambda store: store.delete(["k", "l"]),
]


@REDIRECTS
def test_no_verb_is_diverted_to_another_server(
    open_s3: OpenS3, fault_proxy: Proxy, stranger: Stranger, kind: str
) -> None:
    """It is refused by name, and the next request goes where it was configured to go."""
    proxy = fault_proxy()
    store = open_s3(proxy.endpoint, retries=3)
    for verb in VERBS:
        proxy.policy = always(redirects(stranger.port)[kind])
        with pytest.raises(StoreRefused, match=r"redirect") as caught:
            verb(store)
        assert caught.value.cause == "redirect"
        assert str(stranger.port) in caught.value.message
        assert "store.endpoint" in caught.value.hint
    proxy.policy = lambda _: None
    store.create("k", BODY)
    assert store.get("k") == BODY.data
    assert stranger.calls == 0


@REDIRECTS
def test_the_shippers_connections_are_not_diverted(
    fault_proxy: Proxy, stranger: Stranger, prefix: str, kind: str
) -> None:
    proxy = fault_proxy(always(redirects(stranger.port)[kind]))

    async def run() -> None:
        address = S3Address(BUCKET, prefix, proxy.endpoint, REGION, True)
        remote = AsyncS3Store(
            address,
            GivenCredentials(),
            pool_size=3,
            request_timeout=5,
            connect_timeout=5,
            heartbeat=0.01,
            clock=SystemClock(),
        )
        await remote.start()
        for _ in range(3):
            with pytest.raises(StoreRefused) as caught:
                await remote.create("k", BODY)
            assert caught.value.cause == "redirect"
        beats = remote.pool().heartbeats_total
        while remote.pool().heartbeats_total < beats + 5:
            await asyncio.sleep(0.01)
        proxy.policy = lambda _: None
        await remote.create("k", BODY)
        await remote.close()

    asyncio.run(run())
    assert stranger.calls == 0


def test_a_log_that_was_sent_away_goes_on_shipping_where_it_belongs(
    s3_server: S3Server, fault_proxy: Proxy, stranger: Stranger, prefix: str, tmp_path: Path
) -> None:
    proxy = fault_proxy()
    own = shipped_logs.settings(proxy.endpoint)
    with holdfast.open(tmp_path / "log", store=shipped_logs.url(prefix), settings=own) as log:
        topic = log.topic("orders")
        topic.submit(b"before").shipped(60)
        proxy.policy = first(5, redirects(stranger.port)["location 307"], "PUT")
        topic.submit(b"meanwhile").shipped(60)
        retries = log.stats().shipping.retries
    assert retries["redirect"] >= 1
    assert stranger.calls == 0
    _, found = shipped_logs.restored(s3_server.endpoint, prefix, tmp_path / "copy")
    assert sorted(found.values()) == [b"before", b"meanwhile"]


# -- listings ---------------------------------------------------------------------------------------------

ENTRY = "<Contents><Key>{}</Key><Size>1</Size><LastModified>2026-11-16T04:36:48.000Z</LastModified></Contents>"


def page(*entries: str, more: str = "<IsTruncated>false</IsTruncated>") -> str:
    return (
        f"<ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>{more}{''.join(entries)}</ListBucketResult>"
    )


LAUGHS = "".join(f"<!ENTITY l{n} '{f'&l{n - 1};' * 10}'>" for n in range(1, 9))


@pytest.mark.parametrize(
    "body",
    [
        page(ENTRY.format("x/&nobody;")),
        page(ENTRY.format("x/k").replace("<Size>1</Size>", "")),
        page(ENTRY.format("x/k").replace("1</Size>", "many</Size>")),
        page(ENTRY.format("x/k").replace("2026-11-16T04:36:48.000Z", "yesterday")),
        page(more="<IsTruncated>true</IsTruncated>"),
        page()[:-5],
        "",
        "<html>it works</html" * 100,
    ],
)
def test_a_listing_that_is_none_is_reported_and_harms_nobody(body: str) -> None:
    with pytest.raises(StoreUnavailable, match="not understood"):
        listing.read_page(body.encode(), "x/", None)


@pytest.mark.parametrize(
    "body",
    [
        f"<!DOCTYPE x [<!ENTITY l0 'ha'>{LAUGHS}]>" + page(ENTRY.format("x/&l8;")),
        "<!DOCTYPE x [<!ENTITY f SYSTEM 'file:///etc/passwd'>]>" + page(ENTRY.format("x/&f;")),
        "<!DOCTYPE x [<!ENTITY a 'b'>]>" + page(ENTRY.format("x/&a;")),
    ],
)
def test_a_listing_declares_no_entities(body: str) -> None:
    """None is expanded, however harmless it looks."""
    with pytest.raises(StoreUnavailable, match="document type"):
        listing.read_page(body.encode(), "x/", None)


def test_a_listing_in_another_encoding_hides_nothing() -> None:
    hidden = f"<?xml version='1.0' encoding='utf-16'?><!DOCTYPE x [<!ENTITY a 'b'>]>{page()}".encode("utf-16")
    with pytest.raises(StoreUnavailable):
        listing.read_page(hidden, "x/", None)


def test_what_is_no_key_of_ours_is_passed_over() -> None:
    names = ["x/ok", "y/other-root", "x/", "x/folder/", "x/../up", "x/a//b", "x/.hidden", "x/&#10;line"]
    found = listing.read_page(page(*(ENTRY.format(name) for name in names)).encode(), "x/", None)
    assert [info.key for info in found.objects] == ["ok"]


@given(st.binary(max_size=300))
def test_no_listing_is_too_strange(noise: bytes) -> None:
    whole = page(ENTRY.format("x/k")).encode()
    for body in (noise, whole[: len(noise)] + noise + whole[len(noise) :]):
        try:
            listing.read_page(body, "x/", None)
        except StoreUnavailable:
            pass


def test_a_listing_without_end_has_an_end(open_s3: OpenS3, fault_proxy: Proxy) -> None:
    """The same page forever, or pages without anything on them."""
    again = page(more="<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>")
    proxy = fault_proxy(always(raw(200, again)))
    with pytest.raises(StoreUnavailable, match="does not end"):
        list(open_s3(proxy.endpoint).list(""))
    assert proxy.counts["hostile"] == 2
    token = "<IsTruncated>true</IsTruncated><NextContinuationToken>{}</NextContinuationToken>"
    proxy.policy = lambda request: raw(200, page(more=token.format(request.number)))
    with pytest.raises(StoreUnavailable, match="does not end"):
        list(open_s3(proxy.endpoint).list(""))
    assert proxy.counts["hostile"] == 2 + EMPTY_PAGES_MAX + 1


def test_answers_are_no_larger_than_they_may_be(open_s3: OpenS3, fault_proxy: Proxy) -> None:
    """What is said about a length is judged before a byte is read, and what is not said, while it comes."""
    huge = "HTTP/1.1 {} Yes\r\ncontent-length: {}\r\n\r\n"
    proxy = fault_proxy()
    store = open_s3(proxy.endpoint, timeout_ms=2000)
    proxy.policy = always(Fault("hostile", "reply", reply=huge.format(200, 2**40).encode()))
    for verb in (VERBS[1], VERBS[4]):
        with pytest.raises((StoreRefused, Corrupt), match=r"too large|larger than it can be"):
            verb(store)
    proxy.policy = always(Fault("hostile", "reply", reply=huge.format(206, 2).encode() + b"ab"))
    with pytest.raises(StoreRefused, match="too large"):
        store.get_range("k", 0, 1)
    with pytest.raises(Corrupt, match="larger than it can be"):
        store.get("k", bytes_max=1)
    endless = "".join(f"x-{number}: {'x' * 100}\r\n" for number in range(1000))
    proxy.policy = always(Fault("hostile", "reply", reply=f"HTTP/1.1 200 Yes\r\n{endless}\r\n".encode()))
    with pytest.raises(StoreUnavailable) as caught:
        store.get("k")
    assert caught.value.cause == "other"
    proxy.policy = always(Fault("hostile", "reply", reply=b"HTTP/1.1 103 Soon\r\n\r\n" * (http.INTERIM_MAX + 1)))
    with pytest.raises(StoreUnavailable) as caught:
        store.get("k")
    assert caught.value.cause == "other"


# -- answers ----------------------------------------------------------------------------------------------


class Said:
    """A connection over which somebody says this, in these pieces, and hangs up."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = [piece for piece in pieces if piece]
        self.served, self.reusable = 0, True

    @property
    def ended(self) -> bool:
        return not self._pieces

    @property
    def has_data(self) -> bool:
        """Of a real connection: what has come and nobody has read."""
        return bool(self._pieces)

    def now(self) -> float:
        return 0.0

    async def send(self, data: object, seconds: float) -> bool:
        return True

    async def receive(self, seconds: float) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""

    async def fill(self, place: memoryview, seconds: float) -> int:
        if not self._pieces:
            return 0
        piece = self._pieces.pop(0)
        fits = min(len(piece), len(place))
        place[:fits] = piece[:fits]
        if fits < len(piece):
            self._pieces.insert(0, piece[fits:])
        return fits


def heard(said: bytes, cuts: list[int], method: str) -> tuple[object, ...]:
    edges = sorted({0, len(said), *(cut % (len(said) + 1) for cut in cuts)})
    line = Said([said[start:end] for start, end in pairwise(edges)])
    try:
        response = run_now(http.request(line, method, "/k", {"host": "x"}, timeout=5, limit=1000))  # type: ignore[arg-type]
    except (StoreUnavailable, StoreRefused) as failure:
        return (type(failure), failure.cause)
    return (response.status, response.headers, response.body, line.reusable)


HEADS = st.sampled_from(
    [
        b"content-length: 5",
        b"Content-Length:5 ",
        b"content-length: 5\r\ncontent-length: 5",
        b"content-length: 5, 5",
        b"content-length: +5",
        b"content-length: 99",
        b"content-length: 6\r\ncontent-length: 5",
        b"transfer-encoding: chunked",
        b"content-length: 5\r\ntransfer-encoding: chunked",
        b"connection: close",
        b"connection: keep-alive",
        b"x: \x80\xff",
        b"x : y",
        b" folded",
        b"x: a\r\nx: b",
        b"x:\ty\t",
        b"x: a\0b",
        b"x: a\nb",
    ]
)
ANSWERS = st.builds(
    lambda status, heads, body: b"\r\n".join([status, *heads, b"", b""]) + body,
    st.sampled_from(
        [
            b"HTTP/1.1 200 OK",
            b"HTTP/1.1 200",
            b"HTTP/1.1 404 No",
            b"HTTP/1.0 200 OK",
            b"HTTP/1.1 204 No",
            b"HTTP/1.1 304 Same",
            b"HTTP/1.1 100 Go on\r\n\r\nHTTP/1.1 200 OK",
            b"HTTP/1.1 099 x",
            b"http/1.1 200 OK",
            b"HTTP/1.1 200 \xe9",
            b"HTTP/1.1 2000 OK",
        ]
    ),
    st.lists(HEADS, max_size=4),
    st.sampled_from([b"", b"hello", b"hello there", b"5\r\nhello\r\n0\r\n\r\n", b"hel"]),
)


@settings(max_examples=400)
@given(ANSWERS, st.lists(st.integers(0, 200), max_size=3), st.sampled_from(["GET", "HEAD"]))
def test_what_is_read_without_h11_is_what_h11_reads(said: bytes, cuts: list[int], method: str) -> None:
    """The short way is for answers that are beyond doubt, and comes to the same end."""
    short = heard(said, cuts, method)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(http, "_length", lambda *_: None)
        by_h11 = heard(said, cuts, method)
    if by_h11[0] is not StoreUnavailable or short[0] is not StoreUnavailable:
        assert short[0] == by_h11[0]
        assert short[2:] == by_h11[2:]


@settings(max_examples=400)
@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=3))
def test_no_answer_ends_the_process(noise: bytes, cuts: list[int]) -> None:
    for said in (noise, b"HTTP/1.1 200 OK\r\n" + noise, b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n" + noise):
        heard(said, cuts, "GET")
    assert h11.__version__
