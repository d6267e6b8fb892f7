"""The marks of a read: how far each partition was settled when a DataFrame was loaded, and how to get them back.

A DataFrame of the format carries its marks in the metadata of its first column: every action on it reads up to exactly
these, however much is written meanwhile, and `marks_of` tells them. Given to another read as `asOf`, it sees the same.
A table in Spark's catalog carries none: it always reads what is settled at that moment. It carries its options instead,
because Spark hands the options of a table over when it is created, and never again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.types import StructField, StructType

from holdfast.errors import NotFound
from holdfast.settled.offsets import Where, format_offsets, parse_offsets
from holdfast.settled.options import parse_options
from holdfast.settled.root import SettledRoot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MARKS, _STARTS, _OPTIONS = "holdfast.marks", "holdfast.starts", "holdfast.options"


def with_marks(schema: StructType, marks: Mapping[Where, int], starts: Mapping[Where, int] | None = None) -> StructType:
    """A schema that carries marks, and where its read begins."""
    if starts is not None:
        schema = carrying(schema, _STARTS, format_offsets(starts))
    return carrying(schema, _MARKS, format_offsets(marks))


def starts_in(schema: StructType) -> dict[Where, int] | None:
    """Where the read of a schema that carries marks begins; None when it does not say."""
    text = carried(schema, _STARTS)
    return None if text is None else parse_offsets(text, least=0)


def marks_in(schema: StructType) -> dict[Where, int] | None:
    """The marks that a schema carries; None when it carries none."""
    text = carried(schema, _MARKS)
    return None if text is None else parse_offsets(text, least=0)


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """A schema that carries the options of its table; they hold references, never secrets."""
    return carrying(schema, _OPTIONS, json.dumps(dict(options), sort_keys=True))


def options_in(schema: StructType) -> dict[str, str] | None:
    """The options that a schema carries; None when it carries none."""
    text = carried(schema, _OPTIONS)
    return None if text is None else {str(name): str(value) for name, value in json.loads(text).items()}


def carrying(schema: StructType, name: str, text: str) -> StructType:
    """A schema that carries a text under a name; one without columns carries nothing."""
    fields = list(schema.fields)
    if fields:
        first = fields[0]
        fields[0] = StructField(first.name, first.dataType, first.nullable, {**(first.metadata or {}), name: text})
    return StructType(fields)


def carried(schema: StructType, name: str) -> str | None:
    """The text that a schema carries under a name; None when it carries none."""
    found = ((field.metadata or {}).get(name) for field in schema.fields)
    return next((text for text in found if isinstance(text, str)), None)


def marks_of(frame: DataFrame) -> str:
    """How far each partition is read by a DataFrame of the format; for `asOf` of another read."""
    marks = marks_in(frame.schema)
    if marks is None:
        raise NotFound(
            "this DataFrame carries no marks",
            hint="ask the one that load() or pyspark_holdfast.read returned; or settled_marks(root, topic=…)",
        )
    return format_offsets(marks)


def settled_marks(root: str, **options: str) -> str:
    """How far each partition is settled at this moment; options as of the format: topic, topicPattern, endpoint …"""
    _, read = parse_options({"path": root, **options})
    opened = SettledRoot.open(root, read)
    return format_offsets(opened.marks(opened.topics(read)))
