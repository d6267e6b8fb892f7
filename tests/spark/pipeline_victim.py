"""A driver that runs a pipeline once, and may be killed on the way.

    python -m tests.spark.pipeline_victim FOLDER [--die STEP NUMBER] [--kill-workers]

One JVM of its own, and `TABLES`, of the shop in a folder. What came of each table is printed, as JSON.
With `--die` the whole session is killed at the NUMBER-th commit of a table, `before` its object is created or `after`;
or when Spark has `written` the files of the NUMBER-th table. With `--kill-workers` the first attempt of each task that
makes rows of `paid` kills its Python worker and those beside it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from holdfast.store.directory import DirectoryStore
from pyspark_holdfast.pipeline import table_update
from tests.spark.shop import Shop, large, latest, paid
from tests.spark.stream_victim import kill_session, kill_workers, small_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TABLES = (paid, large, latest)
Step = tuple[str, int]
STEPS: list[Step] = [(when, 1 + number) for when in ("before", "after", "written") for number in range(len(TABLES))]
"""All that happens to a store in one run: files that workers have written, and one commit for each table."""


@contextmanager
def dying(step: Step, die: Callable[[], None]) -> Iterator[None]:
    """Die at a step."""
    left = step[1]

    def reached(when: str) -> None:
        nonlocal left
        left -= when == step[0]
        if when == step[0] and not left:
            die()

    create, write = DirectoryStore.create, table_update.write

    def creating(*given: Any) -> None:
        reached("before")
        create(*given)
        reached("after")

    def writing(*given: Any) -> Any:
        found = write(*given)
        reached("written")
        return found

    with patch.object(DirectoryStore, "create", creating), patch.object(table_update, "write", writing):
        yield


def in_dying_workers(orders: DataFrame) -> DataFrame:
    """What the table makes of its rows."""
    rows: DataFrame = paid.function(orders)
    return rows.mapInArrow(kill_workers, rows.schema)


def main(arguments: list[str]) -> None:
    parser = ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--die", nargs=2, default=("", "0"))
    parser.add_argument("--kill-workers", action="store_true")
    asked = parser.parse_args(arguments)
    first = replace(paid, function=in_dying_workers, per_run=True) if asked.kill_workers else paid
    spark = small_spark(Path(tempfile.mkdtemp()))
    with dying((asked.die[0], int(asked.die[1])), lambda: kill_session(os.getsid(0))):
        report = Shop(asked.folder).pipeline(first, *TABLES[1:]).run(spark)
    print(json.dumps({one.name: one.error or one.outcome for one in report.tables}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
