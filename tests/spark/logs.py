"""Small logs for the tests of Spark: what is in them, as a model to compare with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import holdfast
from holdfast import Record
from holdfast.reader.open_root import SettledRoot
from holdfast.reader.read_options import ReadOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

START_US = 1_767_225_600_000_000
"""2026-01-01T00:00:00Z."""

Row = tuple[Any, ...]


def fill(log: holdfast.Log, topic: str = "orders", *, partitions: int = 2, seals: int = 3, rows: int = 20) -> None:
    """Append so many records to every partition, sealed in so many segments each; a second apart."""
    records = log.topic(topic, partitions=partitions)
    for seal in range(seals):
        for partition in range(partitions):
            records.append_batch([record(seal * rows + each, partition) for each in range(rows)], partition=partition)
        log.seal(topic)


def record(number: int, partition: int) -> Record:
    """Record number so and so: everything optional is there, empty or absent in turn."""
    return Record(
        b"%d/%d" % (partition, number) * (number % 4),
        key=(None, b"", b"key-%d" % number)[number % 3],
        kind=(None, "order", "größer")[number % 3],
        headers=(None, {}, {"é": b"\x00\xff", "e": b""})[number % 3],
        time=START_US + number * 1_000_000 + partition,
    )


def row(topic: str, partition: int, offset: int) -> Row:
    """What Spark should say of it: topic, partition, offset, timestamp (microseconds), key, value, headers, kind."""
    made = record(offset, partition)
    headers = [(name, value) for name, value in made.headers.items()] if made.headers else None
    return (topic, partition, offset, made.time, made.key, made.payload, headers, made.kind)


def rows(topic: str, partitions: int, end: int, start: int = 0) -> list[Row]:
    """All rows of a log that was filled, sorted."""
    return [row(topic, partition, offset) for partition in range(partitions) for offset in range(start, end)]


def collected(frame: DataFrame) -> list[Row]:
    """The rows of a DataFrame of a raw topic, sorted, in plain Python."""
    found = []
    for each in frame.toArrow().to_pylist():
        headers = each["headers"]
        found.append(
            (
                each["topic"],
                each["partition"],
                each["offset"],
                round(each["timestamp"].timestamp() * 1e6),
                each["key"],
                each["value"],
                None if not headers else [(item["key"], item["value"]) for item in headers],
                each["kind"],
            )
        )
    return sorted(found, key=lambda item: item[:3])


def log_of(root: Path | str, **store: Any) -> str:
    """The id of the log at a root."""
    return SettledRoot.open(str(root), ReadOptions(topic_pattern=".*", **store)).log


def as_of(root: Path | str, offsets: str) -> str:
    """Marks of the log at a root, of offsets or spans as text: from 0, where only an end is given."""
    spans = {
        topic: {part: at if isinstance(at, list) else [0, at] for part, at in parts.items()}
        for topic, parts in json.loads(offsets).items()
    }
    return json.dumps({log_of(root): spans})


def belonging(root: Path | str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options whose asOf is made to belong to the log at a root."""
    return {name: as_of(root, value) if name == "asOf" else value for name, value in options.items()}


def made(path: Path, **options: Any) -> Path:
    """A closed log at a path, filled."""
    with holdfast.open(path) as log:
        fill(log, **options)
    return path
