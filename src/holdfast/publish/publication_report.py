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
    """The table's version now."""
    commits: int = 0
    """How many of its versions are new."""
    added: int = 0
    """Files that the table shows now and did not before."""
    removed: int = 0
    """Files that it showed before and does not now."""
    files: int = 0
    """Files that it shows now."""
    rows: int = 0
    """Rows that it shows now."""
    bytes: int = 0
    """Of those files."""
    settled: dict[str, int] = {}
    """The offset up to which the table shows each partition."""
    reason: str | None = None
    """Why the topic cannot be published or the table continued."""
    hint: str | None = None
    """What to do about it."""
