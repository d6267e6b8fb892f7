"""What happened in reliable channels, seen by Spark: how long messages took, and what they had to wait for.

    python -m examples.channels_spark [ROOT ...]

Every log that keeps channels has a topic `_channels`, in which each message that was sent, delivered, acknowledged or
found to lack others is a record, appended in the same commit. ROOT is such a log's directory, or its store; give those
of all participants, and Spark sees both ends of every message. Without one a conversation is played first: three
participants over a network that loses a third of everything, in simulated time.

Latency is the receiver's clock minus the sender's: it is as good as their clocks agree.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import holdfast
from holdfast import Settings
from holdfast.channels import Bus, Channels
from holdfast.testing import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TOPIC = "_channels"
ROOMS = ("attic", "room")
TICK_MS, SWEEP_MS, SYNC_MS, TALK_MS, END_MS = 20, 400, 1_000, 6_000, 60_000
SETTINGS = {
    "channels": {
        "bloom_capacity": 1_000,
        "resend_interval_ms": 1_500,
        "resend_attempts_max": 20,
        "repair_t_min_ms": 300,
        "repair_t_max_ms": 2_000,
    }
}


# -- what Spark is asked --------------------------------------------------------------------------------------


def happenings(spark: SparkSession, roots: list[str]) -> DataFrame:
    """The records of all these logs, with columns in place of headers."""
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F  # noqa: N812

    def header(name: str) -> Column:
        return F.map_from_entries("headers")[name].cast("string")

    frames = [spark.read.format("holdfast").option("topic", TOPIC).load(root) for root in roots]
    return reduce(DataFrame.union, frames).select(
        F.col("key").cast("string").alias("channel"),
        "kind",
        F.unix_millis("timestamp").alias("at_ms"),
        *[header(name).alias(name) for name in ("participant_id", "message_id", "sender_id")],
        header("waited_ms").cast("long").alias("waited_ms"),
        F.split(header("missing"), "\n").alias("missing"),
    )


def latencies(rows: DataFrame) -> DataFrame:
    """Of each channel: messages, deliveries, and how long they took from the sender's commit to the receiver's."""
    from pyspark.sql import functions as F  # noqa: N812

    sent = rows.where("kind = 'sent'").select("channel", "message_id", F.col("at_ms").alias("sent_ms"))
    # A message that has left history may be delivered again: the first time counts.
    first = (
        rows.where("kind = 'delivered'")
        .groupBy("channel", "message_id", "participant_id")
        .agg(F.min("at_ms").alias("at_ms"), F.max("waited_ms").alias("waited_ms"))
    )
    took = F.col("at_ms") - F.col("sent_ms")
    return (
        sent.join(first, ["channel", "message_id"], "left")
        .groupBy("channel")
        .agg(
            F.count_distinct("message_id").alias("messages"),
            F.count("at_ms").alias("deliveries"),
            F.percentile(took, 0.5).cast("long").alias("p50_ms"),
            F.percentile(took, 0.95).cast("long").alias("p95_ms"),
            F.max(took).alias("max_ms"),
            F.max("waited_ms").alias("waited_max_ms"),
        )
        .orderBy("channel")
    )


def missing(rows: DataFrame) -> DataFrame:
    """Of each channel: messages that had to wait, and how many of the dependencies came, were given up, or lack."""
    from pyspark.sql import functions as F  # noqa: N812

    return (
        dependencies(rows)
        .groupBy("channel")
        .agg(
            F.count_distinct("participant_id", "waiting").alias("held_up"),
            F.count("*").alias("dependencies"),
            *[F.count_if(F.col("state") == state).alias(state) for state in ("came", "lost", "lacking")],
        )
        .orderBy("channel")
    )


def dependencies(rows: DataFrame) -> DataFrame:
    """What each message had to wait for, at each participant, and what became of it: came, lost or lacking."""
    from pyspark.sql import functions as F  # noqa: N812

    def of_kind(kind: str) -> DataFrame:
        return rows.where(F.col("kind") == kind)

    place = ["channel", "participant_id", "waiting"]
    waiting = of_kind("missing").withColumnRenamed("message_id", "waiting")
    named = waiting.select(*place, F.explode("missing").alias("message_id")).distinct()
    lost = of_kind("lost").withColumnRenamed("message_id", "waiting")
    gone = lost.select(*place, F.explode("missing").alias("message_id"), F.lit(True).alias("gone")).distinct()
    done = of_kind("delivered").select(*place[:2], F.col("message_id").alias("waiting"), F.lit(True).alias("done"))
    state = F.when(F.col("gone"), "lost").when(F.col("done"), "came").otherwise("lacking")
    return (
        named.join(gone, [*place, "message_id"], "left")
        .join(done.distinct(), place, "left")
        .select(*place, "message_id", state.alias("state"))
    )


# -- a conversation to look at --------------------------------------------------------------------------------


def play(directory: Path, seed: int = 7) -> list[str]:
    """Let three participants talk over a bad network until all is settled; then one message is lost for good.

    Alice and Bob are kept in one log, Carol in another one.
    """
    clock, bus = ManualClock(), Bus(seed, loss=0.33, duplication=0.1, reordering=0.2)
    roots, settings = [directory / "here", directory / "there"], Settings.from_mapping(SETTINGS)
    with ExitStack() as stack:
        here, there = (stack.enter_context(holdfast.open(root, settings=settings, clock=clock)) for root in roots)
        members = [here.channels("alice"), here.channels("bob"), there.channels("carol")]
        links = [bus.connect(member) for member in members]
        for member in members:
            for room in ROOMS:
                member.ensure_channel(room)
        for now in range(0, END_MS, TICK_MS):
            clock.advance(TICK_MS / 1000)
            bus.deliver(now)
            if now % 200 == 0 and now < TALK_MS:
                links[now // 200 % 3].send(b"said at %d" % now, ROOMS[now // 600 % 2])
            elif now >= TALK_MS and _is_settled(members):
                break
            _sweep(members, now)
        alice, bob, carol = members
        carol.wrap_outgoing_message(b"nobody ever hears this", "room", "never-sent")
        later = carol.wrap_outgoing_message(b"so this one has to wait", "room", "waiting")
        for member in (alice, bob):
            member.unwrap_received_message(later)
        for log in (here, there):
            log.seal()
    return [str(root) for root in roots]


def _sweep(members: list[Channels], now: int) -> None:
    for member in members:
        if now % SWEEP_MS == 0:
            member.run_buffer_sweep()
            member.run_repair_sweep()
        if now % SYNC_MS == 0:
            member.run_periodic_sync()


def _is_settled(members: list[Channels]) -> bool:
    """Nothing waits anywhere, and everybody has heard as much as the others."""
    rooms = [[member.channel(room) for member in members] for room in ROOMS]
    at_rest = not any(channel.outgoing() or channel.incoming() for room in rooms for channel in room)
    return at_rest and all(len({len(channel.history()) for channel in room}) == 1 for room in rooms)


def main(roots: list[str]) -> int:
    """Show what is in these logs, or in those of a conversation."""
    import pyspark_holdfast

    with tempfile.TemporaryDirectory() as temporary:
        if not roots:
            print("no roots are given: a conversation of three over a network that loses a third …")
            roots = play(Path(temporary))
        print("Spark starts …")
        spark = pyspark_holdfast.session("local[2]")
        rows = happenings(spark, roots).cache()
        print(f"{rows.count()} records in {len(roots)} logs")
        print("delivery latency, by channel")
        latencies(rows).show(truncate=False)
        print("messages that had to wait for others, by channel")
        missing(rows).show(truncate=False)
        print("what is still lacking")
        dependencies(rows).where("state = 'lacking'").orderBy("channel", "participant_id").show(truncate=False)
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
