"""Rows computed again: a range of what a table has read goes through its function once more, and takes its own place.

With the same code and the same inputs the rows stay what they were; with corrected code they become what they should
have been. Positions do not move. What a backfill means depends on the kind:

    append     the runs that meet the range are computed again, one by one, and their files replace those runs' files;
               runs so old that their commits are gone are computed together, as one
    keyed      the rows of the range are applied again; `order_by` decides, and equal ones give way to the new
    windowed   windows that rows of the range fall into are added up from all rows, and replace what was there
    snapshot   one run, whatever the range is

Without a range everything is computed again, and the whole table is replaced. Inputs that are read as a whole are read
as they are now. If retention has removed records that are needed, nothing is changed and the error says so.

All of it is one commit, so no reader ever sees half of a backfill. Files of a backfill carry the numbers of the runs
whose rows they hold: a table that reads this one and has passed those runs does not read them again. Its own rows still
follow from the old ones; it needs a backfill, too, and the report says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
import pyarrow as pa

from holdfast.errors import Invalid, NotFound
from holdfast.reader.offsets import require_log
from holdfast.tables.data_file import DataFile
from holdfast.tables.table_log import TableSnapshot
from holdfast.tables.table_run import Position, TableRun
from pyspark_holdfast.pipeline.backfill_range import (
    BackfillStep,
    Range,
    Reads,
    clipped,
    runs_between,
    spans_between,
    steps_in,
    steps_of,
    together,
    wanted_spans,
)
from pyspark_holdfast.pipeline.inputs import JOINED, InputSlice, NotYet, joined_upto
from pyspark_holdfast.pipeline.table_columns import configuration_of
from pyspark_holdfast.pipeline.table_definition import Append, Snapshot, Windowed
from pyspark_holdfast.pipeline.table_order import PlannedTable, TableSource
from pyspark_holdfast.pipeline.table_update import (
    ATTEMPTS,
    NewFiles,
    RunPass,
    TableOutcome,
    beaten,
    checked,
    commit,
    computed,
    discard,
    frame_of,
    leased,
    next_run,
    stored_schema,
    update,
)
from pyspark_holdfast.pipeline.table_writing import WriteResult, write_windows

_STEPS_MAX = 10_000
"""Runs that are computed again at once; each is a job of its own."""
_RUNS_MAX = 1_000_000


def backfill(planned: PlannedTable, here: RunPass, range_: Range) -> TableOutcome:
    """Compute a range of a table again; offsets that were taken of another log are refused."""
    for marks in filter(None, range_.offsets or ()):
        require_log(
            marks,
            here.inputs.topics.root.log,
            what="these marks belong to",
            hint="give a range of offsets, times or runs of this one",
        )
    if isinstance(planned.table.kind, Snapshot):
        return update(planned, here, is_forced=True)
    for _ in range(ATTEMPTS):
        before = checked(planned, here, here.tables.look(planned.name))
        if before.run is None:
            return TableOutcome(before, note="there is nothing to compute again: the table has no run yet")
        try:
            if isinstance(planned.table.kind, Append):
                made = _append(planned, here, before, range_)
            else:
                made = _others(planned, here, before, range_)
        except NotYet as waiting:
            raise NotFound(f"an input is gone: {waiting}", hint="put it back") from None
        if made is None:
            return TableOutcome(before, note="the range meets nothing that the table has read")
        after = commit(planned, here, before, made)
        if after is not None:
            return TableOutcome(after, made.taken, made.written)
    raise beaten(planned)


# -- append -----------------------------------------------------------------------------------------------------


def _append(planned: PlannedTable, here: RunPass, before: TableSnapshot, range_: Range) -> NewFiles | None:
    """The runs that meet the range, each computed by itself: rows keep the number of their run."""
    steps = _steps(planned, here, range_)
    if not steps:
        return None
    if len(steps) > _STEPS_MAX:
        raise Invalid(
            f"the range meets too many runs at once runs={len(steps)} most={_STEPS_MAX}",
            hint=f"take them in parts: begin={steps[0].run}, end={steps[_STEPS_MAX - 1].run}, and so on",
        )
    _require_behind(planned, here, steps)
    taken = [[_between(here, source, step.before, step.after) for source in planned.sources] for step in steps]
    _require_there(here, taken)
    started, added, rows_out, schema = here.clock.now_us() // 1000, list[DataFile](), 0, before.schema
    try:
        for step, inputs in zip(steps, taken, strict=True):
            here.tell(f"{planned.name}: run {step.run} again")
            made = computed(planned, here, before._replace(schema=schema, files=()), inputs, next_run(before))
            schema = made.schema
            added += [msgspec.structs.replace(file, run=step.run) for file in made.written.added]
            rows_out += made.written.rows_out
    except BaseException:
        discard(here.tables, planned.name, added)
        raise
    removed = tuple(file for file in before.files if any(step.first <= file.run <= step.run for step in steps))
    made = _made(planned, before, schema, WriteResult(tuple(added), removed, 0, rows_out, {}), taken, started)
    joined = {JOINED: str(steps[0].run)} if steps[0].is_joined else {}  # only the oldest can be
    return replace(made, configuration={**made.configuration, **joined})


def _steps(planned: PlannedTable, here: RunPass, range_: Range) -> list[BackfillStep]:
    """The runs of a table that a range meets."""
    known = steps_of([run for _, run in here.tables.log(planned.name).runs(_RUNS_MAX)])
    tables = [source.name for source in planned.new if source.kind == "table"]
    joined = {name: joined_upto(here.tables.snapshot(name)) for name in tables}
    return steps_in(planned, range_, together(planned, known, joined), here.inputs.topics.between)


def _require_behind(planned: PlannedTable, here: RunPass, steps: Sequence[BackfillStep]) -> None:
    """Refuse to join runs of which a reader has read some: it would get their rows again with the others."""
    for step in steps:
        for reader in here.readers.get(planned.name, ()) if step.is_joined else ():
            run = here.tables.look(reader).run
            read = None if run is None else run.reads.get(planned.name)
            if read is not None and 0 < read.run < step.run:
                raise Invalid(
                    f"a table is in the midst of the runs that would be joined table={reader} run={read.run}"
                    f" runs={step.first}..{step.run}",
                    hint=f"run the pipeline first, so that {reader} has read all of them",
                )


def _between(here: RunPass, source: TableSource, before: Reads, after: Reads) -> InputSlice:
    """What was read of an input between two positions, as it is now."""
    if source.is_whole:
        return here.inputs.take(source, None)
    here.inputs.require_same(source, after.get(source.key))
    if source.kind == "topic":
        return here.inputs.of_spans(source, before.get(source.key), spans_between(source, before, after))
    return here.inputs.of_runs(source, before.get(source.key), *runs_between(source, before, after))


# -- keyed and windowed -----------------------------------------------------------------------------------------


def _others(planned: PlannedTable, here: RunPass, before: TableSnapshot, range_: Range) -> NewFiles | None:
    assert before.run is not None
    reads = before.run.reads
    everything = [_between(here, source, {}, reads) for source in planned.sources]
    _require_positions(planned, reads)
    if range_.is_everything:
        _require_there(here, [everything])
        made = computed(
            planned, here, before._replace(files=(), run=_forgetful(before.run)), everything, next_run(before)
        )
        written = made.written._replace(removed=before.files)
        return _made(planned, before, made.schema, written, [everything], made.started_ms)
    some = _in_range(planned, here, before, range_)
    if planned.new and not any(one.rows for one in some if not one.source.is_whole):
        return None
    if isinstance(planned.table.kind, Windowed):
        _require_there(here, [everything])
        return _windows(planned, here, before, some, everything)
    _require_there(here, [some])
    made = computed(planned, here, before, some, next_run(before))
    return _made(planned, before, made.schema, made.written, [some], made.started_ms)


def _forgetful(run: TableRun) -> TableRun:
    """The newest run without what it remembers of rows, for a table that is built anew."""
    return msgspec.structs.replace(run, tombstones={})


def _windows(
    planned: PlannedTable,
    here: RunPass,
    before: TableSnapshot,
    some: Sequence[InputSlice],
    everything: Sequence[InputSlice],
) -> NewFiles:
    """The windows that rows of the range fall into, from all rows that the table has read."""
    started, spark, kind = here.clock.now_us() // 1000, here.spark(), planned.table.kind
    assert isinstance(kind, Windowed)
    with leased(here, everything):
        windows = frame_of(planned, [one.frame(spark) for one in some])
        frame = frame_of(planned, [one.frame(spark) for one in everything])
        schema = stored_schema(planned, frame, before)
        written = write_windows(
            frame,
            here.tables.place(planned.name),
            kind,
            before,
            next_run(before),
            here.nonce(),
            schema,
            windows=windows,
        )
    return _made(planned, before, schema, written, [everything], started)


def _in_range(planned: PlannedTable, here: RunPass, before: TableSnapshot, range_: Range) -> list[InputSlice]:
    """What the table has read in the range, of each input; whole inputs as they are."""
    assert before.run is not None
    reads = before.run.reads
    if range_.runs is not None:
        steps = _steps(planned, here, range_)
        first, last = (steps[0].before, steps[-1].after) if steps else (reads, reads)
        return [_between(here, source, first, last) for source in planned.sources]
    wanted = wanted_spans(planned, range_, here.inputs.topics.between)
    return [_cut(here, source, reads, wanted) for source in planned.sources]


def _cut(
    here: RunPass, source: TableSource, reads: Reads, wanted: Mapping[str, dict[int, tuple[int, int]]]
) -> InputSlice:
    if source.is_whole:
        return here.inputs.take(source, None)
    if source.kind == "table":  # a range of offsets or times says nothing about tables
        return _between(here, source, reads, reads)
    spans = clipped(wanted.get(source.name, {}), spans_between(source, {}, reads))
    return here.inputs.of_spans(source, reads.get(source.key), spans)


# -- common -------------------------------------------------------------------------------------------------------


def _require_positions(planned: PlannedTable, reads: Mapping[str, Position]) -> None:
    missing = [source.key for source in planned.new if source.key not in reads]
    if missing:
        raise Invalid(
            f"the table has never read this input table={planned.name} input={missing[0]}",
            hint="run the pipeline first: it reads the new input from its beginning",
        )


def _require_there(here: RunPass, taken: Sequence[Sequence[InputSlice]]) -> None:
    """Refuse a range of which retention has removed records, before anything is computed."""
    for inputs in taken:
        for one in inputs:
            if one.source.kind != "topic" or one.source.is_whole or not one.rows:
                continue
            begins = here.inputs.topics.begins(one.source.name)
            for part, (begin, end) in sorted(one.spans.items()):
                if begin < min(end, begins.get(part, 0)):
                    raise NotFound(
                        f"records that are needed have expired topic={one.source.name} partition={part}"
                        f" offsets={begin}..{min(end, begins[part]) - 1} first_left={begins[part]}",
                        hint="the rows derived from them stay as they are: choose a range that begins later",
                    )


def _made(
    planned: PlannedTable,
    before: TableSnapshot,
    schema: pa.Schema | None,
    written: WriteResult,
    taken: Sequence[Sequence[InputSlice]],
    started: int,
) -> NewFiles:
    assert before.run is not None
    assert schema is not None
    read = tuple(_joined(each) for each in zip(*taken, strict=True))
    return NewFiles(
        written,
        schema,
        before.run.reads,
        sum(one.rows for one in read),
        started,
        reason="backfill",
        configuration=configuration_of(planned.table.kind),
        taken=read,
    )


def _joined(parts: Sequence[InputSlice]) -> InputSlice:
    """What was read of an input in several steps, in numbers."""
    spans: dict[int, tuple[int, int]] = {}
    for one in parts:
        for part, (begin, end) in one.spans.items():
            known = spans.get(part, (begin, end))
            spans[part] = (min(known[0], begin), max(known[1], end))
    return replace(parts[0], after=parts[-1].after, rows=sum(one.rows for one in parts), spans=spans)
