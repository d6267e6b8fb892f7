"""The remote against a real S3 server, directly and through a proxy that spoils requests."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from hashlib import sha256
from itertools import count, pairwise

import obstore
import pytest

from holdfast.clock import SystemClock
from holdfast.store import port
from holdfast.store.credentials import CredentialSource
from holdfast.store.port import AlreadyExists, Body, ObjectInfo, StoreRefused, StoreUnavailable
from holdfast.store.s3 import answers
from holdfast.store.s3.async_store import AsyncS3Store
from holdfast.store.s3.bucket_address import S3Address
from holdfast.store.s3.connections import AsyncConnection
from holdfast.store.s3.http import PIECE_BYTES
from tests.store import fault_proxy as faults
from tests.store.servers import ACCESS_KEY, BUCKET, READER_ACCESS_KEY, READER_SECRET_KEY, REGION, SECRET_KEY, start_weed

pytestmark = pytest.mark.store

BODY = Body.of(b"a commit batch" * 300)


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    for prefix, key, secret in [
        ("OWNER", ACCESS_KEY, SECRET_KEY),
        ("READER", READER_ACCESS_KEY, READER_SECRET_KEY),
        ("WRONG", ACCESS_KEY, "not the secret"),
        ("UNKNOWN", "nobody", SECRET_KEY),
    ]:
        monkeypatch.setenv(f"{prefix}_ACCESS_KEY_ID", key)
        monkeypatch.setenv(f"{prefix}_SECRET_ACCESS_KEY", secret)


@pytest.fixture
def connect(s3_server, prefix):
    @asynccontextmanager
    async def open_remote(endpoint="", bucket=BUCKET, who="OWNER", **options):
        settings = {"pool_size": 4, "request_timeout": 10, "connect_timeout": 5, "heartbeat": 60} | options
        address = S3Address(bucket, prefix, endpoint or s3_server.endpoint, REGION, True)
        remote = AsyncS3Store(address, CredentialSource(f"env:{who}"), clock=SystemClock(), **settings)
        await remote.start()
        try:
            yield remote
        finally:
            await remote.close()

    return open_remote


async def failure_of(work):
    with pytest.raises((StoreUnavailable, StoreRefused)) as caught:
        await work
    return caught.value


@pytest.mark.parametrize("size", [100, 3 * 2**20])
def test_a_watcher_hears_when_the_bytes_were_handed_to_a_connection(connect, size):
    """Once per attempt, before the answer, however large the object is."""
    calls = []

    async def run():
        async with connect() as remote:
            body = Body.of(bytes(size))._replace(handed=lambda: calls.append("handed"))
            await remote.create("tail/a.arrow", body)
            calls.append("created")
            with pytest.raises(AlreadyExists):
                await remote.create("tail/a.arrow", body._replace(handed=None))

    asyncio.run(run())
    assert calls == ["handed", "created"]


def test_what_was_created_is_there(connect, s3_server, prefix):
    """Whole, under its key, with its size; and any other client finds it."""

    async def run():
        async with connect() as remote:
            await remote.create("tail/a.arrow", BODY)
            assert await remote.read("tail/a.arrow") == BODY.data
            info = await remote.head("tail/a.arrow")
            assert info == ObjectInfo("tail/a.arrow", BODY.size, info.modified_us)
            assert abs(info.modified_us - SystemClock().now_us()) < 60_000_000

    asyncio.run(run())
    assert bytes(obstore.get(s3_server.client(), f"{prefix}/tail/a.arrow").bytes()) == BODY.data


def test_a_large_object_never_holds_up_the_loop(connect, monkeypatch):
    """It goes out in pieces, with a turn of the loop between them, and it is hashed and checked in another thread."""
    turns, pieces, hashed = count(), [], set()
    write = AsyncConnection.write

    def written(connection, data):
        pieces.append((len(data), next(turns)))
        write(connection, data)

    def noted(data):
        if len(data) > PIECE_BYTES:
            hashed.add(threading.current_thread())
        return sha256(data)

    async def turn():
        while True:
            next(turns)
            await asyncio.sleep(0)

    async def run():
        async with connect(pool_size=1) as remote:
            turning = asyncio.create_task(turn())
            await remote.create("large", Body.of(bytes(2**20)))
            assert await remote.read("large") == bytes(2**20)
            turning.cancel()

    monkeypatch.setattr(AsyncConnection, "write", written)
    for module in (port, answers):
        monkeypatch.setattr(module, "sha256", noted)
    asyncio.run(run())
    assert max(size for size, _ in pieces) == PIECE_BYTES
    assert all(later - earlier > 1 for (size, earlier), (_, later) in pairwise(pieces) if size == PIECE_BYTES)
    assert hashed
    assert threading.current_thread() not in hashed


def test_what_is_not_there_is_not_there(connect):
    """None, and not an error."""

    async def run():
        async with connect() as remote:
            assert await remote.read("none") is None
            assert await remote.head("none") is None

    asyncio.run(run())


def test_a_key_is_taken_once(connect):
    """Of many at once, one wins; its bytes stay."""

    async def run():
        async with connect(pool_size=12) as remote:
            bodies = [Body.of(b"%d" % n) for n in range(12)]
            results = await asyncio.gather(*(remote.create("k", each) for each in bodies), return_exceptions=True)
            lost = [isinstance(each, AlreadyExists) for each in results]
            assert lost.count(False) == 1
            assert await remote.read("k") == bodies[lost.index(False)].data

    asyncio.run(run())


def test_keys_with_odd_characters_are_kept_as_they_are(connect, s3_server, prefix):
    """The signature covers them as they are sent."""
    names = ["a b", "a+b", "ä/ö", "a~b-c_d.e", "a=b&c", "100%", "(x)!*'"]

    async def run():
        async with connect() as remote:
            for name in names:
                await remote.create(name, Body.of(name.encode()))
                assert await remote.read(name) == name.encode()

    asyncio.run(run())
    listed = {meta["path"] for page in obstore.list(s3_server.client(), prefix) for meta in page}
    assert len(listed) == len(names)


@pytest.mark.parametrize("size", [0, 1, 65536, 65537, 2**20, 9 * 2**20 + 5])
def test_objects_of_all_sizes_travel(connect, tmp_path, size):
    """From memory and from a file."""
    path = tmp_path / "segment"
    path.write_bytes(b"\x5a" * size)
    body = Body.of(path.read_bytes())

    async def run():
        async with connect() as remote:
            await remote.create("memory", body)
            await remote.create("file", Body.file(path, size, body.sha256))
            assert await remote.read("memory") == await remote.read("file") == body.data
            assert (await remote.head("file")).size == size

    asyncio.run(run())


def test_bytes_that_do_not_match_their_hash_are_not_kept(connect):
    """The store checks before it keeps."""

    async def run():
        async with connect() as remote:
            failure = await failure_of(remote.create("k", Body(4, BODY.sha256, b"else")))
            assert (type(failure), failure.cause) == (StoreUnavailable, "bad_digest")
            assert await remote.head("k") is None

    asyncio.run(run())


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"bucket": "no-such-bucket"}, "no_bucket"),
        ({"who": "WRONG"}, "credentials"),
        ({"who": "UNKNOWN"}, "credentials"),
        ({"who": "READER"}, "forbidden"),
    ],
)
def test_what_will_not_pass_is_refused(connect, options, cause):
    """No bucket, no permission, no such key: somebody must change something."""

    async def run():
        async with connect(**options) as remote:
            failure = await failure_of(remote.create("k", BODY))
            assert (type(failure), failure.cause) == (StoreRefused, cause)

    asyncio.run(run())


def test_connections_are_used_again(connect):
    """A hundred requests, no new socket."""

    async def run():
        async with connect() as remote:
            for n in range(25):
                await asyncio.gather(*(remote.create(f"{n}-{i}", BODY) for i in range(4)))
            assert remote.pool().healthy == 4
            assert remote.pool().replaced_total == 0

    asyncio.run(run())


@pytest.mark.parametrize("fault", [faults.reset_after(), faults.close_after()])
def test_a_lost_reply_is_an_unknown_outcome(connect, fault_proxy, fault):
    """It is reported as a reset and sent once; the object is there, and the next attempt says so."""
    proxy = fault_proxy(faults.once_per_key(fault))

    async def run():
        async with connect(proxy.endpoint) as remote:
            assert (await failure_of(remote.create("k", BODY))).cause == "reset"
            with pytest.raises(AlreadyExists):
                await remote.create("k", BODY)
            assert await remote.read("k") == BODY.data

    asyncio.run(run())
    assert sum(proxy.counts.values()) - proxy.counts["close_idle"] >= 3


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (faults.reset_before(), "reset"),
        (faults.close_before(), "reset"),
        (faults.reset_midway(), "reset"),
        (faults.server_error(), "server_error"),
        (faults.slow_down(2), "slow_down"),
        (faults.conflict(), "conflict"),
        (faults.expired_token(), "credentials"),
        (faults.half_open(), "timeout"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_request_that_failed_succeeds_when_it_is_sent_again(connect, fault_proxy, fault, cause):
    """Nothing of the failure sticks to the remote."""
    proxy = fault_proxy(faults.once_per_key(fault))

    async def run():
        async with connect(proxy.endpoint, request_timeout=3) as remote:
            failure = await failure_of(remote.create("k", BODY))
            assert (type(failure), failure.cause) == (StoreUnavailable, cause)
            await remote.create("k", BODY)

    asyncio.run(run())


def test_a_truncated_object_is_not_read(connect, fault_proxy):
    """Half of it is no object."""
    proxy = fault_proxy(faults.always(faults.truncate(100), method="GET"))

    async def run():
        async with connect(proxy.endpoint) as remote:
            await remote.create("k", BODY)
            assert (await failure_of(remote.read("k"))).cause == "truncated"

    asyncio.run(run())


@pytest.mark.parametrize("reset", [False, True])
def test_connections_that_went_stale_cost_no_request(connect, fault_proxy, reset):
    """The server closed all of them while they were idle."""
    proxy = fault_proxy()

    async def run():
        async with connect(proxy.endpoint) as remote:
            for n in range(20):
                await asyncio.gather(*(remote.create(f"{n}-{i}", BODY) for i in range(4)))
                await asyncio.to_thread(proxy.close_idle, reset=reset)
            assert remote.pool().replaced_total >= 20

    asyncio.run(run())


def test_a_server_that_is_killed_and_comes_back(tmp_path, connect):
    """Requests fail with a reason meanwhile; afterwards everything that was acknowledged is there."""
    server = start_weed(tmp_path / "weed")

    async def create(remote, key):
        try:
            await remote.create(key, BODY)
        except (StoreUnavailable, AlreadyExists) as failure:
            return getattr(failure, "cause", "exists")
        return "done"

    async def run():
        async with connect(server.endpoint, connect_timeout=2) as remote:
            await remote.create("before", BODY)
            await asyncio.to_thread(server.kill)
            assert await create(remote, "meanwhile") in ("refused", "reset")
            await asyncio.to_thread(server.restart)
            while await create(remote, "after") != "done":
                await asyncio.sleep(0.1)
            assert await remote.read("before") == BODY.data

    try:
        asyncio.run(run())
    finally:
        server.stop()
