"""Taking a root over: the claim, which commit batches of old owners count, and a start in every partition.

    claim (from now on nobody else moves a mark) → the caller lists what is there → adopt → settle what batches
    name → start in every partition → the frontier of this ownership

An adoption says up to where commit batches of older epochs count; a start object takes the manifest slot that an old
owner would use next. After an interruption all of it can be repeated under the same claim, with the same objects as the
result. Two takeovers may run at once: the higher claim wins, and the other one learns of it when it calls
`require_newest`, or before. What it writes until then changes nothing for the winner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TypeVar

import msgspec

from holdfast.clock import Clock
from holdfast.errors import Closed, Corrupt, NotFound, Unavailable
from holdfast.root.objects import documents, frontiers
from holdfast.root.objects.documents import (
    AdoptedDocument,
    EpochDocument,
    FrontierDocument,
    LogDocument,
    SegmentDocument,
    StartDocument,
)
from holdfast.root.objects.frontiers import Where
from holdfast.root.root_store import RootStore
from holdfast.root.store_manifest import StoreManifest, continued, read_manifest
from holdfast.root.tail_listing import TailListing
from holdfast.shipping.ownership.fence import Claimant, Fence, newest_epoch
from holdfast.shipping.remote_store import StoreRemote
from holdfast.signals import Flag
from holdfast.store import layout
from holdfast.store.port import AlreadyExists, Body

_ATTEMPTS = 5
_PAUSE_S = 0.2

logger = logging.getLogger("holdfast")

Result = TypeVar("Result")


class Takeover:
    """One log's root, being taken over by one directory."""

    def __init__(self, store: RootStore, log: LogDocument, owner: bytes, clock: Clock) -> None:
        self._store = store
        self._log = log
        self._owner = owner
        self._clock = clock

    def claim(self, above: int = 0) -> EpochDocument:
        """Claim the epoch; one that an interrupted attempt claimed is still ours if nobody has claimed since.

        `above` is an epoch that there certainly was, also where its claim is lost.
        """
        current = self.current()
        if current is not None:
            return current
        # In a thread of its own: the caller may be running an event loop.
        with ThreadPoolExecutor(1, thread_name_prefix="holdfast-claim") as thread:
            return thread.submit(lambda: asyncio.run(self._claim_anew(above))).result()

    def current(self) -> EpochDocument | None:
        """The claim that an interrupted attempt of this directory made, if nobody has claimed since."""
        newest = newest_epoch(self._store)
        claim = self._read_claim(newest) if newest else None
        is_ours = claim is not None and (claim.owner, claim.purpose) == (self._owner.hex(), "restore")
        return claim if is_ours else None

    def settle(self, manifest: StoreManifest, named: Sequence[SegmentDocument]) -> StoreManifest:
        """Write the manifest objects of segments that commit batches name, where the old owner did not come to it.

        After these batches were adopted, and `require_newest`: later claims find them, too; an owner that had claimed
        before may not have, and would take over a part of what they name.
        """
        while True:
            news = [document for document in manifest.segments if document.number >= named[0].number]
            if all(self._create(_manifest_key(document), documents.encode(document)) for document in news):
                return manifest
            # An overtaken owner has started in a slot; the segments come behind.
            found = read_manifest(self._store, self._log.log, manifest.topic, manifest.partition)
            before, manifest = manifest, continued(found, named, self._log.log)._replace(rewrites=manifest.rewrites)
            if manifest.documents == before.documents:
                raise Corrupt("a manifest object is not the one that a commit batch names", path=_manifest_key(news[0]))

    def adopt(self, claim: EpochDocument, inherited: TailListing, seq: int) -> None:
        """Say that commit batches of older epochs count up to `seq`; may be repeated after an interruption."""
        adopted = dict(inherited.adopted)
        if claim.epoch in adopted:
            if adopted[claim.epoch] != seq:
                key = layout.adopted_key(claim.epoch, adopted[claim.epoch])
                raise Corrupt(f"commit batches that were adopted are missing found={seq}", path=key)
            return
        # Others may have claimed before us and adopted nothing yet. We adopt in their name, too, or they could say
        # later that less counts than we take. Nobody else can have claimed since, so their numbers follow each other.
        epoch = claim.epoch - 1
        while epoch and epoch not in adopted and self._read_claim(epoch).purpose == "restore":
            self._say_adopted(epoch, seq)
            epoch -= 1
        self._say_adopted(claim.epoch, seq)

    def start(self, claim: EpochDocument, manifest: StoreManifest, seq: int, first: int) -> StoreManifest:
        """Put a start object into a partition's next slot; an object that took it meanwhile is adopted.

        `first` is where a partition without segments begins. Raises Closed where a higher claim has started.
        """
        while True:
            starts = [document for document in manifest.documents if isinstance(document, StartDocument)]
            if starts and starts[-1].epoch > claim.epoch:
                raise self._overtaken(starts[-1].epoch)
            if starts and (starts[-1].epoch, starts[-1].nonce) == (claim.epoch, claim.nonce):
                return manifest  # an interrupted attempt put it there
            document = StartDocument(
                log=claim.log,
                topic=manifest.topic,
                partition=manifest.partition,
                slot=len(manifest.documents),
                epoch=claim.epoch,
                nonce=claim.nonce,
                number=len(manifest.segments),
                adopted_seq=seq,
                first=first if manifest.settled is None else manifest.settled,
            )
            key = layout.manifest_key(manifest.topic, manifest.partition, document.slot)
            if self._create(key, documents.encode(document)):
                return manifest._replace(documents=(*manifest.documents, document))
            # The old owner wrote another manifest object after we had looked; it finds the next slot taken.
            place = (manifest.topic, manifest.partition)
            found = read_manifest(self._store, claim.log, *place, known=manifest.documents)
            manifest = found._replace(rewrites=manifest.rewrites)

    def say_settled(
        self, claim: EpochDocument, ends: Mapping[Where, int], seq: int, keys: Sequence[tuple[int, int]]
    ) -> None:
        """Write the frontier of this ownership: what counts from now on, also where a loss was accepted."""
        settled = frontiers.said_by((*where, end) for where, end in ends.items())
        for number in count():  # an interrupted attempt may have said less
            document = FrontierDocument(
                log=claim.log,
                epoch=claim.epoch,
                number=number,
                seq=seq,
                settled=settled,
                keys=keys[-1] if keys else msgspec.UNSET,
            )
            if self._create(frontiers.key_of(document), documents.encode(document)):
                return

    def require_newest(self, epoch: int) -> None:
        """Raise Closed when there was a claim since."""
        newest = newest_epoch(self._store)
        if newest != epoch:
            raise self._overtaken(newest)

    # -- claims -------------------------------------------------------------------------------------------

    def _read_claim(self, epoch: int) -> EpochDocument:
        key = layout.epoch_key(epoch)
        try:
            claim = documents.decode(self._store.get(key), key, EpochDocument)
        except NotFound:
            raise Corrupt("a claim is missing, and claims are never removed", path=key) from None
        if (claim.log, claim.epoch) != (self._log.log, epoch):
            raise Corrupt("a claim belongs elsewhere", path=key)
        return claim

    async def _claim_anew(self, above: int) -> EpochDocument:
        remote = StoreRemote(self._store, 2)
        try:
            claimant = Claimant(bytes.fromhex(self._log.log), self._log.created_us, self._owner, above)
            fence = Fence(claimant, self._store, remote, _Retrying(), self._clock)
            return await fence.claim("restore")
        finally:
            await remote.close()

    def _overtaken(self, epoch: int) -> Closed:
        return Closed(
            f"another restore has taken this log over store={self._store.url} epoch={epoch}",
            reason="fenced",
            hint="the log continues there; to take it over from there, run this again",
        )

    # -- objects ------------------------------------------------------------------------------------------

    def _say_adopted(self, epoch: int, seq: int) -> None:
        document = AdoptedDocument(log=self._log.log, epoch=epoch, seq=seq)
        self._create(layout.adopted_key(epoch, seq), documents.encode(document))

    def _create(self, key: str, data: bytes) -> bool:
        """Create an object; False when another one stands there."""
        for attempt in range(_ATTEMPTS):
            try:
                self._store.create(key, Body.of(data))
                return True
            except AlreadyExists:
                return self._store.get(key) == data
            except Unavailable:  # it may be there: asking again tells
                if attempt == _ATTEMPTS - 1:
                    raise
                Flag().wait(_PAUSE_S * 2**attempt)
        raise AssertionError("the last attempt returns or raises")


def _manifest_key(document: SegmentDocument) -> str:
    return layout.manifest_key(document.topic, document.partition, document.slot)


class _Retrying:
    """Repeats a request only a few times: a takeover should learn that the store does not answer."""

    async def until_answered(self, what: str, request: Callable[[], Awaitable[Result]]) -> Result:
        for attempt in range(_ATTEMPTS - 1):
            try:
                return await request()
            except Unavailable:
                logger.debug("again: %s", what, exc_info=True, extra={"action": "takeover_retried"})
                await asyncio.sleep(_PAUSE_S * 2**attempt)
        return await request()
