"""Cutting the power at every step of something, and looking at what is left.

`record` takes a snapshot before every I/O step; `examine` lays each out in states that the disk may legally be in and
holds them against what was promised at that moment. `POINTS` names the moments of a life that matter.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from holdfast.testing import FaultyDisk, PowerCut
from tests.crash.segment_workload import Notes, Promise, check, live

_DATABASE = "log/durable.db"
_FOLDER = r"log/segments/topics/(raw|typed)/[01]/segments"
_NUMBER = r"\d{20}"

POINTS = {
    "the folder of a partition is made": ("mkdir", _FOLDER),
    "its name is synced": ("sync", r"log/segments/topics/(raw|typed)/[01]"),
    "a segment is begun": ("open", rf"{_FOLDER}/{_NUMBER}-[0-9]+\.parquet\.tmp"),
    "it is written": ("write", rf"{_FOLDER}/{_NUMBER}-[0-9]+\.parquet\.tmp"),
    "its content is synced": ("sync", rf"{_FOLDER}/{_NUMBER}-[0-9]+\.parquet\.tmp"),
    "it gets its name": ("rename", rf"{_FOLDER}/{_NUMBER}-[0-9]+\.parquet\.tmp"),
    "the name is synced, or a removal": ("sync", _FOLDER),
    "a commit is written": ("write", r"log/durable\.db-wal"),
    "a commit is synced": ("sync", r"log/durable\.db-wal"),
    "the write-ahead log is folded in": ("sync", r"log/durable\.db"),
    "an expired segment is removed": ("delete", rf"{_FOLDER}/{_NUMBER}-[0-9a-f]{{16}}\.parquet"),
    "garbage is removed": ("delete", rf"{_FOLDER}/{_NUMBER}\.parquet\.tmp"),
    "the quarantine is made": ("mkdir", "log/quarantine"),
    "a stranger goes there": ("rename", "log/segments/stranger"),
    "its arrival is synced": ("sync", "log/quarantine"),
    "its departure is synced": ("sync", "log/segments"),
    "a misplaced segment is put back": ("rename", "log/segments/misplaced"),
}


class Cut(NamedTuple):
    """The moment before one step."""

    power: PowerCut
    promise: Promise
    op: str
    name: str
    number: int

    @property
    def ours(self) -> bool:
        """Whether the step is one of holdfast's own. Opening changes nothing that the next step does not show."""
        return not self.name.startswith(_DATABASE) and self.op != "open"

    def __str__(self) -> str:
        return f"cut before step {self.number}: {self.op} {self.name}"


def record(root: Path, notes: Notes, act: Callable[[Path, Notes], None] = live) -> list[Cut]:
    """Do something and take a snapshot before every step that changes the disk, and at the end."""
    cuts: list[Cut] = []

    def take(number: int, op: str, name: str) -> None:
        if op != "read":
            promise = notes.promise()  # before the snapshot: what is promised now must be in it
            cuts.append(Cut(disk.snapshot(), promise, op, name, number))

    with FaultyDisk(root) as disk:
        notes.disk = disk
        disk.on_step = take
        act(root / "log", notes)
        disk.on_step = None
        cuts.append(Cut(disk.snapshot(), notes.promise(), "end", "", disk.steps + 1))
    return cuts


def examine(
    cuts: Iterable[Cut],
    notes: Notes,
    scratch: Path,
    *,
    states: int | None = None,
    repair: Callable[[Path], object] | None = None,
) -> int:
    """Hold states of each cut against its promise: so many of each, or one of each in turns, repaired first."""
    looked = 0
    for turn, cut in enumerate(cuts):
        chosen = list(cut.power.states(limit=states or 4, seed=cut.number))
        if states is None:
            chosen = [chosen[turn % len(chosen)]]
        for state in chosen:
            copy = state.materialise(scratch / f"{cut.number}-{looked}")
            try:
                if repair is not None:
                    repair(copy / "log")
                check(copy / "log", cut.promise, notes, go_on=states is not None or looked % 4 == 0)
            except Exception as error:
                raise AssertionError(f"{cut}, {state.describe()}: {error!r}") from error
            shutil.rmtree(copy)
            looked += 1
    return looked


def sample(cuts: list[Cut]) -> list[Cut]:
    """All steps of our own, and some of the database, which has tests of its own."""
    return [cut for turn, cut in enumerate(cuts) if cut.ours or turn % 10 == 0]


def at(cuts: list[Cut], point: str) -> list[Cut]:
    """The cuts at one of the named moments."""
    op, pattern = POINTS[point]
    return [cut for cut in cuts if cut.op == op and re.fullmatch(pattern, cut.name)]
