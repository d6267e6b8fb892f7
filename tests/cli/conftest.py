"""A command line in this process (`run`), one in a process of its own (`spawn`), and logs to point them at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from click.testing import CliRunner, Result

import holdfast
from holdfast import Keyring
from holdfast.cli.program import program

Run = Callable[..., Result]
Spawn = Callable[..., "subprocess.Popen[bytes]"]
Owner = subprocess.Popen[bytes]

MAIN = "from holdfast.cli import main; main()"
PATIENCE = 30


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings from outside; stdout is buffered, as it is for a user."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")] + ["NO_COLOR", "PYTHONUNBUFFERED"]:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run() -> Run:
    """Run a verb in this process."""

    def invoke(*arguments: object, stdin: bytes | None = None, **env: str) -> Result:
        return CliRunner(env=env).invoke(program, [str(argument) for argument in arguments], input=stdin)

    return invoke


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Run a verb in a process of its own; it is gone after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: object, code: str = MAIN, **options: Any) -> subprocess.Popen[bytes]:
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | options
        process = subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], **streams)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass


@pytest.fixture
def owner(spawn: Spawn, log: Path) -> Owner:
    """A process that owns the log and has committed one record to `orders`."""
    process = spawn("append", log, "orders", "--lines")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"from the owner\n")
    process.stdin.flush()
    assert process.stdout.readline()
    return process


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with ten records in topic `orders`, two per entry, and an empty topic `idle` of two partitions."""
    path = tmp_path / "log"
    with holdfast.open(path) as opened:
        topic = opened.topic("orders")
        for number in range(0, 10, 2):
            topic.append_batch([b"payload-%d" % number, b"payload-%d" % (number + 1)])
        opened.topic("idle", partitions=2)
    return path


@pytest.fixture
def secret_log(tmp_path: Path, keyring: Keyring, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An encrypted log with one record; its keyring is in the file `keys`."""
    keyring.save(tmp_path / "keys")
    path = tmp_path / "secret"
    with holdfast.open(path, keyring=keyring) as opened:
        opened.topic("orders").append(b"the-secret-payload", key=b"the-secret-key", headers={"h": b"the-secret-header"})
    return path


def drain(terminal: int) -> bytes:
    """All that is written to a terminal until its other end is gone."""
    shown = b""
    while True:
        try:
            shown += os.read(terminal, 65536)
        except OSError:
            os.close(terminal)
            return shown


def tamper(path: Path, sql: str) -> None:
    """Change a log's database behind its back."""
    connection = apsw.Connection(str(path / "durable.db"))
    connection.execute(sql)
    connection.close()


def objects(text: str) -> list[dict[str, Any]]:
    """Lines of JSON."""
    return [json.loads(line) for line in text.splitlines()]
