"""A store in a local directory: every object a file under its key, durable when `create` returns.

An object comes into being in this order: a temporary file beside its place, its content, an fsync, a second name by
`link` (which, unlike rename, fails where the name is taken, so of many writers one wins), an fsync of the directory.
So a file under its final name is whole, whatever happened, and nothing but `delete` ever touches it again. Folders are
made durable up to the root before the first object in them.

A name may be seen before it is durable: its writer may be between the two syncs, or have died there. What this store
shows is what others will count on, so it syncs every folder once before it first reads in it, and again where a name
turned out to be taken.

Files are copied, never linked, from the log's own directory: a second name for the same inode would be no second copy,
and retention may cut the log's file to nothing while the object must stay.

Temporaries begin with a dot, which no key does, so no listing shows them. Those that a crash left behind are removed by
the next process that creates something in their folder, when they are older than a day. The directory may be shared by
processes, and over a network if its file system has hard links and syncs directories. Files and folders can be read by
their owner only.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG
from typing import NoReturn

from holdfast import disk
from holdfast.clock import Clock
from holdfast.errors import Invalid, NotFound
from holdfast.store.keys import check_key, check_prefix
from holdfast.store.port import AlreadyExists, Body, ObjectInfo, StoreRefused, StoreUnavailable
from holdfast.store.proven_body import proven_chunks
from holdfast.store.ranges import check_range, require_length

_TEMPORARY_PREFIX, _TEMPORARY_SUFFIX = ".holdfast-", ".tmp"
_TEMPORARY_AGE_MAX_US = 86_400 * 10**6

_FORBIDDEN = (errno.EACCES, errno.EROFS)
_UNSUPPORTED = (errno.EPERM, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)
_NOTHING_THERE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class DirectoryStore:
    """Objects as files below one directory, which is made with the first of them."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._root, self._clock = root, clock
        self._made: set[Path] = set()
        self._settled: set[Path] = set()

    def __repr__(self) -> str:
        return f"DirectoryStore({str(self._root)!r})"

    @property
    def url(self) -> str:
        """`file://` and the directory."""
        return self._root.as_uri()

    def path(self, key: str) -> str:
        """Where an object lies, for those who read it in place."""
        return f"{self._root}/{check_key(key)}"

    def create(self, key: str, body: Body) -> None:
        """Create an object, durably."""
        target = self._root / check_key(key)
        with self._typed(key):
            self._make_folder(target.parent)
            temporary = target.with_name(f"{_TEMPORARY_PREFIX}{self._clock.random_bytes(16).hex()}{_TEMPORARY_SUFFIX}")
            try:
                self._write(temporary, body)
                disk.link(temporary, target)
            except FileExistsError:
                raise AlreadyExists(key) from None
            except FileNotFoundError:
                self._made.discard(target.parent)  # somebody removed the folder; the next attempt makes it again
                raise
            finally:
                disk.discard(temporary)

    def get(self, key: str) -> bytes:
        """The whole object."""
        path = self._root / check_key(key)
        with self._typed(key), self._found(key):
            self._settle(path.parent)
            return path.read_bytes()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """A part of an object."""
        path = self._root / check_key(key)
        check_range(start, length)
        with self._typed(key), self._found(key):
            self._settle(path.parent)
            with path.open("rb") as stream:
                stream.seek(start)
                return require_length(stream.read(length), key, length)

    def head(self, key: str) -> ObjectInfo | None:
        """What there is under a key."""
        path = self._root / check_key(key)
        try:
            with self._typed(key), self._found(key):
                self._settle(path.parent)
        except NotFound:
            return None
        status = self._status(str(path), key)
        return None if status is None else _info(key, status)

    def list(self, prefix: str, after: str | None = None) -> Iterator[ObjectInfo]:
        """Objects below a prefix, folder by folder, as they are when the iteration gets there."""
        folder = self._root / check_prefix(prefix)
        return self._walk(folder, prefix, after)

    def folders(self, prefix: str) -> Sequence[str]:
        """Folders right below a prefix."""
        names = self._names(self._root / check_prefix(prefix), prefix)
        return sorted(name.removesuffix("/") for name, is_folder in names if is_folder)

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects, durably; one sync per folder."""
        folders: dict[Path, list[str]] = {}
        for key in keys:
            path = self._root / check_key(key)
            folders.setdefault(path.parent, []).append(path.name)
        for folder, names in folders.items():
            with self._typed(str(folder.relative_to(self._root))):
                disk.remove_all(folder, names)

    def close(self) -> None:
        """Nothing is held open."""

    # -- writing ------------------------------------------------------------------------------------------

    def _write(self, temporary: Path, body: Body) -> None:
        """A file with this content, durable, or an error and no promise; a failed sync is never repeated."""
        file = disk.NewFile(temporary)
        try:
            for chunk in proven_chunks(body):
                file.write(chunk)
            file.finish()
        finally:
            file.close()

    def _make_folder(self, folder: Path) -> None:
        if folder not in self._made:
            disk.make_directory(folder, root=self._root)
            self._remove_leftovers(folder)
            self._made.add(folder)

    def _remove_leftovers(self, folder: Path) -> None:
        """Temporaries of processes that are long dead; what cannot be looked at or removed harms nobody."""
        oldest = self._clock.now_us() - _TEMPORARY_AGE_MAX_US
        with os.scandir(folder) as entries:
            temporaries = [Path(entry) for entry in entries if _is_temporary(entry.name)]
        for path in temporaries:
            try:
                if _modified_us(os.stat(path)) < oldest:
                    disk.discard(path)
            except OSError:
                continue

    # -- reading ------------------------------------------------------------------------------------------

    def _settle(self, folder: Path) -> None:
        """Make the names in a folder durable, once; the folder's own name is older than anything in it."""
        if folder not in self._settled:
            disk.sync_directory(folder)
            self._settled.add(folder)

    def _walk(self, folder: Path, prefix: str, after: str | None) -> Iterator[ObjectInfo]:
        for name, is_folder in self._names(folder, prefix):
            key = prefix + name
            if after is not None and key <= after and not (is_folder and after.startswith(key)):
                continue
            if is_folder:
                yield from self._walk(folder / name, key, after)
                continue
            status = self._status(f"{folder}/{name}", key)
            if status is not None:
                yield _info(key, status)

    def _status(self, path: str, key: str) -> os.stat_result | None:
        """What the file system says about an object; None when there is none (any more)."""
        try:
            status = os.stat(path)
        except _NOTHING_THERE:
            return None
        except OSError as error:
            self._refuse(key, error)
        return status if S_ISREG(status.st_mode) else None

    def _names(self, folder: Path, prefix: str) -> Sequence[tuple[str, bool]]:
        """The names in a folder, folders with their `/`, in the order that whole keys have."""
        try:
            with self._typed(prefix), self._found(prefix):
                self._settle(folder)
                with os.scandir(folder) as entries:
                    return sorted(
                        (entry.name + "/", True) if entry.is_dir(follow_symlinks=False) else (entry.name, False)
                        for entry in entries
                        if _is_ours(entry.name)
                    )
        except NotFound:
            return []

    # -- errors -------------------------------------------------------------------------------------------

    @contextmanager
    def _found(self, key: str) -> Iterator[None]:
        try:
            yield
        except _NOTHING_THERE:
            raise NotFound(f"there is no such object key={key}") from None

    @contextmanager
    def _typed(self, key: str) -> Iterator[None]:
        """Errors of the disk as errors of a store."""
        try:
            yield
        except OSError as error:
            self._refuse(key, error)

    def _refuse(self, key: str, error: OSError) -> NoReturn:
        message = f"the store's directory fails root={self._root} key={key}: {error.strerror}"
        if error.errno in _FORBIDDEN:
            raise StoreRefused(message, cause="forbidden", hint="check the directory's permissions") from error
        if error.errno in _UNSUPPORTED:
            raise StoreRefused(
                message, cause="unsupported", hint="the file system must have hard links and sync directories"
            ) from error
        raise StoreUnavailable(message, cause="disk", hint="check the disk: is it full, or failing?") from error


def _is_temporary(name: str) -> bool:
    return name.startswith(_TEMPORARY_PREFIX) and name.endswith(_TEMPORARY_SUFFIX)


def _is_ours(name: str) -> bool:
    """Whether a name may be part of a key; others are temporaries, or were not made here."""
    if name.isascii() and name.isprintable():
        return name[0] != "."
    try:
        return bool(check_key(name))
    except Invalid:
        return False


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, _modified_us(status))


def _modified_us(status: os.stat_result) -> int:
    return status.st_mtime_ns // 1000
