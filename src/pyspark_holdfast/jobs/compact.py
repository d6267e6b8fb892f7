"""Compaction on a cluster: the driver plans and swaps, executors rewrite; each task makes one file.

    from pyspark_holdfast.jobs.compact import compact
    report = compact(spark, "s3://bucket/prefix", "orders")

Or by itself: `spark-submit compact.py s3://bucket/prefix`, where this file is the script; or `holdfast spark compact`.
Plan, proofs and swap are those of `holdfast.compact`. Executors get what the manifests say of their files, and no key:
nothing is decrypted. A task that Spark runs twice makes the same file, or one that is never used and is removed by a
later compaction. A job that is killed has replaced whole partitions, or nothing of them; the next one goes on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.clock import SystemClock
from holdfast.compaction.compact_root import compact_with, open_for_compaction
from holdfast.compaction.compaction_plan import TARGET_BYTES, FileRun
from holdfast.compaction.compaction_report import CompactionReport
from holdfast.compaction.compactor import Progress, RunResult, make_one
from holdfast.compaction.source_files import SourceFiles
from holdfast.errors import Invalid
from holdfast.reader.settled_reading import root_place, store_settings
from holdfast.root.root_store import RootStore
from holdfast.root.shared_stores import shared_store
from holdfast.store.store_settings import StoreSettings
from pyspark_holdfast.error_reports import hush_closed_pipes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PARTITIONS_AT_ONCE = 8


def compact(
    spark: SparkSession,
    root: str,
    topic: str | Sequence[str] = (),
    *,
    store: Mapping[str, Any] | StoreSettings | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> CompactionReport:
    """Join small segments of a root, as `holdfast.compact` does and with its options; Spark does the work."""
    if getattr(spark, "_jvm", None) is None:
        raise Invalid(
            "this session is remote, and cannot run single tasks",
            hint="run the job on the cluster: spark-submit, or holdfast spark compact --master",
        )
    settings = store if isinstance(store, StoreSettings) else store_settings({} if store is None else store)
    workers = SparkWorkers(spark, root_place(root), settings)
    return compact_with(workers, root, topic, store=settings, at_once=_PARTITIONS_AT_ONCE, progress=progress, **options)


class SparkWorkers:
    """Gives runs to executors, one task each."""

    may_repeat = True

    def __init__(self, spark: SparkSession, place: str, settings: StoreSettings) -> None:
        self._spark, self._place, self._settings = spark, place, settings

    def make(self, store: RootStore, nonce: str, runs: Sequence[FileRun]) -> list[RunResult]:
        """See `Workers`."""
        task = _Task(self._place, self._settings, nonce, is_authentic=store.trust.is_authentic)
        sent = [msgspec.msgpack.encode(run) for run in runs]
        found = self._spark.sparkContext.parallelize(sent, len(sent)).mapPartitions(task.run).collect()
        return [msgspec.msgpack.decode(one, type=RunResult) for one in found]


class _Task(msgspec.Struct):
    """What an executor must know to rewrite a run."""

    place: str
    settings: StoreSettings
    nonce: str
    is_authentic: bool

    def run(self, sent: Iterable[bytes]) -> Iterator[bytes]:
        """Rewrite and upload; in an executor."""
        hush_closed_pipes()
        files = shared_store(self.place, self.settings, SystemClock())
        opened = SourceFiles(files, self.settings, trusted=self.is_authentic)
        for data in sent:
            run = msgspec.msgpack.decode(data, type=FileRun)
            with TemporaryDirectory(prefix="holdfast-compact-") as folder:
                path = Path(folder) / f"{self.nonce}-{run.numbers[0]}.parquet.tmp"
                made = make_one(files, run, path, opened, self.nonce, _never)
            yield msgspec.msgpack.encode(made)


def _never() -> bool:
    return False


def main(arguments: Sequence[str] | None = None) -> int:
    """The job by itself: `spark-submit compact.py ROOT [TOPIC …]`; prints its report as JSON."""
    parser = argparse.ArgumentParser(prog="compact", description="Join small segments of a holdfast root.")
    parser.add_argument("root")
    parser.add_argument("topics", nargs="*")
    parser.add_argument("--target-size", default=str(TARGET_BYTES), help="as 128MiB")
    parser.add_argument("--keyring", help="env:NAME or file:PATH")
    parser.add_argument("--dry-run", action="store_true")
    given = parser.parse_args(arguments)
    open_for_compaction(given.root, keyring=given.keyring, store=None, clock=SystemClock())  # before Spark starts
    from pyspark.sql import SparkSession

    from pyspark_holdfast import configure

    spark = configure(SparkSession.builder.appName("holdfast compact")).getOrCreate()
    try:
        report = compact(
            spark, given.root, given.topics, target_size=given.target_size, keyring=given.keyring, dry_run=given.dry_run
        )
    finally:
        spark.stop()
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    return 3 if report.problems else 0


if __name__ == "__main__":
    # What executors get must be known by the module's name: classes of a script are sent as code, and ours cannot be.
    from pyspark_holdfast.jobs.compact import main as run

    sys.exit(run())
