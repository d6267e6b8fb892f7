"""The inputs of a table in one run: how far it has read them, what it takes now, and how far it has read them then.

Three values decide everything: the position that the newest commit of the table holds, what its inputs have now, and
which rows lie between. A position names the log or the table that it belongs to; another one under the same name is
refused, because its offsets and runs mean other rows.

Rows of an append table carry the number of the run that first wrote them. New to a reader is what later runs wrote than
the last one that it has read. So rows that a backfill has put in the place of others are not read a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.clock import Clock
from holdfast.errors import Invalid
from holdfast.store.port import Store
from holdfast.store.store_settings import StoreSettings
from holdfast.suggestions import meant
from holdfast.tables.data_file import DataFile
from holdfast.tables.table_log import TableLog, TableSnapshot
from holdfast.tables.table_run import Position
from pyspark_holdfast.pipeline.run_report import InputReport
from pyspark_holdfast.pipeline.table_order import TableSource
from pyspark_holdfast.pipeline.table_place import TablePlace
from pyspark_holdfast.pipeline.topic_input import RootTopics, Spans

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Frame = Callable[["SparkSession"], "DataFrame"]
JOINED = "holdfast.joined_runs"
"""In the configuration of an append table: up to this run, rows may carry the number of a later run than their own."""


class NotYet(Exception):
    """There is nothing of an input yet; the message says what is waited for."""


@dataclass(frozen=True)
class InputSlice:
    """What a run takes of one input."""

    source: TableSource
    before: Position | None
    """How far it was read; None: not at all."""
    after: Position
    rows: int
    frame: Frame
    spans: Spans
    """Of a topic: the offsets that are read."""

    @property
    def is_new(self) -> bool:
        """Whether there are rows that were not read; of a whole input, whether it is another one than before."""
        if self.source.is_whole and self.before is not None:
            return (self.before.marks, self.before.version) != (self.after.marks, self.after.version)
        return self.rows > 0


class PipelineTables:
    """The tables of a pipeline, as they are in one run: each is looked at once, and what a run commits is known."""

    def __init__(self, url: str, settings: StoreSettings, store: Store, clock: Clock) -> None:
        self.url, self.store = url, store
        self._settings, self._clock = settings, clock
        self._logs: dict[str, TableLog] = {}
        self._seen: dict[str, TableSnapshot] = {}

    def log(self, name: str) -> TableLog:
        """The Delta log of a table."""
        if name not in self._logs:
            self._logs[name] = TableLog(self.store, name, self._clock)
        return self._logs[name]

    def place(self, name: str) -> TablePlace:
        """Where a table is, as executors must know it."""
        return TablePlace(self.url, self._settings, name)

    def snapshot(self, name: str) -> TableSnapshot:
        """A table as this run knows it."""
        return self._seen[name] if name in self._seen else self.look(name)

    def look(self, name: str) -> TableSnapshot:
        """A table as it is now."""
        return self.know(name, self.log(name).snapshot())

    def know(self, name: str, snapshot: TableSnapshot) -> TableSnapshot:
        """A table is known to be so."""
        self._seen[name] = snapshot
        return snapshot

    def look_again(self) -> None:
        """Forget what is known."""
        self._seen.clear()

    def frame(self, name: str, files: Sequence[DataFile]) -> Frame:
        """Rows of some files, with the columns that the table has now."""
        from pyspark_holdfast.pipeline.table_reading import files_frame

        columns = self.snapshot(name).schema
        assert columns is not None
        return lambda spark: files_frame(spark, self.place(name), files, columns)


class Inputs:
    """Takes what is new, or all, of topics and tables."""

    def __init__(self, topics: RootTopics, tables: PipelineTables) -> None:
        self.topics, self.tables = topics, tables

    def take(self, source: TableSource, before: Position | None) -> InputSlice:
        """What a table reads of an input that it has read so far; raises NotYet."""
        return self._of_topic(source, before) if source.kind == "topic" else self._of_table(source, before)

    # -- topics -------------------------------------------------------------------------------------------

    def _of_topic(self, source: TableSource, before: Position | None) -> InputSlice:
        name, topics = source.name, self.topics
        if before is None and topics.is_empty():
            raise NotYet(f"waiting for topic {name!r}: nothing is settled at the root yet root={topics.place}")
        if before is None and not topics.is_there(name):
            known = [*topics.names(), *self.tables_known]
            raise NotYet(f"waiting for topic {name!r}: it is not at the root yet{meant(name, known)}")
        _require(source, before, topics.root.log)
        read = None if before is None else {int(part): mark for part, mark in before.marks.items()}
        spans = topics.all_of(name, read) if source.is_whole else topics.new(name, read)
        return self.of_spans(source, before, spans)

    tables_known: Sequence[str] = ()
    """Names of the pipeline's tables, for suggestions."""

    def of_spans(self, source: TableSource, before: Position | None, spans: Spans) -> InputSlice:
        """Some offsets of a topic."""
        marks = {str(part): end for part, (_, end) in sorted(spans.items())}
        begins = {str(part): begin for part, (begin, _) in sorted(spans.items())}
        begins |= before.begins if before is not None and not source.is_whole else {}
        return InputSlice(
            source,
            before,
            Position(source=self.topics.root.log, marks=marks, begins=begins),
            sum(end - begin for begin, end in spans.values()),
            lambda spark: self.topics.frame(spark, source.name, source.options, spans),
            spans,
        )

    # -- tables -------------------------------------------------------------------------------------------

    def _of_table(self, source: TableSource, before: Position | None) -> InputSlice:
        snapshot = self.tables.snapshot(source.name)
        if snapshot.schema is None or snapshot.run is None:
            if before is not None:
                raise Invalid(
                    f"a table that was read is gone input={source.name}",
                    hint="put it back, or rebuild the tables that read it, under other names",
                )
            raise NotYet(f"waiting for table {source.name!r}: it has no rows yet")
        _require(source, before, snapshot.table_id)
        since = 0 if before is None or source.is_whole else before.run
        _require_apart(source, since, snapshot)
        return self.of_runs(source, before, since, snapshot.run.run)

    def of_runs(self, source: TableSource, before: Position | None, since: int, upto: int) -> InputSlice:
        """Rows that runs of a table have written: later ones than `since`, up to one."""
        snapshot = self.tables.snapshot(source.name)
        files = [file for file in snapshot.files if source.is_whole or since < file.run <= upto]
        return InputSlice(
            source,
            before,
            Position(source=snapshot.table_id, version=snapshot.version, run=upto),
            sum(file.rows for file in files),
            self.tables.frame(source.name, files),
            {},
        )

    def require_same(self, source: TableSource, read: Position | None) -> None:
        """Refuse another log or table than the one that was read."""
        is_topic = source.kind == "topic"
        _require(source, read, self.topics.root.log if is_topic else self.tables.snapshot(source.name).table_id)

    # -- reports ------------------------------------------------------------------------------------------

    def report(self, taken: InputSlice) -> InputReport:
        """What was read, in numbers, and how much more there is now."""
        source, before, after = taken.source, taken.before, taken.after
        if source.kind == "table":
            now = self.tables.snapshot(source.name)
            return InputReport(
                name=source.name,
                kind="table",
                place=f"{self.tables.url}/{source.name}",
                source=after.source,
                begin={"version": -1 if before is None else before.version},
                end={"version": after.version},
                rows=taken.rows,
                lag=max(0, now.version - after.version),
                is_whole=source.is_whole,
                columns=columns_of(now.schema),
            )
        begin = {str(part): first for part, (first, _) in sorted(taken.spans.items())}
        return InputReport(
            name=source.name,
            kind="topic",
            place=self.topics.root.store.url,
            source=after.source,
            begin=begin,
            end=dict(after.marks),
            rows=taken.rows,
            lag=lag_of(after.marks, self.topics.settled(source.name)),
            is_whole=source.is_whole,
            columns=self.topics.columns(source.name, source.options),
        )


def columns_of(schema: pa.Schema | None) -> dict[str, str]:
    """The columns of a table with their types, as Spark says them."""
    from pyspark_holdfast.pipeline.table_reading import spark_columns

    return {} if schema is None else {field.name: field.dataType.simpleString() for field in spark_columns(schema)}


def lag_of(read: Mapping[str, int], settled: Mapping[int, int]) -> int:
    """How many records are settled and were not read.

    >>> lag_of({"0": 5}, {0: 7, 1: 3})
    5
    """
    return sum(max(0, end - read.get(str(part), 0)) for part, end in settled.items())


def joined_upto(snapshot: TableSnapshot) -> int:
    """Up to which run rows of a table may carry the number of a later run than their own; 0: none do."""
    recorded = snapshot.configuration.get(JOINED, "")
    return int(recorded) if recorded.isascii() and recorded.isdigit() and len(recorded) < 16 else 0


def _require_apart(source: TableSource, since: int, snapshot: TableSnapshot) -> None:
    """Refuse to continue within runs whose rows are no longer distinguished."""
    joined = joined_upto(snapshot)
    if 0 < since < joined:
        raise Invalid(
            f"a backfill has joined runs of which some were read input={source.name} read={since} joined={joined}",
            hint="rebuild the table: give it another name, or remove its folder, and run again",
        )


def _require(source: TableSource, before: Position | None, found: str) -> None:
    """Refuse another log or table than the one that was read."""
    if before is not None and before.source != found:
        raise Invalid(
            f"{source.kind} {source.name!r} belongs to another {'log' if source.kind == 'topic' else 'table'} than the"
            f" one that was read id={found} read={before.source}",
            hint="point the pipeline at the place that it read before, or at a new place for its tables",
        )
