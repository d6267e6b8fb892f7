"""Removes from the store what is no longer needed, and puts many manifest objects into one checkpoint.

A commit batch goes when everything in it is settled. First its idempotency keys are put into an object of their own
(`key_cover`); then a floor says that it may go: without one, a removed batch could not be distinguished from one that
never arrived. Batches behind a loss that a takeover accepted are evidence, and stay. Batches behind any other hole were
never acknowledged, or were sent again.

Segments go when retention on the store says so: an `expired` object retires them, and after `delete_after_ms` their
files are removed, unless a reader's lease still needs them. So do files in whose place compaction has put others
(`rewrite_cleanup`). Manifest objects and claims stay forever; a writer that
was overtaken finds them however late it wakes up.

Nothing is removed before the fence was checked. Failures are counted and tried again at the next sweep.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from holdfast.errors import Corrupt, Invalid, NotFound
from holdfast.journal.state.partition import Partition
from holdfast.root.acknowledged import evidence
from holdfast.root.checkpointing import write_checkpoint
from holdfast.root.objects import documents
from holdfast.root.objects.documents import FloorDocument
from holdfast.root.tail_listing import TailListing
from holdfast.shipping.cleanup.rewrite_cleanup import RewriteCleanup
from holdfast.shipping.cleanup.store_retention import StoreRetention
from holdfast.shipping.lanes.key_cover import KeyCover
from holdfast.shipping.lanes.tail_lane import SentBatch
from holdfast.shipping.ownership.fence import Fence, RepeatedRequests
from holdfast.shipping.shipping_context import ShippingContext
from holdfast.shipping.shipping_marks import shipped_partitions
from holdfast.store import layout
from holdfast.store.port import Body

_SWEEP_S = 30.0
_SWEEP_BATCHES = 64

logger = logging.getLogger("holdfast.shipping")


class Janitor:
    """Keeps one root tidy."""

    def __init__(
        self,
        context: ShippingContext,
        put: Callable[[str, Body], Awaitable[None]],
        asking: RepeatedRequests,
        fence: Fence,
        sent: deque[SentBatch],
        keys: KeyCover,
    ) -> None:
        journal, manifest, store, settings, clock, counters, _ = context
        self._journal = journal
        self._store = store
        self._put = put
        self._asking = asking
        self._fence = fence
        self._settings = settings
        self._counters = counters
        self._sent = sent
        self._keys = keys
        self._inherited: TailListing | None = None
        self._inherited_ends: dict[Partition, int] = {}
        self._floors: list[str] = []
        self._due_checkpoints: dict[Partition, int] = {}
        self._news = asyncio.Event()
        self._retention = StoreRetention(journal, manifest, store, fence, settings, clock)
        self._rewrites = RewriteCleanup(journal, store, fence, settings, clock)

    def inherit(self, inherited: TailListing) -> None:
        """Take over what earlier epochs left; it goes when all that is durable now is settled."""
        self._inherited = inherited
        self._inherited_ends = {p: p.durable for p in shipped_partitions(self._journal)}
        self._floors = list(inherited.floors)

    def on_settled(self, partition: Partition, slot: int) -> None:
        """By the segment lane: a manifest object is on the store."""
        if (slot + 1) % self._settings.checkpoint_every == 0:
            self._due_checkpoints[partition] = slot
        self._news.set()

    async def run(self) -> None:
        """Sweep now and then, forever."""
        while True:
            await self._until_news()
            if len(self._removable()) < _SWEEP_BATCHES and not self._due_checkpoints and not self._retention.is_due():
                try:
                    await asyncio.wait_for(self._until_much(), _SWEEP_S)
                except TimeoutError:
                    pass
            await self.sweep()

    async def _until_news(self) -> None:
        """Until something was settled, or retention on the store is to be applied again."""
        try:
            await asyncio.wait_for(self._news.wait(), self._retention.due_in())
        except TimeoutError:
            pass
        self._news.clear()

    async def _until_much(self) -> None:
        while len(self._removable()) < _SWEEP_BATCHES and not self._due_checkpoints:
            await self._news.wait()
            self._news.clear()

    async def sweep(self) -> None:
        """Do what is due."""
        await self._remove_batches()
        await self._merge_keys()
        for partition, slot in list(self._due_checkpoints.items()):
            try:
                await self._checkpoint(partition, slot)
            except (Corrupt, Invalid, NotFound) as damage:
                # Planning does without it, and reconciliation finds what is wrong.
                message = damage.message
                logger.error("a checkpoint cannot be written: %s", message, extra={"action": "checkpoint_damaged"})
            self._due_checkpoints.pop(partition)
        if self._retention.is_due():
            await self._asking.until_answered("apply retention on the store", self._retention.run)
        if self._rewrites.is_due():
            await self._asking.until_answered("remove what was compacted", self._rewrites.run)

    # -- commit batches -----------------------------------------------------------------------------------

    def _removable(self) -> list[SentBatch]:
        """Batches of this epoch that may go; none before those of earlier epochs, which a floor would cover, too."""
        removable: list[SentBatch] = []
        if self._inherited is not None and self._inherited.batches and not self._inherited_keys():
            return removable
        for sent in self._sent:
            if any(partition.settled < end for partition, end in sent.ends.items()):
                break
            removable.append(sent)
        return removable

    def _inherited_keys(self) -> tuple[str, ...]:
        """Batches that earlier epochs left, once all of them are settled."""
        inherited = self._inherited
        if inherited is None or any(partition.settled < end for partition, end in self._inherited_ends.items()):
            return ()
        return (*(key for key, _ in inherited.batches), *inherited.beyond)

    async def _remove_batches(self) -> None:
        removable = self._removable()
        inherited = self._inherited_keys()
        if not removable and not inherited:
            return
        frontier = self._inherited.frontier if self._inherited is not None and inherited else 0
        seq = removable[-1].last_seq if removable else frontier
        await self._keys.before_floor(seq)
        floors = [await self._put_floor(seq)] if seq else self._floors
        await self._fence.check()
        outdated = [key for key in self._floors if key not in floors]
        kept = await self._evidence() if inherited else frozenset()
        garbage = [key for key in inherited if key not in kept]
        await self._delete([*garbage, *(sent.key for sent in removable), *outdated])
        for _ in removable:
            self._sent.popleft()
        if inherited:
            self._inherited = None
        self._floors = floors

    async def _evidence(self) -> frozenset[str]:
        """What earlier epochs left that nobody may remove."""
        inherited, loop = self._inherited, asyncio.get_running_loop()
        if inherited is None or not inherited.beyond:
            return frozenset()
        return await self._asking.until_answered(
            "inspect what comes after a hole", lambda: loop.run_in_executor(None, evidence, self._store, inherited)
        )

    async def _merge_keys(self) -> None:
        """Put many small objects of idempotency keys into one, and remove those."""
        superseded = await self._keys.merged()
        if superseded:
            await self._fence.check()
            await self._delete(superseded)
            self._keys.forget(superseded)

    async def _put_floor(self, seq: int) -> str:
        """Say that everything up to a sequence number is settled; returns the key."""
        key = layout.floor_key(self._fence.epoch, seq)
        document = FloorDocument(log=self._journal.log_id.hex(), epoch=self._fence.epoch, seq=seq)
        await self._put(key, Body.of(documents.encode(document)))
        return key

    async def _delete(self, keys: list[str]) -> None:
        self._counters.cost.add("delete", len(keys))
        loop = asyncio.get_running_loop()
        await self._asking.until_answered(
            "remove what is settled", lambda: loop.run_in_executor(None, self._store.delete, keys)
        )
        logger.debug("removed %d objects", len(keys), extra={"action": "tail_removed", "objects": len(keys)})

    # -- checkpoints --------------------------------------------------------------------------------------

    async def _checkpoint(self, partition: Partition, slot: int) -> None:
        """Put all manifest objects up to a slot into one."""
        loop, log = asyncio.get_running_loop(), self._journal.log_id.hex()
        place = (log, partition.topic, partition.number)
        await self._asking.until_answered(
            "write a checkpoint", lambda: loop.run_in_executor(None, write_checkpoint, self._store, *place, slot)
        )
