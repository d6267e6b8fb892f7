"""The trace that a record was appended in, as a column: joined with traces, grouped by, or looked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

_FORM = "^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?$"


def trace_id(headers: str = "headers") -> Column:
    """The id of the trace, as 32 hexadecimal digits, from the column of headers; null where a record was in none.

        orders.where(pyspark_holdfast.trace_id() == "4bf92f3577b34da6a3ce929d0e0e4736")

    In SQL: `substring(string(get(filter(headers, h -> h.key = 'traceparent'), 0).value), 4, 32)`.
    """
    from pyspark.sql import functions

    named = functions.filter(functions.col(headers), lambda header: header["key"] == "traceparent")
    parent = functions.get(named, 0)["value"].cast("string")
    return functions.when(parent.rlike(_FORM), functions.substring(parent, 4, 32))
