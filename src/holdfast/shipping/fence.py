"""Ownership of a store's root: one owner at a time moves marks, and whoever was overtaken finds out first.

Before its first object the shipper claims the next number under `epochs/` (create-only, dense, never removed). Before
any mark moves it asks whether the number after its own exists; an answer covers all requests that were finished before
the question was asked, so one question serves everything that waits for it. A claim that comes later than the question
lists what is there *after* it was made, and so sees all that was acknowledged before.

*Already exists* with other bytes is decided here too: overtaken, or (nobody has a higher number) two logs on one root.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Literal, NoReturn, Protocol, TypeVar

from holdfast.clock import Clock
from holdfast.errors import Closed, Corrupt, Invalid
from holdfast.store import documents, layout
from holdfast.store.documents import EpochDocument, LogDocument
from holdfast.store.numbered import numbered
from holdfast.store.port import AlreadyExists, Body, Store, StoreUnavailable

Result = TypeVar("Result")


class Asking(Protocol):
    """Repeats a request until the store answers it."""

    async def until_answered(self, what: str, request: Callable[[], Awaitable[Result]]) -> Result:
        """The answer, however long it takes."""


class Reads(Protocol):
    """What the fence asks of a store."""

    async def head(self, key: str) -> object | None:
        """What there is under a key."""

    async def read(self, key: str) -> bytes | None:
        """An object's bytes."""

    async def create(self, key: str, body: Body) -> None:
        """Create an object."""


class Fence:
    """The claim of one open log on its store's root."""

    def __init__(
        self, log_id: bytes, created_us: int, store: Store, remote: Reads, asking: Asking, clock: Clock,
        owner: bytes = b"",
    ) -> None:  # fmt: skip
        self._log_id = log_id
        self._owner = owner.hex()
        self._created_us = created_us
        self._store = store
        self._remote = remote
        self._asking = asking
        self._clock = clock
        self.epoch = 0
        """The number that was claimed; 0 before."""
        self._asked = self._answered = 0
        self._question: asyncio.Task[None] | None = None

    async def introduce(self) -> None:
        """Make sure that this root is this log's, or nobody's; raises Invalid when it is another one's."""
        log = self._log_id.hex()
        mine = documents.encode(LogDocument(log=log, created_us=self._created_us))
        found = await self._asking.until_answered("read log.json", lambda: self._remote.read(layout.LOG))
        if found is None:
            found = await self._create_or_read(layout.LOG, mine)
        other = documents.decode(found, layout.LOG, LogDocument).log
        if other != log:
            raise Invalid(
                f"this root belongs to another log store={self._store.url} log={other} this={log}",
                hint="give every log a root of its own: s3://bucket/another-prefix",
            )

    async def claim(self, purpose: Literal["open", "restore"]) -> EpochDocument:
        """Take the next number; from now on nobody below it moves a mark.

        Only a restore takes a log over. A directory that is opened again finds its own claim as the newest one, or
        none; if another one has taken over meanwhile, it is too late for this one.
        """
        nonce = self._clock.random_bytes(16).hex()
        while True:
            newest = await self._asking.until_answered("list the claims", self._newest)
            if newest and purpose == "open":
                await self._require_own(newest)
            claim = EpochDocument(
                log=self._log_id.hex(), epoch=newest + 1, purpose=purpose, owner=self._owner, nonce=nonce,
                claimed_us=self._clock.now_us(), host=socket.gethostname(), pid=os.getpid(),
            )  # fmt: skip
            body = documents.encode(claim)
            key = layout.epoch_key(claim.epoch)
            if await self._create_or_read(key, body) == body:
                await self._require_create_only(key, body)
                self.epoch = claim.epoch
                return claim

    async def require_own(self) -> None:
        """Raise Closed when somebody else has taken over, also before the claim."""
        if self.epoch:
            await self.check()
        elif newest := await self._asking.until_answered("list the claims", self._newest):
            await self._require_own(newest)

    async def _require_create_only(self, key: str, body: bytes) -> None:
        """All of this rests on a store that creates and never overwrites: have it refuse our own claim once more."""

        async def is_refused() -> bool:
            try:
                await self._remote.create(key, Body.of(body))
            except AlreadyExists:
                return True
            return False

        if not await self._asking.until_answered(f"create {key} again", is_refused):
            raise Invalid(
                f"this store overwrites objects where it must refuse to store={self._store.url}",
                hint="it ignores If-None-Match, so two owners could not be told apart; use another store",
            )

    async def _require_own(self, newest: int) -> None:
        key = layout.epoch_key(newest)
        found = await self._asking.until_answered("read the newest claim", lambda: self._remote.read(key))
        claim = None if found is None else documents.decode(found, key, EpochDocument)
        if claim is None or claim.owner != self._owner:
            self.epoch = newest - 1
            raise self._overtaken()

    async def check(self) -> None:
        """Raise Closed when somebody else has claimed a higher number; else all that is finished by now counts."""
        self._asked += 1
        mine = self._asked
        while self._answered < mine:
            if self._question is None:
                self._question = asyncio.get_running_loop().create_task(self._ask(self._asked))
                self._question.add_done_callback(_look)
            await asyncio.shield(self._question)

    async def close(self) -> None:
        """Whoever asked has gone: an answer would interest nobody."""
        question = self._question
        if question is not None:
            question.cancel()
            await asyncio.wait([question])

    async def explain(self, key: str) -> NoReturn:
        """Say why another object stands where ours belongs."""
        if await self._is_overtaken():
            raise self._overtaken()
        raise Corrupt(
            "another object stands in the place of ours, and nobody has taken this log over: do two logs share a root?",
            path=f"{self._store.url}/{key}",
            hint="shipping has stopped, appending goes on; give each log its own root, or restore from this one",
        )

    async def _ask(self, covers: int) -> None:
        try:
            if await self._is_overtaken():
                raise self._overtaken()
            self._answered = covers
        finally:
            self._question = None

    async def _is_overtaken(self) -> bool:
        key = layout.epoch_key(self.epoch + 1)
        if await self._asking.until_answered("look for a higher claim", lambda: self._remote.head(key)) is None:
            return False
        # Reading proves it: a claim that somebody without the key has put there shuts nobody out, and is Corrupt.
        found = await self._asking.until_answered("read the higher claim", lambda: self._remote.read(key))
        return found is not None and documents.decode(found, key, EpochDocument).log == self._log_id.hex()

    def _overtaken(self) -> Closed:
        return Closed(
            f"another process has taken this log over store={self._store.url} epoch={self.epoch + 1}",
            reason="fenced",
            hint="it goes on there; what was acknowledged here and not shipped stays readable: see holdfast status",
        )

    async def _newest(self) -> int:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, lambda: newest_epoch(self._store))

    async def _create_or_read(self, key: str, body: bytes) -> bytes:
        """Create an object, or read what stands there; the one that counts either way."""

        async def attempt() -> bytes:
            try:
                await self._remote.create(key, Body.of(body))
            except AlreadyExists:
                found = await self._remote.read(key)
                if found is None:  # a store that contradicts itself will agree with itself some time
                    raise StoreUnavailable(f"an object exists and cannot be read key={key}", cause="other") from None
                return found
            return body

        return await self._asking.until_answered(f"create {key}", attempt)


def _look(question: asyncio.Task[None]) -> None:
    """Whoever asked may have been cancelled: asyncio is not to complain of an answer that nobody took."""
    if not question.cancelled():
        question.exception()


def newest_epoch(store: Store) -> int:
    """The highest number that was ever claimed; 0 for none."""
    return max((layout.parse_number(key) or 0 for key in numbered(store, layout.EPOCHS)), default=0)
