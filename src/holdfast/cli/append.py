"""`holdfast append`: records from an argument or from stdin, receipts to stdout.

A receipt is printed only after the fsync that made its record durable. With `--lines` stdin is read in
chunks and its lines are submitted without waiting for each; receipts follow in order. What waits is bounded
three times: by the chunk, by the window of tickets, and by the journal's own queue. When stdin has nothing
more for the moment, everything submitted is waited for and told before the next read.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import click

from holdfast import Receipt, Ticket, Topic
from holdfast.cli.options import directory_argument, json_option, keyring_option, open_log, topic_argument
from holdfast.cli.output import emit, emit_json, flush, say
from holdfast.cli.progress import Progress
from holdfast.directory import Directory
from holdfast.errors import Invalid

_CHUNK_BYTES = 64 * 1024
_WINDOW_TICKETS = 16_384

EPILOG = """\b
Examples:
  holdfast append data orders 'hello' --key c-42
  generate | holdfast append data orders --lines --json
A payload that begins with a dash goes behind '--'. A line is what ends with a newline; the newline is left out."""


@click.command("append", epilog=EPILOG, context_settings={"allow_extra_args": True})
@directory_argument
@topic_argument
@click.argument("payload", required=False)
@click.option("--lines", is_flag=True, help="Every line of stdin is a record.")
@click.option("--key", help="The records' key; equal keys go to one partition, in order.")
@click.option("--kind", help="What kind of record it is, as text.")
@click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header; may be given repeatedly.")
@click.option("--partition", type=int, help="The partition, instead of choosing by key or in turn.")
@click.option("--partitions", type=int, help="How many partitions the topic gets when it is created.")
@click.option(
    "--idempotency-key",
    "unique",
    metavar="KEY",
    help="Append once: a repetition returns the first receipt. With --lines, line N has the key KEY:N.",
)
@keyring_option
@json_option
@click.pass_context
def append_command(
    ctx: click.Context,
    directory: Path,
    topic: str,
    payload: str | None,
    lines: bool,
    key: str | None,
    kind: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    partitions: int | None,
    unique: str | None,
    reference: str | None,
    as_json: bool,
) -> None:
    """Append PAYLOAD, or stdin, to TOPIC of the log in DIR and print receipts.

    Without PAYLOAD, or with '-', all of stdin is one record. The log and the topic are created if they are
    not there. A receipt means that the record survives power loss.
    """
    if ctx.args:  # what is too much may be a payload: it is not repeated in the message
        raise click.UsageError("too many arguments; a payload with spaces needs quotes", ctx)
    if lines and payload not in (None, "-"):
        raise click.UsageError("--lines reads stdin; leave PAYLOAD out", ctx)
    options = _Options(key, kind, headers, partition, unique)
    fresh = Directory(directory.absolute()).log_id() is None
    with open_log(directory, reference, read_only=False) as log:
        if fresh:
            say(f"created a log, {'encrypted' if log.encrypted else 'not encrypted'}, in {directory}")
        appender = _Appender(log.topic(topic, partitions=partitions), options, as_json)
        if lines:
            appender.append_lines(_stdin(), log.settings.journal.payload_bytes_max)
        else:
            appender.append_one(_payload(payload, log.settings.journal.payload_bytes_max))
