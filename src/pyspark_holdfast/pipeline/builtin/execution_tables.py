"""What happened in durable executions, as tables: the topic `_executions`, decoded, and what it comes to.

`execution_events` has a row for each entry of each journal and for each change of an execution's status;
`execution_steps` a row per step, promise, timer and signal: a timeline with retries and durations; `executions` a row
per execution. Only executions of which something new is known are computed again. `stuck_executions` is a question and
no table, because its answer changes while nothing happens.

No payload, argument, token or message of an error is in any of them: what a log encrypts does not leave it here.
An id that was pruned and used again is another execution: `reuse` counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.quantity import parse_seconds
from pyspark_holdfast.pipeline.builtin.execution_events import events
from pyspark_holdfast.pipeline.table_definition import Table, append, keyed, table, topic, whole

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import Column, DataFrame

_USE = ("execution_id", "reuse")
_STEP = (*_USE, "path")
_ENDED = ("completed", "failed", "aborted", "canceled")
_WAITS = {"promise_created": "promise", "timer_armed": "timer", "signal_taken": "signal", "version_marked": "version"}
"""Entries that say what stands at a path, if it is not a step."""


def executions(source: str = "_executions") -> tuple[Table, Table, Table]:
    """All three tables of the executions of a log."""
    return execution_events(source), execution_steps(), execution_runs()


def execution_events(source: str = "_executions", *, called: str = "execution_events") -> Table:
    """Every entry of every execution's journal, and every change of status."""

    @table(
        inputs=topic(source),
        kind=append(),
        name=called,
        description="What happened in executions, one by one.",
        per_run=True,  # mapInArrow, whose function decodes records one by one: no plan shows that
    )
    def made(records: DataFrame) -> DataFrame:
        return events(records)

    return made


def execution_steps(known: str = "execution_events", *, called: str = "execution_steps") -> Table:
    """Each step with its state, times and retries; `known` is the table that `execution_events` makes."""
    return _of_touched(known, called, _STEP, steps, "Steps of executions: states, times, retries.")


def execution_runs(known: str = "execution_events", *, called: str = "executions") -> Table:
    """Each execution with its state and times, and what it waits for."""
    return _of_touched(known, called, _USE, runs, "Executions: states, times, and what they wait for.")


def _of_touched(known: str, called: str, key: tuple[str, ...], made: object, description: str) -> Table:
    """A keyed table of which those executions are computed again that have new events."""

    # Per run: what new events touch is computed again of all events, and is the newest row of its key.
    @table(
        inputs=[known, whole(known)],
        kind=keyed(key, order_by="_offset"),
        name=called,
        description=description,
        per_run=True,
    )
    def computed(new: DataFrame, whole_of_it: DataFrame) -> DataFrame:
        touched = new.select("execution_id").distinct()
        return made(whole_of_it.join(touched, "execution_id", "left_semi"))  # type: ignore[operator, no-any-return]

    return computed


# -- steps --------------------------------------------------------------------------------------------------------


def steps(events: DataFrame) -> DataFrame:
    """A row per path of each execution, made of all events of these executions."""
    from pyspark.sql import functions as F  # noqa: N812

    known = _with_paths(_with_reuse(events))
    found = (
        known.where("path is not null")
        .groupBy(*_STEP)
        .agg(
            F.coalesce(_what(), F.lit("step")).alias("what"),
            F.max("effect").alias("effect"),
            F.min("seq").alias("seq"),
            F.min(F.coalesce("started_at", "at")).alias("started_at"),
            _last(_is_end(), "at", "is_error").alias("end"),
            F.max("due_at").alias("due_at"),
            F.max("attempt").alias("attempts"),
            _count("attempt_failed").alias("retries"),
            _last(F.col("kind") == "attempt_failed", "detail").alias("tried"),
            F.max(F.when(F.col("kind") == "heartbeat", F.col("at"))).alias("heartbeat_at"),
            _last(F.col("kind") == "ambiguity_resolved", "detail").alias("resolved"),
            F.max("bytes").alias("bytes"),
        )
    )
    status = _last(F.col("kind") == "status", "status").getField("status")
    begun = known.groupBy(*_USE).agg(
        F.min("at").alias("_begun"),
        F.max("_offset").alias("_offset"),
        F.coalesce(status.isin(*_ENDED), F.lit(False)).alias("_is_over"),
    )
    ends = {"ended_at": F.col("end.at"), "is_error": F.col("end.is_error")}
    words = {"last_error": F.col("tried.detail"), "resolution": F.col("resolved.detail")}
    return (
        found.withColumns({**ends, **words})
        .join(begun, list(_USE))
        .select(
            *_STEP,
            F.regexp_extract("path", r"([^/#]*)(#\d+)?$", 1).alias("name"),
            "what",
            "effect",
            "seq",
            _state().alias("state"),
            "started_at",
            "ended_at",
            _millis("_begun", "started_at").alias("begins_ms"),
            _millis("started_at", "ended_at").alias("duration_ms"),
            F.greatest(F.coalesce("attempts", F.lit(1)), F.col("retries")).alias("attempts"),
            "retries",
            "last_error",
            "resolution",
            "heartbeat_at",
            F.when(F.col("ended_at").isNull() & ~F.col("_is_over"), F.col("due_at")).alias("due_at"),
            "bytes",
            "_offset",
        )
    )


def _with_reuse(events: DataFrame) -> DataFrame:
    """With the number of executions of the same id that were pruned before."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    before = Window.partitionBy("execution_id").orderBy("_offset", "_entry").rowsBetween(Window.unboundedPreceding, -1)
    pruned = F.sum(F.when(F.col("kind") == "pruned", 1).otherwise(0)).over(before)
    return events.withColumn("reuse", F.coalesce(pruned, F.lit(0)).cast("int"))


def _with_paths(events: DataFrame) -> DataFrame:
    """Where a promise is settled, the path at which it was made."""
    from pyspark.sql import functions as F  # noqa: N812

    made = events.where("kind = 'promise_created'").groupBy(*_USE, "wait_id").agg(F.min("path").alias("_made_at"))
    known = events.join(made, [*_USE, "wait_id"], "left")
    settled = F.col("kind") == "promise_resolved"
    return known.withColumn("path", F.when(settled, F.col("_made_at")).otherwise(F.col("path"))).drop("_made_at")


def _what() -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.coalesce(*[F.max(F.when(F.col("kind") == kind, what)) for kind, what in _WAITS.items()])


def _is_end() -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.col("kind").isin("step_result", "promise_resolved", "timer_fired", "signal_taken", "version_marked")


def _last(chosen: Column, *columns: str) -> Column:
    """These columns of the last event of some kind."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.max_by(F.struct(*columns), F.when(chosen, F.struct("_offset", "_entry")))


def _count(kind: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.count(F.when(F.col("kind") == kind, 1))


def _state() -> Column:
    """Of a path: what it has come to. What has ended waits for nothing and tries nothing again."""
    from pyspark.sql import functions as F  # noqa: N812

    def still(state: str, in_the_end: str) -> Column:
        return F.when(F.col("_is_over"), in_the_end).otherwise(state)

    return (
        F.when(F.col("is_error"), "failed")
        .when(F.col("ended_at").isNotNull(), "done")
        .when(F.col("what") != "step", still("waiting", "left"))
        .when(F.col("retries") > 0, still("retrying", "failed"))
        .otherwise("begun")
    )


def _millis(begin: str, end: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.unix_millis(end) - F.unix_millis(begin)


# -- executions ---------------------------------------------------------------------------------------------------


def runs(events: DataFrame) -> DataFrame:
    """A row per execution, made of all events of these executions."""
    from pyspark.sql import functions as F  # noqa: N812

    known = _with_reuse(events)
    row_order = (
        "execution_kind", "status", "queue", "priority", "created_at", "ended_at", "generation", "entries",
        "parent_id", "bytes", "detail",
    )  # fmt: skip
    found = (
        known.where("kind != 'pruned'")
        .groupBy(*_USE)
        .agg(
            _last(F.col("kind") == "status", *row_order).alias("row"),
            F.min(F.when(F.col("kind") == "opened", F.col("at"))).alias("started_at"),
            F.max("at").alias("moved_at"),
            _count("opened").alias("opened"),
            _count("administered").alias("interventions"),
            _count("ambiguity_resolved").alias("ambiguities"),
        )
    )
    found = found.select("*", "row.*").withColumnRenamed("detail", "note")
    pruned = known.groupBy(*_USE).agg(
        F.max(F.when(F.col("kind") == "pruned", F.col("_time"))).alias("pruned_at"), F.max("_offset").alias("_offset")
    )
    return (
        found.join(pruned, list(_USE))
        .join(_steps_of(events), list(_USE), "left")
        .select(
            *_USE,
            "execution_kind",
            "status",
            "queue",
            "priority",
            "generation",
            "created_at",
            "started_at",
            "ended_at",
            _millis("created_at", "started_at").alias("queued_ms"),
            _millis("created_at", "ended_at").alias("duration_ms"),
            "opened",
            *[F.coalesce(name, F.lit(0)).alias(name) for name in ("steps", "steps_failed", "retries")],
            "ambiguities",
            "interventions",
            "entries",
            "bytes",
            "last_path",
            "moved_at",
            # A timer that lost a race is armed forever; who has ended waits for nothing.
            *[F.when(~F.col("status").isin(*_ENDED), F.col(name)).alias(name) for name in ("waits_for", "due_at")],
            "parent_id",
            "note",
            "pruned_at",
            "_offset",
        )
    )


def _steps_of(events: DataFrame) -> DataFrame:
    """What the steps of executions come to."""
    from pyspark.sql import functions as F  # noqa: N812

    waiting = F.col("state") == "waiting"
    return (
        steps(events)
        .groupBy(*_USE)
        .agg(
            F.count(F.when(F.col("what") == "step", 1)).alias("steps"),
            F.count(F.when(F.col("state") == "failed", 1)).alias("steps_failed"),
            F.sum("retries").alias("retries"),
            F.max_by("path", F.struct("started_at", "seq")).alias("last_path"),
            F.min_by(F.when(waiting, F.concat_ws(" ", "what", "path")), F.when(waiting, F.col("seq"))).alias(
                "waits_for"
            ),
            F.min(F.when(waiting, F.col("due_at"))).alias("due_at"),
        )
    )


def stuck_executions(executions: DataFrame, idle: str = "1h", now: datetime | None = None) -> DataFrame:
    """Those of the table `executions` that have not ended and have not moved for so long: the longest first.

    One that waits for a timer is not stuck before the timer was due for so long. `now` is the present time.
    """
    from pyspark.sql import functions as F  # noqa: N812

    present = F.current_timestamp() if now is None else F.lit(now)
    since = F.greatest("moved_at", "due_at")
    idle_ms = F.unix_millis(present) - F.unix_millis(since)
    open_ones = executions.where("pruned_at is null").where(~F.col("status").isin(*_ENDED))
    found = open_ones.withColumn("idle_ms", idle_ms).where(F.col("idle_ms") >= round(1000 * parse_seconds(idle)))
    return found.orderBy(F.col("idle_ms").desc(), "execution_id")
