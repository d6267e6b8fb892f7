"""Ownership of a store's root: one owner at a time moves marks, and an overtaken owner finds out before it does.

Before its first object the shipper claims the next number under `epochs/` (create-only, dense, never removed). Before
any mark moves it asks whether the number after its own exists; an answer covers all requests that were finished before
the question was asked, so one question serves everything that waits for it. A claim that comes later than the question
lists what exists *after* it was made, and so sees all that was acknowledged before.

A store that was emptied gives the same answer as one that is whole. So now and then, together with that question, the
owner asks for its own claim, too. If it is gone, or another one stands in its place, the store has forgotten this log
(`StoreForgot`), and nothing counts there. A number that was used is never used again, not even on a store that has
forgotten it; and since a missing claim would let in the owner that it overtook, holes are filled.

*Already exists* with other bytes is decided here too: overtaken, or (nobody has a higher number) two logs on one root.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from math import inf
from typing import Literal, NamedTuple, NoReturn, Protocol, TypeVar

from holdfast.clock import Clock
from holdfast.errors import Closed, Corrupt, Invalid
from holdfast.root.numbered_objects import numbered
from holdfast.root.objects import documents
from holdfast.root.objects.documents import EpochDocument, LogDocument
from holdfast.root.root_store import RootStore
from holdfast.shipping.refill.store_loss import StoreForgot
from holdfast.store import layout
from holdfast.store.port import AlreadyExists, Body, Store, StoreUnavailable

logger = logging.getLogger("holdfast.shipping")

_HOLES_MAX = 10_000
"""Claims that may be missing; more of them were never made."""
_DAMAGED = "damaged"

Result = TypeVar("Result")


class RepeatedRequests(Protocol):
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


class Claimant(NamedTuple):
    """Who claims a root."""

    log_id: bytes
    created_us: int
    owner: bytes = b""
    """The directory: two copies of one log have different ones."""
    remembered: int = 0
    """The highest number that this directory knows it has claimed."""


class Fence:
    """The claim of one open log on its store's root."""

    def __init__(
        self,
        claimant: Claimant,
        store: RootStore,
        remote: Reads,
        asking: RepeatedRequests,
        clock: Clock,
        claim_interval: float = inf,
    ) -> None:
        self._log_id = claimant.log_id
        self._owner = claimant.owner.hex()
        self._created_us = claimant.created_us
        self._store = store
        self._remote = remote
        self._asking = asking
        self._clock = clock
        self.epoch = 0
        """The number that was claimed; 0 before."""
        self._remembered = claimant.remembered
        self._claim_interval = claim_interval
        """How often to ask for the own claim, in seconds, while the other question is asked."""
        self.is_forgotten = False
        """Whether the store has lost claims that this directory made: whatever is there is untrusted."""
        self._claim_seen = -inf
        self._claim: bytes = b""
        self._asked = self._answered = 0
        self._question: asyncio.Task[None] | None = None

    async def introduce(self, *, rebuild: bool = False) -> bool:
        """Make sure that this root is this log's, or nobody's, and that its document is there.

        Raises Invalid when it is another log's; StoreForgot when it no longer is this log's; Closed when the log was
        taken over meanwhile. With `rebuild` nothing is written yet, the store may have forgotten this log, and the
        answer is whether the document has to be written.
        """
        found = await self._asking.until_answered("read log.json", self._read_log)
        whose = None if found is None else self._whose(found)
        if whose not in (None, self._log_id.hex(), _DAMAGED) and not await self._stands():
            raise self._another(str(whose))
        if self._remembered:
            await self.require_own(rebuild=rebuild)
        if found is None and not rebuild:
            await self.introduce_anew()
        elif whose not in (None, self._log_id.hex()):
            logger.error(
                "log.json of the store is damaged: holdfast reconcile DIR --remote --fix repairs it",
                extra={"action": "store_damaged", "path": layout.LOG},
            )
        return whose != self._log_id.hex()

    async def _read_log(self) -> bytes | None:
        """The log's document; no bytes where it is not what this log signed."""
        try:
            return await self._remote.read(layout.LOG)
        except Corrupt:
            if not self._remembered:
                raise
            return b""

    def _whose(self, found: bytes) -> str:
        """Whose document this is; raises Corrupt where it is damaged and this log was never here."""
        try:
            return documents.decode(found, layout.LOG, LogDocument).log
        except Corrupt:
            if not self._remembered:
                raise
            return _DAMAGED

    async def _stands(self) -> bool:
        """Whether the claim that this directory remembers is there, and its own: then it is this log's root."""
        if not self._remembered:
            return False
        key = layout.epoch_key(self._remembered)
        try:
            found = await self._asking.until_answered("read our newest claim", lambda: self._remote.read(key))
            claim = None if found is None else documents.decode(found, key, EpochDocument)
        except Corrupt:
            return False
        return claim is not None and (claim.log, claim.owner) == (self._log_id.hex(), self._owner)

    def _another(self, log: str) -> StoreForgot | Invalid:
        message = f"this root belongs to another log store={self._store.url} log={log} this={self._log_id.hex()}"
        if self._remembered:
            return StoreForgot(message, hint="put the right store back, or ship to another root with store.move")
        return Invalid(message, hint="give every log a root of its own: s3://bucket/another-prefix")

    async def introduce_anew(self, *, replace: bool = False) -> None:
        """Write the log's document; in the place of a damaged one, if that is wanted."""
        document = LogDocument(log=self._log_id.hex(), created_us=self._created_us)
        mine = documents.encode(document)
        if replace:
            loop = asyncio.get_running_loop()
            await self._asking.until_answered(
                "remove the damaged log.json", lambda: loop.run_in_executor(None, self._store.delete, [layout.LOG])
            )
        whose = self._whose(await self._create_or_read(layout.LOG, mine))
        if whose != self._log_id.hex():
            raise self._another(whose)
        if self._remembered:
            logger.warning(
                "log.json was missing on the store and was written again store=%s",
                self._store.url,
                extra={"action": "store_repaired", "path": layout.LOG},
            )

    async def claim(self, purpose: Literal["open", "restore"], *, rebuild: bool = False) -> EpochDocument:
        """Take the next number; from now on nobody below it moves a mark.

        Only a restore takes a log over. A directory that is opened again finds that the newest claim is its own, or
        that there is none; if another process has taken over meanwhile, it is refused. Where the store has forgotten
        claims that this directory made, only a `rebuild` goes on, above them.
        """
        nonce = self._clock.random_bytes(16).hex()
        while True:
            claimed = await self._asking.until_answered("list the claims", self._claimed)
            newest = max(claimed, default=0)
            if purpose == "open":
                await self._require_own(newest, rebuild=rebuild)
            claim = self._claim_of(max(newest, self._remembered) + 1, purpose, nonce)
            body = documents.encode(claim)
            key = layout.epoch_key(claim.epoch)
            if await self._create_or_read(key, body) == body:
                await self._require_create_only(key, body)
                await self._fill_holes(set(claimed), claim.epoch)
                self.epoch, self._claim = claim.epoch, body
                self._claim_seen = asyncio.get_running_loop().time()
                return claim

    def _claim_of(self, epoch: int, purpose: Literal["open", "restore"], nonce: str) -> EpochDocument:
        return EpochDocument(
            log=self._log_id.hex(),
            epoch=epoch,
            purpose=purpose,
            owner=self._owner,
            nonce=nonce,
            claimed_us=self._clock.now_us(),
            host=socket.gethostname(),
            pid=os.getpid(),
        )

    async def _fill_holes(self, claimed: set[int], epoch: int) -> None:
        """Claim numbers below ours that are missing: the holder of the one before must find that it was overtaken."""
        if epoch - len(claimed) > _HOLES_MAX:  # nobody claims that often: another process put a claim there
            raise Corrupt(f"claims are missing on the store missing={epoch - 1 - len(claimed)}", path=layout.EPOCHS)
        missing = sorted(set(range(1, epoch)) - claimed)
        for number in missing:
            filler = self._claim_of(number, "open", self._clock.random_bytes(16).hex())
            await self._create_or_read(layout.epoch_key(number), documents.encode(filler))
        if missing:
            logger.warning(
                "%d claims were missing on the store and were filled in",
                len(missing),
                extra={"action": "claims_filled", "claims": len(missing), "first": missing[0], "last": missing[-1]},
            )

    async def require_own(self, *, rebuild: bool = False) -> None:
        """Raise Closed when another process has taken over, also before the claim; StoreForgot as `introduce` does."""
        if self.epoch:
            await self.check()
        else:
            claimed = await self._asking.until_answered("list the claims", self._claimed)
            await self._require_own(max(claimed, default=0), rebuild=rebuild)

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
                hint="it ignores If-None-Match, so two owners could not be distinguished; use another store",
            )

    async def _require_own(self, newest: int, *, rebuild: bool = False) -> None:
        if newest < self._remembered and await self._stands():
            newest = self._remembered  # a listing may lag
        self.is_forgotten |= newest < self._remembered
        if newest < self._remembered and rebuild:
            return  # the writer of these claims was overtaken by this log
        if newest < self._remembered:
            raise StoreForgot(
                "the store has forgotten claims that this log made: it was emptied, recreated, or put back from an old "
                f"copy store={self._store.url} claimed={self._remembered} found={newest}"
            )
        if newest and not await self._is_own(newest):
            self.epoch = newest - 1
            raise self._overtaken()

    async def _is_own(self, epoch: int) -> bool:
        """Whether a claim is this directory's; raises StoreForgot where nobody can tell."""
        key = layout.epoch_key(epoch)
        found = await self._asking.until_answered("read the newest claim", lambda: self._remote.read(key))
        try:
            return found is not None and documents.decode(found, key, EpochDocument).owner == self._owner
        except Corrupt as damage:
            if epoch == self._remembered:  # nobody else can have had this number
                logger.error("our claim is damaged: %s", damage.message, extra={"action": "store_damaged", "path": key})
                return True
            raise StoreForgot(
                f"the newest claim is damaged, and its owner is unknown store={self._store.url} epoch={epoch}",
                hint=f"if this log was not taken over, remove {key} from the store; shipping then continues",
            ) from damage

    async def check(self) -> None:
        """Raise Closed when another process has claimed a higher number; else all that is finished by now counts."""
        self._asked += 1
        mine = self._asked
        while self._answered < mine:
            if self._question is None:
                self._question = asyncio.get_running_loop().create_task(self._ask(self._asked))
                self._question.add_done_callback(_look)
            await asyncio.shield(self._question)

    async def close(self) -> None:
        """The caller has gone: nobody needs the answer."""
        question = self._question
        if question is not None:
            question.cancel()
            await asyncio.wait([question])

    async def explain(self, key: str) -> NoReturn:
        """Say why another object stands where ours belongs."""
        if await self._is_overtaken():
            raise self._overtaken()
        raise Corrupt(
            "another object is in the place of ours, and this log was not taken over: do two logs share a root?",
            path=f"{self._store.url}/{key}",
            hint="shipping has stopped, appending continues; give each log its own root, or restore from this one",
        )

    async def _ask(self, covers: int) -> None:
        try:
            if asyncio.get_running_loop().time() - self._claim_seen < self._claim_interval:
                if await self._is_overtaken():
                    raise self._overtaken()
            else:
                await self._look_for_both()
            self._answered = covers
        finally:
            self._question = None

    async def _look_for_both(self) -> None:
        """Both questions at once: is there a claim above ours, and is ours what it was?"""
        now = asyncio.get_running_loop().time()
        key = layout.epoch_key(self.epoch)
        is_overtaken, own = await asyncio.gather(
            self._is_overtaken(), self._asking.until_answered("look for our claim", lambda: self._remote.read(key))
        )
        if is_overtaken:
            raise self._overtaken()
        if own != self._claim:
            what = "is gone" if own is None else "was replaced"
            raise StoreForgot(
                f"our claim on the store {what}: it was emptied, recreated, or put back from an old copy "
                f"store={self._store.url} epoch={self.epoch}"
            )
        self._claim_seen = now

    async def watch(self, interval: float) -> None:
        """Ask now and then, forever: an idle log has to notice, too."""
        while True:
            await asyncio.sleep(interval)
            await self.check()

    async def _is_overtaken(self) -> bool:
        key = layout.epoch_key(self.epoch + 1)
        if await self._asking.until_answered("look for a higher claim", lambda: self._remote.head(key)) is None:
            return False
        # Reading proves it: a claim that was put there without the key fences nobody, and is Corrupt.
        found = await self._asking.until_answered("read the higher claim", lambda: self._remote.read(key))
        return found is not None and documents.decode(found, key, EpochDocument).log == self._log_id.hex()

    def _overtaken(self) -> Closed:
        return Closed(
            f"another process has taken this log over store={self._store.url} epoch={self.epoch + 1}",
            reason="fenced",
            hint="the log continues there; what was acknowledged here alone stays readable: see holdfast status",
        )

    async def _claimed(self) -> list[int]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, lambda: claimed_epochs(self._store))

    async def _create_or_read(self, key: str, body: bytes) -> bytes:
        """Create an object, or read what stands there; the one that counts either way."""

        async def attempt() -> bytes:
            try:
                await self._remote.create(key, Body.of(body))
            except AlreadyExists:
                found = await self._remote.read(key)
                if found is None:  # the store contradicts itself; asking again settles it
                    raise StoreUnavailable(f"an object exists and cannot be read key={key}", cause="other") from None
                return found
            return body

        return await self._asking.until_answered(f"create {key}", attempt)


def _look(question: asyncio.Task[None]) -> None:
    """Take the answer: where nobody else does, because the asker was cancelled, asyncio would complain."""
    if not question.cancelled():
        question.exception()


def claimed_epochs(store: Store) -> list[int]:
    """The numbers that were claimed, ascending."""
    return sorted(filter(None, (layout.parse_number(key) for key in numbered(store, layout.EPOCHS))))


def newest_epoch(store: Store) -> int:
    """The highest number that was ever claimed; 0 for none."""
    return max(claimed_epochs(store), default=0)
