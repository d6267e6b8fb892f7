"""A server as users start it: a process with workers, whose output can be waited for, and which ends with its test."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from pathlib import Path
from threading import Condition, Thread
from types import TracebackType
from typing import Self

PATIENCE = 90.0
"""Seconds for whatever has to happen; far more than it takes."""
_RUNNING = re.compile(r"(?:running on|Listening at:) http://127\.0\.0\.1:(\d+)")


class Server:
    """A process and its children."""

    def __init__(self, command: list[str], folder: Path, **variables: str) -> None:
        self._lines: list[str] = []
        self._changed = Condition()
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(folder, **variables),
            text=True,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._reader = Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    @property
    def output(self) -> str:
        """All that it and its workers have said so far."""
        with self._changed:
            return "".join(self._lines)

    def wait_for(self, pattern: str | re.Pattern[str], count: int = 1) -> list[str]:
        """Wait until so many lines match; what the pattern found in them."""
        found: list[str] = []

        def enough() -> bool:
            found[:] = re.findall(pattern, "".join(self._lines))
            return len(found) >= count or self.process.poll() is not None

        with self._changed:
            in_time = self._changed.wait_for(enough, PATIENCE)
        assert in_time, f"no {pattern!r}:\n{self.output}"
        assert len(found) >= count, f"it ended without {pattern!r}:\n{self.output}"
        return found

    def port(self) -> int:
        """Where it listens."""
        return int(self.wait_for(_RUNNING)[0])

    def send(self, number: signal.Signals) -> None:
        """To the process that was started, and not to its workers."""
        self.process.send_signal(number)

    def interrupt(self) -> None:
        """What Ctrl-C does: everybody in the foreground gets it."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Tell it to end, and wait until it and all of its workers have."""
        self.send(number)
        return self.wait()

    def wait(self) -> int:
        """Wait until it and all that can write to its output have ended; its status."""
        status = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert not self._reader.is_alive(), f"workers outlived it:\n{self.output}"
        return status

    def check_clean_end(self, data: Path) -> None:
        """Nobody failed, every process closed its log, and the last one left nobody to be listened to."""
        assert "Traceback" not in self.output, self.output
        assert "unclosed log" not in self.output, self.output
        assert not (data / "SOCKET").exists(), self.output

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        if error is not None:
            print(self.output)


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """Ours without what tests set for logs; a log that nobody closed is reported."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return {
        **plain,
        "PYTHONWARNINGS": "always::ResourceWarning",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": str(folder),
        **variables,
    }


def owner(data: Path) -> int:
    """The process that owns a log, or did last; 0 at the moment when the next one writes its name there."""
    words = (data / "LOCK").read_text().split()
    return int(words[0]) if words else 0


def free_port() -> int:
    """A port that nobody uses at the moment, for servers that cannot choose one."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def parent(process: int) -> int:
    """The process that started another one."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
