"""The manifest objects of one partition, slot by slot, against what the log's own rows say should stand there.

Slots are dense: one object per settled segment, in order, and one more where an ownership was taken over. The log knows
how many slots there are, not which of them are starts. So the walk goes along both at once: what has the size (or, with
`deep`, the bytes) that the next segment's object must have is that object; only what has not is fetched and looked at.
A start names the number of the next segment, as every object does, and so the next whole object tells what a missing or
damaged one before it was. Where that leaves both possible, the slot is reported and nothing is said about a segment.

Nothing is judged by a listing alone: an object is called missing or damaged only after it was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from holdfast.errors import Corrupt
from holdfast.reconcile.classify import Kind
from holdfast.root.objects import documents
from holdfast.root.objects.documents import ManifestDocument, StartDocument
from holdfast.store import layout


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


class Walked(NamedTuple):
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
        self, of: Walked, sizes: Mapping[int, int], due: Callable[[int, int], bytes],
        fetch: Callable[[int], bytes | None], *, deep: bool,
    ) -> None:  # fmt: skip
        self._of = of
        self._sizes = sizes
        self._due = due
        """The object of a segment (number) in a slot, as it must be."""
        self._fetch = fetch
        self._deep = deep
        self._number = 0
        """The next segment."""
        self._starts = 0
        """Starts that were passed."""
        self._is_unsure = False
        """Whether segments and starts before here could not be told apart; the next whole object ends that."""

    def __iter__(self) -> Iterator[Slot]:
        for slot in range(self._of.slots):
            yield self._judge(slot)

    def _judge(self, slot: int) -> Slot:
        number = self._number
        due = self._due(number, slot) if number < self._of.segments else None
        has_size = due is not None and self._sizes.get(slot) == len(due)
        if has_size and not self._deep and not self._is_unsure:
            self._number += 1
            return Slot(slot, number)
        found = self._fetch(slot)
        document = self._decoded(slot, found)
        if document is not None and self._is_unsure:
            self._find_place(slot, document)
            return self._judge(slot)
        if due is not None and found == due:
            self._number += 1
            return Slot(slot, number)
        if isinstance(document, StartDocument) and self._starts < self._of.slots - self._of.segments:
            self._starts += 1
            if document.number == number:
                return Slot(slot, None)
            detail = f"the start of an ownership names another segment than the next number={document.number}"
            return Slot(slot, None, "content_mismatch", detail, None, len(found or b""), number)
        return self._judge_wrong(slot, document, found)

    def _find_place(self, slot: int, document: ManifestDocument) -> None:
        self._is_unsure = False
        if self._number <= document.number <= min(slot, self._of.segments):
            self._number = document.number
            self._starts = slot - document.number

    def _judge_wrong(self, slot: int, document: ManifestDocument | None, found: bytes | None) -> Slot:
        """Something else than the next segment's object, and no start, is here, or nothing is."""
        problem: Kind = "missing" if found is None else "content_mismatch"
        actual = None if found is None else len(found)
        is_segment = None if self._is_unsure else self._is_segment(slot)
        if is_segment is None:
            self._is_unsure = True
            detail = "the object of a segment or of a takeover is missing or damaged"
            return Slot(slot, None, problem, detail, None, actual)
        if not is_segment:
            self._starts += 1
            detail = "the object of a takeover is missing or damaged"
            return Slot(slot, None, problem, detail, None, actual, self._number)
        number, self._number = self._number, self._number + 1
        if document is not None:
            detail = "the manifest object says something else than the log's own manifest"
        else:
            detail = "the manifest object is not there" if found is None else "the manifest object is damaged"
        return Slot(slot, number, problem, detail, self._due(number, slot), actual)

    def _is_segment(self, slot: int) -> bool | None:
        """Whether a slot that cannot be read belongs to the next segment, or to a start; None when either could be."""
        of = self._of
        if self._starts == of.slots - of.segments:
            return True
        end, number = of.slots, of.segments
        for later in range(slot + 1, of.slots):
            document = self._decoded(later, self._fetch(later))
            if document is not None and self._number <= document.number <= of.segments:
                end, number = later, document.number
                break
        if number - self._number == end - slot:
            return True
        return False if number == self._number else None

    def _decoded(self, slot: int, found: bytes | None) -> ManifestDocument | None:
        """A whole object of this log, partition and slot; None for anything else."""
        of = self._of
        if found is None:
            return None
        try:
            document = documents.decode_manifest(found, layout.manifest_key(of.topic, of.partition, slot))
        except Corrupt:
            return None
        own = (of.log, of.topic, of.partition, slot)
        return document if (document.log, document.topic, document.partition, document.slot) == own else None
