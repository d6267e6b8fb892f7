"""How far one partition really is on the store, and what is missing there although it was acknowledged.

    the newest manifest object and its file (a GET and a HEAD, at every claim) → only where those are not as they were,
    or for a rebuild: listings → what can be put back, how far it stands then, and what is lost everywhere

Slots are dense, one per segment and one per takeover. What is missing between two objects follows from them: so many
segments, whose objects follow from the log's own manifest, and the rest are starts. Nobody knows which slot was whose;
any order reads the same, so segments come first. At the end only starts are filled in here: the mark falls to where the
objects end, and the segment lane ships the rest as usual, into the same slots as before.

Files are put back if they are here. What retention removed here, so that only the store had it, is lost: it is
reported, and nothing is changed until that is requested. Reads only; `store_refill` writes.

A segment that compaction has put into a long file is there if that file is. A log that was restored from a compacted
store has such files itself, and their rewrites: where the store has lost those, they are put back as well. A long file
that is lost while its segments are here is no loss: reconciliation makes it again, and until then it is logged.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from holdfast.errors import Corrupt
from holdfast.journal.state.partition import Partition
from holdfast.model.control_rows import LIVE, LOST, SegmentRow, ShipmentRow
from holdfast.root.objects import documents
from holdfast.root.objects.documents import ManifestDocument, RewriteDocument, SegmentDocument, StartDocument
from holdfast.root.rewrites import read_rewrites
from holdfast.root.store_manifest import decode_slot, read_slot
from holdfast.segments.manifest import segment_folders
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.segments.manifest.long_files import LongFiles
from holdfast.segments.manifest.manifest_documents import first_offset, segment_document
from holdfast.shipping.refill.store_loss import LostSpan
from holdfast.shipping.shipping_marks import shipment_of
from holdfast.store import layout
from holdfast.store.port import Store

logger = logging.getLogger("holdfast.shipping")


class PartitionGaps(NamedTuple):
    """One partition, as the store has it."""

    partition: Partition
    shipment: ShipmentRow
    """How far it is, once what is missing has been put back."""
    is_moved: bool
    """Whether the marks said something else when they were read; they move while a log ships."""
    objects: dict[int, bytes]
    """Manifest objects to put back, by slot."""
    files: list[SegmentRow]
    """Segments to upload again that are below the mark then."""
    behind: int
    """Segments above it whose files the store had, and will have again …"""
    slots_behind: int
    """… and so many manifest objects."""
    lost: list[SegmentRow]
    """Segments that are lost everywhere, with those that are retired together with them."""
    checkpoints: list[str]
    """Keys of checkpoints that may contradict what is written now, and go."""
    rewrites: tuple[RewriteDocument, ...] = ()
    """Rewrites to put back."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing."""
        return not (self.objects or self.files or self.lost or self.rewrites or self.is_moved)

    @property
    def span(self) -> LostSpan | None:
        """What is lost."""
        if not self.lost:
            return None
        rows = sum(row.rows for row in self.lost)
        place = (self.partition.topic, self.partition.number)
        return LostSpan(*place, self.lost[0].first_offset, rows, len(self.lost))


def newest_key(partition: Partition) -> str | None:
    """Where the newest manifest object of a partition must be; None when it has none."""
    slots = shipment_of(partition).slots
    return layout.manifest_key(partition.topic, partition.number, slots - 1) if slots else None


def newest_file(manifest: Manifest, partition: Partition) -> str | None:
    """Where the newest segment that is settled must be; None when there is none, or it never had a file."""
    number = shipment_of(partition).settled_segments
    row = manifest.row(partition, number - 1) if number else None
    return None if row is None or row.state == LOST or not row.size else _file_key(partition, row)


def is_newest(data: bytes | None, log: str, partition: Partition) -> bool:
    """Whether this is the newest manifest object of a partition, as far as the marks tell."""
    shipment = shipment_of(partition)
    if data is None or not shipment.slots:
        return not shipment.slots
    try:
        document = decode_slot(data, log, partition.topic, partition.number, shipment.slots - 1)
        return _behind(document) == shipment.settled_segments
    except Corrupt:
        return False


def examine(store: Store, manifest: Manifest, log: str, partition: Partition, *, anew: bool = False) -> PartitionGaps:
    """Compare listings with the log's own manifest. With `anew` the marks here say nothing about the slots there.

    Raises Corrupt where an object next to a hole, or the newest one, is damaged or another log's.
    """
    shipment = shipment_of(partition)
    listed = _numbers(store, layout.manifest_folder(partition.topic, partition.number))
    present = sorted(slot for slot in listed if anew or slot < shipment.slots)
    objects, number = _fill(store, manifest, log, partition, present)
    slots = present[-1] + 1 if present else 0
    if not anew and slots == shipment.slots and number != shipment.settled_segments:
        raise _damaged("the newest manifest object says something else than the log", partition, slots - 1)
    found = _files(store, manifest, log, partition)
    slots, number = _fill_held(manifest, log, partition, objects, slots, number, found.long)
    # Starts that are missing at the end come first: so the next segment has the slot that it always had, and a request
    # of ours that is late by hours finds its own bytes there.
    while (slots, number) != (shipment.slots, shipment.settled_segments) and slots - number < _starts(shipment):
        objects[slots] = documents.encode(lost_start(manifest, log, partition, slots, number))
        slots += 1
    settled = _end_of(manifest, partition, number)
    same = (slots, number) == (shipment.slots, shipment.settled_segments)
    marks = shipment if same else ShipmentRow(partition.id, slots, number, settled, settled)
    missing = found.missing
    files, behind = [row for row in missing if row.number < number], [row for row in missing if row.number >= number]
    outdated = min([*objects, slots]) if objects or not same else None
    return PartitionGaps(
        partition=partition,
        shipment=marks,
        is_moved=not same,
        objects=objects,
        files=files,
        behind=len(behind),
        slots_behind=max(0, shipment.settled_segments - number),
        lost=found.lost,
        checkpoints=_checkpoints(store, partition, outdated),
        rewrites=found.rewrites,
    )


def _checkpoints(store: Store, partition: Partition, first: int | None) -> list[str]:
    """Checkpoints that say something about slots from there on, which may be filled in another way."""
    if first is None:
        return []
    infos = store.list(layout.checkpoints_folder(partition.topic, partition.number))
    return [info.key for info in infos if (layout.parse_number(info.key) or 0) >= first]


def _fill(
    store: Store, manifest: Manifest, log: str, partition: Partition, present: list[int]
) -> tuple[dict[int, bytes], int]:
    """What is missing between these slots, and how many segments there are up to the last one."""
    objects: dict[int, bytes] = {}
    if not present:
        return objects, 0
    there = set(present)
    known = {slot: _required(store, manifest, log, partition, slot) for slot in _beside_holes(present)}
    number, slot = 0, 0
    for stop in (slot for slot in present if slot in known):
        document = known[stop]
        for missing in range(slot, stop):
            if missing in there:
                continue
            if number < document.number:
                row = manifest.row(partition, number)
                objects[missing] = documents.encode(segment_document(manifest, partition, row, missing))
                number += 1
            else:
                objects[missing] = documents.encode(lost_start(manifest, log, partition, missing, number))
        if stop - 1 not in there and number != document.number:
            raise _damaged("a manifest object does not fit what is missing before it", partition, stop)
        number, slot = _behind(document), stop + 1
    return objects, number


def _fill_held(
    manifest: Manifest,
    log: str,
    partition: Partition,
    objects: dict[int, bytes],
    slots: int,
    number: int,
    long: LongFiles,
) -> tuple[int, int]:
    """Put back the objects of what is in long files, whose slots the rewrites know; where the objects end then.

    The segment lane does not ship it again: it knows segments by their own files.
    """
    known = {o.segment.number: o.segment.slot for rewrite in long.rewrites for o in rewrite.outputs}
    upto = min(shipment_of(partition).settled_segments, max((file.upto for file in long), default=0))
    while number < upto:
        if slots < known.get(number, slots):
            objects[slots] = documents.encode(lost_start(manifest, log, partition, slots, number))
        else:
            row = manifest.row(partition, number)
            objects[slots] = documents.encode(segment_document(manifest, partition, row, slots))
            number += 1
        slots += 1
    return slots, number


def lost_start(manifest: Manifest, log: str, partition: Partition, slot: int, number: int) -> StartDocument:
    """What replaces a start that was lost: its place, and nothing about its owner; the same from any writer."""
    return StartDocument(
        log=log,
        topic=partition.topic,
        partition=partition.number,
        slot=slot,
        epoch=0,
        nonce="",
        number=number,
        first=_end_of(manifest, partition, number),
        adopted_seq=0,
    )


def _end_of(manifest: Manifest, partition: Partition, number: int) -> int:
    """Where the segments below a number end."""
    return manifest.row(partition, number - 1).end if number else first_offset(manifest, partition)


def _starts(shipment: ShipmentRow) -> int:
    """How many takeovers there were."""
    return shipment.slots - shipment.settled_segments


def _beside_holes(present: list[int]) -> list[int]:
    """Slots next to a hole, and the last one."""
    there = set(present)
    return [slot for slot in present if slot - 1 not in there or slot + 1 not in there]


class _Files(NamedTuple):
    """The files of a partition, as the store has them."""

    long: LongFiles
    """Long files that are in effect there, or will be."""
    rewrites: tuple[RewriteDocument, ...]
    """Rewrites that have to be put back for that."""
    missing: list[SegmentRow]
    """Rows of files that are missing there and are here …"""
    lost: list[SegmentRow]
    """… and of segments that are nowhere, with those that are retired together with them."""


def _files(store: Store, manifest: Manifest, log: str, partition: Partition) -> _Files:
    """Which files are missing; raises Corrupt where a rewrite is damaged."""
    there = manifest.applied(partition, read_rewrites(store, log, partition.topic, partition.number))
    found = _by(store, manifest, partition, there)
    own = manifest.long_files(partition)
    if found.lost and own.rewrites[: len(there.rewrites)] == there.rewrites:
        again = _by(store, manifest, partition, own)
        if len(again.lost) < len(found.lost):
            return again._replace(rewrites=own.rewrites[len(there.rewrites) :])
    return found


def _by(store: Store, manifest: Manifest, partition: Partition, long: LongFiles) -> _Files:
    """Which files are missing if these long files are in effect."""
    settled = shipment_of(partition).settled_segments
    folder = layout.segments_folder(partition.topic, partition.number) + "/"
    there = {info.key for info in store.list(folder)}
    retired = max(_numbers(store, layout.expired_folder(partition.topic, partition.number)), default=0)
    rows = [row for row in manifest.rows(partition, retired, settled) if row.state != LOST and row.size]
    gone = [row for row in long.of(rows) if _file_key(partition, row) not in there]
    here = [row for row in gone if _is_here(manifest, partition, row, long)]
    at_hand = {row.number for row in here}
    away = [row for row in gone if row.number not in at_hand]
    awaited = {number for row in away for number in _remade(manifest, partition, row, long)}
    held = {number for row in away for number in _numbers_in(row, long)}
    last_lost = max((number for number in held - awaited if number >= retired), default=-1)
    if max(awaited, default=-1) > last_lost:
        logger.error(
            "the store has lost files of compaction of %s/%d: holdfast reconcile DIR --remote --fix makes them again",
            partition.topic,
            partition.number,
            extra={"action": "long_files_lost"},
        )
    # A retirement names all segments below a number: what is older than a lost one goes with it.
    lost = list(manifest.rows(partition, retired, last_lost + 1)) if last_lost >= retired else []
    return _Files(long, (), [row for row in here if _numbers_in(row, long)[-1] > last_lost], lost)


def _numbers_in(row: SegmentRow, long: LongFiles) -> range:
    """The segments in a file."""
    held = long.holding(row.number)
    return range(row.number, row.number + 1) if held is None else held.numbers


def _remade(manifest: Manifest, partition: Partition, row: SegmentRow, long: LongFiles) -> range:
    """The segments of a long file, if all of them are here in other files, so that it can be made again."""
    held = long.holding(row.number)
    none = range(0)
    if held is None:
        return none
    files = list(manifest.files(partition, row.number, held.upto))
    rows = manifest.rows(partition, row.number, held.upto)
    is_here = all(segment_folders.size(manifest.path(partition, file)) == file.size for file in files)
    return held.numbers if is_here and all(one.state == LIVE for one in rows) else none


def _is_here(manifest: Manifest, partition: Partition, row: SegmentRow, long: LongFiles) -> bool:
    is_kept = row.state == LIVE and _numbers_in(row, long)[-1] >= partition.sealed.first_segment
    return is_kept and segment_folders.size(manifest.path(partition, row)) == row.size


def _numbers(store: Store, folder: str) -> list[int]:
    return [number for info in store.list(folder) if (number := layout.parse_number(info.key)) is not None]


def _required(store: Store, manifest: Manifest, log: str, partition: Partition, slot: int) -> ManifestDocument:
    try:
        document = read_slot(store, log, partition.topic, partition.number, slot)
    except Corrupt:
        document = None
    if document is None:
        raise _damaged("a manifest object next to a missing one, or the newest one, is damaged", partition, slot)
    if isinstance(document, SegmentDocument) and not _is_own(document, manifest, partition):
        raise _damaged("the store has other segments than the log", partition, slot)
    return document


def _is_own(document: SegmentDocument, manifest: Manifest, partition: Partition) -> bool:
    """By its chain value, which covers all segments before it, too."""
    if document.number >= partition.sealed.segments:
        return False
    return document.chain == manifest.row(partition, document.number).chain.hex()


def _damaged(message: str, partition: Partition, slot: int) -> Corrupt:
    key = layout.manifest_key(partition.topic, partition.number, slot)
    return Corrupt(
        message,
        path=key,
        topic=partition.topic,
        partition=partition.number,
        hint="holdfast reconcile DIR --remote --deep --fix repairs it",
    )


def _behind(document: ManifestDocument) -> int:
    """How many segments there are behind an object."""
    return document.number + isinstance(document, SegmentDocument)


def _file_key(partition: Partition, row: SegmentRow) -> str:
    return layout.segment_key(partition.topic, partition.number, row.number, row.sha256)
