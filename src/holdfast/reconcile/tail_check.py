"""The commit batches of a store, compared with how far the log says that they are shipped.

Names show most of it (`tail_listing`): what is connected to the floor must reach `shipped`. A hole below is damage,
since a restore would stop there; the shipper sends it again. Batches below the floor are on their way out, batches
above `shipped` on their way in; neither are judged. Batches of an owner that was overtaken are garbage if the takeover
did not adopt them. But where they show that more had been acknowledged than was adopted, they are evidence of a loss
that was accepted: they are counted, and stay.

A batch goes only after the floor that allows it was written, but a listing is no snapshot and may miss both. So a hole
is believed only if several looks show it; floors only rise, and one that was seen stays true.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Literal

from holdfast.errors import Corrupt
from holdfast.reconcile.reconcile_report import Repair
from holdfast.reconcile.store_objects import StoreObjects
from holdfast.root import tail_walk
from holdfast.root.acknowledged import evidence
from holdfast.root.objects import commit_batch, documents, key_object
from holdfast.root.objects.documents import AdoptedDocument, FloorDocument
from holdfast.root.tail_listing import TailListing, inherit
from holdfast.shipping.ownership.earlier_epochs import digests, entries_after
from holdfast.signals import Flag
from holdfast.store import layout
from holdfast.store.layout import BatchName
from holdfast.store.port import ObjectInfo

logger = logging.getLogger("holdfast.shipping")

_LOOKS = 6
_PAUSE_S = 0.02


class TailCheck:
    """Compares the commit batches of one root, once."""

    def __init__(self, objects: StoreObjects, shipped: int) -> None:
        self._objects = objects
        self._store, self._journal, self._deep = objects.store, objects.journal, objects.work.deep
        self._shipped = shipped
        """Read before anything is listed."""

    def units(self) -> Iterator[None]:
        """All of it, in units of work."""
        self._compare_floors()
        yield None
        listing, inherited = self._look()
        yield None
        damaged: list[str] = []
        for key, batch in inherited.batches:
            if batch.last_seq <= inherited.floor or batch.first_seq > self._shipped:
                self._objects.count("in_flight")
                continue
            self._objects.count("files")
            if self._deep:
                damaged += self._prove(key, batch.last_seq)
                yield None
        if damaged:
            # All that they held is still here, in the journal or in segments: what is missing is sent again.
            self._objects.remove(*damaged)
            listing, inherited = self._look()
        if inherited.frontier < self._shipped:
            self._mend_hole(inherited, damaged)
        self._judge(listing, inherited)
        yield None
        for info, _ in inherited.keys:
            self._objects.count("files")
            if self._deep:
                self._prove_keys(info.key)
                yield None
        self._remove_leftovers(inherited)
        yield None

    def _look(self) -> tuple[list[ObjectInfo], TailListing]:
        """List, and again while there seems to be a hole."""
        floors: list[ObjectInfo] = []
        for look in range(_LOOKS):
            if look:
                Flag().wait(_PAUSE_S * 2**look)
            listing = list(self._store.list(layout.TAIL))
            floors += [info for info in listing if layout.parse_floor_key(info.key) is not None]
            inherited = inherit([*listing, *floors])
            if inherited.frontier >= self._shipped:
                break
        return listing, inherited

    # -- floors and adoptions -----------------------------------------------------------------------------

    def _compare_floors(self) -> None:
        """Floors and adoptions say what their names say; and no floor is above what is settled."""
        listing = list(self._store.list(layout.TAIL))
        # Afterwards: what was settled when a floor was listed still is. A handle that only looks may be behind it.
        unsettled = self._first_unsettled() if self._journal.owned else None
        listing = self._without_forged(listing)
        adoptions = [info for info in listing if layout.parse_adopted_key(info.key) is not None]
        log = self._objects.log_id
        for info in listing:
            floor, adopted = layout.parse_floor_key(info.key), layout.parse_adopted_key(info.key)
            if floor is not None and unsettled is not None and inherit([info, *adoptions]).floor >= unsettled:
                detail = "a floor above what is settled: a restore would leave out commits that were acknowledged"
                self._remove_or_find(info, "content_mismatch", detail)
            elif floor is not None and self._deep:
                self._compare_named(info.key, FloorDocument(log=log, epoch=floor[0], seq=floor[1]))
            elif adopted is not None and self._deep:
                self._compare_named(info.key, AdoptedDocument(log=log, epoch=adopted[0], seq=adopted[1]))

    def _without_forged(self, listing: list[ObjectInfo]) -> list[ObjectInfo]:
        """Leave out floors and adoptions that this log did not sign. Writing them again would mean to sign them.

        A floor is made again by itself. An adoption is the only one to know what counts: an unsigned one goes only if
        it cannot be ours, because nobody claimed its epoch or because its epoch has another.
        """
        keys = [info.key for info in listing if layout.parse_floor_key(info.key) or layout.parse_adopted_key(info.key)]
        forged = {key for key in keys if self._objects.is_forged(key)}
        signed = {found[0] for key in keys if key not in forged and (found := layout.parse_adopted_key(key))}
        for key in sorted(forged):
            adopted = layout.parse_adopted_key(key)
            may_be_ours = adopted is not None and adopted[0] not in signed and self._is_claimed(adopted[0])
            if may_be_ours or not self._objects.try_remove(key):
                self._objects.find("content_mismatch", key, "this log did not sign it")
        return [info for info in listing if info.key not in forged]

    def _is_claimed(self, epoch: int) -> bool:
        key = layout.epoch_key(epoch)
        return self._store.head(key) is not None and not self._objects.is_forged(key)

    def _first_unsettled(self) -> int | None:
        """The first commit that commit batches must hold; None when all is in segments."""
        return next(self._unsettled(), None)

    def _last_unsettled(self) -> int:
        """The last one up to `shipped`; what is settled behind it is not sent again, and the next batch covers it."""
        return max((seq for seq in self._unsettled() if seq <= self._shipped), default=0)

    def _unsettled(self) -> Iterator[int]:
        partitions, entries = self._journal.partitions, entries_after(self._journal, 0)
        return (e.seq for e in entries if e.first + e.count > partitions[e.partition_id].settled)

    def _remove_or_find(self, info: ObjectInfo, kind: Literal["content_mismatch", "untracked"], detail: str) -> None:
        """An object that must not be there: gone since it was listed, removed now, or reported."""
        self._objects.count("files")
        if self._store.head(info.key) is not None and not self._objects.try_remove(info.key):
            self._objects.find(kind, info.key, detail, actual=info.size, garbage=kind == "untracked")

    def _compare_named(self, key: str, due: FloorDocument | AdoptedDocument) -> None:
        """A document that must say what its name says."""
        data = self._objects.read(key)
        if data is None:
            return  # a higher one has taken its place
        self._objects.count("files")
        own = documents.encode(due)
        if data != own and not self._objects.try_restore(key, own, damaged=True):
            self._objects.find("content_mismatch", key, "it says something else than its name", actual=len(data))

    # -- batches ------------------------------------------------------------------------------------------

    def _mend_hole(self, inherited: TailListing, damaged: list[str]) -> None:
        if self._objects.work.fix and self._objects.resend(self._last_unsettled()):
            for key in damaged or [layout.TAIL]:
                self._objects.work.repaired(Repair("restored", key))
            return
        first = inherited.frontier + 1
        names = filter(None, map(layout.parse_batch_key, inherited.beyond))
        behind = min((name.first_seq for name in names if name.first_seq > first), default=self._shipped + 1)
        detail = f"commits are in no commit batch from={first} to={behind - 1}"
        self._objects.find("gap", layout.TAIL, detail, expected=first, actual=behind)

    def _judge(self, listing: list[ObjectInfo], inherited: TailListing) -> None:
        adopted = dict(filter(None, (layout.parse_adopted_key(info.key) for info in listing)))
        beyond, kept = set(inherited.beyond), evidence(self._store, inherited)
        for info in listing:
            batch = layout.parse_batch_key(info.key)
            if batch is None and not _is_ours(info.key):
                self._objects.find_foreign(info)
            elif batch is None or info.key not in beyond:
                continue
            elif info.key in kept:
                self._note_evidence(info.key)
            elif _is_overtaken(batch, adopted):
                detail = "a commit batch of an overtaken owner; it was not adopted"
                self._remove_or_find(info, "untracked", detail)
            else:
                self._objects.count("in_flight")

    def _note_evidence(self, key: str) -> None:
        """Nobody can repair it, and nobody should remove it."""
        self._objects.count("files")
        self._objects.count("evidence")
        logger.warning(
            "a commit batch shows, or may show, that more was acknowledged than was adopted; it stays key=%s",
            key,
            extra={"action": "reconcile_evidence", "path": key},
        )

    def _prove(self, key: str, last_seq: int) -> list[str]:
        """Read a batch. If it is not what it should be, it is reported or, where it will be repaired, returned."""
        data = self._objects.read(key)
        wrong = None if data is None else self._wrong_batch(data, key, last_seq)
        if data is None or wrong is None:
            return []  # sound, or settled meanwhile; that there was no hole is known
        if not self._objects.work.fix:
            self._objects.find("content_mismatch", key, wrong, actual=len(data))
        return [key] if self._objects.work.fix else []

    def _wrong_batch(self, data: bytes, key: str, last_seq: int) -> str | None:
        try:
            batch = tail_walk.cut(commit_batch.decode(data, key), last_seq)
        except Corrupt as damage:
            return damage.message
        if batch.log_id.hex() != self._objects.log_id:
            return "the commit batch belongs to another log"
        own = digests(self._journal, batch.first_seq - 1, batch.last_seq)
        if any(own.get(entry.seq, entry.digest) != entry.digest for entry in batch.entries):
            return "the commit batch holds other entries than the journal"
        return None

    def _prove_keys(self, key: str) -> None:
        data = self._objects.read(key)
        if data is None:
            return  # a later object has them
        try:
            keys = key_object.decode(data, key)
            is_own = keys.log_id.hex() == self._objects.log_id
            wrong = None if is_own else "the idempotency keys belong to another log"
        except Corrupt as damage:
            wrong = damage.message
        if wrong is not None:
            self._objects.find("content_mismatch", key, wrong, actual=len(data))

    def _remove_leftovers(self, inherited: TailListing) -> None:
        """Batches that are settled and still there: no damage, and the shipper's next sweep would take them, too."""
        if self._objects.work.fix:
            settled = [key for key, batch in inherited.batches if batch.last_seq <= inherited.floor]
            self._objects.try_remove(*(key for key in settled if self._store.head(key) is not None))


def _is_overtaken(batch: BatchName, adopted: dict[int, int]) -> bool:
    return any(batch.epoch < epoch and batch.first_seq > seq for epoch, seq in adopted.items())


def _is_ours(key: str) -> bool:
    parsers = (layout.parse_floor_key, layout.parse_adopted_key, layout.parse_keys_key)
    return any(parse(key) is not None for parse in parsers)
