"""Bringing one object to the store, however often it takes; and asking it things until it answers.

Each object is tried by itself: its backoff delays nobody else. After `max_retry_attempts` the failure is escalated and
trying goes on; how that is felt outside is the user's policy (`escalation`). *Already exists* is a question: the object
is read back, and the same bytes mean that it was us and the reply was lost. In a log with keys an object that no key of
ours signed is nobody's: it is removed, unless the log was taken over, and the true one is written in its place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import TypeVar

from holdfast.clock import Clock
from holdfast.errors import Corrupt
from holdfast.root.root_store import RootStore
from holdfast.shipping.escalation import Escalation
from holdfast.shipping.lanes import backoff
from holdfast.shipping.ownership.fence import Fence
from holdfast.shipping.remote_store import Remote
from holdfast.shipping.shipping_settings import ShippingSettings
from holdfast.shipping.shipping_stats import ShippingCounters
from holdfast.store.port import AlreadyExists, Body, StoreRefused, StoreUnavailable

Result = TypeVar("Result")

logger = logging.getLogger("holdfast.shipping")


class FileGone(Exception):
    """The file of an object is not there any more."""


class Requests:
    """Requests that are repeated until they are answered."""

    def __init__(
        self, settings: ShippingSettings, escalation: Escalation, counters: ShippingCounters, clock: Clock
    ) -> None:
        self._settings = settings
        self._escalation = escalation
        self._counters = counters
        self._clock = clock

    async def until_answered(self, what: str, request: Callable[[], Awaitable[Result]]) -> Result:
        """The answer to a request that may be repeated, however long it takes."""
        loop = asyncio.get_running_loop()
        attempt = 0
        while True:
            try:
                answer = await request()
            except (StoreUnavailable, StoreRefused) as failure:
                attempt += 1
                await asyncio.sleep(self._note(what, attempt, failure))
            else:
                self._counters.succeeded()
                self._escalation.recovered(loop.time(), what)
                return answer

    def refused(self, topic: str, message: str) -> None:
        """Say that a topic is not shipped, and why."""
        self._escalation.refused(asyncio.get_running_loop().time(), topic, message)

    def _note(self, what: str, attempt: int, failure: StoreUnavailable | StoreRefused) -> float:
        """Count a failure, escalate it if it is time to, and say how long to wait."""
        settings, now = self._settings, asyncio.get_running_loop().time()
        self._counters.failed(failure.cause, failure, now)
        refused = isinstance(failure, StoreRefused)
        if attempt > settings.max_retry_attempts or refused:
            self._escalation.exhausted(now, what, failure.cause, f"{what}: {failure.message}")
        cap = settings.retry_delay_max_ms / 1000
        after = 0.0 if isinstance(failure, StoreRefused) else failure.retry_after
        # Nobody expects an answer like "forbidden" to change within milliseconds.
        base = min(cap, 1.0) if refused else settings.retry_base_delay_ms / 1000
        return backoff.delay(attempt - 1, base, cap, self._random(), after)

    def _random(self) -> float:
        return int.from_bytes(self._clock.random_bytes(7), "big") / 2**56


class Uploader:
    """Creates objects, each until it is there."""

    def __init__(
        self, remote: Remote, requests: Requests, fence: Fence, counters: ShippingCounters, store: RootStore
    ) -> None:
        self._remote = remote
        self._store = store
        self._requests = requests
        self._fence = fence
        self._counters = counters

    async def put(self, key: str, body: Body) -> None:
        """Create an object and return when the store has it; raises Closed or Corrupt where another one stands.

        Raises FileGone where the object's file has vanished: trying on would be in vain.
        """
        found = await self._requests.until_answered(key, lambda: self._attempt(key, body))
        if found is None:
            return
        if sha256(found).digest() != body.sha256:
            await self._fence.explain(key)
        self._counters.resolved += 1

    async def _read_back(self, key: str) -> bytes | None:
        """What stands in the place of ours; None when nothing does, or when that was forged, and is removed."""
        try:
            return await self._remote.read(key)
        except Corrupt as forged:
            await self.remove_forged(key, forged)
            return None

    async def remove_forged(self, key: str, forged: Corrupt) -> None:
        """Remove an object that no key of this log signed; raises what was found where that is unknown."""
        if not self._store.trust.is_authentic:
            raise forged
        await self._fence.check()  # a successor's object that was damaged since is not ours to remove
        logger.error(
            "an object on the store is in the place of ours and is not signed by this log: it is removed: %s",
            forged.message,
            extra={"action": "forgery_removed", "path": key},
        )
        await asyncio.get_running_loop().run_in_executor(None, self._store.delete, [key])

    async def _attempt(self, key: str, body: Body) -> bytes | None:
        """One attempt; returns what stands there already, if something does."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        if body.path is not None and not body.path.exists():
            raise FileGone(key)
        self._counters.begin()
        try:
            await self._remote.create(key, body)
        except FileNotFoundError:  # it went just now
            raise FileGone(key) from None
        except AlreadyExists:
            # From here on it is the reading that is repeated; the writing only where nothing stands there after all.
            found = await self._requests.until_answered(f"read back {key}", lambda: self._read_back(key))
            if found is None:
                await self._fence.check()  # the new owner may have removed it since
                raise StoreUnavailable(f"an object exists and cannot be read key={key}", cause="other") from None
            return found
        finally:
            self._counters.end()
        self._counters.put(loop.time() - started, body.size)
        return None
