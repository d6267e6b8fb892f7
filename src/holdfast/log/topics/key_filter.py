"""A key whose records are wanted: what a user gives, as the partition, the index and the rows know it.

The index only says where to look. Every row that is given was compared with the key itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.errors import Invalid

if TYPE_CHECKING:
    import pyarrow as pa

Key = bytes | str | int


class KeyFilter(NamedTuple):
    """One key of a topic."""

    encoded: bytes
    """As it chooses the partition, and as it stands in indexes."""
    column: str
    """Where rows have it …"""
    value: Key
    """… and what stands there."""

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch that have it."""
        import pyarrow as pa
        import pyarrow.compute as pc

        column = batch.column(self.column)
        return batch.filter(pc.equal(column, pa.scalar(self.value, column.type)))

    @classmethod
    def of_column(cls, key: object, column: str, kind: pa.DataType) -> KeyFilter:
        """A key of a typed topic: of the type of its key column; Invalid if it is none."""
        import pyarrow as pa

        is_whole = pa.types.is_integer(kind)
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        wanted = int if is_whole else str if is_text else bytes
        if not isinstance(key, wanted) or isinstance(key, bool):
            raise Invalid(
                f"a key of this topic is {wanted.__name__}, not {type(key).__name__} column={column!r}",
                hint=f"give a value as it stands in column {column!r}",
            )
        try:
            pa.scalar(key, kind)
        except (pa.ArrowException, OverflowError, UnicodeEncodeError):
            raise Invalid(f"no row can have this key column={column!r}", hint=f"its type is {kind}") from None
        encoded = key if isinstance(key, bytes) else str(key).encode()
        return cls(encoded, column, key)
