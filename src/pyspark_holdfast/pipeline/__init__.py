"""Pipelines on Spark: tables that grow by what is new in topics and other tables, each run exactly once.

`table` says what a table is, `Pipeline` runs them: docs/howto/pipeline.md.
"""

from __future__ import annotations

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

__all__ = [
    "Input",
    "InputReport",
    "RunReport",
    "Table",
    "TableReport",
    "append",
    "count",
    "keyed",
    "max_of",
    "mean_of",
    "min_of",
    "snapshot",
    "sum_of",
    "table",
    "topic",
    "whole",
    "windowed",
]
