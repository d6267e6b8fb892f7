"""What happened in reliable channels, as tables: the topic `_channels`, decoded, and what became of each message.

Each event of a channel is a record (docs/formats/0007-channels.md#the-topic-_channels). `channel_messages` has them one
by one; `channel_delivery` has a row per message and participant: when it was sent, delivered and acknowledged, how long
that took, and what it had to wait for. Only messages of which something new is known are computed again.

Latency is the receiver's clock minus the sender's, and known where both keep their channels in logs of this root. It is
as good as their clocks agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_holdfast.pipeline.table_definition import Table, append, keyed, table, topic, whole

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_MESSAGE = ("channel", "message_id")
_PLACE = (*_MESSAGE, "participant_id")


def channels(source: str = "_channels") -> tuple[Table, Table]:
    """Both tables of the channels that are kept in a log."""
    return channel_messages(source), channel_delivery()


def channel_messages(source: str = "_channels", *, called: str = "channel_messages") -> Table:
    """Every event of every channel: sent, delivered, missing, acknowledged, given_up, lost."""

    @table(inputs=topic(source), kind=append(), name=called, description="What happened in channels, event by event.")
    def made(records: DataFrame) -> DataFrame:
        return events(records)

    return made


def channel_delivery(messages: str = "channel_messages", *, called: str = "channel_delivery") -> Table:
    """What became of each message at each participant; `messages` is the table that `channel_messages` makes."""

    @table(
        inputs=[messages, whole(messages)],
        kind=keyed(_PLACE, order_by="_offset"),
        name=called,
        description="What became of each message of a channel, at each participant.",
        per_run=True,  # messages that new events touch are computed again, of all their events
    )
    def made(new: DataFrame, known: DataFrame) -> DataFrame:
        return deliveries(known.join(new.select(*_MESSAGE).distinct(), list(_MESSAGE), "left_semi"))

    return made


def events(records: DataFrame) -> DataFrame:
    """Records of the topic `_channels` with columns in place of headers."""
    from pyspark.sql import functions as F  # noqa: N812

    def header(name: str) -> Column:
        return F.map_from_entries("headers")[name].cast("string")

    return records.select(
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
        F.col("timestamp").alias("_time"),
        F.col("key").cast("string").alias("channel"),
        header("participant_id").alias("participant_id"),
        "kind",
        header("message_id").alias("message_id"),
        header("sender_id").alias("sender_id"),
        header("lamport").try_cast("long").alias("lamport"),
        header("waited_ms").try_cast("long").alias("waited_ms"),
        F.split(header("missing"), "\n").alias("missing"),
        F.length("value").cast("long").alias("bytes"),
    )


def deliveries(events: DataFrame) -> DataFrame:
    """A row per message and participant, made of all events of these messages."""
    from pyspark.sql import functions as F  # noqa: N812

    def first(kind: str) -> Column:
        return F.min(F.when(F.col("kind") == kind, F.col("_time")))

    def ids(kind: str) -> Column:
        named = F.collect_list(F.when(F.col("kind") == kind, F.col("missing")))
        return F.sort_array(F.array_distinct(F.flatten(named)))

    here = events.groupBy(*_PLACE).agg(
        F.max("sender_id").alias("sender_id"),
        F.max("lamport").alias("lamport"),
        F.max("bytes").alias("bytes"),
        # A message that has left history may be delivered again: the first time counts.
        *[first(kind).alias(f"{kind}_at") for kind in ("sent", "delivered", "acknowledged", "given_up")],
        F.max("waited_ms").alias("waited_ms"),
        ids("missing").alias("waited_for"),
        ids("lost").alias("lost"),
    )
    of_message = events.groupBy(*_MESSAGE).agg(
        first("sent").alias("_origin"),
        F.max("_offset").alias("_offset"),  # of the message, so that what is computed later always counts
    )
    took = F.unix_millis("delivered_at") - F.unix_millis("_origin")
    return here.join(of_message, list(_MESSAGE)).select(
        *_PLACE,
        "sender_id",
        "lamport",
        "bytes",
        _state().alias("state"),
        "sent_at",
        "delivered_at",
        "acknowledged_at",
        "given_up_at",
        took.alias("latency_ms"),
        "waited_ms",
        "waited_for",
        "lost",
        "_offset",
    )


def _state() -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return (
        F.when(F.col("acknowledged_at").isNotNull(), "acknowledged")
        .when(F.col("given_up_at").isNotNull(), "given_up")
        .when(F.col("sent_at").isNotNull(), "sent")
        .when(F.col("delivered_at").isNull(), "waiting")
        .when(F.size("lost") > 0, "delivered_without")
        .otherwise("delivered")
    )
