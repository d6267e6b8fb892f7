"""`durability="shipped"` through a server whose log ships to S3: acknowledged when the store has it, and not before."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from holdfast import Invalid, Log, Unavailable
from tests.remote.served import ServedLog
from tests.store.servers import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, S3Server, weed

pytestmark = [pytest.mark.crash, pytest.mark.store]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server of our own: it is stopped now and then."""
    with weed(tmp_path_factory.mktemp("weed")) as own:
        yield own


@pytest.fixture(scope="module")
def shipping(store: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedLog]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        settings = {
            "store__url": f"s3://{BUCKET}/served", "store__endpoint": store.endpoint, "store__region": REGION,
            "store__retries": 0, "store__timeout_ms": 2_000, "store__allow_http": "true",
            "shipping__shipped_timeout_ms": 15_000, "shipping__request_timeout_ms": 2_000,
            "shipping__retry_delay_max_ms": 200, "shipping__drain_timeout_ms": 1_000,
        }  # fmt: skip
        with ServedLog(tmp_path_factory.mktemp("served") / "log", **settings) as server:
            yield server


@pytest.fixture
def log(shipping: ServedLog) -> Iterator[Log]:
    with shipping.connect() as connected:
        yield connected


@pytest.fixture
def down(store: S3Server) -> Iterator[None]:
    """The store does not answer, until the test has ended."""
    os.kill(store.pid, signal.SIGSTOP)
    yield
    os.kill(store.pid, signal.SIGCONT)


def objects(store: S3Server) -> int:
    return sum(len(page) for page in store.client(prefix="served").list())


def test_it_is_acknowledged_when_the_store_has_it(log: Log, store: S3Server, name: str) -> None:
    topic = log.topic(name)
    before = objects(store)
    receipt = topic.append(b"one", durability="shipped")
    assert log.marks(name)[0].shipped == receipt.offset + 1
    assert objects(store) > before
    ticket = topic.submit(b"two")
    assert ticket.shipped(60).offset == 1
    with log.transaction(durability="shipped") as tx:
        tx.append(topic, b"three")
    assert log.marks(name)[0].shipped == 3
    assert topic.append_batch([b"four", b"five"], durability="shipped")[-1].offset == 4

    async def later() -> int:
        return (await topic.append_async(b"six", durability="shipped")).offset

    assert asyncio.run(later()) == 5
    assert log.marks(name)[0].shipped == 6
    log.seal(name)
    log.ship(60)
    assert log.marks(name)[0].settled == 6
    assert not [span for span in log.unshipped() if span.topic == name]


@pytest.mark.usefixtures("down")
def test_a_store_that_is_away_ends_in_time_and_the_record_is_durable(log: Log, name: str) -> None:
    topic = log.topic(name)
    ticket = topic.submit(b"kept")
    with pytest.raises(Unavailable, match="durable here, but not on the store"):
        ticket.shipped(0.3)
    assert ticket.result().offset == 0
    assert [record.payload for record in topic.read()] == [b"kept"]
    assert log.marks(name)[0].shipped == 0
    assert [(span.first, span.records) for span in log.unshipped() if span.topic == name] == [(0, 1)]
    log.seal(name)
    with pytest.raises(Unavailable):
        log.ship(0.3)


def test_a_ticket_settles_when_the_store_is_back(log: Log, store: S3Server, name: str) -> None:
    topic = log.topic(name)
    os.kill(store.pid, signal.SIGSTOP)
    try:
        ticket = topic.submit(b"late")
        assert ticket.result(30).offset == 0
        with pytest.raises(Unavailable):
            ticket.shipped(0.2)
    finally:
        os.kill(store.pid, signal.SIGCONT)
    assert ticket.shipped(60).offset == 0
    assert log.marks(name)[0].shipped == 1


@pytest.mark.usefixtures("down")
def test_a_plain_request_says_that_it_is_durable_and_not_shipped(shipping: ServedLog, log: Log, name: str) -> None:
    log.topic(name)
    connection = HTTPConnection(*shipping.upstream, timeout=60)
    connection.request(
        "POST",
        f"/v1/topics/{name}/records?durability=shipped&timeout=0.3",
        json.dumps({"payload": "x"}),
        {"content-type": "application/json"},
    )
    answer = connection.getresponse()
    error = json.loads(answer.read())
    connection.close()
    assert (answer.status, error["kind"]) == (503, "Unavailable")
    assert len(list(log.topic(name).read())) == 1


def test_a_server_that_was_killed_ships_what_it_had_acknowledged(
    shipping: ServedLog, store: S3Server, name: str
) -> None:
    with shipping.connect(settings={"journal": {"ack_timeout_ms": 60_000}}) as log:
        topic = log.topic(name)
        os.kill(store.pid, signal.SIGSTOP)
        try:
            ticket = topic.submit(b"one")
            ticket.result(60)
            shipping.kill()
        finally:
            os.kill(store.pid, signal.SIGCONT)
        shipping.start()
        assert ticket.shipped(60).offset == 0
        assert topic.append(b"two", durability="shipped").offset == 1


def test_without_a_store_it_is_refused_before_anything_is_written(remote: Log, name: str) -> None:
    topic = remote.topic(name)
    for append in (
        lambda: topic.append(b"x", durability="shipped"),
        lambda: topic.append_batch([b"x"], durability="shipped"),
        lambda: remote.transaction(durability="shipped"),
    ):
        with pytest.raises(Invalid, match="ships to no store"):
            append()
    assert list(topic.read()) == []
