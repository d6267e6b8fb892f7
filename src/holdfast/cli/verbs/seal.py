"""`holdfast seal`: move what is durable from the journal's tail into segments, and return when it is there.

It needs ownership; a service that owns the log seals by itself. Nothing is at risk: the records are durable before and
after, and what cannot be sealed stays where it is.
"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from holdfast import Log, Settings
from holdfast.cli.options import directory_argument, find_topic, json_option, keyring_option, own_log, parsed
from holdfast.cli.output import emit_json, emit_table, flush
from holdfast.cli.progress import ProgressLine
from holdfast.errors import Unavailable
from holdfast.journal.proving.inspected_database import control_rows
from holdfast.log.topics.topic_partitions import no_topic
from holdfast.log_directory import Directory
from holdfast.quantity import parse_seconds

_PATIENCE_S = 30 * 24 * 3600.0

EPILOG = """\b
Examples:
  holdfast seal data
  holdfast seal data orders trades --timeout 10min"""

Place = tuple[str, int]


class SealLine(msgspec.Struct, frozen=True):
    """What was sealed of one partition, and how far it is sealed now."""

    topic: str
    partition: int
    records: int
    """How many records were sealed now."""
    segments: int
    """Into how many segments."""
    sealed: int
    """The mark: everything below this offset lies in segments."""
    index: int | None
    """The number of the newest segment, `null` before the first."""


class _Mark(msgspec.Struct, frozen=True):
    segments: int
    offset: int


@click.command("seal", epilog=EPILOG)
@directory_argument
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@click.option(
    "--timeout",
    metavar="TIME",
    callback=parsed(parse_seconds),
    help="How long to wait for each topic, as '10min'; else until it is done. What is not sealed is just as durable.",
)
@keyring_option
@json_option
def seal_command(
    directory: Path, topics: tuple[str, ...], timeout: float | None, reference: str | None, as_json: bool
) -> None:
    """Seal what is durable in TOPIC, or in all topics, of the log in DIR into segments."""
    settings = Settings.load()
    before = _marks(Directory(directory.absolute()))
    with own_log(directory, reference, settings) as log, ProgressLine() as working:
        names = sorted(set(topics)) or log.topics()
        for name in names:  # before anything is sealed
            if name not in log.topics():
                raise no_topic(name, log.topics())
        for name in names:
            working.show(f"sealing {name}")
            _seal(log, name, _PATIENCE_S if timeout is None else timeout)
        found = [line for name in names for line in _lines(log, name, before)]
    if as_json:
        for line in found:
            emit_json(line)
    elif found:
        emit_table(SealLine.__struct_fields__, [msgspec.structs.astuple(line) for line in found])
    flush()


def _marks(place: Directory) -> dict[Place, _Mark]:
    """How far partitions were sealed before: opening a log may begin to seal at once."""
    place.require_log()
    control = control_rows(place.database)
    names = control.topic_names
    heads = {head.partition_id: (names.get(head.topic_id, ""), head.number) for head in control.heads}
    return {
        heads[number]: _Mark(mark.segments, mark.sealed_offset)
        for number, mark in control.watermarks.items()
        if number in heads
    }


def _seal(log: Log, topic: str, timeout: float) -> None:
    try:
        log.seal(topic, timeout=timeout)
    except Unavailable as error:
        raise Unavailable(error.message, hint="everything is durable as before; run it again with more time") from error


def _lines(log: Log, topic: str, before: dict[Place, _Mark]) -> list[SealLine]:
    lines = []
    for number, marks in enumerate(log.marks(topic)):
        old = before.get((topic, number), _Mark(0, 0))
        segments = _segments(log, topic, number)
        lines.append(
            SealLine(
                topic,
                number,
                marks.sealed - old.offset,
                segments - old.segments,
                marks.sealed,
                segments - 1 if segments else None,
            )
        )
    return lines


def _segments(log: Log, topic: str, partition: int) -> int:
    index = find_topic(log, topic).watermark(partition).index
    return 0 if index is None else index + 1
