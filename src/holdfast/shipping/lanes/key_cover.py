"""Idempotency keys on the store: each is there before its record is, or with it; and stays when commit batches go.

A commit batch brings the keys of its own entries. A segment does not: so before its manifest object is written, keys of
its records that no batch has brought are put there as an object of keys; and before a floor lets batches go, the keys
that only they hold. Each such object covers the commits behind the last one. Small ones are merged now and then, and
those that the window of keys has passed are removed: the stored keys stay within the window, in few objects. The
frontier says from where to where they go; what is passed is removed when it says so. What the store has lost of them is
written anew.

An object that was begun is finished with the same bytes, however often it takes. Belongs to the shipper's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from holdfast.journal.journal import Journal
from holdfast.journal.proving.remembered_keys import RememberedKeys
from holdfast.journal.state.partition import Partition
from holdfast.model.control_rows import KeyRow
from holdfast.root.objects import key_object
from holdfast.root.objects.commit_batch import TailKey
from holdfast.root.objects.key_object import KeyObject, StoredKey
from holdfast.root.tail_listing import TailListing
from holdfast.shipping.ownership.fence import Fence
from holdfast.store import layout
from holdfast.store.port import Body

_ROWS_MAX = 2**16
"""In one object that we write, but for those of one commit: reading and proving them holds the loop up for a moment."""
_ROW_BYTES = 80
"""About; tells from its size how many rows an object has that others wrote."""
_MERGED_MIN = 4
"""So many small objects are merged into one."""


class _Object(NamedTuple):
    """An object of keys on the store."""

    key: str
    first_seq: int
    last_seq: int
    rows: int


class KeyCover:
    """The objects of keys of one root."""

    def __init__(
        self,
        journal: Journal,
        remembered: RememberedKeys,
        put: Callable[[str, Body], Awaitable[None]],
        fence: Fence,
        shipped_seq: Callable[[], int],
    ) -> None:
        self._journal = journal
        self._remembered = remembered
        self._put = put
        self._fence = fence
        self._shipped_seq = shipped_seq
        self._batched_from = 0
        """Behind this, commits up to `shipped` are in batches that hold their keys."""
        self._objects: list[_Object] = []
        """By last sequence number; each covers the commits behind the one before it."""
        self._covered = 0
        """Commits up to here have their keys in objects."""
        self._superseded: list[str] = []
        self._passed: list[_Object] = []
        """What the window of keys has passed, and the frontier may still speak of."""
        self.said_from = 0
        """Where the objects begin that the frontier speaks of."""
        self._inherited_upto = 0
        """Commits up to here, as others left them, have no batch any more."""
        self._covered_id = 0
        """Keys up to this id are in objects."""
        self._begun: tuple[_Object, Body] | None = None
        self._lock = asyncio.Lock()

    def inherit(self, inherited: TailListing, seq: int) -> None:
        """Take over what earlier epochs left; commit batches of this one begin behind `seq`."""
        self._batched_from = seq
        # Keys of records that were adopted in segments alone came back as those of the first commit, at the lowest.
        found = [
            _Object(info.key, max(1, name.first_seq), max(1, name.last_seq), info.size // _ROW_BYTES)
            for info, name in inherited.keys
        ]
        runs = inherited.key_runs
        # What comes behind a hole is written again, with what is missing.
        ends = [name.last_seq for _, name in inherited.keys]
        self._covered = max((end for end in ends if end <= runs[0][1]), default=0)
        self._inherited_upto = max([inherited.floor, *ends])
        needed = [one for one in found if not any(_is_in(one, other) for other in found)]
        self._superseded = [one.key for one in found if one not in needed]
        self._objects = [one for one in needed if one.last_seq <= self._covered]
        self._covered_id = self._remembered.last_id_upto(self._covered)

    @property
    def span(self) -> tuple[int, int] | None:
        """From where to where objects of keys go; None where there are none."""
        if not self._objects:
            return None
        return min(one.first_seq for one in self._objects), self._objects[-1].last_seq

    async def before_segment(self, partition: Partition, end: int) -> None:
        """Bring the keys of a partition's records below an offset to the store, unless they are there."""
        async with self._lock:
            batched = (self._batched_from, self._shipped_seq())
            needed = self._remembered.newest_below(self._covered_id, partition, end, batched)
            await self._cover(needed)

    async def before_floor(self, seq: int) -> None:
        """Bring the keys of all commits up to here to the store, beside the batches that are about to go."""
        async with self._lock:
            await self._cover(seq)

    async def merged(self) -> list[str]:
        """Merge small objects, if there are many; returns the keys of those that are not needed any more."""
        async with self._lock:
            await self._cover(self._inherited_upto)
            oldest = self._remembered.first_seq()
            passed = [one for one in self._objects[:-1] if oldest is None or one.last_seq < oldest]
            self._objects = [one for one in self._objects if one not in passed]
            self._passed += passed
            chosen = _mergeable(self._objects)
            if len(chosen) >= _MERGED_MIN:
                rows = self._remembered.rows(0, chosen[0].first_seq, chosen[-1].last_seq)
                await self._write(chosen[0].first_seq, chosen[-1].last_seq, rows)
                self._superseded += [one.key for one in chosen]
                self._objects = [one for one in self._objects if one not in chosen]
            return [*self._superseded, *(one.key for one in self._passed if one.last_seq < self.said_from)]

    def forget(self, keys: list[str]) -> None:
        """These are removed."""
        gone = set(keys)
        self._superseded = [key for key in self._superseded if key not in gone]
        self._passed = [one for one in self._passed if one.key not in gone]

    # -- objects ------------------------------------------------------------------------------------------

    async def _cover(self, seq: int) -> None:
        await self._finish()
        while seq > self._covered:
            first = self._covered + 1
            rows = self._remembered.rows(self._covered_id, first, seq, _ROWS_MAX)
            if not rows:
                return
            last = seq
            if len(rows) == _ROWS_MAX and (last := rows[-1].seq - 1) >= first:  # the last commit may have more
                rows = [row for row in rows if row.seq <= last]
            elif len(rows) == _ROWS_MAX:
                last = first = rows[-1].seq
                rows = self._remembered.rows(self._covered_id, first, last)
            # Of what is before it nothing is missing: keys of damaged partitions are left out.
            await self._write(self._objects[-1].last_seq + 1 if self._objects else first, last, rows)
            self._covered, self._covered_id = last, rows[-1].id

    async def _write(self, first_seq: int, last_seq: int, rows: list[KeyRow]) -> None:
        epoch, by_id = self._fence.epoch, self._journal.partitions
        encrypting = self._remembered.present_epoch
        hashes = self._remembered.encrypt(encrypting, [row.hash for row in rows])
        stored = []
        for row, encrypted, digest in zip(rows, hashes, self._remembered.digests(encrypting, rows), strict=True):
            partition = by_id[row.partition_id]
            if partition.refusal is None:
                stored.append(StoredKey(partition.topic, partition.number, row.record, row.seq, encrypted, digest))
        if not stored:
            return
        key_epoch = TailKey.of(self._remembered.key_epoch(encrypting)) if encrypting else None
        stored.sort(key=lambda key: key.seq)
        made = KeyObject(self._journal.log_id, epoch, first_seq, last_seq, key_epoch, stored)
        key = layout.keys_key(epoch, first_seq, last_seq)
        self._begun = (_Object(key, first_seq, last_seq, len(rows)), Body.of(key_object.encode(made)))
        await self._finish()

    async def _finish(self) -> None:
        """Bring what was begun to the store."""
        if self._begun is not None:
            made, body = self._begun
            await self._put(made.key, body)
            self._begun = None
            self._objects = sorted([*self._objects, made], key=lambda one: (one.last_seq, one.first_seq))


def _is_in(one: _Object, other: _Object) -> bool:
    """Whether all keys of one are in the other: by what it was written for, and by what was adopted of that."""
    own, others = layout.parse_keys_key(one.key), layout.parse_keys_key(other.key)
    assert own is not None
    assert others is not None
    return (
        one.key != other.key
        and own.epoch <= others.epoch
        and others.first_seq <= own.first_seq
        and own.last_seq <= others.last_seq
        and other.first_seq <= one.first_seq
        and one.last_seq <= other.last_seq
    )


def _mergeable(objects: list[_Object]) -> list[_Object]:
    """The newest objects that are worth writing as one: none is much larger than all that are newer."""
    total, count = 0, 0
    for one in reversed(objects):
        if (count and one.rows > 2 * total) or total + one.rows > _ROWS_MAX:
            break
        total, count = total + one.rows, count + 1
    return objects[len(objects) - count :]
