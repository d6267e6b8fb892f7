"""A segment file's bytes, proved before they are used.

The file, on a disk or on a store, is read with plain reads into memory, each block is compared with its hash, and what
is passed on is that same memory: bytes that change between proof and use do no harm, and a damaged block is never
decoded. (A memory map would lose both, and turn a failing disk into a signal.) Without `compare_blocks` they pass
unchecked; the footer is proved by the reader in any case.

Arrow reads through this object. `fetch` and `hold` let the reader get a whole row group in few reads, also ahead of
time in another thread; what Arrow asks for beyond that is fetched when it asks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from holdfast import disk
from holdfast.crypto.digests import DIGEST_BYTES
from holdfast.errors import Corrupt
from holdfast.segments.file import arrow_file
from holdfast.segments.file.hashing_sink import BLOCK_BYTES, hash_block

_TAIL_BYTES = 8
_MAGIC = b"PAR1"
_AHEAD_BYTES = 4 * 2**20
"""What is read at once of a whole file that is far away: whole blocks."""
FOOTER_BYTES_MAX = 16 * 2**20
"""The largest footer that is read into memory."""

Range = tuple[int, int]
Piece = tuple[int, memoryview]
"""Proved bytes and where they begin in the file."""


class DamagedFile(Exception):
    """The file's bytes are not what they should be. The text says how; `at` is the first byte concerned."""

    def __init__(self, message: str, at: int | None = None) -> None:
        super().__init__(message)
        self.at = at


class Bytes(Protocol):
    """Where a segment's bytes come from: a file, or an object of a store."""

    @property
    def size(self) -> int:
        """How many there are."""

    @property
    def reads_ahead(self) -> bool:
        """Whether it makes use of what is announced."""

    def read(self, start: int, end: int) -> memoryview:
        """Exactly these bytes; raises Damaged if there are fewer, or if they cannot be read."""

    def announce(self, ranges: Sequence[Range]) -> None:
        """These ranges will probably be read next, exactly so and in this order."""

    def close(self) -> None:
        """Close it; closing again does nothing."""


class FileBytes:
    """A file on a disk; raises FileNotFoundError where there is none, and Corrupt where something else stands."""

    reads_ahead = False

    def __init__(self, path: Path) -> None:
        try:
            self._descriptor = disk.open_file(path)
        except (disk.NotRegular, IsADirectoryError):
            raise Corrupt("the segment is not a regular file", path=str(path)) from None
        self.size = os.fstat(self._descriptor).st_size

    def read(self, start: int, end: int) -> memoryview:
        """Plain reads, as many as it takes."""
        # Into Arrow's memory, which stays mapped from one row group to the next: the pages of a fresh `bytes` of many
        # megabytes cost more than reading into them.
        content = memoryview(pa.allocate_buffer(end - start)).cast("B")
        at = start
        while at < end:
            try:
                count = os.preadv(self._descriptor, [content[at - start : at - start + 2**30]], at)
            except OSError as error:
                raise DamagedFile(f"cannot be read: {error.strerror}", at) from error
            if not count:
                raise DamagedFile("ends too early", at)
            at += count
        return content.toreadonly()

    def announce(self, ranges: Sequence[Range]) -> None:
        """Nothing to do: the system reads ahead."""

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class ProvenFile:
    """A finished segment file, open for reading."""

    def __init__(self, source: Bytes, *, compare_blocks: bool = True) -> None:
        self._source = source
        self._compare_blocks = compare_blocks
        self.size = source.size
        self.data_end = 0
        """Where the footer begins; block hashes cover everything before."""
        self._hashes = b""
        self._held: list[Piece] = []
        self.is_shut = False

    def shut(self) -> None:
        """Close the file; closing again does nothing."""
        self.is_shut = True
        self._held = []
        self._source.close()

    # -- proving ------------------------------------------------------------------------------------------

    def read_footer(self) -> bytes:
        """The footer: Parquet's metadata, their length and the magic. Not proved yet; its hash is in the manifest."""
        if self.size < _TAIL_BYTES + len(_MAGIC):
            raise DamagedFile("is too short")
        tail = self._source.read(self.size - _TAIL_BYTES, self.size)
        length = int.from_bytes(tail[:4], "little") + _TAIL_BYTES
        if bytes(tail[4:]) != _MAGIC or length > min(self.size - len(_MAGIC), FOOTER_BYTES_MAX):
            raise DamagedFile("has no footer")
        self.data_end = self.size - length
        return bytes(self._source.read(self.data_end, self.size))

    def expect(self, hashes: bytes) -> None:
        """Prove everything before the footer with these hashes from now on."""
        if len(hashes) != DIGEST_BYTES * -(-self.data_end // BLOCK_BYTES):
            raise DamagedFile("has more or fewer blocks than hashes")
        self._hashes = hashes

    def fetch(self, ranges: Iterable[Range]) -> list[Piece]:
        """Read and prove some ranges; those that touch the same blocks, or neighbours, are read together."""
        return [(start, self._proved(start, end)) for start, end in _in_blocks(ranges, self.data_end)]

    def read_alone(self, start: int, length: int, digest: bytes) -> memoryview:
        """Some bytes that have a hash of their own, without the rest of their blocks."""
        if start + length > self.data_end:
            raise DamagedFile("has a footer that points outside of it")
        content = self._source.read(start, start + length)
        if hash_block(content) != digest:
            raise DamagedFile("is damaged: its index of keys does not match its hash", start)
        return content

    @property
    def reads_ahead(self) -> bool:
        """Whether `announce` has any use."""
        return self._source.reads_ahead

    def announce(self, groups: Iterable[Iterable[Range]]) -> None:
        """These ranges will be fetched next, one group after the other."""
        try:
            self._source.announce([part for ranges in groups for part in _in_blocks(ranges, self.data_end)])
        except DamagedFile:
            pass  # raised when they are fetched, and what comes before them is read first

    def hold(self, pieces: list[Piece]) -> None:
        """Keep these pieces, and only these, for Arrow to read from."""
        self._held = pieces

    def chunks(self) -> Iterator[memoryview]:
        """The whole file in order, proved up to its footer."""
        step = _AHEAD_BYTES if self._source.reads_ahead else BLOCK_BYTES
        starts = range(0, self.data_end, step)
        for at, start in enumerate(starts):
            if self._source.reads_ahead:
                self._source.announce([(ahead, min(ahead + step, self.data_end)) for ahead in starts[at + 1 : at + 3]])
            yield self._proved(start, min(start + step, self.data_end))
        yield self._source.read(self.data_end, self.size)

    def _proved(self, start: int, end: int) -> memoryview:
        content = self._source.read(start, end)
        for at in range(start, end, BLOCK_BYTES) if self._compare_blocks else ():
            index = at // BLOCK_BYTES * DIGEST_BYTES
            expected = self._hashes[index : index + DIGEST_BYTES]
            if hash_block(content[at - start : at - start + BLOCK_BYTES]) != expected:
                raise DamagedFile("is damaged: a block does not match its hash", at)
        return content

    # -- the file that Arrow sees -------------------------------------------------------------------------

    def as_arrow(self) -> pa.PythonFile:
        """This file for `pq.ParquetFile`."""
        return arrow_file.lend(self)

    def read_at(self, start: int, end: int) -> memoryview:
        """Proved bytes, without a copy where they are held."""
        if not 0 <= start <= end <= self.data_end:
            raise DamagedFile("has a footer that points outside of it")
        piece = next((p for p in self._held if p[0] <= start and end <= p[0] + len(p[1])), None)
        at, content = piece or next(iter(self.fetch([(start, end)])), (start, memoryview(b"")))
        return content[start - at : end - at]


def _in_blocks(ranges: Iterable[Range], limit: int) -> list[Range]:
    """Ranges widened to whole blocks and joined where they meet."""
    joined: list[Range] = []
    for start, end in sorted(ranges):
        if not 0 <= start <= end <= limit:
            raise DamagedFile("has a footer that points outside of it")
        if start == end:
            continue
        start -= start % BLOCK_BYTES  # noqa: PLW2901
        end = min(-(-end // BLOCK_BYTES) * BLOCK_BYTES, limit)  # noqa: PLW2901
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
