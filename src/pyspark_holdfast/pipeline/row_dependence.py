"""Whether a table's function makes its rows of single new rows: read off the plan that Spark has analysed.

A run sees the rows that are new, and the next one others. So ten runs end like one only if each row that comes out
depends on one new row, and besides on what is read as a whole. A sum, a limit or a join of two topics does not: in each
run it would see what happened to come together, and nobody would notice.

Inputs go into the function under names of ours, which stay in the plan as aliases. From there up to the result only
operators may stand that are known to treat rows one by one. What is not known is refused: an operator that a later
Spark brings, a Python function over batches of rows, an RDD. What an author collects on the driver and puts back as a
constant is in no plan, and not seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from holdfast.errors import Invalid
from pyspark_holdfast.pipeline.table_definition import Snapshot
from pyspark_holdfast.pipeline.table_order import PlannedTable, TableSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NEW, _WHOLE = "_holdfast_new_", "_holdfast_whole_"

_ROW_BY_ROW = {
    "Project", "Filter", "SubqueryAlias", "View", "Generate", "Expand", "Sort", "Repartition",
    "RepartitionByExpression", "RebalancePartitions", "ResolvedHint", "EventTimeWatermark", "CollectMetrics",
    "PipeOperator",
}  # fmt: skip
"""Operators of one input that make their rows of single rows; the order of rows and their tasks are stored nowhere."""
_KEEPS_LEFT = {"Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti"}
_KEEPS_RIGHT = {"Inner", "Cross", "RightOuter"}
"""Joins of new rows, at the left or at the right, with rows that are read as a whole."""

_WINDOWED = "kind=windowed(…) adds up by time and group"
_KEYED = "kind=keyed(…, order_by=…) keeps the latest row of each key"
_SNAPSHOT = "kind=snapshot() recomputes everything in each run"
_SEVERAL = {
    "Aggregate": ("groupBy and aggregates", f"{_WINDOWED}; {_SNAPSHOT}"),
    "Distinct": ("distinct", f"{_KEYED}; {_SNAPSHOT}"),
    "Deduplicate": ("distinct or dropDuplicates", f"{_KEYED}; {_SNAPSHOT}"),
    "Window": ("a window function", f"{_KEYED}; {_SNAPSHOT}"),
    "GlobalLimit": ("limit", _SNAPSHOT),
    "LocalLimit": ("limit", _SNAPSHOT),
    "Offset": ("offset", _SNAPSHOT),
    "Tail": ("tail", _SNAPSHOT),
    "Sample": ("sample", 'choose by a column, as in where("pmod(xxhash64(id), 10) = 0")'),
    "Intersect": ("intersect", _SNAPSHOT),
    "Except": ("except", _SNAPSHOT),
    "MapInPandas": ("mapInPandas", "a pandas_udf treats values row by row"),
    "MapInArrow": ("mapInArrow", "an arrow_udf treats values row by row"),
    "FlatMapGroupsInPandas": ("applyInPandas", _SNAPSHOT),
    "FlatMapGroupsInArrow": ("applyInArrow", _SNAPSHOT),
    "FlatMapCoGroupsInPandas": ("cogroup", _SNAPSHOT),
    "FlatMapCoGroupsInArrow": ("cogroup", _SNAPSHOT),
}  # fmt: skip
"""What authors call the operators that look at several rows, and what to take instead."""
_CONSTANTS = "spark.createDataFrame(a pyarrow.Table) and spark.sql('VALUES …') can be examined"


class _NotSingle(Exception):
    """What stands in a plan that must not be there, and what to take instead."""

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(what, instead)


def is_checked(planned: PlannedTable) -> bool:
    """Whether a table's rows must follow from single rows: it has new ones, and its author promised nothing else."""
    return bool(planned.new) and not isinstance(planned.table.kind, Snapshot) and not planned.table.per_run


def named(source: TableSource, number: int, frame: DataFrame) -> DataFrame:
    """An input under the name by which it is found in a plan."""
    return frame.alias(f"{_WHOLE if source.is_whole else _NEW}{number}")


def require_single_rows(planned: PlannedTable, made: DataFrame, given: list[DataFrame]) -> None:
    """Refuse what is not made of single new rows; raises Invalid. Sessions are never remote here (`Pipeline`)."""
    try:
        _Plan(made, {one: set(frame.columns) for one, frame in enumerate(given)}).require()
    except _NotSingle as refused:
        what, instead = refused.args
        raise Invalid(
            f"rows of table {planned.name!r} would depend on which rows come in the same run: {what}"
            f" kind={planned.table.kind.name}",
            hint=f"{instead}; or @table(…, per_run=True), if that is what you mean",
        ) from None


class _Plan:
    """An analysed plan, from the result down to the inputs."""

    def __init__(self, made: DataFrame, columns: dict[int, set[str]]) -> None:
        self._root = made._jdf.queryExecution().analyzed()
        catalyst: Any = made.sparkSession._jvm.org.apache.spark.sql.catalyst  # type: ignore[union-attr]
        self._patterns = catalyst.trees.TreePattern
        names = ("ReplaceExpressions$", "SpecialDatetimeValues$")
        self._spelled_out, self._words_of_now = (getattr(getattr(catalyst.optimizer, one), "MODULE$") for one in names)
        self._columns = columns
        self._shared: dict[int, Any] = {}
        """Common table expressions, by their number."""

    def require(self) -> None:
        if not self._is_new(self._root):
            raise _NotSingle("no new rows are in it, and each run would add all rows again", _SNAPSHOT)
        if self._root.containsPattern(self._patterns.CURRENT_LIKE()) or self._has_words_of_now():
            raise _NotSingle("the time, user or zone of the run", "take a time of the record")
        if not self._root.deterministic():
            _require_deterministic(self._root)
        if self._root.containsPattern(self._patterns.RUNTIME_REPLACEABLE()):
            _require_no_random_encryption(self._root, self._patterns.RUNTIME_REPLACEABLE())

    def _has_words_of_now(self) -> bool:
        """Whether texts such as 'now' and 'today' are made times, by a cast or `to_date`: Spark puts the moment."""
        found = (self._root, *(one for node in _nodes(self._root) for one in _each(node.subqueries())))
        plans = map(self._spelled_out.apply, found)  # functions that stand for casts
        return any(not self._words_of_now.apply(plan).fastEquals(plan) for plan in plans)

    def _is_new(self, node: Any) -> bool:
        """Whether a plan has new rows: then each of its rows is made of one of them, or it is refused."""
        number, kind = _input(node), _kind(node)
        if number is not None:
            return self._is_new_input(node, number)
        if kind == "WithCTE":
            self._shared |= {one.id(): one.child() for one in _each(node.cteDefs())}
            return self._is_new(node.plan())
        if kind == "CTERelationRef":
            return self._is_new(self._shared[node.cteId()])
        if kind in ("LogicalRDD", "ExternalRDD") and not _is_constant(node.rdd()):
            raise _NotSingle("an RDD or a checkpoint, whose origin cannot be examined", _CONSTANTS)
        if kind == "Generate" and "UDTF" in _kind(node.generator()):
            # It may keep what it has seen, and say so at its end.
            raise _NotSingle("a table function in Python, which sees many rows", _SNAPSHOT)
        if kind == "Sample":  # of whole inputs, too: it has a seed, and Spark calls it deterministic
            raise _NotSingle(*_SEVERAL[kind])
        if any([self._is_new(one) for one in _each(node.subqueries())]):  # noqa: C419  all of them are looked at
            raise _NotSingle("a subquery over new rows", _SNAPSHOT)
        below = [self._is_new(child) for child in _each(node.children())]
        if any(below):
            _require_single(node, kind, below)
        return any(below)

    def _is_new_input(self, node: Any, number: int) -> bool:
        if set(node.schema().fieldNames()) - self._columns.get(number, set()):
            # Compaction puts the same rows into other files.
            raise _NotSingle("the column _metadata, which describes files", "take columns of the record")
        return bool(node.alias().startswith(_NEW))


def _require_single(node: Any, kind: str, below: list[bool]) -> None:
    """Refuse an operator over new rows that does not make each of its rows of one of them."""
    if kind in ("Join", "LateralJoin"):
        _require_single_in_join(str(node.joinType()), below)
    elif kind == "Union":
        if not all(below):
            raise _NotSingle("a union with rows that are not new, and each run would add them again", _SNAPSHOT)
    elif kind not in _ROW_BY_ROW:
        unknown = (f"the operator {kind}, which is not known to treat rows one by one", _SNAPSHOT)
        raise _NotSingle(*_SEVERAL.get(kind, unknown))


def _require_single_in_join(kind: str, below: list[bool]) -> None:
    if all(below) and len(below) > 1:
        raise _NotSingle("a join of new rows with new rows", f"{_SNAPSHOT}; or read one side as whole(…)")
    if kind not in (_KEEPS_LEFT if below[0] else _KEEPS_RIGHT):
        raise _NotSingle(f"a join ({kind}) that has rows which no new row made", _SNAPSHOT)


def _require_deterministic(root: Any) -> None:
    """Refuse what is another value when it is computed again. Of aggregates over whole inputs order may decide."""
    for node in _nodes(root):
        for one in _each(node.expressions()) if _kind(node) not in ("Aggregate", "Window") else ():
            if not one.deterministic():
                raise _NotSingle(f"{_culprit(one)}, which is another value each time", "take a column of the record")


def _require_no_random_encryption(root: Any, pattern: Any) -> None:
    """Refuse `aes_encrypt` that draws its start value by itself; Spark calls that deterministic, too."""
    left = [one for node in _nodes(root) for one in _each(node.expressions())]
    while left:
        one = left.pop()
        if not one.containsPattern(pattern):
            continue
        below = list(_each(one.children()))
        left += below
        if _kind(one) == "AesEncrypt" and "''" in below[4].sql() and below[2].sql().upper() != "'ECB'":
            raise _NotSingle("aes_encrypt, which is another value each time", "give it an iv that is of the record")


def _nodes(node: Any) -> Iterator[Any]:
    """The operators of a plan and of its subqueries, but not those below an input: they are ours."""
    yield node
    below = () if _input(node) is not None else (*_each(node.children()), *_each(node.subqueries()))
    for child in below:
        yield from _nodes(child)


def _each(found: Any) -> Iterator[Any]:
    """What is in a sequence of Scala."""
    return (found.apply(number) for number in range(found.size()))


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _input(node: Any) -> int | None:
    """The number of the input that a node is."""
    if _kind(node) != "SubqueryAlias":
        return None
    name = str(node.alias())
    number = name.removeprefix(_NEW).removeprefix(_WHOLE)
    return int(number) if number != name and number.isdigit() else None


def _is_constant(rdd: Any) -> bool:
    """Whether an RDD is nothing but rows that the driver had, as those of createDataFrame([…])."""
    before = [one.rdd() for one in _each(rdd.dependencies())]
    return all(map(_is_constant, before)) if before else _kind(rdd) == "ParallelCollectionRDD"


def _culprit(expression: Any) -> str:
    """The name of the innermost function that is not deterministic."""
    for child in _each(expression.children()):
        if not child.deterministic():
            return _culprit(child)
    return str(expression.prettyName()).lower()
