"""How a log is doing, by topic and hour: from manifests and listings alone. No record is read, and no segment opened.

`health_segments` gets a row for each segment that is new (`emit=manifest`); `health` sums them up, and computes those
hours again that got a new segment. A segment counts in the hour in which it was sealed. What is not in manifests is not
here: commit batches, that is, and what is not settled yet.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from holdfast.errors import Invalid
from holdfast.store.request_prices import PRICES
from pyspark_holdfast.pipeline.table_definition import Table, append, keyed, table, topic, whole

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_HOUR = ("topic", "hour")
_HOUR_US = 3_600_000_000
_PUTS = 2
"""Of each segment: its file, and its manifest object."""


def health(*topics: str, called: str = "health") -> tuple[Table, Table]:
    """The health of these topics: the tables `health_segments`, one row per segment, and `health`, by topic and hour.

    Give both to the pipeline: of=[…, *health("orders", "returns")].
    """
    if not topics or len(set(topics)) != len(topics):
        raise Invalid(f"health needs topics, each once topics={','.join(topics)}", hint='health("orders", "returns")')
    segments = f"{called}_segments"

    @table(
        # A segment that retention has removed before it was looked at is not missed.
        inputs=[topic(name, emit="manifest", failOnDataLoss=False) for name in topics],
        kind=append(),
        name=segments,
        description="Segments: sizes, times, and when they were sealed and settled.",
    )
    def sealed(*manifests: DataFrame) -> DataFrame:
        from pyspark.sql import DataFrame

        return reduce(DataFrame.unionByName, manifests)

    @table(
        inputs=[segments, whole(segments)],
        kind=keyed(_HOUR, order_by=["segments", "_sealed_at"], buckets=1),
        name=called,
        description="Rates, latencies, sizes and cost, by topic and hour of sealing.",
        per_run=True,  # hours that new segments touch are computed again, of all their segments
    )
    def by_hour(new: DataFrame, known: DataFrame) -> DataFrame:
        hours = with_hour(new).select(*_HOUR).distinct()
        return summary(with_hour(known).join(hours, list(_HOUR), "left_semi"))

    return sealed, by_hour


def with_hour(segments: DataFrame) -> DataFrame:
    """Segments with the hour (UTC) in which they were sealed."""
    from pyspark.sql import functions as F  # noqa: N812

    # `date_trunc` would take the hour of the session's time zone, which may begin at half past.
    sealed = F.unix_micros("sealed_at")
    return segments.withColumn("hour", F.timestamp_micros(sealed - F.pmod(sealed, F.lit(_HOUR_US))))


def summary(segments: DataFrame) -> DataFrame:
    """A row per topic and hour."""
    from pyspark.sql import functions as F  # noqa: N812

    # Per record it is at most this: the oldest one of a segment waits longest.
    sealing = _seconds("sealed_at", "time_min").alias("seal")
    # A file system may stamp a file some milliseconds too early.
    shipping = F.greatest(_seconds("settled_at", "sealed_at"), F.lit(0.0)).alias("ship")
    lag = _seconds("settled_at", "time_min").alias("lag")
    found = segments.select("*", sealing, shipping, lag)
    rows, size = F.sum("rows"), F.sum("bytes")
    dollars = F.count("*") * F.lit(_PUTS * PRICES["put"] / 1e9)
    return found.groupBy(*_HOUR).agg(
        F.count("*").alias("segments"),
        F.count_distinct("partition").alias("partitions"),
        rows.alias("rows"),
        size.alias("bytes"),
        (rows / 3600).alias("rows_per_second"),
        (size / 3600).alias("bytes_per_second"),
        F.percentile("bytes", 0.5).alias("segment_bytes_p50"),
        F.max("bytes").alias("segment_bytes_max"),
        *[column for name in ("seal", "ship", "lag") for column in _percentiles(name)],
        F.max("time_max").alias("newest_record_at"),
        F.sum(F.when(F.col("is_lost"), F.col("rows")).otherwise(0)).alias("rows_lost"),
        F.sum(F.lit(_PUTS)).alias("puts"),
        dollars.alias("dollars"),
        F.max("sealed_at").alias("_sealed_at"),
    )


def _seconds(end: str, begin: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return (F.unix_micros(end) - F.unix_micros(begin)) / 1e6


def _percentiles(name: str) -> list[Column]:
    from pyspark.sql import functions as F  # noqa: N812

    return [
        F.percentile(name, 0.5).alias(f"{name}_seconds_p50"),
        F.percentile(name, 0.95).alias(f"{name}_seconds_p95"),
        F.max(name).alias(f"{name}_seconds_max"),
    ]
