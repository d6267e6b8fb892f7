"""A batch read: planned on the driver from manifests, read in the executors task by task.

The reader is pickled and sent to the executors, so it holds options and a schema, and nothing that is open. Executors
look keys and credentials up by reference.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from holdfast.crypto.keyring import Keyring
from holdfast.reader.offsets import ReadMarks
from holdfast.reader.open_root import SettledRoot, root_store
from holdfast.reader.piece_rows import TaskReader, no_key
from holdfast.reader.read_columns import Column, RowShaper, choose, sources_of, width_of
from holdfast.reader.read_options import ReadOptions
from holdfast.reader.read_plan import Piece, Task, TimeBounds, tasks_of
from holdfast.reader.resolve import OffsetSpan, bounds_of, check_schemas, pieces, resolve, shape_of
from holdfast.root.objects.documents import TopicDocument
from holdfast.root.root_contents import versions
from pyspark_holdfast.emitted_rows import manifest_rows, manifest_tasks, segment_rows
from pyspark_holdfast.error_reports import each_in_short, hush_closed_pipes, in_short
from pyspark_holdfast.versions.arrow_schema import arrow_schema
from pyspark_holdfast.versions.columnless_rows import check_columns

if TYPE_CHECKING:
    from holdfast.reader.tail_rows import TailTask

_NO_SPLIT = 2**62


class PlannedBatch(NamedTuple):
    """A batch read that was planned and not cut into tasks."""

    root: SettledRoot
    topics: Sequence[TopicDocument]
    columns: Sequence[Column]
    found: Sequence[Piece]
    bounds: TimeBounds
    options: ReadOptions


class RowReading:
    """How tasks are planned on the driver and read in the executors; shared by batch and stream.

    `is_inferred` says that the schema is ours, whole; any other one was chosen by the user, column by column.
    """

    def __init__(self, place: str, options: ReadOptions, schema: StructType, *, is_inferred: bool) -> None:
        check_columns(schema)
        self._place = place
        self._schema = schema
        is_chosen = options.columns is not None or not is_inferred
        # The schema already says which columns are read.
        self._options = msgspec.structs.replace(
            options,
            columns=None,
            schema_mode="known" if is_chosen and options.schema_mode == "latest" else options.schema_mode,
        )
        self._bounds = bounds_of(options)

    def _where(self) -> tuple[str, str]:
        return self._place, self._options.store.endpoint

    def _check_keys(self, found: Sequence[Piece]) -> None:
        """Refuse encrypted topics without a key here, once, and not in every task."""
        encrypted = {piece.facts.key_id: piece.head.topic for piece in found if piece.facts.key_id}
        if not encrypted or self._options.encrypted == "sealed" or self._options.emit == "segments":
            return
        if not self._needs_files(is_raw=not any(found[0].head.schema)):
            return
        keyring = Keyring.from_reference(self._options.keyring) if self._options.keyring else None
        for key_id, topic in encrypted.items():
            if keyring is None:
                raise no_key(topic, key_id)
            keyring.key(key_id)

    def _needs_files(self, *, is_raw: bool) -> bool:
        sources = sources_of(self._schema.fieldNames(), is_raw=is_raw)
        shaping = RowShaper(sources, arrow_schema(self._schema), is_raw=is_raw)
        return shaping.needs_file or self._bounds != TimeBounds() or self._options.verify == "full"

    def _check_columns(
        self, topics: Sequence[TopicDocument], found: Sequence[Piece], tail: Iterable[tuple[str, bytes]] = ()
    ) -> None:
        """Refuse columns that the topics do not have; they may have gained others since."""
        if self._options.emit == "segments":
            return
        shape = shape_of(topics, self._options)
        names = self._schema.fieldNames()
        choose(shape.columns, names)
        there = set(names)
        known = {v.fingerprint for topic in topics for v in versions(topic) if v.names <= there}
        check_schemas(found, shape._replace(schemas=frozenset(known)), self._options, tail)

    def _partitions(self, root: SettledRoot, found: Sequence[Piece]) -> list[InputPartition]:
        options = self._options
        # A read that proves or names whole segments takes each of them once.
        is_whole = options.verify == "full" or options.emit == "segments"
        tasks = tasks_of(
            found,
            _NO_SPLIT if is_whole else options.split_bytes,
            options.min_partitions,
            # The cores of this machine. A larger cluster has more than a few full tasks to do anyway.
            cores=len(os.sched_getaffinity(0)),
            width=self._width(found),
        )
        return [InputPartition(task.encode()) for task in tasks]

    def _manifests(self, root: SettledRoot, spans: Sequence[OffsetSpan]) -> list[InputPartition]:
        return [InputPartition(task) for task in manifest_tasks(root, spans)]

    def _width(self, found: Sequence[Piece]) -> int | None:
        if not found or self._options.encrypted == "sealed" or self._options.emit == "segments":
            return None
        if any(piece.facts.key_id for piece in found):
            return None  # blocks are decrypted whole
        is_raw = not any(found[0].head.schema)
        sources = sources_of(self._schema.fieldNames(), is_raw=is_raw)
        return width_of(sources, arrow_schema(self._schema), is_raw=is_raw)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        hush_closed_pipes()
        return each_in_short(self, self._rows(getattr(partition, "value", None)))

    def _rows(self, data: object) -> Iterator[pa.RecordBatch]:
        """The rows of a task, in exactly the schema that Spark expects."""
        if not isinstance(data, bytes):  # Spark makes a task of its own where there are none, with None in it or as it
            return
        if self._options.include_tail and (tail := _tail_task(data)) is not None:
            yield from self._tail_rows(tail)
            return
        target = arrow_schema(self._schema)
        if self._options.emit == "manifest":
            yield from manifest_rows(data, target)
            return
        task = Task.decode(data)
        if self._options.emit == "segments":
            yield segment_rows(task.pieces, target)
            return
        # Spark pickles this object before it asks for tasks, so everything that planning found out must be in the task.
        is_raw, is_encrypted = not any(task.pieces[0].head.schema), self._options.encrypted == "sealed"
        sources = sources_of(self._schema.fieldNames(), is_raw=is_raw, is_encrypted=is_encrypted)
        shaping = RowShaper(sources, target, is_raw=is_raw)
        store = root_store(self._place, self._options)
        yield from TaskReader(store, self._options, shaping, self._bounds).read(task)

    def _tail_rows(self, task: TailTask) -> Iterator[pa.RecordBatch]:
        from holdfast.reader.tail_rows import TailReader

        sources = sources_of(self._schema.fieldNames(), is_raw=task.is_raw)
        shaping = RowShaper(sources, arrow_schema(self._schema), is_raw=task.is_raw)
        root = SettledRoot.open(self._place, self._options)
        return TailReader(root, self._options, shaping, self._bounds).read(task)


def _tail_task(data: bytes) -> TailTask | None:
    from holdfast.reader.tail_rows import TailTask

    return TailTask.decode(data)


class BatchReader(RowReading, DataSourceReader):
    """Plans and reads one batch: everything that `load` saw (`pins`), for every query.

    Spark plans a relation once and reuses the plan for everything built on it: every action, both sides of a
    self-join, a view. So the plan must not depend on what one query asks for. Above all there is no `pushFilters`:
    rows that one query filters out would be missing from all the others.
    """

    def __init__(
        self, place: str, options: ReadOptions, schema: StructType, pins: ReadMarks | None, *, is_inferred: bool
    ) -> None:
        super().__init__(place, options, schema, is_inferred=is_inferred)
        self._pins = pins

    @in_short
    def partitions(self) -> list[InputPartition]:
        """The tasks of this read. If nothing has been seen yet, of what is settled now."""
        root = SettledRoot.open(self._place, self._options)
        if self._options.include_tail:
            return self._with_tail(root)
        if self._options.emit == "manifest":
            return self._manifests(root, resolve(root, self._options, self._pins).spans)
        return self._partitions(root, self._planned(root)[1])

    def plan(self) -> PlannedBatch:
        """The segments of this read, as tasks would have them: the same spans, the same refusals."""
        root = SettledRoot.open(self._place, self._options)
        topics, found = self._planned(root)
        columns = choose(shape_of(topics, self._options).columns, self._schema.fieldNames())
        return PlannedBatch(root, topics, columns, found, self._bounds, self._options)

    def _planned(self, root: SettledRoot) -> tuple[Sequence[TopicDocument], list[Piece]]:
        resolved = resolve(root, self._options, self._pins)
        found = pieces(root, resolved.spans, self._options, self._bounds)
        self._check_keys(found)
        self._check_columns(resolved.topics, found)
        return resolved.topics, found

    def _with_tail(self, root: SettledRoot) -> list[InputPartition]:
        """The same, plus a task for what the store has only in commit batches.

        The DataFrame's marks are no limit here: everything up to the end of the tail is read. What was settled after
        the marks were taken is read in tasks of its own, which is cheaper than reading it from the tail.
        """
        from holdfast.reader.tail_rows import TailTask, plan_tail

        resolved = resolve(root, self._options)
        found = pieces(root, resolved.spans, self._options, self._bounds)
        tail = plan_tail(root, resolved, self._options)
        self._check_keys(found)
        self._check_columns(resolved.topics, found, tail.schemas)
        partitions = self._partitions(root, found)
        if tail.spans:
            is_raw = not versions(resolved.topics[0])
            partitions.append(InputPartition(TailTask(bytes.fromhex(root.log), is_raw, tail.spans).encode()))
        return partitions
