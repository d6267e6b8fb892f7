"""A whole log over a real S3 server: shipped, settled, brought back; checksums that catch; sockets that are counted."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import obstore
import pytest

import holdfast
from holdfast import Corrupt, Invalid, Keyring, Log, Unavailable
from holdfast.store import layout
from tests.store import shipped_logs
from tests.store.fault_proxy import Fault, FaultProxy, Request, _Message, _Upstream, delay, once_per_key
from tests.store.servers import S3Server

pytestmark = pytest.mark.store

PATIENCE = 90.0

OpenShipped = Callable[..., Log]


@pytest.fixture
def open_shipped(s3_server: S3Server, prefix: str, tmp_path: Path) -> Iterator[OpenShipped]:
    """Open logs that ship to the test's place on the server, directly or through a proxy (`endpoint`)."""
    opened: list[Log] = []

    def start(name: str = "log", *, endpoint: str = "", keyring: Keyring | None = None, **sections: object) -> Log:
        settings = shipped_logs.settings(endpoint or s3_server.endpoint, **sections)  # type: ignore[arg-type]
        opened.append(
            holdfast.open(tmp_path / name, store=shipped_logs.url(prefix), settings=settings, keyring=keyring)
        )
        return opened[-1]

    yield start
    for log in opened:
        log.close()


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def fill(log: Log) -> None:
    """Two topics with sealed records and a tail, all of it on the store."""
    orders, notes = log.topic("orders", partitions=3), log.topic("notes")
    for number in range(60):
        orders.submit(b"order %d" % number, key=b"k%d" % (number % 7))
    notes.append_batch([b"note %d" % number for number in range(10)])
    log.flush()
    log.seal()
    log.ship(PATIENCE)
    for number in range(60, 80):
        orders.submit(b"order %d" % number, key=b"k%d" % (number % 7))
    notes.submit(b"the last note").shipped(PATIENCE)


# -- there and back ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_what_was_shipped_can_be_brought_back(
    encrypted: bool, open_shipped: OpenShipped, keyring: Keyring, s3_server: S3Server, prefix: str, tmp_path: Path
) -> None:
    ring = keyring if encrypted else None
    log = open_shipped(keyring=ring, segments={"rows_max": 10})
    fill(log)
    expected = shipped_logs.records(log)
    assert log.unshipped() == ()
    report, found = shipped_logs.restored(s3_server.endpoint, prefix, tmp_path / "copy", ring)
    assert found == expected
    assert (report.records, report.tail_records) == (91, 21)


def test_an_encrypted_log_leaves_nothing_readable_on_the_server(
    open_shipped: OpenShipped, keyring: Keyring, s3_server: S3Server, prefix: str, tmp_path: Path
) -> None:
    fill(open_shipped(keyring=keyring))
    client = s3_server.client()
    keys = [info["path"] for page in obstore.list(client, prefix) for info in page]
    assert len(keys) > 10
    assert not [key for key in keys if b"order 1" in bytes(obstore.get(client, key).bytes())]
    with pytest.raises(Invalid, match="encrypted"):
        shipped_logs.restored(s3_server.endpoint, prefix, tmp_path / "copy")


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_a_bucket_that_is_emptied_again_and_again_is_rebuilt(
    encrypted: bool, open_shipped: OpenShipped, keyring: Keyring, s3_server: S3Server, prefix: str, tmp_path: Path
) -> None:
    """While the log ships, and between two runs; then one commit batch is lost; nothing that was acknowledged is."""
    ring, client = keyring if encrypted else None, s3_server.client()
    strict = {"claim_check_interval_ms": 0}
    log = open_shipped(keyring=ring, segments={"rows_max": 10}, shipping=strict)
    fill(log)
    for life in range(2):
        obstore.delete(client, [info["path"] for page in obstore.list(client, prefix) for info in page])
        if life:
            log.close()
            log = open_shipped(keyring=ring, segments={"rows_max": 10}, shipping=strict)
        with pytest.raises(Unavailable, match="emptied"):
            log.topic("notes").append(b"durable here", durability="shipped")
        assert not [info for page in obstore.list(client, f"{prefix}/epochs") for info in page]
        assert log.rebuild_store().lost == ()
        log.topic("notes").append(b"shipped", durability="shipped")
        log.ship(PATIENCE)
    log.close()
    batches = [info["path"] for page in obstore.list(client, f"{prefix}/tail") for info in page]
    obstore.delete(client, next(path for path in batches if path.endswith(".arrow")))
    log = open_shipped(keyring=ring, segments={"rows_max": 10})
    log.topic("notes").append(b"the last one", durability="shipped")
    expected = shipped_logs.records(log)
    _, found = shipped_logs.restored(s3_server.endpoint, prefix, tmp_path / "copy", ring)
    assert found == expected


def test_a_log_goes_on_after_its_machine_was_lost(
    open_shipped: OpenShipped, s3_server: S3Server, prefix: str, tmp_path: Path
) -> None:
    """Restored, opened, appended to, and brought back once more: one history."""
    log = open_shipped()
    fill(log)
    before = shipped_logs.records(log)
    log.close()
    settings = shipped_logs.settings(s3_server.endpoint)
    holdfast.restore(shipped_logs.url(prefix), tmp_path / "new", settings=settings)
    new = open_shipped("new")
    assert shipped_logs.records(new) == before
    receipt = new.topic("notes").append(b"after the loss", durability="shipped")
    assert receipt.offset == 11
    new.seal()
    new.ship(PATIENCE)
    _, found = shipped_logs.restored(s3_server.endpoint, prefix, tmp_path / "copy")
    assert found == {**before, ("notes", 0, 11): b"after the loss"}


def test_a_restart_sends_nothing_twice(open_shipped: OpenShipped, s3_server: S3Server, prefix: str) -> None:
    """The next open goes on where the last one stopped: but for its claim, one batch and its word on what is settled,
    nothing is new.
    """
    log = open_shipped()
    fill(log)
    log.close()
    before = objects(s3_server, prefix)
    again = open_shipped()
    again.topic("notes").append(b"one more", durability="shipped")
    again.close()
    after = objects(s3_server, prefix)
    new = {key: data for key, data in after.items() if key not in before and "/frontiers/" not in key}
    assert [key for key in before if "/frontiers/" not in key and after[key] != before[key]] == []
    assert len([key for key in new if key.endswith(".arrow")]) == 1
    assert {key.split("/")[1] for key in new} == {"tail", "epochs"}


def test_settled_batches_are_removed(open_shipped: OpenShipped, s3_server: S3Server, prefix: str) -> None:
    """What lies in segments is not kept a second time; a floor says so."""
    log = open_shipped()
    fill(log)
    log.seal()
    log.ship(PATIENCE)
    log.close()
    tail = [key.rpartition(".")[2] for key in objects(s3_server, prefix) if "/tail/" in key]
    assert tail == ["floor"]


def objects(server: S3Server, prefix: str) -> dict[str, bytes]:
    """All that the server holds for a log."""
    client = server.client()
    keys = [str(info["path"]) for page in obstore.list(client, prefix) for info in page]
    return {key: bytes(obstore.get(client, key).bytes()) for key in keys}


# -- checksums --------------------------------------------------------------------------------------------


class FlippingProxy(FaultProxy):
    """A line that changes one bit of the first body for every key, silently."""

    async def _apply(self, fault: Fault, message: _Message, client: asyncio.StreamWriter, upstream: _Upstream) -> bool:
        if fault.name != "flip":
            return await super()._apply(fault, message, client, upstream)
        await message.invite(client)
        body = bytearray(await message.body())
        body[len(body) // 2] ^= 0x10
        await upstream.send(message.head + body, 0)
        return await self._answer(Fault("pass", "pass"), await upstream.reply(message.method), client)


def test_a_bit_that_flips_on_its_way_is_never_kept(
    open_shipped: OpenShipped, s3_server: S3Server, prefix: str, tmp_path: Path
) -> None:
    """The store refuses what does not match its checksum, and the same is sent again."""
    proxy = FlippingProxy(s3_server.port, once_per_key(Fault("flip", "pass")))
    try:
        log = open_shipped(endpoint=proxy.endpoint)
        fill(log)
        expected = shipped_logs.records(log)
        stats = log.stats().shipping
        assert stats is not None
        assert proxy.counts["flip"] > 8
        # Each of them was noticed.
        assert sum(stats.retries.values()) >= proxy.counts["flip"]
        log.close()
    finally:
        proxy.close()
    _, found = shipped_logs.restored(s3_server.endpoint, prefix, tmp_path / "copy")
    assert found == expected


def flip(server: S3Server, key: str) -> None:
    """Change one bit of an object behind everybody's back, with a checksum that fits."""
    client = server.client()
    data = bytearray(obstore.get(client, key).bytes())
    data[len(data) // 2] ^= 0x10
    obstore.delete(client, key)
    obstore.put(client, key, bytes(data))


KINDS = {
    "segment": "/0/segments/",
    "manifest object": "/0/_manifest/",
    "commit batch": f"/{layout.TAIL}",
    "topic document": "/_topic/",
    "log document": f"/{layout.LOG}",
}


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
@pytest.mark.parametrize("part", KINDS.values(), ids=KINDS)
def test_a_restore_names_what_was_damaged_on_the_store(
    encrypted: bool,
    part: str,
    open_shipped: OpenShipped,
    keyring: Keyring,
    s3_server: S3Server,
    prefix: str,
    tmp_path: Path,
) -> None:
    ring = keyring if encrypted else None
    log = open_shipped(keyring=ring)
    fill(log)
    log.close()
    key = next(key for key in objects(s3_server, prefix) if part in key and not key.endswith(".floor"))
    flip(s3_server, key)
    with pytest.raises(Corrupt) as caught:
        shipped_logs.restored(s3_server.endpoint, prefix, tmp_path / "copy", ring)
    assert key.removeprefix(f"{prefix}/") in str(caught.value)
    assert not (tmp_path / "copy" / "FORMAT").exists(), "there is no log"


@pytest.mark.parametrize(
    "part", ["/0/segments/", "/0/_manifest/", f"/{layout.TAIL}"], ids=["segment", "manifest", "batch"]
)
def test_reconciling_finds_what_was_damaged_on_the_store(
    part: str, open_shipped: OpenShipped, s3_server: S3Server, prefix: str
) -> None:
    log = open_shipped()
    fill(log)
    assert log.reconcile(remote=True, deep=True).clean
    key = next(key for key in objects(s3_server, prefix) if part in key and not key.endswith(".floor"))
    flip(s3_server, key)
    report = log.reconcile(remote=True, deep=True)
    assert not report.clean
    assert key.rpartition("/")[2] in str(report.findings)


# -- connections ------------------------------------------------------------------------------------------


def sockets_to(port: int) -> int:
    """Open sockets of this process to a port on this machine, as the kernel has it."""
    wanted = f"0100007F:{port:04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {f"socket:[{fields[9]}]" for fields in lines if fields[2] == wanted and fields[3] == "01"}
    mine = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            mine.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:
            pass
    return sum(link in inodes for link in mine)


def pool(log: Log) -> holdfast.shipping.remote_store.PoolState:
    stats = log.stats().shipping
    assert stats is not None
    return stats.pool


def test_the_pool_counts_true_sockets(open_shipped: OpenShipped, fault_proxy: Callable[..., FaultProxy]) -> None:
    """A log that has nothing to ship yet has its connections, and no others: as many as the kernel and the peer say."""
    proxy = fault_proxy()
    log = open_shipped(endpoint=proxy.endpoint, shipping={"max_in_flight_requests": 3, "target_pool_size": 5})
    until(lambda: pool(log).healthy == 5 and pool(log).in_use == 0, "five connections at rest")
    until(lambda: proxy.open_connections == 5, "five at the other end")
    assert sockets_to(proxy.port) == 5
    assert (pool(log).target, pool(log).in_use, pool(log).opening, pool(log).replaced_total) == (5, 0, 0, 0)


def test_connections_that_the_peer_reset_are_replaced(
    open_shipped: OpenShipped, fault_proxy: Callable[..., FaultProxy]
) -> None:
    proxy = fault_proxy()
    log = open_shipped(endpoint=proxy.endpoint, shipping={"max_in_flight_requests": 3, "target_pool_size": 5})
    until(lambda: pool(log).healthy == 5 and pool(log).in_use == 0, "five connections at rest")
    until(lambda: proxy.idle_connections == 5, "five at the other end")
    assert proxy.close_idle(reset=True) == 5
    until(lambda: pool(log).replaced_total == 5 and pool(log).healthy == 5, "five others")
    until(lambda: proxy.open_connections == 5, "five at the other end")
    assert sockets_to(proxy.port) == 5
    log.topic("t").append(b"goes over the new ones", durability="shipped")
    assert log.stats().shipping.retries == {}  # type: ignore[union-attr]


def test_what_is_under_way_is_seen_as_in_use(open_shipped: OpenShipped, fault_proxy: Callable[..., FaultProxy]) -> None:
    def slow_batches(request: Request) -> Fault | None:
        return delay(2) if request.method == "PUT" and "/tail/" in request.path else None

    proxy = fault_proxy(slow_batches)
    log = open_shipped(
        endpoint=proxy.endpoint,
        shipping={"max_in_flight_requests": 3, "batch_size_threshold": 1, "batch_timeout_ms": 1},
    )
    topic = log.topic("t")
    for number in range(5):
        ticket = topic.submit(b"%d" % number)
        ticket.result()
    until(lambda: pool(log).in_use == 3, "three batches under way")
    ticket.shipped(PATIENCE)
    until(lambda: pool(log).in_use == 0, "all given back")
    assert pool(log).healthy == 6


def test_closing_leaves_no_socket_behind(open_shipped: OpenShipped, fault_proxy: Callable[..., FaultProxy]) -> None:
    proxy = fault_proxy()
    log = open_shipped(endpoint=proxy.endpoint)
    fill(log)
    assert sockets_to(proxy.port) >= pool(log).healthy > 0
    log.close()
    assert (pool(log).healthy, pool(log).in_use, pool(log).opening) == (0, 0, 0)
    until(lambda: proxy.open_connections == 0, "all closed")
    assert sockets_to(proxy.port) == 0
