"""The commit batches of a store, compared with how far the log says that they are shipped.

Names tell most of it (`inheritance`): what is connected to the floor must reach `shipped`. A hole below is damage: a
restore would stop there; the shipper sends it again. Batches below the floor, and those above `shipped`, are on their
way out or in and are not judged. Batches of an owner that was overtaken, which the takeover did not adopt, are garbage;
unless they show that more had been acknowledged than was adopted: those are evidence of a loss that was accepted, are
counted, and stay.

The floor that allows a batch to go is written before it goes, but a listing is no snapshot and may miss both. So a hole
is believed only when it is still there after several looks; floors only rise, and one that was seen stays true.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from threading import Event

from holdfast.errors import Corrupt
from holdfast.journal.journal import Journal
from holdfast.reconcile.store_notes import StoreNotes
from holdfast.reconcile.store_repairs import StoreRepairs
from holdfast.root import tail_walk
from holdfast.root.acknowledged import evidence
from holdfast.root.objects import commit_batch, documents, key_object
from holdfast.root.objects.commit_batch import CommitBatch
from holdfast.root.objects.documents import AdoptedDocument, FloorDocument
from holdfast.root.tail_listing import Inherited, inherit
from holdfast.store import layout
from holdfast.store.layout import BatchName
from holdfast.store.port import ObjectInfo

logger = logging.getLogger("holdfast.shipping")

_ENTRIES, _ENTRY_BYTES = 1000, 8 * 2**20
"""How much of the journal is read at once."""
_LOOKS = 6
_PAUSE_S = 0.02


class TailComparison:
    """Compares the commit batches of one root, once."""

    def __init__(
        self, notes: StoreNotes, journal: Journal, repairs: StoreRepairs | None, shipped: int, *, deep: bool
    ) -> None:
        self._journal = journal
        self._notes = notes
        self._store = notes.store
        self._repairs = repairs
        self._shipped = shipped
        """Read before anything is listed."""
        self._deep = deep

    def units(self) -> Iterator[None]:
        """All of it, in units of work."""
        self._floors_and_adoptions()
        yield None
        listing, inherited = self._look()
        yield None
        damaged: list[str] = []
        for key, batch in inherited.batches:
            if batch.last_seq <= inherited.floor or batch.first_seq > self._shipped:
                self._notes.counts["in_flight"] += 1
                continue
            self._notes.counts["files"] += 1
            if self._deep:
                damaged += self._prove(key, batch.last_seq)
                yield None
        if self._repairs is not None and damaged:
            # All that they held is still here, in the journal or in segments: what is missing is sent again.
            self._repairs.remove(damaged)
            listing, inherited = self._look()
        if inherited.frontier < self._shipped:
            self._mend_hole(inherited, damaged)
        self._judge(listing, inherited)
        yield None
        for info, _ in inherited.keys:
            self._notes.counts["files"] += 1
            if self._deep:
                self._prove_keys(info.key)
                yield None
        self._remove_leftovers(inherited)
        yield None

    def _mend_hole(self, inherited: Inherited, damaged: list[str]) -> None:
        repairs = self._repairs
        if repairs is None or not repairs.resend(self._shipped):
            self._find_hole(inherited)
            return
        for key in damaged or [layout.TAIL]:
            self._notes.repaired("restored", key)

    def _floors_and_adoptions(self) -> None:
        """Their names say all that they say; and no floor is above what is settled."""
        listing = list(self._store.list(layout.TAIL))
        # Afterwards: what was settled when a floor was listed still is. Whoever only looks may be behind it.
        unsettled = None if self._journal.read_only else self._first_unsettled()
        listing = self._without_forged(listing)
        adoptions = [info for info in listing if layout.parse_adopted_key(info.key) is not None]
        for info in listing:
            floor, adopted = layout.parse_floor_key(info.key), layout.parse_adopted_key(info.key)
            if floor is not None and unsettled is not None and inherit([info, *adoptions]).floor >= unsettled:
                self._false_floor(info)
            elif floor is not None and self._deep:
                self._named(info.key, FloorDocument(log=self._notes.log_id, epoch=floor[0], seq=floor[1]))
            elif adopted is not None and self._deep:
                self._named(info.key, AdoptedDocument(log=self._notes.log_id, epoch=adopted[0], seq=adopted[1]))

    def _without_forged(self, listing: list[ObjectInfo]) -> list[ObjectInfo]:
        """Floors and adoptions that this log signed. To write others again, as their names say, would be to sign them.

        A floor is made again by itself. An adoption says what counts, and only it knows: what no key signed goes if it
        cannot be one of ours, because nobody claimed its epoch or because its epoch has another.
        """
        names = [info for info in listing if _says_by_name(info.key)]
        forged = {info.key for info in names if self._notes.is_forged(info.key)}
        epochs = {
            found[0] for info in names if info.key not in forged and (found := layout.parse_adopted_key(info.key))
        }
        for key in sorted(forged):
            adopted = layout.parse_adopted_key(key)
            is_known = adopted is not None and adopted[0] not in epochs and not self._is_unclaimed(adopted[0])
            if self._repairs is None or is_known:
                self._notes.find("content_mismatch", key, "this log did not sign it")
            else:
                self._repairs.remove([key])
                self._notes.repaired("removed", key)
        return [info for info in listing if info.key not in forged]

    def _is_unclaimed(self, epoch: int) -> bool:
        key = layout.epoch_key(epoch)
        return self._store.head(key) is None or self._notes.is_forged(key)

    def _first_unsettled(self) -> int | None:
        """The first commit up to `shipped` that commit batches must hold; None when all is in segments."""
        partitions = self._journal.topics.by_id
        after, more = 0, True
        while more:
            entries, more = self._journal.taken_after(after, _ENTRIES, _ENTRY_BYTES)
            for entry in entries:
                if entry.first + entry.count > partitions[entry.partition_id].settled:
                    return entry.seq
            after = entries[-1].seq if entries else after
        return None

    def _false_floor(self, info: ObjectInfo) -> None:
        if not self._has_gone(info):
            detail = "a floor above what is settled: a restore would leave out commits that were acknowledged"
            self._notes.find("content_mismatch", info.key, detail, actual=info.size)

    def _has_gone(self, info: ObjectInfo) -> bool:
        """Whether an object that must not be there is gone: removed by this pass, or since it was listed."""
        self._notes.counts["files"] += 1
        if self._store.head(info.key) is None:
            return True
        if self._repairs is None:
            return False
        self._repairs.remove([info.key])
        self._notes.repaired("removed", info.key)
        return True

    def _named(self, key: str, due: FloorDocument | AdoptedDocument) -> None:
        """A document that must say what its name says."""
        data = self._notes.read(key)
        if data is None:
            return  # a higher one has taken its place
        self._notes.counts["files"] += 1
        own = documents.encode(due)
        if data == own:
            return
        if self._repairs is not None and self._repairs.write(key, own, damaged=True):
            self._notes.repaired("restored", key)
        else:
            self._notes.find("content_mismatch", key, "it says something else than its name", actual=len(data))

    def _look(self) -> tuple[list[ObjectInfo], Inherited]:
        """List, and again while there seems to be a hole."""
        floors: list[ObjectInfo] = []
        for look in range(_LOOKS):
            if look:
                Event().wait(_PAUSE_S * 2**look)
            listing = list(self._store.list(layout.TAIL))
            floors += [info for info in listing if layout.parse_floor_key(info.key) is not None]
            inherited = inherit([*listing, *floors])
            if inherited.frontier >= self._shipped:
                break
        return listing, inherited

    def _find_hole(self, inherited: Inherited) -> None:
        first = inherited.frontier + 1
        names = filter(None, map(layout.parse_batch_key, inherited.beyond))
        behind = min((name.first_seq for name in names if name.first_seq > first), default=self._shipped + 1)
        detail = f"commits are in no commit batch from={first} to={behind - 1}"
        self._notes.find("gap", layout.TAIL, detail, expected=first, actual=behind)

    def _judge(self, listing: list[ObjectInfo], inherited: Inherited) -> None:
        adopted = dict(filter(None, (layout.parse_adopted_key(info.key) for info in listing)))
        beyond, kept = set(inherited.beyond), evidence(self._store, inherited)
        for info in listing:
            batch = layout.parse_batch_key(info.key)
            if batch is None and not _is_ours(info.key):
                self._notes.find_stranger(info)
            elif batch is not None and info.key in beyond:
                if info.key in kept:
                    self._note_evidence(info)
                elif _is_overtaken(batch, adopted):
                    self._find_overtaken(info)
                else:
                    self._notes.counts["in_flight"] += 1

    def _note_evidence(self, info: ObjectInfo) -> None:
        """No damage that anybody could repair, and nothing to remove: it is told, and that is all."""
        self._notes.counts["files"] += 1
        self._notes.counts["evidence"] += 1
        logger.warning(
            "a commit batch shows, or may show, that more was acknowledged than was adopted; it stays key=%s", info.key,
            extra={"action": "reconcile_evidence", "path": info.key},
        )  # fmt: skip

    def _find_overtaken(self, info: ObjectInfo) -> None:
        if not self._has_gone(info):
            detail = "a commit batch of an owner that was overtaken; nobody adopted it"
            self._notes.find("untracked", info.key, detail, actual=info.size, garbage=True)

    def _prove(self, key: str, last_seq: int) -> list[str]:
        """Read a batch; it is found or, if it will be repaired, returned when it is not what it should be."""
        data = self._notes.read(key)
        wrong = None if data is None else self._wrong_batch(data, key, last_seq)
        if data is None or wrong is None:
            return []  # sound, or settled meanwhile; that there was no hole is known
        if self._repairs is not None:
            return [key]
        self._notes.find("content_mismatch", key, wrong, actual=len(data))
        return []

    def _wrong_batch(self, data: bytes, key: str, last_seq: int) -> str | None:
        try:
            batch = tail_walk.cut(commit_batch.decode(data, key), last_seq)
        except Corrupt as damage:
            return damage.message
        if batch.log_id.hex() != self._notes.log_id:
            return "the commit batch belongs to another log"
        own = self._own_digests(batch)
        if any(own.get(entry.seq, entry.digest) != entry.digest for entry in batch.entries):
            return "the commit batch holds other entries than the journal"
        return None

    def _own_digests(self, batch: CommitBatch) -> dict[int, bytes]:
        """Digests of the journal's own entries of a batch, as far as it still has them."""
        digests: dict[int, bytes] = {}
        after, more = batch.first_seq - 1, True
        while more and after < batch.last_seq:
            entries, more = self._journal.taken_after(after, _ENTRIES, _ENTRY_BYTES)
            digests.update((entry.seq, entry.digest) for entry in entries)
            after = entries[-1].seq if entries else batch.last_seq
        return digests

    def _prove_keys(self, key: str) -> None:
        data = self._notes.read(key)
        if data is None:
            return  # a later object has them
        try:
            keys = key_object.decode(data, key)
        except Corrupt as damage:
            self._notes.find("content_mismatch", key, damage.message, actual=len(data))
            return
        if keys.log_id.hex() != self._notes.log_id:
            self._notes.find("content_mismatch", key, "the idempotency keys belong to another log", actual=len(data))

    def _remove_leftovers(self, inherited: Inherited) -> None:
        """Batches that are settled and still there: no damage, and the shipper's next sweep would take them, too."""
        if self._repairs is None:
            return
        settled = [key for key, batch in inherited.batches if batch.last_seq <= inherited.floor]
        left = [key for key in settled if self._store.head(key) is not None]
        if left:
            self._repairs.remove(left)
        for key in left:
            self._notes.repaired("removed", key)


def _says_by_name(key: str) -> bool:
    return layout.parse_floor_key(key) is not None or layout.parse_adopted_key(key) is not None


def _is_overtaken(batch: BatchName, adopted: dict[int, int]) -> bool:
    return any(batch.epoch < epoch and batch.first_seq > seq for epoch, seq in adopted.items())


def _is_ours(key: str) -> bool:
    parsers = (layout.parse_floor_key, layout.parse_adopted_key, layout.parse_keys_key)
    return any(parse(key) is not None for parse in parsers)
