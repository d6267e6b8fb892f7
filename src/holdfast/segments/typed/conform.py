"""Rows that a user appends, as batches of exactly what is stored.

Takes in Arrow data of any library and, through `python_rows`, dicts. Columns are matched by name and compared by type
before a value is read; nothing is cast, only encodings may differ. All of it is checked before the first batch is given
out, so what is refused leaves nothing behind: Invalid, with the column and where possible the row, never with a value.
Pure but for reading what was given, once.

Data of other libraries comes through pointers and is trusted in nothing. Arrow ends the process when it makes an array
of a map with a null key, so no column is touched in a batch that has not been validated as a whole: validation reads
the bare buffers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import pyarrow as pa

from holdfast.errors import Invalid
from holdfast.model.arrow import arrow_types
from holdfast.model.schema import TopicSchema
from holdfast.segments.typed import stored_batch
from holdfast.segments.typed.python_rows import stored_rows

_is = pa.types


def conform(topic: TopicSchema, data: object, *, rows_max: int) -> list[pa.RecordBatch]:
    """What a user appends, as batches of exactly `topic.stored` with at most `rows_max` rows each, as few as possible.

    Takes Arrow data (a batch, a table, a frame of polars or pandas, a DuckDB relation), a dict as one row, or an
    iterable of dicts. Arrow data is never cast to another type; only its encoding may differ. Batches share the
    memory of what was given wherever it already has the stored types: do not change it afterwards.
    """
    if rows_max < 1:
        raise Invalid(f"rows_max must be above zero rows_max={rows_max}", hint="give at least 1")
    batches = [batch for batch in _given(topic, data, rows_max) if batch.num_rows]
    if not batches:
        raise Invalid("the batch is empty", hint="append at least one row")
    if len(batches) == 1 and batches[0].num_rows <= rows_max:
        return batches
    try:
        whole = pa.Table.from_batches(batches, schema=topic.stored).combine_chunks()
    except pa.ArrowException:
        raise Invalid("the batch is too large", hint="append it in several smaller ones") from None
    return list(whole.to_batches(max_chunksize=rows_max))


def _given(topic: TopicSchema, data: object, rows_max: int) -> Iterator[pa.RecordBatch]:
    if isinstance(data, Mapping):
        yield stored_rows(topic, [data], 0)
    elif isinstance(data, pa.RecordBatch):
        yield _stored_batch(topic, data, _places(topic, data.schema), 0)
    elif hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        found, batches = _batches(data)
        places, row = _places(topic, found), 0
        for batch in batches:
            yield _stored_batch(topic, batch, places, row)
            row += batch.num_rows
    elif isinstance(data, Iterable) and not isinstance(data, str | bytes | bytearray | memoryview):
        rows, row = iter(data), 0
        while some := list(islice(rows, rows_max)):
            yield stored_rows(topic, some, row)
            row += len(some)
    else:
        raise Invalid(
            f"rows are needed found={type(data).__name__}",
            hint="give a dict, dicts, or Arrow data: a pyarrow Table or RecordBatch, a DataFrame",
        )


def _batches(data: object) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """A table's schema and batches. Not through pa.table, which makes arrays of what nobody has validated."""
    if isinstance(data, pa.Table):
        return data.schema, data.to_batches()
    try:
        if isinstance(data, pa.RecordBatchReader):
            return data.schema, list(data)
        if hasattr(data, "__arrow_c_stream__"):
            reader = pa.RecordBatchReader.from_stream(data)
            return reader.schema, list(reader)
        batch = pa.record_batch(data)
        return batch.schema, [batch]
    except (pa.ArrowException, ValueError, TypeError, OSError):
        raise Invalid(
            f"this cannot be read as a table found={type(data).__name__}",
            hint="pyarrow.table(data) says why; top-level rows cannot be null",
        ) from None


def _places(topic: TopicSchema, found: pa.Schema) -> list[int | None]:
    """Where each stored column stands in the data, None where it is missing; refuses what does not match."""
    try:
        names = found.names
    except UnicodeError:
        raise Invalid("a column's name is not text", hint="rename the column") from None
    if len(set(names)) < len(names):
        raise Invalid("a column appears twice in the data", hint="rename or drop one of them")
    unknown = [name for name in names if name not in topic.names]
    if unknown:
        raise Invalid(
            f"columns are unknown columns={[name[:100] for name in unknown[:10]]}",
            hint="drop them, or declare the topic with a schema that has them",
        )
    place_of = {name: place for place, name in enumerate(names)}
    for column in topic.declared:
        place = place_of.get(column.name)
        if place is None and not column.nullable:
            raise Invalid(f"a required column is missing column={column.name!r}", hint="give it a value in every row")
        if place is not None and not _fits(found.field(place).type, column.type):
            raise Invalid(
                f"a column has another type column={column.name!r} expected={arrow_types.shown(column.type)}"
                f" found={arrow_types.shown(found.field(place).type)}",
                hint="cast it before it is appended: nothing is cast silently",
            )
    return [place_of.get(name) for name in topic.declared.names]


def _fits(found: pa.DataType, declared: pa.DataType) -> bool:
    """Whether data of one type is data of the other in another encoding."""
    if found == declared:
        return True
    if isinstance(declared, pa.BaseExtensionType):
        return _fits(found, declared.storage_type)
    if _is.is_dictionary(found) or _is.is_dictionary(declared):
        return _fits(*(kind.value_type if _is.is_dictionary(kind) else kind for kind in (found, declared)))
    if arrow_types.inner(declared):
        return _nested_fits(found, declared)
    families = (arrow_types.TEXTS, arrow_types.BINARIES)
    return found in next((some for some in families if declared in some), (arrow_types.stored_leaf(declared),))


def _nested_fits(found: pa.DataType, declared: pa.DataType) -> bool:
    if _is.is_struct(declared):
        if not _is.is_struct(found) or sorted(c.name for c in found) != sorted(c.name for c in declared):
            return False
        return all(_fits(found.field(child.name).type, child.type) for child in declared)
    if _is.is_fixed_size_list(declared):
        same = _is.is_fixed_size_list(found) and found.list_size == declared.list_size
    elif _is.is_map(declared):
        same = _is.is_map(found)
    else:
        same = arrow_types.is_list(found)
    pairs = zip(arrow_types.inner(found), arrow_types.inner(declared), strict=False)
    return same and all(_fits(one.type, other.type) for one, other in pairs)


def _stored_batch(topic: TopicSchema, batch: pa.RecordBatch, places: list[int | None], row: int) -> pa.RecordBatch:
    """One given batch in stored form. `row` is its first row in all that was given, for messages."""
    _validate(batch)
    if not batch.schema.equals(topic.stored, check_metadata=True):
        found = [None if place is None else batch.column(place) for place in places]
        batch = stored_batch.assemble(topic, found, batch.num_rows)
    stored_batch.check(topic, batch, row)
    return batch


def _validate(batch: pa.RecordBatch) -> None:
    # Bad offsets, indices, text and maps are found before they are used. Hazard: also the name of the bad column is
    # found without a look at the column.
    try:
        batch.validate(full=True)
    except pa.ArrowException as error:
        raise Invalid(
            f"the data is not valid Arrow data{_named(batch, error)}",
            hint="batch.validate(full=True) says why; text must be UTF-8, keys of maps are never null",
        ) from None


def _named(batch: pa.RecordBatch, error: pa.ArrowException) -> str:
    """Which column Arrow complains of; only its number is taken from a message that may quote values."""
    place = re.match(r"In column (\d+):", str(error))
    return f" column={batch.schema.names[int(place[1])][:100]!r}" if place else ""
