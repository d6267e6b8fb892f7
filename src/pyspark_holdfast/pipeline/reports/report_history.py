"""Many runs as one small value: what the page plots, and the newest that is known of each table. Pure.

It follows from the reports alone, in whatever order they are added, so it can be lost and made again. It is kept beside
them only to save reading all of them after each run.
"""

from __future__ import annotations

import msgspec

from pyspark_holdfast.pipeline.run_report import InputReport, Outcome, RunReport, TableReport

FORMAT = 1
RUNS_MAX = 500
"""Runs that are kept."""
IDLE_RUNS_MAX = 50
"""Of these, runs that found nothing new: one every few seconds must not push out those that did something."""


class RunPoint(msgspec.Struct, frozen=True, array_like=True):
    """One table in one run, as it is plotted."""

    outcome: Outcome
    rows_in: int
    rows_out: int
    lag: int
    seconds: float


class RunLine(msgspec.Struct, frozen=True, array_like=True):
    """One run."""

    pipeline: str
    started_ms: int
    seconds: float
    reason: str
    tables: dict[str, RunPoint]

    @property
    def is_idle(self) -> bool:
        """Whether there was nothing to do."""
        return all(point.outcome == "unchanged" for point in self.tables.values())


class LastFailure(msgspec.Struct, frozen=True):
    """Why a table failed, the last time that it did."""

    at_ms: int
    error: str
    hint: str


class TableNews(msgspec.Struct, frozen=True):
    """The newest that is known of a table."""

    pipeline: str
    at_ms: int
    """When the run began that `report` is of."""
    report: TableReport
    stood_ms: int = -1
    """When the run began that `stood` is of."""
    stood: TableReport | None = None
    """The newest report that knows the table itself: its version, columns and inputs. A failed run may not."""
    failure: LastFailure | None = None
    written_ms: int = -1
    """When the last run that wrote it began to."""

    @property
    def is_failing(self) -> bool:
        """Whether it could not be written the last time."""
        return self.report.outcome in ("failed", "skipped")

    @property
    def known(self) -> TableReport:
        """What to show of the table itself."""
        return self.stood or self.report

    @property
    def inputs(self) -> list[InputReport]:
        """What it reads."""
        return self.report.inputs or self.known.inputs


class RunHistory(msgspec.Struct, frozen=True):
    """All runs that are kept, by the name of their file, which begins with the time."""

    format: int = FORMAT
    runs: dict[str, RunLine] = {}
    tables: dict[str, TableNews] = {}
    """By pipeline and name."""

    @property
    def names(self) -> list[str]:
        """The files, oldest first."""
        return sorted(self.runs)

    @property
    def pipelines(self) -> list[str]:
        """Whose runs these are."""
        return sorted({line.pipeline for line in self.runs.values()})

    @property
    def in_order(self) -> list[TableNews]:
        """The tables, by pipeline, in the order in which the newest run that had them made them."""
        found: dict[str, TableNews] = {}
        for name in self.names[::-1]:
            keys = (f"{self.runs[name].pipeline}/{table}" for table in self.runs[name].tables)
            found |= {key: self.tables[key] for key in keys if key in self.tables and key not in found}
        return sorted(found.values(), key=lambda news: news.pipeline)

    def points(self, news: TableNews) -> list[tuple[int, RunPoint]]:
        """A table over runs, oldest first: when, and what."""
        found = (self.runs[name] for name in self.names)
        name = news.report.name
        return [
            (one.started_ms, one.tables[name]) for one in found if one.pipeline == news.pipeline and name in one.tables
        ]


def with_report(history: RunHistory, name: str, report: RunReport) -> RunHistory:
    """The history with one more run."""
    points = {one.name: RunPoint(one.outcome, one.rows_in, one.rows_out, one.lag, one.seconds) for one in report.tables}
    line = RunLine(report.pipeline, report.started_ms, report.seconds, report.reason, points)
    tables = dict(history.tables)
    for one in report.tables:
        key = f"{report.pipeline}/{one.name}"
        tables[key] = _newer(tables.get(key), _news(report, one))
    return RunHistory(runs={**history.runs, name: line}, tables=tables)


def with_only(history: RunHistory, names: set[str]) -> RunHistory:
    """The history of these files alone; a table stays for as long as a run that is kept has it."""
    runs = {name: line for name, line in history.runs.items() if name in names}
    alive = {f"{line.pipeline}/{table}" for line in runs.values() for table in line.tables}
    return RunHistory(runs=runs, tables={key: news for key, news in history.tables.items() if key in alive})


def superfluous(history: RunHistory) -> list[str]:
    """Files of runs that need not be kept any longer: too many idle ones, then the oldest."""
    newest_first = history.names[::-1]
    idle = [name for name in newest_first if history.runs[name].is_idle][IDLE_RUNS_MAX:]
    rest = [name for name in newest_first if name not in set(idle)][RUNS_MAX:]
    return sorted(idle + rest)


def _news(report: RunReport, table: TableReport) -> TableNews:
    stands = table.outcome in ("written", "unchanged")
    failure = LastFailure(report.started_ms, table.error, table.hint) if table.error else None
    stood_ms, stood = (report.started_ms, table) if stands else (-1, None)
    written_ms = table.started_ms if table.outcome == "written" else -1
    return TableNews(report.pipeline, report.started_ms, table, stood_ms, stood, failure, written_ms)


def _newer(a: TableNews | None, b: TableNews) -> TableNews:
    """The newest of what both know."""
    if a is None:
        return b
    last = max(a, b, key=lambda one: one.at_ms)
    stood = max(a, b, key=lambda one: one.stood_ms)
    failures = [one.failure for one in (a, b) if one.failure is not None]
    return TableNews(
        last.pipeline,
        last.at_ms,
        last.report,
        stood.stood_ms,
        stood.stood,
        max(failures, key=lambda one: one.at_ms, default=None),
        max(a.written_ms, b.written_ms),
    )
