"""The key column of a typed topic: rows with one value in it are in one partition, in order, as raw records of one key.

Which column that is stands in the metadata of the schema's first version, so it goes wherever the schema goes: into the
journal, to the store, and back. It is chosen when the topic is created and never changes.

The partition of a row is that of a raw record whose key has the same bytes: CRC-32 of the key, modulo the number of
partitions. Text counts in UTF-8, bytes as they are, integers as decimal text. Rows without a value go where the caller
says, together.

Pure. Nothing loops over rows in Python, only over the different values of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import Invalid
from holdfast.model.arrow import arrow_types
from holdfast.model.schema import TopicSchema, declare

_KEY = b"holdfast.key"
_is = pa.types


class PartitionedRows(NamedTuple):
    """Rows by partition."""

    parts: list[tuple[int, pa.RecordBatch]]
    """Partitions by number, each with its rows in their order."""
    starts: list[int]
    """Where each part begins, when all of them stand one behind the other …"""
    positions: Sequence[int]
    """… and where each row stands there."""


def keyed(schema: pa.Schema | object, key: str | None) -> TopicSchema:
    """A schema as it is declared for a new topic with this key column, or with none; Invalid if it cannot be one."""
    declared = declare(schema)
    if key is None:
        return declare(without_key(declared.declared))
    if not isinstance(key, str) or key not in declared.names:
        raise Invalid(f"there is no column {key!r} to be the key", hint=f"the schema has {declared.declared.names}")
    kind = declared.stored.field(key).type
    if not _is_key(kind):
        raise Invalid(
            f"a column of this type cannot be the key column={key!r} type={arrow_types.shown(kind)}",
            hint="a key is text, bytes or an integer",
        )
    metadata = {**(declared.declared.metadata or {}), _KEY: key.encode()}
    return declare(declared.declared.with_metadata(metadata))


def without_key(schema: pa.Schema) -> pa.Schema:
    """The schema as the user gave it."""
    if _KEY not in (schema.metadata or {}):
        return schema
    kept = {name: value for name, value in schema.metadata.items() if name != _KEY}
    return schema.with_metadata(kept) if kept else schema.remove_metadata()


def key_of(first: TopicSchema) -> str | None:
    """The key column that the first version of a topic's schema names."""
    name = (first.declared.metadata or {}).get(_KEY, b"").decode(errors="replace")
    return name if name in first.names else None


def split(batch: pa.RecordBatch, key: str, partitions: int, keyless: int) -> PartitionedRows:
    """Rows by the partitions of their keys; those without a key go to partition `keyless`."""
    numbers = _numbers(batch.column(key), partitions, keyless)
    order = pc.sort_indices(numbers)  # stable: rows of one partition stay in order
    found = sorted((count["values"], count["counts"]) for count in pc.value_counts(numbers).to_pylist())
    bounds = [0, *accumulate(count for _, count in found)]
    sorted_rows = batch.take(order)
    parts = [
        (number, sorted_rows.slice(start, end - start))
        for (number, _), (start, end) in zip(found, pairwise(bounds), strict=True)
    ]
    positions = pc.sort_indices(order).cast(pa.uint64())
    return PartitionedRows(parts, bounds[:-1], memoryview(positions.buffers()[1]).cast("B").cast("Q")[: len(positions)])


def _numbers(column: pa.Array, partitions: int, keyless: int) -> pa.Array:
    encoded = column.dictionary_encode()
    values = encoded.dictionary
    if _is.is_integer(values.type):
        values = values.cast(pa.string())
    keys = (value.encode() if isinstance(value, str) else value for value in values.to_pylist())
    numbers = pa.array([crc32(value) % partitions for value in keys], pa.int32())
    return numbers.take(encoded.indices).fill_null(keyless)


def _is_key(kind: pa.DataType) -> bool:
    tests = (_is.is_string, _is.is_large_string, _is.is_binary, _is.is_large_binary, _is.is_fixed_size_binary)
    return _is.is_integer(kind) or (not _is.is_decimal(kind) and any(test(kind) for test in tests))
