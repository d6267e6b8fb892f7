"""Values by which engines lose rows when they skip row groups, conditions on them, and a peer in plain Python.

The peer has the semantics of SQL in Spark and DuckDB: NaN is equal to itself and greater than all else, -0.0 is 0.0,
null is neither true nor false, texts and bytes are ordered by their bytes.
"""

from __future__ import annotations

import datetime as dt
import math
import operator
import random
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

NAN, INFINITE = math.nan, math.inf
Row = dict[str, Any]


def moment(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


_DAYS = ("0001-01-01", "1582-10-04", "1582-10-10", "1582-10-15", "1883-11-18", "1899-12-31", "1970-01-01", "9999-12-31")
_TIMES = (
    "0001-01-01 00:00:00", "1582-10-04 23:59:59.999999", "1582-10-10 00:00:00", "1582-10-15 00:00:00",
    "1900-01-01 00:00:00", "1969-12-31 23:59:59.999999", "2024-03-10 02:30:00.000001", "9999-12-31 23:59:59.999999",
)  # fmt: skip
_MILLIS = ("0001-01-01 00:00:00", "1582-10-04 23:59:59.999", "1969-12-31 23:59:59.999", "2024-03-10 02:30:00.001")
_DOUBLES = (NAN, -0.0, 0.0, 1.0, 9.0, INFINITE, -INFINITE, 5e-324, 1.7976931348623157e308)
_FLOATS = (NAN, -0.0, 0.0, 1.5, 9.5, INFINITE, -INFINITE, 2.0**-149, -(2.0**127))


class Kind(NamedTuple):
    """A column: its type in Arrow and in Spark, and what it holds."""

    arrow: pa.DataType
    spark: str
    values: Sequence[Any]


KINDS = {
    "x": Kind(pa.float64(), "double", _DOUBLES),
    "f": Kind(pa.float32(), "float", _FLOATS),
    "i8": Kind(pa.int8(), "tinyint", (-128, -1, 0, 127)),
    "i32": Kind(pa.int32(), "int", (-(2**31), -1, 0, 2**31 - 1)),
    "i64": Kind(pa.int64(), "bigint", (-(2**63), -1, 0, 2**63 - 1)),
    "u8": Kind(pa.uint8(), "smallint", (0, 127, 128, 255)),
    "u32": Kind(pa.uint32(), "bigint", (0, 2**31 - 1, 2**31, 2**32 - 1)),
    "u64": Kind(pa.uint64(), "decimal(20,0)", (0, 2**63 - 1, 2**63, 2**64 - 1)),
    "d9": Kind(pa.decimal128(9, 2), "decimal(9,2)", tuple(map(Decimal, ("-9999999.99", "-0.01", "0", "9999999.99")))),
    "d38": Kind(
        pa.decimal128(38, 9), "decimal(38,9)", tuple(map(Decimal, (f"-{'9' * 29}.999999999", "0", "1E-9", "9" * 29)))
    ),
    "flag": Kind(pa.bool_(), "boolean", (False, True)),
    "text": Kind(
        pa.string(), "string",
        ("", "a", "z", "é", "a" * 63 + "z", "a" * 5000, "z" * 5000, "\U0010ffff" * 40, "\ue000", "\U00010000"),
    ),
    "bytes": Kind(pa.binary(), "binary", (b"", b"\0", b"\x7f", b"\x80", b"\xff" * 70, b"a" * 5000)),
    "day": Kind(pa.date32(), "date", tuple(map(dt.date.fromisoformat, _DAYS))),
    "at": Kind(pa.timestamp("us", "UTC"), "timestamp", tuple(map(moment, _TIMES))),
    "ms": Kind(pa.timestamp("ms", "UTC"), "timestamp", tuple(map(moment, _MILLIS))),
    "wall": Kind(pa.timestamp("us"), "timestamp_ntz", tuple(moment(text).replace(tzinfo=None) for text in _TIMES)),
    "a.b": Kind(pa.float64(), "double", _DOUBLES),
    "nothing": Kind(pa.float64(), "double", (None,)),
}  # fmt: skip
"""What a condition may be on."""
NESTED = {
    "s": pa.struct(
        [("y", pa.float64()), ("t", pa.string()), ("d", pa.struct([("z", pa.float32()), ("n", pa.int64())]))]
    ),
    "l": pa.list_(pa.float64()),
    "m": pa.map_(pa.string(), pa.float64()),
}
PATHS = {
    **{name: (name,) for name in KINDS},
    "s.y": ("s", "y"),
    "s.t": ("s", "t"),
    "s.d.z": ("s", "d", "z"),
    "s.d.n": ("s", "d", "n"),
}
INNER = {"s.y": KINDS["x"], "s.t": KINDS["text"], "s.d.z": KINDS["f"], "s.d.n": KINDS["i64"]}
SCHEMA = pa.schema(
    [("id", pa.int64()), *((name, kind.arrow) for name, kind in KINDS.items()), *((n, t) for n, t in NESTED.items())]
)


def kind_of(path: str) -> Kind:
    return INNER.get(path) or KINDS[path]


COUNT = 48


def rows(seed: int, count: int = COUNT) -> list[Row]:
    """Rows with ids; one value in nine is null."""
    chance = random.Random(seed)

    def some(kind: Kind) -> Any:
        return None if chance.random() < 0.11 else chance.choice(kind.values)

    found = []
    for number in range(count):
        deep = None if chance.random() < 0.1 else {"z": some(KINDS["f"]), "n": some(KINDS["i64"])}
        nested = None if chance.random() < 0.1 else {"y": some(KINDS["x"]), "t": some(KINDS["text"]), "d": deep}
        lists = chance.choice([None, [], [NAN], [1.0, None]])
        found.append(
            {
                "id": number,
                **{name: some(kind) for name, kind in KINDS.items()},
                "s": nested,
                "l": lists,
                "m": chance.choice([None, [], [("k", NAN)], [("k", -0.0), ("", 1.0)]]),
            }
        )
    return found


TABLE = pa.Table.from_pylist(rows(1), SCHEMA)


# -- conditions -------------------------------------------------------------------------------------------------


class Condition(NamedTuple):
    """`path operator literals`, or not that."""

    path: str
    operator: str
    literals: tuple[Any, ...]
    is_negated: bool = False

    def sql(self, literal: Callable[[Kind, Any], str], same: str = "<=>", quote: str = "`") -> str:
        """For an engine that writes its literals so."""
        path = ".".join(f"{quote}{part}{quote}" for part in PATHS[self.path])
        values = [literal(kind_of(self.path), value) for value in self.literals]
        if self.operator in ("IS NULL", "IS NOT NULL"):
            found = f"{path} {self.operator}"
        elif self.operator == "IN":
            found = f"{path} IN ({', '.join(values)})"
        else:
            found = f"{path} {same if self.operator == '<=>' else self.operator} {values[0]}"
        return f"NOT ({found})" if self.is_negated else found

    def ids(self, table: Sequence[Row]) -> list[int]:
        """The rows for which it is true."""
        return [row["id"] for row in table if self._holds(_inside(row, PATHS[self.path])) is not self.is_negated]

    def _holds(self, value: Any) -> bool | None:
        """None stands for neither; so that it is never what is asked, it is the negation."""
        if self.operator in ("IS NULL", "IS NOT NULL"):
            return (value is None) == (self.operator == "IS NULL")
        if self.operator == "<=>":
            return value is not None and _rank(value) == _rank(self.literals[0])
        if value is None:
            return self.is_negated
        if self.operator == "IN":
            return _rank(value) in [_rank(one) for one in self.literals]
        return bool(_COMPARED[self.operator](_rank(value), _rank(self.literals[0])))


_COMPARED = {"=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
OPERATORS = (*_COMPARED, "<=>", "IN", "IS NULL", "IS NOT NULL")


def _inside(row: Row, path: Sequence[str]) -> Any:
    value: Any = row
    for part in path:
        value = None if value is None else value[part]
    return value


def _rank(value: Any) -> Any:
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return value.encode() if isinstance(value, str) else value


def between(kind: Kind, value: Any) -> Any:
    """A literal that no column holds, just beside a value that one does."""
    if kind.arrow == pa.timestamp("ms", "UTC"):
        return value + dt.timedelta(microseconds=500)
    return value


def is_in_gap(condition: Condition) -> bool:
    """Whether it has one of the ten days that Java's old calendar does not have."""
    return any(str(one).startswith("1582-10-10") for one in condition.literals)


def conditions(seed: int) -> list[Condition]:
    """All operators on all columns, with some literals each; those on NaN and zeros first."""
    chance, found = random.Random(seed), []
    for path in PATHS:
        values = [value for value in kind_of(path).values if value is not None] or [1.0]
        for name in OPERATORS:
            if name.startswith("IS"):
                found.append(Condition(path, name, ()))
                continue
            for value in values:
                some = (value, chance.choice(values)) if name == "IN" else (between(kind_of(path), value),)
                found += [Condition(path, name, some, is_negated) for is_negated in (False, True)]
    return found


# -- literals ---------------------------------------------------------------------------------------------------

EPOCH = moment("1970-01-01")


def spark_literal(kind: Kind, value: Any) -> str:
    """A literal of the column's own type."""
    if isinstance(value, float):
        text = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(repr(value), repr(value))
        return f"CAST('{text}' AS {kind.spark})"
    if isinstance(value, str):
        return f"CAST(unhex('{value.encode().hex()}') AS string)"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return f"timestamp_micros({micros(value)}L)"
    return f"CAST('{value}' AS {kind.spark})"


def micros(value: dt.datetime) -> int:
    return (value - EPOCH) // dt.timedelta(microseconds=1)
