"""Arrow's types as Spark's: what a column of a segment is called in a DataFrame.

Spark has fewer types. Unsigned integers become the next larger signed ones, as in Spark's own Parquet reader. Times of
day and half floats become types that hold all their values. A column that Spark has no type for is refused by name; the
option `columns` leaves it out. `is_native` says whether Spark's own reader gives the same values, so that the fast path
can be taken. `trace_id` makes a column of the trace that a record was appended in: joined with traces, grouped by,
or looked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from holdfast.errors import Invalid
from holdfast.model.arrow import arrow_types
from holdfast.reader.read_columns import Column

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn

_is = pa.types
_TRACE_PARENT = "^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?$"
_DECIMAL_DIGITS_MAX = 38

_LEAVES: dict[pa.DataType, DataType] = {
    pa.bool_(): BooleanType(),
    pa.int8(): ByteType(),
    pa.int16(): ShortType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.uint8(): ShortType(),
    pa.uint16(): IntegerType(),
    pa.uint32(): LongType(),
    pa.uint64(): DecimalType(20, 0),
    pa.float16(): FloatType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.date32(): DateType(),
    pa.string(): StringType(),
    pa.large_string(): StringType(),
    pa.binary(): BinaryType(),
    pa.large_binary(): BinaryType(),
}


def spark_schema(columns: Sequence[Column]) -> StructType:
    """The columns of a read as Spark types. All are nullable, as in Spark's own files."""
    return StructType([StructField(column.name, spark_type(column.kind, column.name)) for column in columns])


def spark_type(kind: pa.DataType, name: str) -> DataType:
    """The Spark type of a column, or Invalid. `name` is for the message."""
    found = _LEAVES.get(kind)
    if found is not None:
        return found
    if _is.is_struct(kind):
        return StructType([StructField(child.name, spark_type(child.type, name)) for child in kind])
    if _is.is_map(kind):
        return MapType(spark_type(kind.key_type, name), spark_type(kind.item_type, name))
    if arrow_types.inner(kind):
        return ArrayType(spark_type(kind.value_type, name))
    leaf = _leaf(kind)
    if leaf is None:
        raise Invalid(
            f"Spark has no type for column {name!r} type={arrow_types.shown(kind)}",
            hint="leave it out: option columns names those that are read",
        )
    return leaf


def _leaf(kind: pa.DataType) -> DataType | None:
    if _is.is_timestamp(kind):
        return TimestampType() if kind.tz is not None else TimestampNTZType()
    if _is.is_decimal(kind):
        return DecimalType(kind.precision, kind.scale) if kind.precision <= _DECIMAL_DIGITS_MAX else None
    if _is.is_fixed_size_binary(kind):
        return BinaryType()
    if _is.is_duration(kind):
        return DayTimeIntervalType()
    if _is.is_time(kind):
        return IntegerType() if _is.is_time32(kind) else LongType()
    return None


def is_native(kind: pa.DataType) -> bool:
    """Whether Spark's own Parquet reader gives the same values for a column of this type."""
    inner = arrow_types.inner(kind)
    if _is.is_fixed_size_list(kind):
        return False
    if inner:
        return all(is_native(child.type) for child in inner)
    if kind == pa.float16() or _is.is_time(kind) or _is.is_duration(kind):
        return False
    if _is.is_timestamp(kind):
        return bool(kind.unit in ("ms", "us"))
    return not _is.is_decimal(kind) or bool(kind.precision <= _DECIMAL_DIGITS_MAX)


def trace_id(headers: str = "headers") -> SparkColumn:
    """The id of the trace, as 32 hexadecimal digits, from the column of headers; null where a record was in none.

        orders.where(pyspark_holdfast.trace_id() == "4bf92f3577b34da6a3ce929d0e0e4736")

    In SQL: `substring(string(get(filter(headers, h -> h.key = 'traceparent'), 0).value), 4, 32)`.
    """
    from pyspark.sql import functions

    named = functions.filter(functions.col(headers), lambda header: header["key"] == "traceparent")
    parent = functions.get(named, 0)["value"].cast("string")
    return functions.when(parent.rlike(_TRACE_PARENT), functions.substring(parent, 4, 32))
