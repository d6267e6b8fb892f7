"""Rows as the bytes of one journal entry: an Arrow IPC message without its schema.

Owns the bytes, not what the rows mean: they have been through `conform` when they are encoded and go through
`restore` when they were decoded. Decoding trusts nothing: all that Arrow can validate is validated, required columns
have no nulls, and the rows lie in the bytes that were given, so they never take more memory than those. Anything else
is BadRows, which knows no topic and no offset: the caller does. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from holdfast.errors import Invalid
from holdfast.model.arrow import arrow_types, ipc_message
from holdfast.segments.typed.array_encoding import RelabelledArray, null_in
from holdfast.segments.typed.stated_size import repeats, stated_size

_is = pa.types


class BadRows(Exception):
    """Bytes are not the rows that they should be. Callers say where."""


def message_of(batch: pa.RecordBatch) -> pa.Buffer:
    """A batch as an Arrow IPC message without its schema; of a slice, only its own rows.

    In Arrow's own memory: a fresh `bytes` of that size costs more than writing the message.
    """
    # Hazard: of an empty array that was cut out of another and came through the C interface, Arrow writes a buffer of
    # negative length, which nobody can read (pyarrow 26). So nothing is given out that was not read back; a copy of
    # the rows has no such array.
    data = _encoded(batch)
    if data is None:
        data = _encoded(batch.take(pa.arange(0, batch.num_rows)))
    if data is None:
        raise Invalid("Arrow cannot write these rows so that they can be read", hint="append a copy of the data")
    return data


def _encoded(batch: pa.RecordBatch) -> pa.Buffer | None:
    data = batch.serialize()
    try:
        message = pa.ipc.read_message(data)
        rows = pa.ipc.read_record_batch(message, batch.schema).num_rows
    except (pa.ArrowException, OSError):
        return None
    return data if rows == batch.num_rows and ipc_message.length(message) == len(data) else None


def decode_rows(data: bytes | memoryview, schema: pa.Schema) -> pa.RecordBatch:
    """What `message_of` wrote, in the memory of `data`; raises BadRows unless all of it is valid."""
    try:
        return _decoded(ipc_message.read_alone(data, "record batch"), schema)
    except BadRows:
        raise
    except Exception:  # Arrow says no in many ways, and some of its messages quote values
        raise BadRows("not a valid record batch of this schema") from None


def decode_several(messages: Sequence[bytes | memoryview], schema: pa.Schema) -> tuple[pa.RecordBatch, list[int]]:
    """The same of several messages, as one batch, and how many rows each holds: validated and labelled once for all."""
    listed = _listed(schema)
    try:
        batches = [_unpacked(ipc_message.read_alone(data, "record batch"), listed) for data in messages]
        together = pa.Table.from_batches(batches, schema=listed)
        together.validate(full=True)  # before they are put together, which believes every offset
        (batch,) = together.combine_chunks().to_batches()
        return _checked(_mapped(batch, listed, schema), schema), [batch.num_rows for batch in batches]
    except BadRows:
        raise
    except Exception:
        raise BadRows("not valid record batches of this schema") from None


def sent_rows(data: bytes | memoryview, schema: pa.Schema) -> pa.RecordBatch:
    """The same of foreign bytes: columns that share theirs, and would take more once apart, are BadRows."""
    batch = decode_rows(data, schema)
    if batch.nbytes > len(data):
        raise BadRows("columns lie over one another")
    return batch


def stream_batches(data: bytes, rows_max: int, bytes_max: int) -> list[pa.RecordBatch]:
    """The batches of a received IPC stream, in the memory of `data`; raises BadRows unless all is valid.

    Types that repeat values are refused, more rows than there may be, and rows that stand for more than `bytes_max`
    while they are not so long themselves.
    """
    try:
        messages = iter(pa.ipc.MessageReader.open_stream(pa.py_buffer(data)))
        schema = _read_schema(next(messages))
        repeating = [column.name[:100] for column in schema if repeats(column.type)]
        if repeating:
            raise BadRows(
                f"columns are dictionaries, unions, views of lists or encoded by runs columns={repeating[:10]}"
            )
        batches: list[pa.RecordBatch] = []
        rows = size = 0
        for message in messages:
            if message.type != "record batch":
                raise BadRows("a message is no record batch")
            batches.append(_decoded(message, schema))
            rows += batches[-1].num_rows
            if rows > rows_max:
                raise BadRows(f"there are too many rows max={rows_max}")
            size += sum(map(stated_size, batches[-1].columns))
            if size > max(bytes_max, len(data)):
                raise BadRows(f"the rows stand for too many bytes max={bytes_max}")
        return batches
    except BadRows:
        raise
    except Exception:
        raise BadRows("not a valid stream") from None


def _read_schema(message: pa.Message) -> pa.Schema:
    # Hazard: Arrow reads any message as a schema, and ends the process when it is none.
    if message.type != "schema":
        raise BadRows("the stream does not begin with a schema")
    return pa.ipc.read_schema(message)


def _decoded(message: pa.Message, schema: pa.Schema) -> pa.RecordBatch:
    listed = _listed(schema)
    batch = _unpacked(message, listed)
    batch.validate(full=True)
    return _checked(_mapped(batch, listed, schema), schema)


def _unpacked(message: pa.Message, listed: pa.Schema) -> pa.RecordBatch:
    """The rows of a message, not validated yet."""
    # A few forged bytes could expand to all of the memory, and message_of compresses nothing.
    if ipc_message.is_compressed(message):
        raise BadRows("the rows are compressed")
    return pa.ipc.read_record_batch(message, listed)


def _checked(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    wrong = [column.name for column, array in zip(schema, batch.columns, strict=True) if null_in(column, array)]
    if wrong:
        raise BadRows(f"null in required columns columns={wrong[:10]}")
    return batch


def _listed(schema: pa.Schema) -> pa.Schema:
    """The schema with which rows are read."""
    # Hazard: Arrow ends the process when it meets a map with a null key or entry, before it could be validated.
    # So maps are read as what they are made of, lists of structs, and become maps when they have proved to be ones.
    return pa.schema([_maps_as_lists(column) for column in schema])


def _mapped(batch: pa.RecordBatch, listed: pa.Schema, schema: pa.Schema) -> pa.RecordBatch:
    """Validated rows with their maps."""
    if listed.equals(schema, check_metadata=True):
        return batch
    if any(_breaks_maps(array, column.type) for array, column in zip(batch.columns, schema, strict=True)):
        raise BadRows("a map has a null key")
    return pa.record_batch(RelabelledArray(batch, schema))


def _maps_as_lists(column: pa.Field) -> pa.Field:
    kind = column.type
    if _is.is_map(kind):
        kind = pa.list_(pa.field("entries", pa.struct([kind.key_field.with_nullable(True), kind.item_field])))
    return column.with_type(arrow_types.remade(kind, _maps_as_lists)) if arrow_types.inner(kind) else column


def _breaks_maps(array: pa.Array, kind: pa.DataType) -> bool:
    """Whether a map of `kind`, here a list, has nulls where maps have none; also under nulls, where Arrow looks."""
    if _is.is_map(kind):
        entries = array.values
        if entries.null_count or entries.field(0).null_count:
            return True
        return any(_breaks_maps(entries.field(i), child.type) for i, child in enumerate(arrow_types.inner(kind)))
    if _is.is_struct(kind):
        return any(_breaks_maps(array.field(i), child.type) for i, child in enumerate(kind))
    return bool(arrow_types.inner(kind)) and _breaks_maps(array.values, kind.value_type)
