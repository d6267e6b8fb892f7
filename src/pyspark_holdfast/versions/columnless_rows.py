"""Rows without columns, to be counted: since 4.1. Before that Spark's workers lose them, and a count would be 0."""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

from holdfast.errors import Invalid
from pyspark_holdfast.versions.supported import spark_version

ARE_KEPT = hasattr(DataSourceReader, "pushFilters")
"""That came with the same version, and shows from outside."""


def check_columns(schema: StructType) -> None:
    """Refuse a read without columns where its rows would be lost."""
    if not schema.fields and not ARE_KEPT:
        raise Invalid(
            f"this needs Spark 4.1 or newer: rows without columns spark={spark_version()}",
            hint="read one that needs no file: columns=offset",
        )
