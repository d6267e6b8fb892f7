"""kill -9 of a compactor at each step: readers see one side or the other, and the next one finishes and cleans up."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast import Settings
from holdfast.root import shared_stores
from tests.crash.compact_victim import NEVER, work
from tests.sampling import Some

pytestmark = [pytest.mark.crash, pytest.mark.store]

ROWS = [b"%d" % number for number in range(10)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root of many segments, with a compaction behind it: files of both kinds are replaced."""
    place = tmp_path_factory.mktemp("compact")
    settings = Settings.from_mapping({"store": {"url": str(place / "root")}, "disk": {"free_bytes_min": 0}})
    with holdfast.open(place / "log", settings=settings) as log:
        topic = log.topic("orders", partitions=2)
        for at in range(0, 10, 2):
            for partition in range(2):
                topic.append_batch(ROWS[at : at + 2], partition=partition)
            log.seal()
            if at == 4:
                log.ship(30)
                holdfast.compact(str(place / "root"))
    return place / "root"


def rows(root: Path) -> list[bytes]:
    shared_stores._opened.clear()
    return holdfast.read(str(root), "orders", verify="full").to_arrow()["payload"].to_pylist()


def left(root: Path) -> tuple[int, int]:
    """Segment files and intents."""
    return tuple(len(list(root.glob(f"topics/orders/*/{folder}/[0-9]*"))) for folder in ("segments", "_intents"))


def test_killed_at_each_step(made: Path, tmp_path: Path, some: Some[int]):
    shutil.copytree(made, tmp_path / "whole")
    changes = work(str(tmp_path / "whole"), NEVER)
    assert [change for change in changes if "_rewrites/" in change] != []
    assert rows(tmp_path / "whole") == [*ROWS, *ROWS]
    for step in some(range(2 * len(changes)), 5):
        root = tmp_path / f"killed-{step}"
        shutil.copytree(made, root)
        command = [sys.executable, "-m", "tests.crash.compact_victim", str(root), str(step)]
        died = subprocess.run(command, check=False, capture_output=True)
        assert died.returncode == -signal.SIGKILL, died.stderr
        assert rows(root) == [*ROWS, *ROWS], f"killed at {step} of {changes}"
        holdfast.compact(str(root), delete_after_ms=0)
        assert rows(root) == [*ROWS, *ROWS], f"killed at {step} of {changes}"
        holdfast.compact(str(root), delete_after_ms=0)
        assert left(root) == (2, 0), f"killed at {step} of {changes}"
