"""The example that looks at channels with Spark gives what the logs' own records say."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from examples.channels_spark import ROOMS, dependencies, happenings, latencies, missing, play

import holdfast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

Place = tuple[str, str]
"""Participant and message."""


def records_of(root: str) -> list[dict[str, str]]:
    """What a log says that happened, read without Spark."""
    with holdfast.open(root, read_only=True) as log:
        return [
            {
                "kind": record.kind or "",
                "channel": (record.key or b"").decode(),
                "at_ms": str(record.time // 1000),
                **{name: value.decode() for name, value in (record.headers or {}).items()},
            }
            for record in log.topic("_channels").read()
        ]


def test_latencies_and_missing_dependencies_are_those_of_the_records(spark: SparkSession, tmp_path: Path) -> None:
    """Of a conversation over a bad network: every delivery with its time, and what never came, at each participant."""
    roots = play(tmp_path)
    records = [record for root in roots for record in records_of(root)]
    rows = happenings(spark, roots).cache()
    assert rows.count() == len(records)
    summary = {row["channel"]: row for row in latencies(rows).collect()}
    waited = {row["channel"]: row for row in missing(rows).collect()}
    for room in ROOMS:
        own = [record for record in records if record["channel"] == room]
        sent = {record["message_id"]: int(record["at_ms"]) for record in own if record["kind"] == "sent"}
        delivered = [record for record in own if record["kind"] == "delivered"]
        took = [int(record["at_ms"]) - sent[record["message_id"]] for record in delivered]
        assert len(delivered) == 30  # 15 messages to two others each, once: of those that were sent to be heard
        assert (summary[room]["messages"], summary[room]["deliveries"]) == (len(sent), len(delivered))
        assert (summary[room]["max_ms"], summary[room]["waited_max_ms"]) == (
            max(took),
            max(int(record["waited_ms"]) for record in delivered),
        )
        assert min(took) <= summary[room]["p50_ms"] <= summary[room]["p95_ms"] <= max(took)
        waiting: dict[Place, set[str]] = defaultdict(set)
        for record in own:
            if record["kind"] == "missing":
                waiting[record["participant_id"], record["message_id"]].update(record["missing"].split("\n"))
        lacking = 2 if room == "room" else 0
        assert (waited[room]["held_up"], waited[room]["dependencies"]) == (
            len(waiting),
            sum(map(len, waiting.values())),
        )
        assert (waited[room]["lost"], waited[room]["lacking"]) == (0, lacking)
        assert waited[room]["came"] == waited[room]["dependencies"] - lacking
    left = dependencies(rows).where("state = 'lacking'").collect()
    assert sorted((row["participant_id"], row["waiting"], row["message_id"]) for row in left) == [
        ("alice", "waiting", "never-sent"),
        ("bob", "waiting", "never-sent"),
    ]
    rows.unpersist()
