"""Where Parquet's bytes go: into a new file, and through the hashes that the footer and the manifest hold.

The file is hashed twice on the way: SHA-256 over all of it, for transport, and BLAKE3 over each block of it, so
that a reader can prove any range that it reads without reading the rest. Block hashes end where the footer begins,
because they are stored in the footer; the footer has a hash of its own, which the manifest keeps.

Hashing runs on the writer's helper thread, beside encoding. At most `_PENDING_MAX` chunks wait for it.
"""

from __future__ import annotations

import hashlib
from collections import deque
from concurrent.futures import Executor, Future
from pathlib import Path

import pyarrow as pa
from blake3 import blake3

from holdfast import disk
from holdfast.crypto.digests import DIGEST_BYTES

BLOCK_BYTES = 256 * 1024
"""The unit of integrity: what a reader proves at once."""

_GATHER_BYTES = 2**20
_PENDING_MAX = 32


def hash_block(block: bytes | bytearray | memoryview) -> bytes:
    """The hash of one block, and of the footer."""
    return blake3(block).digest(length=DIGEST_BYTES)


class HashingSink:
    """A new file for `pq.ParquetWriter`, hashed as it grows."""

    closed = False  # Arrow asks

    def __init__(self, path: Path, helper: Executor) -> None:
        self._file = disk.NewFile(path)
        self._helper = helper
        self._pending: deque[Future[None]] = deque()
        self._sha256 = hashlib.sha256()
        self._blocks: list[bytes] = []
        self._partial = bytearray()
        self._footer: blake3 | None = None
        self._abandoned = False
        # Arrow writes page by page; gathering makes that few calls, all of them big.
        self.stream = pa.BufferedOutputStream(pa.PythonFile(self, mode="w"), _GATHER_BYTES)

    @property
    def size(self) -> int:
        """Bytes written to the file so far."""
        return self._file.size

    def write(self, chunk: bytes) -> int:
        """Append bytes; called by Arrow."""
        # Arrow writes a footer when it lets go of a writer, even of one that failed.
        if not self._abandoned:
            self._file.write(chunk)
            self._pending.append(self._helper.submit(self._hash, chunk))
            while len(self._pending) > _PENDING_MAX:
                self._pending.popleft().result()
        return len(chunk)

    def flush(self) -> None:
        """Nothing waits here; called by Arrow."""

    def close(self) -> None:
        """Closing is not Arrow's business."""

    def begin_footer(self) -> bytes:
        """All rows are written: the hashes of all blocks so far, the last of which may be short."""
        self._settle()
        if self._partial:
            self._blocks.append(hash_block(self._partial))
        self._footer = blake3()
        return b"".join(self._blocks)

    def finish(self) -> tuple[bytes, bytes]:
        """Make the file durable and close it; its SHA-256 and the hash of its footer."""
        assert self._footer is not None, "the footer comes before the end"
        self._settle()
        self._abandon_stream()
        self._file.finish()
        return self._sha256.digest(), self._footer.digest(length=DIGEST_BYTES)

    def abandon(self) -> None:
        """Close the file and ignore whatever else is written."""
        self._abandon_stream()
        self._file.close()

    def _abandon_stream(self) -> None:
        """Arrow's object refers to us where the garbage collector does not look: neither would ever be freed."""
        self._abandoned = True
        self.stream = None

    def _settle(self) -> None:
        self.stream.flush()
        while self._pending:
            self._pending.popleft().result()

    def _hash(self, chunk: bytes) -> None:
        self._sha256.update(chunk)
        if self._footer is not None:
            self._footer.update(chunk)
            return
        rest = memoryview(chunk)
        if self._partial:
            missing = BLOCK_BYTES - len(self._partial)
            self._partial += rest[:missing]
            rest = rest[missing:]
            if len(self._partial) < BLOCK_BYTES:
                return
            self._blocks.append(hash_block(self._partial))
        whole = len(rest) - len(rest) % BLOCK_BYTES
        self._blocks.extend(hash_block(rest[at : at + BLOCK_BYTES]) for at in range(0, whole, BLOCK_BYTES))
        self._partial = bytearray(rest[whole:])
