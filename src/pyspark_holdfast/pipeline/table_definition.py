"""`@table`: what a user says about a table. Values only; nothing is read or written here, and no Spark is needed.

    @table(inputs="orders", kind=keyed("order_id", order_by="_offset"))
    def orders_now(orders):
        return orders.select("order_id", "status", "amount", "_offset")

An input is a topic of the pipeline's root or a table of the same pipeline. By default a run gets the rows that are new
since the last one. `whole(…)` gives all of them, as they are now: for joins with tables that change.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, overload

from holdfast.errors import Invalid
from holdfast.model.topic_name import is_name
from holdfast.quantity import parse_seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Function = Callable[..., "DataFrame"]


# -- inputs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Input:
    """Something that a table reads."""

    name: str
    source: Literal["any", "topic", "table"] = "any"
    """`any`: a table of the pipeline if there is one of this name, else a topic."""
    is_whole: bool = False
    """All rows in each run, not only the new ones."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of `format("holdfast")`, for a topic."""


def topic(name: str, **options: str | int | bool) -> Input:
    """A topic, with options of the format `holdfast`, as columns="order_id,amount"."""
    given = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in options.items()}
    return Input(name, "topic", options=given)


def whole(name: str | Input) -> Input:
    """All rows of an input as they are when a run begins, instead of those that are new."""
    given = Input(name) if isinstance(name, str) else name
    return Input(given.name, given.source, is_whole=True, options=given.options)


# -- kinds --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Append:
    """Rows are added; each row of the inputs has its say once."""

    name = "append"


@dataclass(frozen=True)
class Keyed:
    """One row per key: the latest."""

    key: tuple[str, ...]
    order_by: tuple[str, ...]
    delete: str | None
    """A boolean column: where it is true, the key is deleted. It is not stored."""
    buckets: int
    name = "keyed"


@dataclass(frozen=True)
class Aggregate:
    """One value of a windowed table."""

    function: Literal["count", "sum", "min", "max", "mean"]
    column: str | None


@dataclass(frozen=True)
class Windowed:
    """One row per window and group, corrected by rows that come late."""

    time: str
    size_ms: int
    by: tuple[str, ...]
    values: Mapping[str, Aggregate]
    name = "windowed"


@dataclass(frozen=True)
class Snapshot:
    """All rows are computed anew in each run, and replace those before."""

    name = "snapshot"


Kind = Append | Keyed | Windowed | Snapshot


def append() -> Append:
    """Rows are added, never changed."""
    return Append()


def keyed(
    key: str | Sequence[str], *, order_by: str | Sequence[str], delete: str | None = None, buckets: int = 16
) -> Keyed:
    """One row per key: the one with the highest `order_by`, which must differ between the rows of a key."""
    keys, order = _names(key, "key"), _names(order_by, "order_by")
    if not 1 <= buckets <= 65_536:
        raise Invalid(f"buckets must be between 1 and 65536 buckets={buckets}", hint="16 are good for some 100 M rows")
    return Keyed(keys, order, delete, buckets)


def windowed(time: str, size: str | int, *, by: str | Sequence[str] = (), values: Mapping[str, Aggregate]) -> Windowed:
    """One row per window of `time`, "1h" long for instance, and group `by`, with values as {"n": count()}."""
    size_ms = round(1000 * parse_seconds(str(size)))
    if size_ms < 1000:
        raise Invalid(f"windows are a second long at least size={size}", hint="as '1m' or '1h'")
    if not values:
        raise Invalid("a windowed table needs values", hint='values={"n": count()}')
    return Windowed(time, size_ms, _names(by, "by") if by else (), dict(values))


def snapshot() -> Snapshot:
    """Computed anew in each run."""
    return Snapshot()


def count() -> Aggregate:
    """How many rows."""
    return Aggregate("count", None)


def sum_of(column: str) -> Aggregate:
    """The sum of a column."""
    return Aggregate("sum", column)


def min_of(column: str) -> Aggregate:
    """The lowest value of a column."""
    return Aggregate("min", column)


def max_of(column: str) -> Aggregate:
    """The highest value of a column."""
    return Aggregate("max", column)


def mean_of(column: str) -> Aggregate:
    """The mean of a column; its sum and its count are stored beside it, as `<name>_sum` and `<name>_count`."""
    return Aggregate("mean", column)


# -- tables -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """A table of a pipeline: what it is called, what it reads, and how its rows come about."""

    name: str
    function: Function
    inputs: tuple[Input, ...]
    kind: Kind
    description: str = ""
    per_run: bool = False
    """Its rows may depend on which rows come in the same run: the author says so, and nothing is checked."""

    def __call__(self, *frames: DataFrame) -> DataFrame:
        """The function itself, on DataFrames of your own."""
        return self.function(*frames)


@overload
def table(function: Function, /) -> Table: ...


@overload
def table(
    *,
    inputs: str | Input | Sequence[str | Input] = (),
    kind: Kind | None = None,
    name: str = "",
    description: str = "",
    per_run: bool = False,
) -> Callable[[Function], Table]: ...


def table(
    function: Function | None = None,
    /,
    *,
    inputs: str | Input | Sequence[str | Input] = (),
    kind: Kind | None = None,
    name: str = "",
    description: str = "",
    per_run: bool = False,
) -> Any:
    """Make a table of a function of DataFrames. Without `inputs`, the names of its arguments are the inputs.

    Name and description are those of the function, unless they are given.

    `per_run`: the function may look at all rows of a run together, and what comes out depends on how runs were cut.
    """

    def made(function: Function) -> Table:
        given = [inputs] if isinstance(inputs, str | Input) else list(inputs)
        found = tuple(one if isinstance(one, Input) else Input(one) for one in given or _arguments(function))
        called = name or function.__name__
        if not is_name(called):
            raise Invalid(f"a table cannot be called this name={called!r}", hint="letters, digits, '_', '-' and '.'")
        if not found:
            raise Invalid(f"a table needs an input table={called}", hint='inputs="orders", or an argument of that name')
        if per_run and isinstance(kind, Snapshot):
            raise Invalid(f"a snapshot is always computed from all rows table={called}", hint="leave per_run out")
        text = description or inspect.getdoc(function) or ""
        return Table(called, function, found, kind or Append(), text, per_run)

    return made if function is None else made(function)


def _arguments(function: Function) -> list[str]:
    return [name for name, one in inspect.signature(function).parameters.items() if one.default is one.empty]


def _names(given: str | Sequence[str], what: str) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    if not names or len(set(names)) != len(names):
        raise Invalid(f"{what} takes one or more columns {what}={given!r}", hint=f'{what}="id", or {what}=["a", "b"]')
    return names
