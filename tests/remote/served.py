"""A real server in a process of its own, which can be killed and started again at the same address."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

import holdfast
from holdfast import Log


class ServedLog:
    """`holdfast serve` for one directory."""

    def __init__(self, directory: Path, **settings: object) -> None:
        self.directory = directory
        self._environment = {
            **os.environ,
            "HOLDFAST_SEGMENTS__SEAL_ON_CLOSE": "false",
            **{f"HOLDFAST_{name.upper()}": str(value) for name, value in settings.items()},
        }
        self._port = 0
        self.url = ""
        self.start()

    @property
    def upstream(self) -> tuple[str, int]:
        return "127.0.0.1", self._port

    def start(self) -> None:
        command = [
            sys.executable, "-m", "holdfast", "serve", str(self.directory), "--listen", f"127.0.0.1:{self._port}",
            "--json",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the server did not start"
        self.url = json.loads(line)["url"]
        self._port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        """No warning, no goodbye."""
        self._process.send_signal(signal.SIGKILL)
        self._end()

    def pause(self) -> None:
        """It is there, and does not answer."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def rise(self) -> None:
        """Be there and answer, whatever was done to it."""
        if self._process.poll() is None:
            self.go_on()
        else:
            self.start()

    def restart(self) -> None:
        self.kill()
        self.start()

    def stop(self) -> None:
        if self._process.poll() is None:
            self.go_on()
            self._process.terminate()
        self._end()

    def _end(self) -> None:
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def connect(self, url: str | None = None, **options: object) -> Log:
        return holdfast.connect(url or self.url, **options)  # type: ignore[arg-type]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
