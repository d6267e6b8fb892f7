"""Which columns a sink's topic has, given those of a DataFrame: raw or typed, and how they may grow.

Columns that are named as a raw topic's are raw records, if the payload is text or bytes; all others are rows. Every
column may be null, also inside: DataFrames change their mind about that from one plan to the next. Columns are matched
by name, in any order; those that are missing are null, new ones are added. Anything else is Invalid, and this is
checked before anything is written. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from holdfast.errors import Invalid
from holdfast.model.arrow import arrow_types
from holdfast.model.schema import TopicSchema, declare, evolve
from holdfast.root.objects.documents import SinkTopicDocument
from holdfast.root.root_contents import versions
from holdfast.segments.file.segment_columns import RAW_SCHEMA

TIME = "_time"
"""The column of a DataFrame that gives the times of rows."""
RAW_NAMES = {
    "key": "key",
    "value": "payload",
    "payload": "payload",
    "headers": "headers",
    "kind": "kind",
    "timestamp": "time",
    "time": "time",
}
"""Columns of raw records, under Kafka's names and ours."""
_PLACES = ("topic", "partition", "offset")
_OWN = frozenset(f"_{name}" for name in _PLACES)
_BYTES = (*arrow_types.TEXTS, *arrow_types.BINARIES)
_is = pa.types


class ColumnMapping(NamedTuple):
    """How the columns of a DataFrame are stored."""

    schema: TopicSchema | None
    """None for raw records."""
    time: str
    """The column with the times; empty where rows have the time at which they are written."""


def columns_for(given: pa.Schema, document: SinkTopicDocument | None) -> ColumnMapping:
    """How to store rows with these columns in a topic, which is new if there is no document of it."""
    names = list(given.names)
    is_raw = looks_raw(given) if document is None else not document.schemas
    if is_raw:
        return ColumnMapping(None, _raw_time(given))
    own = sorted(_OWN.intersection(names))
    if own:
        raise Invalid(
            f"columns of another topic's rows cannot be written columns={own}",
            hint=f"rows get a place of their own here: df.drop({', '.join(map(repr, own))})",
        )
    time = TIME if TIME in names else ""
    if time:
        _require_time(given.field(time))
    rows = pa.schema([_nullable(field) for field in given if field.name != TIME])
    _refuse_twins(rows.names)
    known = () if document is None else versions(document)
    return ColumnMapping(_grown(known[-1], rows) if known else declare(rows), time)


def looks_raw(given: pa.Schema) -> bool:
    """Whether these are the columns of raw records."""
    payloads = [field for field in given if RAW_NAMES.get(field.name) == "payload"]
    keys = [field for field in given if field.name == "key"]
    return (
        {*RAW_NAMES, *_PLACES}.issuperset(given.names)
        and len(payloads) == 1
        and all(field.type in _BYTES for field in (*payloads, *keys))
    )


def _raw_time(given: pa.Schema) -> str:
    """The column with the times of raw records; Invalid where the columns are not those of raw records."""
    if not looks_raw(given):
        raise Invalid(
            f"this topic holds raw records, which have no such columns columns={list(given.names)[:20]}",
            hint="give key and value (text or bytes), perhaps headers, kind, timestamp; or choose another topic",
        )
    places = [name for name in _PLACES if name in given.names]
    if places:
        raise Invalid(
            f"records get a place of their own in this topic columns={places}",
            hint=f"leave these out: df.drop({', '.join(map(repr, places))})",
        )
    times = [name for name in given.names if RAW_NAMES[name] == "time"]
    if len(times) > 1:
        raise Invalid("there are two columns with times columns=['time', 'timestamp']", hint="drop one of them")
    if times:
        _require_time(given.field(times[0]))
    _require_kind(given, "kind", arrow_types.TEXTS)
    _require_kind(given, "headers", (arrow_types.loose(RAW_SCHEMA.field("headers").type),))
    return times[0] if times else ""


def _require_kind(given: pa.Schema, name: str, kinds: tuple[pa.DataType, ...]) -> None:
    if name in given.names and arrow_types.loose(given.field(name).type) not in kinds:
        wanted = {"kind": "string", "headers": "array<struct<key:string,value:binary>>"}[name]
        raise Invalid(
            f"a column of raw records has another type column={name!r}"
            f" found={arrow_types.shown(given.field(name).type)}",
            hint=f"cast it: it is {wanted}",
        )


def _require_time(field: pa.Field) -> None:
    if not _is.is_timestamp(field.type) or field.type.tz is None:
        raise Invalid(
            f"times are timestamps with a zone column={field.name!r} type={arrow_types.shown(field.type)}",
            hint="cast it to timestamp, or rename the column",
        )


def _nullable(field: pa.Field) -> pa.Field:
    return pa.field(field.name, arrow_types.loose(field.type))


def _refuse_twins(names: list[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise Invalid(
                f"columns differ in capitals only columns={[other, name]}",
                hint="rename one of them: Spark's readers cannot distinguish them",
            )


def _grown(current: TopicSchema, rows: pa.Schema) -> TopicSchema:
    """The schema under which these rows are stored: the present one, or the next with the columns that are new."""
    there = set(rows.names)
    _refuse_twins([*current.declared.names, *(name for name in rows.names if name not in current.names)])
    present = [rows.field(field.name) if field.name in there else field for field in current.declared]
    added = [field for field in rows if field.name not in current.names]
    return evolve(current, declare(pa.schema([*present, *added]))) or current
