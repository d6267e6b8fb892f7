"""One run of one table: from what is new in its inputs to one commit, or to nothing.

The newest commit of the table says how far its inputs were read. The run takes what has come since, lets Spark write
files of it, and commits: files and new positions in one object, which only one run can create. Before that nothing of a
run is visible, and after it everything is. A run that finds that another one was faster throws its files away and
begins again from the other's positions. A run that is killed leaves files that no commit names; they are removed later.

If nothing is new, nothing is written and Spark is not used.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame

from holdfast.clock import Clock
from holdfast.errors import Invalid, Unavailable
from holdfast.tables import table_layout
from holdfast.tables.data_file import DataFile
from holdfast.tables.table_log import TableChange, TableSnapshot, retention
from holdfast.tables.table_run import Position, Reason, TableRun
from holdfast.tables.table_schema import grown
from pyspark_holdfast.pipeline.inputs import Inputs, InputSlice, NotYet, PipelineTables
from pyspark_holdfast.pipeline.row_dependence import is_checked, named, require_single_rows
from pyspark_holdfast.pipeline.table_columns import (
    configuration_of,
    require_same_rule,
    stored_columns,
    without_collations,
)
from pyspark_holdfast.pipeline.table_definition import Append, Keyed, Snapshot, Windowed
from pyspark_holdfast.pipeline.table_order import PlannedTable
from pyspark_holdfast.pipeline.table_writing import WriteResult, write_latest, write_rows, write_windows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS_FEW = 20_000
ATTEMPTS = 5
"""How often a run begins again because another one was faster."""


@dataclass
class RunPass:
    """What the tables of one run of a pipeline share."""

    pipeline: str
    id: str
    inputs: Inputs
    clock: Clock
    spark: Callable[[], SparkSession]
    """The session; made when it is first needed."""
    tell: Callable[[str], None]
    readers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By table: those that read its new rows."""
    keep_ms: int = 7 * 86_400_000
    """How long files stay that a newer version has replaced."""

    @property
    def tables(self) -> PipelineTables:
        """The tables as they are in this run."""
        return self.inputs.tables

    def nonce(self) -> str:
        """A part of names of files that no other attempt has."""
        return self.clock.random_bytes(8).hex()


class TableOutcome(NamedTuple):
    """What came of a table."""

    snapshot: TableSnapshot
    taken: tuple[InputSlice, ...] = ()
    written: WriteResult | None = None
    """None: nothing was committed."""
    note: str = ""

    @property
    def rows_in(self) -> int:
        """How many rows were read for what was written."""
        return 0 if self.written is None else sum(one.rows for one in self.taken)


def update(planned: PlannedTable, here: RunPass, *, is_forced: bool = False) -> TableOutcome:
    """Bring a table up to what its inputs have; raises Unavailable if others are always faster.

    `is_forced`: also if nothing is new, where all is computed anew anyway.
    """
    for _ in range(ATTEMPTS):
        before = checked(planned, here, here.tables.look(planned.name))
        try:
            taken = taken_now(planned, here, before)
        except NotYet as waiting:
            return TableOutcome(before, note=str(waiting))
        if not is_forced and not is_due(planned, taken):
            return TableOutcome(before, taken)
        here.tell(f"{planned.name}: {sum(one.rows for one in taken)} new rows")
        made = computed(planned, here, before, taken)
        after = commit(planned, here, before, made)
        if after is not None:
            return TableOutcome(after, made.taken, made.written)
    raise beaten(planned)


def checked(planned: PlannedTable, here: RunPass, snapshot: TableSnapshot) -> TableSnapshot:
    """A table that this pipeline may go on with; raises Invalid."""
    if snapshot.version < 0:
        return snapshot
    run, kind = snapshot.run, planned.table.kind.name
    if run is None or run.pipeline != here.pipeline:
        owner = "none of holdfast" if run is None else f"pipeline {run.pipeline!r}"
        raise Invalid(
            f"this table belongs to {owner} table={planned.name} pipeline={here.pipeline}",
            hint="give the pipeline another place for its tables, or the table another name",
        )
    if run.kind != kind:
        raise Invalid(
            f"the table is of another kind table={planned.name} kind={run.kind} asked={kind}",
            hint="give the table another name, or remove its folder and let it be rebuilt",
        )
    return snapshot


def taken_now(planned: PlannedTable, here: RunPass, before: TableSnapshot) -> tuple[InputSlice, ...]:
    """What there is for a table now; raises NotYet."""
    reads = before.run.reads if before.run is not None else {}
    return tuple(here.inputs.take(source, reads.get(source.key)) for source in planned.sources)


def is_due(planned: PlannedTable, taken: Sequence[InputSlice]) -> bool:
    """Whether a run has something to do: new rows; or, of a table that reads whole inputs only, other ones.

    What is read as a whole beside new rows, for a join, does not start a run by itself.
    """
    return any(one.is_new for one in taken if one.source.is_whole == (not planned.new))


# -- computing ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NewFiles:
    """Rows in files, and what a commit will say of them."""

    written: WriteResult
    schema: pa.Schema
    reads: Mapping[str, Position]
    rows_in: int
    started_ms: int
    reason: Reason = "run"
    configuration: dict[str, str] = field(default_factory=dict)
    taken: tuple[InputSlice, ...] = ()
    """What was read, for the report."""


def computed(
    planned: PlannedTable, here: RunPass, before: TableSnapshot, taken: Sequence[InputSlice], run: int | None = None
) -> NewFiles:
    """Let Spark write what a table makes of its inputs. Nothing is visible yet."""
    started, spark = here.clock.now_us() // 1000, here.spark()
    with leased(here, taken):
        frame = frame_of(planned, [one.frame(spark) for one in taken])
        schema = stored_schema(planned, frame, before)
        frame = in_few_files(planned, frame, sum(one.rows for one in taken))
        written = write(planned, here, frame, before, run or next_run(before), schema)
    return NewFiles(
        written,
        schema,
        {one.source.key: one.after for one in taken},
        sum(one.rows for one in taken),
        started,
        configuration=configuration_of(planned.table.kind),
        taken=tuple(taken),
    )


def leased(here: RunPass, taken: Sequence[InputSlice]) -> AbstractContextManager[None]:
    """While rows are read, retention waits for them."""
    return here.inputs.topics.leased(f"{here.pipeline[:100]}.{here.id}", spans_of(taken))


def spans_of(taken: Sequence[InputSlice]) -> dict[str, dict[int, tuple[int, int]]]:
    """The offsets that are read, by topic."""
    return {one.source.name: one.spans for one in taken if one.spans}


def frame_of(planned: PlannedTable, frames: Sequence[DataFrame]) -> DataFrame:
    """What the user's function makes of its inputs; raises Invalid where that is not what the kind promises."""
    given = list(frames)
    if is_checked(planned):
        given = [
            named(source, number, one) for number, (source, one) in enumerate(zip(planned.sources, given, strict=True))
        ]
    made = planned.table.function(*given)
    if not isinstance(made, DataFrame):
        raise Invalid(
            f"the function of table {planned.name!r} returned {type(made).__name__}, not a DataFrame",
            hint="return the DataFrame, as in `return orders.select(…)`",
        )
    if is_checked(planned):
        require_single_rows(planned, made, given)
    return without_collations(made)


def stored_schema(planned: PlannedTable, frame: DataFrame, before: TableSnapshot) -> pa.Schema:
    """The columns of the table with these rows; raises Invalid where they cannot follow those that it has."""
    require_same_rule(before, planned.table.kind, planned.name)
    now = stored_columns(frame, planned.table.kind)
    return now if before.schema is None else grown(before.schema, now)


def in_few_files(planned: PlannedTable, frame: DataFrame, rows: int) -> DataFrame:
    """The rows of a small run in one task: each task writes a file, and files of an append table stay."""
    return frame.coalesce(1) if rows <= _ROWS_FEW and isinstance(planned.table.kind, Append) else frame


def write(
    planned: PlannedTable, here: RunPass, frame: DataFrame, before: TableSnapshot, run: int, schema: pa.Schema
) -> WriteResult:
    """Files of a table with these rows, and those whose place they take."""
    place, nonce, kind = here.tables.place(planned.name), here.nonce(), planned.table.kind
    match kind:
        case Append():
            return write_rows(frame, place, run, nonce, schema)
        case Snapshot():
            return write_rows(frame, place, run, nonce, schema)._replace(removed=before.files)
        case Keyed():
            return write_latest(frame, place, kind, before, run, nonce, schema)
        case Windowed():
            return write_windows(frame, place, kind, before, run, nonce, schema)


def next_run(before: TableSnapshot) -> int:
    """The number of the run that would be committed."""
    return 1 + (before.run.run if before.run is not None else 0)


# -- committing -----------------------------------------------------------------------------------------------


def commit(planned: PlannedTable, here: RunPass, before: TableSnapshot, made: NewFiles) -> TableSnapshot | None:
    """Make a run visible; None, and its files are gone, if another one was faster."""
    written = made.written
    run = TableRun(
        pipeline=here.pipeline,
        table=planned.name,
        kind=planned.table.kind.name,
        run=next_run(before),
        reason=made.reason,
        reads=dict(made.reads),
        rows_in=made.rows_in,
        rows_out=written.rows_out,
        started_ms=made.started_ms,
        code=code_of(planned),
        tombstones=written.tombstones,
    )
    change = TableChange(
        run=run,
        schema=made.schema,
        added=written.added,
        removed=written.removed,
        configuration={**made.configuration, **retention(here.keep_ms)},
    )
    after = here.tables.log(planned.name).commit(before, change)
    if after is None:
        discard(here.tables, planned.name, written.added)
        return None
    return here.tables.know(planned.name, after)


def discard(tables: PipelineTables, name: str, files: Sequence[DataFile]) -> None:
    """Remove files that no commit names, and none will."""
    tables.store.delete([table_layout.file_key(name, file.path) for file in files])


def beaten(planned: PlannedTable) -> Unavailable:
    """Others commit to the table all the time."""
    return Unavailable(
        f"other runs were faster, each time table={planned.name} attempts={ATTEMPTS}",
        hint="let one process run the pipeline; nothing is lost, the next run continues",
    )


def code_of(planned: PlannedTable) -> str:
    """A digest of the function's source, for people."""
    function = planned.table.function
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        source = "" if code is None else code.co_code.hex()
    return sha256(source.encode()).hexdigest()[:16]
