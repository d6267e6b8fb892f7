"""Pipelines on Spark: tables that grow by what is new in topics and other tables, each run exactly once.

`table` says what a table is, `Pipeline` runs them: docs/howto/pipeline.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pyspark_holdfast.pipeline.run_report import InputReport, RunReport, TableReport
from pyspark_holdfast.pipeline.table_definition import (
    Input,
    Table,
    append,
    count,
    keyed,
    max_of,
    mean_of,
    min_of,
    snapshot,
    sum_of,
    table,
    topic,
    whole,
    windowed,
)

if TYPE_CHECKING:
    from pyspark_holdfast.pipeline.pipeline import Pipeline
    from pyspark_holdfast.pipeline.table_reading import read_table
    from pyspark_holdfast.pipeline.table_reports import TableStatus

_HOMES = {"Pipeline": "pipeline", "TableStatus": "table_reports", "read_table": "table_reading"}
"""What needs Spark is loaded when it is first used: definitions of tables do not need it."""

__all__ = [
    "Input",
    "InputReport",
    "Pipeline",
    "RunReport",
    "Table",
    "TableReport",
    "TableStatus",
    "append",
    "count",
    "keyed",
    "max_of",
    "mean_of",
    "min_of",
    "read_table",
    "snapshot",
    "sum_of",
    "table",
    "topic",
    "whole",
    "windowed",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pyspark_holdfast.pipeline' has no attribute {name!r}")
    import_module("pyspark_holdfast.versions.supported").check_supported()
    value = getattr(import_module(f"pyspark_holdfast.pipeline.{home}"), name)
    globals()[name] = value
    return value
