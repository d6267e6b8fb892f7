"""What came of tables, as reports: of a run, or of what there is, without Spark."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.errors import HoldfastError
from holdfast.tables.table_run import Position
from pyspark_holdfast.pipeline.inputs import Inputs, columns_of, lag_of
from pyspark_holdfast.pipeline.reports.failure_words import Words, explain
from pyspark_holdfast.pipeline.run_report import InputReport, TableReport
from pyspark_holdfast.pipeline.table_order import PlannedTable, TableSource
from pyspark_holdfast.pipeline.table_update import RunPass, TableOutcome


class TableStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A table as it is."""

    name: str
    kind: str
    description: str
    place: str
    """Its folder."""
    table_id: str = ""
    """The id in its Delta log."""
    version: int = -1
    """Of its Delta log; -1: there is no table yet."""
    run: int = 0
    """Its newest run."""
    started_ms: int = 0
    """When that began."""
    rows: int = 0
    files: int = 0
    bytes: int = 0
    columns: dict[str, str] = {}
    """By name: the type, as Spark says it."""
    inputs: list[InputReport] = []
    """How far it has read each input (`end`), and how much of it is new (`lag`)."""
    error: str = ""
    """Why this is not known."""
    hint: str = ""
    """What to do about that."""

    @property
    def lag(self) -> int:
        """Records of topics that are settled and not in the table yet."""
        return sum(one.lag for one in self.inputs if one.kind == "topic")


def table_report(
    planned: PlannedTable, here: RunPass, outcome: TableOutcome, started_ms: int, seconds: float
) -> TableReport:
    """What a run did to a table."""
    snapshot, written = outcome.snapshot, outcome.written
    return TableReport(
        name=planned.name,
        kind=planned.table.kind.name,
        description=planned.table.description,
        outcome="unchanged" if written is None else "written",
        place=f"{here.tables.url}/{planned.name}",
        table_id=snapshot.table_id,
        run=0 if snapshot.run is None else snapshot.run.run,
        version=snapshot.version,
        inputs=[here.inputs.report(one) for one in outcome.taken],
        rows_in=outcome.rows_in,
        rows_out=0 if written is None else written.rows_out,
        files_added=0 if written is None else len(written.added),
        files_removed=0 if written is None else len(written.removed),
        bytes_written=0 if written is None else sum(file.size for file in written.added),
        rows=snapshot.state.rows,
        files=snapshot.state.files,
        bytes=snapshot.state.bytes,
        columns=columns_of(snapshot.schema),
        started_ms=started_ms,
        seconds=seconds,
        note=outcome.note,
    )


def failed_report(
    planned: PlannedTable, here: RunPass, error: Exception | None, started_ms: int, seconds: float, *, behind: str = ""
) -> TableReport:
    """A table that failed, or was skipped because one that it reads failed."""
    words = Words("", "", "") if error is None else explain(error)
    note = f"table {behind!r}, which it reads, failed" if behind else ""
    return TableReport(
        name=planned.name,
        kind=planned.table.kind.name,
        description=planned.table.description,
        outcome="failed" if error is not None else "skipped",
        place=f"{here.tables.url}/{planned.name}",
        started_ms=started_ms,
        seconds=seconds,
        error=words.error,
        error_kind=words.kind,
        hint=words.hint,
        note=note,
    )


def table_status(planned: PlannedTable, inputs: Inputs) -> TableStatus:
    """A table as it is, and how far it is behind."""
    known = TableStatus(
        name=planned.name,
        kind=planned.table.kind.name,
        description=planned.table.description,
        place=f"{inputs.tables.url}/{planned.name}",
    )
    try:
        snapshot = inputs.tables.snapshot(planned.name)
        reads = {} if snapshot.run is None else snapshot.run.reads
        found = [_standing(source, reads.get(source.key), inputs) for source in planned.sources]
    except HoldfastError as error:
        words = explain(error)
        return msgspec.structs.replace(known, error=words.error, hint=words.hint)
    if snapshot.run is not None:
        known = msgspec.structs.replace(known, run=snapshot.run.run, started_ms=snapshot.run.started_ms)
    return msgspec.structs.replace(
        known,
        table_id=snapshot.table_id,
        version=snapshot.version,
        columns=columns_of(snapshot.schema),
        inputs=found,
        rows=snapshot.state.rows,
        files=snapshot.state.files,
        bytes=snapshot.state.bytes,
    )


def _standing(source: TableSource, read: Position | None, inputs: Inputs) -> InputReport:
    """How far an input was read, and what is left of it."""
    if source.kind == "table":
        now, version = inputs.tables.snapshot(source.name), -1 if read is None else read.version
        return InputReport(
            name=source.name,
            kind="table",
            place=f"{inputs.tables.url}/{source.name}",
            source=now.table_id,
            begin={},
            end={"version": version},
            rows=0,
            lag=max(0, now.version - version),
            is_whole=source.is_whole,
        )
    known = InputReport(
        name=source.name,
        kind="topic",
        place=inputs.topics.place,
        source="",
        begin={},
        end={},
        rows=0,
        lag=0,
        is_whole=source.is_whole,
    )
    if read is None and (inputs.topics.is_empty() or not inputs.topics.is_there(source.name)):
        return known
    marks, settled = {} if read is None else dict(read.marks), inputs.topics.ends(source.name)
    return msgspec.structs.replace(
        known, place=inputs.topics.root.store.url, source=inputs.topics.root.log, end=marks, lag=lag_of(marks, settled)
    )


def failed_names(reports: Sequence[TableReport]) -> set[str]:
    """Tables whose readers must wait."""
    return {report.name for report in reports if report.outcome in ("failed", "skipped")}
