"""Cutting the power at the steps of something, and looking at what is left.

`record` does something and takes a snapshot before every I/O step, with what was promised at that moment; `examine`
lays snapshots out in states that the disk may legally be in and holds each against its promise.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import pytest

from holdfast.testing import FaultyDisk, PowerCut

Promise = TypeVar("Promise")


class Cut(NamedTuple, Generic[Promise]):
    """The moment before one step."""

    power: PowerCut
    promise: Promise
    op: str
    name: str
    number: int

    @property
    def ours(self) -> bool:
        """Whether the step is one of holdfast's own. Opening changes nothing that the next step does not show."""
        return "durable.db" not in self.name and self.op != "open"

    def __str__(self) -> str:
        return f"cut before step {self.number}: {self.op} {self.name}"


def record(
    root: Path, act: Callable[[FaultyDisk], object], promise: Callable[[], Promise] = lambda: None
) -> list[Cut[Promise]]:
    """Do something and take a snapshot before every step that changes the disk, and at the end."""
    cuts: list[Cut[Promise]] = []

    def take(number: int, op: str, name: str) -> None:
        if op != "read":
            promised = promise()  # before the snapshot: what is promised now must be in it
            cuts.append(Cut(disk.snapshot(), promised, op, name, number))

    with FaultyDisk(root) as disk:
        disk.on_step = take
        act(disk)
        disk.on_step = None
        take(disk.steps + 1, "end", "")
    return cuts


def examine(
    cuts: Iterable[Cut[Promise]], check: Callable[[Path, Promise], object], scratch: Path, states: int | None = None
) -> int:
    """Hold so many states of each cut against its promise, or one of each, in turns; returns how many that were."""
    looked = 0
    for turn, cut in enumerate(cuts):
        chosen = list(cut.power.states(limit=states or 4, seed=cut.number))
        for state in chosen if states else [chosen[turn % len(chosen)]]:
            copy = state.materialise(scratch / f"{cut.number}-{looked}")
            try:
                check(copy, cut.promise)
            except Exception as error:
                raise AssertionError(f"{cut}, {state.describe()}: {error!r}") from error
            shutil.rmtree(copy)
            looked += 1
    return looked


@contextmanager
def without_syncs():
    """The planted bug that every examination must notice: SQLite with synchronous=OFF."""
    from holdfast.journal.sqlite import reader_connections

    original = reader_connections.open_writer

    def weakened(path):
        connection = original(path)
        connection.execute("PRAGMA synchronous=OFF")
        return connection

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader_connections, "open_writer", weakened)
        yield
