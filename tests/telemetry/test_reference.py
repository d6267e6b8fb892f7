"""Metrics and spans are what their lists say; the dashboard and the alerts name no others."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from holdfast.execution.journal.entries import Status
from holdfast.model.record import Marks
from holdfast.reconcile.classify import Kind
from holdfast.store.pool_state import PoolState
from holdfast.store.port import Cause
from holdfast.store.request_prices import Request
from holdfast.telemetry import metric_list, spans

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "monitoring/grafana-dashboard.json"
ALERTS = ROOT / "monitoring/prometheus-alerts.yml"
LABELS = {attribute.label for metric in metric_list.METRICS for attribute in metric.attributes}


def test_closed_sets_are_those_of_the_code() -> None:
    """What a label may be is what the code says, no more and no less."""
    assert set(metric_list.CAUSES) == set(get_args(Cause))
    assert set(metric_list.FINDINGS) == set(get_args(Kind))
    assert set(metric_list.REQUESTS) == set(get_args(Request))
    assert set(metric_list.STATUSES) == set(get_args(Status))
    assert set(metric_list.STAGES) == set(Marks.__struct_fields__)
    assert set(metric_list.CONNECTIONS) <= set(PoolState.__struct_fields__)


def test_names_are_prometheus_names_and_unique() -> None:
    """By the rules of OpenTelemetry's exporters: the unit at the end, `_total` for counters, no doubles."""
    names = [metric.sample for metric in metric_list.METRICS]
    assert len(set(names)) == len(names)
    for metric in metric_list.METRICS:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.sample), metric.sample
        assert metric.unit in ("s", "By") or re.fullmatch(r"\{[a-z]+\}", metric.unit), metric.unit
        assert (metric.kind == "counter") == metric.sample.endswith("_total")
        assert metric.attributes[:2] == (metric_list.LOG, metric_list.ROLE)
    found = {metric.name: metric.sample for metric in metric_list.METRICS}
    assert found["holdfast.append.duration"] == "holdfast_append_duration_seconds"
    assert found["holdfast.append.bytes"] == "holdfast_append_bytes_total"


def test_spans_that_are_made_are_in_the_list() -> None:
    """No name of a span, and no attribute of ours, is written anywhere in the source that the list does not have."""
    known = set(spans.SPANS)
    attributes = {name for kind in spans.SPANS.values() for name in kind.attributes}
    labels = {attribute.name for metric in metric_list.METRICS for attribute in metric.attributes}
    making = [path for path in (ROOT / "src").rglob("*.py") if "holdfast.telemetry" in path.read_text(encoding="utf-8")]
    assert len(making) > 10
    for path in making:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
                if re.fullmatch(r"durable\.(journal|backend)\.\w+", text):
                    assert text in known, f"{path}: {text}"
                if path.name != "metric_list.py" and re.fullmatch(r"holdfast\.[a-z_]+", text):
                    assert text in attributes | labels | _MODULES, f"{path}: {text}"


_MODULES = {"holdfast.toml", *(f"holdfast.{path.stem}" for path in (ROOT / "src/holdfast").iterdir())}


# -- the dashboard and the alerts -----------------------------------------------------------------------------------


def known_names() -> set[str]:
    """Everything that a scrape may have."""
    found: set[str] = set()
    for metric in metric_list.METRICS:
        parts = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        found |= {metric.sample + part for part in parts}
    return found


def expressions_of_dashboard() -> list[str]:
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    found: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            found.extend(value[key] for key in ("expr", "query", "definition") if isinstance(value.get(key), str))
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(board)
    return found


def rules() -> list[dict[str, str]]:
    """The alerts of the rules file, which is written so plainly that no parser of YAML is needed."""
    text = ALERTS.read_text(encoding="utf-8")
    found = []
    for block in re.split(r"^      - alert: ", text, flags=re.MULTILINE)[1:]:
        name, _, rest = block.partition("\n")
        values = dict(re.findall(r"^ +(expr|for|severity|summary|description): (.+)$", rest, re.MULTILINE))
        found.append({"alert": name, **values})
    return found


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:holdfast|durable)_\w+", expression)) - LABELS


def test_the_dashboard_names_only_metrics_that_exist() -> None:
    """Each panel's query; and the panels show the ladder of marks, lag, throughput, latency, the queue and alarms."""
    expressions = expressions_of_dashboard()
    named = set().union(*map(names_in, expressions))
    assert named <= known_names(), named - known_names()
    assert {
        "holdfast_mark",
        "holdfast_lag",
        "holdfast_append_records_total",
        "holdfast_append_duration_seconds_bucket",
        "holdfast_queue_records",
        "holdfast_ship_alarm",
        "holdfast_journal_poisoned",
        "holdfast_consumer_lag",
    } <= named
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    assert {"title", "uid", "panels", "schemaVersion", "templating"} <= set(board)
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))


def test_alerts_name_only_metrics_that_exist_and_say_what_to_do() -> None:
    """Each with how long, how bad, and a line that tells somebody who was woken up what it is."""
    found = rules()
    assert len(found) >= 10
    for rule in found:
        assert {"alert", "expr", "for", "severity", "summary", "description"} <= set(rule), rule
        assert names_in(rule["expr"]), rule
        assert names_in(rule["expr"]) <= known_names(), names_in(rule["expr"]) - known_names()
    named = set().union(*(names_in(rule["expr"]) for rule in found))
    assert {"holdfast_journal_poisoned", "holdfast_ship_alarm", "holdfast_disk_free_bytes"} <= named
