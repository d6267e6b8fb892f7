"""The store as the shipper's event loop sees it: three requests, one attempt each, nothing that blocks the loop.

`StoreRemote` turns any `Store` into one with a few threads; for S3 there is a pool of connections on the loop
itself (`shipping/s3`). Retrying, ordering and what *already exists* means are the shipper's business, not theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import msgspec

from holdfast.errors import NotFound
from holdfast.shipping.cost import Counter
from holdfast.store.port import Body, ObjectInfo, Store

Result = TypeVar("Result")


class PoolState(msgspec.Struct, frozen=True):
    """Connections at one moment: true sockets, each counted once."""

    target: int = 0
    healthy: int = 0
    """Open and answering, in use or not."""
    in_use: int = 0
    opening: int = 0
    replaced_total: int = 0
    """Connections that failed and were taken out."""
    heartbeats_total: int = 0


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

    async def close(self) -> None:
        """Close all connections."""
        await self._remote.close()


class StoreRemote:
    """Any store, behind a few threads."""

    def __init__(self, store: Store, threads: int) -> None:
        self._store = store
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="holdfast-store")

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

    async def close(self) -> None:
        """End the threads; what they are doing goes on until it answers."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)
