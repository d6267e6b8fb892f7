"""`holdfast read`: records of a topic for people, for programs (`--json`, `--format arrow`) or as they are (`--raw`).

The log is opened for reading only, so this works while a service owns it. Segments and tail are one stream. Every
record is proved before it is printed; the first that cannot be proved ends the output with exit code 3.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import click
import msgspec

from holdfast import Log, Settings, Topic
from holdfast.cli.exit_codes import DAMAGED, FINE
from holdfast.cli.follow_output import end_of, follow, read
from holdfast.cli.inspection.at_root import Root, log_id_option, place_argument, refuse_log_id
from holdfast.cli.inspection.root_records import PrintSelection, print_root
from holdfast.cli.options import find_topic, json_option, keyring_option, open_log, parsed, topic_argument
from holdfast.cli.output import emit_json, flush, say, say_holdfast_error, say_problems
from holdfast.cli.printing import ARROW, JSON, RAW, RAW_JOINED, TEXT, items, write_arrow, writer
from holdfast.clock import SystemClock
from holdfast.errors import Invalid, NotFound
from holdfast.log.topics.typed_topic import TypedTopic
from holdfast.model.record import moment_of
from holdfast.quantity import parse_bytes

BEGINNING = "-"
"""The position of a reader that has none yet."""

EPILOG = """\b
Examples:
  holdfast read data orders --start -10
  holdfast read data orders --since 10m --limit 100 --json           also: 2026-01-31, 2026-01-31T12:00:00Z
  holdfast read data orders --key c-42 --reverse --limit 1
  holdfast read data orders --limit 1000 --position -        then: --position '{"0":1000}'
  holdfast read data orders --raw > orders.txt
  holdfast read data trades --columns price,size --format arrow > trades.arrows
  holdfast read s3://bucket/prefix orders --start -10
In text, each line is: partition, offset, time, key, kind, payload; what does not print is escaped.
Of a typed topic it is: partition, offset, time, and the row as JSON."""


class PositionLine(msgspec.Struct, frozen=True):
    """The last line with --json and --position: where to continue, and whether there was nothing more."""

    position: str
    """Where to go on; with `--position`, the last line. In text, and with `--raw` or `--format arrow`, it is on
    stderr.
    """
    exhausted: bool
    """Whether that was all there was when the read began."""


def parse_time(text: str) -> int:
    """A time on the command line: as people write it, or microseconds since 1970."""
    return int(text) if text.removeprefix("-").isdecimal() else moment_of(text, SystemClock().now_us())


def _columns(_ctx: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> list[str] | None:
    return [name for text in given for name in text.split(",")] or None


@click.command("read", epilog=EPILOG)
@place_argument
@topic_argument
@click.option("--start", type=int, help="First offset; a negative one counts from the end.  [default: the first left]")
@click.option("--end", type=int, help="Offset to stop before; a negative one counts from the end.")
@click.option(
    "--since",
    metavar="TIME",
    callback=parsed(parse_time),
    help="Only records of this time or later: ISO 8601 (in UTC, or with a zone), or how long ago, as '10m'.",
)
@click.option("--until", metavar="TIME", callback=parsed(parse_time), help="Only records of this time or earlier.")
@click.option(
    "--key", help="Only records with this key, or this value in the key column. Not of a store, nor with --follow."
)
@click.option("--limit", type=click.IntRange(min=0), help="How many records at most.")
@click.option(
    "--bytes",
    "size",
    metavar="SIZE",
    callback=parsed(parse_bytes),
    help="How many bytes at most, as '1MiB'; the first record comes in any case.",
)
@click.option("--reverse", is_flag=True, help="Last record first.")
@click.option(
    "--partition", "partitions", type=int, multiple=True, help="This partition only; may be given repeatedly."
)
@click.option(
    "--columns",
    metavar="NAMES",
    multiple=True,
    callback=_columns,
    help="Of a typed topic: only these, as 'a,b'; may be given repeatedly.",
)
@click.option(
    "--position",
    metavar="TOKEN",
    help="Go on where an earlier read ended, with --reverse backwards; '-': at the beginning. Prints the new position.",
)
@click.option("--format", "form", type=click.Choice([TEXT, JSON, ARROW]), help="How to print.  [default: text]")
@click.option("--raw", is_flag=True, help="Payloads only, byte by byte, each followed by a newline.")
@click.option("--no-newline", is_flag=True, help="With --raw: nothing between payloads.")
@click.option("--follow", "following", is_flag=True, help="Wait for more, forever; without --start, only new records.")
@log_id_option
@keyring_option
@json_option
@click.pass_context
def read_command(
    ctx: click.Context,
    place: Path | Root,
    topic: str,
    start: int | None,
    end: int | None,
    since: int | None,
    until: int | None,
    key: str | None,
    limit: int | None,
    size: int | None,
    reverse: bool,
    partitions: tuple[int, ...],
    columns: list[str] | None,
    position: str | None,
    form: str | None,
    raw: bool,
    no_newline: bool,
    following: bool,
    log_id: str,
    reference: str | None,
    as_json: bool,
) -> int:
    """Print records of TOPIC of the log in DIR, also while another process owns it, or of the store at URL.

    Damage ends the output where it begins, with exit code 3; everything printed was proved.
    """
    form = _form(form, as_json=as_json, raw=raw, no_newline=no_newline)
    endings = (end, since, until, key, size, position)
    if following and (reverse or form == ARROW or any(value is not None for value in endings)):
        raise click.UsageError(
            "--follow has no end: it goes with --start, --limit, --partition and --columns only", ctx
        )
    if position is not None and (end if reverse else start) is not None:
        raise click.UsageError(
            f"--position is the same as {'--end' if reverse else '--start'}: leave one of them out", ctx
        )
    settings = Settings.load()
    limit = None if limit is None else min(limit, sys.maxsize)
    if isinstance(place, Root):
        if following or reverse or any(value is not None for value in (key, position, size)):
            raise click.UsageError("of a store: no --follow, --key, --reverse, --position or --bytes", ctx)
        wanted = PrintSelection(start, end, since, until, limit, partitions, columns)
        return print_root(place, topic, wanted, place.options(reference, log_id, settings), form)
    refuse_log_id(place, log_id)
    with open_log(place, reference, settings, read_only=True) as log:
        source = look_for(log, topic, as_json=form == JSON)
        if source is None:
            return DAMAGED  # the damage may be why it is not found
        if columns is not None and not isinstance(source, TypedTopic):
            raise Invalid(f"topic {topic!r} holds raw records", hint="leave --columns out; --raw prints payloads alone")
        if following:
            begin = end_of(source, partitions or None) if start is None else start
            follow(source, begin, partitions or None, columns, limit, writer(source, form))
            return DAMAGED if log.problems else FINE
        span: tuple[Any, Any] = (start, end)
        if position is not None and position != BEGINNING:
            span = (start, position) if reverse else (position, end)
        options = {
            "limit": limit,
            "reverse": reverse,
            "partition": partitions or None,
            "since": since,
            "until": until,
            "bytes_max": size,
            "key": None if key is None else _key(source, key),
        }
        _print(source, span, columns, options, form, tell_position=position is not None)
        return DAMAGED if log.problems else FINE


def look_for(log: Log, name: str, *, as_json: bool) -> Topic | TypedTopic | None:
    """The topic, after reporting what is wrong with the log; None where a damaged log does not have it."""
    say_problems(log.problems, as_json=as_json)
    try:
        return find_topic(log, name)
    except NotFound as error:
        if not log.problems:
            raise
        say_holdfast_error(error, as_json=as_json)
        return None


def _key(topic: Topic | TypedTopic, text: str) -> bytes | str | int:
    """A key on the command line, as the topic has them."""
    if not isinstance(topic, TypedTopic) or topic.key is None:
        return os.fsencode(text)
    kind = str(topic.schema.field(topic.key).type)
    if "string" in kind:
        return text
    if "int" not in kind:
        return os.fsencode(text)
    try:
        return int(text)
    except ValueError:
        raise Invalid(f"not a key: {text[:40]!r}", hint=f"column {topic.key!r} holds integers") from None


def _form(form: str | None, *, as_json: bool, raw: bool, no_newline: bool) -> str:
    """The one way to print that the options name."""
    if no_newline and not raw:
        raise click.UsageError("--no-newline goes with --raw")
    if raw and (as_json or form is not None):
        raise click.UsageError("--raw and --json or --format exclude each other")
    if as_json and form not in {None, JSON}:
        raise click.UsageError(f"--json and --format {form} exclude each other")
    if raw:
        return RAW_JOINED if no_newline else RAW
    return JSON if as_json else form or TEXT


def _print(
    topic: Topic | TypedTopic,
    span: tuple[Any, Any],
    columns: Collection[str] | None,
    options: dict[str, Any],
    form: str,
    *,
    tell_position: bool,
) -> None:
    reading = read(topic, *span, columns=columns, **options)
    if form == ARROW:
        write_arrow(reading)
    else:
        write = writer(topic, form)
        for item in items(topic, reading):
            write(item)
    if tell_position and form == JSON:
        emit_json(PositionLine(reading.position, reading.exhausted))
    elif tell_position:
        flush()
        say(f"position: {reading.position}{'' if reading.exhausted else ' (there is more)'}")
    flush()
