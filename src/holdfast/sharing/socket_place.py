"""The socket in a log's directory: made by its owner, found by everybody else, and nobody's but the same user's.

A socket's address has room for about a hundred bytes. A longer path is reached through the directory's descriptor. The
socket is bound under another name and renamed, so that it listens as soon as it can be found; one that an owner left
when it died is replaced by the next, who holds the directory's lock.
"""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import Struct

from holdfast import disk
from holdfast.errors import Unavailable

NAME = "SOCKET"
_ADDRESS_BYTES_MAX = 100
_BACKLOG = 1024
_CONNECTIONS_MAX = 4096
_CREDENTIALS = Struct("3i")
_BUFFER_BYTES = 1024 * 1024


def listen(directory: Path) -> socket.socket:
    """A socket that listens in this directory; the caller owns the directory."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    fresh = f"{NAME}.{os.getpid()}"
    try:
        os.fchmod(listener.fileno(), 0o600)
        with _address(directory, fresh) as address:
            with suppress(FileNotFoundError):
                os.unlink(directory / fresh)
            listener.bind(address)
        os.chmod(directory / fresh, 0o600)
        listener.listen(_BACKLOG)
        disk.replace(directory / fresh, directory / NAME)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        with suppress(OSError):
            os.unlink(directory / fresh)
        raise Unavailable(
            f"cannot listen in the log's directory path={directory}: {error.strerror}",
            hint="a shared log needs a file system with sockets; open it without share=True elsewhere",
        ) from error
    return listener


def connect(directory: Path, timeout: float) -> socket.socket:
    """A connection to the owner that listens in this directory; raises OSError where none does."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.settimeout(timeout)
        with _address(directory, NAME) as address:
            made.connect(address)
        check_peer(made)
        widen(made)
    except BaseException:
        made.close()
        raise
    return made


def connections_max() -> int:
    """So many clients at once, that the owner keeps enough descriptors for its own files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else min(_CONNECTIONS_MAX, soft // 2)


def name(directory: Path) -> tuple[int, int] | None:
    """Which file the socket in this directory is; None where there is none."""
    try:
        found = os.lstat(directory / NAME)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def withdraw(directory: Path) -> None:
    """Nobody listens here any more; by the owner, before it lets go of the directory."""
    with suppress(OSError):
        os.unlink(directory / NAME)


def widen(sock: socket.socket) -> None:
    """Buffers that take a group of typed rows at once, as far as the system allows."""
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)


def check_peer(sock: socket.socket) -> None:
    """The process at the other end is of the same user as we are; raises PermissionError."""
    user = peer_user(sock)
    if user is not None and user != os.geteuid():
        raise PermissionError(f"another user is at the other end uid={user}")


def peer_user(sock: socket.socket) -> int | None:
    """The user at the other end; None where the system does not say, and the socket's mode alone protects it."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    _, user, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
    return int(user)


@contextmanager
def _address(directory: Path, name: str) -> Iterator[str]:
    """An address of a socket in a directory, however long its path is."""
    path = os.path.abspath(directory / name)
    if len(os.fsencode(path)) <= _ADDRESS_BYTES_MAX:
        yield path
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)
