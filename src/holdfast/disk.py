"""The few things done to files directly: durable creation, directory sync, the owner's lock.

Hazards, which is why this is one small module and nothing else may call these system calls:

* A new file's *name* is durable only after its directory was synced; its content only after its own sync.
* A failed fsync must never be tried again: Linux drops the dirty pages and the next call answers success.
  Errors are raised to the caller as they are; nobody here retries.
* SQLite's locks vanish when *any* descriptor of the database file is closed in the process, so nothing
  here ever opens `durable.db`.
* A lock taken with flock belongs to the open file, not to the process: a forked child shares it, and must
  close its copy, or the log stays locked after the parent died.

`syscalls` is the seam through which `holdfast.testing.FaultyDisk` fails and records these calls.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from types import ModuleType

syscalls: ModuleType = os


def make_directory(path: Path, mode: int = 0o700) -> None:
    """Create a directory and its missing parents, each made durable in the one above it."""
    if path.is_dir():
        return
    if path.parent != path:
        make_directory(path.parent, mode)
    try:
        syscalls.mkdir(path, mode)
    except FileExistsError:
        return
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = syscalls.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        syscalls.fsync(descriptor)
    finally:
        syscalls.close(descriptor)


def write_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Create or replace a small file; after a crash it is the old one or the new one, whole."""
    temporary = path.with_name(path.name + ".tmp")
    descriptor = syscalls.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        _write_all(descriptor, content)
        syscalls.fsync(descriptor)
    finally:
        syscalls.close(descriptor)
    syscalls.replace(temporary, path)
    sync_directory(path.parent)


def create_file(path: Path, mode: int) -> None:
    """An empty file with this mode, its name durable."""
    syscalls.close(syscalls.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, mode))
    sync_directory(path.parent)


def _write_all(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[syscalls.write(descriptor, rest) :]


class OwnerLock:
    """An exclusive lock on a file, held until released or until the process dies, however it dies.

    The file is never removed: unlinking a locked file would let two owners hold two files of one name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1

    def acquire(self) -> bool:
        """Take the lock and write our pid into the file; False when somebody else has it."""
        descriptor = syscalls.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            syscalls.ftruncate(descriptor, 0)
            _write_all(descriptor, f"{os.getpid()}\n".encode())
        except OSError as error:
            syscalls.close(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
                return False
            raise
        self._descriptor = descriptor
        return True

    def is_held(self) -> bool:
        """Whether somebody holds the lock now, found without touching it.

        Trying the lock, even for a moment, could make a service that starts just then believe that it is
        taken. The kernel's list of locks tells as much; where there is none, a living pid in the file must do.
        """
        try:
            status = os.stat(self.path)
            device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
            locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
        except OSError:
            return _is_alive(self.holder())
        return any("FLOCK" in line and device in line.split() for line in locks)

    def holder(self) -> int | None:
        """The pid in the lock file: who holds it, or who held it last."""
        try:
            return int(self.path.read_text(encoding="ascii").strip())
        except (OSError, ValueError):
            return None

    def release(self) -> None:
        """Let go; in a forked child this closes only the child's copy and the parent keeps the lock."""
        if self._descriptor >= 0:
            syscalls.close(self._descriptor)
            self._descriptor = -1


def _is_alive(pid: int | None) -> bool:
    if pid is None:
        return False
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError):
        return False
    return True
