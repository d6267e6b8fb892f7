"""One file of groups: preallocated, written from its beginning to its end, then reused under another number.

    sector 0    what it is: magic, version, number, the log's id, salt, digest
    sector 1    empty; or 16 bytes, by the process that takes the log over: the owner that wrote here must stop
    the rest    frames (`group_frame`), each beginning at a sector's edge

All of it was written once, with zeros, before the first frame: so a commit changes no metadata of the file system, and
its sync is one write. Its number is its name, and stands in its first sector; a reader that has fetched something looks
at the number afterwards, and takes nothing from a file that was given away meanwhile.

The descriptor is closed when nobody refers to the file any more: no reader ever reads through a number that means
something else by then.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Sequence
from pathlib import Path

from blake3 import blake3

from holdfast import disk
from holdfast.clock import SystemClock
from holdfast.journal.groups.group_frame import SECTOR_BYTES
from holdfast.signals import Flag

FRAMES_BEGIN = 2 * SECTOR_BYTES
SALT_BYTES = 16
_MAGIC, _VERSION = b"hfgroups", 1
_HEAD = struct.Struct("<8sIQ16s16s")
_DIGEST_BYTES = 16
FENCE_BYTES = 16
_UNFENCED = bytes(FENCE_BYTES)
_ZEROS = bytes(2**20)
_PIECE_BYTES = 256 * 2**10
_monotonic = SystemClock().monotonic
"""How busy the disk is, is a matter of the machine's own clock."""


class SpoiledFile(Exception):
    """What stands at a file's beginning is not what this log wrote there."""


class GroupFile:
    """An open file of groups."""

    __slots__ = ("_descriptor", "number", "path", "salt", "size", "used")

    def __init__(self, path: Path, descriptor: int, number: int, salt: bytes) -> None:
        self._descriptor = descriptor
        self.path = path
        self.number = number
        self.salt = salt
        self.size = os.fstat(descriptor).st_size
        self.used = FRAMES_BEGIN
        """Where the next frame begins; of a file that this process writes."""

    def __del__(self) -> None:
        try:
            disk.syscalls.close(self._descriptor)
        except (AttributeError, OSError):  # the interpreter ends, or the descriptor never was one
            pass

    @classmethod
    def create(cls, path: Path, number: int, size: int, hurry: Flag | None = None) -> GroupFile:
        """A new file full of zeros, its content and its name durable; it counts for nothing until it is `begun`.

        Until there is a `hurry` it goes piece by piece and leaves the disk to others for half of the time: the sync of
        a group must not wait behind the zeros of a whole file.
        """
        # A name that is taken may be that of a living owner, if this one was displaced: nothing of it is touched.
        descriptor = disk.syscalls.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            file = cls(path, descriptor, number, b"")
            at = _write_slowly(descriptor, size, hurry) if hurry is not None else 0
            for start in range(at, size, len(_ZEROS)):
                disk.write_at(descriptor, [_ZEROS[: size - start]], start)
            disk.syscalls.fdatasync(descriptor)
            disk.sync_directory(path.parent)
        except OSError:
            disk.discard(path)  # half a file would only hold room that the database needs
            raise
        file.size = size
        return file

    @classmethod
    def open(cls, path: Path, number: int, log_id: bytes, *, write: bool = False) -> GroupFile | None:
        """The file of that number; None where there is none, or none that was begun. Raises `SpoiledFile`, OSError."""
        try:
            descriptor = disk.syscalls.open(
                path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            )
        except FileNotFoundError:
            return None
        file = cls(path, descriptor, number, b"")
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        salt = file._identity(log_id)
        if salt is None:
            if file.is_blank():
                return None
            raise SpoiledFile
        file.salt = salt
        return file

    def begin(self, log_id: bytes, salt: bytes) -> None:
        """Take frames from now on; durable together with the first of them."""
        head = _HEAD.pack(_MAGIC, _VERSION, self.number, log_id, salt)
        disk.write_at(self._descriptor, [head + blake3(head).digest(length=_DIGEST_BYTES)], 0)
        self.salt, self.used = salt, FRAMES_BEGIN

    def give_away(self, path: Path, number: int) -> None:
        """Count for nothing any more, under another name; durable when this returns. A name that is taken is kept."""
        disk.write_at(self._descriptor, [bytes(FRAMES_BEGIN)], 0)
        disk.syscalls.fdatasync(self._descriptor)
        disk.link(self.path, path)
        disk.remove(self.path)
        self.path, self.number = path, number

    def is_blank(self) -> bool:
        """Whether nobody ever said what this is: it was not begun yet, or given away."""
        return not any(os.pread(self._descriptor, _HEAD.size + _DIGEST_BYTES, 0))

    def _identity(self, log_id: bytes) -> bytes | None:
        """The salt, if this is what it should be."""
        data = os.pread(self._descriptor, _HEAD.size + _DIGEST_BYTES, 0)
        if len(data) < _HEAD.size + _DIGEST_BYTES:
            return None
        magic, version, number, owner, salt = _HEAD.unpack_from(data)
        if (magic, version, number, owner) != (_MAGIC, _VERSION, self.number, log_id):
            return None
        return salt if blake3(data[: _HEAD.size]).digest(length=_DIGEST_BYTES) == data[_HEAD.size :] else None

    # -- the owner ----------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Bytes that are left for frames."""
        return self.size - self.used

    def write(self, buffers: Sequence[bytes | memoryview], size: int) -> None:
        """Write a frame of so many bytes behind the last one; not durable before `sync`."""
        disk.write_at(self._descriptor, buffers, self.used)
        self.used += size

    def sync(self) -> None:
        """Make what was written durable; never tried again when it failed."""
        disk.syscalls.fdatasync(self._descriptor)

    def fence(self, token: bytes) -> None:
        """Tell the writer that the log has another owner."""
        disk.write_at(self._descriptor, [token], SECTOR_BYTES)

    def is_fenced(self) -> bool:
        """Whether another process has taken the log over."""
        return os.pread(self._descriptor, FENCE_BYTES, SECTOR_BYTES) != _UNFENCED

    def is_linked(self) -> bool:
        """Whether it has a name still."""
        return disk.has_name(self._descriptor)

    # -- readers ------------------------------------------------------------------------------------------

    def read(self, position: int, size: int) -> bytes:
        """Bytes as they are there now; fewer at the end of the file."""
        return os.pread(self._descriptor, size, position)

    def is_still(self, log_id: bytes) -> bool:
        """Whether this is the same file still: what was read of it before this was asked counts.

        One that was removed is not: an owner that finds no file begins to count anew, and another one has its number.
        """
        return self._identity(log_id) == self.salt and self.is_linked()


def _write_slowly(descriptor: int, size: int, hurry: Flag) -> int:
    """Write zeros, each piece durable before the next, with pauses; returns where it ended, early in a hurry."""
    at = 0
    while at + _PIECE_BYTES < size and not hurry.is_set():
        began = _monotonic()
        disk.write_at(descriptor, [_ZEROS[:_PIECE_BYTES]], at)
        disk.syscalls.fdatasync(descriptor)
        at += _PIECE_BYTES
        hurry.wait(_monotonic() - began)
    return at
