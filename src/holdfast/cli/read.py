"""`holdfast read`: records of a topic, for eyes, for programs (`--json`) or as they are (`--raw`).

The log is opened for reading only, so this works while a service owns it. Every record was proved before it
is printed; the first that cannot be proved ends the output with exit code 3.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import click

from holdfast import Record, Settings, Topic
from holdfast.cli.exits import DAMAGED, FINE
from holdfast.cli.options import directory_argument, json_option, keyring_option, open_log, topic_argument
from holdfast.cli.output import emit, emit_bytes, emit_json, flush, say_holdfast_error
from holdfast.cli.text import iso, printable, record_line, shown
from holdfast.errors import NotFound

EPILOG = """\b
Examples:
  holdfast read data orders --start -10
  holdfast read data orders --follow --json | jq .payload
  holdfast read data orders --raw > orders.txt
In text, each line is: partition, offset, time, key, kind, payload; what does not print is escaped."""


@click.command("read", epilog=EPILOG)
@directory_argument
@topic_argument
@click.option("--start", type=int, help="First offset; a negative one counts from the end.  [default: 0]")
@click.option("--end", type=int, help="Offset to stop before; a negative one counts from the end.")
@click.option("--limit", type=click.IntRange(min=0), help="How many records at most.")
@click.option("--reverse", is_flag=True, help="Last record first.")
@click.option("--partition", type=int, help="This partition only; else one after the other.")
@click.option("--raw", is_flag=True, help="Payloads only, byte by byte, each followed by a newline.")
@click.option("--no-newline", is_flag=True, help="With --raw: nothing between payloads.")
@click.option("--follow", is_flag=True, help="Wait for more, for ever; without --start, only new records.")
@keyring_option
@json_option
@click.pass_context
def read_command(
    ctx: click.Context,
    directory: Path,
    topic: str,
    start: int | None,
    end: int | None,
    limit: int | None,
    reverse: bool,
    partition: int | None,
    raw: bool,
    no_newline: bool,
    follow: bool,
    reference: str | None,
    as_json: bool,
) -> int:
    """Print records of TOPIC of the log in DIR, also while another process owns it.

    Damage ends the output where it begins, with exit code 3; everything printed was proved.
    """
    limit = None if limit is None else min(limit, sys.maxsize)
    if follow and (reverse or end is not None):
        raise click.UsageError("--follow has no end: leave --end and --reverse out", ctx)
    if raw and as_json:
        raise click.UsageError("--raw and --json exclude each other", ctx)
    if no_newline and not raw:
        raise click.UsageError("--no-newline goes with --raw", ctx)
    with open_log(directory, reference, Settings.load(), read_only=True) as log:
        for problem in log.problems:
            say_holdfast_error(problem, as_json=as_json)
        try:
            source = log.topic(topic)
        except NotFound as error:
            if not log.problems:
                raise
            say_holdfast_error(error, as_json=as_json)
            return DAMAGED  # the damage may be why it is not found
        write = _raw(b"" if no_newline else b"\n") if raw else _json(source) if as_json else _line
        if follow:
            for record in _follow(source, start, limit, partition):
                write(record)
                flush()
        else:
            for record in source.read(start or 0, end, limit, reverse, partition=partition):
                write(record)
        flush()
        return DAMAGED if log.problems else FINE


def _follow(topic: Topic, start: int | None, limit: int | None, partition: int | None) -> Iterator[Record]:
    return islice(topic.follow(start, partition=partition), limit)


def _raw(ending: bytes) -> Callable[[Record], None]:
    return lambda record: emit_bytes(record.payload + ending)


def _json(topic: Topic) -> Callable[[Record], None]:
    return lambda record: emit_json(record_line(topic.name, record))


def _line(record: Record) -> None:
    kind = "-" if record.kind is None else printable(record.kind)
    time = iso(record.time) or record.time
    emit(f"{record.partition} {record.offset:>8}  {time}  {shown(record.key)}  {kind}  {shown(record.payload)}")
