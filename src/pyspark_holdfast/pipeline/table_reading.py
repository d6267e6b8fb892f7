"""Tables of a pipeline as DataFrames: exactly the files of one version, with its columns.

    orders = read_table(spark, "/srv/tables/orders_now", run=17)

Files that a later version has replaced are kept for a while (`keep` of the pipeline), so a version of last week can be
read. Spark reads the files itself where it reaches them; else its tasks fetch them through our store, as they do for
topics. A file that is missing is an error, not fewer rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from holdfast.clock import SystemClock
from holdfast.errors import Corrupt, Invalid, NotFound
from holdfast.reader.settled_reading import root_place, store_settings
from holdfast.store.address import parse_url
from holdfast.store.store_settings import StoreSettings
from holdfast.tables import table_layout
from holdfast.tables.data_file import DataFile
from holdfast.tables.table_log import TableLog
from pyspark_holdfast.error_reports import naming_store
from pyspark_holdfast.parquet_scan import Unscannable, check_reach, plain_relation, rows_of
from pyspark_holdfast.pipeline.stored_frames import stored_frame
from pyspark_holdfast.pipeline.table_place import TablePlace
from pyspark_holdfast.types import is_native, spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_table(
    spark: SparkSession,
    place: str | Path,
    *,
    version: int | None = None,
    run: int | None = None,
    store: Mapping[str, Any] | StoreSettings | None = None,
) -> DataFrame:
    """A table as it is, or as it was: at a version of its Delta log, or after a run.

    `place` is the folder of the table; `store` says how it is reached, as for `holdfast.read`.
    """
    if version is not None and run is not None:
        raise Invalid("version and run both say which rows are meant", hint="give one of them")
    settings = store if isinstance(store, StoreSettings) else store_settings({} if store is None else store)
    table = table_place(place, settings)
    log = TableLog(table.store(), table.name, SystemClock())
    with naming_store(table.url, settings.endpoint):
        snapshot = log.snapshot(log.version_of_run(run) if run is not None else version)
    if snapshot.schema is None:
        raise NotFound(
            f"there is no table here place={place}", hint="its folder holds _delta_log; a first run makes it"
        )
    return files_frame(spark, table, snapshot.files, snapshot.schema)


def table_place(place: str | Path, settings: StoreSettings) -> TablePlace:
    """Where a table lies, taken apart: the place of all tables, and its name."""
    url = tables_url(place)
    parent, _, name = url.rpartition("/")
    if not name or parent.endswith(":/"):
        raise Invalid(f"this is no table's folder place={place}", hint="give <tables>/<name of the table>")
    return TablePlace(parent, settings, name)


def tables_url(place: object) -> str:
    """The place of tables as a URL; a plain directory may be relative."""
    text = root_place(place)
    if text.startswith("s3a://"):  # what Hadoop calls it
        text = "s3://" + text.removeprefix("s3a://")
    if text.startswith("file:") and not text.startswith("file://"):
        text = text.removeprefix("file:")
    return parse_url(text).url


def spark_columns(columns: pa.Schema) -> StructType:
    """The columns of a table as Spark has them."""
    return StructType([StructField(column.name, spark_type(column.type, column.name)) for column in columns])


def files_frame(spark: SparkSession, place: TablePlace, files: Sequence[DataFile], columns: pa.Schema) -> DataFrame:
    """The rows of these files of a table; a column that a file lacks is null there."""
    schema = spark_columns(columns)
    if not files:
        return spark.createDataFrame([], schema)
    address = parse_url(place.store().url)
    try:
        _check_columns(spark, columns)
        check_reach(spark, address)
        sizes = {table_layout.file_key(place.name, file.path): file.size for file in files}
        return rows_of(spark, plain_relation(spark, address, sizes, schema))
    except Unscannable:
        _blame(place, files)
        return stored_frame(spark, place, files, columns)


def _check_columns(spark: SparkSession, columns: pa.Schema) -> None:
    if not all(is_native(column.type) for column in columns):
        raise Unscannable("Spark's own reader would change the values of some columns")
    names = {column.name.lower() for column in columns}
    if len(names) < len(columns) and spark.conf.get("spark.sql.caseSensitive") != "true":
        raise Unscannable("column names differ only in case, and Spark ignores case")


def _blame(place: TablePlace, files: Sequence[DataFile]) -> None:
    """Raise for the first file that is missing or has another size, if that is why Spark cannot read them."""
    store = place.store()
    for file in files:
        key = table_layout.file_key(place.name, file.path)
        there = store.head(key)
        if there is None:
            raise NotFound(
                f"a file of the table is gone table={place.name} file={file.path}",
                hint="this version is older than what the pipeline keeps (keep=…), or the file was removed",
            )
        if there.size != file.size:
            raise Corrupt(
                f"a file of a table has another size than its log says bytes={there.size} said={file.size}", path=key
            )
