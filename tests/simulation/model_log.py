"""A log in memory, as its shipper sees it: parts of a `Journal` and of a `Manifest`.

Entries have true digests and links, so that what is brought back from the model store can be proved by the real code.
Seals and trims happen when the test says so. Marks are written down when the shipper notes them, and `reopen` falls
back to those, as a process that died would.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Sequence
from hashlib import sha256
from random import Random
from types import SimpleNamespace
from typing import cast

from holdfast.crypto import digests
from holdfast.errors import HoldfastError
from holdfast.journal.journal import Journal
from holdfast.journal.state.commit_counts import CommitCounts
from holdfast.journal.state.partition import Partition
from holdfast.journal.state.shipping_state import ShippingState
from holdfast.model.control_rows import SegmentRow, ShipmentRow, ShippingRow
from holdfast.model.entry import RAW, Entry, header
from holdfast.model.segment import NO_CHAIN, NO_SCHEMA, Segment, SegmentFacts, SegmentHead
from holdfast.root.objects.documents import EpochDocument, RewriteDocument
from holdfast.root.store_manifest import StoreManifest
from holdfast.root.tail_walk import TailContents
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.segments.manifest.long_files import LongFiles
from holdfast.signals import Signal
from holdfast.store import layout

LOG_ID = b"a simulated log."
ROOT = "model://store"

Where = tuple[str, int]


class _ModelFile:
    """A sealed segment's file."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name, self._data = name, data

    def exists(self) -> bool:
        return True

    def open(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


class _NoKeys:
    """No idempotency keys."""

    present_epoch = 0

    def last_id_upto(self, seq: int) -> int:
        return 0

    def first_seq(self) -> int | None:
        return None

    def newest_below(self, after: int, partition: Partition, end: int, batched: tuple[int, int]) -> int:
        return 0

    def rows(self, after: int, first_seq: int, last_seq: int, limit: int = -1) -> list[object]:
        return []


class ModelLog:
    """One log."""

    def __init__(self, name: str, places: Sequence[Where], owner: bytes = b"") -> None:
        self.name = name
        signal = Signal()
        by_id = {i: Partition(i, topic, number, LOG_ID, signal) for i, (topic, number) in enumerate(places, 1)}
        for partition in by_id.values():
            partition.shipment = ShipmentRow(partition.id, 0, 0, 0, 0)
        names = sorted({topic for topic, _ in places})
        self.partitions = by_id
        self.topics = {name: [p for p in by_id.values() if p.topic == name] for name in names}
        self.schemas: dict[str, object] = {}
        self.codecs: dict[str, str] = {}
        self.policies: dict[str, object] = {}
        self.topic_changes = signal
        self.has_changed_topics = False
        self.shipping_state = ShippingState()
        self.shipping = ShippingRow(ROOT, owner or sha256(name.encode()).digest()[:16], 0, 0, 0)
        self.log_id = LOG_ID
        self.created_us = 1
        self.commits = CommitCounts(0)
        self.held: dict[str, HoldfastError] = {}
        """Why appends are refused."""
        self.entries: dict[int, Entry] = {}
        """All that were ever committed here."""
        self._kept: list[int] = []
        """Those that are not trimmed, by sequence number."""
        self.segments: dict[tuple[int, int], SegmentRow] = {}
        self._files: dict[bytes, bytes] = {}
        self._group = 0
        self.noted = (self.shipping, {p.id: p.shipment for p in by_id.values()})
        """The marks that were written down."""

    @classmethod
    def brought_back(
        cls,
        name: str,
        claim: EpochDocument,
        manifests: Sequence[StoreManifest],
        tail: Sequence[Entry],
        walked: TailContents,
    ) -> ModelLog:
        """A log as a restore makes it: segments, the tail behind them, and marks that say that all of it is shipped."""
        places = [(manifest.topic, manifest.partition) for manifest in manifests]
        log = cls(name, places, bytes.fromhex(claim.owner))
        for partition, manifest in zip(log.all_partitions, manifests, strict=True):
            log._found(partition, manifest, walked)
        log.entries = {entry.seq: entry for entry in tail}
        log._check_tail()
        log._kept = sorted(log.entries)
        log._group = walked.last_group
        log.commits = CommitCounts(walked.last_seq)
        log.shipping = log.shipping._replace(shipped_seq=walked.last_seq, epoch=claim.epoch)
        log.noted = (log.shipping, {p.id: p.shipment for p in log.all_partitions})
        return log

    def _found(self, partition: Partition, manifest: StoreManifest, walked: TailContents) -> None:
        where = (manifest.topic, manifest.partition)
        end, link = 0, NO_CHAIN
        for document in manifest.segments:
            end, link = document.first + document.rows, bytes.fromhex(document.chain)
            self.segments[partition.id, document.number] = SegmentRow.of(
                document.segment, partition_id=partition.id, sealed_us=document.sealed_us, chain=link
            )
        count = len(manifest.segments)
        partition.sealed = partition.sealed._replace(segments=count, sealed_offset=end, chain=link)
        partition.durable = walked.ends.get(where, end)
        partition.link = walked.links.get(where, partition.link)
        partition.shipment = ShipmentRow(partition.id, len(manifest.documents), count, end, partition.durable)

    def _check_tail(self) -> None:
        """What lies between segments and heads is there, in one piece and in one chain."""
        for partition in self.all_partitions:
            end, link = partition.sealed.sealed_offset, None
            for entry in self.entries.values():
                if entry.partition_id == partition.id:
                    assert (entry.first, link or entry.link) == (end, entry.link), f"a tail has a hole seq={entry.seq}"
                    end, link = end_of(entry), entry.digest
            assert end == partition.durable, f"a tail does not end at its head {end=} head={partition.durable}"

    @property
    def all_partitions(self) -> list[Partition]:
        """All of them."""
        return list(self.partitions.values())

    @property
    def shipped_seq(self) -> int:
        """The mark in the order of commits."""
        return int(self.shipping.shipped_seq)

    @property
    def is_shipped(self) -> bool:
        """Whether everything that is durable is on the store."""
        return all(partition.shipped >= partition.durable for partition in self.all_partitions)

    # -- what an application does -------------------------------------------------------------------------

    def commit(self, random: Random, body_max: int = 60) -> None:
        """One group commit, of entries in one to three partitions."""
        self._group += 1
        seq, size = self.commits.last_seq, 0
        for partition in random.sample(self.all_partitions, min(len(self.partitions), random.choice((1, 1, 2, 3)))):
            seq += 1
            body = random.randbytes(random.randint(8, body_max))
            self._append(partition, seq, random.randint(1, 4), body)
            size += len(body)
        self.commits.publish(seq, size)

    def _append(self, partition: Partition, seq: int, count: int, body: bytes) -> None:
        first, link, group = partition.durable, partition.link, self._group
        digest = digests.digest(header(partition.place, seq, first, count, group, RAW, 0, 0, 0, 0, link), body)
        self.entries[seq] = Entry(seq, partition.id, first, count, group, RAW, 0, 0, 0, 0, link, digest, body)
        self._kept.append(seq)
        partition.advance(first + count, digest, len(body), 0.0)

    def seal(self, partition: Partition) -> None:
        """Put a partition's tail into a segment."""
        sealed = partition.sealed
        rows = partition.durable - sealed.sealed_offset
        if not rows:
            return
        data = f"{self.name} {partition.topic} {partition.number} {sealed.segments} {partition.link.hex()}".encode()
        digest = sha256(data).digest()
        self._files[digest] = data
        head = self._head(partition, sealed.segments, sealed.sealed_offset)
        facts = SegmentFacts(
            rows=rows,
            size=len(data),
            time_min=0,
            time_max=0,
            sha256=digest,
            content=digest,
            footer=digest[:16],
            key_id="",
        )
        row = SegmentRow.of(Segment(head=head, facts=facts), partition_id=partition.id, sealed_us=0)
        self.segments[partition.id, sealed.segments] = row
        mark = sealed._replace(segments=sealed.segments + 1, sealed_offset=partition.durable, chain=row.chain)
        partition.seal(mark, partition.tail_bytes)
        self.commits.seals.notify()

    def trim(self) -> None:
        """Remove from the journal what segments hold."""
        self._kept = [seq for seq in self._kept if not self._is_sealed(self.entries[seq])]

    def reopen(self) -> None:
        """The process died and is started again: only what was written down is known."""
        shipping, shipments = self.noted
        self.shipping = shipping
        self.shipping_state = ShippingState()
        self.commits = CommitCounts(self.commits.last_seq)
        self.held.clear()
        for partition in self.all_partitions:
            partition.shipment = shipments[partition.id]

    def _is_sealed(self, entry: Entry) -> bool:
        partition: Partition = self.partitions[entry.partition_id]
        return end_of(entry) <= partition.sealed.sealed_offset

    def hold(self, by: str, reason: HoldfastError | None) -> None:
        self.held.pop(by, None)
        if reason is not None:
            self.held[by] = reason

    # -- what the shipper asks of a journal ---------------------------------------------------------------

    def journal(self) -> Journal:
        """This log as its journal."""
        return cast("Journal", self)

    def entries_after(self, seq: int, groups_max: int, bytes_max: int) -> tuple[list[Entry], bool]:
        """As the journal's: whole commits up to these limits, and whether there is more."""
        taken: list[Entry] = []
        starts: list[int] = []
        size = 0
        for at in range(bisect_right(self._kept, seq), len(self._kept)):
            entry = self.entries[self._kept[at]]
            if not taken or entry.group_number != taken[-1].group_number:
                if len(starts) == groups_max or (starts and size >= bytes_max):
                    return taken, True
                starts.append(len(taken))
            taken.append(entry)
            size += len(entry.body)
            if size > bytes_max and len(starts) > 1:
                return taken[: starts[-1]], True
        return taken, False

    def publish_shipping(self, shipping: ShippingRow) -> None:
        """As the journal's."""
        self.shipping = shipping

    def remembered_keys(self) -> _NoKeys:
        """Nobody gave any."""
        return _NoKeys()

    def ends_upto(self, seq: int) -> dict[Partition, int]:
        """Where each partition's entries end that were committed up to there; only those still in the tail."""
        kept = [self.entries[number] for number in self._kept if number <= seq]
        return {self.partitions[entry.partition_id]: end_of(entry) for entry in kept}

    def bytes_after(self, seq: int) -> int:
        """Stored bytes of entries that were committed after that; only those still in the tail."""
        return sum(len(self.entries[kept].body) for kept in self._kept if kept > seq)

    def note_shipped(self, shipping: ShippingRow, shipments: Sequence[ShipmentRow]) -> object:
        """Write the marks down."""
        self.noted = (shipping, {**self.noted[1], **{shipment.partition_id: shipment for shipment in shipments}})
        return SimpleNamespace(done=True, wait_async=_at_once)

    def drain(self, timeout: float) -> None:
        """Everything is durable at once."""

    # -- what the shipper asks of a manifest --------------------------------------------------------------

    def manifest(self) -> Manifest:
        """This log as its manifest."""
        return cast(
            "Manifest",
            SimpleNamespace(
                row=self._row,
                rows=self._rows,
                head=self._head_of,
                path=self._path,
                applied=self._applied,
                long_files=lambda partition: self._applied(partition, ()),
            ),
        )

    def _applied(self, partition: Partition, rewrites: Sequence[RewriteDocument]) -> LongFiles:
        return LongFiles(rewrites, lambda number: self._row(partition, number))

    def _row(self, partition: Partition, number: int) -> SegmentRow:
        return self.segments[partition.id, number]

    def _rows(self, partition: Partition, start: int, stop: int) -> list[SegmentRow]:
        return [self.segments[partition.id, number] for number in range(start, stop)]

    def _head_of(self, partition: Partition, row: SegmentRow) -> SegmentHead:
        return self._head(partition, row.number, row.first_offset)

    def _head(self, partition: Partition, number: int, first: int) -> SegmentHead:
        previous = self.segments[partition.id, number - 1].chain if number else NO_CHAIN
        return SegmentHead(
            log_id=LOG_ID,
            topic=partition.topic,
            partition=partition.number,
            number=number,
            first=first,
            epoch=1,
            schema=NO_SCHEMA,
            previous=previous,
        )

    def _path(self, partition: Partition, row: SegmentRow) -> _ModelFile:
        return _ModelFile(layout.segment_name(row.number, row.sha256), self._files[row.sha256])


async def _at_once(timeout: float) -> bool:
    return True


def end_of(entry: Entry) -> int:
    """The offset behind an entry."""
    return entry.first + entry.count
