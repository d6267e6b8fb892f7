"""Doing something again and again on a disk of which another step fails each time."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from holdfast import HoldfastError
from holdfast.testing import Fault, FaultyDisk
from holdfast.testing.fault import Kind

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
    is_armed: bool = True,
) -> Iterator[Failed[Outcome]]:
    """Act on copies of a template with these steps failing, until there is no such step any more."""
    for nth in steps:
        root = scratch / f"{kind}-{nth}"
        root.mkdir() if template is None else shutil.copytree(template, root)
        fault = Fault(nth, kind, sticky=sticky)
        with FaultyDisk(root, fail=fault if is_armed else None) as disk:
            outcome = act(root, disk)
            disk.disarm()
            if not disk.fired:
                return
            yield Failed(nth, root, outcome, disk)
        shutil.rmtree(root)


def attempt(action: Callable[[], object]) -> HoldfastError | None:
    """Do something on a disk that may fail; only a typed error with a hint may come of it."""
    try:
        action()
    except HoldfastError as error:
        assert error.hint, f"an error without a hint: {error!r}"
        return error
    return None
