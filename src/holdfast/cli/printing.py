"""Records and rows on stdout: as text for eyes, as JSON, as payloads, or as one Arrow stream.

What `holdfast read` and `holdfast tail` share. Raw topics give records, typed ones rows; both have a place and a time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import click
import msgspec

from holdfast import Record, Topic
from holdfast.cli.output import emit, emit_bytes, emit_json
from holdfast.cli.text import shown
from holdfast.errors import Invalid, printable
from holdfast.log.topics.reading import Reading
from holdfast.log.topics.typed_topic import TypedTopic
from holdfast.model.record_json import iso, record_line
from holdfast.model.row_json import PlacedRow, placed, row_line
from holdfast.model.value_codec import MSGPACK, ValueRecord
from holdfast.reader.settled_reading import SettledReading

Item = Record | PlacedRow
Write = Callable[[Any], None]

TEXT, JSON, ARROW = "text", "json", "arrow"
RAW, RAW_JOINED = "raw", "raw joined"
"""Payloads alone, each with a newline or with nothing behind it."""


def items(topic: Topic | TypedTopic, reading: Reading[Any]) -> Iterator[Item]:
    """The records or rows of a reading."""
    return placed(reading.batches()) if isinstance(topic, TypedTopic) else iter(reading)


def writer(topic: Topic | TypedTopic, form: str) -> Write:
    """What prints one record or row of a topic."""
    return writer_for(topic.name, form, is_typed=isinstance(topic, TypedTopic))


def writer_for(topic: str, form: str, *, is_typed: bool) -> Write:
    """What prints one record or row of the topic of this name."""
    if is_typed:
        if form in {RAW, RAW_JOINED}:
            raise Invalid(f"topic {topic!r} is typed: its rows are no payloads", hint="take --json or --format arrow")
        return _row_json(topic) if form == JSON else _row_text
    if form == JSON:
        return lambda record: emit_json(record_line(topic, record))
    if form == TEXT:
        return _record_text
    ending = b"\n" if form == RAW else b""
    return lambda record: emit_bytes(record.payload + ending)


def write_arrow(reading: Reading[Any] | SettledReading) -> None:
    """A reading as one Arrow IPC stream. After an error it has no end mark, like a file that was cut off."""
    import pyarrow as pa

    if sys.stdout.isatty():
        raise click.UsageError("Arrow is not for terminals; send it to a file or a pipe")
    stream = pa.ipc.new_stream(sys.stdout.buffer, reading.schema)
    for batch in reading.batches():
        stream.write_batch(batch)
    stream.close()


def _record_text(record: Record) -> None:
    kind = "-" if record.kind is None else printable(record.kind)
    time = iso(record.time) or record.time
    payload = shown(record.payload)
    if isinstance(record, ValueRecord) and record.codec.name == MSGPACK:
        value = record.codec.as_json(record.payload)
        payload = payload if isinstance(value, msgspec.UnsetType) else printable(bytes(value).decode())
    emit(f"{record.partition} {record.offset:>8}  {time}  {shown(record.key)}  {kind}  {payload}")


def _row_text(item: PlacedRow) -> None:
    row = printable(msgspec.json.encode(item.row).decode())
    emit(f"{item.partition} {item.offset:>8}  {iso(item.time) or item.time}  {row}")


def _row_json(topic: str) -> Write:
    def write(item: PlacedRow) -> None:
        emit_json(row_line(topic, item))

    return write
