"""A real `holdfast serve` in a process of its own, and clients with real sockets."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

MAIN = "from holdfast.cli import main; main()"
PATIENCE = 60
QUIET = {"HOLDFAST_SEGMENTS__SEAL_ON_CLOSE": "false", "HOLDFAST_CONFIG": os.devnull}


class Reply(NamedTuple):
    """An answer, read whole."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def kind(self) -> str:
        return str(self.json["kind"])


class Server:
    """A server, and the simplest client of it."""

    def __init__(self, directory: Path, *options: str, **settings: object) -> None:
        self.directory = directory
        names = {f"HOLDFAST_SERVER__{name.upper()}": str(value) for name, value in settings.items()}
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        extra = {name: str(value) for name, value in names.items() if not name.endswith("__ENV")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", MAIN, "serve", str(directory), "--listen", "127.0.0.1:0", "--json", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**clean, **QUIET, **extra},
            bufsize=0,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr is not None
            raise AssertionError(self.process.stderr.read().decode())
        self.started = json.loads(line)
        self.url = self.started["url"]
        self.port = int(self.url.rpartition(":")[2])
        self.token: str | None = None

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | str | dict[str, Any] | list[Any] | None = None,
        headers: dict[str, str] | None = None,
        *,
        token: str | None = None,
        timeout: float = PATIENCE,
    ) -> Reply:
        sent = dict(headers or {})
        lower = {name.lower() for name in sent}
        if body is not None and "content-type" not in lower:
            sent["content-type"] = "application/json"
        if not isinstance(body, bytes | str | None):
            body = json.dumps(body)
        known = token or self.token
        if known is not None and "authorization" not in lower:
            sent["authorization"] = f"Bearer {known}"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body.encode() if isinstance(body, str) else body, sent)
            answer = connection.getresponse()
            return Reply(answer.status, {n.lower(): v for n, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **options: Any) -> Reply:
        return self.ask("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> Reply:
        return self.ask("POST", path, {} if body is None else body, **options)

    def append(self, topic: str, *payloads: str, **options: Any) -> Reply:
        """Append payloads as lines; it must be taken."""
        lines = "".join(json.dumps({"payload": one}) + "\n" for one in payloads)
        reply = self.ask(
            "POST", f"/v1/topics/{topic}/records", lines, {"content-type": "application/x-ndjson"}, **options
        )
        assert reply.status == 200, reply
        return reply

    def payloads(self, topic: str) -> list[str]:
        return [record["payload"] for record in self.get(f"/v1/topics/{topic}/records?limit=100000").json["records"]]

    def socket(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """End it by a signal; its exit code, and all that it said."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        _, said = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, said.decode()


Serve = Callable[..., Server]


@contextlib.contextmanager
def serving() -> Iterator[Serve]:
    """A way to start servers; none is left at the end."""
    started: list[Server] = []

    def start(directory: Path, *options: str, **settings: object) -> Server:
        started.append(Server(directory, *options, **settings))
        return started[-1]

    yield start
    for server in started:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate(timeout=PATIENCE)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Servers of one test."""
    with serving() as start:
        yield start


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the tests of a file; without tokens, in a hurry with heartbeats and members."""
    with serving() as start:
        directory = tmp_path_factory.mktemp("served") / "log"
        yield start(directory, heartbeat_ms=200, member_timeout_ms=2000, body_bytes_max=1_000_000)


def events(stream: Any) -> Iterator[tuple[str, str, str]]:
    """Server-sent events: kind, id, data; a comment has the kind ':'."""
    fields: dict[str, str] = {}
    for raw in stream:
        line = raw.decode().rstrip("\n")
        if line.startswith(":"):
            yield ":", "", ""
        elif line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield fields.get("event", ""), fields.get("id", ""), fields.get("data", "")
            fields = {}
