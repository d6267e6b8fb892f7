"""The commit of a batch: one object, created once, and all rows of all tasks are part of the topic; before it, none.

    look at the newest batch → is this one part of it already? → apply what is left of it
    → topic's document, if it must grow → create `_sink/<next>.json` → apply

The object carries the marks of all writers forever, so a batch that is committed again, by a driver that was restarted
or by one that was thought dead, is recognised. If the number is taken, it was taken by this very commit, whose reply
was lost (same nonce), or by another writer: then everything is checked again, and where the other one has taken offsets
of ours, the files are rewritten (`moved_files`).

Failure: before the object was tried, nothing is part of the topic, and the files of the batch are removed. If the store
does not say whether it was created, that is OutcomeUnknown, and nothing is removed: the same commit can be repeated if
it has a mark. After the object is there, nothing that fails is an error: the next one who comes applies the batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, Invalid, OutcomeUnknown, Unavailable
from holdfast.model.schema import TopicSchema
from holdfast.root.batch_application import apply
from holdfast.root.objects import documents
from holdfast.root.objects.documents import PartitionEnd, SegmentDocument, SinkBatchDocument
from holdfast.root.sink_batches import end_behind, end_of, newest_batch, read_batch
from holdfast.root.store_manifest import in_parallel
from holdfast.sink.moved_files import gone, moved, starts_at
from holdfast.sink.sink_root import SinkRoot
from holdfast.sink.sink_target import BatchMark, SinkTarget
from holdfast.sink.task_files import WrittenTask, remove_files
from holdfast.sink.topic_versions import ensure_topic
from holdfast.store import layout, object_limits
from holdfast.store.port import Body, StoreUnavailable
from holdfast.store.repeated_create import create_repeatedly

_TRIES = 1000
"""Other writers that may be faster, one after the other."""
_NONCE_BYTES = 16
_SIGNATURE_BYTES = 1024
"""More than any signature takes."""

logger = logging.getLogger("holdfast")


class CommitResult(NamedTuple):
    """What a commit came to."""

    batch: SinkBatchDocument | None
    """The newest batch that this one is part of; None where nothing had to be committed."""
    is_new: bool
    """Whether this commit has put it there; otherwise it was there."""


class _NumberTaken(Exception):
    """Another writer has this number."""


def is_marked(batch: SinkBatchDocument | None, mark: BatchMark | None) -> bool:
    """Whether a writer's batch is part of a topic already."""
    return batch is not None and mark is not None and batch.marks.get(mark.writer, -1) >= mark.batch


class BatchCommit:
    """Commits one batch."""

    def __init__(
        self, root: SinkRoot, target: SinkTarget, schema: TopicSchema | None, mark: BatchMark | None, clock: Clock
    ) -> None:
        self._root, self._target, self._schema = root, target, schema
        self._mark, self._clock = mark, clock
        self._nonce = clock.random_bytes(_NONCE_BYTES).hex()
        self._files: list[SegmentDocument] = []
        """All that were written for this batch; some may have been written anew."""
        self._may_be_there = False
        """Whether the object may have been created: then it may name the files."""

    def commit(self, tasks: Sequence[WrittenTask]) -> CommitResult:
        """Make the rows of these tasks part of the topic, once."""
        written = {task.partition: task.segments for task in tasks if task.segments}
        self._files = list(chain.from_iterable(written.values()))
        try:
            done = self._commit(written)
        except BaseException:
            if not self._may_be_there:
                remove_files(self._root.store, self._files)
            raise
        named = {segment.key for segment in done.batch.segments} if done.is_new and done.batch is not None else set()
        remove_files(self._root.store, [file for file in self._files if file.key not in named])
        return done

    def _commit(self, written: dict[int, tuple[SegmentDocument, ...]]) -> CommitResult:
        store, log, topic = self._root.store, self._root.log, self._target.topic
        newest: SinkBatchDocument | None = None
        for _ in range(_TRIES):
            newest = newest_batch(store, log, topic, newest)
            apply(store, newest)
            if is_marked(newest, self._mark):
                return CommitResult(newest, is_new=False)
            ensure_topic(self._root, topic, self._schema, max(written, default=-1) + 1)
            if not written and self._mark is None:
                return CommitResult(None, is_new=False)
            written = self._in_place(written, newest)
            document = self._document(written, newest)
            data = self._encoded(document)
            self._may_be_there = True
            try:
                self._create(document, data)
            except _NumberTaken:  # forever: its number is another's
                self._may_be_there = False
                continue
            self._apply(document)
            return CommitResult(document, is_new=True)
        raise Unavailable(f"others write to this topic all the time topic={topic}", hint="write again later")

    def _in_place(
        self, written: dict[int, tuple[SegmentDocument, ...]], newest: SinkBatchDocument | None
    ) -> dict[int, tuple[SegmentDocument, ...]]:
        """The segments, where the partitions end now."""
        placed = {}
        for partition, segments in sorted(written.items()):
            base = end_of(newest, partition)
            placed[partition] = segments if starts_at(segments, base) else tuple(self._moved(segments, base))
        self._require_there(list(chain.from_iterable(placed.values())))
        return placed

    def _moved(self, segments: Sequence[SegmentDocument], base: PartitionEnd) -> Iterator[SegmentDocument]:
        for document in moved(self._root, self._target, segments, base, self._clock):
            self._files.append(document)
            yield document

    def _require_there(self, segments: Sequence[SegmentDocument]) -> None:
        """The last look before the commit: a cleaning that knows nothing of us may have removed a file."""
        found = in_parallel(lambda segment: self._root.store.head(segment.key), segments) if segments else []
        for segment, there in zip(segments, found, strict=True):
            if there is None or there.size != segment.size:
                raise gone(segment)

    def _document(
        self, written: dict[int, tuple[SegmentDocument, ...]], newest: SinkBatchDocument | None
    ) -> SinkBatchDocument:
        ends = {} if newest is None else dict(newest.ends)
        ends |= {str(partition): end_behind(segments[-1]) for partition, segments in written.items()}
        marks = {} if newest is None else dict(newest.marks)
        writer, batch = self._mark or BatchMark("", -1)
        marks |= {writer: batch} if self._mark else {}
        return SinkBatchDocument(
            log=self._root.log,
            topic=self._target.topic,
            number=0 if newest is None else newest.number + 1,
            writer=writer,
            batch=batch,
            nonce=self._nonce,
            segments=tuple(chain.from_iterable(segments for _, segments in sorted(written.items()))),
            ends=ends,
            marks=marks,
            committed_us=self._clock.now_us(),
        )

    def _encoded(self, document: SinkBatchDocument) -> bytes:
        """The object's bytes. Readers refuse what is too large, so that must never be committed."""
        data = documents.encode(document)
        if len(data) > object_limits.SINK - _SIGNATURE_BYTES:
            raise Invalid(
                f"a batch of too many files, or too many writers of one topic files={len(document.segments)}"
                f" writers={len(document.marks)} bytes={len(data)} max={object_limits.SINK}",
                hint="write with fewer tasks (df.coalesce) or a larger segmentBytes; or to a new topic",
            )
        return data

    def _create(self, document: SinkBatchDocument, data: bytes) -> None:
        store, log, topic = self._root.store, self._root.log, self._target.topic

        def require_own(key: str) -> None:
            if read_batch(store, log, topic, document.number).nonce != document.nonce:
                raise _NumberTaken

        key = layout.sink_key(topic, document.number)
        try:
            create_repeatedly(store, key, Body.of(data), require_own)
        except StoreUnavailable as failure:
            raise OutcomeUnknown(
                f"the store does not say whether the batch is part of the topic topic={topic}: {failure.message}",
                hint="a stream continues by itself when it is restarted; a batch can be written again with the same"
                " txnAppId and txnVersion; without them, read the topic first",
            ) from failure

    def _apply(self, document: SinkBatchDocument) -> None:
        try:
            apply(self._root.store, document)
        except HoldfastError as error:  # the batch is part of the topic: the next one does the rest
            logger.warning("manifest objects are late: %s", error.message, extra={"action": "apply_late"})
