"""Connections for threads: bounded, used again, let go of, and never shared with a forked child."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.clock import SystemClock
from holdfast.store.address import parse_url
from holdfast.store.port import Body, StoreUnavailable
from holdfast.store.s3 import blocking_pool
from holdfast.store.s3.s3_store import S3Store
from holdfast.store.store_settings import StoreSettings
from tests.store import shipped_logs
from tests.store.conftest import GivenCredentials, OpenS3
from tests.store.fault_proxy import Fault, FaultProxy, always, bandwidth, delay, half_open, truncate
from tests.store.servers import S3Server

pytestmark = pytest.mark.store

Proxy = Callable[..., FaultProxy]
BODY = Body.of(b"content" * 1000)


def test_one_thread_needs_one_connection(open_s3: OpenS3, fault_proxy: Proxy) -> None:
    proxy = fault_proxy()
    store = open_s3(proxy.endpoint)
    for number in range(20):
        store.create(f"k/{number}", BODY)
        assert store.get(f"k/{number}") == BODY.data
        assert store.get_range(f"k/{number}", 10, 20) == BODY.data[10:30]
    assert len(list(store.list("k/"))) == 20
    store.delete([f"k/{number}" for number in range(20)])
    assert proxy.accepted == 1
    assert store._live().pool.state().beside == 1


def test_many_threads_have_no_more_connections_than_there_may_be(
    open_s3: OpenS3, fault_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who comes when all are in use waits for the next one."""
    monkeypatch.setattr(blocking_pool, "CONNECTIONS_MAX", 3)
    proxy = fault_proxy()
    store = open_s3(proxy.endpoint)
    store.create("k", BODY)
    proxy.policy = always(delay(0.01))
    with ThreadPoolExecutor(12) as threads:
        assert set(threads.map(lambda _: store.get("k"), range(60))) == {BODY.data}
    assert proxy.accepted == 3


def test_who_waits_in_vain_for_a_connection_learns_why(
    open_s3: OpenS3, fault_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking_pool, "CONNECTIONS_MAX", 1)
    proxy = fault_proxy(always(half_open()))
    store = open_s3(proxy.endpoint, timeout_ms=1500)
    store._live().pool._wait = 0.05
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(store.head, "k")
        while not proxy.counts["half_open"]:
            pass
        with pytest.raises(StoreUnavailable, match="in use") as caught:
            store.head("k")
        assert caught.value.cause == "timeout"
        with pytest.raises(StoreUnavailable, match="in time"):
            waiting.result()


def test_a_closed_store_leaves_no_socket_behind(open_s3: OpenS3, fault_proxy: Proxy) -> None:
    """Neither those that rest, nor those in use when they come back."""
    proxy = fault_proxy()
    store = open_s3(proxy.endpoint)
    store.create("k", BODY)
    proxy.policy = always(delay(0.3))
    with ThreadPoolExecutor(4) as threads:
        reading = [threads.submit(store.get, "k") for _ in range(4)]
        while proxy.counts["delay"] < 4:
            pass
        store.close()
        assert [each.result() for each in reading] == [BODY.data] * 4
    assert store._live().pool.state().beside == 0
    proxy.policy = lambda _: None
    assert store.get("k") == BODY.data


def test_a_forgotten_store_leaves_no_socket_behind(s3_server: S3Server) -> None:
    settings = StoreSettings(endpoint=s3_server.endpoint, region="us-east-1")
    store = S3Store(parse_url("s3://logs/x"), settings, SystemClock(), GivenCredentials())
    store.head("k")
    (connection,) = store._live().pool._open
    del store
    gc.collect()
    assert connection.ended


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_connects_anew(open_s3: OpenS3, fault_proxy: Proxy) -> None:
    """Also when another thread was at work in the pool and in the credentials; and the parent's sockets live on."""
    proxy = fault_proxy()
    store = open_s3(proxy.endpoint)
    store.create("k", BODY)
    live = store._live()
    with live.pool._free, live.endpoint_state._lock, store._credentials._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            fine = store.get("k") == BODY.data and len(list(store.list(""))) == 1
            fine = fine and all(each.ended for each in live.pool._open)
            os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert proxy.accepted == 2
    assert store.get("k") == BODY.data
    assert proxy.accepted == 2


def test_connections_that_rested_too_long_are_closed(
    open_s3: OpenS3, fault_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = fault_proxy(always(delay(0.05)))
    store = open_s3(proxy.endpoint)
    together = threading.Barrier(4)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: (together.wait(), store.head(str(number))), range(4)))
    pool = store._live().pool
    assert pool.state().beside == 4
    monkeypatch.setattr(blocking_pool, "IDLE_SECONDS", 0.0)
    for _ in range(4):
        store.head("k")
    assert pool.state().beside == 1


def test_a_large_object_may_be_slow_but_not_stand_still(open_s3: OpenS3, fault_proxy: Proxy) -> None:
    """What moves gets through, however long it takes; what has stopped moving is left after the time-out."""
    large = Body.of(bytes(range(256)) * 4096)
    proxy = fault_proxy()
    store = open_s3(proxy.endpoint, timeout_ms=400)
    store.create("large", large)
    proxy.policy = always(bandwidth(1_000_000))
    assert store.get("large") == large.data
    assert store.get_range("large", 1, large.size - 1) == large.data[1:]
    stuck = b"HTTP/1.1 200 OK\r\ncontent-length: 1048576\r\n\r\n" + bytes(300_000)
    proxy.policy = always(Fault("stuck", "reply", reply=stuck))
    with pytest.raises(StoreUnavailable) as caught:
        store.get("large")
    assert caught.value.cause == "timeout"
    proxy.policy = always(truncate(300_000))
    with pytest.raises(StoreUnavailable) as caught:
        store.get("large")
    assert caught.value.cause == "truncated"


_PROGRAM = """
import sys
sys.modules["obstore"] = None  # an import of it fails now
import holdfast
url, endpoint, directory = sys.argv[1:]
settings = holdfast.Settings.from_mapping({
    "store": {"endpoint": endpoint, "region": "us-east-1", "credentials": "env:HOLDFAST_TEST_S3"},
    "segments": {"rows_max": 10, "seal_on_close": False}, "disk": {"free_bytes_min": 0},
})
with holdfast.open(directory + "/log", store=url, settings=settings) as log:
    log.topic("orders").append_batch([b"order %d" % number for number in range(25)])
    log.seal()
    log.ship(60)
    log.topic("orders").submit(b"tail").shipped(60)
    assert log.reconcile(remote=True, deep=True).clean
    requests, pool = log.stats().shipping.requests, log.stats().shipping.pool
    assert requests["put"] and requests["list"] and requests["get"] and requests["head"], requests
    assert pool.beside > 0, pool
assert holdfast.read(url, "orders", include_tail=True, store=settings.store).count() == 26
assert holdfast.restore(url, directory + "/restored", settings=settings).records == 26
with holdfast.open(directory + "/restored", store=url, settings=settings) as log:
    log.topic("orders").submit(b"on it goes").shipped(60)
assert [name for name in sys.modules if name.startswith("obstore.")] == []
print("done")
"""


def test_nothing_of_a_root_on_s3_needs_obstore(s3_server: S3Server, prefix: str, tmp_path: Path) -> None:
    """Shipping, reconciling, reading, restoring, going on: one client speaks to a root, and it is ours."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, shipped_logs.url(prefix), s3_server.endpoint, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **shipped_logs.ENVIRONMENT},
    )
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr
