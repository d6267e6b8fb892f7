"""A stream's sink that gets Arrow batches: since 4.1 Spark has a class for it.

Before that it takes two: one says that it is a stream's, the other that its rows come as batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import datasource

if TYPE_CHECKING or hasattr(datasource, "DataSourceStreamArrowWriter"):
    StreamArrowWriter = datasource.DataSourceStreamArrowWriter
else:

    class StreamArrowWriter(datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter):
        """Both at once."""
