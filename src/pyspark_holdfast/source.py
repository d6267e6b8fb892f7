"""`format("holdfast")`: what Spark asks of a data source, answered with what is settled.

Spark makes one of these wherever it needs one: for the schema, for planning, for a stream, each time in another Python
process, and hands over nothing but options and the schema. The schema carries the marks of the moment at which a
DataFrame was loaded, so all of its plans read the same (`marks`).
"""

from __future__ import annotations

import sys

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from holdfast.errors import NotFound
from holdfast.settled.options import ReadOptions, is_table, own_options, parse_options
from holdfast.settled.resolve import ends_of, resolve, shape_of
from holdfast.settled.root import SettledRoot
from pyspark_holdfast.batch import BatchReader, FilteringReader
from pyspark_holdfast.marks import options_in, with_marks, with_options
from pyspark_holdfast.segment_paths import SEGMENT_ROWS
from pyspark_holdfast.stream import StreamReader
from pyspark_holdfast.types import spark_schema

_PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"


class HoldfastSource(DataSource):
    """The format `holdfast`.

    >>> HoldfastSource.name()
    'holdfast'
    """

    @classmethod
    def name(cls) -> str:
        """What users write in `format(…)`."""
        return "holdfast"

    def _parsed(self, schema: StructType | None = None) -> tuple[str, ReadOptions]:
        # A table's options are in its schema: Spark has forgotten them.
        carried = None if schema is None or self.options else options_in(schema)
        return parse_options(self.options if carried is None else carried)

    def schema(self) -> StructType:
        """The columns of the topics, with the marks of this moment."""
        place, options = self._parsed()
        if options.emit == "segments":
            return SEGMENT_ROWS
        root = SettledRoot.open(place, options)
        if is_table(self.options):
            columns = shape_of(root.topics(options), options).columns
            return with_options(spark_schema(columns), own_options(self.options))
        try:
            resolved = resolve(root, options)
        except NotFound:
            # Where it is told to begin may be gone: a batch says so when it is planned, a stream is beyond it by now.
            topics = root.topics(options)
            return with_marks(spark_schema(shape_of(topics, options).columns), ends_of(root.marks(topics), options))
        starts = {(span.topic, span.partition): span.start for span in resolved.spans}
        return with_marks(spark_schema(resolved.shape.columns), resolved.marks, starts)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read; one that takes filters only where Spark is about to push some."""
        # Spark refuses a reader that has `pushFilters` while pushing is switched off (which is the default), and runs
        # this module, and no other, when it is on and there are filters to push.
        kind = FilteringReader if _PUSHING in sys.modules else BatchReader
        return kind(*self._parsed(schema), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A stream of what gets settled."""
        return StreamReader(*self._parsed(schema), schema)
