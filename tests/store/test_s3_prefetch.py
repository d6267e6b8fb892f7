"""Segments that are fetched ahead, from a real server: each once, in order, and every failure at its own place."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import obstore
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import holdfast
from holdfast.errors import Corrupt, HoldfastError, Unavailable
from holdfast.reader.settled_reading import SettledReading
from pyspark_holdfast.source import HoldfastSource
from tests.store import shipped_logs
from tests.store.fault_proxy import (
    FaultProxy,
    Policy,
    Request,
    bandwidth,
    half_open,
    once_per_key,
    reset_after,
    slow_down,
    truncate,
)

pytestmark = pytest.mark.store

SEGMENTS, ROWS = 30, 10
LARGE_ROWS = 40
PATIENCE = 30


class Shipped:
    """A log on the server, read through a proxy that notes what is asked for."""

    def __init__(self, proxy: FaultProxy, server: Any, prefix: str) -> None:
        self.proxy, self.server, self.prefix = proxy, server, prefix
        self.requests: list[Request] = []
        self.policy: Policy = lambda request: None
        proxy.policy = self._meet

    def _meet(self, request: Request) -> Any:
        if ".parquet" not in request.target:
            return None
        self.requests.append(request)
        return self.policy(request)

    def asked(self) -> Counter[tuple[str, str]]:
        """How often each part of each segment was asked for."""
        return Counter((request.path, request.headers.get("range", "")) for request in self.requests)

    def read(self, topic: str = "small", **store: object) -> SettledReading:
        given = {"endpoint": self.proxy.endpoint, "region": "us-east-1", "retries": 0, "credentials": REFERENCE}
        return holdfast.read(shipped_logs.url(self.prefix), topic, store={**given, "timeout_ms": 5_000, **store})

    def keys(self, topic: str) -> list[str]:
        client = self.server.client(prefix=self.prefix)
        found = [meta["path"] for page in obstore.list(client, f"topics/{topic}") for meta in page]
        return sorted(path for path in found if path.endswith(".parquet"))


REFERENCE = "env:HOLDFAST_TEST_S3"


@pytest.fixture(scope="module")
def place(s3_server, tmp_path_factory) -> str:
    """One log for all: thirty small segments, and two large ones of several row groups."""
    prefix = "prefetch-tests"
    path: Path = tmp_path_factory.mktemp("prefetch") / "log"
    groups = {"row_group_bytes": 2**20, "seal_on_close": False}
    own = shipped_logs.settings(s3_server.endpoint, segments=groups)
    with holdfast.open(path, store=shipped_logs.url(prefix), settings=own) as log:
        for segment in range(SEGMENTS):
            log.topic("small").append_batch([b"%d" % (segment * ROWS + row) for row in range(ROWS)])
            log.seal()
        for segment in range(2):
            log.topic("large").append_batch([noise(segment * LARGE_ROWS + row) for row in range(LARGE_ROWS)])
            log.seal()
        log.ship(PATIENCE)
    return prefix


def noise(number: int) -> bytes:
    """200 KB that no compressor makes smaller."""
    return Random(number).randbytes(200_000)


@pytest.fixture
def shipped(s3_server, fault_proxy: Callable[..., FaultProxy], place: str) -> Iterator[Shipped]:
    yield Shipped(fault_proxy(), s3_server, place)
    for thread in threading.enumerate():
        if thread.name.startswith("holdfast-prefetch"):
            thread.join(PATIENCE)
            assert not thread.is_alive()


SMALL = [b"%d" % number for number in range(SEGMENTS * ROWS)]


def payloads(reading: Any) -> list[bytes]:
    found: list[bytes] = reading.to_arrow()["payload"].to_pylist()
    return found


def until_failure(reading: Any) -> tuple[list[bytes], HoldfastError]:
    """What came before it, and what it was."""
    found: list[bytes] = []
    with pytest.raises(HoldfastError) as raised:
        for batch in reading.batches():
            found += batch["payload"].to_pylist()
    return found, raised.value


@pytest.mark.parametrize("requests", [0, 2, 16])
def test_small_segments_come_in_order_and_each_in_one_request(shipped, requests):
    assert payloads(shipped.read(prefetch_requests=requests)) == SMALL
    assert len(shipped.requests) == SEGMENTS
    assert set(shipped.asked().values()) == {1}


@pytest.mark.parametrize("bytes_max", [1, 3 * 2**20, 64 * 2**20])
@pytest.mark.parametrize("verify", ["hash", "full"])
def test_row_groups_of_large_segments_come_in_order_and_once(shipped, bytes_max, verify):
    reading = holdfast.read(
        shipped_logs.url(shipped.prefix),
        "large",
        verify=verify,
        store={"endpoint": shipped.proxy.endpoint, "credentials": REFERENCE, "prefetch_bytes": bytes_max},
    )
    assert payloads(reading) == [noise(number) for number in range(2 * LARGE_ROWS)]
    assert max(shipped.asked().values()) == (1 if verify == "hash" else 2)  # proved as a whole, then read
    assert len(shipped.requests) > 2 * 5  # the end and several row groups of each


def test_tasks_of_spark_fetch_ahead_too(shipped):
    """As an executor reads them, batch and stream: options in, rows out; no JVM takes part."""
    options = {
        "path": shipped_logs.url(shipped.prefix),
        "topic": "small",
        "endpoint": shipped.proxy.endpoint,
        "credentials": REFERENCE,
        "prefetchRequests": "4",
    }
    source = HoldfastSource(options)
    schema = source.schema()
    batch, stream = source.reader(schema), source.streamReader(schema)
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    for number, tasks in enumerate([batch.partitions(), stream.partitions(stream.initialOffset(), end)], 1):
        reader = pickle.loads(pickle.dumps(batch if number == 1 else stream))
        found = [value for task in tasks for rows in reader.read(task) for value in rows["value"].to_pylist()]
        assert found == SMALL
        assert set(shipped.asked().values()) == {number}
    assert any(request.connection != shipped.requests[-1].connection for request in shipped.requests[SEGMENTS:])


def test_a_reader_of_one_row_asks_for_no_more_than_the_limits_allow(shipped):
    reading = shipped.read(prefetch_requests=2).batches()
    assert next(reading).num_rows == ROWS
    reading.close()
    for thread in threading.enumerate():
        if thread.name.startswith("holdfast-prefetch"):
            thread.join(PATIENCE)
    count = len(shipped.requests)
    assert count <= 1 + 2 * 2
    assert payloads(shipped.read()) == SMALL  # and another reading finds everything in order
    assert len(shipped.requests) == count + SEGMENTS


@pytest.mark.parametrize(
    "fault", [slow_down(), reset_after(), truncate(), truncate(100), bandwidth(200_000)], ids=lambda fault: fault.name
)
def test_faults_ahead_cost_a_second_request_and_nothing_else(shipped, fault):
    """Without retries: only what was asked ahead is asked again, and the first segment is not."""
    first = shipped.keys("small")[0]
    spoil = once_per_key(fault, "GET")
    shipped.policy = lambda request: None if request.path.endswith(first) else spoil(request)
    assert payloads(shipped.read(prefetch_requests=4)) == SMALL
    assert max(shipped.asked().values()) <= 2


def test_a_server_that_hangs_is_unavailable_at_its_place(shipped):
    hanging = shipped.keys("small")[7]
    shipped.policy = lambda request: half_open(PATIENCE) if request.path.endswith(hanging) else None
    found, error = until_failure(shipped.read(timeout_ms=300))
    assert found == SMALL[: 7 * ROWS]
    assert isinstance(error, Unavailable)


def test_a_server_that_dies_in_the_middle_is_unavailable_where_the_reading_got_to(shipped):
    reading = shipped.read(prefetch_requests=2).batches()
    found = next(reading)["payload"].to_pylist()
    shipped.proxy.go_down()
    try:
        with pytest.raises(Unavailable):
            for batch in reading:
                found += batch["payload"].to_pylist()
    finally:
        shipped.proxy.come_up()
    assert found == SMALL[: len(found)]
    assert ROWS <= len(found) <= (1 + 2 * 2) * ROWS  # what had come before it died


@pytest.fixture
def own_place(s3_server, prefix, tmp_path) -> str:
    """A log of one's own, to be spoiled."""
    own = shipped_logs.settings(s3_server.endpoint)
    with holdfast.open(tmp_path / "log", store=shipped_logs.url(prefix), settings=own) as log:
        for segment in range(6):
            log.topic("small").append_batch([b"%d" % (segment * ROWS + row) for row in range(ROWS)])
            log.seal()
        log.ship(PATIENCE)
    return prefix


@pytest.mark.parametrize("how", ["gone", "flipped", "short"])
def test_damage_is_named_at_its_place(s3_server, fault_proxy, own_place, how):
    spoiled = Shipped(fault_proxy(), s3_server, own_place)
    client, key = s3_server.client(prefix=own_place), spoiled.keys("small")[3]
    content = bytearray(obstore.get(client, key).bytes())
    obstore.delete(client, key)
    content[len(content) // 3] ^= 1
    if how != "gone":
        obstore.put(client, key, bytes(content if how == "flipped" else content[:-7]))
    found, error = until_failure(spoiled.read())
    assert found == SMALL[: 3 * ROWS]
    assert isinstance(error, Corrupt)
    assert key in str(error)
