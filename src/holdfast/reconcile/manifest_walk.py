"""The manifest objects of one partition, slot by slot, against what the log's own rows say should stand there.

Slots are dense: one object per settled segment, in order, and one more where an ownership was taken over. The log knows
how many slots there are, not which of them are starts. So the walk goes along both at once: what has the size (or, with
`deep`, the bytes) that the next segment's object must have is that object; only the others are fetched and checked. A
start names the number of the next segment, as every object does. So the next whole object shows what the missing or
damaged ones before it were: segments' objects, starts, or some of both. Then they are reported without a segment.

Nothing is judged by a listing alone: an object is called missing or damaged only after it was requested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from holdfast.errors import Corrupt
from holdfast.reconcile.classify import Kind
from holdfast.root.objects.documents import ManifestDocument, StartDocument
from holdfast.root.store_manifest import decode_slot


class Slot(NamedTuple):
    """One slot, judged."""

    slot: int
    number: int | None
    """The segment whose object belongs here; None for a start, or where nobody can tell."""
    problem: Kind | None = None
    detail: str = ""
    due: bytes | None = None
    """What should stand here, where that is known."""
    actual: int | None = None
    """Bytes of what does."""
    start: int | None = None
    """Where a start is missing or damaged for certain: the number of the segment that it must name."""


class PartitionFacts(NamedTuple):
    """What a walk needs to know about a partition."""

    log: str
    topic: str
    partition: int
    slots: int
    """How many there are up to the mark …"""
    segments: int
    """… and how many of them belong to segments; the others are starts."""


class ManifestWalk:
    """Goes through the slots of one partition, up to its mark."""

    def __init__(
        self,
        of: PartitionFacts,
        sizes: Mapping[int, int],
        due: Callable[[int, int], bytes],
        fetch: Callable[[int], bytes | None],
        *,
        deep: bool,
    ) -> None:
        self._of = of
        self._sizes = sizes
        self._due = due
        """The object of a segment (number) in a slot, as it must be."""
        self._fetch = fetch
        self._deep = deep

    def __iter__(self) -> Iterator[Slot]:
        slot = number = 0
        while slot < self._of.slots:
            if self._is_due(slot, number):
                yield Slot(slot, number)
                slot, number = slot + 1, number + 1
                continue
            has_starts = self._of.slots - slot > self._of.segments - number
            document = self._decoded(slot) if has_starts else None
            if isinstance(document, StartDocument) and document.number == number:
                yield Slot(slot, None)
                slot += 1
                continue
            end, following = self._next_whole(slot, number) if has_starts else (slot + 1, number + 1)
            segments = following - number
            for wrong in range(slot, end):
                if segments == end - slot:
                    yield self._judge_segment(wrong, number + wrong - slot)
                elif segments == 0:
                    yield self._judge_other(wrong, "the object of a takeover is missing or damaged", number)
                else:
                    yield self._judge_other(wrong, "the object of a segment or of a takeover is missing or damaged")
            slot, number = end, following

    def _is_due(self, slot: int, number: int) -> bool:
        """Whether the next segment's object stands here."""
        if number == self._of.segments:
            return False
        due = self._due(number, slot)
        has_size = not self._deep and self._sizes.get(slot) == len(due)
        return has_size or self._fetch(slot) == due

    def _next_whole(self, slot: int, number: int) -> tuple[int, int]:
        """The next slot with an object that can be believed, and the segment that it names; or the end."""
        for later in range(slot + 1, self._of.slots):
            document = self._decoded(later)
            if document is not None and number <= document.number <= min(number + later - slot, self._of.segments):
                return later, document.number
        return self._of.slots, self._of.segments

    def _judge_segment(self, slot: int, number: int) -> Slot:
        """A segment's object belongs here, and something else is here, or nothing."""
        detail = "the manifest object says something else than the log's own manifest"
        if self._decoded(slot) is None:
            detail = (
                "the manifest object is not there" if self._fetch(slot) is None else "the manifest object is damaged"
            )
        return self._judge_other(slot, detail)._replace(number=number, due=self._due(number, slot))

    def _judge_other(self, slot: int, detail: str, start: int | None = None) -> Slot:
        found = self._fetch(slot)
        if found is None:
            return Slot(slot, None, "missing", detail, start=start)
        return Slot(slot, None, "content_mismatch", detail, None, len(found), start)

    def _decoded(self, slot: int) -> ManifestDocument | None:
        """A whole object of this log, partition and slot; None for anything else."""
        of, found = self._of, self._fetch(slot)
        try:
            return None if found is None else decode_slot(found, of.log, of.topic, of.partition, slot)
        except Corrupt:
            return None
