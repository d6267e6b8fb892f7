"""A root on S3, and on everything that speaks like it, for threads: the port's verbs over connections of our own.

Reads and removals are repeated as often as the settings say, with growing pauses; a `create` is one request. Where a
response showed how to send the request (another region, the store's time), it is repeated at once: it was not done.

Opening asks nothing of the store. Used from any number of threads; after a fork the child reconnects and lets go of the
parent's sockets. Neither this object nor its errors hold a secret.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from copy import copy
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast.clock import Clock
from holdfast.errors import NotFound
from holdfast.store.address import StoreAddress
from holdfast.store.byte_ranges import check_range, require_length
from holdfast.store.credentials import CredentialSource
from holdfast.store.object_keys import check_key, check_prefix
from holdfast.store.port import Body, ObjectInfo, StoreUnavailable
from holdfast.store.proven_body import proven_bytes
from holdfast.store.s3.async_store import AsyncS3Store
from holdfast.store.s3.blocking_pool import BlockingPool, run_now
from holdfast.store.s3.bucket_address import S3Address
from holdfast.store.s3.client import S3Client
from holdfast.store.s3.endpoint import REDIRECTS_MAX, EndpointState
from holdfast.store.s3.listing import PAGE_KEYS, ListingPage
from holdfast.store.store_settings import StoreSettings

CONNECT_SECONDS = 5.0
EMPTY_PAGES_MAX = 100
"""So many pages without a key in a row, and a listing goes nowhere."""

_PAUSE_BASE, _PAUSE_CAP, _RETRY_AFTER_MAX = 0.1, 5.0, 30.0
_TAUGHT = ("redirect", "clock_skew")

Result = TypeVar("Result")
Verb = Callable[[S3Client], Coroutine[Any, Any, Result]]


class _Open(NamedTuple):
    """What belongs to one process."""

    pid: int
    endpoint_state: EndpointState
    pool: BlockingPool
    client: S3Client


class S3Store:
    """Objects in a bucket, below a prefix."""

    def __init__(
        self, address: StoreAddress, settings: StoreSettings, clock: Clock, credentials: CredentialSource | None = None
    ) -> None:
        self._address = address
        self._settings = settings
        self._clock = clock
        self._credentials = credentials or CredentialSource(settings.credentials)
        self._place = S3Address.of(address, settings.with_environment(os.environ))
        self._open = self._connect(self._credentials)

    def __repr__(self) -> str:
        return f"S3Store({self.url!r})"

    @property
    def url(self) -> str:
        """Scheme, bucket and prefix."""
        return self._address.url

    def create(self, key: str, body: Body) -> None:
        """Create an object, in one request that is never repeated once it may have been done."""
        check_key(key)
        proven = Body(body.size, body.known_sha256, proven_bytes(body))
        self._ask(lambda client: client.create(key, proven), retries=0)

    def get(self, key: str, bytes_max: int | None = None) -> bytes:
        """The whole object."""
        check_key(key)
        return _found(self._repeat(lambda client: client.get(key, bytes_max)), key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """A part of an object."""
        check_key(key)
        check_range(start, length)
        if length == 0:
            _found(self.head(key), key)
            return b""
        part = self._repeat(lambda client: client.get_range(key, start, length))
        return require_length(_found(part, key), key, length)

    def head(self, key: str) -> ObjectInfo | None:
        """What there is under a key."""
        check_key(key)
        return self._repeat(lambda client: client.head(key))

    def list(self, prefix: str, after: str | None = None) -> Iterator[ObjectInfo]:
        """Objects below a prefix, page by page, in the store's order."""
        check_prefix(prefix)
        return (info for page in self._pages(prefix, after, folders_only=False) for info in page.objects)

    def folders(self, prefix: str) -> Sequence[str]:
        """Folders right below a prefix, in a listing that looks no deeper."""
        check_prefix(prefix)
        pages = self._pages(prefix, None, folders_only=True)
        names = {name.removesuffix("/").rpartition("/")[2] for page in pages for name in page.folders}
        return sorted(names - {""})

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects."""
        checked = [check_key(key) for key in keys]
        for start in range(0, len(checked), PAGE_KEYS):
            self._delete_page(checked[start : start + PAGE_KEYS])

    def remote(
        self, *, pool_size: int, request_timeout: float, connect_timeout: float, heartbeat: float
    ) -> AsyncS3Store:
        """The same root for the running loop: with a pool of its own, and all that is known and counted in common."""
        live = self._live()
        return AsyncS3Store(
            self._place,
            self._credentials,
            pool_size=pool_size,
            request_timeout=request_timeout,
            connect_timeout=connect_timeout,
            heartbeat=heartbeat,
            clock=self._clock,
            endpoint_state=live.endpoint_state,
            beside=live.pool,
        )

    def without_retries(self) -> S3Store:
        """The same root by the same connections, asked once for everything."""
        other = copy(self)
        other._settings = msgspec.structs.replace(self._settings, retries=0)
        return other

    def close(self) -> None:
        """Let go of the connections; the next request opens new ones."""
        self._live().pool.close()

    # -- asking -------------------------------------------------------------------------------------------

    def _delete_page(self, keys: Sequence[str]) -> None:
        self._repeat(lambda client: client.delete(keys))

    def _pages(self, prefix: str, after: str | None, *, folders_only: bool) -> Iterator[ListingPage]:
        token, empty = "", 0
        while True:
            page = self._page(prefix, after, token, folders_only)
            yield page
            empty = 0 if page.objects or page.folders else empty + 1
            if not page.token:
                return
            if page.token == token or empty > EMPTY_PAGES_MAX:
                raise StoreUnavailable(f"the store's listing does not end prefix={prefix}", cause="other")
            token = page.token

    def _page(self, prefix: str, after: str | None, token: str, folders_only: bool) -> ListingPage:
        return self._repeat(lambda client: client.page(prefix, after, token, folders_only=folders_only))

    def _repeat(self, verb: Verb[Result]) -> Result:
        return self._ask(verb, self._settings.retries)

    def _ask(self, verb: Verb[Result], retries: int) -> Result:
        attempt = taught = 0
        while True:
            try:
                return run_now(verb(self._live().client))
            except StoreUnavailable as failure:
                if failure.cause in _TAUGHT and taught <= REDIRECTS_MAX:
                    taught += 1
                elif attempt < retries:
                    time.sleep(self._pause(attempt, failure.retry_after))
                    attempt += 1
                else:
                    raise

    def _pause(self, attempt: int, retry_after: float) -> float:
        jitter = int.from_bytes(self._clock.random_bytes(2), "big") / 2**16
        pause = min(_PAUSE_CAP, _PAUSE_BASE * 2.0 ** min(attempt, 10)) * (0.5 + 0.5 * jitter)
        return max(pause, min(retry_after, _RETRY_AFTER_MAX))

    # -- connecting ---------------------------------------------------------------------------------------

    def _live(self) -> _Open:
        if self._open.pid != os.getpid():
            # A fork: neither sockets nor locks of the parent are of any use here, nor those of its credentials.
            inherited, self._credentials = self._open, self._credentials.anew()
            self._open = self._connect(self._credentials)
            inherited.pool.abandon()
        return self._open

    def _connect(self, credentials: CredentialSource) -> _Open:
        seconds = self._settings.timeout_ms / 1000
        endpoint_state = EndpointState(self._place, credentials, self._clock)
        client = S3Client(endpoint_state, request_timeout=seconds, connect_timeout=min(seconds, CONNECT_SECONDS))
        pool = BlockingPool(endpoint_state.route.place.endpoint, wait=seconds, ca_file=self._place.ca_file)
        client.use(pool)
        return _Open(os.getpid(), endpoint_state, pool, client)


def _found(found: Result | None, key: str) -> Result:
    if found is None:
        raise NotFound(f"there is no such object key={key}")
    return found
