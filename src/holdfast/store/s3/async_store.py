"""S3 as the shipper's loop sees it: a few requests, each sent once, over a pool of warm connections on that loop."""

from __future__ import annotations

import asyncio

import msgspec

from holdfast.clock import Clock
from holdfast.store.credentials import CredentialSource
from holdfast.store.pool_state import PoolState
from holdfast.store.port import Body, ObjectInfo
from holdfast.store.s3.async_pool import AsyncPool
from holdfast.store.s3.blocking_pool import BlockingPool
from holdfast.store.s3.bucket_address import S3Address
from holdfast.store.s3.client import S3Client
from holdfast.store.s3.endpoint import EndpointState, Request


class AsyncS3Store:
    """One root on S3, over a pool of connections on the running loop."""

    def __init__(
        self,
        address: S3Address,
        credentials: CredentialSource,
        *,
        pool_size: int,
        request_timeout: float,
        connect_timeout: float,
        heartbeat: float,
        clock: Clock,
        endpoint_state: EndpointState | None = None,
        beside: BlockingPool | None = None,
    ) -> None:
        """`endpoint_state` and `beside`: of the store whose threads speak to the same root, and its pool."""
        self._endpoint_state = endpoint_state or EndpointState(address, credentials, clock)
        self._beside = beside
        self._client = S3Client(self._endpoint_state, request_timeout=request_timeout, connect_timeout=connect_timeout)
        self._pool = AsyncPool(
            self._endpoint_state.route.place.endpoint,
            self._client.ask,
            target=pool_size,
            connect_timeout=connect_timeout,
            heartbeat=heartbeat,
            clock=clock,
            ca_file=address.ca_file,
        )
        self._client.use(self._pool)

    async def start(self) -> None:
        """Begin to open connections."""
        if self._endpoint_state.needs_region:  # files may say it: that is quick, but not for the loop
            await asyncio.to_thread(self._endpoint_state.settle_region)
            self._pool.move(self._endpoint_state.route.place.endpoint)
        self._pool.start()

    async def create(self, key: str, body: Body) -> None:
        """Create an object; raises AlreadyExists."""
        await self._client.create(key, body)

    async def read(self, key: str) -> bytes | None:
        """An object's bytes; None when it is not there."""
        return await self._client.get(key)

    async def head(self, key: str) -> ObjectInfo | None:
        """What there is under a key."""
        return await self._client.head(key)

    def pool(self) -> PoolState:
        """The connections; may be asked from any thread."""
        beside = 0 if self._beside is None else self._beside.state().beside
        return msgspec.structs.replace(self._pool.state(), beside=beside)

    def requests(self) -> dict[Request, int]:
        """All requests to this root, by kind: those of the loop and of the threads beside it."""
        return self._endpoint_state.requests()

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.close()

    def abandon(self) -> None:
        """In a forked child: let go of the parent's sockets."""
        self._pool.abandon()
