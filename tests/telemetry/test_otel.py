"""What OpenTelemetry gets: spans of the whole pipe, the trace in the headers of records, the same metrics.

OpenTelemetry takes one provider per process, so each case is a program of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from holdfast.telemetry import metric_list, otel_metrics, spans
from tests.telemetry.otel_program import SECRET

pytestmark = pytest.mark.disk


def collected(directory: Path, case: str) -> dict[str, Any]:
    command = [sys.executable, "-W", "error", "-m", "tests.telemetry.otel_program", str(directory / "log"), case]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def appends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of all ways to append."""
    return collected(tmp_path_factory.mktemp("appends"), "appends")


def named(found: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [span for span in found["spans"] if span["name"] == name]


def check_listed(found: dict[str, Any]) -> None:
    """Names and attributes are those of the list, and nothing of a payload is in them."""
    for span in found["spans"]:
        if span["name"].startswith(("holdfast.", "durable.")):
            assert set(span["attributes"]) <= set(spans.SPANS[span["name"]].attributes), span
            assert span["events"] == 0
    assert SECRET not in json.dumps(found["spans"])


@pytest.mark.parametrize(
    ("name", "is_loaded"), [("opentelemetry.trace", spans.is_loaded), ("opentelemetry.metrics", otel_metrics.is_loaded)]
)
def test_what_a_signal_handler_finds_half_imported_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch, name: str, is_loaded: Callable[[], bool]
) -> None:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    monkeypatch.setitem(sys.modules, name, module)
    assert is_loaded()
    monkeypatch.setattr(module.__spec__, "_initializing", True, raising=False)
    assert not is_loaded()


def test_appends_within_a_recorded_span_have_one_and_their_records_carry_it(appends: dict[str, Any]) -> None:
    """One each for a record, a batch and a transaction, as children of the caller's; what was outside has none."""
    found = appends
    check_listed(found)
    request = named(found, "request")[0]
    appended = [span for span in named(found, spans.APPEND) if span["trace"] == request["trace"]]
    assert {span["parent"] for span in appended} == {request["id"]}
    assert [span["attributes"]["holdfast.records"] for span in appended] == [1, 1, 2, 2, 1, 1, 1]
    by_id = {span["id"]: span for span in appended}
    records = {record["payload"]: record for record in found["records"]}
    carried = {name: record["headers"].get("traceparent", "") for name, record in records.items()}
    assert carried["outside"] == ""
    for name in (SECRET, "one", "two", "in a transaction", "keyed", "async"):
        version, trace, span, _ = carried[name].split("-")
        assert (version, trace) == ("00", request["trace"])
        assert span in by_id, name
        assert records[name]["trace"] == request["trace"]
    assert carried["one"] == carried["two"]
    assert carried["offered"].split("-")[2] == request["id"]  # nobody waits for it, so it has no span of its own
    single = by_id[carried[SECRET].split("-")[2]]["attributes"]
    assert (single["holdfast.offset"], single["holdfast.partition"]) == (1, 0)
    reads = named(found, spans.READ)
    assert [span["attributes"]["holdfast.records"] for span in reads] == [2, 9]


def test_headers_of_the_caller_are_left_alone(appends: dict[str, Any]) -> None:
    """Neither replaced nor lost, nor made too large; topics of our own carry none; a repetition stays a repetition."""
    found = appends
    records = {record["payload"]: record["headers"] for record in found["records"]}
    assert records["foreign"] == {"traceparent": "mine", "tracestate": "mine"}
    assert records[SECRET]["mine"] == "1"
    assert records["two"]["mine"] == "2"
    assert set(records["large"]) == {"big"}
    assert found["own"] is None
    assert found["repeated"] is True
    # A consumer goes on with the trace of a record that has one; the others begin their own.
    handled, request = named(found, "handle"), named(found, "request")[0]
    assert [span["trace"] == request["trace"] for span in handled] == [False, True, False]


def test_of_many_durations_a_hundred_a_second_are_recorded() -> None:
    """And all of few; counted, so that slow ones are recorded no more often than others."""

    class Heard:
        count = 0

        def record(self, _seconds: float, _attributes: dict[str, str]) -> None:
            self.count += 1

    clock = [0.0]
    for gap, at_least, at_most in ((1.0, 1000, 1000), (0.05, 900, 1000), (0.0001, 5, 30)):
        heard = Heard()
        recorder = otel_metrics.Recorder(heard, {}, lambda: clock[0])  # type: ignore[arg-type]
        for number in range(1000):
            clock[0] = number * gap
            recorder(0.001)
        assert at_least <= heard.count <= at_most, (gap, heard.count)


def test_what_is_not_sampled_is_not_reported(tmp_path: Path) -> None:
    """And costs the records nothing."""
    found = collected(tmp_path, "unsampled")
    assert (found["spans"], found["headers"]) == ([], None)


def test_a_provider_that_comes_later_is_found(tmp_path: Path) -> None:
    """Until then the journal's verbs are the plain ones."""
    found = collected(tmp_path, "later")
    assert found["before"] == "Queue.submit"
    assert found["after"] != found["before"]
    assert len(named(found, spans.APPEND)) == 1
    assert "holdfast.append.duration" in found["metrics"]


def test_the_setting_says_which_appends_are_traced(tmp_path: Path) -> None:
    """All of them, without a parent, and nothing in the records, as the setting says."""
    found = collected(tmp_path, "always")
    assert [span["parent"] for span in named(found, spans.APPEND)] == [None, None]
    assert [span["attributes"]["holdfast.topic"] for span in named(found, spans.APPEND)] == ["orders", "typed"]
    assert found["headers"] is None


def test_each_stage_of_the_pipe_has_its_span(tmp_path: Path) -> None:
    """From recovery to restore, with counts; and the metrics are those of the list, in kind, unit and buckets."""
    found = collected(tmp_path, "pipe")
    check_listed(found)
    stages = {
        spans.RECOVER, spans.SEAL, spans.SHIP, spans.SETTLE, spans.RECONCILE, spans.RESTORE, spans.REBUILD,
        spans.COMPACT, spans.RETAIN,
    }  # fmt: skip
    assert {span["name"] for span in found["spans"]} >= stages
    assert {span["status"] for span in found["spans"]} == {"UNSET"}
    assert [one["attributes"]["holdfast.records"] for one in named(found, spans.SEAL)][:3] == [10, 10, 10]
    assert {one["attributes"]["holdfast.where"] for one in named(found, spans.RECONCILE)} == {"log", "store"}
    by_name = {metric.name: metric for metric in metric_list.METRICS}
    kinds = {"counter": "Sum", "gauge": "Gauge", "histogram": "Histogram"}
    for point in found["metrics"]:
        metric = by_name[point["name"]]
        assert (point["kind"], point["unit"], point["about"]) == (kinds[metric.kind], metric.unit, metric.about)
        assert point["kind"] != "Histogram" or tuple(point["bounds"]) == metric.bounds
        assert point["kind"] == "Histogram" or set(point["attributes"]) == {one.name for one in metric.attributes}
    values = {point["name"]: point["value"] or point["count"] for point in found["metrics"]}
    assert (values["holdfast.append.records"], values["holdfast.seal.segments"]) == (30, 3)
    assert 0 < values["holdfast.append.duration"] <= 3
    assert 0 < values["holdfast.seal.duration"] <= 3
    levels = {point["name"] for point in found["after"] if point["kind"] != "Histogram"}
    assert levels == set()  # all logs are closed
