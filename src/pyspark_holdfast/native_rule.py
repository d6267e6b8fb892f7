"""`format("holdfast")` at the speed of Spark's own reader: a rule for Spark's optimizer.

    spark = pyspark_holdfast.session()            # or pyspark_holdfast.accelerate(spark), for a session of your own
    orders = spark.read.format("holdfast").option("topic", "orders").load("/srv/log")
    pyspark_holdfast.path_of(orders)              # PathTaken(path='native', …)

Spark cannot ask a Python source for columns, conditions or sizes, and takes its rows through a Python process. So the
rule (`NativeRule.java`) puts the scan that `pyspark_holdfast.read` would build in the place of the format's own, after
Spark has chosen columns and moved conditions. Spark ships a compiler for its generated code, Janino: it compiles the
rule when a session is accelerated, once per JVM, and nothing has to be on the class path.

The rule calls back into the driver's Python (py4j, as `foreachBatch` does), because planning is here and should not be
written twice. The data source itself runs in another process. What it saw at `load` (its pins) is in the pickled source
that Spark keeps; the rule hands that over, and the same `BatchReader` plans the same spans with the same refusals. It
does so once per load: the plan is kept as long as Spark keeps its relation, and everything that is made of a DataFrame
reads the same.

Nothing fails because of the rule. Whatever is not as expected (options, types, files that Spark does not reach, another
Spark, an error on the way) leaves the format's own scan where it is, and that gives the answer or the refusal. Which
way was taken, and why, is logged once per load, and `path_of` returns it.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.cloudpickle import loads
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from holdfast.errors import HoldfastError, NotFound
from holdfast.reader.read_options import ReadOptions
from pyspark_holdfast.native import (
    NATIVE,
    PathTaken,
    Scan,
    all_columns,
    check_columns,
    labelled_path,
    native_scan,
    reason_of_rows,
    tell,
)
from pyspark_holdfast.parquet_scan import Unscannable, compiled
from pyspark_holdfast.source import HoldfastSource
from pyspark_holdfast.types import spark_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("holdfast")

_READY = PathTaken("native", "the session is accelerated")
_UNREADY = PathTaken("format", "the session is not accelerated: pyspark_holdfast.accelerate(spark)")
_REMOTE = PathTaken("format", "the session is remote: its server decides")
_RELATION = "org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation"


def accelerate(spark: SparkSession) -> PathTaken:
    """Let Spark itself read what `format("holdfast")` loads, wherever it can; says whether, and why not.

    Sessions of `session` and `configure` are accelerated already, and so are those that are made of this one later
    (`newSession`). Calling it again costs next to nothing. `spark.holdfast.native=false` in a session, or the option
    `native=false` of a read, turns it off.
    """
    if getattr(spark, "_jsparkSession", None) is None:
        return _REMOTE
    try:
        with _lock:
            rule = _rule_of(spark)
        rule.install(spark._jsparkSession)
    except Exception as error:  # internals of Spark: whatever is different, the format still reads
        taken = PathTaken("format", f"this Spark does not take the rule: {_first_line(error)}")
        logger.warning("the format stays slow: %s", taken.reason, extra={"action": "spark_path", "path": taken.path})
        return taken
    return _READY


def path_of(frame: DataFrame) -> PathTaken:
    """How a DataFrame of the format, of `read`, or a batch of `read_stream`, reads its rows, and why.

    Where several are joined, the one that goes through the format counts. Planning is done if no action did it before.
    """
    labelled = labelled_path(frame.schema)
    if labelled is not None:
        return labelled
    if getattr(frame, "_jdf", None) is None:
        return _REMOTE
    refusals = [refusal for refusal in map(_Refusals(frame.sparkSession), _leaves(frame)) if refusal is not None]
    if not refusals:
        raise NotFound(
            "this DataFrame does not say how it is read: nothing in it is the format holdfast",
            hint="use one that load() or pyspark_holdfast.read returned, with at least one column",
        )
    reason = next(filter(None, refusals), "")
    return PathTaken("format", reason) if reason else NATIVE


# -- the rule, once per JVM -------------------------------------------------------------------------------

_lock = threading.Lock()
_rules: list[tuple[Any, Any]] = []
"""The gateway to a JVM, and the rule that was compiled there; one, but for processes that started several."""


def _known_rule(spark: SparkSession) -> Any:
    gateway = spark.sparkContext._gateway
    return next((rule for known, rule in _rules if known is gateway), None)


def _rule_of(spark: SparkSession) -> Any:
    rule = _known_rule(spark)
    if rule is None:
        rule = _compiled(spark)
        _rules[:] = [(spark.sparkContext._gateway, rule)]
    return rule


def _compiled(spark: SparkSession) -> Any:
    from pyspark.java_gateway import ensure_callback_server_started

    gateway: Any = spark.sparkContext._gateway
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    rule = compiled(gateway, "NativeRule")
    rule.ask(_Planner())
    return rule


class _Planner:
    """What the rule calls: plans one load."""

    class Java:
        implements = ["java.util.function.Consumer"]  # noqa: RUF012  py4j reads this

    def accept(self, load: Any) -> None:
        """Answer a load with Spark's own scan, or with the reason why not."""
        try:
            scan = _scan(_session(load.session()), msgspec.json.decode(load.request(), type=LoadRequest))
            load.accept(scan.relation, scan.where, scan.names)
            taken = NATIVE
        except (Unscannable, HoldfastError) as error:
            # A refusal is repeated by the format itself, where users expect it.
            taken = PathTaken("format", _first_line(error))
            load.refuse(taken.reason)
        except Exception as error:
            logger.warning(
                "planning failed for Spark's own reader; the format reads",
                exc_info=True,
                extra={"action": "spark_path", "path": "format"},
            )
            taken = PathTaken("format", f"planning failed: {type(error).__name__}")
            load.refuse(taken.reason)
        tell(taken)


def _session(java: Any) -> SparkSession:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context
    if context is None:
        raise Unscannable("the driver's context is stopped")
    return SparkSession(context, java)


# -- planning a load --------------------------------------------------------------------------------------


class LoadRequest(msgspec.Struct, frozen=True):
    """A load, as the JVM describes it."""

    schema: str
    options: dict[str, str]
    directory: str
    """Where the source's process runs."""
    variables: dict[str, str]
    """What its environment says about stores."""
    source: str = ""
    """The source that was asked for the schema, pickled; empty if none was."""
    kind: str = ""
    """Then: its class, pickled."""
    tasks: bool = False
    """Whether the source has planned its tasks already."""


def _scan(spark: SparkSession, load: LoadRequest) -> Scan:
    """The scan that stands for a load, or Unscannable, or a refusal."""
    source, schema = _source(load), StructType.fromJson(json.loads(load.schema))
    if load.tasks and not source.is_pinned:
        raise Unscannable("it was planned and read through Python before")
    place, options = source.parsed(schema)
    _check_place(load, place)
    _check_options(source.given(schema), options)
    planned = source.reader(schema).plan()
    check_columns(spark, planned.columns, all_columns(planned.topics, planned.options))
    own = spark_schema(planned.columns)
    if [(field.dataType, field.nullable) for field in own] != [(field.dataType, field.nullable) for field in schema]:
        raise Unscannable("the schema that was given has other types than the files")
    return native_scan(spark, planned.root, planned.found, planned.columns, planned.bounds, own)


def _source(load: LoadRequest) -> HoldfastSource:
    """The source as Spark's other process would have it."""
    try:
        # From the JVM, which got it from Python: the same bytes are unpickled there.
        made = loads(base64.b64decode(load.source or load.kind))
    except (binascii.Error, AttributeError, ImportError) as error:
        raise Unscannable(f"the source cannot be unpickled error={type(error).__name__}") from error
    if made is HoldfastSource:
        return HoldfastSource(CaseInsensitiveDict(load.options))
    if type(made) is not HoldfastSource:
        raise Unscannable("another source is registered under this name")
    return made


def _check_place(load: LoadRequest, place: str) -> None:
    """Unscannable if the same text means another place in this process."""
    is_relative = "://" not in place and not Path(place.removeprefix("file:")).is_absolute()
    if is_relative and load.directory != os.getcwd():
        raise Unscannable("the root is a relative path, and this process has changed its directory since")
    prefix = "HOLDFAST_STORE__"
    if {name: value for name, value in os.environ.items() if name.startswith(prefix)} != load.variables:
        raise Unscannable(f"{prefix}… has changed in the environment since Spark was started")


def _check_options(given: Mapping[str, str], options: ReadOptions) -> None:
    names = {name.lower() for name in given}
    tasks = [name for name in ("minPartitions", "splitBytes") if name.lower() in names]
    reason = reason_of_rows(given, options)
    if options.emit != "rows":
        reason = "segments are requested, not rows"
    elif tasks:
        reason = f"{tasks[0]} is given, and Spark cuts tasks its own way"
    if reason is not None:
        raise Unscannable(reason)


# -- saying which -----------------------------------------------------------------------------------------


class _Refusals:
    """Why leaves of a plan are read through the format; empty for those that Spark reads, None for others."""

    def __init__(self, spark: SparkSession) -> None:
        self._session = spark._jsparkSession
        self._rule = _known_rule(spark)

    def __call__(self, leaf: Any) -> str | None:
        if leaf.getClass().getName() != _RELATION:
            return None
        if self._rule is None:
            return _UNREADY.reason if leaf.table().name() == HoldfastSource.name() else None
        refusal = self._rule.refusal(self._session, leaf)
        return None if refusal is None else str(refusal)


def _leaves(frame: DataFrame) -> list[Any]:
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    return [leaves.apply(at) for at in range(leaves.size())]


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:500]
