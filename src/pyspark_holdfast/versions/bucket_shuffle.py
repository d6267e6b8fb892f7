"""Rows to tasks by a number that they carry: since 4.1 Spark takes the number itself for the task's.

Before that it takes the number's hash: rows of one number still meet in one task, but with those of others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def by_number(rows: DataFrame, tasks: int, column: str, *, is_apart: bool) -> DataFrame:
    """Rows of a number in one task, and in each task in the order of numbers; `is_apart`: there are as many tasks."""
    if not hasattr(type(rows), "repartitionById"):
        return rows.repartition(tasks, column).sortWithinPartitions(column)
    shuffled = rows.repartitionById(tasks, column)
    return shuffled if is_apart else shuffled.sortWithinPartitions(column)
