"""The recording: what is certainly durable below the root, and what was done since.

The shims report each change, after it happened; it never touches the files itself, except to read the initial contents
once. It owns three things:

* `names`, the names as the running program sees them;
* the durable picture: names and contents that survive whatever happens. Contents are bytearrays that a
  sync moves forward by the changes it covers, so a sync costs what was written, not what the file holds;
* the pending changes, in the order in which they happened: each may or may not survive a power cut.

What makes a change durable:

* the content of a file: a successful sync of that file, and of no other;
* a name: a sync of its directory. SQLite syncs the directory with the first sync of a journal or WAL that
  it opened, and the VFS shim says so. The name of a file that SQLite syncs is taken as durable with it, as
  Linux filesystems do it; for files written through `os` only the directory's own sync counts.

A failed sync loses the pending content of its file for good, although the program still reads it: Linux
marks the pages clean, and the next sync succeeds without them. A name that was not synced stays pending.

Losing a change is modelled per byte. All of it is guarded by one lock, held only for bookkeeping.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from holdfast.testing.disk_change import (
    Change,
    DataChange,
    LinkChange,
    NameChange,
    RenameChange,
    TruncateChange,
    UnlinkChange,
    WriteChange,
    change_data,
    change_names,
)
from holdfast.testing.power_cut import PowerCut


class Recording:
    """The durable picture of a directory tree and the changes that are not yet in it."""

    def __init__(self, root: Path, *, enabled: bool) -> None:
        self.enabled = enabled
        self._root = root
        self._names: dict[str, int] = {}
        self._durable_names: dict[str, int] = {}
        self._durable: dict[int, bytearray | None] = {}
        self._frozen: dict[int, bytes | None] = {}
        self._pending: list[Change] = []
        self._lock = threading.RLock()
        if enabled:
            self._adopt_all()

    def opened(self, name: str, *, existed: bool) -> int:
        """A file is open, and was created if it did not exist; returns its inode.

        Of a file that existed this may be said before it is opened, and must be if opening truncates it.
        """
        with self._lock:
            if existed and name in self._names:
                return self._names[name]
            return self._adopt(name) if existed else self._create(name, bytearray())

    def made_directory(self, name: str) -> None:
        """A directory was created."""
        with self._lock:
            self._create(name, None)

    def wrote(self, inode: int, name: str, offset: int, data: bytes) -> None:
        """Bytes were written; nothing says they are durable."""
        self._note(WriteChange(inode, name, offset, data))

    def truncated(self, inode: int, name: str, size: int) -> None:
        """A file got another size."""
        self._note(TruncateChange(inode, name, size))

    def unlinked(self, name: str) -> None:
        """A name was removed."""
        with self._lock:
            self._rename_now(UnlinkChange(name))

    def renamed(self, source: str, target: str) -> None:
        """A name was moved over another; the source was `opened` at some time, or made as a directory."""
        with self._lock:
            self._rename_now(RenameChange(source, target, self._names[source]))

    def linked(self, source: str, target: str) -> None:
        """A file got a second name; the source was `opened` at some time."""
        with self._lock:
            self._rename_now(LinkChange(target, self._names[source]))

    def synced(self, inode: int) -> None:
        """The file's content is durable."""
        with self._lock:
            image = self._durable[inode]
            for change in self._take(lambda change: isinstance(change, DataChange) and change.inode == inode):
                if image is not None and isinstance(change, DataChange):
                    change_data(image, change)
                    self._frozen.pop(inode, None)

    def sync_failed(self, inode: int) -> None:
        """The file's pending content is lost, and no later sync brings it back."""
        with self._lock:
            self._take(lambda change: isinstance(change, DataChange) and change.inode == inode)

    def name_synced(self, inode: int) -> None:
        """The file's own name is durable."""
        self._settle_names(lambda change: isinstance(change, LinkChange | RenameChange) and change.inode == inode)

    def directory_synced(self, directory: str) -> None:
        """Every name directly in the directory is durable, and so is every deletion there."""
        self._settle_names(lambda change: any(parent(name) == directory for name in change.names))

    def snapshot(self) -> PowerCut:
        """The moment, as a value; copies only the contents that moved since the last snapshot."""
        with self._lock:
            for inode, image in self._durable.items():
                if inode not in self._frozen:
                    self._frozen[inode] = None if image is None else bytes(image)
            return PowerCut(dict(self._durable_names), dict(self._frozen), tuple(self._pending))

    def _note(self, change: Change) -> None:
        with self._lock:
            if self.enabled:
                self._pending.append(change)

    def _rename_now(self, change: NameChange) -> None:
        change_names(self._names, change)
        self._note(change)

    def _create(self, name: str, image: bytearray | None) -> int:
        for above in PurePosixPath(name).parents:
            if str(above) != "." and str(above) not in self._names:
                self._adopt(str(above))
        inode = len(self._durable)
        self._durable[inode] = image
        self._rename_now(LinkChange(name, inode))
        return inode

    def _adopt(self, name: str) -> int:
        """Take in something that was made behind our back: it counts as durable as it is."""
        inode = len(self._durable)
        path = self._root / name
        content = path.read_bytes() if self.enabled and path.is_file() else b""
        self._durable[inode] = None if path.is_dir() else bytearray(content)
        self._names[name] = self._durable_names[name] = inode
        return inode

    def _adopt_all(self) -> None:
        for above, directories, files in os.walk(self._root):
            for name in (*directories, *files):
                if not name.endswith("-shm"):
                    self._adopt((Path(above) / name).relative_to(self._root).as_posix())

    def _take(self, chosen: Callable[[Change], bool]) -> list[Change]:
        taken = [change for change in self._pending if chosen(change)]
        if taken:
            self._pending = [change for change in self._pending if not chosen(change)]
        return taken

    def _settle_names(self, chosen: Callable[[NameChange], bool]) -> None:
        # Names settle in order: whatever happened earlier to the same name is settled with it, or a
        # deletion left pending could later strike the file that has taken the name since.
        with self._lock:
            settled: set[int] = set()
            touched: set[str] = set()
            for index in reversed(range(len(self._pending))):
                change = self._pending[index]
                if isinstance(change, NameChange) and (chosen(change) or touched.intersection(change.names)):
                    settled.add(index)
                    touched.update(change.names)
            for index in sorted(settled):
                change = self._pending[index]
                assert isinstance(change, NameChange)
                change_names(self._durable_names, change)
            self._pending = [change for index, change in enumerate(self._pending) if index not in settled]


def parent(name: str) -> str:
    """The directory of a name below the root; the root itself is "."."""
    return str(PurePosixPath(name).parent)
