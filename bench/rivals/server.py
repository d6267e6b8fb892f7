"""A server process of a rival: found, started, waited for, stopped by its pid.

Owns one child process and its directory. A server that does not answer within `READY_SECONDS` is an error
that carries the end of its log; one that does not leave within `STOP_SECONDS` is killed. The child stays in
the process group of the bench, so that whoever kills the group leaves nothing behind.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from signal import SIGTERM, Signals
from typing import TypeVar

READY_SECONDS = 15.0
STOP_SECONDS = 15.0
POLL_SECONDS = 0.02
SOCKET_PATH_MAX = 100  # the kernel's limit is 107 bytes

T = TypeVar("T")


class Absent(Exception):
    """The rival is not installed here. The bench goes on without it."""


class Unfair(Exception):
    """The rival runs with settings that would not survive a power loss. Nothing is measured."""


class Server:
    """One child process that writes its log into its directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, command: Sequence[str | Path], user: int | None = None, group: int | None = None) -> None:
        """Start `command`, as another user where one is given (only root may)."""
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                user=user,
                group=group,
                extra_groups=None if user is None else [],
            )

    def ready(self, probe: Callable[[], T], not_yet: type[Exception] | tuple[type[Exception], ...]) -> T:
        """The first answer of `probe`, which raises `not_yet` until the server is up."""
        give_up = time.perf_counter() + READY_SECONDS
        while True:
            try:
                return probe()
            except not_yet as reason:
                if self.process is None or self.process.poll() is not None:
                    raise RuntimeError(f"the server ended at once; log={self._log_end()!r}") from reason
                if time.perf_counter() > give_up:
                    raise TimeoutError(f"the server does not answer; log={self._log_end()!r}") from reason
            time.sleep(POLL_SECONDS)

    def stop(self, how: Signals = SIGTERM) -> None:
        """Ask the process to leave, kill it when it stays, remove the directory."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(how)
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(STOP_SECONDS)
        self.process = None
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def _log(self) -> Path:
        return self.directory / "server.log"

    def _log_end(self) -> str:
        return self._log.read_text(errors="replace")[-600:]


def socket_path(path: Path) -> Path:
    """`path`, refused when the kernel could not bind a socket there."""
    if len(str(path).encode()) > SOCKET_PATH_MAX:
        raise RuntimeError(f"too long for a socket, name a shorter --directory; bytes_max={SOCKET_PATH_MAX}")
    return path
