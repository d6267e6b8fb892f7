"""Appends over HTTP, beside what bare Starlette does with the same bodies.

256 connections, so that neither server waits for the next request while a disk syncs. Each sends a body of lines of
JSON (200-byte payloads) and waits for the answer before its next one. One server is `holdfast serve`: it checks the
request, parses every line, and answers after the fsync. The other is Starlette with one route that reads the body and
answers a small JSON object: it checks nothing, keeps nothing, and parses the lines (`json.loads`) or does not; uvicorn
serves it, with the parser and the event loop that we have. Each runs in a process of its own; the client is one
process with bare sockets. Rounds are interleaved.

Beside the rates, the CPU time of each server per line is shown: on a machine with neighbours it tells more than a rate
that waits for a disk and a core.

Unfair to us: a body that nobody parses costs nothing, so long bodies compare a JSON parser and a disk with a copy in
memory. Unfair to both: on two cores the client takes one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import starlette
import uvicorn

from bench import measure
from bench.measure import Bar, Contestant, Options, Part, Sample

CONNECTIONS = 256
_RIVALS = {1: "bare Starlette", 20: "bare Starlette", 200: "bare that parses"}
"""With whom bodies of so many lines are compared: a long body that nobody looks at costs a copy in memory."""
LINES = tuple(_RIVALS)
_PAYLOAD = "x" * 200

_BARE = """
import json
import sys
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

async def append(request):
    content = await request.body()
    if "parse" in request.url.query:
        content = [json.loads(line) for line in content.splitlines()]
    return JSONResponse({"topic": request.path_params["topic"], "size": len(content)})

app = Starlette(routes=[Route("/v1/topics/{topic}/records", append, methods=["POST"])])
print("ready", flush=True)
uvicorn.run(app, port=int(sys.argv[1]), http="httptools", loop="asyncio", log_level="critical", access_log=False)
"""


def main(options: Options) -> None:
    """Run, print, keep."""
    with measure.workspace(options) as directory:
        part = appends(directory, options)
        print(measure.report(part), flush=True)
        facts = {**measure.machine(directory), "starlette": starlette.__version__, "uvicorn": uvicorn.__version__}
    measure.conclude("http", [part], facts)


def appends(directory: Path, options: Options) -> Part:
    """Both servers, with bodies of each length, in turn."""
    with _bare_server() as bare, _holdfast_server(directory / "log") as ours:
        contestants = [
            Contestant(f"{name}, {lines} lines", _sampler(f"{name}, {lines} lines", server, lines, query))
            for lines in LINES
            for name, server, query in (
                ("bare Starlette", bare, ""),
                ("bare that parses", bare, "?parse"),
                ("holdfast serve", ours, ""),
            )
        ]
        measured = measure.interleave(contestants, options)
    bars = [Bar(f"holdfast serve, {lines} lines", f"{_RIVALS[lines]}, {lines} lines", 0.5) for lines in LINES]
    references = [f"bare Starlette, {lines} lines" for lines in LINES]
    return Part(f"NDJSON appends over HTTP, {CONNECTIONS} connections", measured, bars=bars, references=references)


# --- servers ------------------------------------------------------------------------------------------------


class Server(NamedTuple):
    """A server in a process of its own."""

    pid: int
    port: int

    def cpu_seconds(self) -> float:
        """What it has used so far, its children that have ended included."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def _bare_server() -> Iterator[Server]:
    port = _free_port()
    with _process([sys.executable, "-c", _BARE, str(port)]) as process:
        _await_port(port)
        yield Server(process.pid, port)


@contextlib.contextmanager
def _holdfast_server(directory: Path) -> Iterator[Server]:
    command = [sys.executable, "-m", "holdfast", "serve", str(directory), "--listen", "127.0.0.1:0", "--json"]
    environment = {**os.environ, "HOLDFAST_CONFIG": os.devnull}
    with _process(command, environment) as process:
        assert process.stdout is not None
        yield Server(process.pid, int(json.loads(process.stdout.readline())["url"].rpartition(":")[2]))


@contextlib.contextmanager
def _process(command: list[str], environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)
        if process.stdout is not None:
            process.stdout.close()


def _free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _await_port(port: int) -> None:
    import socket

    deadline = time.perf_counter() + 30
    while time.perf_counter() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise RuntimeError(f"nobody listens; port={port}")


# --- the client ---------------------------------------------------------------------------------------------


def _sampler(name: str, server: Server, lines: int, query: str = "") -> Callable[[float], Sample]:
    port = server.port
    body = b"".join(json.dumps({"payload": _PAYLOAD, "n": n}).encode() + b"\n" for n in range(lines))
    head = (
        f"POST /v1/topics/bench/records{query} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n"
        f"content-type: application/x-ndjson\r\ncontent-length: {len(body)}\r\n\r\n"
    )

    def sample(seconds: float) -> Sample:
        return asyncio.run(_drive(name, server, head.encode() + body, lines, seconds))

    return sample


async def _drive(name: str, server: Server, request: bytes, lines: int, seconds: float) -> Sample:
    connections = [await _Connection.open(server.port) for _ in range(CONNECTIONS)]
    cpu = server.cpu_seconds()
    try:
        sample = await measure.drive_tasks(name, [lambda c=one: c.ask(request) for one in connections], seconds)
    finally:
        for one in connections:
            one.close()
    return Sample(name, sample.rows * lines, sample.seconds, sample.p50_ms, sample.p99_ms, server.cpu_seconds() - cpu)


class _Connection(asyncio.Protocol):
    """One request at a time, and no more parsing than it takes to find the end of an answer."""

    def __init__(self) -> None:
        self._waiting: asyncio.Future[None] | None = None
        self._buffer = b""

    @classmethod
    async def open(cls, port: int) -> _Connection:
        _, protocol = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def ask(self, request: bytes) -> asyncio.Future[None]:
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)  # type: ignore[attr-defined]
        return self._waiting

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        size = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        if len(rest) < size or self._waiting is None:
            return
        self._buffer = rest[size:]
        if head.startswith(b"HTTP/1.1 200"):
            self._waiting.set_result(None)
        else:
            self._waiting.set_exception(RuntimeError(head.split(b"\r\n", 1)[0].decode()))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(exc or ConnectionResetError())

    def close(self) -> None:
        self._transport.close()
