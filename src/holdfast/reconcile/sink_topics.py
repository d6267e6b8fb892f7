"""Topics of the root that sinks write, checked by the log that ships there: nobody else passes by regularly.

A sink keeps nothing: what its batches say is compared with what exists. Batches have no hole, follow each other and are
whole; manifest objects are there up to the newest batch, and none beyond; so are the files in effect. What a sink is
about to write is not judged: files that no batch names, and manifest objects of a newest batch that is not applied.

Repairs write manifest objects again, which follow from batches byte for byte. A batch or a file that is lost is lost:
it is reported, to be put back from a copy of the store. Nothing of a sink's is ever removed here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from holdfast.errors import Corrupt, NotFound
from holdfast.model.topic_name import is_name
from holdfast.reconcile.classify import Kind
from holdfast.reconcile.store_objects import StoreObjects
from holdfast.root import sink_batches
from holdfast.root.batch_application import is_applied
from holdfast.root.objects import documents
from holdfast.root.objects.documents import SegmentDocument, SinkBatchDocument, SinkTopicDocument
from holdfast.root.rewrites import InEffect, in_effect, read_rewrites
from holdfast.root.store_manifest import newest_topic, read_expired, read_manifest
from holdfast.store import layout

_RANGE_BYTES = 8 * 2**20
_HOLES_MAX = 10_000
_LOST = "it is known nowhere else: put it back from a copy of the store"


class SinkTopics:
    """The topics of sinks at one root, during one pass."""

    def __init__(self, objects: StoreObjects) -> None:
        self._objects = objects
        self._store = objects.store
        self._log = objects.log_id

    def units(self) -> Iterator[None]:
        """Compare every topic that a sink writes, a partition at a time."""
        own = {topic for topic, parts in self._objects.journal.topics.items() if parts[0].refusal is None}
        for name in self._store.folders(layout.TOPICS):
            if is_name(name) and name not in own and self._is_sinks(name):
                yield from self._compare(name)

    def _is_sinks(self, name: str) -> bool:
        try:
            return isinstance(newest_topic(self._store, self._log, name), SinkTopicDocument)
        except Corrupt as damage:
            if sink_batches.newest_number(self._store, name) < 0:
                return False  # its owner is unknown
            self._find_damage(damage, topic=name)
            return True

    def _compare(self, name: str) -> Iterator[None]:
        batch = self._newest(name)
        yield None
        if batch is None:
            return
        for partition in sorted(map(int, batch.ends)):
            _Partition(self._objects, name, partition, batch).compare()
            yield None

    def _newest(self, name: str) -> SinkBatchDocument | None:
        """The newest batch; holes before it are reported, and in a deep pass each batch is proved."""
        objects = self._objects
        known = objects.numbered(layout.sink_folder(name), topic=name)
        for number in (*([] if 0 in known or not known else [0]), *objects.expected(known, topic=name)):
            key = layout.sink_key(name, number)
            if number not in known and self._store.head(key) is None:
                objects.find("missing", key, f"a batch of a sink is missing; {_LOST}", topic=name)
        before, newest = None, None
        for number in sorted(known) if objects.work.deep else sorted(known)[-1:]:
            before = newest = self._read(name, number, before)
        return newest

    def _read(self, name: str, number: int, before: SinkBatchDocument | None) -> SinkBatchDocument | None:
        self._objects.count("files")
        try:
            return sink_batches.read_batch(self._store, self._log, name, number, before)
        except NotFound:  # it was listed
            detail = f"a batch of a sink is missing; {_LOST}"
            self._objects.find("missing", layout.sink_key(name, number), detail, topic=name)
        except Corrupt as damage:
            self._find_damage(damage, topic=name)
        return None

    def _find_damage(self, damage: Corrupt, **place: Any) -> None:
        self._objects.find("content_mismatch", str(damage.path), f"{damage.message}; {_LOST}", **place)


class _Partition:
    """One partition of a sink's topic, up to one batch."""

    def __init__(self, objects: StoreObjects, topic: str, partition: int, batch: SinkBatchDocument) -> None:
        self._objects, self._store, self._batch = objects, objects.store, batch
        self._where = (objects.log_id, topic, partition)
        self._place: dict[str, Any] = {"topic": topic, "partition": partition}
        self._end = sink_batches.end_of(batch, partition)

    def compare(self) -> None:
        """Manifest objects, and then the files that they lead to."""
        if not self._compare_slots():
            return
        try:
            made = read_rewrites(self._store, *self._where)  # before the manifest: what they speak of is in it then
            segments = self._segments()
            if segments is not None:
                self._compare_files(in_effect(segments, made))
        except Corrupt as damage:
            self._objects.find("content_mismatch", str(damage.path), f"{damage.message}; {_LOST}", **self._place)

    # -- manifest objects ---------------------------------------------------------------------------------

    def _compare_slots(self) -> bool:
        """Whether every slot up to the end is taken, or will be by the newest batch."""
        _, topic, partition = self._where
        there = self._objects.numbered(layout.manifest_folder(topic, partition), **self._place)
        coming: set[int] = set()
        if not self._objects.work.fix and not self._is_applied():
            coming = {segment.slot for segment in sink_batches.segments_in(self._batch, partition)}
        if self._end.slots - len(there) - len(coming) > _HOLES_MAX:
            key = layout.sink_key(topic, self._batch.number)
            self._objects.find("gap", key, "a batch says that there is far more than there is", **self._place)
            return False
        lost = [slot for slot in range(self._end.slots) if slot not in there and slot not in coming]
        beyond = [info.key for slot, info in there.items() if slot >= self._end.slots]
        if beyond and sink_batches.newest_number(self._store, topic) == self._batch.number:
            for key in beyond:
                self._objects.find("untracked", key, "a manifest object that follows from no batch", **self._place)
        return not [slot for slot in lost if not self._restored(slot)]

    def _is_applied(self) -> bool:
        try:
            return is_applied(self._store, self._batch)
        except Corrupt:
            return True  # something stands there: what that is, is found with the rest

    def _restored(self, slot: int) -> bool:
        """Whether the object in a slot is there after all, or again; else it is reported."""
        _, topic, partition = self._where
        key = layout.manifest_key(topic, partition, slot)
        if self._store.head(key) is not None:
            return True
        if self._objects.work.fix and self._objects.try_restore(key, self._said(slot), damaged=False):
            return True
        self._objects.find("missing", key, "the object is not there; --fix writes it again", **self._place)
        return False

    def _said(self, slot: int) -> bytes | None:
        """What a batch says stands in a slot; None where that batch is lost, too."""
        partition = self._where[2]

        def slots(number: int) -> int:
            return sink_batches.end_of(self._read(number), partition).slots

        try:
            number = bisect_right(range(self._batch.number), slot, key=slots)
            segments = sink_batches.segments_in(self._read(number), partition)
        except (Corrupt, NotFound):
            return None
        return next((documents.encode(segment) for segment in segments if segment.slot == slot), None)

    def _read(self, number: int) -> SinkBatchDocument:
        log, topic, _ = self._where
        return sink_batches.read_batch(self._store, log, topic, number)

    def _segments(self) -> list[SegmentDocument] | None:
        """All segments, proved; None where that is not possible, which is reported."""
        _, topic, partition = self._where
        tried: set[str] = set()
        while True:
            try:
                known = read_manifest(self._store, *self._where).documents
                more = sink_batches.beyond(self._batch, known, *self._where)
                return [one for one in (*known, *more) if isinstance(one, SegmentDocument)]
            except Corrupt as damage:
                key, slot = str(damage.path), layout.parse_number(str(damage.path))
                is_manifest = slot is not None and key == layout.manifest_key(topic, partition, slot)
                content = self._said(slot) if self._objects.work.fix and is_manifest and slot is not None else None
                if key in tried or content is None or not self._objects.try_restore(key, content, damaged=True):
                    hint = "--fix writes it again" if is_manifest else _LOST
                    self._objects.find("content_mismatch", key, f"{damage.message}; {hint}", **self._place)
                    return None
                tried.add(key)

    # -- files --------------------------------------------------------------------------------------------

    def _compare_files(self, files: list[InEffect]) -> None:
        _, topic, partition = self._where
        retired = self._retired()
        listed = {info.key: info.size for info in self._store.list(layout.segments_folder(topic, partition) + "/")}
        for file in files:
            if file.upto > retired and not file.segment.is_filler:
                self._objects.count("segments")
                self._objects.count("files")
                self._compare_file(file.segment, listed.get(file.segment.key))

    def _compare_file(self, segment: SegmentDocument, size: int | None) -> None:
        if size is None and (found := self._store.head(segment.key)) is not None:
            size = found.size
        kind: Kind | None = None
        if size is None:
            kind = "missing"
        elif size != segment.size:
            kind = "size_mismatch"
        elif self._objects.work.deep and not self._has_hash(segment):
            kind = "content_mismatch"
        if kind is not None and self._is_needed(segment):
            self._objects.find(
                kind,
                segment.key,
                f"a file of a sink's topic; {_LOST}",
                number=segment.number,
                first=segment.first,
                rows=segment.rows,
                expected=segment.size,
                actual=size,
                **self._place,
            )

    def _has_hash(self, segment: SegmentDocument) -> bool:
        digest = sha256()
        try:
            for start in range(0, segment.size, _RANGE_BYTES):
                length = min(_RANGE_BYTES, segment.size - start)
                digest.update(self._store.get_range(segment.key, start, length))
        except (NotFound, Corrupt):
            return False
        return digest.hexdigest() == segment.sha256

    def _is_needed(self, segment: SegmentDocument) -> bool:
        """Whether a file is still in effect: it may have been joined with others, or retired, meanwhile."""
        made = read_rewrites(self._store, *self._where)
        segments = self._segments() or []
        keys = {file.segment.key for file in in_effect(segments, made) if file.upto > self._retired()}
        return segment.key in keys

    def _retired(self) -> int:
        expired = read_expired(self._store, *self._where)
        return 0 if expired is None else expired.upto
