"""Walking Arrow's types: what is inside one, and which types stand for the same values.

Shared by all that looks into the columns of typed topics. Holds no policy of its own: `schema` says what may be
declared, `conform` what may be given. Pure, and fails for no type: one that it does not know has nothing inside.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

TEXTS = (pa.string(), pa.large_string(), pa.string_view())
BINARIES = (pa.binary(), pa.large_binary(), pa.binary_view())
"""Families of types that differ in their encoding only."""

SHOWN_CHARS_MAX = 200
_is = pa.types


def storage(kind: pa.DataType) -> pa.DataType:
    """What an extension type is stored as; any other type as it is."""
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def is_list(kind: pa.DataType) -> bool:
    """Whether a type is a list of any length, with offsets of either width."""
    return bool(_is.is_list(kind) or _is.is_large_list(kind))


def inner(kind: pa.DataType) -> list[pa.Field]:
    """The fields inside a nested type."""
    if _is.is_struct(kind):
        return list(kind)
    if _is.is_map(kind):
        return [kind.key_field, kind.item_field]
    if is_list(kind) or _is.is_fixed_size_list(kind):
        return [kind.value_field]
    return []


def remade(kind: pa.DataType, change: Callable[[pa.Field], pa.Field]) -> pa.DataType:
    """A nested type with each field inside it changed; any other type as it is."""
    if _is.is_struct(kind):
        return pa.struct([change(child) for child in kind])
    if _is.is_map(kind):
        return pa.map_(change(kind.key_field).with_nullable(False), change(kind.item_field))
    if _is.is_fixed_size_list(kind):
        return pa.list_(change(kind.value_field), kind.list_size)
    if _is.is_large_list(kind):
        return pa.large_list(change(kind.value_field))
    return pa.list_(change(kind.value_field)) if _is.is_list(kind) else kind


def has_required(kind: pa.DataType) -> bool:
    """Whether anything inside a type must not be null."""
    return any(not child.nullable or has_required(child.type) for child in inner(kind))


def loose(kind: pa.DataType) -> pa.DataType:
    """The type in which arrays are put together: extensions as storage, everything inside nullable."""
    return remade(storage(kind), lambda child: pa.field(child.name, loose(child.type)))


def stored_leaf(kind: pa.DataType) -> pa.DataType:
    """The type in which values are stored: one that Parquet gives back as it was."""
    if _is.is_timestamp(kind) and kind.unit == "s":
        return pa.timestamp("ms", kind.tz)
    return pa.time32("ms") if kind == pa.time32("s") else exact_leaf(kind)


def exact_leaf(kind: pa.DataType) -> pa.DataType:
    """The same without a change of unit, so that a cast to it says whether all of a value fits."""
    return pa.date32() if _is.is_date64(kind) else unviewed(kind)


def unviewed(kind: pa.DataType) -> pa.DataType:
    """The plain type of a view."""
    if _is.is_string_view(kind):
        return pa.string()
    return pa.binary() if _is.is_binary_view(kind) else kind


def shown(kind: pa.DataType) -> str:
    """A type in a message, cut to a length that a message bears."""
    return str(kind)[:SHOWN_CHARS_MAX]
