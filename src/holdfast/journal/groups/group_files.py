"""The group files of one log, as readers see them: by their numbers.

They lie in `groups/` beside the database, each named by its number in 20 digits. Reading needs no lock. A body is
fetched, then its file is checked for being still the one that was meant. If not, the entry was sealed and trimmed
meanwhile, and the reader finds its records in a segment.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from holdfast import disk
from holdfast.errors import Unavailable
from holdfast.journal.groups.preallocated_file import GroupFile, SpoiledFile

_FOLDER = "groups"
_DIGITS = 20
NUMBER_MAX = 2**62
"""A number beyond this is damage."""
_KEPT = 64
"""Files that are kept open for the next reader."""


class GroupFiles:
    """The files of one log, for reading."""

    def __init__(self, database: Path) -> None:
        self.folder = database.parent / _FOLDER
        self.log_id = b""
        """Set once it is known; a file of another log is none."""
        self._open: dict[int, GroupFile] = {}

    def path(self, number: int) -> Path:
        """Where the file of a number lies."""
        return self.folder / f"{number:0{_DIGITS}d}"

    def numbers(self) -> list[int]:
        """The numbers of all files that are there, in order."""
        try:
            names = os.listdir(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise unreadable(self.folder, error) from error
        numbers = (int(name) for name in names if len(name) == _DIGITS and name.isascii() and name.isdigit())
        return sorted(number for number in numbers if 0 < number <= NUMBER_MAX)

    def file(self, number: int) -> GroupFile | None:
        """The file of a number, if it is there and was begun; raises `SpoiledFile` where something else is there."""
        kept = self._open.get(number)
        if kept is not None and kept.is_still(self.log_id):
            return kept
        self._open.pop(number, None)
        try:
            found = GroupFile.open(self.path(number), number, self.log_id)
        except OSError as error:
            raise unreadable(self.path(number), error) from error
        if found is not None:
            self.keep(found)
        return found

    def keep(self, file: GroupFile) -> None:
        """Remember an open file."""
        for oldest in tuple(self._open)[: len(self._open) - _KEPT + 1]:  # a copy: readers of other threads are in here
            self._open.pop(oldest, None)
        self._open[file.number] = file

    def forget(self, number: int) -> None:
        """The file of this number is no more."""
        self._open.pop(number, None)

    def body(self, number: int, position: int, size: int) -> bytes | None:
        """A body; None where its file is gone, or serves another purpose by now."""
        try:
            file = self._open.get(number) or self.file(number)
        except SpoiledFile:
            return None
        if file is None or not (0 <= size <= file.size and 0 <= position <= file.size):
            return None
        try:
            data = file.read(position, size)
        except OSError as error:
            raise unreadable(file.path, error) from error
        if len(data) == size and file.is_still(self.log_id):
            return data
        self.forget(number)
        return None

    def sync(self, file: GroupFile) -> None:
        """Make durable what was read of a file, from any writer."""
        try:
            file.sync()
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EINVAL):  # nobody writes where that is the answer
                raise unreadable(file.path, error) from error

    def close(self) -> None:
        """Let go of all files; a reader that is still at it keeps the one that it reads."""
        self._open = {}


def unreadable(path: Path, error: OSError) -> Unavailable:
    """What stands there is no file, or cannot be read."""
    return Unavailable(
        f"cannot read a file of groups path={path}: {error.strerror}",
        hint=disk.remedy(error, "check the disk, and that nothing else was put there"),
    )
