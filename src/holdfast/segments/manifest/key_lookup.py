"""Finding a key among many segments: which spans of offsets may have records with it.

Each segment's file has an index of its keys (`segments.keys`), proved like all of the file. An index is read once and
kept: what a segment holds never changes, not even when compaction puts a longer file in its place. Memory is bounded;
where it is full, the newest segments are kept, because what is looked for is mostly new.

A segment without an index (an older file, or one with too many keys) is all of it a "maybe". So is one whose file is
gone: a reader learns why. Nothing is decided by an index that was not proved.
"""

from __future__ import annotations

from _thread import RLock
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from holdfast.caller import once
from holdfast.journal.state.partition import Partition
from holdfast.model.control_rows import LIVE

if TYPE_CHECKING:
    from holdfast.segments.keys.key_index import KeyIndex
    from holdfast.segments.manifest.local_manifest import Manifest

_ENTRY_BYTES = 400
"""What an index takes beside its entries, about."""


class Maybe(NamedTuple):
    """Offsets of one file or segment that may have a key."""

    number: int
    """The first segment that they are of."""
    start: int
    end: int


class _SegmentKeys(NamedTuple):
    """What is known of the keys of some neighbouring segments: of one file, when it was read."""

    number: int
    upto: int
    first: int
    end: int
    keys: KeyIndex | None

    @property
    def size(self) -> int:
        return _ENTRY_BYTES + (0 if self.keys is None else self.keys.size)


class KeyLookup:
    """The indexes of the segments of one log, as far as they were needed; used by any thread."""

    def __init__(self, manifest: Manifest, bytes_max: int) -> None:
        self._manifest = manifest
        self._bytes_max = bytes_max
        self._known: dict[Partition, dict[int, _SegmentKeys]] = {}
        """By each of the segments that it is of."""
        self._size = 0
        self._lock = RLock()

    def maybes(self, partition: Partition, start: int, stop: int, key: bytes, reverse: bool) -> Iterator[Maybe]:
        """Where segments start..stop (by number) may have a key, in order or backwards; raises Corrupt."""
        from holdfast.segments.keys.key_hash import hash_key

        hashed = hash_key(key)
        known = self._known.setdefault(partition, {})
        number = stop - 1 if reverse else start
        while start <= number < stop:
            found = known.get(number) or self._load(partition, number)
            if found.keys is None:
                yield Maybe(number, found.first, found.end)
            else:
                spans = found.keys.spans(key, hashed)
                for low, high in reversed(spans) if reverse else spans:
                    yield Maybe(number, found.first + low, min(found.first + high, found.end))
            number = found.number - 1 if reverse else found.upto

    def _load(self, partition: Partition, number: int) -> _SegmentKeys:
        """What the file says that holds a segment; of one that is gone, that everything is possible."""
        manifest = self._manifest
        row = manifest.row(partition, number)
        unknown = _SegmentKeys(number, number + 1, row.first_offset, row.end, None)
        if row.state != LIVE:
            return unknown
        file = manifest.file(partition, row)
        upto = manifest.upto(partition, number)
        try:
            with manifest.open(partition, file, keys_only=True) as reader:
                parts = reader.key_indexes()
        except (FileNotFoundError, NotADirectoryError):
            return unknown
        # A bundle has an index for each of its segments; any other file has one for all that it holds.
        numbers = [(file.number + i, file.number + i + 1) for i in range(len(parts))]
        borders = [(file.number, upto)] if len(parts) == 1 else numbers
        found = [
            _SegmentKeys(start, stop, part.first, part.end, part.keys)
            for (start, stop), part in zip(borders, parts, strict=True)
        ]
        for one in found:
            self._keep(partition, one)
        return next(one for one in found if one.number <= number < one.upto)

    def _keep(self, partition: Partition, found: _SegmentKeys) -> None:
        with once(self._lock):
            known = self._known.setdefault(partition, {})
            for number in range(found.number, found.upto):
                if number in known:  # read by another thread, or of a shorter file
                    self._forget(known, known[number])
            while self._size + found.size > self._bytes_max:
                oldest = min(known, default=found.number)
                if oldest >= found.number:
                    return
                self._forget(known, known[oldest])
            known.update(dict.fromkeys(range(found.number, found.upto), found))
            self._size += found.size

    def _forget(self, known: dict[int, _SegmentKeys], gone: _SegmentKeys) -> None:
        for number in range(gone.number, gone.upto):
            if known.get(number) is gone:
                del known[number]
        self._size -= gone.size
