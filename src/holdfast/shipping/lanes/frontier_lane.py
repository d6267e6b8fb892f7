"""The frontier: how far all partitions are settled, in one object, written behind the marks.

    marks have moved → wait a second, or until it is wanted at once → one object for all of them → the older ones go

It says only what the marks say, and those move after the store has acknowledged the manifest objects and nobody has
taken over. So it is true whenever it arrives, and a crash between any two steps leaves the one before it, which is true
as well and says less. Each has a key of its own: an attempt that was given up may still arrive, and changes nothing.

After a crash the marks here may be older than what the store has. Then nothing is written until they have caught up: a
frontier says less than the one before it only after a takeover (`recovery.restore`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from holdfast.errors import Corrupt, NotFound
from holdfast.journal.journal import Journal
from holdfast.journal.state.partition import Partition
from holdfast.journal.state.shipping_state import ShippingState
from holdfast.root.objects import documents, frontiers
from holdfast.root.objects.documents import FrontierDocument
from holdfast.root.root_store import RootStore
from holdfast.shipping.lanes.key_cover import KeyCover
from holdfast.shipping.ownership.fence import Fence, RepeatedRequests
from holdfast.shipping.shipping_marks import ShippedMarks, shipment_of, shipped_partitions
from holdfast.shipping.shipping_stats import ShippingCounters
from holdfast.store.port import Body

_LAG_S = 1.0
"""The most that a frontier lags behind the marks, and the least between two of them."""

_SAID_S = 5.0
"""The longest wait for it: what it speaks of is settled already."""

logger = logging.getLogger("holdfast.shipping")


def until_said(
    state: ShippingState, wanted: Mapping[Partition, int], hurry: Callable[[], None], timeout: float
) -> None:
    """Wait until the frontier says that these are settled; a store that does not take it holds nobody up for long."""

    def is_said() -> bool:
        said = state.frontier
        return all(said.get(partition, 0) >= end or partition.refusal for partition, end in wanted.items())

    if not is_said():
        hurry()
        state.signal.sleep(lambda: is_said() or state.refusal is not None, max(0.0, min(_SAID_S, timeout)))


class FrontierLane:
    """Writes the frontiers of one claim. Belongs to the shipper's thread."""

    def __init__(
        self,
        journal: Journal,
        store: RootStore,
        asking: RepeatedRequests,
        put: Callable[[str, Body], Awaitable[None]],
        fence: Fence,
        marks: ShippedMarks,
        counters: ShippingCounters,
        keys: KeyCover,
    ) -> None:
        self._journal = journal
        self._store = store
        self._asking = asking
        self._put = put
        self._fence = fence
        self._marks = marks
        self._counters = counters
        self._keys = keys
        self._number = 0
        """Of the next one; each attempt takes a new one."""
        self._older: list[str] = []
        self._newest: FrontierDocument | None = None
        """What the store is known to have."""
        self._news = asyncio.Event()
        self._hurry = asyncio.Event()

    def note(self) -> None:
        """Something was settled."""
        self._news.set()

    def hurry(self) -> None:
        """A caller waits until the store has it."""
        self._hurry.set()

    async def begin(self) -> None:
        """Read what the store has, and say how far it is now, before anything more is settled."""
        loop = asyncio.get_running_loop()
        self._older, self._newest = await self._asking.until_answered(
            "read the frontier", lambda: loop.run_in_executor(None, self._read)
        )
        await self.write()

    async def run(self) -> None:
        """Write it whenever it has moved, forever."""
        while True:
            await self._news.wait()
            try:
                await asyncio.wait_for(self._hurry.wait(), _LAG_S)
            except TimeoutError:
                pass
            self._news.clear()
            self._hurry.clear()
            await self.write()

    async def write(self) -> None:
        """Say how far everything is now, if that is more than what the store has."""
        settled = {partition: partition.settled for partition in shipped_partitions(self._journal)}
        await self._write()
        self._journal.shipping_state.frontier = settled
        self._journal.shipping_state.signal.notify()

    async def _write(self) -> None:
        frontier, newest = self._current(), self._newest
        if newest is not None and _said(frontier) == _said(newest):
            return
        if frontiers.behind(newest, frontiers.settled_of(frontier)):
            return
        self._number += 1
        key = frontiers.key_of(frontier)
        await self._put(key, Body.of(documents.encode(frontier)))
        self._newest, older = frontier, self._older
        if frontier.key_span is not None:
            self._keys.said_from = frontier.key_span[0]
        self._older = [*older, key]
        if older:  # they are of this epoch or before: also a successor has no need of them
            await self._delete(older)
            self._older = [key]

    def _current(self) -> FrontierDocument:
        settled = (
            (partition.topic, partition.number, partition.settled)
            for partition in shipped_partitions(self._journal)
            if partition.shipment is not None and shipment_of(partition).settled_segments
        )
        return FrontierDocument(
            log=self._journal.log_id.hex(),
            epoch=self._fence.epoch,
            number=self._number,
            seq=self._marks.shipped_seq,
            settled=frontiers.said_by(settled),
            keys=self._keys.span or msgspec.UNSET,
        )

    def _read(self) -> tuple[list[str], FrontierDocument | None]:
        """What stands there; one that is damaged, or that this log did not sign, is replaced.

        It is listed once: a store that refuses every second request would otherwise never be through with it.
        """
        keys, log = frontiers.frontier_keys(self._store), self._journal.log_id.hex()
        try:
            return keys, frontiers.proved_frontier(self._store, log, keys[-1]) if keys else None
        except NotFound:  # a successor has removed it: what it wrote is newer
            return keys, frontiers.newest_frontier(self._store, log)
        except Corrupt as damage:
            logger.error("a frontier is damaged: %s", damage.message, extra={"action": "store_damaged"})
            return keys, None

    async def _delete(self, keys: list[str]) -> None:
        self._counters.cost.add("delete", len(keys))
        loop = asyncio.get_running_loop()
        await self._asking.until_answered(
            "remove older frontiers", lambda: loop.run_in_executor(None, self._store.delete, keys)
        )


def _said(frontier: FrontierDocument) -> tuple[object, ...]:
    return frontier.settled, frontier.seq, frontier.keys
