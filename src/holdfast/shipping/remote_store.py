"""The store as the shipper's event loop sees it: three requests, one attempt each, nothing that blocks the loop.

`StoreRemote` turns any `Store` into one with a few threads; for S3 there is a pool of connections on the loop
itself (`store/s3`). Retrying, ordering and what *already exists* means are the shipper's business, not theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from holdfast.errors import NotFound
from holdfast.process_lifetime import Threads
from holdfast.root.root_trust import RootTrust
from holdfast.shipping.cost import Counter
from holdfast.store.pool_state import PoolState
from holdfast.store.port import Body, ObjectInfo, Store
from holdfast.store.request_prices import Request

_SIGNED_AT_ONCE = 64 * 1024
"""What is larger is hashed and copied for its signature off the loop."""

Result = TypeVar("Result")


class Remote(Protocol):
    """One store, for one event loop. All raise StoreUnavailable or StoreRefused."""

    async def start(self) -> None:
        """Begin to open connections; returns at once, whatever the store does."""

    async def create(self, key: str, body: Body) -> None:
        """Create an object; raises AlreadyExists."""

    async def read(self, key: str) -> bytes | None:
        """An object's bytes; None when it is not there."""

    async def head(self, key: str) -> ObjectInfo | None:
        """What there is under a key."""

    def pool(self) -> PoolState:
        """The connections; may be asked from any thread."""

    def requests(self) -> Mapping[Request, int] | None:
        """All requests to the store by kind, where it counts them itself; None where each call is one."""

    async def close(self) -> None:
        """Close all connections."""


class CountedRemote:
    """Another remote, with its requests counted as the store's list price does; heartbeats are among them."""

    def __init__(self, remote: Remote, cost: Counter) -> None:
        self._remote = remote
        self._cost = cost
        self._heartbeats = 0

    async def start(self) -> None:
        """Begin to open connections."""
        await self._remote.start()

    async def create(self, key: str, body: Body) -> None:
        """Create an object."""
        self._cost.add("put")
        await self._remote.create(key, body)

    async def read(self, key: str) -> bytes | None:
        """An object's bytes."""
        self._cost.add("get")
        return await self._remote.read(key)

    async def head(self, key: str) -> ObjectInfo | None:
        """What there is under a key."""
        self._cost.add("head")
        return await self._remote.head(key)

    def pool(self) -> PoolState:
        """The connections."""
        state = self._remote.pool()
        self._cost.add("head", state.heartbeats_total - self._heartbeats)
        self._heartbeats = state.heartbeats_total
        return state

    def requests(self) -> Mapping[Request, int]:
        """All requests by kind."""
        return self._remote.requests() or self._cost.requests

    async def close(self) -> None:
        """Close all connections."""
        await self._remote.close()


class RootRemote:
    """Another remote, as the root of one log: objects signed and proved."""

    def __init__(self, remote: Remote, trust: RootTrust) -> None:
        self._remote = remote
        self._trust = trust

    async def start(self) -> None:
        """Begin to open connections."""
        await self._remote.start()

    async def create(self, key: str, body: Body) -> None:
        """Create an object."""
        is_large = body.data is not None and body.size > _SIGNED_AT_ONCE
        signed = await asyncio.to_thread(self._trust.signed, key, body) if is_large else self._trust.signed(key, body)
        await self._remote.create(key, signed)

    async def read(self, key: str) -> bytes | None:
        """An object's bytes, proved; raises Corrupt where they are not this log's."""
        found = await self._remote.read(key)
        return None if found is None else self._trust.proved(key, found)

    async def head(self, key: str) -> ObjectInfo | None:
        """What there is under a key."""
        return await self._remote.head(key)

    def pool(self) -> PoolState:
        """The connections."""
        return self._remote.pool()

    def requests(self) -> Mapping[Request, int] | None:
        """All requests to the store by kind, where it counts them itself."""
        return self._remote.requests()

    async def close(self) -> None:
        """Close all connections."""
        await self._remote.close()


class StoreRemote:
    """Any store, behind a few threads."""

    def __init__(self, store: Store, threads: int) -> None:
        self._store = store
        self._threads = Threads(threads, thread_name_prefix="holdfast-store")

    async def start(self) -> None:
        """Nothing to open."""

    async def create(self, key: str, body: Body) -> None:
        """Create an object."""

        def create() -> None:
            if body.handed is not None:
                body.handed()
            self._store.create(key, body)

        await self._run(create)

    async def read(self, key: str) -> bytes | None:
        """An object's bytes."""
        try:
            return await self._run(lambda: self._store.get(key))
        except NotFound:
            return None

    async def head(self, key: str) -> ObjectInfo | None:
        """What there is under a key."""
        return await self._run(lambda: self._store.head(key))

    def pool(self) -> PoolState:
        """No connections of our own."""
        return PoolState()

    def requests(self) -> None:
        """Not counted here."""

    async def close(self) -> None:
        """End the threads; what they are doing goes on until it answers."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)
