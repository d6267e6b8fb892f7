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
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from types import ModuleType

syscalls: ModuleType = os
_LOCK_BYTES_MAX = 64


def make_directory(path: Path, mode: int = 0o700, *, root: Path | None = None) -> None:
    """Create a directory and its missing parents, each made durable in the one above it.

    With `root`, names from there on are synced even if they exist: their writer may have died before its sync.
    """
    doubtful = root is not None and path.is_relative_to(root)
    if not doubtful and path.is_dir():
        return
    if path.parent != path:
        make_directory(path.parent, mode, root=root)
    try:
        syscalls.mkdir(path, mode)
    except FileExistsError:
        if not doubtful:
            return
        if not S_ISDIR(os.lstat(path).st_mode):  # a link would lead out of here
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from None
    sync_directory(path.parent)


def identity(path: Path) -> tuple[int, int] | None:
    """Which file has this name now; None where there is none that can be found."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def has_name(descriptor: int) -> bool:
    """Whether an open file has a name still: what is written to one without is gone with this process.

    Asked by the name that the kernel shows. Asking the file itself, by its status, is what this falls back to: a file
    whose times were looked at gets new ones with the next write, and syncing that took a quarter longer.
    """
    try:
        if not os.readlink(f"/proc/self/fd/{descriptor}").endswith(" (deleted)"):
            return True
    except OSError:  # no such folder here
        pass
    return os.fstat(descriptor).st_nlink > 0


def is_within(path: Path, folder: Path) -> bool:
    """Whether a place is a directory or lies in it, by whatever names and links; both may be missing still."""
    path, folder = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    places, known = [path, *path.parents], identity(folder)
    return folder in places or (known is not None and known in map(identity, places))


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = syscalls.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        syscalls.fsync(descriptor)
    finally:
        syscalls.close(descriptor)


class NotRegular(Exception):
    """Something else than a file stands where one should be: a link, a pipe, a device, a socket."""


FULL_HINT = "the disk or its quota is full: free space (holdfast retain DIR removes old segments), then try again"
RIGHTS_HINT = "do it as the user to whom these files belong, or give this one the right to them"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_ROOM_BYTES = 64 * 1024
"""Less than this is no room: SQLite asks for 32 KiB at a time."""


def ran_full(error: BaseException | None) -> bool:
    """Whether this is what a full disk, or a quota that is used up, says."""
    return isinstance(error, OSError) and error.errno in _FULL


def remedy(error: OSError, otherwise: str) -> str:
    """The hint for what failed: room or rights, where that is what it lacks."""
    if error.errno in (errno.EACCES, errno.EPERM):
        return RIGHTS_HINT
    return FULL_HINT if ran_full(error) else otherwise


def remedy_at(path: Path, otherwise: str) -> str:
    """The same where nobody kept the cause: the file system of this path is asked whether there is room."""
    try:
        return FULL_HINT if free_bytes(path) < _NO_ROOM_BYTES else otherwise
    except OSError:
        return otherwise


class TooLong(Exception):
    """A file has more bytes than its kind may have; the text says how many."""


def open_file(path: Path | str) -> int:
    """A descriptor to read from a regular file, and nothing else: a pipe would hang, a device may never end, and a
    link leads elsewhere. Raises NotRegular, OSError, IsADirectoryError.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket
            raise NotRegular(str(path)) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise NotRegular(str(path))


def read_file(path: Path | str, bytes_max: int) -> bytes:
    """A small file, whole; raises TooLong before it is read, and what `open_file` raises."""
    with open(open_file(path), "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > bytes_max:
            raise TooLong(str(size))
        return stream.read(bytes_max)


class NotOwn(Exception):
    """A file that another user owns, or that others may read or write; the text says which."""


def read_own_file(path: Path, bytes_max: int) -> bytes:
    """A small file that is ours alone: no link, owned by this user, closed to all others, and in a directory where
    nobody else could put another one in its place. Raises NotOwn as well.
    """
    with open(open_file(path), "rb") as stream:
        folder = os.stat(path.parent)
        if folder.st_uid not in (0, os.geteuid()):
            raise NotOwn(f"another user owns its directory uid={folder.st_uid}")
        if folder.st_mode & 0o022 and not folder.st_mode & stat.S_ISVTX:
            raise NotOwn("others may write its directory")
        status = os.fstat(stream.fileno())
        if status.st_uid != os.geteuid():
            raise NotOwn(f"another user owns it uid={status.st_uid}")
        if status.st_mode & 0o077:
            raise NotOwn("others may read or write it")
        if status.st_size > bytes_max:
            raise TooLong(str(status.st_size))
        return stream.read(bytes_max)


def write_file(path: Path, content: bytes, mode: int = 0o600, *, token: str = "") -> None:
    """Create or replace a small file; after a crash it is the old one or the new one, whole.

    It is written beside its place, into a file that is made for it with this mode: no existing file is written to,
    whatever its mode and owner, nor what a link points to. A random `token` in the temporary name lets several
    processes write one file at the same time.
    """
    temporary = path.with_name(f"{path.name}.{token}.tmp" if token else f"{path.name}.tmp")
    descriptor = _create_anew(temporary, mode)
    try:
        try:
            _write_all(descriptor, content)
            syscalls.fsync(descriptor)
        finally:
            syscalls.close(descriptor)
        syscalls.replace(temporary, path)
    except OSError:
        if token:  # nobody else comes by this name again
            discard(temporary)
        raise
    sync_directory(path.parent)


def write_new_file(path: Path, content: bytes, mode: int = 0o600, *, token: str) -> None:
    """Create a small file, whole and durably; raises FileExistsError where something has its name."""
    temporary = path.with_name(f"{path.name}.{token}.tmp")
    write_file(temporary, content, mode, token=token)
    try:
        link(temporary, path)
    finally:
        discard(temporary)


@contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """Nobody else is in here with this file, whose name may go to another one meanwhile; waits for those who are.

    Raises what `open_file` raises.
    """
    while True:
        descriptor = open_file(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):  # else it was replaced while we waited
                yield
                return
        finally:
            os.close(descriptor)


def _create_anew(path: Path, mode: int) -> int:
    """A file of our own; what an earlier attempt left, or an attacker planted, is removed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return int(syscalls.open(path, flags, mode))
    except FileExistsError:
        syscalls.unlink(path)
        return int(syscalls.open(path, flags, mode))


def read_small_file(path: Path, bytes_max: int) -> tuple[bytes, int]:
    """Content and mode of a regular file; a larger one, a directory, a device or a pipe is an OSError, at once."""
    # Opening a pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        content = b""
        while part := os.read(descriptor, bytes_max + 1 - len(content)):
            content += part
        if len(content) > bytes_max:
            raise OSError(errno.EFBIG, "the file is too large", str(path))
        return content, status.st_mode
    finally:
        os.close(descriptor)


def create_file(path: Path, mode: int) -> None:
    """An empty file with this mode, its name durable."""
    syscalls.close(syscalls.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode))
    sync_directory(path.parent)


def replace(source: Path, target: Path) -> None:
    """Give a file another name in its directory, which is synced later, with the other names in it."""
    syscalls.replace(source, target)


def rename(source: Path, target: Path) -> None:
    """Give a file its final name, or another directory, durably; whatever had that name is replaced."""
    replace(source, target)
    sync_directory(target.parent)
    if source.parent != target.parent:
        sync_directory(source.parent)


def link(source: Path, target: Path) -> None:
    """Give a file whose content is durable a second name, durably; raises FileExistsError where the name is taken.

    A name that is taken is made durable as well: the process that linked it may have died before its sync. And when
    our sync fails it is taken back, or it would pass for durable later, although nobody ever learned that it is.
    """
    try:
        syscalls.link(source, target)
    except FileExistsError:
        sync_directory(target.parent)
        raise
    try:
        sync_directory(target.parent)
    except OSError:
        discard(target)
        raise


def discard(path: Path) -> None:
    """Remove a name nobody counts on, without a promise: it may be back after a crash, or not go at all."""
    try:
        syscalls.unlink(path)
    except OSError:
        pass


def remove(path: Path) -> bool:
    """Remove a file, durably; False when it was not there."""
    try:
        syscalls.unlink(path)
    except FileNotFoundError:
        return False
    sync_directory(path.parent)
    return True


def remove_all(folder: Path, names: Iterable[str]) -> None:
    """Remove files of a folder, those that are there, durably; so are removals whose own sync failed or never came."""
    for name in names:
        try:
            syscalls.unlink(folder / name)
        except FileNotFoundError:
            pass
    if folder.is_dir():
        sync_directory(folder)


def empty(path: Path) -> None:
    """Give back a file's space and keep its name, durably: what a full disk still allows."""
    descriptor = syscalls.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        syscalls.ftruncate(descriptor, 0)
        syscalls.fsync(descriptor)
    finally:
        syscalls.close(descriptor)


def size_of(path: Path) -> int:
    """How large a file is; 0 if it is not there."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def free_bytes(path: Path) -> int:
    """What an ordinary user may still write on the file system of this path."""
    status = syscalls.statvfs(path)
    return int(status.f_bavail * status.f_frsize)


class NewFile:
    """A file that is being written under a temporary name; `finish` makes its content durable.

    An fsync that failed is never repeated: the file is given up, and a new attempt writes a new one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._descriptor = _create_anew(path, 0o600)

    def write(self, content: bytes | memoryview) -> None:
        """Append bytes."""
        _write_all(self._descriptor, content)
        self.size += len(content)

    def finish(self) -> None:
        """Make the content durable and close the file; its name is durable once its directory is synced."""
        try:
            syscalls.fsync(self._descriptor)
        finally:
            self.close()

    def close(self) -> None:
        """Close without a promise; closing again does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            syscalls.close(descriptor)


def write_at(descriptor: int, buffers: Sequence[bytes | memoryview], position: int) -> None:
    """Write all of these at a place of a file."""
    if len(buffers) == 1:
        size = len(buffers[0])
        written = syscalls.pwrite(descriptor, buffers[0], position)
    else:
        size = sum(map(len, buffers))
        written = syscalls.pwritev(descriptor, buffers, position)
    if written < size:  # rare: a signal, or a disk that is full after all
        rest = memoryview(b"".join(buffers))
        while written < size:
            written += syscalls.pwrite(descriptor, rest[written:], position + written)


def _write_all(descriptor: int, content: bytes | memoryview) -> None:
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

    def acquire(self, note: str = "") -> bool:
        """Take the lock and write our pid into the file, and a word; False when another process has it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        descriptor = syscalls.open(self.path, flags, 0o600)
        try:
            if not S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "the lock is not a regular file")
            if os.fstat(descriptor).st_nlink > 1:  # it is emptied below: nobody else's file may lie behind the name
                raise OSError(errno.EMLINK, "the lock is a hard link to another file")
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            syscalls.ftruncate(descriptor, 0)
            _write_all(descriptor, f"{os.getpid()}\n{note}\n".encode() if note else f"{os.getpid()}\n".encode())
        except OSError as error:
            syscalls.close(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
                return False
            raise
        self._descriptor = descriptor
        return True

    def is_held(self) -> bool:
        """Whether the lock is held now, found without touching it.

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

    def is_ours(self) -> bool:
        """Whether we hold the lock, on the file that has its name now."""
        if self._descriptor < 0:
            return False
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        except OSError:
            return False

    def holder(self) -> int | None:
        """The pid in the lock file: who holds it, or who held it last."""
        try:
            return int(self._lines()[0])
        except (OSError, ValueError, IndexError, NotRegular, TooLong):
            return None

    def note(self) -> str:
        """The word behind the pid; empty where there is none."""
        try:
            return self._lines()[1]
        except (OSError, ValueError, IndexError, NotRegular, TooLong):
            return ""

    def _lines(self) -> list[str]:
        return read_file(self.path, _LOCK_BYTES_MAX).decode("ascii").strip().split("\n")

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
