"""Columns that were given, as one batch of exactly the stored schema of a topic.

`assemble` brings columns into their stored types and fills missing ones with nulls; `check` says whether a batch
may be stored: no null where the declared schema has none, and only whole seconds where it has seconds. Used for rows
from Arrow (`conform`) and from Python (`python_rows`) alike, which have compared types and names before. Pure;
refusals are Invalid and name the column and, where one value is to blame, its row.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import Invalid
from holdfast.model.arrow import arrow_types
from holdfast.model.schema import TopicSchema
from holdfast.segments.typed.array_encoding import labelled, null_in, recoded


def assemble(topic: TopicSchema, found: Sequence[pa.Array | None], rows: int) -> pa.RecordBatch:
    """Columns in the order of the schema, None for a missing one, as a batch of the stored schema."""
    arrays = []
    for column, array in zip(topic.stored, found, strict=True):
        try:
            arrays.append(pa.nulls(rows, column.type) if array is None else recoded(array, column.type))
        except pa.ArrowException:
            raise Invalid(
                f"a value does not fit column={column.name!r} type={arrow_types.shown(column.type)}",
                hint="the column is stored in this type: give values in its range",
            ) from None
    return labelled(arrays, topic.stored)


def check(topic: TopicSchema, batch: pa.RecordBatch, row: int) -> None:
    """Refuse a batch of the stored schema that the declared one does not allow. `row` is its first, for messages."""
    for place, column in topic.required:
        array = batch.column(place)
        path = null_in(column, array)
        if path is not None:
            where = f" row={row + pc.index(array.is_null(), True).as_py()}" if path == column.name else ""
            raise Invalid(f"a required value is null column={path!r}{where}", hint="give a value, or drop the row")
    for place, kind in topic.seconds:
        try:
            recoded(batch.column(place), kind)
        except pa.ArrowException:
            column = topic.declared.field(place)
            raise Invalid(
                f"a value is not in whole seconds column={column.name!r} type={arrow_types.shown(column.type)}",
                hint="round it to seconds first, or declare the column in milliseconds",
            ) from None
