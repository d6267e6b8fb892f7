"""`holdfast tail`: the last records of a topic and, with `-f`, new ones as they come.

A short form of `holdfast read`: the log is opened for reading only, and only as many segments are touched as the
records need.
"""

from __future__ import annotations

from pathlib import Path

import click

from holdfast import Settings
from holdfast.cli.exit_codes import DAMAGED, FINE
from holdfast.cli.follow_output import follow, read
from holdfast.cli.options import directory_argument, json_option, keyring_option, open_log, topic_argument
from holdfast.cli.output import flush
from holdfast.cli.printing import JSON, RAW, TEXT, items, writer
from holdfast.cli.verbs.read import look_for

_NUMBER_MAX = 2**62

EPILOG = """\b
Examples:
  holdfast tail data orders
  holdfast tail data orders -n 100 -f --json
Of a topic with several partitions, the last records of each; see also 'holdfast read'."""


@click.command("tail", epilog=EPILOG)
@directory_argument
@topic_argument
@click.option(
    "--number",
    "-n",
    metavar="N",
    type=click.IntRange(0, _NUMBER_MAX),
    default=10,
    show_default=True,
    help="How many records of each partition.",
)
@click.option("--follow", "-f", "following", is_flag=True, help="Then wait for more, forever.")
@click.option(
    "--partition", "partitions", type=int, multiple=True, help="This partition only; may be given repeatedly."
)
@click.option("--raw", is_flag=True, help="Payloads only, byte by byte, each followed by a newline.")
@keyring_option
@json_option
@click.pass_context
def tail_command(
    ctx: click.Context,
    directory: Path,
    topic: str,
    number: int,
    following: bool,
    partitions: tuple[int, ...],
    raw: bool,
    reference: str | None,
    as_json: bool,
) -> int:
    """Print the last records of TOPIC of the log in DIR, also while another process owns it."""
    if raw and as_json:
        raise click.UsageError("--raw and --json exclude each other", ctx)
    with open_log(directory, reference, Settings.load(), read_only=True) as log:
        source = look_for(log, topic, as_json=as_json)
        if source is None:
            return DAMAGED
        write = writer(source, RAW if raw else JSON if as_json else TEXT)
        # -0 is 0, which is the beginning: no records at all means to begin at the end.
        last = read(
            source, -number or None, reverse=not number, limit=None if number else 0, partition=partitions or None
        )
        for item in items(source, last):
            write(item)
        flush()
        if following:
            follow(source, last.position, partitions or None, None, None, write)
        return DAMAGED if log.problems else FINE
