"""A table of a pipeline on a handful of records: `run_table`.

    rows = run_table(orders_now, {"orders": [{"id": "a", "status": "new"}]}, then={"orders": [{"id": "a", …}]})

Nothing is simulated. The records go into a real log, the table is made by a real pipeline, run after run, and the rows
are read back from it: what is tested is what runs later. All of it lies in a temporary directory, which is removed. A
Spark for one processor is started by the first call and kept for the others, unless there is one already.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import Invalid, NotFound
from holdfast.model.record import NOW, Record
from holdfast.suggestions import listed, meant

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.log.log import Log
    from pyspark_holdfast.pipeline import RunReport, Table

Given = Mapping[str, Any] | Record | bytes | str
"""A row of a typed topic, or a record of a raw one: as a `Record`, a payload, or a dict with its `value`."""
Records = Mapping[str, Sequence[Given]]
"""By topic."""

_RAW = frozenset({"value", "key", "kind", "headers", "time"})


def run_table(
    table: Table,
    records: Records,
    *,
    then: Records | Sequence[Records] = (),
    beside: Sequence[Table] = (),
    schemas: Mapping[str, pa.Schema] | None = None,
    spark: SparkSession | None = None,
) -> list[dict[str, Any]]:
    """The rows of a table after a run on these records, and another after each of `then`; sorted by their values.

    Topics are typed, with columns found from the rows or given by `schemas`; raw where records are given. Tables that
    the table reads are given `beside` it, or as rows of that name. What its function raises, this raises.
    """
    increments = [records, *([then] if isinstance(then, Mapping) else then)]
    topics = _by_topic((table, *beside), increments)
    given = schemas or {}
    columns = {name: _schema(name, rows, given.get(name)) for name, rows in topics.items()}
    with tempfile.TemporaryDirectory(prefix="holdfast-table-") as temporary:
        return _run(Path(temporary), (*beside, table), increments, columns, spark or _session())


def _run(
    directory: Path,
    tables: Sequence[Table],
    increments: Sequence[Records],
    columns: Mapping[str, pa.Schema | None],
    spark: SparkSession,
) -> list[dict[str, Any]]:
    import holdfast
    from pyspark_holdfast.pipeline import Pipeline, read_table

    raised: list[Exception] = []
    defaults = msgspec.to_builtins(holdfast.Settings())  # every key by name: neither file nor environment add any
    with holdfast.open(directory / "log", settings=defaults) as log:
        log.topic("begun").append(b"")  # a log in which nothing was sealed yet is no root
        for name, schema in columns.items():
            log.topic(name, partitions=1) if schema is None else log.topic(name, schema=schema)
        of = [_watched(one, raised) for one in tables]
        pipeline = Pipeline("test", root=directory / "log", tables=directory / "tables", of=of)
        for increment in increments:
            for name, rows in increment.items():
                _append(log, name, columns[name], rows)
            log.seal()
            _require_fine(pipeline.run(spark), raised)
    try:
        made = read_table(spark, pipeline.place_of(tables[-1].name))
    except NotFound:
        return []  # no run had a row to write
    return sorted(made.toArrow().to_pylist(), key=_order)


def _order(row: Mapping[str, Any]) -> list[tuple[bool, str, Any]]:
    """By value, nulls first; what has no order is sorted by how it is written."""
    ordered = (int, float, str, bytes)
    return [
        (value is not None, type(value).__name__, value if isinstance(value, ordered) else str(value))
        for value in row.values()
    ]


# -- what is given ------------------------------------------------------------------------------------------


def _by_topic(tables: Iterable[Table], increments: Sequence[Records]) -> dict[str, list[Given]]:
    """All rows of each topic that the tables read; raises Invalid where a name is missing, or nobody's."""
    own = {table.name for table in tables}
    read = {one.name for table in tables for one in table.inputs if one.source == "topic" or one.name not in own}
    given: dict[str, list[Given]] = {}
    for increment in increments:
        for name, rows in increment.items():
            if name not in read:
                raise Invalid(f"no table reads this{meant(name, read)} records={name}", hint=listed(sorted(read)))
            given.setdefault(name, []).extend(rows)
    for name in sorted(read - given.keys()):
        raise Invalid(
            f"records of an input are missing input={name}",
            hint=f"give them, {{{name!r}: []}} with schemas if there are none, or give the table `beside`",
        )
    return given


def _schema(name: str, rows: Sequence[Given], given: pa.Schema | None) -> pa.Schema | None:
    """The columns of a typed topic; None for a raw one."""
    import pyarrow as pa

    if given is not None:
        return given
    if rows and all(_is_raw(row) for row in rows):
        return None
    plain = [{key: value for key, value in row.items() if key != "_time"} for row in rows if isinstance(row, Mapping)]
    if not plain or len(plain) < len(rows):
        raise Invalid(
            f"these are neither rows nor records, but both or none topic={name}",
            hint=f"give dicts, or records; where there are no rows, schemas={{{name!r}: pa.schema([…])}}",
        )
    names = dict.fromkeys(key for row in plain for key in row)
    try:
        columns = [(key, pa.array([row.get(key) for row in plain]).type) for key in names]
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise Invalid(f"values of a column differ in their types topic={name}: {error}", hint="give schemas") from None
    # Python's datetimes are exact to the microsecond, and a column without any value is best taken as text.
    return pa.schema([(key, pa.string() if pa.types.is_null(kind) else kind) for key, kind in columns])


def _is_raw(row: Given) -> bool:
    return not isinstance(row, Mapping) or ("value" in row and row.keys() <= _RAW)


def _append(log: Log, name: str, schema: pa.Schema | None, rows: Sequence[Given]) -> None:
    if schema is None:
        log.topic(name).append_batch([_record(row) for row in rows])
        return
    topic = log.topic(name, schema="latest")
    for row in rows:
        assert isinstance(row, Mapping)
        topic.append({key: value for key, value in row.items() if key != "_time"}, time=row.get("_time"))


def _record(row: Given) -> Record:
    if isinstance(row, Record):
        return row
    if not isinstance(row, Mapping):
        return Record(_bytes(row) or b"")
    key, time = row.get("key"), row.get("time", NOW)
    micros = time if isinstance(time, int) else round(time.timestamp() * 1e6)
    return Record(
        _bytes(row["value"]) or b"", key=_bytes(key), kind=row.get("kind"), headers=row.get("headers"), time=micros
    )


def _bytes(given: bytes | str | None) -> bytes | None:
    return given.encode() if isinstance(given, str) else given


# -- how it runs --------------------------------------------------------------------------------------------


def _watched(table: Table, raised: list[Exception]) -> Table:
    """The table; what its function raises is kept, because a report has only words."""

    def watched(*frames: DataFrame) -> DataFrame:
        try:
            return table.function(*frames)
        except Exception as error:
            raised.append(error)
            raise

    return replace(table, function=watched)


def _require_fine(report: RunReport, raised: Sequence[Exception]) -> None:
    if report.is_fine:
        return
    if raised:
        raise raised[0]
    failed = next(table for table in report.tables if table.outcome == "failed")
    raise Invalid(f"table {failed.name} failed: {failed.error}", hint=failed.hint or None)


def _session() -> SparkSession:
    """The session of this thread; else one for one processor, which stays for the next call."""
    from pyspark.sql import SparkSession

    import pyspark_holdfast

    few = {"spark_sql_shuffle_partitions": "1", "spark_default_parallelism": "1"}
    return SparkSession.getActiveSession() or pyspark_holdfast.session("local[1]", **few)
