"""Processes that share a log, for tests: started, killed, and asked what was acknowledged."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import holdfast
from tests.sharing.member import SETTINGS

ENVIRON = {**os.environ, "HOLDFAST_SEGMENTS__SEAL_ON_CLOSE": "false", "PYTHONWARNINGS": "error"}


class Member:
    """One process, and what it has acknowledged so far."""

    def __init__(self, directory: Path, name: str, tasks: int = 4) -> None:
        self.name = name
        self.lines: list[str] = []
        self._more = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.sharing.member", str(directory), name, str(tasks)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRON,
        )
        self._readers = [threading.Thread(target=self._read, daemon=True)]
        self.errors = ""
        self._readers.append(threading.Thread(target=self._read_errors, daemon=True))
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):  # a line that the kill cut off was never said
                with self._more:
                    self.lines.append(line.strip())
                    self._more.notify_all()
        with self._more:
            self._more.notify_all()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors = self.process.stderr.read()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def acknowledged(self) -> list[str]:
        """What was acknowledged, in the order in which that was said."""
        return [line.split()[0] for line in self.lines if line != "ready"]

    def wait_for(self, lines: int, timeout: float = 60) -> None:
        """Wait until so many lines were written since; raises if the process ends or hangs instead."""
        with self._more:
            wanted = len(self.lines) + lines
            done = self._more.wait_for(lambda: len(self.lines) >= wanted or self._is_over(), timeout)
        assert done, f"{self.name} hangs: {len(self.lines)} of {wanted} lines"
        assert len(self.lines) >= wanted, f"{self.name} ended: {self.errors[-3000:]}"

    def _is_over(self) -> bool:
        return not self._readers[0].is_alive() or self.process.poll() is not None

    def kill(self) -> None:
        self.process.kill()
        self.join()

    def stop(self, timeout: float = 60) -> None:
        """Let it end by itself."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        code = self.process.wait(timeout)
        self.join()
        assert code == 0, f"{self.name} ended with {code}: {self.errors[-3000:]}"

    def join(self) -> None:
        self.process.wait(60)
        for reader in self._readers:
            reader.join(60)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            with suppress(OSError):
                stream.close()  # type: ignore[union-attr]


@contextmanager
def several(directory: Path, count: int, tasks: int = 4) -> Iterator[list[Member]]:
    """So many members that have begun to append; those that are left at the end are killed."""
    members = [Member(directory, f"m{number}", tasks) for number in range(count)]
    try:
        for member in members:
            member.wait_for(1)
        yield members
    finally:
        for member in members:
            member.kill()


def owner_of(directory: Path) -> int:
    """The process that has the lock, or had it last."""
    return int((directory / "LOCK").read_text().split()[0])


def check_log(directory: Path, members: list[Member]) -> int:
    """Every acknowledged record is there once, at its offset, and each producer's are in order; returns how many."""
    with holdfast.open(directory, settings=SETTINGS) as log:
        stored = [record.payload.decode() for record in log.topic("events").read()]
    assert len(set(stored)) == len(stored), "something was written twice"
    places = {payload: offset for offset, payload in enumerate(stored)}
    for member in members:
        for line in member.lines:
            if line != "ready":
                payload, offset = line.split()
                assert places.get(payload) == int(offset), f"acknowledged and not there: {line}"
    numbers: dict[str, int] = {}
    for payload in stored:
        producer, number = payload.rsplit(":", 1)
        assert int(number) == numbers.get(producer, -1) + 1, f"out of order, or with a hole: {payload}"
        numbers[producer] = int(number)
    return len(stored)
