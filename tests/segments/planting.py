"""Logs with segments for tests, and damage to plant in them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import Log, Topic
from holdfast.log.local_parts import parts_of
from holdfast.reconcile import reconcile_pass
from holdfast.reconcile.classify import Classification
from holdfast.store import layout

ROWS = 10
TEN = {"rows_max": ROWS, "seal_on_close": False}
"""Segments of ten records."""


def fill(log: Log, name: str, segments: int, *, partition: int = 0) -> Topic:
    """So many more sealed segments of ten records each."""
    topic = log.topic(name)
    for _ in range(segments):
        first = topic.marks()[partition].durable
        topic.append_batch([b"%d" % (first + i) for i in range(ROWS)], partition=partition, timeout=30)
        topic.wait_sealed(first + ROWS, 30, partition=partition)
    wait_published(log, name, partition)
    return topic


def wait_published(log: Log, name: str, partition: int) -> None:
    """Wait for the manifest object of the newest segment: it is written right after the seal."""
    if log._journal.shipping is not None:  # those of a log that is shipped are on its store
        return
    newest = log.topic(name).watermark(partition).index
    assert newest is not None
    path = log.path / "segments" / layout.manifest_key(name, partition, newest)
    deadline = time.monotonic() + 30
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.001)


def offsets(topic: Topic, partition: int = 0) -> list[int]:
    """What can be read, and reads as it was written."""
    got = list(topic.read(partition=partition))
    assert all(record.payload in (b"%d" % record.offset, b"x", b"next") for record in got)
    return [record.offset for record in got]


def folder(log: Log | Path, name: str, partition: int = 0) -> Path:
    """Where a partition's segment files are."""
    root = log if isinstance(log, Path) else log.path
    return root / "segments" / layout.segments_folder(name, partition)


def files(log: Log | Path, name: str, partition: int = 0) -> list[Path]:
    """The finished segment files of a partition, oldest first."""
    found = folder(log, name, partition)
    return sorted(path for path in found.glob("*.parquet") if layout.parse_segment_name(path.name))


def states(log: Log, name: str, partition: int = 0) -> list[int]:
    """The states of a partition's segments, as the manifest has them."""
    part = log._journal.topics[name][partition]
    return [row.state for row in parts_of(log).context.manifest.page(part, 0, part.sealed.segments)]


def edit(path: Path, statement: str, *values: object) -> None:
    """Change the database of a log that nobody has open, behind its back."""
    connection = apsw.Connection(str(path / "durable.db"))
    try:
        connection.execute(statement, values)
        assert connection.changes() > 0
    finally:
        connection.close()


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until something is so that nobody announces."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


class unreadable:
    """A folder that cannot be listed, not even by root, while the block lasts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._aside = path.with_name("aside")

    def __enter__(self) -> None:
        self._path.rename(self._aside)
        self._path.symlink_to(self._path)

    def __exit__(self, *_: object) -> None:
        self._path.unlink()
        self._aside.rename(self._path)


def after_judging(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do something once between the judgement of a partition and what follows from it."""
    judge = reconcile_pass.classify
    pending = [act]

    def judge_then_act(*args: Any, **options: Any) -> Classification:
        judged = judge(*args, **options)
        if judged.findings and pending:
            pending.pop()()
        return judged

    monkeypatch.setattr(reconcile_pass, "classify", judge_then_act)
