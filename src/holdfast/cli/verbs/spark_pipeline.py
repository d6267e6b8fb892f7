"""`holdfast spark pipeline run|status|backfill FILE`: tables kept up with the topics of a root, from a Python file.

What is done, and what is shown of it, is `pyspark_holdfast.pipeline.command.command_line`, which `spark-submit FILE`
uses as well; here are the options, and where it is printed. Mistakes in the file or in the options are reported before
Spark starts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from holdfast import Settings
from holdfast.cli.action_group import Actions
from holdfast.cli.options import json_option, keyring_option
from holdfast.cli.output import emit_json, emit_table, flush, say
from holdfast.errors import Invalid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_holdfast.pipeline.command.command_line import Action, CommandCall, PlaceOverrides

Command = TypeVar("Command", bound=Callable[..., Any])
EPILOG = """\b
Examples:
  holdfast spark pipeline run shop.py
  holdfast spark pipeline run shop.py --every 30s --reports /srv/reports
  holdfast spark pipeline status shop.py --json
  holdfast spark pipeline backfill shop.py revenue --from 2026-11-15T00:00:00Z
Without a Pipeline in the file, --root and --tables say where its tables read and lie."""


@click.group("pipeline", cls=Actions, epilog=EPILOG, no_args_is_help=False)
def pipeline_command() -> None:
    """Run tables that are defined in a Python file, inspect them, or compute a range of one again."""


def _shared(command: Command) -> Command:
    """What all three take."""
    options = [
        click.argument("file", metavar="FILE", type=click.Path(path_type=Path)),
        click.option("--root", metavar="ROOT", help="Where topics are, in place of what the file says."),
        click.option("--tables", metavar="PLACE", help="Where tables lie, in place of what the file says."),
        click.option("--pipeline", "name", metavar="NAME", help="Which one, if the file has several."),
        click.option(
            "--option", "pairs", metavar="NAME=VALUE", multiple=True, help="An option of the format; repeatable."
        ),
        keyring_option,
        json_option,
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _working(command: Command) -> Command:
    """What those take that write."""
    options = [
        click.option("--reports", metavar="PLACE", help="Where reports go.  [default: _reports beside the tables]"),
        click.option("--no-reports", is_flag=True, help="Write no reports."),
        click.option("--master", default="local[*]", show_default=True, help="Where Spark runs."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@pipeline_command.command("run")
@_shared
@_working
@click.option("--only", metavar="TABLE", multiple=True, help="Only this table; repeatable.")
@click.option(
    "--every",
    metavar="TIME",
    help="Run again and again, as '30s', until SIGTERM or Ctrl-C; after failures later, up to five minutes.",
)
@click.option("--available-now", is_flag=True, help="One run, up to what is settled now: the default.")
def run_command(
    file: Path, only: tuple[str, ...], every: str | None, available_now: bool, master: str, as_json: bool, **places: Any
) -> int:
    """Bring tables up to what is settled: all of them, unless some are named."""
    return _execute(file, master, places, "run", available_now, only=only, every=every, as_json=as_json)


@pipeline_command.command("status")
@_shared
def status_command(file: Path, as_json: bool, **places: Any) -> int:
    """Show tables as they are, and how far they are behind what is settled. Starts no Spark."""
    return _execute(file, "", places, "status", as_json=as_json)


@pipeline_command.command("backfill")
@_shared
@click.argument("table", metavar="TABLE")
@_working
@click.option(
    "--from", "begin", metavar="BOUND", help="From where: offsets as JSON, a time, or run:17; both bounds of one kind."
)
@click.option("--to", "end", metavar="BOUND", help="To where; a run is included, a time or offset is not.")
def backfill_command(
    file: Path, table: str, begin: str | None, end: str | None, master: str, as_json: bool, **places: Any
) -> int:
    """Compute rows of TABLE again: those of a range, or all of them."""
    return _execute(file, master, places, "backfill", table=table, begin=begin, end=end, as_json=as_json)


def _execute(
    file: Path, master: str, places: dict[str, Any], action: Action, available_now: bool = False, **asked: Any
) -> int:
    from pyspark_holdfast.pipeline.command.command_line import CommandOutput, execute
    from pyspark_holdfast.pipeline.command.pipeline_file import load_pipeline

    call = _call(action, available_now, asked)
    pipeline = load_pipeline(file, places["name"], _places(places))
    try:
        return execute(pipeline, call, CommandOutput(say, emit_table, _emit_now), lambda: _start(master))
    finally:
        flush()


def _call(action: Action, available_now: bool, asked: dict[str, Any]) -> CommandCall:
    from pyspark_holdfast.pipeline.command.command_line import CommandCall, checked, parse_every

    if asked.get("every") is not None:
        asked["every"] = _wrong_usage(parse_every, asked["every"])
    return checked(CommandCall(action, **asked), available_now=available_now, refuse=_refuse)


def _places(given: dict[str, Any]) -> PlaceOverrides:
    from pyspark_holdfast.pipeline.command.command_line import PlaceOverrides, parse_option

    options = dict(_wrong_usage(parse_option, pair) for pair in given["pairs"])
    if given["reference"] is not None:
        options["keyring"] = given["reference"]
    keyring = Settings.load().crypto.keyring
    defaults = {"keyring": keyring} if keyring else {}
    found = PlaceOverrides(given["root"], given["tables"], given.get("reports"), options, defaults)
    return found._replace(reports=False) if given.get("no_reports") else found


Value = TypeVar("Value")


def _wrong_usage(parse: Callable[[str], Value], text: str) -> Value:
    try:
        return parse(text)
    except Invalid as error:
        _refuse(f"{error.message}; {error.hint}")


def _refuse(message: str) -> NoReturn:
    raise click.UsageError(message)


def _emit_now(value: object) -> None:
    emit_json(value)
    flush()


def _start(master: str) -> SparkSession:
    import pyspark_holdfast

    say(f"starting Spark ({master}) …")
    try:
        return pyspark_holdfast.session(master)
    except AttributeError as error:
        raise Invalid("Spark needs the extra 'spark'", hint="pip install 'holdfast-log[spark]'") from error
