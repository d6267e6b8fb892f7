"""`holdfast consumer list|show|seek|forget`: named readers of a log, how far they are, and how far they lag behind.

`list` and `show` open the log for reading only, so the service that owns it can go on; they show what is committed.
`seek` changes positions that readers have in memory, so the log must be free or shared.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import msgspec

from holdfast import Log, Settings
from holdfast.cli.action_group import Actions
from holdfast.cli.exit_codes import DAMAGED, FINE
from holdfast.cli.options import (
    completed,
    directory_argument,
    find_topic,
    is_asked,
    json_option,
    keyring_option,
    open_log,
    own_log,
    topic_argument,
)
from holdfast.cli.output import emit, emit_facts, emit_json, emit_lines, emit_table, flush, say, say_problems
from holdfast.cli.verbs.read import parse_time
from holdfast.errors import HoldfastError, Invalid, NotFound, Unavailable
from holdfast.log.consumers.consumer_status import ConsumerPartition, ConsumerStatus
from holdfast.log_directory import Directory
from holdfast.model.record_json import iso
from holdfast.quantity import counted
from holdfast.suggestions import listed, meant

EPILOG = """\b
Examples:
  holdfast consumer list data
  holdfast consumer show data billing
  holdfast consumer seek data billing orders --to first
  holdfast consumer seek data billing orders --to 2026-01-31T12:00:00Z
Lag is what is durable and not committed as consumed. seek needs the log to be free or shared."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ConsumerLine(msgspec.Struct, frozen=True):
    """A consumer of a topic, in the list."""

    consumer: str
    """Its name."""
    topic: str
    lag: int
    """Records that are durable and not committed as consumed."""
    expired: int
    """Records that retention removed before they were consumed."""
    committed: str | None
    """When a position was committed last."""
    retention_waits: bool
    """Whether the topic's retention waits for it."""


class ConsumerPartitionLine(msgspec.Struct, frozen=True):
    """One partition of a consumer."""

    partition: int
    first: int
    """The first offset that is left."""
    position: int
    """The offset behind the last record that is consumed."""
    durable: int
    """The offset behind the last record that is durable."""
    lag: int
    """Records that are durable and not committed as consumed."""
    expired: int
    """Records that retention removed before they were consumed."""
    committed: str | None
    """When a position was committed last."""


class ConsumerReport(msgspec.Struct, frozen=True):
    """A consumer of a topic, with all partitions."""

    consumer: str
    """Its name."""
    topic: str
    lag: int
    """Records that are durable and not committed as consumed."""
    retention_waits: bool
    """Whether the topic's retention waits for it."""
    partitions: list[ConsumerPartitionLine]
    """One by one."""


@click.group("consumer", cls=Actions, epilog=EPILOG, no_args_is_help=False)
def consumer_command() -> None:
    """Show the consumers of the log in DIR and how far they lag behind, or move one."""


consumer_argument = click.argument(
    "consumer",
    metavar="CONSUMER",
    shell_complete=completed(lambda log: dict.fromkeys(one.consumer for one in log.consumers())),
)
topic_option = click.option("--topic", help="Only of this topic.")


@consumer_command.command("list")
@directory_argument
@topic_option
@keyring_option
@json_option
def list_command(directory: Path, topic: str | None, reference: str | None, as_json: bool) -> int:
    """List all consumers, or those of one topic."""
    with open_log(directory, reference, Settings.load(), read_only=True) as log:
        lines = [_line(one) for one in log.consumers(topic)]
        emit_lines(lines, "no consumers", as_json=as_json)
        return _end(log, as_json=as_json)


@consumer_command.command("show")
@directory_argument
@consumer_argument
@topic_option
@keyring_option
@json_option
def show_command(directory: Path, consumer: str, topic: str | None, reference: str | None, as_json: bool) -> int:
    """Show where a consumer is in each partition."""
    with open_log(directory, reference, Settings.load(), read_only=True) as log:
        for number, one in enumerate(_found(log, consumer, topic)):
            _show(_report(one), as_json=as_json, is_first=not number)
        return _end(log, as_json=as_json)


@consumer_command.command("seek")
@directory_argument
@consumer_argument
@topic_argument
@click.option(
    "--to",
    required=True,
    metavar="PLACE",
    help="'first', 'next', an offset (a negative one counts from the end: '--to=-10'), a position as JSON, or a time.",
)
@click.option("--partition", type=click.IntRange(min=0), help="Only in this partition.")
@keyring_option
@json_option
def seek_command(
    directory: Path, consumer: str, topic: str, to: str, partition: int | None, reference: str | None, as_json: bool
) -> int:
    """Have a consumer go on from somewhere else."""
    place = _place(to)
    with own_log(directory, reference, Settings.load()) as log:
        if is_asked(log):
            raise Unavailable(
                f"the log is open in process {Directory(log.path).holder()}, whose consumers go on from where they are"
                f" path={log.path}",
                hint="seek there, or close it there first",
            )
        _found(log, consumer, topic)
        with find_topic(log, topic).consumer(consumer) as moved:
            moved.seek(place, partition=partition)
            moved.commit()
        report = _report(_found(log, consumer, topic)[0])
    _show(report, as_json=as_json, is_first=True)
    flush()
    return FINE


@consumer_command.command("forget")
@directory_argument
@consumer_argument
@topic_argument
@keyring_option
@json_option
def forget_command(directory: Path, consumer: str, topic: str, reference: str | None, as_json: bool) -> int:
    """Let go of a consumer's position: nothing waits for it any more."""
    with own_log(directory, reference, Settings.load()) as log:
        report = _report(_found(log, consumer, topic)[0])
        log.forget_consumer(consumer, topic)
    if as_json:
        emit_json(report)
    else:
        say(f"{consumer} has no position in {topic} any more")
    flush()
    return FINE


def _found(log: Log, consumer: str, topic: str | None) -> list[ConsumerStatus]:
    known = log.consumers(topic)
    found = [one for one in known if one.consumer == consumer]
    if not found:
        names = sorted({one.consumer for one in known})
        where = "" if topic is None else f" topic={topic!r}"
        raise NotFound(f"there is no consumer {consumer!r}{meant(consumer, names)}{where}", hint=listed(names))
    return found


def _place(text: str) -> int | str | datetime:
    """A place on the command line; offsets are numbers, so a time is written with its date."""
    if text in ("first", "next") or text.startswith("{"):
        return text
    if text.removeprefix("-").isdecimal():
        return int(text)
    try:
        return _EPOCH + timedelta(microseconds=parse_time(text))
    except HoldfastError:
        raise Invalid(
            f"not a place: {text[:100]!r}", hint="give first, next, an offset, a position, or 2026-01-31T12:00:00Z"
        ) from None


def _line(one: ConsumerStatus) -> ConsumerLine:
    expired = sum(line.expired for line in one.partitions)
    newest = max((line.committed_us for line in one.partitions), default=0)
    return ConsumerLine(one.consumer, one.topic, one.lag, expired, iso(newest), one.retention_waits)


def _report(one: ConsumerStatus) -> ConsumerReport:
    lines = [_partition(line) for line in one.partitions]
    return ConsumerReport(one.consumer, one.topic, one.lag, one.retention_waits, lines)


def _partition(line: ConsumerPartition) -> ConsumerPartitionLine:
    return ConsumerPartitionLine(
        line.partition, line.first, line.committed, line.durable, line.lag, line.expired, iso(line.committed_us)
    )


def _show(report: ConsumerReport, *, as_json: bool, is_first: bool) -> None:
    if as_json:
        emit_json(report)
        return
    if not is_first:
        emit("")
    emit_facts(
        [
            ("consumer", report.consumer),
            ("topic", report.topic),
            ("lag", f"{counted(report.lag, 'record')}"),
            ("retention", "waits for it" if report.retention_waits else "does not wait for it"),
        ]
    )
    names = ConsumerPartitionLine.__struct_fields__
    emit_table(names, [msgspec.structs.astuple(line) for line in report.partitions])


def _end(log: Log, *, as_json: bool) -> int:
    say_problems(log.problems, as_json=as_json)
    flush()
    return DAMAGED if log.problems else FINE
