"""What a table of each kind stores of a frame: its columns, and what its configuration says about how it is cut.

    append, snapshot   the columns of the frame
    keyed              the same without the column that deletes
    windowed           window_start, window_end, the columns of `by`, then the values; of a mean also its sum and count

Columns are those of `tables.table_schema`: all nullable, times in microseconds. What a kind cannot do with a frame's
columns is Invalid here, on the driver, before anything is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql.types import BooleanType, DateType, TimestampNTZType, TimestampType

from holdfast.errors import Invalid
from holdfast.tables.key_numbers import check_key, check_order, column_type
from holdfast.tables.merging import DELETED, Combine, Function, Latest
from holdfast.tables.table_schema import normal
from pyspark_holdfast.pipeline.table_definition import Aggregate, Keyed, Kind, Windowed
from pyspark_holdfast.types import spark_type
from pyspark_holdfast.versions.arrow_schema import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from holdfast.tables.table_log import TableSnapshot

WINDOW_START, WINDOW_END = "window_start", "window_end"
BUCKET = "__bucket"
"""While a table is written: the number of a row's bucket."""
ROWS = "__rows"
"""The same: how many rows of the frame a window stands for; 0 for one that is only to be replaced."""
_WINDOW = "__window"
_CONFIGURATION = "holdfast."


# -- columns ------------------------------------------------------------------------------------------------


def stored_columns(frame: DataFrame, kind: Kind) -> pa.Schema:
    """The columns that a table of this kind stores of a frame; raises Invalid."""
    if isinstance(kind, Windowed):
        check_windowed(frame, kind)
        return arrow_columns(summed(frame, kind))
    columns = arrow_columns(frame)
    if isinstance(kind, Keyed):
        check_keyed(frame, kind, columns)
        columns = pa.schema([column for column in columns if column.name != kind.delete])
    return columns


def arrow_columns(frame: DataFrame) -> pa.Schema:
    """The columns of a frame as files hold them."""
    columns = normal(arrow_schema(frame.schema))
    for name in (BUCKET, ROWS, DELETED, _WINDOW):
        if name in columns.names:
            raise Invalid(f"a column has a name that is needed for ourselves column={name}", hint="rename it")
    return columns


def without_collations(frame: DataFrame) -> DataFrame:
    """The same rows with plain texts. Files know no collation: stored texts differ by their bytes."""
    if "collate" not in frame.schema.simpleString():
        return frame
    columns = arrow_schema(frame.schema)
    kinds = {column.name: spark_type(column.type, column.name) for column in columns}
    return frame.select(*(f.col(quoted(name)).cast(kinds[name]).alias(name) for name in frame.columns))


def check_keyed(frame: DataFrame, kind: Keyed, columns: pa.Schema) -> None:
    """Raise Invalid where a frame cannot be stored by key."""
    check_key(columns, kind.key)
    check_order(columns, kind.order_by)
    if kind.delete is None:
        return
    column_type(columns, kind.delete, "delete")
    if not isinstance(frame.schema[kind.delete].dataType, BooleanType):
        raise Invalid(
            f"the column that deletes must be a boolean delete={kind.delete}",
            hint=f'as .withColumn("{kind.delete}", col("status") == "removed")',
        )
    if kind.delete in (*kind.key, *kind.order_by):
        raise Invalid(f"the column that deletes is not stored delete={kind.delete}", hint="order by another column")


def check_windowed(frame: DataFrame, kind: Windowed) -> None:
    """Raise Invalid where a frame has no such windows."""
    columns = pa.schema([(name, pa.int8()) for name in frame.columns])
    column_type(columns, kind.time, "time")
    if not isinstance(frame.schema[kind.time].dataType, TimestampType | TimestampNTZType | DateType):
        raise Invalid(f"the time of a window must be a timestamp time={kind.time}", hint="cast it in the function")
    for value in kind.values.values():
        if value.column is not None:
            column_type(columns, value.column, f"{value.function}_of")
            check_order(arrow_columns(frame.select(quoted(value.column))), [value.column], f"{value.function}_of")
    check_key(arrow_columns(frame.select(*(quoted(name) for name in kind.by))) if kind.by else columns, kind.by, "by")
    names = [WINDOW_START, WINDOW_END, *kind.by, *(name for one in kind.values for name in _names(one, kind))]
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        raise Invalid(f"two columns of the table would have one name column={twice}", hint="give a value another name")


def _names(name: str, kind: Windowed) -> tuple[str, ...]:
    return (name, f"{name}_sum", f"{name}_count") if kind.values[name].function == "mean" else (name,)


# -- windows ------------------------------------------------------------------------------------------------


def summed(frame: DataFrame, kind: Windowed, **more: Column) -> DataFrame:
    """One row per window and group: what Spark can add up before anything is stored. Without a time, a row is in none.

    `more` are further aggregates.
    """
    values = [column for name, value in kind.values.items() for column in _aggregates(frame, name, value)]
    values += [column.alias(name) for name, column in more.items()]
    found = frame.groupBy(_window(frame, kind), *(f.col(quoted(name)) for name in kind.by)).agg(*values)
    return found.select(*_bounds(), *(f.col(quoted(name)) for name in found.columns if name != _WINDOW))


def windows_of(frame: DataFrame, kind: Windowed) -> DataFrame:
    """The windows that the rows of a frame fall into: `window_start`, `window_end`."""
    return frame.select(_window(frame, kind)).distinct().select(*_bounds())


def _window(frame: DataFrame, kind: Windowed) -> Column:
    time = f.col(quoted(kind.time))
    if isinstance(frame.schema[kind.time].dataType, DateType):
        time = time.cast("timestamp_ntz")
    return f.window(time, f"{kind.size_ms} milliseconds").alias(_WINDOW)


def _bounds() -> tuple[Column, Column]:
    return f.col(f"{_WINDOW}.start").alias(WINDOW_START), f.col(f"{_WINDOW}.end").alias(WINDOW_END)


def _aggregates(frame: DataFrame, name: str, value: Aggregate) -> list[Column]:
    if value.column is None:
        return [f.count(f.lit(1)).alias(name)]
    column = f.col(quoted(value.column))
    if value.function == "mean":
        # The mean itself is made where windows are merged, always in the same way.
        kind = frame.select(f.avg(column).alias("mean")).schema["mean"].dataType
        none = f.max(f.lit(None).cast(kind)).alias(name)
        return [none, _sum(column, f"{name}_sum"), f.count(column).alias(f"{name}_count")]
    if value.function == "sum":
        return [_sum(column, name)]
    return [{"min": f.min, "max": f.max, "count": f.count}[value.function](column).alias(name)]


def _sum(column: Column, name: str) -> Column:
    """A sum, or an error. In a session without ANSI Spark's own `sum` wraps around, and gives null for decimals."""
    message = f"a sum does not fit its column column={name}: cast what is added up to a decimal or a double"
    found = f.try_sum(column)
    return f.when(found.isNull() & (f.count(column) > 0), f.raise_error(f.lit(message))).otherwise(found).alias(name)


def quoted(name: str) -> str:
    """A column's name as SQL has it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


# -- rules --------------------------------------------------------------------------------------------------


def latest_rule(kind: Keyed) -> Latest:
    """How rows of a keyed table are merged."""
    return Latest(kind.key, kind.order_by)


def combine_rule(kind: Windowed) -> Combine:
    """How rows of a windowed table are merged."""
    values: dict[str, Function] = {}
    for name, value in kind.values.items():
        if value.function == "mean":
            values |= {f"{name}_sum": "sum", f"{name}_count": "sum"}
        else:
            values[name] = "sum" if value.function in ("count", "sum") else value.function  # type: ignore[assignment]
    means = tuple(name for name, value in kind.values.items() if value.function == "mean")
    return Combine((WINDOW_START, *kind.by), values, means)


# -- configuration ------------------------------------------------------------------------------------------


def configuration_of(kind: Kind) -> dict[str, str]:
    """What a table's configuration says about how its rows came about; belongs into each `TableChange`."""
    options = {"kind": kind.name}
    if isinstance(kind, Keyed):
        options |= {"key": ",".join(kind.key), "order_by": ",".join(kind.order_by), "buckets": str(kind.buckets)}
    if isinstance(kind, Windowed):
        options |= {"time": kind.time, "size_ms": str(kind.size_ms), "by": ",".join(kind.by)}
        options["values"] = ",".join(f"{name}={one.function}({one.column or ''})" for name, one in kind.values.items())
    return {_CONFIGURATION + name: value for name, value in options.items()}


def require_same_rule(before: TableSnapshot, kind: Kind, table: str) -> None:
    """Raise Invalid where stored rows came about by another rule: new ones cannot be merged with them."""
    if before.version < 0:
        return
    for name, value in configuration_of(kind).items():
        was = before.configuration.get(name, value)
        if was != value and name != f"{_CONFIGURATION}buckets":
            said = name.removeprefix(_CONFIGURATION)
            raise Invalid(
                f"the table was written with another {said} table={table} {said}={value!r} stored={was!r}",
                hint="give the table a new name, or remove its folder, and run again from the beginning",
            )


def stored_buckets(before: TableSnapshot) -> int | None:
    """How many buckets a keyed table is cut into; None where there is none yet."""
    buckets = before.configuration.get(f"{_CONFIGURATION}buckets", "")
    return int(buckets) if buckets.isascii() and buckets.isdigit() and len(buckets) <= 6 else None
