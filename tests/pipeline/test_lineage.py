"""OpenLineage events: what the specification requires, and what we promise beyond it."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest

from pyspark_holdfast.pipeline.reports.lineage import events
from tests.pipeline.report_data import run_report, table_input, table_report, topic_input

pytestmark = pytest.mark.unit

FACETS = {
    "documentation": {"description"},
    "errorMessage": {"message", "programmingLanguage"},
    "holdfast_position": {"source", "begin", "end", "lag", "isWhole"},
    "holdfast_run": {"run", "kind", "reason"},
    "inputStatistics": set(),
    "jobType": {"processingType", "integration"},
    "outputStatistics": set(),
    "parent": {"run", "job"},
    "schema": set(),
    "storage": {"storageLayer"},
    "version": {"datasetVersion"},
}
"""What each facet must have, besides what all have; from the published schemas."""


def check_uri(uri: str) -> None:
    parts = urlsplit(uri)
    assert parts.scheme in ("https", "urn")
    assert parts.netloc or parts.path
    assert " " not in uri


def check_facets(facets: dict[str, Any]) -> None:
    for name, facet in facets.items():
        assert set(facet) >= FACETS[name] | {"_producer", "_schemaURL"}
        check_uri(facet["_producer"])
        check_uri(facet["_schemaURL"])
        assert re.search(r"/\d+-\d+-\d+/\w+\.json#/\$defs/\w+$", facet["_schemaURL"])


def check_dataset(dataset: dict[str, Any]) -> None:
    assert set(dataset) <= {"namespace", "name", "facets", "inputFacets", "outputFacets"}
    assert dataset["namespace"]
    assert dataset["name"]
    for group in ("facets", "inputFacets", "outputFacets"):
        check_facets(dataset.get(group, {}))


def check_event(event: dict[str, Any]) -> None:
    """As $defs/RunEvent of the schema 2-0-2 requires it."""
    assert {"eventTime", "producer", "schemaURL", "run", "job"} <= set(event)
    assert event["eventType"] in {"START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"}
    assert datetime.fromisoformat(event["eventTime"]).tzinfo is not None
    check_uri(event["producer"])
    assert event["schemaURL"] == "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
    UUID(event["run"]["runId"])
    check_facets(event["run"]["facets"])
    assert event["job"]["namespace"] == "holdfast"
    assert event["job"]["name"]
    check_facets(event["job"]["facets"])
    for dataset in [*event["inputs"], *event["outputs"]]:
        check_dataset(dataset)


def events_of(*tables: Any, **other: Any) -> list[dict[str, Any]]:
    """The events of a report, as they are in the file."""
    found = [json.loads(json.dumps(event)) for event in events(run_report(*tables, **other))]
    for event in found:
        check_event(event)
    return found


def test_each_run_has_a_start_and_one_end() -> None:
    """Of the pipeline, and of each table, with ids of their own; the pipeline's run is the parent of all."""
    found = events_of(table_report("a"), table_report("b", "failed"), table_report("c", description="Words."))
    kinds: dict[str, list[str]] = {}
    for event in found:
        kinds.setdefault(event["job"]["name"], []).append(event["eventType"])
    assert kinds == {
        "shop": ["START", "FAIL"],
        "shop.a": ["START", "COMPLETE"],
        "shop.b": ["START", "FAIL"],
        "shop.c": ["START", "COMPLETE"],
    }
    ids = {event["job"]["name"]: event["run"]["runId"] for event in found}
    assert len(set(ids.values())) == 4
    parents = {event["run"]["facets"]["parent"]["run"]["runId"] for event in found if event["job"]["name"] != "shop"}
    assert parents == {ids["shop"]}
    times = [event["eventTime"] for event in found if event["job"]["name"] == "shop.a"]
    assert times == sorted(times)


def test_inputs_have_offsets_and_outputs_versions() -> None:
    """From where to where, which rows, which version, which columns."""
    start, end = events_of(table_report("a", inputs=[topic_input("orders", 100, 7, 40), table_input("b", 3)]))[1:3]
    orders, table = end["inputs"]
    assert (orders["namespace"], orders["name"]) == ("s3://bucket", "prefix/topics/orders")
    position = orders["inputFacets"]["holdfast_position"]
    assert (position["begin"], position["end"], position["lag"]) == ({"0": 40, "1": 40}, {"0": 90, "1": 90}, 7)
    assert orders["inputFacets"]["inputStatistics"]["rowCount"] == 100
    assert orders["facets"]["schema"]["fields"] == [{"name": "value", "type": "binary"}]
    assert (table["name"], table["facets"]["version"]["datasetVersion"]) == ("tables/b", "3")
    (made,) = end["outputs"]
    assert (made["namespace"], made["name"]) == ("s3://bucket", "tables/a")
    assert made["facets"]["version"]["datasetVersion"] == "3"
    assert [field["name"] for field in made["facets"]["schema"]["fields"]] == ["order_id", "status", "amount", "at"]
    statistics = made["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["size"], statistics["fileCount"]) == (90, 45_678, 2)
    assert [one["name"] for one in start["outputs"]] == ["tables/a"]


def test_a_failure_says_why() -> None:
    """With the remedy."""
    (fail,) = [one for one in events_of(table_report("a", "failed")) if one["job"]["name"] == "shop.a"][1:]
    assert fail["run"]["facets"]["errorMessage"]["message"].startswith("order_id is null in 3 rows\nhint: ")
    assert fail["run"]["facets"]["errorMessage"]["programmingLanguage"] == "PYTHON"


def test_nothing_new_is_no_event() -> None:
    """A run every few seconds does not fill anybody's catalogue."""
    assert events_of(table_report("a", "unchanged"), table_report("b", "skipped")) == []
    assert len(events_of(table_report("a", "unchanged"), table_report("b"))) == 4


@pytest.mark.parametrize(
    ("place", "namespace", "name"),
    [
        ("s3://key:secret@bucket/a/b?signature=1#x", "s3://bucket", "a/b"),
        ("file:///srv/my%20tables/a", "file", "/srv/my tables/a"),
        ("/srv/tables/a", "file", "/srv/tables/a"),
        ("abfss://box@account.dfs.core.windows.net/t", "abfss://box@account.dfs.core.windows.net", "t"),
        ("abfss://user:secret@account/t", "abfss://account", "t"),
        ("s3://bucket", "s3://bucket", "/"),
    ],
)
def test_names_are_places_without_secrets(place: str, namespace: str, name: str) -> None:
    """As the specification names datasets of file systems and stores."""
    found = events_of(table_report("a", place=place))[1]["outputs"][0]
    assert (found["namespace"], found["name"]) == (namespace, name)
    assert "secret" not in json.dumps(found)


def test_the_same_report_gives_the_same_events() -> None:
    """So that telling it twice tells nothing twice; and another run has other ids, whatever its own id looks like."""
    assert events_of() == events_of()
    assert events_of(id="not a uuid")[0]["run"]["runId"] != events_of(id="neither")[0]["run"]["runId"]
