"""The fast path: what is settled, read by Spark's own vectorised Parquet reader.

    orders = pyspark_holdfast.read(spark, "/srv/log", "orders", columns=["offset", "value"])

Manifests and options are read on the driver, as for the format: the same topics, marks, spans of offsets and refusals.
Then Spark reads the remaining files itself, and prunes columns and row groups as it does for any table. Columns, types
and rows are those of the format.

Spark's reader proves nothing. Before the first row we check that all files are there and have the right size, but not
what is in them. With `verify`, or where something must be decrypted, the DataFrame goes through the format instead.
`path_of` says which way was taken and why, and so does a line in the log. Spark itself cuts the work into tasks here
(`spark.sql.files.maxPartitionBytes`); `minPartitions` and `splitBytes` are for the format.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from holdfast.errors import Corrupt, Invalid
from holdfast.model.arrow import arrow_types
from holdfast.reader.open_root import SettledRoot
from holdfast.reader.piece_rows import missing
from holdfast.reader.read_columns import PARTITION, TOPIC, Column
from holdfast.reader.read_options import ReadOptions, parse_options
from holdfast.reader.read_plan import Piece, TimeBounds
from holdfast.reader.resolve import bounds_of, check_schemas, pieces, resolve, shape_of
from holdfast.root.objects.documents import TopicDocument
from holdfast.store.address import parse_url
from pyspark_holdfast.error_reports import naming_store
from pyspark_holdfast.parquet_scan import Unscannable, check_reach, folders_of, relation_of, rows_of
from pyspark_holdfast.read_marks import carried, carrying, with_marks
from pyspark_holdfast.types import is_native, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("holdfast")

_PATH = "holdfast.path"
# No column of a file has this name: users' columns cannot begin with an underscore.
_FOLDERS = {"_topic": StringType(), "_partition": IntegerType(), "_start": LongType(), "_end": LongType()}
_NAMES = {TOPIC: "_topic", PARTITION: "_partition"}


class PathTaken(NamedTuple):
    """How a DataFrame reads its rows."""

    path: Literal["native", "format"]
    """Spark's own Parquet reader, or the format `holdfast`."""
    reason: str
    """Why."""


NATIVE = PathTaken("native", "nothing has to be opened or proved, and Spark reaches the files")


def read(
    spark: SparkSession,
    root: str | Path,
    topic: str | Sequence[str] = "",
    *,
    columns: str | Sequence[str] | None = None,
    **options: str | int | bool,
) -> DataFrame:
    """Read the settled part of one or more topics: natively where possible, else through the format.

    Options are those of the format: read(spark, root, "orders", startingOffsets='{"orders":{"0":1200}}'). Without
    `verify`, the native path checks sizes, and the format compares hashes.
    """
    given = given_options(root, topic, columns, options)
    place, asked = parse_options(given)
    reason = reason_of_options(given, asked)
    if reason is not None:
        return through_format(spark, given, reason)
    with naming_store(place, asked.store.endpoint):
        opened = SettledRoot.open(place, asked)
        resolved = resolve(opened, asked)
        shape, bounds = resolved.shape, bounds_of(asked)
        found = pieces(opened, resolved.spans, asked, bounds)
    check_schemas(found, shape, asked)
    try:
        check_columns(spark, shape.columns, all_columns(resolved.topics, asked))
        schema = with_marks(spark_schema(shape.columns), resolved.marks)
        frame = native_frame(spark, opened, found, shape.columns, bounds, schema)
    except Unscannable as error:
        return through_format(spark, given, str(error))
    tell(NATIVE)
    return frame


def labelled_path(schema: StructType) -> PathTaken | None:
    """How rows are read, as far as a schema says it."""
    text = carried(schema, _PATH)
    return None if text is None else PathTaken(*json.loads(text))


# -- options ----------------------------------------------------------------------------------------------


def given_options(
    root: str | Path,
    topic: str | Sequence[str],
    columns: str | Sequence[str] | None,
    options: Mapping[str, str | int | bool],
) -> dict[str, str]:
    """The caller's options as text, which is what the format takes."""
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    given["path"] = str(root)
    if topic:
        given["topic"] = topic if isinstance(topic, str) else ",".join(topic)
    if columns is not None:
        given["columns"] = columns if isinstance(columns, str) else _joined(columns)
    return given


def _joined(columns: Sequence[str]) -> str:
    for name in columns:
        if "," in name or name != name.strip():
            raise Invalid(
                f"a column of this name cannot be requested column={name!r}",
                hint="leave columns out, and select from the DataFrame",
            )
    return ",".join(columns)


def reason_of_options(given: Mapping[str, str], asked: ReadOptions) -> str | None:
    """Why these options need the format, or None."""
    if asked.emit != "rows":
        raise Invalid("emit is for the format: here rows are read", hint="leave emit out")
    return reason_of_rows(given, asked)


def reason_of_rows(given: Mapping[str, str], asked: ReadOptions) -> str | None:
    """The same, where rows are asked for."""
    if not asked.native:
        return "native=false is set"
    # Without the option nothing is verified: the native path checks sizes only, and says so.
    if asked.verify != "off" and "verify" in {name.lower() for name in given}:
        return f"verify={asked.verify} is set, and Spark's own reader proves nothing"
    if asked.include_tail:
        return "includeTail is set, and the tail is not in segments"
    return "encrypted blocks are requested" if asked.encrypted == "sealed" else None


# -- what Spark's own reader can do -----------------------------------------------------------------------


def all_columns(topics: Sequence[TopicDocument], asked: ReadOptions) -> tuple[Column, ...]:
    """All columns of the topics, not only the requested ones."""
    return shape_of(topics, msgspec.structs.replace(asked, columns=None)).columns


def check_columns(spark: SparkSession, columns: Sequence[Column], there: Sequence[Column]) -> None:
    """Unscannable if Spark would change values of these columns, or mistake one column for another."""
    others = [column.name for column in columns if not is_native(column.kind)]
    if others:
        raise Unscannable(f"Spark's own reader would change the values of some columns columns={others[:10]}")
    if spark.conf.get("spark.sql.caseSensitive") == "true":
        return
    names = Counter(column.name.lower() for column in there)
    alike = [column.name for column in columns if names[column.name.lower()] > 1 or _has_alike(column.kind)]
    if alike:
        raise Unscannable(f"column names differ only in case, and Spark ignores case columns={alike[:10]}")


def _has_alike(kind: pa.DataType) -> bool:
    inner = arrow_types.inner(kind)
    names = {child.name.lower() for child in inner} if pa.types.is_struct(kind) else inner
    return len(names) < len(inner) or any(_has_alike(child.type) for child in inner)


def check_open(found: Iterable[Piece]) -> None:
    """Unscannable if something must be decrypted."""
    encrypted = sorted({piece.head.topic for piece in found if piece.facts.key_id})
    if encrypted:
        raise Unscannable(f"records are encrypted topics={','.join(encrypted[:10])}")


# -- frames -----------------------------------------------------------------------------------------------


class Scan(NamedTuple):
    """Rows that Spark reads by itself."""

    relation: Any
    """Files, and constants of their folders, as the JVM has them."""
    where: str
    """Which of their rows, in SQL; all, if it is empty."""
    names: list[str]
    """What the columns are called there."""


def native_frame(
    spark: SparkSession,
    root: SettledRoot,
    found: Sequence[Piece],
    columns: Sequence[Column],
    bounds: TimeBounds,
    schema: StructType,
) -> DataFrame:
    """The rows of these pieces in this schema, read by Spark itself, or Unscannable."""
    scan = native_scan(spark, root, found, columns, bounds, with_path(schema, NATIVE))
    rows = rows_of(spark, scan.relation)
    wanted = rows.where(scan.where) if scan.where else rows
    names = zip(scan.names, columns, strict=True)
    # Not as SQL: there a session may take a name for a regular expression, or `${…}` in it for a variable.
    return wanted.select(*(f.col(_quoted(name)).alias(column.name) for name, column in names))


def native_scan(
    spark: SparkSession,
    root: SettledRoot,
    found: Sequence[Piece],
    columns: Sequence[Column],
    bounds: TimeBounds,
    schema: StructType,
) -> Scan:
    """The options for Spark to read these pieces by itself, or Unscannable."""
    check_open(found)
    address = parse_url(root.store.url)
    check_reach(spark, address)
    offset, time = ("_offset", "_time") if found and any(found[0].head.schema) else ("offset", "time")
    # For filters; Spark does not read them otherwise.
    needed: dict[str, DataType] = {offset: LongType(), time: TimestampType()} if found else {}
    try:
        relation = relation_of(spark, address, found, *_scanned(columns, schema, needed))
    except Unscannable:
        _blame(root, found)
        raise
    conditions = [*_within(found, _quoted(offset)), *_between(found, bounds, _quoted(time))]
    return Scan(relation, " AND ".join(conditions), [_name(column) for column in columns])


def _scanned(
    columns: Sequence[Column], schema: StructType, needed: Mapping[str, DataType]
) -> tuple[StructType, StructType]:
    """Columns that are constant per folder, and columns that are read from files."""
    fields = {name: StructField(name, kind) for name, kind in (_FOLDERS | dict(needed)).items()}
    for column, field in zip(columns, schema, strict=True):
        # Metadata stays with the column when it is renamed.
        fields[_name(column)] = StructField(_name(column), field.dataType, metadata=field.metadata)
    return StructType([fields.pop(name) for name in _FOLDERS]), StructType(list(fields.values()))


def _name(column: Column) -> str:
    """The name of a column in a scan."""
    return _NAMES.get(column.source, column.source)


def _within(found: Sequence[Piece], offset: str) -> Iterator[str]:
    """The condition on offsets, where only part of a segment is wanted."""
    if all(piece.is_whole for piece in found):
        return
    folders = folders_of(found).values()
    # Bounds that hold for all pieces are pushed down to row groups …
    yield f"{offset} >= {min(folder.start for folder in folders)}"
    yield f"{offset} < {max(folder.end for folder in folders)}"
    if len(folders) > 1:  # … and those that differ are constants of each folder.
        yield f"{offset} >= _start AND {offset} < _end"


def _between(found: Sequence[Piece], bounds: TimeBounds, time: str) -> Iterator[str]:
    if found and bounds.since is not None:
        yield f"{time} >= timestamp_micros({bounds.since}L)"
    if found and bounds.until is not None:
        yield f"{time} <= timestamp_micros({bounds.until}L)"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _blame(root: SettledRoot, found: Iterable[Piece]) -> None:
    """Raise for the first segment that is missing on the store or has the wrong size."""
    for piece in found:
        there = root.store.head(piece.key)
        if there is None:
            raise missing(root.store, piece)
        if there.size != piece.facts.size:
            raise Corrupt(
                f"a segment does not have the size that the manifest says bytes={there.size} said={piece.facts.size}",
                path=piece.key,
                topic=piece.head.topic,
                partition=piece.head.partition,
                offset=piece.head.first,
                hint="`holdfast reconcile DIR --remote --fix` brings it back from the log that wrote it",
            )


def through_format(spark: SparkSession, given: Mapping[str, str], reason: str) -> DataFrame:
    """The same rows, read by the format."""
    taken = PathTaken("format", reason)
    tell(taken)
    # Asked and answered: `native_rule` need not try again.
    frame = spark.read.format("holdfast").options(**{**given, "native": "false"}).load()
    return relabelled(frame, with_path(frame.schema, taken))


# -- saying which -----------------------------------------------------------------------------------------


def relabelled(frame: DataFrame, schema: StructType) -> DataFrame:
    """The same DataFrame with the metadata of this schema; without columns there is none."""
    return frame.withMetadata(schema[0].name, schema[0].metadata) if schema.fields else frame


def with_path(schema: StructType, taken: PathTaken) -> StructType:
    """A schema whose metadata says how its rows are read."""
    return carrying(schema, _PATH, json.dumps(taken))


def tell(taken: PathTaken) -> None:
    """Log how rows are read."""
    how = "by Spark itself" if taken.path == "native" else "through the format"
    logger.info(
        "rows are read %s: %s",
        how,
        taken.reason,
        extra={"action": "spark_path", "path": taken.path, "reason": taken.reason},
    )
