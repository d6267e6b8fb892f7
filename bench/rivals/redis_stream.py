"""Redis: XADD to one stream with `appendonly yes` and `appendfsync always`.

Measured: redis-py with asyncio, one connection per producer over a Unix socket (`run`); beside it threads,
slower on a quiet machine and faster on a busy one, and redis-benchmark, where it is installed, with the same
command. Redis syncs once per turn of its event loop, which is a group commit over the connections that were
ready; in this contest its Python client is the limit, not the server, so read the bracketed line before
drawing conclusions.

In Redis's favour: snapshots are off (`save ""`). Both settings are asked for by CONFIG GET and must hold.
Both programs are taken from the PATH, as distributions install them (Debian: redis-server, redis-tools). There is no
wheel to rely on: those that bring a server are years old and leave redis-benchmark out. Without a `redis-server`, Redis
is absent; without redis-benchmark, it is measured from Python only.
"""

from __future__ import annotations

import asyncio
import csv
import importlib.util
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path

import redis
from redis.asyncio import Redis

from bench.measure import GRACE_SECONDS, PAYLOAD, AppendTask, Contestant, Sample, drive_tasks, drive_threads
from bench.rivals.server import Absent, Server, Unfair, socket_path

DURABLE = {"appendonly": "yes", "appendfsync": "always"}
XADD = ("XADD", "log", "*", "payload")
BENCHMARK_ROWS_PER_SECOND = 60_000  # redis-benchmark takes a count, not a time
BENCHMARK_FIELDS = ("test", "rps", "avg", "min", "p50", "p95", "p99", "max")
TIMEOUT_SECONDS = 10.0


class RedisStream:
    """The server and its clients."""

    name = "redis"

    def __init__(self) -> None:
        self.version = ""
        self._server: Server | None = None
        self._socket = Path()

    def start(self, directory: Path) -> None:
        """Start without a network port, and check that every append is synced."""
        binary = _find_binary()
        self._socket = socket_path(directory / "redis.sock")
        directory.mkdir(mode=0o700)
        settings = {"port": "0", "unixsocket": str(self._socket), "dir": str(directory), "save": "", **DURABLE}
        given = [text for key, value in settings.items() for text in (f"--{key}", value)]
        self._server = Server(directory)
        self._server.start([binary, *given])
        self._check(self._server)

    def run(self, seconds: float, producers: int) -> Sample:
        """One task and one connection per producer."""
        return asyncio.run(self._run_tasks(seconds, producers))

    def run_threads(self, seconds: float, producers: int) -> Sample:
        """One thread and one blocking connection per producer."""
        with ExitStack() as stack:
            clients = [stack.enter_context(self._connect()) for _ in range(producers)]
            appends = [partial(client.execute_command, *XADD, PAYLOAD) for client in clients]
            return drive_threads(f"({self.name}, threads)", appends, seconds)

    def run_benchmark(self, seconds: float, producers: int) -> Sample:
        """The same command from the client in C that comes with Redis."""
        rows = round(seconds * BENCHMARK_ROWS_PER_SECOND)
        payload = "x" * len(PAYLOAD)
        options = ["-s", str(self._socket), "-c", str(producers), "-n", str(rows), "--csv"]
        command = ["redis-benchmark", *options, *XADD, payload]
        timeout = seconds + GRACE_SECONDS
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=timeout)
        return _benchmark_sample(f"({self.name}, redis-benchmark)", rows, done.stdout)

    def clients(self, producers: int) -> Sequence[Contestant]:
        return [
            Contestant(self.name, partial(self.run, producers=producers)),
            Contestant(f"({self.name}, threads)", partial(self.run_threads, producers=producers)),
        ]

    def natives(self, producers: int) -> Sequence[Contestant]:
        if shutil.which("redis-benchmark") is None:
            return []
        run = partial(self.run_benchmark, producers=producers)
        return [Contestant(f"({self.name}, redis-benchmark)", run)]

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    def _connect(self) -> redis.Redis:
        return redis.Redis(
            unix_socket_path=str(self._socket), single_connection_client=True, socket_timeout=TIMEOUT_SECONDS
        )

    async def _run_tasks(self, seconds: float, producers: int) -> Sample:
        async with AsyncExitStack() as stack:
            appends: list[AppendTask] = []
            for _ in range(producers):
                client = Redis(unix_socket_path=str(self._socket), single_connection_client=True)
                await stack.enter_async_context(client)
                appends.append(partial(client.execute_command, *XADD, PAYLOAD))
            return await drive_tasks(self.name, appends, seconds)

    def _check(self, server: Server) -> None:
        with server.ready(self._answering, redis.exceptions.ConnectionError) as client:
            for setting, wanted in DURABLE.items():
                found = client.config_get(setting)[setting]
                if found not in (wanted, wanted.encode()):
                    raise Unfair(f"Redis is not durable; setting={setting} wanted={wanted} found={found}")
            parser = "hiredis" if importlib.util.find_spec("hiredis") else "no hiredis"
            number = client.info("server")["redis_version"]
            self.version = f"redis-server {number}, redis-py {redis.__version__} ({parser}), Unix socket"

    def _answering(self) -> redis.Redis:
        client = self._connect()
        client.ping()
        return client


def _find_binary() -> Path:
    found = shutil.which("redis-server")
    if found is None:
        raise Absent("redis-server not found on the PATH")
    return Path(found)


def _benchmark_sample(name: str, rows: int, output: str) -> Sample:
    """A sample from the CSV of redis-benchmark; old versions report the rate without percentiles."""
    last = list(csv.DictReader(output.splitlines(), BENCHMARK_FIELDS))[-1]
    p50, p99 = (float(last[key]) if last.get(key) else None for key in ("p50", "p99"))
    return Sample(name, rows, rows / float(last["rps"]), p50, p99)
