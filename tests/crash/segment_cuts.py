"""Cutting the power at every step of something, and looking at what is left.

`life` has the cuts of a life, `look` holds what they leave against what was promised (tests/harness/cuts.py has the
loops). `POINTS` names the moments of a life that matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path

from holdfast.testing import FaultyDisk
from tests.crash.segment_workload import Notes, Promise, check, live
from tests.harness.cuts import Cut, examine, record

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


def life(root: Path, notes: Notes, act: Callable[[Path, Notes], None] = live) -> list[Cut[Promise]]:
    """The cuts of a life, or of something else that is done with a log."""

    def begin(disk: FaultyDisk) -> None:
        notes.disk = disk
        act(root / "log", notes)

    return record(root, begin, notes.promise)


def look(
    cuts: Iterable[Cut[Promise]],
    notes: Notes,
    scratch: Path,
    states: int | None = None,
    repair: Callable[[Path], object] = lambda directory: None,
) -> int:
    """Hold states of each cut against its promise, repaired first; where it is one of each, one in four goes on."""
    turns = count()

    def one(copy: Path, promise: Promise) -> None:
        repair(copy / "log")
        check(copy / "log", promise, notes, go_on=states is not None or next(turns) % 4 == 0)

    return examine(cuts, one, scratch, states)


def sample(cuts: list[Cut[Promise]]) -> list[Cut[Promise]]:
    """All steps of our own, and some of the database, which has tests of its own."""
    return [cut for turn, cut in enumerate(cuts) if cut.ours or turn % 10 == 0]


def at(cuts: list[Cut[Promise]], point: str) -> list[Cut[Promise]]:
    """The cuts at one of the named moments."""
    op, pattern = POINTS[point]
    return [cut for cut in cuts if cut.op == op and re.fullmatch(pattern, cut.name)]
