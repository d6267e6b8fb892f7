"""The S3 server of the tests, for a bench or a demonstration: its credentials in our environment, to be named by
reference, bare clients that send checksums as shipping does, and what it uses of the processors.

What it is no proof of: it does not fsync, so its figures are those of a store that answers before it is safe.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from obstore.store import S3Store
from tests.store.servers import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, S3Server

ENVIRONMENT = "SEAWEEDFS"

__all__ = ["BUCKET", "SeaweedFS", "running"]


class SeaweedFS(S3Server):
    """One server on one directory; it keeps its port and its data when it is started again."""

    @property
    def settings(self) -> dict[str, Any]:
        """The section `[store]` for a log that ships here; the credentials by reference."""
        return {"endpoint": self.endpoint, "region": REGION, "credentials": f"env:{ENVIRONMENT}"}

    @property
    def cpu_seconds(self) -> float:
        """What the server has used of the processors since it was started; 0 where the kernel does not tell."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def shipping_client(self, prefix: str) -> S3Store:
        """A bare client: no retries, sha256 with every PUT, as shipping does it."""
        return self.client(prefix=prefix, checksum_algorithm="sha256", conditional_put="etag")

    def start(self) -> None:
        """Start it, and return when it takes a PUT."""
        os.environ[f"{ENVIRONMENT}_ACCESS_KEY_ID"] = ACCESS_KEY
        os.environ[f"{ENVIRONMENT}_SECRET_ACCESS_KEY"] = SECRET_KEY
        super().start()


@contextmanager
def running(directory: Path) -> Iterator[SeaweedFS]:
    """A server for the length of a `with`."""
    server = SeaweedFS(directory)
    try:
        server.start()
        yield server
    finally:
        server.stop()
