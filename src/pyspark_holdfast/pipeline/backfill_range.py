"""Which rows a backfill is about: a range of offsets, of times or of runs, held against what a table's runs have read.

The commits of a table record what each run read: from the positions of the run before it to its own. A range is turned
into runs, for tables whose rows belong to runs (append), or into offsets and runs of inputs, for the others. Pure, but
for times: which offsets they mean is looked up in manifests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from holdfast.errors import Invalid
from holdfast.model.record import microseconds
from holdfast.reader.offsets import ReadMarks, parse_offsets
from holdfast.reader.read_options import parse_time
from holdfast.tables.table_run import Position, TableRun
from pyspark_holdfast.pipeline.table_order import PlannedTable, TableSource
from pyspark_holdfast.pipeline.topic_input import Spans

Bound = int | str | datetime | Mapping[str, Mapping[str, int]] | None
"""As callers write it: a run's number, a time, or offsets by topic and partition; None: no bound."""
_RUN_MAX = 10**9
_END = 2**62
_HINT = 'give a run as 17, a time as "2026-11-15T12:00:00Z", or offsets as \'{"orders":{"0":1200}}\''
Reads = Mapping[str, Position]


@dataclass(frozen=True)
class Range:
    """What is to be computed again; nothing given: everything."""

    runs: tuple[int, int] | None = None
    """First and last run, both included."""
    times: tuple[int | None, int | None] | None = None
    """Microseconds since 1970: the first, and the one behind the last."""
    offsets: tuple[ReadMarks | None, ReadMarks | None] | None = None

    @property
    def is_everything(self) -> bool:
        """Whether no bound was given."""
        return self.runs is None and self.times is None and self.offsets is None


def parse_range(begin: Bound, end: Bound) -> Range:
    """A range as callers write it; raises Invalid.

    >>> parse_range(3, "5").runs
    (3, 5)
    """
    first, last = _bound(begin), _bound(end)
    kinds = {type(bound) for bound in (first, last) if bound is not None}
    if len(kinds) > 1:
        raise Invalid("begin and end are of two kinds", hint=_HINT)
    if not kinds:
        return Range()
    kind = kinds.pop()
    if kind is _Run:
        runs = (first.number if isinstance(first, _Run) else 1, last.number if isinstance(last, _Run) else _RUN_MAX)
        _require_order(runs[0] <= runs[1])
        return Range(runs=runs)
    if kind is _Time:
        times = (first.us if isinstance(first, _Time) else None, last.us if isinstance(last, _Time) else None)
        _require_order(times[0] is None or times[1] is None or times[0] < times[1])
        return Range(times=times)
    return Range(
        offsets=(first if isinstance(first, ReadMarks) else None, last if isinstance(last, ReadMarks) else None)
    )


class _Run(NamedTuple):
    number: int


class _Time(NamedTuple):
    us: int


def _bound(given: Bound) -> _Run | _Time | ReadMarks | None:
    if given is None or (isinstance(given, str) and not given.strip()):
        return None
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise Invalid("a time needs its zone", hint="datetime(…, tzinfo=UTC)")
        return _Time(microseconds(given))
    if isinstance(given, Mapping):
        import msgspec

        return parse_offsets(msgspec.json.encode(given), least=0)
    text = str(given).strip()
    if text.startswith("{"):
        return parse_offsets(text, least=0)
    if isinstance(given, bool) or (isinstance(given, int) and not 1 <= given < _RUN_MAX):
        raise Invalid(f"this is not a run of a table given={given}", hint=_HINT)
    if text.isascii() and text.isdigit() and 1 <= int(text) < _RUN_MAX:
        return _Run(int(text))
    try:
        return _Time(parse_time(text))
    except ValueError as error:
        raise Invalid(f"this is no bound of a range: a time {error}", hint=_HINT) from None


def _require_order(is_fine: bool) -> None:
    if not is_fine:
        raise Invalid("the range ends before it begins", hint=_HINT)


# -- what runs have read ----------------------------------------------------------------------------------------


class BackfillStep(NamedTuple):
    """A run of a table and what it read; or several runs together, where it is not known any more which read what."""

    first: int
    run: int
    """The last one of them."""
    before: Reads
    """How far the inputs were read before the first."""
    after: Reads

    @property
    def is_joined(self) -> bool:
        """Whether these are several runs."""
        return self.first < self.run


def steps_of(runs: Sequence[TableRun]) -> list[BackfillStep]:
    """The runs that read something new, in their order; backfills do not count.

    `runs` are all that are known, up to the newest. Commits of older ones are removed in time; what those runs read
    together is still known, because positions tell where reading began.
    """
    known = sorted(runs, key=lambda run: run.run)
    found = [BackfillStep(1, one.run, {}, one.reads) for one in known[:1]]
    for before, one in pairwise(known):
        if one.reason == "run":
            found.append(BackfillStep(one.run, one.run, before.reads, one.reads))
    return found


def spans_between(source: TableSource, before: Reads, after: Reads) -> Spans:
    """The offsets of a topic between two positions."""
    now = after.get(source.key)
    if now is None:
        return {}
    earlier = before.get(source.key)
    marks = {} if earlier is None else earlier.marks
    return {int(part): (marks.get(part, now.begins.get(part, end)), end) for part, end in now.marks.items()}


def runs_between(source: TableSource, before: Reads, after: Reads) -> tuple[int, int]:
    """The runs of a table between two positions: those behind the first, up to the second."""
    now, earlier = after.get(source.key), before.get(source.key)
    upto = 0 if now is None else now.run
    return (0 if earlier is None else min(earlier.run, upto)), upto


def together(planned: PlannedTable, steps: Sequence[BackfillStep], joined: Mapping[str, int]) -> list[BackfillStep]:
    """The same steps, with those as one that read rows of a table whose runs are not distinguished any more.

    `joined` tells up to which run of each table that is so. What one of these steps read cannot be said without the
    others.
    """
    last = 0
    for at, step in enumerate(steps):
        for source in planned.new:
            since, upto = runs_between(source, step.before, step.after)
            if since < min(upto, joined.get(source.name, 0)):
                last = at
    if not last:
        return list(steps)
    return [BackfillStep(steps[0].first, steps[last].run, steps[0].before, steps[last].after), *steps[last + 1 :]]


# -- the range ------------------------------------------------------------------------------------------------


Between = Callable[[str, int | None, int | None], Spans]
"""The offsets of a topic that hold all records of some times."""


def wanted_spans(planned: PlannedTable, range_: Range, between: Between) -> dict[str, Spans]:
    """By topic: the offsets that a range of times or offsets is about."""
    topics = [source.name for source in planned.new if source.kind == "topic"]
    if not topics:
        raise Invalid(
            f"the table reads no topic by what is new, so it has no offsets and times table={planned.name}",
            hint="give runs of the table, as begin=3, end=5",
        )
    if range_.times is not None:
        return {name: between(name, *range_.times) for name in topics}
    assert range_.offsets is not None
    begins, ends = ({} if part is None else part.ends for part in range_.offsets)
    others = sorted({topic for topic, _ in {**begins, **ends}} - set(topics))
    if others:
        raise Invalid(
            f"offsets name what the table does not read table={planned.name} topic={others[0]}",
            hint=f"it reads {', '.join(topics)}",
        )
    found: dict[str, Spans] = {}
    for where in {**begins, **ends}:
        found.setdefault(where[0], {})[where[1]] = (begins.get(where, 0), ends.get(where, _END))
    return found


def steps_in(
    planned: PlannedTable, range_: Range, steps: Sequence[BackfillStep], between: Between
) -> list[BackfillStep]:
    """The runs that a range meets."""
    if range_.is_everything:
        return list(steps)
    if range_.runs is not None:
        first, last = range_.runs
        return [step for step in steps if first <= step.run and step.first <= last]
    wanted = wanted_spans(planned, range_, between)
    return [step for step in steps if _meets(planned, step, wanted)]


def _meets(planned: PlannedTable, step: BackfillStep, wanted: Mapping[str, Spans]) -> bool:
    for source in planned.new:
        asked = wanted.get(source.name, {}) if source.kind == "topic" else {}
        read = spans_between(source, step.before, step.after) if asked else {}
        for part, (begin, end) in read.items():
            first, last = asked.get(part, (0, 0))
            if max(begin, first) < min(end, last):
                return True
    return False


def clipped(spans: Spans, within: Spans) -> Spans:
    """Spans, cut to others: of every partition of those, maybe nothing.

    >>> clipped({0: (2, 50)}, {0: (5, 10), 1: (0, 3)})
    {0: (5, 10), 1: (3, 3)}
    """
    found = {}
    for part, (begin, end) in within.items():
        first, last = spans.get(part, (end, end))
        start = min(max(begin, first), end)
        found[part] = (start, max(start, min(end, last)))
    return found
