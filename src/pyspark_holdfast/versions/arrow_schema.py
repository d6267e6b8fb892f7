"""Spark's types as Arrow's, in UTC: since 4.2 Spark asks for the zone, and before that UTC went without saying.

Spark expects exactly these types of what a source yields.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas import types
from pyspark.sql.types import DataType, StructType

_ZONE: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(types.to_arrow_type).parameters else {}


def arrow_schema(schema: StructType) -> pa.Schema:
    """A schema in Arrow's types."""
    return types.to_arrow_schema(schema, **_ZONE)


def arrow_type(kind: DataType) -> pa.DataType:
    """One type in Arrow's; PySparkException where there is none."""
    return types.to_arrow_type(kind, **_ZONE)
