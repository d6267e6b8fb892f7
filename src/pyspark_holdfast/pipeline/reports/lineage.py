"""Runs as OpenLineage events: which table was made of what, from which offset to which, in which version. Pure.

For each table that a run worked on: START, then COMPLETE or FAIL, with a run id of its own, and the pipeline's run as
its parent, which has its two events as well. A table with nothing new has no events, and neither has one that was
skipped. Events are made from the report when a run has ended, so a run that was killed has none; the one after it
reports all offsets from the last commit on.

Datasets are named by where they are, as the specification names them: `s3://bucket` and the path in it, `file` and a
path. A topic is `<root>/topics/<name>`, a table its folder. No name has a user, a password or a query in it.
Specification: OpenLineage 2-0-2, https://openlineage.io/spec/2-0-2/OpenLineage.json.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import NAMESPACE_URL, UUID, uuid5

from holdfast import __version__
from pyspark_holdfast.pipeline.run_report import InputReport, RunReport, TableReport

NAMESPACE = "holdfast"
PRODUCER = f"urn:holdfast-log:{__version__}"
_SPEC = "https://openlineage.io/spec"
_EVENT = f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent"
_FACETS = {
    "documentation": "facets/1-1-0/DocumentationJobFacet.json#/$defs/DocumentationJobFacet",
    "errorMessage": "facets/1-0-1/ErrorMessageRunFacet.json#/$defs/ErrorMessageRunFacet",
    "inputStatistics": "facets/1-0-0/InputStatisticsInputDatasetFacet.json#/$defs/InputStatisticsInputDatasetFacet",
    "jobType": "facets/2-0-4/JobTypeJobFacet.json#/$defs/JobTypeJobFacet",
    "outputStatistics": (
        "facets/1-0-2/OutputStatisticsOutputDatasetFacet.json#/$defs/OutputStatisticsOutputDatasetFacet"
    ),
    "parent": "facets/1-2-0/ParentRunFacet.json#/$defs/ParentRunFacet",
    "schema": "facets/1-2-0/SchemaDatasetFacet.json#/$defs/SchemaDatasetFacet",
    "storage": "facets/1-0-1/StorageDatasetFacet.json#/$defs/StorageDatasetFacet",
    "version": "facets/1-0-1/DatasetVersionDatasetFacet.json#/$defs/DatasetVersionDatasetFacet",
    # Ours: what any facet of their kind has, and more.
    "holdfast_position": "2-0-2/OpenLineage.json#/$defs/InputDatasetFacet",
    "holdfast_run": "2-0-2/OpenLineage.json#/$defs/RunFacet",
}

Json = dict[str, Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def events(report: RunReport) -> Iterator[Json]:
    """The events of a run, in the order in which they happened; none where nothing was done."""
    tables = [one for one in report.tables if one.outcome in ("written", "failed")]
    if not tables:
        return
    whole = _Job(_uuid(report.id), report.pipeline, {"jobType": _type("PIPELINE")})
    yield _event("START", report.started_ms, whole)
    for table in tables:
        yield from _of_table(report, table, whole)
    is_fine = all(one.outcome == "written" for one in tables)
    yield _event("COMPLETE" if is_fine else "FAIL", report.started_ms + _ms(report.seconds), whole)


class _Job:
    """A job, and one run of it."""

    def __init__(self, run_id: str, name: str, facets: Mapping[str, Json]) -> None:
        self.run_id, self.name, self.facets = run_id, name, dict(facets)

    def named(self) -> Json:
        return {"namespace": NAMESPACE, "name": self.name}


def _of_table(report: RunReport, table: TableReport, parent: _Job) -> Iterator[Json]:
    facets = {"jobType": _type("TABLE")}
    if table.description:
        facets["documentation"] = _facet("documentation", description=table.description)
    job = _Job(str(uuid5(UUID(parent.run_id), table.name)), f"{report.pipeline}.{table.name}", facets)
    run = {
        "parent": _facet("parent", run={"runId": parent.run_id}, job=parent.named()),
        "holdfast_run": _facet("holdfast_run", run=table.run, kind=table.kind, reason=report.reason),
    }
    inputs = [_input(one) for one in table.inputs]
    yield _event("START", table.started_ms, job, run, inputs, [_named(table.place)])
    ended = table.started_ms + _ms(table.seconds)
    if table.outcome == "written":
        yield _event("COMPLETE", ended, job, run, inputs, [_output(table)])
        return
    message = f"{table.error}\nhint: {table.hint}" if table.hint else table.error
    run["errorMessage"] = _facet("errorMessage", message=message, programmingLanguage="PYTHON")
    yield _event("FAIL", ended, job, run, inputs, [_named(table.place)])


def _event(
    kind: str,
    at_ms: int,
    job: _Job,
    run: Mapping[str, Json] | None = None,
    inputs: list[Json] | None = None,
    outputs: list[Json] | None = None,
) -> Json:
    return {
        "eventType": kind,
        "eventTime": _time(at_ms),
        "run": {"runId": job.run_id, "facets": dict(run or {})},
        "job": {**job.named(), "facets": job.facets},
        "inputs": inputs or [],
        "outputs": outputs or [],
        "producer": PRODUCER,
        "schemaURL": _EVENT,
    }


# -- datasets ---------------------------------------------------------------------------------------------------


def _input(one: InputReport) -> Json:
    found = _named(f"{one.place}/topics/{one.name}" if one.kind == "topic" else one.place)
    facets: Json = {"schema": _schema(one.columns)} if one.columns else {}
    if one.kind == "table" and "version" in one.end:
        facets["version"] = _facet("version", datasetVersion=str(one.end["version"]))
    position = _facet(
        "holdfast_position", source=one.source, begin=one.begin, end=one.end, lag=one.lag, isWhole=one.is_whole
    )
    statistics = _facet("inputStatistics", rowCount=one.rows)
    return {**found, "facets": facets, "inputFacets": {"holdfast_position": position, "inputStatistics": statistics}}


def _output(table: TableReport) -> Json:
    facets = {
        "version": _facet("version", datasetVersion=str(table.version)),
        "storage": _facet("storage", storageLayer="delta", fileFormat="parquet"),
    }
    if table.columns:
        facets["schema"] = _schema(table.columns)
    statistics = _facet(
        "outputStatistics", rowCount=table.rows_out, size=table.bytes_written, fileCount=table.files_added
    )
    return {**_named(table.place), "facets": facets, "outputFacets": {"outputStatistics": statistics}}


def _named(place: str) -> Json:
    """A dataset's name: the store, and the path in it."""
    if "://" not in place:
        return {"namespace": "file", "name": place}
    parts = urlsplit(place)
    if parts.scheme == "file":
        return {"namespace": "file", "name": unquote(parts.path)}
    user, _, host = parts.netloc.rpartition("@")
    is_container = parts.scheme == "abfss" and user and ":" not in user
    store = f"{user}@{host}" if is_container else host
    return {"namespace": f"{parts.scheme}://{store}", "name": unquote(parts.path).strip("/") or "/"}


# -- facets -----------------------------------------------------------------------------------------------------


def _facet(name: str, **fields: Any) -> Json:
    return {"_producer": PRODUCER, "_schemaURL": f"{_SPEC}/{_FACETS[name]}", **fields}


def _schema(columns: Mapping[str, str]) -> Json:
    return _facet("schema", fields=[{"name": name, "type": kind} for name, kind in columns.items()])


def _type(job_type: str) -> Json:
    return _facet("jobType", processingType="BATCH", integration="HOLDFAST", jobType=job_type)


def _time(ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _ms(seconds: float) -> int:
    return round(1000 * seconds)


def _uuid(given: str) -> str:
    try:
        return str(UUID(given))
    except ValueError:
        return str(uuid5(NAMESPACE_URL, given))
