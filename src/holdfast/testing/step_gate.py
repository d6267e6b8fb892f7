"""The gate every I/O step passes: it counts, remembers, calls the hook and decides who fails.

The gate owns the border: only what lies below the root passes through it, everything else is none of its
business. It knows no content. A shim asks it before it touches anything, and receives the step
and, if the step is to fail, the fault. So a step that fails was counted and logged, and the hook ran
before it, with nothing of it done yet: the moment just before the n-th step is always there to look at.

The count is the order in which steps *began*. Steps may come from several threads; each gets its own
number, and the hook runs without the lock, so that it may block, take a snapshot, or arm a fault (which
then already meets this very step).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from holdfast.testing.fault import DiskStep, Fault, Op

Hook = Callable[[int, Op, str], None]


class StepGate:
    """Counts steps and picks those that fail."""

    def __init__(self, root: Path, fault: Fault | None) -> None:
        self.root = Path(os.path.realpath(root))
        self.log: list[DiskStep] = []
        self.failed: list[DiskStep] = []
        self.hook: Hook | None = None
        self._fault = fault
        self._matched = 0
        self._lock = threading.Lock()

    def name_of(self, path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> str | None:
        """The path's name below the root ("." for the root itself), or None when it lies elsewhere."""
        full = Path(os.path.realpath(os.fsdecode(path)))
        return full.relative_to(self.root).as_posix() if full.is_relative_to(self.root) else None

    def arm(self, fault: Fault | None) -> None:
        """Plan a failure, or none; counting towards its `nth` starts here."""
        with self._lock:
            self._fault, self._matched = fault, 0

    def enter(self, op: Op, name: str) -> tuple[DiskStep, Fault | None]:
        """Count one step; the fault comes back when this step is to fail."""
        with self._lock:
            step = DiskStep(len(self.log) + 1, op, name)
            self.log.append(step)
        if self.hook is not None:
            self.hook(*step)
        with self._lock:
            return step, self._verdict(step)

    def _verdict(self, step: DiskStep) -> Fault | None:
        fault = self._fault
        if fault is None or not fault.matches(step.op):
            return None
        self._matched += 1
        if self._matched == fault.nth or (fault.sticky and self._matched > fault.nth):
            self.failed.append(step)
            return fault
        return None
