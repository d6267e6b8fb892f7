"""What earlier epochs left on the store, compared with what this log knows of it.

The store may have more than the marks here say, since those are saved only now and then: what is found counts. It may
have what this log does not know: then the directory was rolled back, and no offset may be given out a second time. And
it may have less than it acknowledged: then a commit batch is missing, a restore would stop there, and whatever is
behind the hole is sent again from what is here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from itertools import takewhile

from holdfast.errors import Corrupt, NotFound
from holdfast.journal.journal import Journal
from holdfast.model.entry import Entry
from holdfast.root import tail_walk
from holdfast.root.objects import commit_batch
from holdfast.root.root_store import RootStore
from holdfast.root.store_manifest import in_parallel
from holdfast.root.tail_listing import TailListing, inherit
from holdfast.shipping.ownership.fence import Fence, RepeatedRequests
from holdfast.shipping.shipping_stats import ShippingCounters
from holdfast.store import layout

_AT_ONCE, _BYTES_AT_ONCE = 1000, 8 * 2**20
_LOOKS, _PAUSE_S = 4, 0.05
"""A listing may lag: something is believed to be missing only after several looks."""

logger = logging.getLogger("holdfast.shipping")


class RolledBack(Corrupt):
    """The store knows more than this log. Appends are refused, or offsets would be given out a second time."""


class EarlierEpochs:
    """The commit batches of one root, before this log adds to them."""

    def __init__(
        self, journal: Journal, store: RootStore, asking: RepeatedRequests, counters: ShippingCounters
    ) -> None:
        self._journal = journal
        self._store = store
        self._asking = asking
        self._counters = counters

    async def inherited(self, fence: Fence) -> TailListing:
        """What is there; more than there is here means that this log was rolled back."""
        inherited = await self._look()
        loop = asyncio.get_running_loop()
        # Read first: what was put there without the key is Corrupt, and no reason to refuse appends.
        is_ours = await self._asking.until_answered(
            "read the commit batches", lambda: loop.run_in_executor(None, self._is_ours, inherited)
        )
        if not is_ours or inherited.frontier > self._journal.commits.last_seq:
            await fence.require_own()  # unless they belong to a new owner
            raise RolledBack(
                "the store holds commits that this log lacks: the log was rolled back, or recreated"
                f" last={self._journal.commits.last_seq} store={inherited.frontier}",
                path=self._store.url,
                hint="an old copy of the directory was put back? get the newest state with: holdfast restore",
            )
        return inherited

    async def _look(self) -> TailListing:
        loop = asyncio.get_running_loop()
        shipping = self._journal.shipping
        assert shipping is not None
        for look in range(_LOOKS):
            if look:
                await asyncio.sleep(_PAUSE_S * 2**look)
            self._counters.cost.add("list")
            inherited = await self._asking.until_answered(
                "list the commit batches", lambda: loop.run_in_executor(None, self._listed)
            )
            if inherited.frontier >= shipping.shipped_seq:
                break
        return inherited

    def _listed(self) -> TailListing:
        """What the names in the tail say; in a log with keys, unsigned objects are left out."""
        listing = list(self._store.list(layout.TAIL))
        if not self._store.trust.is_authentic:
            return inherit(listing)
        proved = in_parallel(self._is_proved, [info.key for info in listing])
        return inherit(info for info, is_proved in zip(listing, proved, strict=True) if is_proved)

    def _is_proved(self, key: str) -> bool:
        """Whether this log wrote what stands under a name that it does not know yet."""
        shipping, batch = self._journal.shipping, layout.parse_batch_key(key)
        assert shipping is not None
        is_known = batch is not None and batch.last_seq <= shipping.shipped_seq
        if is_known or layout.parse_keys_key(key) is not None:
            return True
        try:
            self._store.get(key)
        except NotFound:
            return False  # removed since it was listed
        except Corrupt as forged:
            logger.error("an object of the tail is ignored: %s", forged.message, extra={"action": "forged"})
            return False
        return True

    def _is_ours(self, inherited: TailListing) -> bool:
        """Whether batches that the marks here do not know hold what this log holds under the same numbers."""
        shipping, topics = self._journal.shipping, self._journal.topics
        assert shipping is not None
        unknown = [(key, name.last_seq) for key, name in inherited.batches if name.last_seq > shipping.shipped_seq]
        if not unknown:
            return True
        known = digests(self._journal, shipping.shipped_seq, inherited.frontier)
        for key, last_seq in unknown:
            try:
                batch = commit_batch.decode(self._store.get(key), key)
            except NotFound:
                continue  # settled, and removed since it was listed
            for entry in tail_walk.cut(batch, last_seq).entries:
                parts = topics.get(entry.topic, ())
                if entry.partition >= len(parts):
                    return False
                head = parts[entry.partition]
                # Of the entries that were trimmed since, only a partition's last one is known.
                link = head.link if entry.first + entry.count == head.durable else entry.digest
                if known.get(entry.seq, link) != entry.digest:
                    return False
        return True


def entries_after(journal: Journal, seq: int) -> Iterator[Entry]:
    """Entries behind a sequence number, as far as the journal still has them; a bounded number is read at once."""
    more = True
    while more:
        entries, more = journal.entries_after(seq, _AT_ONCE, _BYTES_AT_ONCE)
        yield from entries
        seq = entries[-1].seq if entries else seq


def digests(journal: Journal, after: int, upto: int) -> dict[int, bytes]:
    """Digests of the entries behind one sequence number and up to another, as far as the journal still has them."""
    entries = takewhile(lambda entry: entry.seq <= upto, entries_after(journal, after))
    return {entry.seq: entry.digest for entry in entries}
