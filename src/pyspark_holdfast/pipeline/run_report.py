"""What one run of a pipeline did, as values: what is printed, written as JSON, plotted and sent to others."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.model.text_table import html_table, text_table

FORMAT = 1
Outcome = Literal["written", "unchanged", "failed", "skipped"]
"""`unchanged`: there was nothing new. `skipped`: a table that it reads failed."""


class InputReport(msgspec.Struct, frozen=True, kw_only=True):
    """One input of one table in one run."""

    name: str
    kind: Literal["topic", "table"]
    place: str
    """The root or the table's folder, without secrets."""
    source: str
    """The id of the log or of the table."""
    begin: dict[str, int]
    """By partition of a topic: the first offset that was read. Of a table: {"version": …}, which had been read."""
    end: dict[str, int]
    """The offset behind the last one; the version that is read now."""
    rows: int
    """Rows that were read."""
    lag: int
    """Rows, or versions, that had become available when the run ended and were not read."""
    is_whole: bool = False
    """Whether all rows were read, not only the new ones."""
    columns: dict[str, str] = {}
    """As of a table."""


class TableReport(msgspec.Struct, frozen=True, kw_only=True):
    """One table in one run."""

    name: str
    kind: str
    """`append`, `keyed`, `windowed` or `snapshot`."""
    outcome: Outcome
    """`written`, `unchanged` (there was nothing new), `failed`, or `skipped` (a table that it reads failed)."""
    description: str = ""
    place: str
    """Its folder."""
    table_id: str = ""
    """The id in its Delta log."""
    run: int = 0
    """Its newest run."""
    version: int = -1
    """Of the Delta table, after this run."""
    inputs: list[InputReport] = []
    """What it reads."""
    rows_in: int = 0
    """Rows that were read."""
    rows_out: int = 0
    """Rows that were written."""
    rows: int = 0
    """In the whole table."""
    files: int = 0
    """In the whole table."""
    bytes: int = 0
    """Of those files."""
    files_added: int = 0
    """By this run."""
    files_removed: int = 0
    """By this run."""
    bytes_written: int = 0
    """By this run."""
    started_ms: int = 0
    seconds: float = 0.0
    """How long it took, without the time that Spark takes to start."""
    columns: dict[str, str] = {}
    """By name: the type, as Spark says it."""
    error: str = ""
    """Why it failed, in words."""
    error_kind: str = ""
    """The kind of a holdfast error, as `Corrupt`; of any other the name of its type."""
    hint: str = ""
    """What to do about it."""
    note: str = ""
    """What people should know: what is waited for, why it was skipped, what must be computed again, too."""

    @property
    def lag(self) -> int:
        """Rows of topics that are still to be read; where all inputs are tables, versions."""
        topics = [one.lag for one in self.inputs if one.kind == "topic"]
        return sum(topics or [one.lag for one in self.inputs])


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a pipeline."""

    format: int = FORMAT
    """1; another one if fields go or change."""
    pipeline: str
    """Its name."""
    id: str
    """Of this run: a random UUID."""
    started_ms: int
    """When it began, in milliseconds since 1970."""
    seconds: float
    """How long it took."""
    reason: Literal["run", "backfill"] = "run"
    tables: list[TableReport]
    """In the order in which they ran."""

    @property
    def is_fine(self) -> bool:
        """Whether no table failed."""
        return all(table.outcome in ("written", "unchanged") for table in self.tables)

    def __str__(self) -> str:
        """A small table, a line for each table of the pipeline."""
        return text_table(self._lines())

    def _repr_html_(self) -> str:
        """The same in a notebook."""
        return html_table(self._lines())

    def _lines(self) -> list[tuple[object, ...]]:
        return [
            ("table", "outcome", "rows in", "rows out", "left", "seconds", ""),
            *(
                (one.name, one.outcome, one.rows_in, one.rows_out, one.lag, f"{one.seconds:.1f}", one.error or one.note)
                for one in self.tables
            ),
        ]
