"""Which columns of a Parquet file may have bounds in its footer: one rule for everything that writes Parquet here.

Readers skip row groups by these bounds, so a wrong one loses rows. Arrow leaves NaN out of them, and to Spark, DuckDB
and DataFusion NaN is the greatest number: `x > 9.5` would skip a row group that has NaN. So floating columns have no
bounds at all, nested ones neither. Whether a column will hold NaN is only known when its last row is there, long after
the writer was configured. Where the log of a table keeps bounds per file, those of columns without NaN stay
(`holdfast.tables.file_stats`).

Times in milliseconds have none either: Spark cuts what it looks for to milliseconds before it compares, so `t < 1.5 ms`
would skip a row group that begins at 1 ms. Nor have lists and maps: no engine skips by them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from holdfast.model.arrow import arrow_types


def bounded_columns(schema: pa.Schema) -> list[str]:
    """The columns that may have bounds, by their paths in Parquet: for the writer's `write_statistics`."""
    leaves = [leaf for column in schema for leaf in _leaves(column)]
    # Arrow tells columns apart by these paths alone: `a.b` may be a column, and a field of the column `a`.
    without = {path for path, is_bounded in leaves if not is_bounded}
    return [path for path, _ in leaves if path not in without]


def _leaves(field: pa.Field, above: str = "") -> Iterator[tuple[str, bool]]:
    kind, path = arrow_types.storage(field.type), above + field.name
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_struct(kind):
        for child in kind:
            yield from _leaves(child, f"{path}.")
    else:
        yield path, not (pa.types.is_floating(kind) or _is_coarse(kind) or arrow_types.inner(kind))


def _is_coarse(kind: pa.DataType) -> bool:
    """Whether it is a time that is stored in milliseconds; Parquet has no seconds."""
    return bool(pa.types.is_timestamp(kind) and kind.unit in ("s", "ms"))
