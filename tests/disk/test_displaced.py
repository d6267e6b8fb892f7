"""An owner that was displaced while it lives is fenced, and does not stand in its successor's way.

Both are processes of their own, as they would be after the lock file was removed or a directory was shared by a file
system that does not lock. The displaced one stays alive, with its log open, for as long as its successor works.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.disk

OWNER = """
import sys
import holdfast

log = holdfast.open(sys.argv[1], settings=holdfast.Settings())
topic = log.topic("t")
print("open", flush=True)
for line in sys.stdin:
    try:
        print("stored", topic.append(line.strip().encode()).offset, flush=True)
    except holdfast.HoldfastError as error:
        print("refused", type(error).__name__, getattr(error, "reason", ""), error.message, flush=True)
try:
    log.close()
except holdfast.Closed as error:
    print("closed", error.reason, flush=True)
else:
    print("closed", "clean", flush=True)
"""


class Owner:
    """A process that owns a log and appends on request."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.line() == "open"

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def append(self, payload: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(payload + "\n")
        self._process.stdin.flush()
        return self.line()

    def end(self) -> str:
        out, _ = self._process.communicate(timeout=60)
        return out.strip()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def owner(path: Path) -> Iterator[Owner]:
    process = Owner(path)
    try:
        yield process
    finally:
        process.kill()


def test_a_displaced_owner_lets_its_successor_work(tmp_path: Path) -> None:
    """The old owner is refused and stays alive; the new one goes on appending, and so does a third after it."""
    path = tmp_path / "log"
    with owner(path) as old:
        assert old.append("mine") == "stored 0"
        (path / "LOCK").unlink()
        with owner(path) as new:
            assert old.append("stale").startswith("refused Closed fenced")
            assert [new.append(payload) for payload in ("a", "b")] == ["stored 1", "stored 2"]
            assert old.append("stale").startswith("refused Closed fenced")
            assert new.append("c") == "stored 3"
            assert new.end() == "closed clean"
        with owner(path) as third:
            assert third.append("d") == "stored 4"
            assert old.end() == "closed fenced"
            assert third.append("e") == "stored 5"
            assert third.end() == "closed clean"
