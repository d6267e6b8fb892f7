"""`holdfast producer list|forget`: producers with sequence numbers of their own, and how far each of them is.

`list` opens the log for reading only, so the service that owns it can go on; it shows what is durable. `forget` changes
what the log knows, which its owner does, where there is one.
"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from holdfast import Settings
from holdfast.cli.action_group import Actions
from holdfast.cli.exit_codes import DAMAGED, FINE
from holdfast.cli.options import directory_argument, json_option, keyring_option, open_log, own_log
from holdfast.cli.output import emit_json, emit_lines, flush, say, say_problems
from holdfast.errors import NotFound
from holdfast.log.producers.producer import ProducerStatus
from holdfast.model.record_json import iso
from holdfast.suggestions import listed, meant

EPILOG = """\b
Examples:
  holdfast producer list data
  holdfast producer forget data device-7
A producer that was forgotten starts over: what it sends again is written again. The log's owner forgets it."""


class ProducerLine(msgspec.Struct, frozen=True):
    """A producer, in the list."""

    producer: str
    last: int
    first_known: int
    used: str | None


@click.group("producer", cls=Actions, epilog=EPILOG, no_args_is_help=False)
def producer_command() -> None:
    """Show the producers of the log in DIR and their last sequence numbers, or forget one."""


@producer_command.command("list")
@directory_argument
@keyring_option
@json_option
def list_command(directory: Path, reference: str | None, as_json: bool) -> int:
    """List all producers, those that were used longest ago first."""
    with open_log(directory, reference, Settings.load(), read_only=True) as log:
        lines = [_line(one) for one in log.producers()]
        problems = log.problems
    emit_lines(lines, "no producers", as_json=as_json)
    say_problems(problems, as_json=as_json)
    flush()
    return DAMAGED if problems else FINE


@producer_command.command("forget")
@directory_argument
@click.argument("producer", metavar="PRODUCER")
@keyring_option
@json_option
def forget_command(directory: Path, producer: str, reference: str | None, as_json: bool) -> int:
    """Let go of a producer: one of that name starts over."""
    with own_log(directory, reference, Settings.load()) as log:
        known = {one.producer: one for one in log.producers()}
        if producer not in known:
            raise NotFound(f"there is no producer {producer!r}{meant(producer, known)}", hint=listed(sorted(known)))
        log.forget_producer(producer)
    if as_json:
        emit_json(_line(known[producer]))
    else:
        say(f"{producer} is forgotten; its last number was {known[producer].last}")
    flush()
    return FINE


def _line(one: ProducerStatus) -> ProducerLine:
    return ProducerLine(one.producer, one.last, one.first_known, iso(one.used_us))
