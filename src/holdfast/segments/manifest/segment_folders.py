"""The contents of the segments' folders: names and sizes as found. Nothing is judged or changed here.

A folder or a file that vanishes meanwhile was removed on purpose; it is simply not there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from hashlib import file_digest
from pathlib import Path

from holdfast import disk
from holdfast.model.segment import StoredFile
from holdfast.store import layout


def names(folder: Path) -> list[str]:
    """The names in a folder; none when there is no such folder."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def listing(folder: Path) -> tuple[dict[int, list[StoredFile]], list[StoredFile]]:
    """The files of a folder with their sizes, by number; and those whose names have none."""
    numbered: dict[int, list[StoredFile]] = {}
    others: list[StoredFile] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                listed = _listed(entry)
                if listed is None:
                    continue
                finished = layout.parse_segment_name(entry.name)
                number = finished.number if finished is not None else layout.parse_temporary_name(entry.name)
                if number is None:
                    others.append(listed)
                else:
                    numbered.setdefault(number, []).append(listed)
    except (FileNotFoundError, NotADirectoryError):
        pass
    return numbered, others


def _listed(entry: os.DirEntry[str]) -> StoredFile | None:
    try:
        return StoredFile(entry.name, entry.stat(follow_symlinks=False).st_size)
    except FileNotFoundError:
        return None


def walk(root: Path, skip: Callable[[Path], bool]) -> Iterator[Path]:
    """All files below a folder, without following links; `skip` says which folders to leave out."""
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        if folder != root and skip(folder):
            continue
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            continue
        for entry in entries:
            path = Path(entry.path)
            if entry.is_dir(follow_symlinks=False):
                waiting.append(path)
            else:
                yield path


def free(path: Path, *, folder: bool = False) -> Path:
    """This path, or one beside it, that is still free; with `folder`, an existing folder is as good as free."""
    found, number = path, 0
    while os.path.lexists(found) and not (folder and found.is_dir()):
        number += 1
        found = path.with_name(f"{path.name}.{number}")
    return found


def size(path: Path) -> int | None:
    """The size of a file; None when it is not there."""
    try:
        return path.lstat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_same(path: Path, size_due: int, sha256_due: bytes) -> bool:
    """Whether a file has this size and this hash."""
    return size(path) == size_due and sha256(path) == sha256_due


def sha256(path: Path) -> bytes:
    """The SHA-256 of a file; empty when it cannot be read."""
    try:
        with open(disk.open_file(path), "rb") as stream:
            return file_digest(stream, "sha256").digest()
    except (OSError, disk.NotRegular):
        return b""
