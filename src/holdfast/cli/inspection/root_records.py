"""`holdfast read URL TOPIC`: records out of a store, without the log that ships to it.

What is settled comes from segments, by partition and offset; where a log ships to the root, what the store has beyond
that comes behind it, out of commit batches. Everything is proved as `holdfast.read` proves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from holdfast import Record
from holdfast.cli.exit_codes import FINE
from holdfast.cli.inspection.at_root import Root
from holdfast.cli.options import asking_for_key
from holdfast.cli.output import flush
from holdfast.cli.printing import ARROW, Item, write_arrow, writer_for
from holdfast.errors import Invalid
from holdfast.model.value_codec import ValueCodec, ValueRecord, recorded_codec
from holdfast.reader.offsets import EARLIEST, PartitionMark, ReadMarks, Where
from holdfast.reader.open_root import SettledRoot
from holdfast.reader.read_options import ReadOptions
from holdfast.reader.settled_reading import SettledReading
from holdfast.root.objects.documents import TopicDocument

_PLACE = ("_partition", "_offset", "_time")


class PrintSelection(NamedTuple):
    """What to print of a topic."""

    start: int | None
    end: int | None
    since: int | None
    until: int | None
    limit: int | None
    partitions: tuple[int, ...]
    columns: list[str] | None


def print_root(root: Root, topic: str, wanted: PrintSelection, options: ReadOptions, form: str) -> int:
    """Print records of a topic at a root; returns the exit code."""
    with asking_for_key(None if not options.keyring else _ANY):
        opened = SettledRoot.open(root.url, options)
        options = msgspec.structs.replace(
            options,
            topics=(topic,),
            topic_pattern="",
            since_us=wanted.since,
            include_tail=opened.is_shipped_to(),
            before_us=None if wanted.until is None else wanted.until + 1,
        )
        document = opened.topic(topic)
        is_typed = bool(document.schemas)
        if is_typed:
            options = msgspec.structs.replace(options, columns=_columns(document, wanted.columns))
        elif wanted.columns is not None:
            raise Invalid(f"topic {topic!r} holds raw records", hint="leave --columns out; --raw prints payloads alone")
        reading = SettledReading(root.url, _placed(root, document, options, wanted))
        if form == ARROW:
            write_arrow(reading)
        else:
            write = writer_for(topic, form, is_typed=is_typed)
            found = _items(reading, is_typed=is_typed, codec=recorded_codec(document.codec))
            for item in islice(found, wanted.limit):
                write(item)
    flush()
    return FINE


_ANY: Any = object()
"""Stands for a keyring: that there is one is all that is asked."""


def _columns(topic: TopicDocument, names: list[str] | None) -> tuple[str, ...]:
    from holdfast.root.root_contents import versions

    own = versions(topic)[-1].declared.names if names is None else names
    return (*_PLACE, *own)


def _placed(root: Root, topic: TopicDocument, options: ReadOptions, wanted: PrintSelection) -> ReadOptions:
    """The options with the first and last offsets of the partitions that are wanted."""
    chosen = sorted(set(wanted.partitions)) or list(range(topic.partitions))
    for number in chosen:
        if not 0 <= number < topic.partitions:
            raise Invalid(
                f"topic {topic.topic!r} has no partition {number}",
                hint=f"its partitions are 0 to {topic.partitions - 1}",
            )
    ends = {(topic.topic, number): EARLIEST for number in range(topic.partitions) if number not in chosen}
    options = msgspec.structs.replace(options, ending_offsets=_marks(ends) if ends else "latest")
    if wanted.start is None and wanted.end is None:
        return options
    there = SettledReading(root.url, options).ends
    starts = {}
    for number in chosen:
        where = (topic.topic, number)
        first, last = there[where]
        if wanted.start is not None:
            starts[where] = max(first, last + wanted.start) if wanted.start < 0 else min(wanted.start, last)
        if wanted.end is not None:
            ends[where] = max(first, last + wanted.end) if wanted.end < 0 else min(wanted.end, last)
    return msgspec.structs.replace(
        options,
        starting_offsets=_marks(starts) if starts else "earliest",
        ending_offsets=_marks(ends) if ends else "latest",
    )


def _marks(offsets: dict[Where, int]) -> ReadMarks:
    return ReadMarks("", {where: PartitionMark(None, offset) for where, offset in offsets.items()})


def _items(reading: SettledReading, *, is_typed: bool, codec: ValueCodec | None) -> Iterator[Item]:
    from holdfast.model.row_json import placed

    if is_typed:
        return placed(reading.batches())
    records = _records(reading)
    return records if codec is None else (ValueRecord.of(record, codec) for record in records)


def _records(reading: SettledReading) -> Iterator[Record]:
    import pyarrow as pa

    for batch in reading.batches():
        times = batch.column("time").cast(pa.int64()).to_pylist()
        values = (batch.column(name).to_pylist() for name in ("payload", "key", "kind", "headers"))
        places = (batch.column(name).to_pylist() for name in ("offset", "partition"))
        for payload, key, kind, headers, time, offset, partition in zip(*values, times, *places, strict=True):
            named = None if headers is None else {pair["key"]: pair["value"] for pair in headers}
            yield Record(payload, key, kind, named, time, offset, partition)
