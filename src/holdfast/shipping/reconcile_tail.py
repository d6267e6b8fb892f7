"""The commit batches of a store, compared with how far the log says that they are shipped.

Names tell most of it (`inheritance`): what is connected to the floor must reach `shipped`. A hole below is damage: a
restore would stop there. Batches below the floor, and those above `shipped`, are on their way out or in and are not
judged. Batches of an owner that was overtaken, which the takeover did not adopt, are garbage; unless they show that
more had been acknowledged than was adopted: those are evidence of a loss that was accepted, are counted, and stay.

The floor that allows a batch to go is written before it goes, but a listing is no snapshot and may miss both. So a hole
is believed only when it is still there after several looks; floors only rise, and one that was seen stays true.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from threading import Event

from holdfast.errors import Corrupt
from holdfast.settled.acknowledged import evidence
from holdfast.shipping.store_notes import StoreNotes
from holdfast.shipping.store_repairs import StoreRepairs
from holdfast.store import commit_batch, key_object, layout
from holdfast.store.inheritance import Inherited, inherit
from holdfast.store.layout import BatchName
from holdfast.store.port import ObjectInfo

logger = logging.getLogger("holdfast.shipping")

_LOOKS = 6
_PAUSE_S = 0.02


class TailComparison:
    """Compares the commit batches of one root, once."""

    def __init__(self, notes: StoreNotes, repairs: StoreRepairs | None, shipped: int, *, deep: bool) -> None:
        self._notes = notes
        self._store = notes.store
        self._repairs = repairs
        self._shipped = shipped
        """Read before anything is listed."""
        self._deep = deep

    def units(self) -> Iterator[None]:
        """All of it, in units of work."""
        listing, inherited = self._look()
        yield None
        if inherited.frontier < self._shipped:
            self._find_hole(inherited)
        self._judge(listing, inherited)
        yield None
        for key, batch in inherited.batches:
            if batch.last_seq <= inherited.floor or batch.first_seq > self._shipped:
                self._notes.counts["in_flight"] += 1
                continue
            self._notes.counts["files"] += 1
            if self._deep:
                self._prove(key)
                yield None
        for info, _ in inherited.keys:
            self._notes.counts["files"] += 1
            if self._deep:
                self._prove_keys(info.key)
                yield None
        self._remove_leftovers(inherited)
        yield None

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
        self._notes.counts["files"] += 1
        if self._store.head(info.key) is None:
            return
        if self._repairs is not None:
            self._repairs.remove([info.key])
            self._notes.repaired("removed", info.key)
            return
        detail = "a commit batch of an owner that was overtaken; nobody adopted it"
        self._notes.find("untracked", info.key, detail, actual=info.size, garbage=True)

    def _prove(self, key: str) -> None:
        data = self._notes.read(key)
        if data is None:
            return  # settled meanwhile; that there was no hole is known
        try:
            batch = commit_batch.decode(data, key)
        except Corrupt as damage:
            self._notes.find("content_mismatch", key, damage.message, actual=len(data))
            return
        if batch.log_id.hex() != self._notes.log_id:
            self._notes.find("content_mismatch", key, "the commit batch belongs to another log", actual=len(data))

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


def _is_overtaken(batch: BatchName, adopted: dict[int, int]) -> bool:
    return any(batch.epoch < epoch and batch.first_seq > seq for epoch, seq in adopted.items())


def _is_ours(key: str) -> bool:
    parsers = (layout.parse_floor_key, layout.parse_adopted_key, layout.parse_keys_key)
    return any(parse(key) is not None for parse in parsers)
