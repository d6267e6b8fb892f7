"""A command line in this process (`run`), one in a process of its own (`spawn`), and logs to point them at."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import holdfast
from holdfast import Keyring, Record, Settings
from holdfast.cli.program import program

Run = Callable[..., Result]
Spawn = Callable[..., "subprocess.Popen[bytes]"]
Owner = subprocess.Popen[bytes]

MAIN = "from holdfast.cli import main; main()"
PATIENCE = 30


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings from outside; stdout is buffered, as it is for a user. Logs of these tests keep their tails."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")] + ["NO_COLOR", "PYTHONUNBUFFERED"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOLDFAST_SEGMENTS__SEAL_ON_CLOSE", "false")


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


TYPED = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("s", pa.string())])


@pytest.fixture(scope="session")
def sealed_original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sealed") / "log"
    with holdfast.open(path, settings=Settings.from_mapping({"segments": {"seal_on_close": False}})) as opened:
        orders = opened.topic("orders")
        for start in (0, 10, 20):
            orders.append_batch([Record(b"payload-%d" % n, time=n * 10**6) for n in range(start, start + 10)])
            opened.seal("orders")
        orders.append_batch([Record(b"payload-%d" % n, time=n * 10**6) for n in range(30, 35)])
        rows = opened.topic("rows", schema=TYPED)
        rows.append([{"a": 0, "s": "zero"}, {"a": 1}], time=0)
        opened.seal("rows")
        rows.append([{"a": 2, "s": "two"}], time=2 * 10**6)
        opened.topic("idle", partitions=2)
    return path


@pytest.fixture
def sealed_log(tmp_path: Path, sealed_original: Path) -> Path:
    """A log with three segments and a tail of five in `orders`, one segment and a tail of one row in `rows` (typed),
    and an empty topic `idle` of two partitions. The time of record or row n is n seconds after 1970.
    """
    return Path(shutil.copytree(sealed_original, tmp_path / "sealed"))


def segment_files(path: Path, topic: str = "orders", partition: int = 0) -> list[Path]:
    """The segment files of a partition, oldest first."""
    return sorted((path / "segments" / "topics" / topic / str(partition) / "segments").glob("*.parquet"))


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
