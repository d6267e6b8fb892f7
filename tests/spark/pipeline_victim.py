"""A driver that runs a pipeline until it is done or killed.

    python -m tests.spark.pipeline_victim FOLDER RUNS [--die STEP NUMBER] [--kill-workers]

One JVM of its own, and the tables of `tests.spark.shop`. Between runs it waits for a line on standard input, and tells
what came of each table on standard output, as JSON, when a run has ended.

With `--die` the whole session is killed at the NUMBER-th commit of a table, `before` its object is created or `after`;
or when Spark has `written` the files of the NUMBER-th table. With `--kill-workers` the first attempt of each task that
makes rows of `paid` kills its Python worker and those beside it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.store.directory import DirectoryStore
from pyspark_holdfast.pipeline import Table, table_update
from tests.spark.shop import TABLES, Shop, paid
from tests.spark.stream_victim import kill_session, kill_workers, small_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CREATES = 2 * len(TABLES)
"""How many objects the driver creates in two runs of all tables: a commit each, and nothing else."""


class Dying:
    """Kills all of this at one step."""

    def __init__(self, when: str, number: int) -> None:
        self._when, self._left = when, number

    def at(self, when: str) -> None:
        """This step is reached."""
        if when != self._when:
            return
        self._left -= 1
        if not self._left:
            kill_session(os.getsid(0))

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A call that is one step."""

        def called(*given: Any, **more: Any) -> Any:
            self.at("before")
            found = call(*given, **more)
            self.at("after")
            return found

        return called

    def behind(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A call behind which files are written."""

        def called(*given: Any, **more: Any) -> Any:
            found = call(*given, **more)
            self.at("written")
            return found

        return called


def slowly(orders: DataFrame) -> DataFrame:
    """What the table makes of its rows, in workers that die."""
    rows: DataFrame = paid.function(orders)
    return rows.mapInArrow(kill_workers, rows.schema)


def tables(asked: Namespace) -> list[Table]:
    """The tables of the shop."""
    return [replace(one, function=slowly) if one is paid and asked.kill_workers else one for one in TABLES]


def main(arguments: list[str]) -> None:
    parser = ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("runs", type=int)
    parser.add_argument("--die", nargs=2, default=("", "0"))
    parser.add_argument("--kill-workers", action="store_true")
    asked = parser.parse_args(arguments)
    dying = Dying(asked.die[0], int(asked.die[1]))
    DirectoryStore.create = dying.around(DirectoryStore.create)  # type: ignore[method-assign]
    table_update.write = dying.behind(table_update.write)
    spark = small_spark(Path(tempfile.mkdtemp()))
    pipeline = Shop(asked.folder).pipeline(*tables(asked))
    for number in range(asked.runs):
        if number:
            sys.stdin.readline()
        report = pipeline.run(spark)
        print(json.dumps({one.name: one.error or one.outcome for one in report.tables}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
