"""Retention on the store: what is retired, and when its files go.

    _expired/<number>.json says that segments below a number are retired → `delete_after_ms` later their files are
    removed, but never one that a reader's lease names

Readers begin behind the newest `expired` object. A reader in the middle of older segments has `delete_after_ms` to
finish, and longer while it renews its lease. Times of leases are compared with this machine's clock: readers and owner
should agree within minutes. Leases are not signed, since readers may have no key. A forged one can keep retired files
for `lease_delay_max_ms` longer, and do nothing else; one that makes no sense is ignored.

A file of compaction begins with one segment and may reach behind what is retired: it goes when all of it is. So does
what an intent announces, which nobody knows yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence

from holdfast.clock import Clock
from holdfast.errors import Corrupt
from holdfast.journal.journal import Journal
from holdfast.journal.state.partition import Partition
from holdfast.root.leased_segments import needed
from holdfast.root.numbered_objects import numbered, segments_below
from holdfast.root.objects import documents
from holdfast.root.objects.documents import ExpiredDocument
from holdfast.root.rewrites import read_intents, read_rewrites
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.segments.manifest.manifest_documents import expired_document
from holdfast.shipping.ownership.fence import Fence
from holdfast.shipping.shipping_marks import shipment_of
from holdfast.shipping.shipping_settings import ShippingSettings
from holdfast.store import layout
from holdfast.store.port import AlreadyExists, Body, Store

_INTERVAL_S = 600.0
_AT_ONCE = 500

logger = logging.getLogger("holdfast.shipping")


class StoreRetention:
    """Applies `store_bytes_max` and `store_age_max_ms` to one root."""

    def __init__(
        self, journal: Journal, manifest: Manifest, store: Store, fence: Fence, settings: ShippingSettings, clock: Clock
    ) -> None:
        self._journal = journal
        self._manifest = manifest
        self._store = store
        self._fence = fence
        self._settings = settings
        self._clock = clock
        self._due = 0.0
        self._removed: dict[Partition, int] = {}
        """Below this number files are known to be gone."""

    def is_due(self) -> bool:
        """Whether there is a policy, and it is time to apply it."""
        return self._has_policy and self._clock.monotonic() >= self._due

    def due_in(self) -> float | None:
        """Seconds until it is to be applied again; None without a policy."""
        return max(1.0, self._due - self._clock.monotonic()) if self._has_policy else None

    @property
    def _has_policy(self) -> bool:
        return bool(self._settings.store_bytes_max or self._settings.store_age_max_ms)

    async def run(self) -> None:
        """Retire what the policy says, then remove what was retired long enough ago."""
        # Twice in `delete_after_ms`, where that is short: files should not stay much longer than it says.
        self._due = self._clock.monotonic() + min(_INTERVAL_S, max(1.0, self._settings.delete_after_ms / 2000))
        loop = asyncio.get_running_loop()
        partitions = list(self._journal.partitions.values())
        planned = await loop.run_in_executor(None, lambda: [self._planned(partition) for partition in partitions])
        await self._fence.check()
        for document in planned:
            if document is not None:
                await loop.run_in_executor(None, self._retire, document)
        leases = await loop.run_in_executor(None, lambda: needed(self._store, self._clock.now_us()))
        await self._fence.check()
        for partition in partitions:
            await loop.run_in_executor(None, self._remove, partition, leases)

    def _planned(self, partition: Partition) -> ExpiredDocument | None:
        """What is to be retired by the policy, beyond what is; the newest settled segment always stays."""
        known = newest_expired(self._store, partition.topic, partition.number)
        retired = 0 if known is None else known.upto
        rows = list(self._manifest.rows(partition, retired, shipment_of(partition).settled_segments))
        size = sum(row.size for row in rows)
        now_us = self._clock.now_us()
        oldest_us = now_us - int(self._settings.store_age_max_ms * 1000)
        upto = first = 0
        for row in rows[:-1]:
            too_much = self._settings.store_bytes_max and size - row.size >= self._settings.store_bytes_max
            too_old = self._settings.store_age_max_ms and row.sealed_us < oldest_us
            if not too_much and not too_old:
                break
            size -= row.size
            upto, first = row.number + 1, row.end
        return expired_document(self._journal, partition, upto, first, now_us) if upto else None

    def _retire(self, document: ExpiredDocument) -> None:
        try:
            key = layout.expired_key(document.topic, document.partition, document.upto)
            self._store.create(key, Body.of(documents.encode(document)))
        except AlreadyExists:
            pass
        logger.info(
            "retired segments on the store below %d", document.upto,
            extra={"action": "store_expired", "topic": document.topic, "partition": document.partition},
        )  # fmt: skip

    def _remove(self, partition: Partition, leases: dict[tuple[str, int], int]) -> None:
        deadline = self._clock.now_us() - int(self._settings.delete_after_ms * 1000)
        retired = list(all_expired(self._store, partition.topic, partition.number))
        upto = _retired_by(deadline, retired)
        # Whatever leases say: nobody can keep files for ever.
        overdue = _retired_by(deadline - int(self._settings.lease_delay_max_ms * 1000), retired)
        upto = max(overdue, min(upto, leases.get((partition.topic, partition.number), upto)))
        if upto <= self._removed.get(partition, 0):
            return
        keys = self._removable(partition, upto)
        if keys is None:
            return
        for start in range(0, len(keys), _AT_ONCE):
            self._store.delete(keys[start : start + _AT_ONCE])
        self._removed[partition] = upto

    def _removable(self, partition: Partition, upto: int) -> list[str] | None:
        """Files of which all is retired, below a number; None while nobody can say which ones those are."""
        place, log = (partition.topic, partition.number), self._journal.log_id.hex()
        # In this order: a file that was listed is announced by its intent, or its rewrite is there when we look.
        below = segments_below(self._store, *place, upto)
        intents = read_intents(self._store, log, *place, 0)
        try:
            rewrites = read_rewrites(self._store, log, *place)
        except Corrupt as damage:
            logger.error("nothing is removed: %s", damage.message, extra={"action": "rewrite_damaged"})
            return None
        outputs = {output.segment.key: output.upto for rewrite in rewrites for output in rewrite.outputs}
        runs = [run for intent in intents for run in intent.runs if run[1] > upto]
        own = {row.number: row.sha256 for row in self._manifest.rows(partition, 0, upto)} if runs else {}

        def is_retired(number: int, key: str) -> bool:
            if key in outputs:
                return outputs[key] <= upto
            is_awaited = any(start <= number < stop for start, stop in runs)
            return not is_awaited or key == layout.segment_key(*place, number, own[number])

        return [key for number, key in below if is_retired(number, key)]


def _retired_by(deadline_us: int, retired: Sequence[ExpiredDocument]) -> int:
    return max((document.upto for document in retired if document.expired_us <= deadline_us), default=0)


def all_expired(store: Store, topic: str, partition: int) -> Iterator[ExpiredDocument]:
    """All expiries of a partition, oldest first."""
    for key in numbered(store, layout.expired_folder(topic, partition)):
        if (document := _expiry(store, key)) is not None:
            yield document


def newest_expired(store: Store, topic: str, partition: int) -> ExpiredDocument | None:
    """The expiry that counts for a partition."""
    keys = numbered(store, layout.expired_folder(topic, partition))
    return next(filter(None, (_expiry(store, key) for key in reversed(keys))), None)


def _expiry(store: Store, key: str) -> ExpiredDocument | None:
    """An expiry; None where it is damaged or not this log's. It removes nothing, and reconciliation repairs it."""
    try:
        return documents.decode(store.get(key), key, ExpiredDocument)
    except Corrupt as damage:
        logger.error("an expiry is ignored: %s", damage.message, extra={"action": "forged", "path": key})
        return None
