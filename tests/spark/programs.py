"""Random programs over DataFrames: what they read, and what they ask, for `test_differential`.

A program has one or two sources, opened one way or another, and some questions, each asked of the same frames: filters
on every column, unions, self-joins, subqueries, groups, windows, cached frames. Questions are SQL with `{0}` and `{1}`
in the place of the sources, so that the very same question can be asked of a plain copy. All of it is a function of one
random number, and can be printed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tests.spark.logs import START_US

SECOND = 1_000_000
PARTITIONS, ROWS = 2, 60

RAW = {
    "topic": "topic", "partition": "partition", "offset": "offset", "timestamp": "time", "key": "binary",
    "value": "binary", "headers": "headers", "kind": "text",
}  # fmt: skip
TYPED = {
    "_topic": "topic", "_partition": "partition", "_offset": "offset", "_time": "time",
    # The user's own, under all names that raw topics or files have, and of other values.
    "offset": "long", "timestamp": "user_time", "topic": "text", "partition": "int", "key": "text", "value": "double",
    "time": "long", "headers": "list", "kind": "struct", "payload": "decimal", "start": "day", "late": "int",
}  # fmt: skip
COLUMNS = {"orders": RAW, "typed": TYPED}
"""Columns and what they hold, by topic."""

WAYS = ("format", "format", "format", "schema", "view", "table", "native", "verified")
"""How a source is opened; the last is `pyspark_holdfast.read` through the format."""

SETTINGS = {
    "spark.sql.adaptive.enabled": ("true", "false"),
    "spark.sql.parquet.enableVectorizedReader": ("true", "false"),
    "spark.sql.parquet.filterPushdown": ("true", "false"),
    "spark.sql.autoBroadcastJoinThreshold": ("10485760", "-1"),
    "spark.sql.codegen.wholeStage": ("true", "false"),
    # The format by Spark's own reader, or through Python.
    "spark.holdfast.native": ("true", "false"),
}


PUSHING = "spark.sql.python.filterPushdown.enabled"


class Source(NamedTuple):
    """Something to read: how, and which part, as options and as a condition for the plain copy."""

    topic: str
    way: str
    options: dict[str, str]
    keep: str
    columns: tuple[str, ...]


class Program(NamedTuple):
    """Sources, settings, and questions, in this order, asked of the same frames."""

    sources: tuple[Source, ...]
    settings: dict[str, str]
    questions: tuple[str, ...]
    is_cached: bool
    """Whether the frames are cached after the first question."""


def program(seed: int) -> Program:
    """The program of a number."""
    rng = random.Random(seed)
    topic = rng.choice(["orders", "typed", "typed"])
    sources = [_source(rng, topic) for _ in range(rng.choice([1, 1, 2]))]
    settings = {name: rng.choice(values) for name, values in SETTINGS.items() if rng.random() < 0.6}
    settings[PUSHING] = rng.choice(["true", "true", "true", "false"])
    questions = tuple(_question(rng, sources) for _ in range(rng.randint(2, 4)))
    return Program(tuple(sources), settings, questions, rng.random() < 0.15)


# -- sources ----------------------------------------------------------------------------------------------


def _source(rng: random.Random, topic: str) -> Source:
    way = rng.choice(WAYS)
    options, keep = ({}, "true") if rng.random() < 0.5 or way == "table" else _span(rng, topic)
    names = tuple(COLUMNS[topic])
    if way != "table" and rng.random() < 0.35:
        tricky = [name for name in ("offset", "timestamp", "topic", "partition") if rng.random() < 0.4]
        names = tuple(tricky or rng.sample(names, rng.choice([1, 1, 2, 3, 5])))
    return Source(topic, way, options, keep, names)


def _span(rng: random.Random, topic: str) -> tuple[dict[str, str], str]:
    """A part of a topic, as options and as a condition."""
    names = ("_partition", "_offset", "_time") if topic == "typed" else ("partition", "offset", "timestamp")
    partition, offset, time = names
    if rng.random() < 0.3:
        low, high = sorted(rng.sample(range(-2, ROWS + 2), 2))
        times = [START_US // 1000 + n * 1000 for n in (low, high)]
        condition = f"{time} >= timestamp_millis({times[0]}) AND {time} < timestamp_millis({times[1]})"
        return {"startingTimestamp": str(times[0]), "endingTimestamp": str(times[1])}, condition
    spans = [sorted(rng.choices(range(ROWS + 1), k=2)) for _ in range(PARTITIONS)]
    condition = " OR ".join(
        f"({partition} = {n} AND {offset} >= {low} AND {offset} < {high})" for n, (low, high) in enumerate(spans)
    )
    if rng.random() < 0.5:
        marks = ",".join(f'"{n}":[{low},{high}]' for n, (low, high) in enumerate(spans))
        return {"asOf": f'{{"{topic}":{{{marks}}}}}'}, condition
    starts, ends = ([f'"{n}":{span[at]}' for n, span in enumerate(spans)] for at in (0, 1))
    return {
        "startingOffsets": f'{{"{topic}":{{{",".join(starts)}}}}}',
        "endingOffsets": f'{{"{topic}":{{{",".join(ends)}}}}}',
    }, condition


# -- questions --------------------------------------------------------------------------------------------

_NUMBERS = ("partition", "offset", "long", "int")
_ORDERED = (*_NUMBERS, "topic", "text", "time", "user_time", "day", "decimal")
_GROUPED = ("topic", "partition", "text", "int", "day")


class _Side(NamedTuple):
    """A source as it stands in a question."""

    place: str
    kinds: Mapping[str, str]

    def of(self, kinds: Sequence[str]) -> list[str]:
        return [name for name, kind in self.kinds.items() if kind in kinds]

    @property
    def identity(self) -> list[str]:
        """What tells rows apart, if it was chosen."""
        found = self.of(("partition", "offset"))
        return found if len(found) == 2 else []


def _question(rng: random.Random, sources: Sequence[Source]) -> str:
    number = rng.randrange(len(sources))
    side = _side(number, sources[number])
    other = rng.randrange(len(sources))
    asked = [_rows, _totals, _groups, _union, _counts, _again, _differences]
    asked += [_beyond] if side.of(_ORDERED) else []
    if side.identity:
        asked += [_first, _ranked]
        if _side(other, sources[other]).identity:
            asked += [_join, _join, _among]
    return rng.choice(asked)(rng, side, _side(other, sources[other]))


def _side(number: int, source: Source) -> _Side:
    return _Side(f"{{{number}}}", {name: COLUMNS[source.topic][name] for name in source.columns})


def _listed(rng: random.Random, side: _Side, of: str = "") -> str:
    names = rng.sample(list(side.kinds), rng.randint(1, len(side.kinds)))
    return ", ".join(f"{of}`{name}` AS c{n}" for n, name in enumerate(names))


def _rows(rng: random.Random, side: _Side, _: _Side) -> str:
    return f"SELECT {_listed(rng, side)} FROM {side.place} WHERE {condition(rng, side)}"


def _totals(rng: random.Random, side: _Side, _: _Side) -> str:
    totals = ["count(*) AS n"]
    totals += [f"sum(`{name}`) AS s{n}" for n, name in enumerate(side.of(_NUMBERS))]
    totals += [f"min(`{name}`) AS l{n}, max(`{name}`) AS h{n}" for n, name in enumerate(side.of(_ORDERED))]
    return f"SELECT {', '.join(totals)} FROM {side.place} WHERE {condition(rng, side)}"


def _groups(rng: random.Random, side: _Side, other: _Side) -> str:
    names = side.of(_GROUPED)
    if not names:
        return _totals(rng, side, other)
    name, any_name = rng.choice(names), rng.choice(list(side.kinds))
    counted = f"count(`{any_name}`) AS n, count(*) AS m"
    return f"SELECT `{name}` AS g, {counted} FROM {side.place} WHERE {condition(rng, side)} GROUP BY `{name}`"


def _union(rng: random.Random, side: _Side, _: _Side) -> str:
    listed = _listed(rng, side)
    return " UNION ALL ".join(f"SELECT {listed} FROM {side.place} WHERE {condition(rng, side)}" for _ in range(2))


def _counts(rng: random.Random, side: _Side, other: _Side) -> str:
    """Scalar subqueries."""
    one, two = (f"(SELECT count(*) FROM {each.place} WHERE {condition(rng, each)})" for each in (side, other))
    return f"SELECT {one} AS a, {two} AS b, count(*) AS c FROM {side.place} WHERE {condition(rng, side)}"


def _again(rng: random.Random, side: _Side, _: _Side) -> str:
    """A part, and then the whole."""
    part = f"WITH part AS (SELECT * FROM {side.place} WHERE {condition(rng, side)}) SELECT count(*) AS n FROM part"
    return f"{part} UNION ALL SELECT count(*) FROM {side.place}"


def _differences(rng: random.Random, side: _Side, other: _Side) -> str:
    names = [name for name in side.of(_ORDERED) if name in other.kinds]
    if not names:
        return _counts(rng, side, other)
    name, verb = rng.choice(names), rng.choice(["EXCEPT", "INTERSECT", "EXCEPT ALL", "INTERSECT ALL"])
    one, two = (f"SELECT `{name}` AS c FROM {each.place} WHERE {condition(rng, each)}" for each in (side, other))
    return f"{one} {verb} {two}"


def _beyond(rng: random.Random, side: _Side, _: _Side) -> str:
    name = rng.choice(side.of(_ORDERED))
    bound = f"(SELECT {rng.choice(['min', 'max'])}(`{name}`) FROM {side.place} WHERE {condition(rng, side)})"
    return f"SELECT {_listed(rng, side)} FROM {side.place} WHERE `{name}` {rng.choice(['<', '>='])} {bound}"


def _first(rng: random.Random, side: _Side, _: _Side) -> str:
    order = ", ".join(f"`{name}` {rng.choice(['ASC', 'DESC'])}" for name in side.identity)
    where = f"WHERE {condition(rng, side)} ORDER BY {order} LIMIT {rng.choice([1, 3, 30])}"
    return f"SELECT {_listed(rng, side)} FROM {side.place} {where}"


def _ranked(rng: random.Random, side: _Side, _: _Side) -> str:
    partition, offset = sorted(side.identity, key=lambda name: "offset" in name)
    rank = f"row_number() OVER (PARTITION BY `{partition}` ORDER BY `{offset}`)"
    inner = f"SELECT `{offset}` AS o, {rank} AS r FROM {side.place} WHERE {condition(rng, side)}"
    return f"SELECT * FROM ({inner}) WHERE r <= {rng.choice([1, 5, 40])}"


def _on(side: _Side, other: _Side) -> str:
    pairs = zip(sorted(side.identity), sorted(other.identity), strict=True)
    return " AND ".join(f"a.`{one}` = b.`{two}`" for one, two in pairs)


def _join(rng: random.Random, side: _Side, other: _Side) -> str:
    how = rng.choice(["JOIN", "LEFT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"])
    one, two = (f"(SELECT * FROM {each.place} WHERE {condition(rng, each)})" for each in (side, other))
    return f"SELECT {_listed(rng, side, 'a.')} FROM {one} a {how} {two} b ON {_on(side, other)}"


def _among(rng: random.Random, side: _Side, other: _Side) -> str:
    inner = f"SELECT 1 FROM {other.place} b WHERE {_on(side, other)} AND {condition(rng, other, 'b.')}"
    where = f"{rng.choice(['EXISTS', 'NOT EXISTS'])} ({inner}) AND {condition(rng, side, 'a.')}"
    return f"SELECT {_listed(rng, side, 'a.')} FROM {side.place} a WHERE {where}"


# -- conditions -------------------------------------------------------------------------------------------


def condition(rng: random.Random, side: _Side, of: str = "") -> str:
    """A condition on any columns."""
    if rng.random() < 0.1:
        return "true"
    if rng.random() < 0.4 and (names := side.of(("partition", "offset", "time"))):
        # What a source would like to take over.
        name = rng.choice(names)
        return f"{of}`{name}` {rng.choice(['<', '>=', '='])} {_value(rng, side.kinds[name])}"
    parts = [_comparison(rng, side, of) for _ in range(rng.choice([1, 1, 2, 3]))]
    joined = parts[0]
    for part in parts[1:]:
        joined = f"({joined} {rng.choice(['AND', 'AND', 'OR'])} {part})"
    return f"NOT ({joined})" if rng.random() < 0.1 else joined


def _comparison(rng: random.Random, side: _Side, of: str) -> str:
    name = rng.choice(list(side.kinds))
    kind, column = side.kinds[name], f"{of}`{name}`"
    if rng.random() < 0.1:
        return f"{column} IS {rng.choice(['', 'NOT '])}NULL"
    if kind == "headers":
        return rng.choice([f"size({column}) > 1", f"get({column}, 0).key = 'e'", f"{column} IS NULL"])
    if kind == "list":
        return rng.choice([f"size({column}) > 1", f"array_contains({column}, 'x')", f"get({column}, 0) = 'y'"])
    if kind == "struct":
        return rng.choice([f"{column}.x > {rng.randint(-1, 12)}", f"{column}.y = 'g1'", f"{column}.y IS NULL"])
    values = [_value(rng, kind) for _ in range(3)]
    return rng.choice(
        [
            f"{column} {rng.choice(['=', '<>', '<', '<=', '>', '>=', '<=>'])} {values[0]}",
            f"{column} {rng.choice(['<', '>=', '='])} {values[0]}",
            f"{column} IN ({', '.join(values)})",
            f"{column} NOT IN ({', '.join(values)})",
            f"{column} BETWEEN {values[0]} AND {values[1]}",
        ]
    )


def _value(rng: random.Random, kind: str) -> str:
    at = rng.randint(-2, ROWS + 2)
    moment = START_US + at * SECOND + rng.choice([0, 0, 1])
    values = {
        "topic": rng.choice(["'orders'", "'typed'", "'x1'", "''"]),
        "partition": str(rng.randint(0, 2)),
        "offset": str(at),
        "time": f"timestamp_micros({moment}L)",
        "binary": rng.choice(["X''", "CAST('key-5' AS BINARY)", "CAST('0/1' AS BINARY)", "CAST('1/30' AS BINARY)"]),
        "text": rng.choice(["'order'", "'größer'", "'x1'", "'x2'", "''", "'orders'"]),
        "long": str(rng.choice([at, 1000 + at, 0])),
        "user_time": f"timestamp_micros({moment - 40 * SECOND}L)",
        "int": str(rng.choice([0, 1, 7, at])),
        "double": rng.choice(["0.5", "double('NaN')", "-1.0", "1e3", f"{at / 2}"]),
        "decimal": f"{at}.25BD",
        "day": f"date_add(DATE'2026-01-01', {at})",
    }
    return values[kind]
