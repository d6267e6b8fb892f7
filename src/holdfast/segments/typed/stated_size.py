"""The stated size of received arrays: what their values take once each is laid out by itself.

A few bytes of Arrow can stand for gigabytes: views and buffers that lie over one another, lists of elements that take
no room, and types that repeat a value by saying how often. None of it is invalid. So a receiver of foreign bytes checks
first: `repeats` for types that are not to be taken at all, `stated_size` for the rest, which needs no memory itself.
Pure; the arrays have been validated.
"""

from __future__ import annotations

import pyarrow as pa

from holdfast.model.arrow import arrow_types

_is = pa.types
_VIEW_BYTES = 16
"""A view begins with its length, four bytes."""


def repeats(kind: pa.DataType) -> bool:
    """Whether a type says where or how often a value stands, so that one value can stand for any number."""
    kind = arrow_types.storage(kind)
    if (
        _is.is_dictionary(kind)
        or _is.is_run_end_encoded(kind)
        or _is.is_union(kind)
        or _is.is_list_view(kind)
        or _is.is_large_list_view(kind)
    ):
        return True
    return any(repeats(child.type) for child in arrow_types.inner(kind))


def stated_size(array: pa.Array) -> int:
    """The bytes of all values, without those that say which are null; an element that takes none counts as one."""
    if isinstance(array, pa.ExtensionArray):
        return stated_size(array.storage)
    kind = array.type
    if _is.is_string_view(kind) or _is.is_binary_view(kind):
        return _viewed(array)
    if _is.is_struct(kind) and kind.num_fields:
        return sum(stated_size(array.field(place)) for place in range(kind.num_fields))
    if _is.is_map(kind):
        return stated_size(array.keys) + stated_size(array.items)
    if arrow_types.inner(kind):
        return len(array) + stated_size(array.values)
    size = int(array.nbytes)
    return size if _is.is_boolean(kind) else max(size, len(array))


def _viewed(array: pa.Array) -> int:
    import numpy as np

    views = array.buffers()[1]
    lengths = np.frombuffer(views, np.int32)[:: _VIEW_BYTES // 4][array.offset : array.offset + len(array)]
    there = array.is_valid().to_numpy(zero_copy_only=False)  # what lies under a null can be anything
    return _VIEW_BYTES * len(array) + int(lengths[there].sum(dtype=np.int64))
