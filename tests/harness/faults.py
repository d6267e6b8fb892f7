"""Doing something again and again on a disk of which another step fails each time."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from holdfast import HoldfastError
from holdfast.testing import Fault, FaultyDisk
from holdfast.testing.fault import DiskStep, Kind

KINDS: list[Kind] = ["eio", "enospc", "short_write", "fsync"]

Outcome = TypeVar("Outcome")


class Failed(NamedTuple, Generic[Outcome]):
    """What is left after one fault."""

    nth: int
    root: Path
    outcome: Outcome
    disk: FaultyDisk

    def poorest(self) -> Path:
        """A copy in the poorest state that a power cut would leave now."""
        state = next(iter(self.disk.snapshot().states(limit=1)))
        return state.materialise(self.root.with_name(f"{self.root.name}-cut"))


def fail_at(
    scratch: Path,
    kind: Kind,
    steps: Iterable[int],
    act: Callable[[Path, FaultyDisk], Outcome],
    *,
    template: Path | None = None,
    sticky: bool = False,
) -> Iterator[Failed[Outcome]]:
    """Act on copies of a template with these steps failing, until there is no such step any more."""
    for nth in steps:
        root = scratch / f"{kind}-{nth}"
        root.mkdir() if template is None else shutil.copytree(template, root)
        with FaultyDisk(root, fail=Fault(nth, kind, sticky=sticky)) as disk:
            outcome = act(root, disk)
            disk.disarm()
            if not disk.fired:
                return
            yield Failed(nth, root, outcome, disk)
        for left in scratch.glob(f"{root.name}*"):
            shutil.rmtree(left)


def struck(disk: FaultyDisk, kind: Kind) -> list[DiskStep]:
    """The steps so far that a fault of this kind may strike: the n-th of them is meant by `nth`."""
    return [step for step in disk.log if Fault(1, kind).matches(step.op)]


def attempt(action: Callable[[], object]) -> HoldfastError | None:
    """Do something on a disk that may fail; only a typed error with a hint may come of it."""
    try:
        action()
    except HoldfastError as error:
        assert error.hint, f"an error without a hint: {error!r}"
        return error
    return None
