"""What a compaction did, or would do."""

from __future__ import annotations

import msgspec


class PartitionCompaction(msgspec.Struct, frozen=True, kw_only=True):
    """One partition: its files in effect before and after, and what was rewritten. Retired ones do not count."""

    topic: str
    partition: int
    files_before: int
    files_after: int
    bytes_before: int
    """Bytes of those files."""
    bytes_after: int
    """In a dry run: as many as before; how well rows compress together is known when they are written."""
    runs: int
    """Files that were made."""
    rewritten_files: int
    """Files that they took the place of."""
    rewritten_rows: int
    """Rows in them."""
    removed_files: int
    """Files of earlier compactions that nobody needs any more."""
    removed_bytes: int
    """Their bytes."""
    skipped: dict[str, int]
    """Files that could have been joined and were not, by reason."""
    problems: tuple[str, ...]
    """What is damaged: files that stay as they are until it is repaired."""


class CompactionReport(msgspec.Struct, frozen=True, kw_only=True):
    """All partitions of a compaction."""

    root: str
    """What was compacted."""
    log: str
    """The log's id."""
    dry_run: bool
    """Whether nothing was written."""
    target_bytes: int
    """How large files should become."""
    files_before: int
    """Files in effect before; what is retired does not count."""
    files_after: int
    """Files in effect now, or after such a compaction."""
    bytes_before: int
    """Bytes of those files."""
    bytes_after: int
    """In a dry run as many as before."""
    rewritten_files: int
    """Files that were joined."""
    rewritten_rows: int
    """Rows in them."""
    removed_files: int
    """Files of earlier compactions that nobody needs any more."""
    removed_bytes: int
    """Their bytes."""
    seconds: float
    """How long it took."""
    problems: tuple[str, ...]
    """What is damaged, in words: it stays as it is."""
    partitions: tuple[PartitionCompaction, ...]
    """The same for each partition."""
    speed_up: float | None = None
    """How many times as fast the rows are read as before; None if it was not measured."""


def report_of(
    root: str,
    log: str,
    partitions: list[PartitionCompaction],
    *,
    dry_run: bool,
    target_bytes: int,
    seconds: float,
    speed_up: float | None = None,
) -> CompactionReport:
    """The sums over all partitions."""
    names = (
        "files_before", "files_after", "bytes_before", "bytes_after", "rewritten_files", "rewritten_rows",
        "removed_files", "removed_bytes",
    )  # fmt: skip
    sums = {name: sum(getattr(one, name) for one in partitions) for name in names}
    return CompactionReport(
        root=root,
        log=log,
        dry_run=dry_run,
        target_bytes=target_bytes,
        seconds=round(seconds, 3),
        speed_up=speed_up,
        problems=tuple(problem for one in partitions for problem in one.problems),
        partitions=tuple(partitions),
        **sums,
    )
