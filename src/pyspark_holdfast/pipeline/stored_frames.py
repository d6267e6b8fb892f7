"""Rows that a table has, as frames: read by tasks through our own store, for where a table is partitioned again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from holdfast.tables.data_file import DataFile, read_file
from pyspark_holdfast.error_reports import each_in_short, hush_closed_pipes
from pyspark_holdfast.pipeline.bucket_tasks import read_path
from pyspark_holdfast.pipeline.table_place import TablePlace
from pyspark_holdfast.types import spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def stored_frame(spark: SparkSession, place: TablePlace, files: Sequence[DataFile], columns: pa.Schema) -> DataFrame:
    """The rows of these files, one task for each."""
    return _frame(spark, _FileTask(place, tuple(files), columns), len(files), columns)


def tombstone_frame(spark: SparkSession, place: TablePlace, paths: Sequence[str], columns: pa.Schema) -> DataFrame:
    """The deleted keys of these files."""
    return _frame(spark, _FileTask(place, tuple(paths), columns), len(paths), columns)


def _frame(spark: SparkSession, task: _FileTask, count: int, columns: pa.Schema) -> DataFrame:
    schema = StructType([StructField(column.name, spark_type(column.type, column.name)) for column in columns])
    return spark.range(0, count, 1, max(count, 1)).mapInArrow(task.run, schema)


@dataclass(frozen=True)
class _FileTask:
    place: TablePlace
    files: tuple[DataFile | str, ...]
    columns: pa.Schema

    def run(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Called by Spark, with places in `files`."""
        hush_closed_pipes()
        return each_in_short(self.place, self._rows(numbers))

    def _rows(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store, table = self.place.store(), self.place.name
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                file = self.files[number]
                if isinstance(file, str):
                    yield from read_path(store, table, file, self.columns)
                else:
                    yield from read_file(store, table, file, self.columns)
