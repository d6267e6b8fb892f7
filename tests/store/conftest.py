"""Stores to test against: a directory, memory, and one S3 server for the whole run.

Tests share the server's bucket and are kept apart by `prefix`. Whoever kills and restarts servers starts one of his own
(`tests.store.servers.start_weed`). `fault_proxy` puts a proxy in front of the shared one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from holdfast.clock import SystemClock
from holdfast.store.directory import DirectoryStore
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import ObjectStore
from holdfast.store.port import Store
from holdfast.store.settings import StoreSettings
from tests.store.fault_proxy import FaultProxy
from tests.store.servers import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, S3Server, weed

OpenS3 = Callable[..., ObjectStore]


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One SeaweedFS for all tests of a run; nobody kills it."""
    with weed(tmp_path_factory.mktemp("weed")) as server:
        yield server


@pytest.fixture
def prefix() -> str:
    """A place in the bucket that no other test uses."""
    return uuid4().hex


@pytest.fixture
def fault_proxy(s3_server: S3Server) -> Iterator[Callable[..., FaultProxy]]:
    """Put a proxy before the server: `fault_proxy(policy)`, or before another port: `fault_proxy(policy, port=…)`."""
    proxies: list[FaultProxy] = []

    def start(*arguments: object, port: int | None = None, **options: object) -> FaultProxy:
        proxies.append(FaultProxy(port or s3_server.port, *arguments, **options))  # type: ignore[arg-type]
        return proxies[-1]

    yield start
    for proxy in proxies:
        proxy.close()


def credentials() -> dict[str, object]:
    """The server's credentials, as obstore asks for them."""
    return {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY, "expires_at": None}


@pytest.fixture
def open_s3(s3_server: S3Server, prefix: str) -> Iterator[OpenS3]:
    """Open the test's place on the server, directly or through a proxy (`endpoint`), with other settings or bucket."""
    opened: list[ObjectStore] = []

    def start(
        endpoint: str = "", bucket: str = BUCKET, source: object = credentials, **settings: object
    ) -> ObjectStore:
        values = {"endpoint": endpoint or s3_server.endpoint, "region": REGION, "retries": 0} | settings
        opened.append(ObjectStore(f"s3://{bucket}/{prefix}", StoreSettings(**values), source))  # type: ignore[arg-type]
        return opened[-1]

    yield start
    for store in opened:
        store.close()


@pytest.fixture
def s3_store(open_s3: OpenS3) -> ObjectStore:
    """The test's place on the server."""
    return open_s3()


@pytest.fixture(params=["file", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Each store in turn, empty; only the tests of S3 start a server."""
    opened: Store
    if request.param == "file":
        opened = DirectoryStore(tmp_path / "store", SystemClock())
    elif request.param == "memory":
        opened = MemoryStore("test", SystemClock())
    else:
        opened = request.getfixturevalue("s3_store")
    yield opened
    opened.close()
