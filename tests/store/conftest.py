"""Stores to test against: a directory, memory, and one S3 server for the whole run.

Tests share the server's bucket and are kept apart by `prefix`. A test that kills and restarts servers starts its own
(`tests.store.servers.start_weed`). `fault_proxy` puts a proxy in front of the shared one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from uuid import uuid4

import pytest

from holdfast.clock import Clock, SystemClock
from holdfast.store import cloud
from holdfast.store.address import parse_url
from holdfast.store.cloud import ObjectStore
from holdfast.store.credentials import Credentials, CredentialSource, _CacheEntry
from holdfast.store.directory import DirectoryStore
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.store.s3.s3_store import S3Store
from holdfast.store.store_settings import StoreSettings
from tests.store.fault_proxy import FaultProxy
from tests.store.servers import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, S3Server, weed

OpenS3 = Callable[..., S3Store]


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


def credentials() -> Credentials:
    """The server's credentials."""
    return Credentials(ACCESS_KEY, SECRET_KEY)


class GivenCredentials(CredentialSource):
    """Credentials that a function finds; kept, and looked for again, as all others."""

    def __init__(self, find: Callable[[], Credentials] = credentials) -> None:
        super().__init__("env:GIVEN")
        self._find_given = find

    def _find(self) -> _CacheEntry:
        return _CacheEntry(self._find_given(), inf, None)

    def anew(self) -> CredentialSource:
        return GivenCredentials(self._find_given)


@pytest.fixture
def open_s3(s3_server: S3Server, prefix: str) -> Iterator[OpenS3]:
    """Open the test's place on the server, directly or through a proxy (`endpoint`), with other settings or bucket."""
    opened: list[S3Store] = []

    def start(
        endpoint: str = "",
        bucket: str = BUCKET,
        source: Callable[[], Credentials] = credentials,
        clock: Clock | None = None,
        **settings: object,
    ) -> S3Store:
        values = {"endpoint": endpoint or s3_server.endpoint, "region": REGION, "retries": 0} | settings
        address = parse_url(f"s3://{bucket}/{prefix}")
        store = S3Store(address, StoreSettings(**values), clock or SystemClock(), GivenCredentials(source))  # type: ignore[arg-type]
        opened.append(store)
        return store

    yield start
    for store in opened:
        store.close()


@pytest.fixture
def s3_store(open_s3: OpenS3) -> S3Store:
    """The test's place on the server."""
    return open_s3()


@pytest.fixture
def cloud_store(s3_server: S3Server, prefix: str, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """What serves other clouds, at the only service that we have: obstore believes that it speaks to Google."""

    def make(address: object, settings: object, **options: object) -> object:
        del options["client_options"]
        return s3_server.client(prefix=prefix, checksum_algorithm="sha256", conditional_put="etag", **options)

    monkeypatch.setattr(cloud, "_gs", make)
    return ObjectStore("gs://logs/prefix", StoreSettings(retries=0))


@pytest.fixture(params=["file", "memory", "s3", "cloud"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Each store in turn, empty; only the tests of S3 start a server."""
    opened: Store
    if request.param == "file":
        opened = DirectoryStore(tmp_path / "store", SystemClock())
    elif request.param == "memory":
        opened = MemoryStore("test", SystemClock())
    else:
        opened = request.getfixturevalue(f"{request.param}_store")
    yield opened
    opened.close()
