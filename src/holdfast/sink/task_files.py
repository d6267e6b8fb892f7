"""The segment files of one task: rows in, files on the store out. Nothing refers to them before the batch is committed.

Each file is written to a temporary directory of this machine, row group by row group, and then created on the store
under its ordinary key. Its name holds its hash, and its head a random number of this attempt (as `epoch`), so no two
attempts ever write the same name: what an attempt removes is its own. Files of attempts that died are garbage that no
manifest names.

Memory: a row group, and as much again while it is encoded. Disk: two files, because one is brought to the store while
the next is written.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

import msgspec
import pyarrow as pa

from holdfast import disk
from holdfast.clock import Clock
from holdfast.crypto.cipher import SALT_BYTES
from holdfast.crypto.segment_key import encrypting_key
from holdfast.errors import Corrupt, Unavailable
from holdfast.model.segment import NO_SCHEMA, Segment, SegmentHead
from holdfast.process_lifetime import Threads
from holdfast.root.objects.documents import PartitionEnd, SegmentDocument
from holdfast.root.sink_batches import end_behind
from holdfast.segments.file.file_shape import FileShape
from holdfast.segments.file.segment_writer import SegmentWriter
from holdfast.sink.row_batches import RowBatches
from holdfast.sink.sink_root import SinkRoot
from holdfast.sink.sink_target import SinkTarget
from holdfast.sink.topic_columns import ColumnMapping
from holdfast.store.port import Body, Store, StoreRefused, StoreUnavailable
from holdfast.store.repeated_create import create_repeatedly

_ROWS_MAX = 2**24
"""Records of one file, however small they are."""
_ATTEMPT_BYTES = 7
_ROW_GROUP_ROWS = 2**20

logger = logging.getLogger("holdfast")


class TaskFiles:
    """Writes the rows of one task, once; a context manager, which removes what was written unless it was finished."""

    def __init__(
        self,
        root: SinkRoot,
        target: SinkTarget,
        columns: ColumnMapping,
        partition: int,
        base: PartitionEnd,
        clock: Clock,
        *,
        directory: str | None = None,
    ) -> None:
        """`base` is where the partition ends; `directory` is where temporary files go."""
        self._root, self._target, self._clock = root, target, clock
        self._partition, self._next = partition, base
        self._schema = columns.schema
        self._rows = RowBatches(columns, clock)
        self._shape = FileShape(row_group_rows=_ROW_GROUP_ROWS, compression_level=target.compression_level)
        self._attempt = int.from_bytes(clock.random_bytes(_ATTEMPT_BYTES))
        self._spool = TemporaryDirectory(prefix="holdfast-sink-", dir=directory)
        self._uploads = Threads(1, "holdfast-sink")
        self._uploading: Future[None] | None = None
        self._open: _OpenFile | None = None
        self._done: list[SegmentDocument] = []
        self._is_finished = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._open is not None:
                self._open.writer.abandon()
            self._uploads.shutdown()
            if not self._is_finished:
                remove_files(self._root.store, self._done)
        finally:
            self._spool.cleanup()

    def write(self, batch: pa.RecordBatch) -> None:
        """Take the next rows."""
        start = 0
        while start < batch.num_rows:
            file = self._open or self._begin()
            part = batch.slice(start, _ROWS_MAX - file.rows)
            with _typed(file.path):
                file.writer.write(self._rows.made(part, file.head.first + file.rows))
            file.rows += part.num_rows
            start += part.num_rows
            if file.rows >= _ROWS_MAX or file.writer.size >= self._target.segment_bytes:
                self._end(file)

    def finish(self) -> tuple[SegmentDocument, ...]:
        """All rows are on the store: the segments that hold them, in order."""
        if self._open is not None:
            self._end(self._open)
        self._wait()
        self._is_finished = True
        return tuple(self._done)

    def _begin(self) -> _OpenFile:
        at, log = self._next, bytes.fromhex(self._root.log)
        head = SegmentHead(
            log_id=log,
            topic=self._target.topic,
            partition=self._partition,
            number=at.number,
            first=at.first,
            epoch=self._attempt,
            schema=NO_SCHEMA if self._schema is None else self._schema.fingerprint,
            previous=bytes.fromhex(at.chain),
        )
        key = encrypting_key(self._root.keyring, None, log, self._clock.random_bytes(SALT_BYTES))
        path = Path(self._spool.name) / f"{at.number}.parquet"
        with _typed(path):
            writer = SegmentWriter(path, head, self._rows.schema, self._shape, key)
        self._open = _OpenFile(path, head, writer)
        return self._open

    def _end(self, file: _OpenFile) -> None:
        with _typed(file.path):
            segment = Segment(head=file.head, facts=file.writer.finish())
        self._open = None
        document = SegmentDocument.of(
            segment, slot=self._next.slots, chain=segment.chain, sealed_us=self._clock.now_us()
        )
        self._next = end_behind(document)
        self._wait()
        self._done.append(document)  # before it is there: what may be there is removed if the task fails
        self._uploading = self._uploads.submit(upload, self._root.store, document, file.path)

    def _wait(self) -> None:
        uploading, self._uploading = self._uploading, None
        if uploading is not None:
            uploading.result()


class _OpenFile:
    """A file that is being written."""

    def __init__(self, path: Path, head: SegmentHead, writer: SegmentWriter) -> None:
        self.path, self.head, self.writer = path, head, writer
        self.rows = 0


class _typed:  # noqa: N801 -- a context manager that reads as a word
    """Errors of the disk as ours."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            raise Unavailable(
                f"cannot write a temporary file path={self._path}: {error.strerror}",
                hint=disk.remedy(error, "check the disk of this machine: spark.local.dir or TMPDIR"),
            ) from error


def upload(store: Store, document: SegmentDocument, path: Path) -> None:
    """Bring a file to the store, and remove it here. Its name is its own: what is there under it came from here."""

    def require_whole(key: str) -> None:
        found = store.head(key)
        if found is None or found.size != document.size:
            raise Corrupt("a file is in the place of another one", path=key, topic=document.topic)

    create_repeatedly(
        store, document.key, Body.file(path, document.size, bytes.fromhex(document.sha256)), require_whole
    )
    disk.discard(path)


def remove_files(store: Store, segments: Iterable[SegmentDocument]) -> None:
    """Remove files that no batch names and none will; where that fails, they are garbage for reconciliation."""
    keys = [segment.key for segment in segments]
    try:
        store.delete(keys)
    except (StoreUnavailable, StoreRefused) as failure:
        logger.warning("cannot remove what is not needed: %s", failure.message, extra={"action": "left_over"})


class WrittenTask(msgspec.Struct, frozen=True, kw_only=True):
    """What a task has written: all that the commit needs to know."""

    partition: int
    segments: tuple[SegmentDocument, ...] = ()
