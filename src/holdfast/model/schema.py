"""The schema of a typed topic: what a user declares, what is stored for it, and how it may change.

`declared` is what the user sees. `stored` is what journal entries and Parquet files hold: the same columns with
only those types that Parquet gives back as they were. Dictionaries become their values, extensions their storage,
views plain strings, seconds milliseconds, date64 date32; metadata is left out. What is inside a column is stored as
nullable, because Parquet refuses a null struct over a required field; that it holds no nulls is checked on the way
in and on the way out. A type that cannot be given back equal is refused when it is declared, never when it is read.

`declare` makes one change of its own: dictionaries have int32 indices over plain values. The width of an index is
an encoding, not a type, and a narrow one could not hold what several appends bring together.

A topic's schema grows by nullable columns and in no other way (`evolve`), so rows of every older version are rows
of the newest one with nulls in the new columns.

Pure: values in, values out. Rows are not touched here: `conform` takes them in, `restore` gives them back. A wrong
declaration is Invalid; stored bytes that are no schema are Corrupt. Messages name columns and types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec
import pyarrow as pa
from blake3 import blake3

from holdfast.errors import Corrupt, Invalid
from holdfast.model import content_digest
from holdfast.model.arrow import arrow_types, ipc_message

COLUMNS_MAX = 2000
FIELDS_MAX = 20_000
"""Columns and the fields inside them, together."""
DEPTH_MAX = 16
NAME_CHARS_MAX = 255
METADATA_BYTES_MAX = 64 * 2**10
WIDTH_BYTES_MAX = 2**20
"""What one row of a column takes even when it is null: lists and binaries of a fixed size add up."""
SERIALIZED_BYTES_MAX = 16 * 2**20
FINGERPRINT_BYTES = 16

_EXTENSION = b"ARROW:extension:name"
_EXTENSION_METADATA = b"ARROW:extension:metadata"
_is = pa.types


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """One version of a topic's schema. Made by `declare` and `parse` only."""

    declared: pa.Schema
    """What the user sees."""
    stored: pa.Schema
    """What entries and files hold; no metadata."""
    fingerprint: bytes
    """Of names, types and nullability, all the way down; metadata does not count."""
    names: frozenset[str] = field(repr=False, compare=False)
    required: tuple[tuple[int, Any], ...] = field(repr=False, compare=False)
    """Columns with anything in them that must not be null, each as a field of the stored type that says what."""
    seconds: tuple[tuple[int, Any], ...] = field(repr=False, compare=False)
    """Columns declared in seconds and stored in milliseconds, with the type that says whether all of it fits."""

    def serialize(self) -> bytes:
        """The declared schema as an Arrow IPC message."""
        return bytes(self.declared.serialize())

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read what `serialize` wrote; anything else is Corrupt."""
        try:
            if len(data) > SERIALIZED_BYTES_MAX:
                raise ValueError("too long")
            return cls._of(pa.ipc.read_schema(ipc_message.read_alone(data, "schema")))
        except Exception:  # Arrow, extension types and our own checks each say no in their way
            raise Corrupt("a topic's schema is damaged") from None

    @classmethod
    def _of(cls, schema: pa.Schema) -> Self:
        _check(schema)
        declared = pa.schema([_normal(column) for column in schema], metadata=schema.metadata)
        strict = [_stored(column, arrow_types.stored_leaf) for column in declared]
        exact = [arrow_types.loose(_stored(column, arrow_types.exact_leaf).type) for column in declared]
        stored = pa.schema([column.with_type(arrow_types.loose(column.type)) for column in strict])
        return cls(
            declared,
            stored,
            _fingerprint(declared),
            frozenset(declared.names),
            tuple(
                (i, column)
                for i, column in enumerate(strict)
                if not column.nullable or arrow_types.has_required(column.type)
            ),
            tuple((i, kind) for i, kind in enumerate(exact) if kind != stored.field(i).type),
        )


def declare(schema: pa.Schema | object) -> TopicSchema:
    """Check a user's schema: a pyarrow.Schema, or anything that exports one (`__arrow_c_schema__`).

    >>> declare(pa.schema({"city": pa.string(), "count": pa.int64()})).stored.names
    ['city', 'count']
    """
    if not hasattr(schema, "__arrow_c_schema__"):
        raise Invalid(
            f"a schema is needed found={type(schema).__name__}", hint="give a pyarrow.Schema, or what exports one"
        )
    try:
        given = schema if isinstance(schema, pa.Schema) else pa.schema(schema)
        topic = TopicSchema._of(given)
    except (pa.ArrowException, UnicodeError, ValueError, TypeError):
        raise Invalid("this is not the schema of a table", hint="give a pyarrow.Schema with named columns") from None
    if len(topic.serialize()) > SERIALIZED_BYTES_MAX:
        raise Invalid(f"the schema is too large bytes_max={SERIALIZED_BYTES_MAX}", hint="declare fewer fields")
    return topic


def _check(schema: pa.Schema) -> None:
    if not 1 <= len(schema) <= COLUMNS_MAX:
        raise Invalid(f"a topic has 1 to {COLUMNS_MAX} columns columns={len(schema)}", hint="declare other columns")
    _check_names([column.name for column in schema], "the schema")
    for column in schema:
        if column.name.startswith("_"):
            raise Invalid(f"column names do not start with '_' column={column.name!r}", hint="rename the column")
    fields = sum(_check_field(column, column.name, 1) for column in schema)
    if fields > FIELDS_MAX:
        raise Invalid(f"the schema has too many fields fields={fields} fields_max={FIELDS_MAX}", hint="declare fewer")
    size = _metadata_bytes(schema.metadata) + sum(_nested_metadata_bytes(column) for column in schema)
    if size > METADATA_BYTES_MAX:
        raise Invalid(
            f"the schema's metadata is too large bytes={size} bytes_max={METADATA_BYTES_MAX}",
            hint="drop it with schema.remove_metadata()",
        )


def _check_names(names: list[str], where: str) -> None:
    for name in names:
        if not _is_name(name):
            raise Invalid(
                f"a name in {where} is empty, too long or not printable chars={len(name)}",
                hint=f"use 1 to {NAME_CHARS_MAX} printable characters",
            )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise Invalid(f"a name appears twice in {where} name={twice!r}", hint="rename one of them")


def _is_name(text: str) -> bool:
    return 1 <= len(text) <= NAME_CHARS_MAX and text.isprintable()


def _check_field(column: pa.Field, path: str, depth: int) -> int:
    """Refuse what cannot be stored; returns how many fields there are."""
    if depth > DEPTH_MAX:
        raise Invalid(f"a column is nested too deeply column={path!r} depth_max={DEPTH_MAX}", hint="flatten it")
    kind = column.type
    reason = _refusal(kind)
    if reason is not None:
        raise Invalid(f"a column's type cannot be stored column={path!r} type={arrow_types.shown(kind)}", hint=reason)
    inner = arrow_types.inner(arrow_types.storage(kind))
    if _is.is_struct(arrow_types.storage(kind)):
        _check_names([child.name for child in inner], f"column {path!r}")
    count = 1 + sum(_check_field(child, f"{path}.{child.name}", depth + 1) for child in inner)
    if depth == 1 and _width(kind) > WIDTH_BYTES_MAX:
        raise Invalid(
            f"a column's rows are too wide column={path!r} bytes={_width(kind)} bytes_max={WIDTH_BYTES_MAX}",
            hint="use a binary or a list without a fixed size",
        )
    return count


# Found by writing each type to Parquet and reading it back, and by asking Arrow for the way back from `stored`.
_REFUSALS: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (_is.is_null, "a column of nulls never holds anything: give it the type that its values will have"),
    (lambda kind: _is.is_map(kind) and kind.keys_sorted, "the order of keys is not checked: leave keys_sorted out"),
    (lambda kind: _is.is_fixed_size_list(kind) and kind.list_size == 0, "lists of the fixed size 0 hold nothing"),
    (lambda kind: _is.is_list_view(kind) or _is.is_large_list_view(kind), "declare a list or a large_list"),
    (
        lambda kind: _is.is_decimal(kind) and not 0 <= kind.scale <= kind.precision,
        "Parquet holds decimals with a scale from 0 to the precision",
    ),
    (
        lambda kind: _is.is_timestamp(kind) and kind.tz is not None and not _is_name(kind.tz),
        "the time zone is not the name of one",
    ),
)


def _refusal(kind: pa.DataType) -> str | None:
    """Why a type cannot be declared, whatever is inside it; None if it can."""
    if _is.is_dictionary(kind):
        return _refusal_of_dictionary(kind)
    if isinstance(kind, pa.BaseExtensionType):
        # Neither could be undone in one step, and none of Arrow's own extensions has them.
        over = _is.is_dictionary(kind.storage_type) or isinstance(kind.storage_type, pa.BaseExtensionType)
        return "declare the extension's storage type" if over else _refusal(kind.storage_type)
    reason = next((reason for refused, reason in _REFUSALS if refused(kind)), None)
    return reason if reason or arrow_types.inner(kind) else content_digest.unsupported(arrow_types.stored_leaf(kind))


def _refusal_of_dictionary(kind: pa.DataType) -> str | None:
    value = kind.value_type
    if kind.ordered:
        return "the order of categories is not kept: declare the dictionary unordered, or its value type"
    # Encoding again would merge 0.0 with -0.0, and Arrow cannot encode the others at all.
    if (
        arrow_types.inner(value)
        or isinstance(value, pa.BaseExtensionType)
        or _is.is_floating(value)
        or _is.is_null(value)
    ):
        return "declare the dictionary's value type itself"
    if _is.is_dictionary(value) or _is.is_decimal32(value) or _is.is_decimal64(value):
        return "declare the dictionary's value type itself"
    return _refusal(value)


def _metadata_bytes(metadata: Mapping[bytes, bytes] | None) -> int:
    return sum(len(key) + len(value) for key, value in (metadata or {}).items())


def _nested_metadata_bytes(column: pa.Field) -> int:
    return _metadata_bytes(column.metadata) + sum(
        map(_nested_metadata_bytes, arrow_types.inner(arrow_types.storage(column.type)))
    )


def _width(kind: pa.DataType) -> int:
    kind = arrow_types.storage(kind)
    if _is.is_fixed_size_list(kind):
        return int(kind.list_size) * _width(kind.value_type)
    if _is.is_struct(kind):
        return sum(_width(child.type) for child in kind)
    return int(kind.byte_width) if _is.is_fixed_size_binary(kind) else 8


def require_bounded(stored: pa.Schema) -> None:
    """Refuse (ValueError) columns of a file that no topic can have: too many, too deep, too wide."""
    left = FIELDS_MAX + 2

    def descend(column: pa.Field, depth: int) -> None:
        nonlocal left
        left -= 1
        if depth > DEPTH_MAX or left < 0:
            raise ValueError("too many fields, or too deep")
        for child in arrow_types.inner(arrow_types.storage(column.type)):
            descend(child, depth + 1)

    if not 1 <= len(stored) <= COLUMNS_MAX + 2 or any(_is.is_dictionary(column.type) for column in stored):
        raise ValueError("too many columns, or of a type that is not stored")
    for column in stored:
        descend(column, 1)
        if content_digest.unsupported(column.type) is not None or _width(column.type) > WIDTH_BYTES_MAX:
            raise ValueError("a column that cannot be stored")


def row_bytes(stored: pa.Schema) -> int:
    """What one row takes in memory even if everything in it is null."""
    return sum(_width(column.type) for column in stored)


def _normal(column: pa.Field) -> pa.Field:
    """As it is declared: see the head of this module."""
    kind = column.type
    if _is.is_dictionary(kind):
        return column.with_type(pa.dictionary(pa.int32(), arrow_types.unviewed(kind.value_type)))
    return column.with_type(arrow_types.remade(kind, _normal)) if arrow_types.inner(kind) else column


def _stored(column: pa.Field, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.Field:
    kind = arrow_types.storage(column.type)
    if _is.is_dictionary(kind):
        kind = kind.value_type
    kind = arrow_types.remade(kind, lambda child: _stored(child, leaf)) if arrow_types.inner(kind) else leaf(kind)
    return pa.field(column.name, kind, column.nullable)


# Spelled out here, because the text that Arrow gives to a type may change and a stored fingerprint may not.
_NAMES: dict[Any, str] = {
    pa.bool_(): "bool",
    **{kind: f"int{kind.bit_width}" for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{kind: f"uint{kind.bit_width}" for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
    **{kind: f"float{kind.bit_width}" for kind in (pa.float16(), pa.float32(), pa.float64())},
    pa.date32(): "date32",
    pa.date64(): "date64",
    pa.string(): "string",
    pa.large_string(): "large_string",
    pa.string_view(): "string_view",
    pa.binary(): "binary",
    pa.large_binary(): "large_binary",
    pa.binary_view(): "binary_view",
}


def _fingerprint(declared: pa.Schema) -> bytes:
    message = msgspec.msgpack.encode([_described(column) for column in declared])
    return blake3(message, derive_key_context="holdfast 1 topic schema").digest(length=FINGERPRINT_BYTES)


def _described(column: pa.Field) -> list[Any]:
    return [column.name, column.nullable, _kind(column.type), *_extension(column)]


def _kind(kind: pa.DataType) -> Any:
    # The names of list items and map entries differ between libraries and mean nothing: they do not count.
    kind = arrow_types.storage(kind)
    if _is.is_struct(kind):
        return ["struct", [_described(child) for child in kind]]
    if arrow_types.inner(kind):
        size = kind.list_size if _is.is_fixed_size_list(kind) else -1
        name = "map" if _is.is_map(kind) else "large_list" if _is.is_large_list(kind) else "list"
        return [name, size, [_described(child)[1:] for child in arrow_types.inner(kind)]]
    return ["dictionary", _leaf_name(kind.value_type)] if _is.is_dictionary(kind) else _leaf_name(kind)


def _leaf_name(kind: pa.DataType) -> str:
    if _is.is_timestamp(kind):
        return f"timestamp[{kind.unit},{kind.tz or ''}]"
    if _is.is_time(kind):
        return f"time[{kind.unit}]"
    if _is.is_duration(kind):
        return f"duration[{kind.unit}]"
    if _is.is_decimal(kind):
        return f"decimal{kind.bit_width}({kind.precision},{kind.scale})"
    if _is.is_fixed_size_binary(kind):
        return f"fixed_size_binary[{kind.byte_width}]"
    return _NAMES[kind]


def _extension(column: pa.Field) -> list[str]:
    """Name and parameters of an extension type, the same whether or not this process has registered it."""
    kind = column.type
    if isinstance(kind, pa.ExtensionType):
        return [kind.extension_name, kind.__arrow_ext_serialize__().hex()]
    if isinstance(kind, pa.BaseExtensionType):  # Arrow's own: always registered, parameters only in their text
        return [kind.extension_name, str(kind)]
    metadata = column.metadata or {}
    if _EXTENSION in metadata:
        return [metadata[_EXTENSION].decode(errors="replace"), metadata.get(_EXTENSION_METADATA, b"").hex()]
    return []


def evolve(current: TopicSchema, new: TopicSchema) -> TopicSchema | None:
    """The new version, or None when nothing changed; anything but added nullable columns is Invalid."""
    if current.fingerprint == new.fingerprint:
        return None
    problems = [*_changes(current.declared, new.declared), *_additions(current.declared, new.declared)]
    if problems:
        raise Invalid(
            "the schema cannot change so: " + "; ".join(problems),
            hint="a topic's schema grows by nullable columns only; for anything else start a new topic",
        )
    return new


def _changes(current: pa.Schema, new: pa.Schema) -> Iterator[str]:
    there = set(new.names)
    for column in current:
        if column.name not in there:
            yield f"column {column.name!r} was removed"
            continue
        other = new.field(column.name)
        if _described(column)[2:] != _described(other)[2:]:
            inside = " (inside)" if str(column.type) == str(other.type) else ""
            yield f"column {column.name!r} changed its type from {column.type} to {other.type}{inside}"
        if column.nullable != other.nullable:
            yield f"column {column.name!r} became {'nullable' if other.nullable else 'required'}"
    kept = [name for name in current.names if name in there]
    old_names = set(current.names)
    order = [name for name in new.names if name in old_names]
    if kept != order:
        moved = next(after for before, after in zip(kept, order, strict=True) if before != after)
        yield f"columns were reordered from {moved!r} on"


def _additions(current: pa.Schema, new: pa.Schema) -> Iterator[str]:
    known = set(current.names)
    for column in new:
        if column.name not in known and not column.nullable:
            yield f"column {column.name!r} was added but is not nullable"
