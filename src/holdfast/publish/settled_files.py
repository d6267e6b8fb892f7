"""What is settled of a partition, seen from a table's position. Only reads.

One more segment costs a few requests, however long the history is: the next slots are fetched by name, and what they
hold is proved to follow what the cursor says. Expiries and rewrites concern older files, so they need the manifest as a
whole, which is read once, through its newest checkpoint.

A sink's topic is read up to the ends of one batch, the same for all its partitions: what is behind them, rewrites and
expiries included, is left for the next time. So a table never shows half a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import Corrupt, Invalid
from holdfast.publish.table_change import Cursor, PartitionChange, difference, shown
from holdfast.root.numbered_objects import numbered
from holdfast.root.objects.documents import ManifestDocument, PartitionEnd, RewriteDocument, SegmentDocument
from holdfast.root.objects.manifest_chain import prove_following
from holdfast.root.rewrites import InEffect, read_rewrites
from holdfast.root.store_manifest import in_parallel, read_expired, read_manifest, read_slot
from holdfast.store import layout
from holdfast.store.port import Store

_WINDOW_MAX = 32
"""Slots that are asked for together: one, and twice as many each time that all of them are taken."""


class SettledFiles:
    """One partition of one topic; used for one publication."""

    def __init__(self, store: Store, log: str, topic: str, partition: int, end: PartitionEnd | None = None) -> None:
        """`end`: nothing behind it is looked at."""
        self._store = store
        self._place = (log, topic, partition)
        self._end = end
        self._manifest: tuple[ManifestDocument, ...] | None = None
        self._rewrites: list[RewriteDocument] = []
        self._looked: tuple[int, int] | None = None
        """How many rewrites there are, and below which number segments are retired; looked up once."""
        self._free = -1
        """The slot that was found free."""

    def change(self, before: Cursor, most: int) -> PartitionChange | None:
        """The next change after a cursor, with at most so many new segments; None when nothing is new."""
        # What is looked at first may be older than what is looked at later, never newer: a rewrite is there after
        # all segments that it replaces.
        if self._looked is None:
            self._looked = self._rewrites_since(before), self._expired_since(before)
        rewrites, expired = max(self._looked[0], before.rewrites), max(self._looked[1], before.expired)
        news = self._following(before, most)
        if before.slot < 0 and len(news) == len(self._whole()):
            return self._first(news, Cursor(expired=expired, rewrites=rewrites)) if news else None
        if news or expired > before.expired:
            return self._grown(before, news, expired)
        if rewrites > before.rewrites:
            return self._rewritten(before, rewrites)
        return None

    def shown(self, cursor: Cursor) -> list[InEffect]:
        """All files that a table shows at a cursor."""
        rewrites = self._rewrites_upto(cursor.rewrites)
        return shown(self._segments_upto(cursor.number), rewrites, cursor)

    # -- changes ------------------------------------------------------------------------------------------

    def _first(self, news: Sequence[ManifestDocument], new: Cursor) -> PartitionChange:
        """All that is there, as it is now: nobody has seen what was before."""
        after = _behind(new, news, new.expired, new.rewrites)
        return difference(self._place[2], (), self.shown(after), after, is_rewrite=False)

    def _grown(self, before: Cursor, news: Sequence[ManifestDocument], expired: int) -> PartitionChange:
        after = _behind(before, news, expired, before.rewrites)
        partition = self._place[2]
        if expired > before.expired:
            return difference(partition, self.shown(before), self.shown(after), after, is_rewrite=False)
        segments = [one for one in _segments(news) if one.number >= expired and not one.is_filler]
        added = tuple(InEffect(one, one.number + 1) for one in segments)
        return PartitionChange(partition, after, added, (), is_rewrite=False)

    def _rewritten(self, before: Cursor, rewrites: int) -> PartitionChange:
        after = _behind(before, (), before.expired, rewrites)
        return difference(self._place[2], self.shown(before), self.shown(after), after, is_rewrite=True)

    # -- reading ------------------------------------------------------------------------------------------

    def _following(self, cursor: Cursor, most: int) -> Sequence[ManifestDocument]:
        """Manifest objects behind a cursor, proved; of a sink's topic, all up to its end."""
        if self._end is None:
            return self._found(cursor, most)
        left = max(0, self._end.slots - cursor.slot - 1)
        found = self._found(cursor, min(most, left))
        if len(found) < min(most, left):
            _, topic, partition = self._place
            key = layout.manifest_key(topic, partition, cursor.slot + 1 + len(found))
            raise Corrupt("a manifest object is missing", path=key, topic=topic, partition=partition)
        return found

    def _found(self, cursor: Cursor, most: int) -> Sequence[ManifestDocument]:
        if cursor.slot < 0:
            self._free = len(self._whole())
            return self._whole()[:most]
        found: list[ManifestDocument] = []
        window = 1
        while len(found) < most and cursor.slot + 1 + len(found) != self._free:
            start = cursor.slot + 1 + len(found)
            more = in_parallel(lambda slot: read_slot(self._store, *self._place, slot), range(start, start + window))
            there = more[: more.index(None)] if None in more else more
            found += [document for document in there if document is not None]
            if len(there) < window:
                self._free = start + len(there)
            window = min(2 * window, _WINDOW_MAX)
        found = found[:most]
        prove_following(found, *self._place, cursor.slot + 1, cursor.link)
        return found

    def _whole(self) -> tuple[ManifestDocument, ...]:
        if self._manifest is None:
            found = read_manifest(self._store, *self._place).documents
            self._manifest = found if self._end is None else found[: self._end.slots]
        return self._manifest

    def _segments_upto(self, count: int) -> list[SegmentDocument]:
        segments = _segments(self._whole())
        if len(segments) < count:  # it was read before these were there
            self._manifest = None
            segments = _segments(self._whole())
        return segments

    def _expired_since(self, cursor: Cursor) -> int:
        """Segments below this number are retired."""
        _, topic, partition = self._place
        after = layout.expired_key(topic, partition, cursor.expired)
        if not numbered(self._store, layout.expired_folder(topic, partition), after):
            return cursor.expired
        found = read_expired(self._store, *self._place)
        upto = 0 if found is None else found.upto if self._end is None else min(found.upto, self._end.number)
        return max(cursor.expired, upto)

    def _rewrites_since(self, cursor: Cursor) -> int:
        """How many rewrites there are."""
        _, topic, partition = self._place
        after = layout.rewrite_key(topic, partition, cursor.rewrites - 1) if cursor.rewrites else None
        keys = numbered(self._store, layout.rewrites_folder(topic, partition), after)
        count = cursor.rewrites + len(keys)
        if self._end is None or not keys:
            return count
        # A sink may have written, and its files may have been joined, since the batch was read that ends here.
        upto = self._end.number
        later = (one.number for one in self._rewrites_upto(count) if any(file.upto > upto for file in one.outputs))
        return max(cursor.rewrites, min(count, next(later, count)))

    def _rewrites_upto(self, count: int) -> list[RewriteDocument]:
        if len(self._rewrites) < count:
            self._rewrites = read_rewrites(self._store, *self._place, known=self._rewrites)
        return self._rewrites


def _segments(documents: Sequence[ManifestDocument]) -> list[SegmentDocument]:
    return [document for document in documents if isinstance(document, SegmentDocument)]


def _behind(cursor: Cursor, news: Sequence[ManifestDocument], expired: int, rewrites: int) -> Cursor:
    """The cursor behind some more manifest objects."""
    number, settled, chain = cursor.number, cursor.settled, cursor.chain
    for document in news:
        if isinstance(document, SegmentDocument):
            number, settled, chain = document.number + 1, document.end, document.chain
    return Cursor(cursor.slot + len(news), number, settled, chain, expired, rewrites)


def require_plain(change: PartitionChange, topic: str) -> None:
    """Raise Invalid where a file cannot be read by others."""
    for file in change.added:
        if file.segment.key_id:
            raise Invalid(
                f"an encrypted topic cannot be published: no other reader can decrypt it topic={topic}",
                hint="read it with holdfast.read or Spark's format('holdfast') and a keyring",
            )
