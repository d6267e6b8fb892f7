"""Stored rows as the user declared them: the way back from entries and files.

The opposite of `conform`. Added columns are null, dictionaries, views and extensions are what they were declared to
be, and nothing is copied that already is what it should be. The rows were proved to be what was written (by frame or
digest) and validated by Arrow before; that they fit their schema is checked here, and what does not is Corrupt. A
call that asks for what cannot be there is Invalid. Pure; values never appear in messages.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from holdfast.errors import Corrupt, Invalid
from holdfast.model.arrow import arrow_types
from holdfast.model.schema import TopicSchema
from holdfast.segments.typed.array_encoding import labelled, null_in, recoded


def restore(
    rows: pa.RecordBatch | pa.Table,
    from_stored: TopicSchema,
    to: TopicSchema,
    *,
    columns: Collection[str] | None = None,
) -> pa.RecordBatch | pa.Table:
    """Stored rows of one version as rows of a later one's declared schema: added columns are null.

    `rows` may hold only some of the stored columns; then those are what comes back. `columns` says it exactly: the
    columns that are wanted, which is the only way to ask for a part of them and for an added one together. Columns
    whose names start with "_" are not of the schema; they are kept as they are, in front.
    """
    _check_versions(from_stored, to)
    _check_columns(rows.schema, from_stored)
    schema = pa.schema(_wanted(rows.schema.names, rows.schema, from_stored, to, columns), metadata=to.declared.metadata)
    required = [column for _, column in from_stored.required if column.name in set(rows.schema.names)]
    try:
        if isinstance(rows, pa.RecordBatch):
            return _restored(rows, schema, required)
        batches = [_restored(batch, schema, required) for batch in rows.to_batches()]
        return pa.Table.from_batches(batches, schema=schema)
    except pa.ArrowException:
        raise Corrupt("stored rows do not fit the schema of their topic") from None


def _check_versions(old: TopicSchema, new: TopicSchema) -> None:
    if old.fingerprint != new.fingerprint and not old.names <= new.names:
        raise Invalid("rows are restored to a later version of their schema", hint="give the topic's newest schema")


def _check_columns(found: pa.Schema, from_stored: TopicSchema) -> None:
    for column in found:
        if column.name.startswith("_"):
            continue
        if column.name not in from_stored.names:
            raise Corrupt(f"stored rows have a column that their schema has not column={column.name[:100]!r}")
        kind = from_stored.stored.field(column.name).type
        if column.type != kind and arrow_types.loose(column.type) != arrow_types.loose(kind):
            raise Corrupt(f"stored rows have another type than their schema column={column.name!r}")


def _wanted(
    present: list[str], found: pa.Schema, old: TopicSchema, new: TopicSchema, columns: Collection[str] | None
) -> list[pa.Field]:
    there = set(present)
    if columns is None:
        names = there | (new.names - old.names if old.names <= there else set())
    else:
        names = set(columns)
        missing = sorted((names - new.names) | ((names & old.names) - there))
        if missing:
            raise Invalid(
                f"columns are not there columns={[name[:100] for name in missing[:10]]}", hint="read them too"
            )
    own = [column for column in found if column.name.startswith("_")]
    return own + [column for column in new.declared if column.name in names]


def _restored(batch: pa.RecordBatch, schema: pa.Schema, required: list[pa.Field]) -> pa.RecordBatch:
    there = set(batch.schema.names)
    for column in required:
        if null_in(column, batch.column(column.name)) is not None:
            raise Corrupt(f"stored rows have a null in a required field column={column.name!r}")
    arrays = [
        recoded(batch.column(column.name), column.type)
        if column.name in there
        else pa.nulls(batch.num_rows, arrow_types.loose(column.type))
        for column in schema
    ]
    return labelled(arrays, schema)
