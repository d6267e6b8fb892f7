"""The marks of a read: what was settled of each partition when a DataFrame was loaded, and how to get that back.

A DataFrame of `load()` or `read` carries its marks in the metadata of its first column, where `marks_of` finds them.
Another read with these as `asOf` sees the same. The marks are only a label: `source` fixes what a DataFrame reads, and
no label ever changes that. A table in Spark's catalog carries no marks and always reads what is settled at that
moment. It carries its options instead, because Spark passes the options of a table only when it is created.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.types import StructField, StructType

from holdfast.errors import NotFound
from holdfast.reader.offsets import ReadMarks, format_marks
from holdfast.reader.open_root import SettledRoot
from holdfast.reader.read_options import parse_options
from holdfast.reader.resolve import resolve

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MARKS, _OPTIONS = "holdfast.marks", "holdfast.options"


def with_marks(schema: StructType, marks: ReadMarks) -> StructType:
    """A schema that carries marks."""
    return carrying(schema, _MARKS, format_marks(marks))


def is_marked(schema: StructType) -> bool:
    """Whether a schema carries marks."""
    return carried(schema, _MARKS) is not None


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """A schema that carries the options of its table: references, never secrets."""
    return carrying(schema, _OPTIONS, json.dumps(dict(options), sort_keys=True))


def options_in(schema: StructType) -> dict[str, str] | None:
    """The options that a schema carries; None when it carries none."""
    text = carried(schema, _OPTIONS)
    return None if text is None else {str(name): str(value) for name, value in json.loads(text).items()}


def carrying(schema: StructType, name: str, text: str) -> StructType:
    """A schema that carries a text under a name. A schema without columns cannot."""
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
    """The span that a DataFrame reads of each partition, for `asOf` of another read."""
    marks = carried(frame.schema, _MARKS)
    if marks is None:
        raise NotFound(
            "this DataFrame carries no marks",
            hint="use the one that load() or pyspark_holdfast.read returned; or settled_marks(root, topic=…)",
        )
    return marks


def settled_marks(root: str, **options: str) -> str:
    """What is settled of each partition now. Options as for the format: topic, topicPattern, endpoint …"""
    _, read = parse_options({"path": root, **options})
    return format_marks(resolve(SettledRoot.open(root, read), read).marks)
