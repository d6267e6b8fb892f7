"""The tables of a pipeline in the order in which they run: what is read comes before who reads it.

Every name that a table reads is a table of the pipeline or a topic of its root. Cycles, names that are given twice and
inputs that a kind cannot take are refused here, before anything runs. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from holdfast.errors import Invalid
from holdfast.suggestions import listed, meant
from pyspark_holdfast.pipeline.table_definition import Append, Input, Keyed, Snapshot, Table


@dataclass(frozen=True)
class TableSource:
    """An input of a table, found: a topic of the root, or a table of the pipeline."""

    name: str
    kind: Literal["topic", "table"]
    is_whole: bool
    options: Mapping[str, str]

    @property
    def key(self) -> str:
        """Its name among the positions of a table. A table may read the new rows of an input, and all of them, too."""
        return f"whole({self.name})" if self.is_whole else self.name


@dataclass(frozen=True)
class PlannedTable:
    """A table and where its rows come from."""

    table: Table
    sources: tuple[TableSource, ...]

    @property
    def name(self) -> str:
        """The table's name."""
        return self.table.name

    @property
    def new(self) -> tuple[TableSource, ...]:
        """What it reads row by row, each once."""
        return tuple(source for source in self.sources if not source.is_whole)

    @property
    def upstream(self) -> frozenset[str]:
        """The tables that it reads."""
        return frozenset(source.name for source in self.sources if source.kind == "table")


def ordered(tables: Sequence[Table]) -> tuple[PlannedTable, ...]:
    """The tables in the order of their runs, as given where nothing else says it; raises Invalid."""
    by_name = _by_name(tables)
    found = {name: PlannedTable(one, tuple(_sources(one, by_name))) for name, one in by_name.items()}
    for planned in found.values():
        _check(planned, by_name)
    done: dict[str, PlannedTable] = {}
    while len(done) < len(found):
        ready = [one for name, one in found.items() if name not in done and one.upstream <= done.keys()]
        if not ready:
            raise _cycle({name: one for name, one in found.items() if name not in done})
        done[ready[0].name] = ready[0]
    return tuple(done.values())


def readers_of(planned: Iterable[PlannedTable]) -> dict[str, list[str]]:
    """By table: those that read its new rows."""
    found: dict[str, list[str]] = {}
    for one in planned:
        for source in one.new:
            if source.kind == "table":
                found.setdefault(source.name, []).append(one.name)
    return found


def chosen(planned: Sequence[PlannedTable], only: Sequence[str]) -> list[PlannedTable]:
    """Those that are asked for, or all; raises Invalid for a name that is none of them."""
    names = [one.name for one in planned]
    for name in only:
        if name not in names:
            raise Invalid(f"the pipeline has no table {name!r}{meant(name, names)}", hint=listed(names))
    return [one for one in planned if not only or one.name in only]


def _by_name(tables: Sequence[Table]) -> dict[str, Table]:
    if not tables:
        raise Invalid("a pipeline needs a table", hint="of=[…], with functions that @table made tables of")
    found: dict[str, Table] = {}
    for one in tables:
        if not isinstance(one, Table):
            raise Invalid(
                f"of takes tables, not {type(one).__name__}", hint="put @table above the function, and give its name"
            )
        if one.name in found:
            raise Invalid(f"two tables have the same name table={one.name}", hint='give one another: @table(name="…")')
        if one.name.startswith("_"):
            raise Invalid(
                f"names that begin with '_' are ours table={one.name}", hint='choose another: @table(name="…")'
            )
        found[one.name] = one
    return found


def _sources(table: Table, by_name: Mapping[str, Table]) -> Iterable[TableSource]:
    for given in table.inputs:
        is_whole = given.is_whole or isinstance(table.kind, Snapshot)
        others = by_name.keys() - {table.name}  # under its own name a table reads a topic: none reads itself
        is_table = given.source == "table" or (given.source == "any" and given.name in others)
        if is_table and given.name not in by_name:
            raise Invalid(
                f"there is no table {given.name!r}{meant(given.name, by_name)} table={table.name}", hint=listed(by_name)
            )
        yield TableSource(
            given.name, "table" if is_table else "topic", is_whole, _options(table, given, is_table=is_table)
        )


def _options(table: Table, given: Input, *, is_table: bool) -> Mapping[str, str]:
    if is_table and given.options:
        raise Invalid(
            f"options are for topics table={table.name} input={given.name}", hint="a table is read as it is: leave them"
        )
    return given.options


def _check(planned: PlannedTable, by_name: Mapping[str, Table]) -> None:
    keys = [source.key for source in planned.sources]
    for key in keys:
        if keys.count(key) > 1:
            raise Invalid(f"an input is named twice table={planned.name} input={key}", hint="use its DataFrame twice")
    for source in planned.new:
        if source.kind == "table" and not isinstance(by_name[source.name].kind, Append):
            raise Invalid(
                f"rows of table {source.name!r} change, so there are no new ones to continue with table={planned.name}",
                hint=f'read all of them: inputs=whole("{source.name}")',
            )
    kind = planned.table.kind
    if not planned.new and not isinstance(kind, Snapshot) and not (isinstance(kind, Keyed) and planned.table.per_run):
        again = "keep keys that are gone" if isinstance(kind, Keyed) else "add all rows again"
        raise Invalid(
            f"each run would {again} table={planned.name} kind={kind.name}",
            hint="one input must be read by what is new, without whole(…); or make it a snapshot()",
        )


def _cycle(left: Mapping[str, PlannedTable]) -> Invalid:
    """What is left reads, in the end, itself: one such round, in words."""
    path = [next(iter(left))]
    while path[-1] not in path[:-1]:
        path.append(min(left[path[-1]].upstream & left.keys()))
    round_ = path[path.index(path[-1]) :]
    return Invalid(
        f"tables read each other in a circle tables={' -> '.join(reversed(round_))}",
        hint="a table may read what comes before it; for a topic of the same name, write topic(…)",
    )
