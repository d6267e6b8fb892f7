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

Files below the root are untrusted. The root itself may be a link; nothing below it is followed, and nothing but a
regular file is an object: links, pipes, devices and sockets are not listed, and `Corrupt` where they are requested.
Sizes are checked before anything is read, and a folder with more names than any log has is refused.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO, NoReturn

from holdfast import disk
from holdfast.clock import Clock
from holdfast.errors import Corrupt, Invalid, NotFound
from holdfast.store import object_limits
from holdfast.store.byte_ranges import check_range, require_length
from holdfast.store.object_keys import check_key, check_prefix
from holdfast.store.port import AlreadyExists, Body, ObjectInfo, StoreRefused, StoreUnavailable
from holdfast.store.proven_body import proven_chunks

_TEMPORARY_PREFIX, _TEMPORARY_SUFFIX = ".holdfast-", ".tmp"
_TEMPORARY_AGE_MAX_US = 86_400 * 10**6

NAMES_MAX = 2**22
"""Names in one folder: four million segments of a partition, far more than memory and time allow elsewhere."""

_FORBIDDEN = (errno.EACCES, errno.EROFS)
_UNSUPPORTED = (errno.EPERM, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)
_NOTHING_THERE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


def is_temporary(name: str) -> bool:
    """Whether a file is one that a store in this directory is writing, or was when it died."""
    return name.startswith(_TEMPORARY_PREFIX) and name.endswith(_TEMPORARY_SUFFIX)


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
                self._made.discard(target.parent)  # the folder was removed; the next attempt makes it again
                raise
            finally:
                disk.discard(temporary)

    def get(self, key: str, bytes_max: int | None = None) -> bytes:
        """The whole object."""
        with self._opened(key) as stream:
            size = object_limits.require(key, os.fstat(stream.fileno()).st_size, bytes_max)
            return require_length(stream.read(size), key, size)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """A part of an object."""
        check_range(start, length)
        with self._opened(key) as stream:
            there = max(0, os.fstat(stream.fileno()).st_size - start)  # before memory is taken for it
            stream.seek(start)
            return require_length(stream.read(min(length, there)), key, length)

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
        return sorted(name.removesuffix("/") for name in names if name.endswith("/"))

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
            temporaries = [Path(entry) for entry in entries if is_temporary(entry.name)]
        for path in temporaries:
            try:
                if _modified_us(os.stat(path)) < oldest:
                    disk.discard(path)
            except OSError:
                continue

    # -- reading ------------------------------------------------------------------------------------------

    @contextmanager
    def _opened(self, key: str) -> Iterator[BinaryIO]:
        """An object's file."""
        path = self._root / check_key(key)
        with self._typed(key), self._found(key):
            self._settle(path.parent)
            try:
                descriptor = disk.open_file(path)
            except disk.NotRegular:
                raise _not_regular(path) from None
            with open(descriptor, "rb") as stream:
                yield stream

    def _settle(self, folder: Path) -> None:
        """Make the names in a folder durable, once; the folder's own name is older than anything in it."""
        if folder not in self._settled:
            for below in (folder, *folder.parents):
                if below == self._root:
                    break
                if below.is_symlink():
                    raise _not_regular(below)
            disk.sync_directory(folder)
            self._settled.add(folder)

    def _walk(self, folder: Path, prefix: str, after: str | None) -> Iterator[ObjectInfo]:
        for name in self._names(folder, prefix, after):
            key = prefix + name
            if name.endswith("/"):
                yield from self._walk(folder / name, key, after)
                continue
            status = self._status(f"{folder}/{name}", key)
            if status is not None:
                yield _info(key, status)

    def _status(self, path: str, key: str) -> os.stat_result | None:
        """What the file system says about an object; None when there is none (any more)."""
        try:
            status = os.lstat(path)
        except _NOTHING_THERE:
            return None
        except OSError as error:
            self._refuse(key, error)
        return status if S_ISREG(status.st_mode) else None

    def _names(self, folder: Path, prefix: str, after: str | None = None) -> Sequence[str]:
        """The names in a folder, folders with their `/`, in the order that whole keys have; only those that are behind
        `after`, or may hold what is. All names are held at once, because a disk gives them in no order.
        """
        names: list[str] = []
        try:
            with self._typed(prefix), self._found(prefix):
                self._settle(folder)
                with os.scandir(folder) as entries:
                    for entry in entries:
                        name = _ours(entry)
                        if name and (after is None or _may_follow(prefix + name, after)):
                            names.append(name)
                        if len(names) > NAMES_MAX:
                            raise Corrupt(
                                f"a folder of the store has more names than it can have max={NAMES_MAX}",
                                path=str(folder),
                                hint="another program put them there",
                            )
        except NotFound:
            return []
        return sorted(names)

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
        hint = disk.remedy(error, "check the disk: is it failing?")
        raise StoreUnavailable(message, cause="disk", hint=hint) from error


def _ours(entry: os.DirEntry[str]) -> str:
    """A name that may be part of a key, with a `/` for a folder; empty for temporaries and what was not made here."""
    name = entry.name
    if name.isascii() and name.isprintable():
        is_ours = name[0] != "."
    else:
        try:
            is_ours = bool(check_key(name))
        except Invalid:
            is_ours = False
    return "" if not is_ours else name + "/" if entry.is_dir(follow_symlinks=False) else name


def _may_follow(key: str, after: str) -> bool:
    """Whether a key, or something in a folder, comes behind another key."""
    return key > after or (key.endswith("/") and after.startswith(key))


def _not_regular(path: Path) -> Corrupt:
    return Corrupt("this is no regular file or folder", path=str(path), hint="a link, a pipe or a device is there")


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, _modified_us(status))


def _modified_us(status: os.stat_result) -> int:
    return status.st_mtime_ns // 1000
