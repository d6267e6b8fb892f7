"""Arrays in another encoding, under another label, and the nulls in them.

`recoded` brings the same values into the layout of another type; `labelled` puts names, nullability, extensions and
metadata on arrays that have the layout already. Neither changes a value, and both copy only what needs a new layout.
They trust that the types fit (`conform` and `restore` have compared them) and that the arrays were validated. A value
that the other type cannot hold is Arrow's own exception, whose text may quote it: callers raise their own.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.arrow import arrow_types
from holdfast.model.arrow.plain_arrays import numbers

_is = pa.types


def recoded(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same values in another encoding, of this type but for its labels; no copy where there is nothing to do."""
    if array.type == kind:
        return array
    loose = arrow_types.loose(kind)
    return array if arrow_types.loose(array.type) == loose else _brought(array, loose)


def _brought(array: pa.Array, kind: pa.DataType) -> pa.Array:
    # Arrow's own cast knows neither dictionaries of views nor the way back into most dictionaries.
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if array.type == kind:
        return array
    if _is.is_dictionary(array.type):
        return _brought(array.dictionary, kind).take(array.indices)
    if _is.is_dictionary(kind):
        return _brought(array, kind.value_type).dictionary_encode()
    if _is.is_struct(kind):
        children = [_brought(array.field(child.name), child.type) for child in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=_mask(array))
    return _brought_list(array, kind) if arrow_types.inner(kind) else array.cast(kind)


def _brought_list(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if _is.is_fixed_size_list(kind):
        values = array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)
        return pa.FixedSizeListArray.from_arrays(_brought(values, kind.value_type), type=kind, mask=_mask(array))
    # A slice of a large array costs what the slice holds: its values are cut out and its offsets start at zero.
    start, length = _range(array.offsets)
    offsets = pc.subtract(array.offsets, numbers([start], array.offsets.type)[0])
    if _is.is_map(kind):
        keys = _brought(array.keys.slice(start, length), kind.key_type)
        items = _brought(array.items.slice(start, length), kind.item_type)
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=_mask(array))
    values = _brought(array.values.slice(start, length), kind.value_type)
    if _is.is_large_list(kind):
        return pa.LargeListArray.from_arrays(offsets.cast(pa.int64()), values, type=kind, mask=_mask(array))
    return pa.ListArray.from_arrays(offsets.cast(pa.int32()), values, type=kind, mask=_mask(array))


def _range(offsets: pa.Array) -> tuple[int, int]:
    start = offsets[0].as_py()
    return start, offsets[-1].as_py() - start


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


class RelabelledArray:
    """Arrays under another schema of the same layout, through Arrow's C interface: nothing is copied or cast."""

    def __init__(self, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        self._batch, self._schema = batch, schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._schema.__arrow_c_schema__(), self._batch.__arrow_c_array__()[1]


def labelled(arrays: list[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Put names, nullability, extensions and metadata on arrays."""
    # Hazard: Arrow believes the label. A wrong one reads memory that is not there, so the layouts are compared.
    for array, column in zip(arrays, schema, strict=True):
        if array.type != column.type and arrow_types.loose(array.type) != arrow_types.loose(column.type):
            raise AssertionError(f"an array of another layout column={column.name!r}")
    return pa.record_batch(RelabelledArray(pa.RecordBatch.from_arrays(arrays, names=schema.names), schema))


def null_in(column: pa.Field, array: pa.Array) -> str | None:
    """The path of a field that is null where it must not be."""
    if not column.nullable and array.null_count:
        return str(column.name)
    if not arrow_types.has_required(column.type):
        return None
    for child, values in zip(arrow_types.inner(column.type), _inner_arrays(array), strict=True):
        path = null_in(child, values)
        if path is not None:
            return f"{column.name}.{path}"
    return None


def _inner_arrays(array: pa.Array) -> list[pa.Array]:
    """The arrays inside a nested one, without what lies under its nulls."""
    valid = array.drop_null() if array.null_count else array
    if _is.is_struct(valid.type):
        return [valid.field(place) for place in range(valid.type.num_fields)]
    if _is.is_map(valid.type):
        start, length = _range(valid.offsets)
        return [valid.keys.slice(start, length), valid.items.slice(start, length)]
    return [valid.flatten()]
