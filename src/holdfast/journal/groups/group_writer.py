"""The owner's way to the files of groups: one is written, one is prepared, those with nothing left in them come back.

A file is prepared before it is needed, by a thread of its own, because zeros for a whole file take longer than a commit
may: slowly at first, so that no group's sync waits behind them, and as fast as it goes once half of the present file is
used. Where the next one is not ready, or a frame is too large for any, `has_place` says no, and the group goes through
the database: nobody ever waits for a file. The first one is small, and each next one four times as large as the one
before it, up to a limit: a log that is opened for a few records costs next to nothing.

A file is free once the last entry whose body lies in it was trimmed, durably. Then it is reused under another number,
if it was begun by this very owner; one of an earlier owner is removed, for that owner may still be alive somewhere,
about to write into it.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Mapping, Sequence
from threading import Thread
from typing import NamedTuple

from holdfast import disk
from holdfast.errors import Closed, Unavailable
from holdfast.journal.groups.group_files import GroupFiles, unreadable
from holdfast.journal.groups.preallocated_file import FENCE_BYTES, FRAMES_BEGIN, SALT_BYTES, GroupFile, SpoiledFile
from holdfast.model.control_rows import DiskFailed
from holdfast.signals import Flag

FIRST_BYTES = 128 * 2**10
_SOON_BYTES = FIRST_BYTES // 4
"""A file with less than this in it may be the last one: nothing is prepared behind it."""
_FEW_FRAMES = 16
"""Where no more frames than this fit into a file, the next one is needed soon."""
_GROWTH = 4
_FILES_KEPT = 4
_MOVED_MAX = 2**20
"""Beyond so many files, what is left in one is moved into the database if it has no more bytes than this."""
_PAUSE_GROUPS = 1000
"""After so many groups a file is tried again, if one could not be prepared."""

logger = logging.getLogger("holdfast.journal")


class GroupFileEntries(NamedTuple):
    """Entries in a file, and the bytes of their bodies."""

    entries: int
    bytes: int


_NOTHING = GroupFileEntries(0, 0)


class GroupWriter:
    """What one owner writes, on the writer's thread."""

    def __init__(
        self,
        files: GroupFiles,
        random_bytes: Callable[[int], bytes],
        live: Mapping[int, GroupFileEntries],
        first: int,
        bytes_max: int,
        require_place: Callable[[], None],
        prove_ownership: Callable[[], None],
    ) -> None:
        self._files = files
        self._require_place = require_place
        self._prove_ownership = prove_ownership
        self._bytes_max = bytes_max
        self._random_bytes = random_bytes
        self._live = dict(live)
        """What lies in each file."""
        self._next = self._first = first
        self._current: GroupFile | None = None
        self._spare: GroupFile | None = None
        self._mine: dict[int, GroupFile] = {}
        """Files that were begun here and have entries, or are being written."""
        self._empty: list[GroupFile] = []
        self._preparing: Thread | None = None
        self._hurry = Flag()
        """The file that is being prepared is needed soon."""
        self._made: set[int] = set()
        """Numbers under which this owner made files: those of another owner are none of its business."""
        self._is_over = not bytes_max
        self._pause = 0
        self.keep_free = 0
        """No file is prepared that would leave less than this on the disk: its zeros must not pass the disk guard."""

    @property
    def number(self) -> int:
        """The file that is being written, or that will be the first; 0 where there will be none."""
        return self._first if self._current is None else self._current.number

    @property
    def used(self) -> int:
        """Where the next frame would begin in it."""
        if self._current is None:
            return FRAMES_BEGIN if self._first else 0
        return self._current.used

    @property
    def salt(self) -> bytes:
        """Of the file that is being written."""
        return b"" if self._current is None else self._current.salt

    # -- writing ------------------------------------------------------------------------------------------

    def has_place(self, size: int) -> bool:
        """Whether a frame of so many bytes can be written now; if not, a file that could take it is prepared."""
        current = self._current
        if current is not None and current.room >= size:
            if self._spare is None and current.used > max(_SOON_BYTES, current.size // 16):
                self._prepare(0)
                if 2 * current.used > current.size or _FEW_FRAMES * size > current.size:
                    self._hurry.set()
            return True
        if size > self._bytes_max - FRAMES_BEGIN or self._is_over or self._is_pausing():
            return False
        if current is None and self._preparing is None:
            self._make_first()
        spare = self._spare
        if spare is None or spare.size - FRAMES_BEGIN < size:
            self._prepare(size)
            self._hurry.set()
            return False
        return self._begin(spare)

    @property
    def room(self) -> int:
        """Bytes that are left in the file that is being written."""
        return 0 if self._current is None else self._current.room

    def check_owned(self) -> None:
        """Raise if another process has taken the log over, or has removed the file, as all of the directory may be."""
        if self._current is None:
            return
        if self._current.is_fenced():
            raise Closed("another process has taken this log over", reason="fenced")
        if not self._current.is_linked():
            raise Closed(
                f"the log's directory, or its file of groups, was removed path={self._current.path}",
                reason="fenced",
                hint="end this process; restore the log from its store, or bring the directory back from a copy",
            )

    def write(self, frame: Sequence[bytes | memoryview], size: int) -> None:
        """Make a frame durable; raises Unavailable where nothing of it was written."""
        current = self._current
        assert current is not None
        try:
            current.write(frame, size)
        except OSError as error:
            if disk.ran_full(error):  # at most a part of it is there, and no part of a frame counts
                raise Unavailable(
                    f"the disk is full; nothing was written path={current.path}", hint=disk.FULL_HINT
                ) from error
            raise DiskFailed(f"a file of groups could not be written: {error}") from error
        try:
            current.sync()
        except OSError as error:
            raise DiskFailed(f"a file of groups could not be synced: {error}") from error
        self.check_owned()

    def add(self, entries: int, size: int) -> None:
        """So many entries of the newest frame lie in the file, with bodies of so many bytes."""
        before = self._live.get(self.number, _NOTHING)
        self._live[self.number] = GroupFileEntries(before.entries + entries, before.bytes + size)

    def _begin(self, file: GroupFile) -> bool:
        """Write to this file from now on; False where the disk is too full even for that."""
        before, self._spare = self._current, None
        self._require_place()
        try:
            file.begin(self._files.log_id, self._random_bytes(SALT_BYTES))
        except OSError as error:
            if disk.ran_full(error):
                self._give_up(error)
                return False
            raise DiskFailed(f"a file of groups could not be begun: {error}") from error
        # The next owner marks the files that it finds: so this one must be there before that is asked.
        self._prove_ownership()
        self._current = self._mine[file.number] = file
        self._files.keep(file)
        if before is not None and self._is_empty(before.number):
            self._retire(before.number)
        return True

    # -- preparing ----------------------------------------------------------------------------------------

    def _make_first(self) -> None:
        """The first file is so small that it is made at once."""
        self._require_place()
        try:
            disk.make_directory(self._files.folder)
            self._spare = GroupFile.create(self._files.path(self._next), self._next, min(FIRST_BYTES, self._bytes_max))
            self._made.add(self._next)
        except OSError as error:
            self._give_up(error)
        self._next += 1

    def _prepare(self, size: int) -> None:
        """Have the next file prepared, large enough for a frame of so many bytes."""
        if (self._preparing is not None and self._preparing.is_alive()) or self._is_over or self._pause:
            return
        self._require_place()
        before = 0 if self._current is None else self._current.size
        wanted = max(FIRST_BYTES, before * _GROWTH)
        while wanted < 2 * size:
            wanted *= _GROWTH
        wanted = min(wanted, self._bytes_max)
        kept = next((file for file in self._empty if file.size >= max(before, size + FRAMES_BEGIN)), None)
        if kept is not None:
            self._empty.remove(kept)
        number, self._next = self._next, self._next + 1
        unfit, self._spare = self._spare, None
        self._hurry.clear()
        self._preparing = Thread(
            target=self._prepare_now, args=(kept, unfit, number, wanted), name="holdfast-group-files", daemon=True
        )
        self._preparing.start()

    def _prepare_now(self, kept: GroupFile | None, unfit: GroupFile | None, number: int, size: int) -> None:
        try:
            if unfit is not None:
                disk.remove(unfit.path)
            path = self._files.path(number)
            if kept is not None:
                kept.give_away(path, number)
            if kept is None and self.keep_free and disk.free_bytes(self._files.folder) - size < self.keep_free:
                raise OSError(errno.ENOSPC, "it would leave less free than disk.free_bytes_min")
            spare = kept or GroupFile.create(path, number, size, self._hurry)
            self._made.add(number)
            self._spare = spare
        except OSError as error:
            self._give_up(error)

    def _is_pausing(self) -> bool:
        """Whether no file is tried for the next groups, because one could not be prepared."""
        self._pause = max(0, self._pause - 1)
        return self._pause > 0

    def _give_up(self, error: OSError) -> None:
        """Groups go through the database for a while: just as durable, only slower."""
        self._pause = _PAUSE_GROUPS
        logger.warning(
            "no file of groups could be prepared: %s",
            error.strerror,
            extra={"action": "group_file_failed", "path": str(self._files.folder)},
        )

    # -- coming back --------------------------------------------------------------------------------------

    def trimmed(self, gone: Mapping[int, GroupFileEntries]) -> None:
        """What of these files is gone, durably."""
        for number, (entries, size) in gone.items():
            before = self._live.get(number, _NOTHING)
            left = self._live[number] = GroupFileEntries(before.entries - entries, before.bytes - size)
            if left.entries <= 0 and number != self.number:
                self._retire(number)

    def nearly_empty(self) -> int | None:
        """A file with so little left in it that this is better moved; what is idle would keep it for long."""
        if len(self._live) <= _FILES_KEPT:
            return None
        fits = (number for number, held in self._live.items() if held.bytes <= _MOVED_MAX and number != self.number)
        return next(fits, None)

    def _is_empty(self, number: int) -> bool:
        return self._live.get(number, _NOTHING).entries <= 0

    def _retire(self, number: int) -> None:
        """Nothing lies in this file any more."""
        self._live.pop(number, None)
        self._files.forget(number)
        file = self._mine.pop(number, None)
        if file is not None and not self._empty and self._current is not None and file.size >= self._current.size:
            self._empty.append(file)
        else:
            disk.discard(self._files.path(number))

    def remove_unused(self) -> None:
        """Remove what an earlier owner left and nobody needs."""
        for number in self._files.numbers():
            if self._is_empty(number):
                disk.discard(self._files.path(number))

    def close(self) -> None:
        """Remove all files in which nothing lies; by an owner who ends in good order."""
        self._is_over = True
        self._hurry.set()
        if self._preparing is not None:
            self._preparing.join()
        self._current = self._spare = None
        self._empty.clear()
        self._mine.clear()
        for number in self._files.numbers():
            if self._is_empty(number) and (number < self._first or number in self._made):
                self._files.forget(number)
                disk.discard(self._files.path(number))


def fence(files: GroupFiles, random_bytes: Callable[[int], bytes]) -> None:
    """Before a log is recovered, with its database locked: an old writer of its files must stop."""
    for number in files.numbers():
        try:
            file = GroupFile.open(files.path(number), number, files.log_id, write=True)
            if file is not None:
                file.fence(random_bytes(FENCE_BYTES))
        except SpoiledFile:
            pass  # nobody writes there; the scan tells
        except OSError as error:
            raise unreadable(files.path(number), error) from error
