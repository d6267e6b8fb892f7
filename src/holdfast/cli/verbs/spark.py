"""`holdfast spark read|compact`: a quick look at a root through Spark, and its jobs, with the code that a cluster runs.
`holdfast spark pipeline` is in a file of its own.

Spark starts for this one question (it takes seconds, and stderr says so) and ends with it. A question goes through
`pyspark_holdfast.read`: over Spark's own Parquet reader where that is possible, else over the format. The answer says
which way it took, and how far each partition was settled. Jobs are those of `pyspark_holdfast.jobs`.
"""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO

import click
import msgspec

from holdfast import Settings
from holdfast.cli.action_group import Actions
from holdfast.cli.exit_codes import FINE
from holdfast.cli.options import asking_for_key, json_option, keyring_option, load_keyring, parsed
from holdfast.cli.output import emit, emit_bytes, emit_json, emit_json_bytes, flush, say
from holdfast.cli.progress import ProgressLine
from holdfast.cli.verbs.compact import show_report
from holdfast.cli.verbs.spark_pipeline import pipeline_command
from holdfast.clock import SystemClock
from holdfast.compaction.compact_root import open_for_compaction
from holdfast.compaction.compaction_plan import TARGET_BYTES
from holdfast.errors import HoldfastError, Invalid
from holdfast.quantity import parse_bytes
from holdfast.reader.open_root import SettledRoot
from holdfast.reader.read_options import parse_options

_ARGUMENTS = ("path", "root", "topic")

EPILOG = """\b
Examples:
  holdfast spark read s3://bucket/prefix orders --option endpoint=http://127.0.0.1:8333
  holdfast spark read data orders --where "partition = 0 and timestamp > '2026-01-01'" --limit 5
  holdfast spark read data orders --count --json
  holdfast spark compact s3://bucket/prefix orders --target-size 256MiB
  holdfast spark pipeline run shop.py --every 30s
Options of the format (--option NAME=VALUE) are those of spark.read.format("holdfast")."""


class SparkAnswer(msgspec.Struct, frozen=True):
    """The last line with --json: what was read, and how."""

    rows: int
    """Rows that were printed, or counted."""
    marks: str
    """From where to where each partition was settled when the query was planned, as text: the same for `--option
    asOf=…` asks it again of the same records.
    """
    path: str
    """`native` (Spark's own Parquet reader) or `format`."""
    reason: str
    """Why."""


@click.group("spark", cls=Actions, epilog=EPILOG, no_args_is_help=False)
def spark_command() -> None:
    """Read what is settled at a root (a store's URL or a directory) through Spark, compact it there, or run a pipeline
    of tables.
    """


spark_command.add_command(pipeline_command)

root_argument = click.argument("root", metavar="ROOT")
master_option = click.option("--master", default="local[*]", show_default=True, help="Where Spark runs.")


@spark_command.command("read")
@root_argument
@click.argument("topic", metavar="TOPIC")
@click.option("--where", metavar="SQL", help="Only rows for which this SQL is true; times in UTC.")
@click.option("--columns", metavar="NAMES", help="Only these columns, as 'a,b'.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many rows at most.")
@click.option(
    "--count", "counting", is_flag=True, help="Only how many rows there are, all of them: --limit does not count."
)
@click.option("--option", "pairs", metavar="NAME=VALUE", multiple=True, help="An option of the format; repeatable.")
@master_option
@keyring_option
@json_option
def read_command(
    root: str,
    topic: str,
    where: str | None,
    columns: str | None,
    limit: int,
    counting: bool,
    pairs: tuple[str, ...],
    master: str,
    reference: str | None,
    as_json: bool,
) -> int:
    """Ask one question about what is settled in TOPIC."""
    _read(root, topic, where, limit, _options(pairs, columns, reference), master, counting, as_json)
    return FINE


@spark_command.command("compact")
@root_argument
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@click.option("--target-size", metavar="SIZE", callback=parsed(parse_bytes), help="How large files become.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@master_option
@keyring_option
@json_option
def compact_command(
    root: str,
    topics: tuple[str, ...],
    target_size: int | None,
    dry_run: bool,
    master: str,
    reference: str | None,
    as_json: bool,
) -> int:
    """Join small segments, as `holdfast compact` does; each task of Spark makes one file."""
    return _compact(root, topics, target_size, master, reference, dry_run=dry_run, as_json=as_json)


def _compact(
    root: str,
    topics: tuple[str, ...],
    target_size: int | None,
    master: str,
    reference: str | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> int:
    settings = Settings.load()
    keyring = (reference or settings.crypto.keyring) or None
    with asking_for_key(load_keyring(reference, settings)):
        opened = open_for_compaction(root, keyring=keyring, store=settings.store, clock=SystemClock())
        opened.topics(topics)  # errors come before Spark starts
    import pyspark_holdfast

    say(f"starting Spark ({master}) …")
    spark = pyspark_holdfast.session(master)
    from pyspark.errors import PySparkException

    from pyspark_holdfast.jobs.compact import compact

    try:
        with ProgressLine() as working:
            report = compact(
                spark,
                root,
                topics,
                target_size=TARGET_BYTES if target_size is None else target_size,
                dry_run=dry_run,
                keyring=keyring,
                delete_after_ms=settings.shipping.delete_after_ms,
                lease_delay_max_ms=settings.shipping.lease_delay_max_ms,
                clock_jump_max_ms=settings.journal.clock_jump_max_ms,
                store=settings.store,
                progress=lambda what, done, total: working.show(f"{what}: {done} of {total} files"),
            )
    except PySparkException as error:
        raise _translated(error) from error
    finally:
        spark.stop()
    return show_report(report, as_json=as_json)


def _read(
    root: str,
    topic: str,
    where: str | None,
    limit: int,
    options: dict[str, str],
    master: str,
    counting: bool,
    as_json: bool,
) -> None:
    place, asked = parse_options({"path": root, "topic": topic, **options})  # errors come before Spark starts
    if master.startswith("local"):  # this machine reads: what is missing can be reported at once
        SettledRoot.open(place, asked).topics(asked)
    import pyspark_holdfast

    say(f"starting Spark ({master}) …")
    spark = pyspark_holdfast.session(master)
    from pyspark.errors import PySparkException
    from pyspark.sql import functions

    try:
        frame = pyspark_holdfast.read(spark, root, topic, **options)
        taken, marks = pyspark_holdfast.path_of(frame), pyspark_holdfast.marks_of(frame)
        say(f"reading through {taken.path}: {taken.reason}")
        chosen = frame if where is None else frame.where(where)
        if counting:
            rows = chosen.count()
            if not as_json:
                emit_bytes(b"%d\n" % rows)
        elif as_json:
            lines = functions.to_json(functions.struct("*"), {"ignoreNullFields": "false"})
            found = chosen.limit(limit).select(lines).collect()
            rows = len(found)
            for row in found:
                emit_json_bytes(row[0].encode())
        else:
            rows = limit
            table = StringIO()
            with redirect_stdout(table):
                chosen.show(limit, truncate=60)
            for line in table.getvalue().rstrip("\n").split("\n"):
                emit(line)
        if as_json:
            emit_json(SparkAnswer(rows, marks, taken.path, taken.reason))
        else:
            say(f"settled: {marks}")
    except PySparkException as error:
        raise _translated(error) from error
    finally:
        spark.stop()
        flush()


def _options(pairs: tuple[str, ...], columns: str | None, reference: str | None) -> dict[str, str]:
    options = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise click.UsageError("an option is NAME=VALUE")
        if name.lower() in _ARGUMENTS:
            raise click.UsageError(f"{name} is not an option here: ROOT and TOPIC say it")
        options[name] = value
    if columns is not None:
        options["columns"] = columns
    if reference is not None:
        options["keyring"] = reference
    return options


def _translated(error: Exception) -> HoldfastError:
    """The error that a Python worker raised, found in Spark's; else Spark's own first line."""
    from pyspark_holdfast.error_reports import raised_by_worker

    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    hint = "see `holdfast spark -h`; HOLDFAST_DEBUG=1 shows where"
    return raised_by_worker(error) or Invalid(lines[0] if lines else type(error).__name__, hint=hint)
