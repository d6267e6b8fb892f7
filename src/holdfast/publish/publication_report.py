"""What became of publishing a topic, as a value: for those who only show it, and load nothing for that."""

from __future__ import annotations

from typing import Literal

import msgspec

State = Literal["published", "unchanged", "refused", "foreign", "damaged"]


class PublicationReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one topic."""

    topic: str
    state: State
    """`published` if something was committed, `unchanged` if nothing was new; else why nothing can be."""
    table: str = ""
    """Where other engines find it."""
    version: int = -1
    commits: int = 0
    added: int = 0
    """Files that the table shows now and did not before."""
    removed: int = 0
    files: int = 0
    rows: int = 0
    bytes: int = 0
    settled: dict[str, int] = {}
    """The offset up to which the table shows each partition."""
    reason: str | None = None
    hint: str | None = None
