"""A process at work that tells each acknowledgement in a line, and is ended with kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from threading import Thread

PATIENCE = 40.0


class Victim:
    """`python -m module …`, which says "ready" and then a line for whatever it was acknowledged for.

    Whole lines are in `lines`, those that begin with "failed" in `failures`; a line that the kill cut short is dropped.
    """

    def __init__(self, module: str, *arguments: object, env: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(env or {})},
        )
        self.lines: list[str] = []
        self.failures: list[str] = []
        self._kinds: Counter[str] = Counter()
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        self._reader = Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith(b"\n"):
                text = line.decode().rstrip("\n")
                (self.failures if text.startswith("failed") else self.lines).append(text)
                self._kinds[text.partition(" ")[0]] += 1

    def until(self, more: int, kind: str | None = None) -> None:
        """Wait for so many further lines, or such as begin with this word."""
        self.until_printed(self._count(kind) + more, kind)

    def until_printed(self, wanted: int, kind: str | None = None) -> None:
        """Wait until it has printed so many lines since it began."""
        deadline = time.monotonic() + PATIENCE
        while self._count(kind) < wanted:
            assert not self.failures, self.failures
            assert time.monotonic() < deadline, "nothing is acknowledged any more"
            time.sleep(0.005)

    def _count(self, kind: str | None) -> int:
        return len(self.lines) if kind is None else self._kinds[kind]

    def kill(self) -> list[str]:
        """Kill it; returns all that it printed."""
        self._process.send_signal(signal.SIGKILL)
        code = self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        assert code == -signal.SIGKILL, "it ended by itself"
        assert not self.failures, self.failures
        return self.lines


def kill_after(count: int, module: str, *arguments: object) -> list[str]:
    """Let it work until it has printed so many lines, whatever the machine's pace, and a moment longer."""
    victim = Victim(module, *arguments)
    try:
        victim.until_printed(count)  # not `until`: it may have printed some already, and has no more than it has
    finally:
        lines = victim.kill()
    return lines
