"""What a table says about the run that wrote it: how far its inputs were read, and what came of it.

It stands in the commit itself (`commitInfo`), so rows and positions become visible together or not at all. The next run
goes on from there. Values only; docs/formats/0009-tables.md.
"""

from __future__ import annotations

from typing import Literal

import msgspec

FORMAT = 1
Reason = Literal["run", "backfill", "rewrite"]
"""Why a commit was made: new rows, a range computed again, or the same rows in other files."""


class Position(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far one input was read."""

    source: str
    """The id of the log, or of the table: another one of the same name is not gone on with."""
    marks: dict[str, int] = {}
    """Of a topic, by partition: the offset behind the last record that was read."""
    begins: dict[str, int] = {}
    """Of a topic, by partition: the first offset that was ever read; retention may have removed what was below."""
    version: int = -1
    """Of a table: the version that was read; -1 for a topic."""
    run: int = 0
    """Of a table: its newest run that was read. Rows of an append table keep the number of the run that first wrote
    them, so what is new is what later runs wrote, whatever was computed again meanwhile.
    """


class TableRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one table."""

    format: int = FORMAT
    pipeline: str
    table: str
    kind: str
    """append, keyed, windowed or snapshot."""
    run: int
    """1, 2, 3 … without a hole, one commit each; also the version of the commit's `txn`."""
    reason: Reason = "run"
    reads: dict[str, Position]
    """By input: how far the table has read after this run. A backfill does not move it."""
    rows_in: int
    rows_out: int
    started_ms: int
    code: str = ""
    """A digest of the function's source: a note for people; nothing depends on it."""
    tombstones: dict[str, str] = {}
    """By bucket: the file with the keys that were deleted there, so that what comes late does not bring them back."""
