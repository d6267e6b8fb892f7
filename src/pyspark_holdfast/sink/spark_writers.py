"""`df.write.format("holdfast")` and `writeStream`: what Spark asks of a sink, answered with the steps of a write.

Spark makes a writer when it plans, pickles it for the tasks, and makes another one, in another process, for each commit
of a stream. So a writer holds what planning found out and nothing else. A task returns its segments in its message;
only messages of attempts that Spark counts reach `commit`, so retried, speculative and forgotten tasks leave garbage
at most. A stream's batch is known by the id of its query, which stands in the checkpoint, and by the number that Spark
gives it: both are found inside the task, and travel in its message.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructField, StructType

from holdfast.clock import SystemClock
from holdfast.errors import Invalid
from holdfast.sink.sink_target import BatchMark, check_mark
from holdfast.sink.task_files import WrittenTask
from holdfast.sink.write_steps import WritePlan, commit, give_up, prepare, write_task
from pyspark_holdfast.error_reports import hush_closed_pipes, in_short
from pyspark_holdfast.sink.write_options import WriteOptions
from pyspark_holdfast.types import spark_type
from pyspark_holdfast.versions.arrow_schema import arrow_type
from pyspark_holdfast.versions.stream_arrow_writer import StreamArrowWriter

_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties of a task of a stream."""

_clock = SystemClock()


@dataclass
class TaskCommitMessage(WriterCommitMessage):
    """What one task has written."""

    task: bytes
    mark: BatchMark | None

    @property
    def value(self) -> WrittenTask:
        """The same, decoded."""
        return msgspec.json.decode(self.task, type=WrittenTask)


Messages = Sequence[WriterCommitMessage | None]


class _Writing:
    """What batches and streams have in common."""

    def __init__(self, prepared: WritePlan) -> None:
        self._prepared = prepared

    def _where(self) -> tuple[str, str]:
        target = self._prepared.target
        return target.place, target.store.endpoint

    def _write(
        self, batches: Iterator[pa.RecordBatch], context: TaskContext, mark: BatchMark | None
    ) -> TaskCommitMessage:
        hush_closed_pipes()
        task = context.partitionId()
        done = write_task(self._prepared, task, batches, mark, _clock, directory=_spool())
        return TaskCommitMessage(msgspec.json.encode(done), mark)

    def _commit(self, messages: Messages, mark: BatchMark | None) -> None:
        commit(self._prepared, [message.value for message in _ours(messages)], mark, _clock)

    def _give_up(self, messages: Messages) -> None:
        """Some task has failed. If none has, the commit did, and has removed what it could tell to be garbage."""
        if any(message is None for message in messages):
            give_up(self._prepared, [message.value for message in _ours(messages)], _clock)


def _ours(messages: Messages) -> list[TaskCommitMessage]:
    return [message for message in messages if isinstance(message, TaskCommitMessage)]


def _spool() -> str | None:
    """Where Spark keeps temporary files on this machine; None for the system's own place."""
    directory = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    return directory if directory and os.access(directory, os.W_OK) else None


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "rows are written in tasks"
    return context


class BatchWriter(_Writing, DataSourceArrowWriter):
    """One `df.write`."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        super().__init__(prepare(options.target, topic_schema(schema), _clock))
        self._mark = options.mark

    @in_short
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommitMessage:
        """In a task: its rows, on the store."""
        return self._write(iterator, _context(), self._mark)

    @in_short
    def commit(self, messages: Messages) -> None:
        """On the driver: all rows are part of the topic."""
        self._commit(messages, self._mark)

    @in_short
    def abort(self, messages: Messages) -> None:
        """On the driver: nothing is."""
        self._give_up(messages)


class StreamWriter(_Writing, StreamArrowWriter):
    """One batch of a `writeStream`."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        super().__init__(prepare(options.target, topic_schema(schema), _clock))

    @in_short
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommitMessage:
        """In a task: its rows, on the store, and which batch of which query they are."""
        context = _context()
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if not query or not batch:
            raise Invalid(
                "Spark does not say which query and which batch this is, so it could not be recognised when it is"
                " written again",
                hint="use this version of Spark's own streams; or foreachBatch, and write with txnAppId and txnVersion",
            )
        return self._write(iterator, context, check_mark(query, int(batch)))

    @in_short
    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        """On the driver: all rows of a batch are part of the topic; again and again the same."""
        marks = {message.mark for message in _ours(messages)}
        if len(marks) > 1 or any(mark is None or mark.batch != batchId for mark in marks):
            raise Invalid(
                f"tasks of several batches came together batch={batchId}",
                hint="start the query again; nothing was written",
            )
        # A batch without tasks has no rows, and nothing to recognise.
        self._commit(messages, next(iter(marks), None))

    @in_short
    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        """On the driver: nothing is."""
        self._give_up(messages)


def topic_schema(schema: StructType) -> pa.Schema:
    """A DataFrame's columns in Arrow's types; a column that would come back as another type is refused by name."""
    return pa.schema([pa.field(field.name, _arrow_type(field)) for field in schema])


def _arrow_type(field: StructField) -> pa.DataType:
    try:
        kind = arrow_type(field.dataType)
        back = spark_type(kind, field.name)
    except (PySparkException, Invalid):
        back = None
    if back is None or back.simpleString() != field.dataType.simpleString():
        raise Invalid(
            f"a topic has no type for this column column={field.name!r} type={field.dataType.simpleString()[:200]}",
            hint="cast it to a type that every reader supports, such as string, bigint or binary",
        )
    return kind
