"""`Pipeline`: tables that are kept up with the topics of a root, each run exactly once.

    pipeline = Pipeline("shop", root="s3://bucket/log", tables="s3://bucket/tables", of=[orders_now, revenue])
    pipeline.run()

A run goes through the tables in the order in which they read each other. Each is brought up to what is settled, by one
commit of its own. A table that fails keeps what it had; those that read it are skipped, the others go on. So a run can
be repeated at any time, from any machine: every table goes on from its own newest commit. Two runs at once are safe,
and the slower one does its work again.

Nothing is kept beside the tables: no checkpoint, no lock.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from pathlib import Path
from threading import Event, Lock  # noqa: TID251  # an Event of the caller's
from typing import TYPE_CHECKING, Any, Literal, Union

import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.errors import HoldfastError, Invalid, Unavailable
from holdfast.model.topic_name import is_name
from holdfast.quantity import parse_seconds
from holdfast.reader.read_options import parse_options
from holdfast.reader.settled_reading import root_place, store_settings
from holdfast.root.root_place import root_url
from holdfast.root.shared_stores import shared_store
from holdfast.signals import Flag
from holdfast.store.store_settings import StoreSettings
from pyspark_holdfast.pipeline.backfill import backfill
from pyspark_holdfast.pipeline.backfill_range import Bound, parse_range
from pyspark_holdfast.pipeline.inputs import Inputs, PipelineTables
from pyspark_holdfast.pipeline.repeating import interval_of, repeat, stopping
from pyspark_holdfast.pipeline.reports.report_files import ReportFiles
from pyspark_holdfast.pipeline.run_report import RunReport, TableReport
from pyspark_holdfast.pipeline.table_definition import Table
from pyspark_holdfast.pipeline.table_order import PlannedTable, chosen, ordered, readers_of
from pyspark_holdfast.pipeline.table_reading import tables_url
from pyspark_holdfast.pipeline.table_reports import TableStatus, failed_names, failed_report, table_report, table_status
from pyspark_holdfast.pipeline.table_update import RunPass, TableOutcome, update
from pyspark_holdfast.pipeline.topic_input import RootTopics, check_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("holdfast")

Progress = Callable[[str], None]
Session = Union["SparkSession", Callable[[], "SparkSession"], None]
"""A session; or what makes one, when it is first needed; or None, for the active one or one for this machine."""
_IDLE_KEPT_EACH = 60.0
"""Seconds between two reports that say that there was nothing new."""
_CLEAN_EACH = 16
"""Files are looked for that are not needed any more after so many runs of a table: that takes a listing."""


class Pipeline:
    """Some tables, the root that they read, and the place where they lie."""

    def __init__(
        self,
        name: str,
        *,
        root: str | Path,
        tables: str | Path,
        of: Sequence[Table],
        options: Mapping[str, str] | None = None,
        store: Mapping[str, Any] | StoreSettings | None = None,
        keep: str = "7d",
        reports: str | Path | Literal[False] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`options` are those of the format `holdfast` for all topics: keyring, endpoint … `store` says how the tables'
        place is reached, where that differs. `keep`: how long files stay that a newer version has replaced. `reports`:
        where reports of runs are written, a directory or a place of a store; by default `_reports` beside the tables,
        False for none.
        """
        self._given = {
            "root": root, "tables": tables, "of": tuple(of), "options": options, "store": store, "keep": keep,
            "reports": reports, "clock": clock,
        }  # fmt: skip
        if not is_name(name):
            raise Invalid(f"a pipeline cannot be called this name={name!r}", hint="letters, digits, '_', '-' and '.'")
        self.name = name
        self.planned: tuple[PlannedTable, ...] = ordered(of)
        self._clock: Clock = clock or SystemClock()
        self.keep_ms = round(1000 * parse_seconds(keep))
        given = {key: str(value) for key, value in (options or {}).items()}
        check_options(given, f"pipeline={name}")
        for planned in self.planned:
            for source in planned.sources:
                check_options({**given, **source.options}, f"table={planned.name} input={source.name}")
        self.root, self.tables_url = root_place(root), tables_url(tables)
        _keep_apart(self.root, self.tables_url)
        self.options = given
        self.settings = _settings(store, given)
        self.reports: str | None = _reports_place(reports, self.tables_url)
        topics = RootTopics(self.root, given, self._clock)
        opened = shared_store(self.tables_url, self.settings, self._clock)
        self._inputs = Inputs(topics, PipelineTables(self.tables_url, self.settings, opened, self._clock))
        self._inputs.tables_known = [planned.name for planned in self.planned]
        self._running, self._kept_at, self._starting = Lock(), -inf, 0.0

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables, in the order of their runs."""
        return tuple(planned.table for planned in self.planned)

    def place_of(self, table: str) -> str:
        """The folder of a table, for `read_table` and for others who read Delta tables."""
        return f"{self.tables_url}/{chosen(self.planned, [table])[0].name}"

    def changed(self, **changes: Any) -> Pipeline:
        """The same pipeline with other arguments: another root, another place for its tables."""
        return Pipeline(changes.pop("name", self.name), **{**self._given, **changes})

    # -- runs ---------------------------------------------------------------------------------------------

    def run(self, spark: Session = None, *, only: Sequence[str] = (), progress: Progress | None = None) -> RunReport:
        """Bring all tables, or `only` some, up to what is settled now. Raises nothing that a table's failure caused.

        `spark` is a session, or a function that makes one. Without it, the active session is taken, or one is made for
        this machine. It is made only if there is something to do.
        """
        planned = chosen(self.planned, _names(only))
        return self._exclusively("run", spark, progress, lambda here: self._tables(planned, here))

    def _exclusively(
        self,
        reason: Literal["run", "backfill"],
        spark: Session,
        progress: Progress | None,
        work: Callable[[RunPass], list[TableReport]],
    ) -> RunReport:
        if not self._running.acquire(blocking=False):
            raise Unavailable(
                f"this pipeline is at work already pipeline={self.name}", hint="wait until that run has ended"
            )
        try:
            self._inputs.topics.look_again()
            self._inputs.tables.look_again()
            here = RunPass(
                self.name,
                str(uuid.UUID(bytes=self._clock.random_bytes(16), version=4)),
                self._inputs,
                self._clock,
                lambda: self._session(spark),
                progress or _silent,
                readers_of(self.planned),
                self.keep_ms,
            )
            started_ms, begun = self._clock.now_us() // 1000, self._clock.monotonic()
            tables = work(here)
            report = RunReport(
                pipeline=self.name,
                id=here.id,
                started_ms=started_ms,
                seconds=self._clock.monotonic() - begun,
                reason=reason,
                tables=tables,
            )
            self._clean(report, here)
            self._keep(report)
            return report
        finally:
            self._running.release()

    def _tables(
        self, planned: Sequence[PlannedTable], here: RunPass, is_stopped: Callable[[], bool] = lambda: False
    ) -> list[TableReport]:
        reports: list[TableReport] = []
        for one in planned:
            if is_stopped():
                break
            failed = sorted(one.upstream & failed_names(reports))
            if failed:
                started_ms = self._clock.now_us() // 1000
                reports.append(failed_report(one, here, None, started_ms, 0.0, behind=failed[0]))
            else:
                reports.append(self._table(one, here, partial(update, one, here)))
            _tell(reports[-1], here)
        return reports

    def _table(self, planned: PlannedTable, here: RunPass, work: Callable[[], TableOutcome]) -> TableReport:
        """Do something to a table, and say what came of it: whatever the user's function raises, the others go on."""
        started_ms, begun = self._clock.now_us() // 1000, self._worked()
        try:
            outcome = work()
            return table_report(planned, here, outcome, started_ms, self._worked() - begun)
        except Exception as error:
            logger.warning(
                "table %s failed: %s",
                planned.name,
                type(error).__name__,
                extra={"action": "table_failed", "pipeline": self.name, "table": planned.name},
            )
            return failed_report(planned, here, error, started_ms, self._worked() - begun)

    def _worked(self) -> float:
        """Seconds, without those in which Spark started: the table that happens to be the first did not take them."""
        return self._clock.monotonic() - self._starting

    def _session(self, given: Session) -> SparkSession:
        begun = self._clock.monotonic()
        try:
            return _session(given)
        finally:
            self._starting += self._clock.monotonic() - begun

    def run_every(
        self,
        seconds: float | str,
        spark: Session = None,
        stop: Event | None = None,
        *,
        only: Sequence[str] = (),
        progress: Progress | None = None,
        after: Callable[[RunReport], None] | None = None,
    ) -> RunReport | None:
        """Run again and again, until `stop` is set, or SIGTERM or SIGINT arrives; returns the last report.

        A signal lets the table that is at work come to its commit; a second one ends at once. `after` gets each report.
        """
        interval, planned = interval_of(seconds), chosen(self.planned, _names(only))
        asked = stop or Flag()

        def once() -> RunReport:
            report = self._exclusively("run", spark, progress, lambda here: self._tables(planned, here, asked.is_set))
            if after is not None:
                after(report)
            return report

        with stopping(asked):
            return repeat(once, interval, asked)

    def backfill(
        self,
        table: str,
        spark: Session = None,
        *,
        begin: Bound = None,
        end: Bound = None,
        progress: Progress | None = None,
    ) -> RunReport:
        """Compute rows of a table again, in one commit: those of a range, or all of them.

        A bound is a run of the table (17; the last one is included), a time (with its zone, or as ISO 8601 text), or
        offsets as in '{"orders":{"0":1200}}'; the end of times and offsets is not included.
        """
        planned, range_ = chosen(self.planned, [table])[0], parse_range(begin, end)

        def work(here: RunPass) -> list[TableReport]:
            report = self._table(planned, here, lambda: backfill(planned, here, range_))
            report = msgspec.structs.replace(report, note=report.note or self._needs_backfill(report))
            _tell(report, here)
            return [report]

        return self._exclusively("backfill", spark, progress, work)

    def _needs_backfill(self, report: TableReport) -> str:
        """Which tables have read rows that a backfill has replaced, and will not read them again."""
        readers = readers_of(self.planned).get(report.name, ())
        if report.outcome != "written" or not readers:
            return ""
        return f"rows that were replaced had been read by {', '.join(readers)}: backfill them, too"

    # -- what is left behind ------------------------------------------------------------------------------

    def clean(self) -> None:
        """Remove files that no table needs any more: replaced longer ago than `keep`, or of runs that did not commit.

        Runs do it now and then by themselves.
        """
        for planned in self.planned:
            self._inputs.tables.log(planned.name).clean(self.keep_ms)

    def _clean(self, report: RunReport, here: RunPass) -> None:
        for table in report.tables:
            if table.outcome != "written" or table.run % _CLEAN_EACH:
                continue
            try:
                here.tables.log(table.name).clean(self.keep_ms)
            except HoldfastError as error:  # the run is done; the next one tries again
                logger.warning(
                    "files of table %s were not cleaned: %s",
                    table.name,
                    error.message,
                    extra={"action": "clean_failed", "pipeline": self.name, "table": table.name},
                )

    def _keep(self, report: RunReport) -> None:
        """Write the report down; that nothing was new now and then, and not at each view."""
        is_idle, now = all(table.outcome == "unchanged" for table in report.tables), self._clock.monotonic()
        if self.reports is None or (is_idle and now - self._kept_at < _IDLE_KEPT_EACH):
            return
        try:
            ReportFiles(self.reports, self.settings, self._clock).keep(report)
            self._kept_at = now
        except (HoldfastError, OSError) as error:  # the tables are written; they tell the next run all that it needs
            logger.warning(
                "the report of a run was not written: %s",
                getattr(error, "message", error),
                extra={"action": "report_failed", "pipeline": self.name},
            )

    # -- as a program -------------------------------------------------------------------------------------

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """What `spark-submit FILE.py run|status|backfill …` does, with sys.exit(pipeline.main()) at its end."""
        from pyspark_holdfast.pipeline.command.command_line import main

        return main(self, arguments)

    # -- looking ------------------------------------------------------------------------------------------

    def status(self) -> list[TableStatus]:
        """All tables as they are, and how far they are behind what is settled. Needs no Spark."""
        inputs = Inputs(
            RootTopics(self.root, self.options, self._clock),
            PipelineTables(self.tables_url, self.settings, self._inputs.tables.store, self._clock),
        )
        return [table_status(planned, inputs) for planned in self.planned]


def _names(only: object) -> Sequence[str]:
    return [only] if isinstance(only, str) else list(only)  # type: ignore[call-overload]


def _settings(store: Mapping[str, Any] | StoreSettings | None, options: Mapping[str, str]) -> StoreSettings:
    """How the place of the tables is reached: as said, else as the root is."""
    if store is None:
        return parse_options({**options, "path": "/", "topicPattern": ".*"})[1].store
    return store if isinstance(store, StoreSettings) else store_settings(store)


def _keep_apart(root: str, tables: str) -> None:
    """Refuse tables inside a root, or inside the directory of a log: what is there belongs to the log."""
    places = (root_url(root), tables_url(root))
    if any(f"{tables}/".startswith(f"{place.rstrip('/')}/") for place in places):
        raise Invalid("tables must not lie inside the root that they read", hint="give a place beside it, as …/tables")


def _reports_place(reports: str | Path | Literal[False] | None, tables: str) -> str | None:
    if reports is False:
        return None
    return f"{tables}/_reports" if reports is None else tables_url(reports)


def _session(given: Session) -> SparkSession:
    from pyspark.sql import SparkSession

    from pyspark_holdfast.spark_session import session
    from pyspark_holdfast.versions.supported import check_supported

    check_supported()
    if given is None:
        return SparkSession.getActiveSession() or session()
    made = given() if callable(given) else given
    if getattr(made, "_jvm", None) is None:
        raise Invalid(
            "this session is remote, and cannot run the tasks of a pipeline",
            hint="run the pipeline on the cluster: spark-submit FILE.py, or holdfast spark pipeline run --master",
        )
    return made


def _silent(line: str) -> None:
    """Nobody asked for progress."""


def _tell(report: TableReport, here: RunPass) -> None:
    what = {
        "written": f"{report.rows_out} rows written, run {report.run}",
        "unchanged": report.note or "nothing new",
        "failed": f"failed: {report.error.partition(chr(10))[0]}",
        "skipped": f"skipped: {report.note}",
    }[report.outcome]
    here.tell(f"{report.name}: {what} ({report.seconds:.1f} s)")
