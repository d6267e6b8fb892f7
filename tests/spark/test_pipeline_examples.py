"""The examples of pipelines: their tables hold what their logs hold, computed here without Spark."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from examples import pipeline_audit, pipeline_inferences, pipeline_orders

from pyspark_holdfast.pipeline import read_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

Row = dict[str, Any]


def rows(spark: SparkSession, directory: Path, table: str) -> list[Row]:
    found: list[Row] = read_table(spark, directory / "tables" / table).toArrow().to_pylist()
    return found


def test_the_orders_example_gives_states_revenue_and_a_summary(spark: SparkSession, tmp_path: Path) -> None:
    """The state of each order, revenue that late payments corrected, and the summary of what is there now."""
    assert pipeline_orders.run(tmp_path, spark)
    changes = [change for day in (0, 1) for change in pipeline_orders.changes(day)]
    newest = {change["order_id"]: change for change in changes}
    there = {key: change for key, change in newest.items() if change["status"] != "test"}
    now = {row["order_id"]: (row["status"], row["cents"]) for row in rows(spark, tmp_path, "orders_now")}
    assert now == {key: (change["status"], change["cents"]) for key, change in there.items()}
    assert len(there) < len(newest)  # some were deleted
    paid: Counter[Any] = Counter()
    for change in changes:
        if change["status"] == "paid":
            paid[change["ordered_at"].replace(minute=0, second=0, microsecond=0), change["country"]] += change["cents"]
    assert {(row["window_start"], row["country"]): row["cents"] for row in rows(spark, tmp_path, "revenue")} == paid
    by_day = Counter((change["ordered_at"].date(), change["status"]) for change in there.values())
    assert {(row["day"], row["status"]): row["orders"] for row in rows(spark, tmp_path, "summary")} == by_day


def test_the_inference_example_prices_each_call_at_its_time(spark: SparkSession, tmp_path: Path) -> None:
    """Each call at the price of its time; what teams spent by hour; all calls in the percentiles."""
    assert pipeline_inferences.run(tmp_path, spark)
    calls = [call for part in (0, 1) for call in pipeline_inferences.calls(part)]
    prices = sorted((one for part in (0, 1) for one in pipeline_inferences.prices(part)), key=lambda one: one["since"])

    def cost(call: Row) -> float:
        held = [one for one in prices if one["model"] == call["model"] and one["since"] <= call["asked_at"]][-1]
        tokens = call["tokens_in"] * held["in_per_million"] + call["tokens_out"] * held["out_per_million"]
        return float(tokens / 1e6)

    made = {row["request_id"]: row["dollars"] for row in rows(spark, tmp_path, "inference_costs")}
    assert made == {call["request_id"]: pytest.approx(cost(call)) for call in calls}
    spent: dict[Any, float] = defaultdict(float)
    for call in calls:
        spent[call["asked_at"].replace(minute=0, second=0, microsecond=0), call["team"], call["model"]] += cost(call)
    found = {
        (row["window_start"], row["team"], row["model"]): row["dollars"]
        for row in rows(spark, tmp_path, "cost_by_hour")
    }
    assert found == pytest.approx(dict(spent))
    counts = {row["model"]: row["calls"] for row in rows(spark, tmp_path, "latencies")}
    assert counts == Counter(call["model"] for call in calls)


def test_the_audit_example_has_every_event_once(spark: SparkSession, tmp_path: Path) -> None:
    """On an encrypted log: every event once, denied ones with their places, and the one hole that stays."""
    assert pipeline_audit.run(tmp_path, spark)
    events = [event for part in (0, 1) for event in pipeline_audit.events(part)]
    trail = sorted(rows(spark, tmp_path, "trail"), key=lambda row: row["_offset"])
    assert [(row["service"], row["number"]) for row in trail[:-1]] == [
        (one["service"], one["number"]) for one in events
    ]
    assert (trail[-1]["_problem"], trail[-1]["_payload"][:1]) == ("not a JSON object", b"\x00")
    assert [row["_offset"] for row in trail] == list(range(len(events) + 1))
    refused = [offset for offset, event in enumerate(events) if event["outcome"] == "denied"]
    assert sorted(row["_offset"] for row in rows(spark, tmp_path, "denied")) == refused
    done = Counter((event["actor"], event["action"], event["outcome"]) for event in events)
    counted: Counter[Any] = Counter()
    for row in rows(spark, tmp_path, "activity"):
        counted[row["actor"], row["action"], row["outcome"]] += row["events"]
    assert counted == done
    service, number = pipeline_audit.NEVER_SENT
    missing = {row["service"]: row["missing"] for row in rows(spark, tmp_path, "completeness")}
    assert missing == {**{name: [] for name in pipeline_audit.SERVICES}, service: [number]}
    (health,) = rows(spark, tmp_path, "health")
    assert (health["segments"], health["rows"]) == (2, len(trail))
    stored = b"".join(path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file())
    assert json.dumps(events[0]["object"]).encode() not in stored
