"""`format("holdfast")`: what Spark asks of a data source, answered with what is settled.

Spark creates one of these for every `load`, asks it for the schema unless the user gave one, and pickles it for the
process that plans or streams. What it saw when the schema was requested (its pins) travels with it, so everything built
on one `load` reads the same. For a table in Spark's catalog, a new one is created for each query, without options but
with the old schema. So a table keeps its options in its schema (`read_marks`).
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from holdfast.errors import Invalid, NotFound
from holdfast.reader.offsets import ReadMarks
from holdfast.reader.open_root import SettledRoot
from holdfast.reader.read_options import PLACES, ReadOptions, is_table, own_options, parse_options
from holdfast.reader.resolve import resolve, shape_of
from pyspark_holdfast.batch import BatchReader
from pyspark_holdfast.emitted_rows import MANIFEST_ROWS, SEGMENT_ROWS
from pyspark_holdfast.error_reports import hush_closed_pipes, in_short
from pyspark_holdfast.read_marks import is_marked, options_in, with_marks, with_options
from pyspark_holdfast.sink.spark_writers import BatchWriter, StreamWriter
from pyspark_holdfast.sink.write_options import parse_write_options
from pyspark_holdfast.stream import StreamReader
from pyspark_holdfast.types import spark_schema


class HoldfastSource(DataSource):
    """The format `holdfast`.

    >>> HoldfastSource.name()
    'holdfast'
    """

    _is_inferred = False
    _pins: ReadMarks | None = None

    @classmethod
    def name(cls) -> str:
        """What users write in `format(…)`."""
        hush_closed_pipes()  # here, because Spark calls this first in every process
        return "holdfast"

    @property
    def is_pinned(self) -> bool:
        """Whether every plan reads the same, because `load` has said what; else the first plan says it."""
        return self._pins is not None

    def given(self, schema: StructType | None = None) -> Mapping[str, str]:
        """The options that count, as text: those of the read, or those that a table carries in its schema."""
        carried = None if schema is None else options_in(schema)
        if carried is None and schema is not None and not self.options:
            raise Invalid(
                "Spark keeps the options of a table only in columns that the format declares",
                hint="leave the list of columns out of CREATE TABLE; the option columns chooses",
            )
        if carried is None or any(name in self.options for name in PLACES):
            return self.options
        if self.options:
            raise Invalid(
                f"a table takes no options in a query options={','.join(sorted(self.options))[:200]}",
                hint="its options are those of CREATE TABLE; read with format(…), options and load() instead",
            )
        return carried

    def parsed(self, schema: StructType | None = None) -> tuple[str, ReadOptions]:
        """The root's place, and what is asked of it; raises Invalid."""
        return parse_options(self.given(schema))

    def _where(self) -> tuple[str, str]:
        given = own_options(self.options)
        return given.get("root") or given.get("path") or "", given.get("endpoint", "")

    @in_short
    def schema(self) -> StructType:
        """The columns of the topics, with the marks of this moment."""
        place, options = self.parsed()
        self._is_inferred = True
        if options.emit != "rows":
            return SEGMENT_ROWS if options.emit == "segments" else MANIFEST_ROWS
        root = SettledRoot.open(place, options)
        if is_table(self.options):
            columns = shape_of(root.topics(options), options).columns
            return with_options(spark_schema(columns), own_options(self.options))
        try:
            resolved = resolve(root, options)
        except NotFound:
            # The start that was asked for may be gone. A batch says so when it is planned; a stream is already past it.
            return spark_schema(shape_of(root.topics(options), options).columns)
        self._pins = resolved.marks
        return with_marks(spark_schema(resolved.shape.columns), resolved.marks)

    @in_short
    def reader(self, schema: StructType) -> BatchReader:
        """A batch read."""
        hush_closed_pipes()
        if not self._is_inferred and is_marked(schema):
            raise Invalid(
                "this schema carries the marks of another read, which would be wrong here",
                hint="give names and types only: .schema(df.schema.toDDL()); asOf=marks_of(df) reads what df read",
            )
        return BatchReader(*self.parsed(schema), schema, self._pins, is_inferred=self._is_inferred)

    @in_short
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A stream of what gets settled."""
        hush_closed_pipes()
        return StreamReader(*self.parsed(schema), schema, is_inferred=self._is_inferred)

    @in_short
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """A batch that is appended to a sink's topic."""
        hush_closed_pipes()
        if overwrite:
            raise Invalid(
                "a topic is appended to and never overwritten", hint='write with mode("append"), or to a new topic'
            )
        return BatchWriter(parse_write_options(self.options, is_stream=False), schema)

    @in_short
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """A stream that is appended to a sink's topic."""
        hush_closed_pipes()
        if overwrite:
            raise Invalid(
                "a topic is appended to, and output mode complete replaces everything with each batch",
                hint='use outputMode("append") with a watermark; or keep results in a table of a pipeline',
            )
        return StreamWriter(parse_write_options(self.options, is_stream=True), schema)
