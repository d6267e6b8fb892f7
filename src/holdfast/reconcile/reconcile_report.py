"""What a pass of reconciliation reports: findings, repairs and counts."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.reconcile.classify import Finding, Where


class Repair(msgspec.Struct, frozen=True):
    """One thing that was repaired."""

    action: Literal["removed", "quarantined", "restored"]
    """What was done with the file."""
    path: str
    """Relative to the log's directory: where the file was, or (restored) where it is now; on the store, the key."""


class ReconcileReport(msgspec.Struct, frozen=True):
    """What a pass found. Without `complete` it is what was found so far."""

    findings: tuple[Finding, ...] = ()
    """What was found and is not repaired."""
    repairs: tuple[Repair, ...] = ()
    """What was repaired."""
    segments: int = 0
    """Segments compared."""
    files: int = 0
    """Files compared."""
    in_flight: int = 0
    """Segments and files on their way in or out; never damage."""
    evidence: int = 0
    """Commit batches of the store behind a loss that a restore accepted; nobody removes them."""
    bytes_expected: int = 0
    """Bytes of live segments, by the manifest."""
    bytes_actual: int = 0
    """Bytes of those of their files that are there."""
    deep: bool = False
    """Whether files were read."""
    mode: Literal["report", "fix"] = "report"
    fixes_skipped: str | None = None
    """Why nothing was repaired although that was asked for."""
    complete: bool = False
    """Whether the pass went through everything."""
    started_us: int = 0
    """Microseconds since 1970."""
    completed_us: int | None = None
    """The same; None until it is complete."""
    where: Where = "log"
    """What was compared with the manifest: the log's own files, or the objects of its store."""

    @property
    def clean(self) -> bool:
        """Whether nothing was found that is not repaired."""
        return not self.findings
