"""The steps of one write: prepared once, written by many tasks on any machine, committed or given up once.

    prepare      before anything is written: opens or makes the root, and refuses what cannot be written
    write_task   in each task: its rows become segments of the partition that has the task's number
    commit       all rows of all tasks become part of the topic, or are part of it already
    give_up      some task has failed: what the others wrote is removed

Each step stands alone, in a process of its own: what the next one needs is in values that can be pickled, and none of
them is secret. A task may run several times at once; what counts are the segments that are handed to `commit`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa

from holdfast.clock import Clock
from holdfast.errors import Invalid
from holdfast.root.objects.documents import SinkBatchDocument
from holdfast.root.sink_batches import PARTITIONS_MAX, end_of, newest_batch
from holdfast.sink.batch_commit import BatchCommit, CommitResult, is_marked
from holdfast.sink.sink_root import SinkRoot, open_or_create_root, open_root
from holdfast.sink.sink_target import BatchMark, SinkTarget
from holdfast.sink.task_files import TaskFiles, WrittenTask, remove_files
from holdfast.sink.topic_columns import ColumnMapping, columns_for
from holdfast.sink.topic_versions import read_topic

_seen: dict[tuple[str, str], SinkBatchDocument] = {}
"""The newest batches that this process has seen, by root and topic: tasks of one executor need not look for them."""
_SEEN_MAX = 16


class WritePlan(NamedTuple):
    """A write that may begin."""

    target: SinkTarget
    """With the id of the log that was found: a task on another machine refuses any other."""
    columns: ColumnMapping


def prepare(target: SinkTarget, given: pa.Schema, clock: Clock) -> WritePlan:
    """Get ready to write rows with these columns; raises Invalid, and has written nothing but a new root then."""
    root = open_or_create_root(target, clock)
    columns = columns_for(given, read_topic(root, target.topic))
    return WritePlan(msgspec.structs.replace(target, log_id=root.log), columns)


def write_task(
    prepared: WritePlan,
    task: int,
    batches: Iterable[pa.RecordBatch],
    mark: BatchMark | None,
    clock: Clock,
    *,
    directory: str | None = None,
) -> WrittenTask:
    """Write the rows of one task; nobody sees them yet. Of a batch that is part of the topic already, nothing is."""
    if task >= PARTITIONS_MAX:
        raise Invalid(
            f"a topic has at most {PARTITIONS_MAX} partitions, one per task task={task}",
            hint="write with fewer tasks: df.coalesce(1000)",
        )
    target, columns = prepared
    root = open_root(target, clock)
    newest = _newest(root, target.topic)
    if is_marked(newest, mark):
        for _ in batches:  # their sender expects that they are taken
            pass
        return WrittenTask(partition=task)
    with TaskFiles(root, target, columns, task, end_of(newest, task), clock, directory=directory) as files:
        for batch in batches:
            files.write(batch)
        return WrittenTask(partition=task, segments=files.finish())


def _newest(root: SinkRoot, topic: str) -> SinkBatchDocument | None:
    place = (root.store.url, topic)
    found = newest_batch(root.store, root.log, topic, _known(place, root.log))
    if found is not None:
        if len(_seen) >= _SEEN_MAX:
            _seen.clear()
        _seen[place] = found
    return found


def _known(place: tuple[str, str], log: str) -> SinkBatchDocument | None:
    known = _seen.get(place)
    return known if known is not None and known.log == log else None


def commit(prepared: WritePlan, tasks: Sequence[WrittenTask], mark: BatchMark | None, clock: Clock) -> CommitResult:
    """Commit what the tasks have written."""
    target, columns = prepared
    return BatchCommit(open_root(target, clock), target, columns.schema, mark, clock).commit(tasks)


def give_up(prepared: WritePlan, tasks: Iterable[WrittenTask], clock: Clock) -> None:
    """Remove what these tasks have written. Only for a batch whose commit was never tried."""
    store = open_root(prepared.target, clock).store
    remove_files(store, [segment for task in tasks for segment in task.segments])
