"""A pipeline from the command line: `holdfast spark pipeline …`, and `spark-submit FILE.py …` through `Pipeline.main`.

    run         bring the tables up to what is settled: once, or --every 30s until SIGTERM or Ctrl-C
    status      how the tables are; starts no Spark
    backfill    compute a range of one table again

Both ways mean the same: they build a `CommandCall`, and `execute` runs it. Data goes to stdout (a table, or with --json
one object per run), messages go to stderr. Spark starts only when it is needed, so earlier mistakes are reported at
once. Exit codes: 0 fine, 1 a table failed or something was refused, 2 wrong usage, 3 damage, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

import msgspec

from holdfast.errors import Corrupt, HoldfastError, Invalid
from holdfast.quantity import parse_seconds
from pyspark_holdfast.pipeline.run_report import RunReport, TableReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_holdfast.pipeline.pipeline import Pipeline
    from pyspark_holdfast.pipeline.table_reports import TableStatus

FINE, REFUSED, USAGE, DAMAGED, INTERRUPTED = 0, 1, 2, 3, 130
RUN, STATUS, BACKFILL = "run", "status", "backfill"
Action = Literal["run", "status", "backfill"]
EVERY_MIN = 0.1
_RESERVED = ("path", "root", "topic", "topicpattern")


class CommandCall(NamedTuple):
    """What was asked for."""

    action: Action
    only: tuple[str, ...] = ()
    every: float | None = None
    """Seconds from the beginning of a run to that of the next; None: one run."""
    table: str = ""
    begin: str | None = None
    end: str | None = None
    as_json: bool = False


class CommandOutput(NamedTuple):
    """Where what comes of it goes."""

    say: Callable[[str], None]
    """A line of words."""
    show: Callable[[Sequence[str], Sequence[Sequence[object]]], None]
    """Rows under their columns."""
    emit_json: Callable[[object], None]
    """One object."""


class PlaceOverrides(NamedTuple):
    """What the command line says in place of the file."""

    root: str | None = None
    tables: str | None = None
    reports: str | Literal[False] | None = None
    options: Mapping[str, str] = {}
    defaults: Mapping[str, str] = {}
    """Options that count where neither the file nor the command line says anything else."""

    @property
    def changes(self) -> dict[str, Any]:
        """What is said, by the names that `Pipeline` has for it."""
        said = {"root": self.root, "tables": self.tables, "reports": self.reports}
        return {name: value for name, value in said.items() if value is not None}


# -- what is said -----------------------------------------------------------------------------------------------


def parse_every(text: str) -> float:
    """An interval such as "30s"."""
    seconds = parse_seconds(text)
    if seconds < EVERY_MIN:
        raise Invalid(f"runs are {EVERY_MIN} s apart at least every={text}", hint="as 30s or 5m")
    return seconds


def parse_option(text: str) -> tuple[str, str]:
    """An option of the format, as NAME=VALUE."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise Invalid("an option is NAME=VALUE", hint="as endpoint=http://127.0.0.1:8333")
    if name.lower() in _RESERVED:
        raise Invalid(f"{name} is not an option here", hint="the root is --root, topics are inputs of tables")
    return name, value


def parse_bound(text: str | None) -> str | None:
    """One end of a range: offsets, a time, or run:17."""
    return None if text is None else text.removeprefix("run:")


def with_places(pipeline: Pipeline, places: PlaceOverrides) -> Pipeline:
    """A pipeline at the places that the command line says."""
    options = {**places.defaults, **pipeline.options, **places.options}
    changes = places.changes | ({"options": options} if options != pipeline.options else {})
    return pipeline.changed(**changes) if changes else pipeline


# -- what is done -----------------------------------------------------------------------------------------------


def execute(pipeline: Pipeline, call: CommandCall, output: CommandOutput, start: Callable[[], SparkSession]) -> int:
    """Do what was asked for; returns the exit code. `start` makes the session, when it is needed."""
    if call.action == STATUS:
        return _status(pipeline, call, output)
    session = _Session(start)
    logger = logging.getLogger("holdfast")
    logger.addFilter(_is_news)
    try:
        code = _work(pipeline, call, output, session.get)
    finally:
        logger.removeFilter(_is_news)
        session.stop()
    if pipeline.reports is not None:
        output.say(f"reports: {pipeline.reports.removeprefix('file://')}/index.html")
    return code


def _work(pipeline: Pipeline, call: CommandCall, output: CommandOutput, session: Callable[[], SparkSession]) -> int:
    if call.action == BACKFILL:
        begin, end = parse_bound(call.begin), parse_bound(call.end)
        report = pipeline.backfill(call.table, session, begin=begin, end=end, progress=output.say)
        return _show_run(report, call, output)
    if call.every is None:
        return _show_run(pipeline.run(session, only=call.only, progress=output.say), call, output)
    return _repeat(pipeline, call, output, session)


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a warning says what is not reported here anyway."""
    return getattr(record, "action", "") != "table_failed"


def _repeat(pipeline: Pipeline, call: CommandCall, output: CommandOutput, session: Callable[[], SparkSession]) -> int:
    """Run after run; the exit code is that of the last one."""
    codes = [FINE]
    assert call.every is not None
    pipeline.run_every(
        call.every,
        session,
        only=call.only,
        progress=_news(output.say),
        after=lambda report: codes.append(_show_run(report, call, output, is_one_of_many=True)),
    )
    output.say("stopped")
    return codes[-1]


def _news(say: Callable[[str], None]) -> Callable[[str], None]:
    """Progress without what was said before, and without that there was nothing: a service would say it forever."""
    last: dict[str, str] = {}

    def tell(line: str) -> None:
        table, _, what = line.rpartition(" (")[0].partition(": ")
        if what not in ("nothing new", last.get(table)):
            say(line)
        last[table] = what

    return tell


class _Session:
    """The session of this call: made when it is asked for, stopped at the end."""

    def __init__(self, start: Callable[[], SparkSession]) -> None:
        self._start = start
        self._made: SparkSession | None = None

    def get(self) -> SparkSession:
        if self._made is None:
            self._made = self._start()
        return self._made

    def stop(self) -> None:
        if self._made is not None:
            self._made.stop()


# -- what is shown ----------------------------------------------------------------------------------------------

RUN_COLUMNS = ("table", "outcome", "run", "version", "rows in", "rows out", "lag", "seconds")
STATUS_COLUMNS = ("table", "kind", "run", "version", "rows", "files", "bytes", "lag", "last run")


def _show_run(report: RunReport, call: CommandCall, output: CommandOutput, *, is_one_of_many: bool = False) -> int:
    if call.as_json:
        output.emit_json(report)
    elif not is_one_of_many or any(one.outcome != "unchanged" for one in report.tables):
        output.show(RUN_COLUMNS, [_run_row(one) for one in report.tables])
        for one in report.tables:
            _say_failure(one.name, one.error, one.hint, output)
            if one.note and one.outcome == "written":  # others were reported when it was their turn
                output.say(f"{one.name}: {one.note}")
    return _code(report)


def _run_row(one: TableReport) -> tuple[object, ...]:
    known = one.outcome in ("written", "unchanged")
    return (
        one.name,
        one.outcome,
        one.run if known else None,
        one.version if known else None,
        one.rows_in,
        one.rows_out,
        one.lag if known else None,
        f"{one.seconds:.1f}",
    )


def _code(report: RunReport) -> int:
    if any(one.error_kind == Corrupt.__name__ for one in report.tables):
        return DAMAGED
    return FINE if report.is_fine else REFUSED


def _status(pipeline: Pipeline, call: CommandCall, output: CommandOutput) -> int:
    tables = pipeline.status()
    if call.as_json:
        for one in tables:
            output.emit_json(one)
    else:
        output.show(STATUS_COLUMNS, [_status_row(one) for one in tables])
        for one in tables:
            _say_failure(one.name, one.error, one.hint, output)
    return REFUSED if any(one.error for one in tables) else FINE


def _status_row(one: TableStatus) -> tuple[object, ...]:
    if one.version < 0:
        return (one.name, one.kind, None, None, None, None, None, None if one.error else one.lag, None)
    when = datetime.fromtimestamp(one.started_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return (one.name, one.kind, one.run, one.version, one.rows, one.files, one.bytes, one.lag, when)


def _say_failure(name: str, error: str, hint: str, output: CommandOutput) -> None:
    if error:
        for line in f"{name}: {error}".splitlines():
            output.say(line)
        if hint:
            output.say(f"hint: {hint}")


# -- by itself: spark-submit FILE.py ----------------------------------------------------------------------------


def main(pipeline: Pipeline, arguments: Sequence[str] | None = None) -> int:
    """The pipeline of a file, as its program; returns the exit code."""
    made = parser(pipeline.name)
    given = made.parse_args(arguments)
    try:
        call, places = _call(given, made.error), _places(given)
    except Invalid as error:
        made.error(f"{error.message}; {error.hint}")
    try:
        return execute(with_places(pipeline, places), call, _plain(), lambda: _start(given.master))
    except HoldfastError as error:
        _tell(error, as_json=given.as_json)
        return DAMAGED if isinstance(error, Corrupt) else REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED


def parser(name: str) -> argparse.ArgumentParser:
    """The arguments of a pipeline's own program: those of `holdfast spark pipeline`, without the file."""
    made = argparse.ArgumentParser(prog=name, description="Run a pipeline of tables.", allow_abbrev=False)
    made.add_argument("action", nargs="?", default=RUN, choices=[RUN, STATUS, BACKFILL])
    made.add_argument("table", nargs="?", default="", help="of backfill")
    made.add_argument("--root", help="where topics are, in place of what the file says")
    made.add_argument("--tables", help="where tables lie")
    made.add_argument("--reports", help="where reports are written")
    made.add_argument("--no-reports", action="store_true", help="write no reports")
    made.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the format")
    made.add_argument("--keyring", metavar="REF", help="where the keys are: env:NAME or file:PATH")
    made.add_argument("--only", action="append", default=[], metavar="TABLE", help="only this table; repeatable")
    made.add_argument("--every", metavar="TIME", help="run again and again, as 30s")
    made.add_argument("--available-now", action="store_true", help="one run; the default")
    made.add_argument("--from", dest="begin", metavar="BOUND", help="of backfill: offsets, a time, or run:17")
    made.add_argument("--to", dest="end", metavar="BOUND")
    made.add_argument("--master", help="where Spark runs")
    made.add_argument("--json", action="store_true", dest="as_json", help="one JSON object per line")
    return made


def checked(call: CommandCall, *, available_now: bool, refuse: Callable[[str], NoReturn]) -> CommandCall:
    """A call whose arguments belong together; `refuse` gets what does not."""
    if call.every is not None and available_now:
        refuse("--every and --available-now exclude each other")
    if call.action != RUN and (call.every is not None or available_now or call.only):
        refuse("--every, --available-now and --only are for run")
    if call.action != BACKFILL and (call.begin or call.end or call.table):
        refuse("TABLE, --from and --to are for backfill")
    if call.action == BACKFILL and not call.table:
        refuse("backfill needs a TABLE")
    return call


def _call(given: argparse.Namespace, refuse: Callable[[str], NoReturn]) -> CommandCall:
    every = None if given.every is None else parse_every(given.every)
    call = CommandCall(given.action, tuple(given.only), every, given.table, given.begin, given.end, given.as_json)
    return checked(call, available_now=given.available_now, refuse=refuse)


def _places(given: argparse.Namespace) -> PlaceOverrides:
    options = dict(map(parse_option, given.option)) | ({} if given.keyring is None else {"keyring": given.keyring})
    found = PlaceOverrides(given.root, given.tables, given.reports, options)
    return found._replace(reports=False) if given.no_reports else found


def _start(master: str | None) -> SparkSession:
    """A session: the one that spark-submit prepares, or one for this machine."""
    from pyspark_holdfast.spark_session import configure, session

    if master is not None or "PYSPARK_GATEWAY_PORT" not in os.environ:
        return session() if master is None else session(master)
    from pyspark.sql import SparkSession

    return configure(SparkSession.builder).getOrCreate()


def _plain() -> CommandOutput:
    return CommandOutput(_say, _show, lambda value: _write(msgspec.json.encode(value).decode()))


def _say(words: str) -> None:
    sys.stderr.write(_printable(words) + "\n")
    sys.stderr.flush()


def _write(line: str) -> None:
    sys.stdout.write(_printable(line) + "\n")
    sys.stdout.flush()


def _show(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    cells = [list(columns), *(["-" if value is None else _printable(str(value)) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        _write("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _printable(text: str) -> str:
    """The text with an escape in place of everything that a terminal could act on."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def _tell(error: HoldfastError, *, as_json: bool) -> None:
    kind = next(one.__name__ for one in type(error).__mro__ if one.__module__ == HoldfastError.__module__)
    if as_json:
        _say(msgspec.json.encode({"error": kind, "message": error.message, "hint": error.hint}).decode())
        return
    _say(f"error: {error.message}")
    if error.hint:
        _say(f"hint: {error.hint}")
