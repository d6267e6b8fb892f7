"""Finding the groups that are durable in files and not in the database: after a crash, or beside a living owner.

The log's own row says in which file the next group may be, and where at the earliest. From there on whole frames are
taken, each one number higher than the one before; frames of groups that the database has are passed over. Where a file
ends, the next one goes on. The first place without a whole frame of the next number is the end: a power cut may have
torn what was being written there, and none of it was acknowledged as durable.

A group is written only after the one before it was synced. So a whole frame *behind* such a place proves that something
durable was damaged: that is `Corrupt`, not an end.

A group that is whole need not be durable: its sync may be under way, or its owner was killed before it. Where the owner
says how many groups are durable, no others are taken, and there is nothing to sync. Where that is unknown, the finder
of a group syncs its file first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from holdfast.errors import Corrupt
from holdfast.journal.groups.group_files import GroupFiles
from holdfast.journal.groups.group_frame import (
    HEAD_BYTES,
    SECTOR_BYTES,
    Control,
    FrameHead,
    are_whole,
    control_of,
    head_of,
    proof_of,
    starts,
)
from holdfast.journal.groups.preallocated_file import FRAMES_BEGIN, GroupFile, SpoiledFile
from holdfast.journal.groups.unfolded_rows import UnfoldedRows

_PIECE_BYTES = 2**20


class _Doubt(NamedTuple):
    """Where a group should be and is not, although a later one was found; no later one: the file itself is none."""

    file: int
    position: int
    group: int
    found: int


class GroupScan:
    """A scan that goes on where it ended, for as long as the database stays as it is."""

    def __init__(self, files: GroupFiles) -> None:
        self.files = files
        self._began: tuple[int, int, int] | None = None
        self._late = UnfoldedRows()
        self._is_lent = False
        """A reader uses what was found so far: it must not change any more."""
        self._unsynced: set[int] = set()
        """Files in which something was found since that nobody says is durable."""
        self._durable: int | None = None
        """No group beyond this is taken; None: all that are there."""
        self._shown = 0
        """The newest group that was taken: it is durable, whatever an owner that is not as far by itself says."""
        self._at = (0, 0)
        self._doubt: _Doubt | None = None
        self._clean: set[int] = set()
        """Files behind whose last frame nothing was, since the database is as it is."""

    def late(self, groups: int, file: int, position: int, durable: int | None) -> UnfoldedRows:
        """The rows of all groups behind this many, which are in the database; the next may be at this place.

        So many groups are `durable`, as their owner says; None: nobody says it.
        """
        began = (groups, file, position)
        self._durable = None if durable is None else max(durable, self._shown)
        if began != self._began:
            self._began, self._late, self._at = began, UnfoldedRows(), (file, position)
            self._is_lent = False
            self._clean = set()
        if file <= 0 or self._late.damage is not None:
            return self._late
        doubt = self._go_on(groups)
        while doubt is not None:  # an owner may have written on meanwhile: then what was missed is there now
            before, doubt = doubt, self._go_on(groups)
            if doubt is not None and doubt[:3] == before[:3]:
                self._late.damage = _damage(self.files, doubt)
                break
        self._sync()
        self._is_lent = True
        self._shown = max(self._shown, self._late.groups)
        return self._late

    def _sync(self) -> None:
        """What was found may have been written by an owner that was killed before its sync: make it durable.

        Else a reader would show, and the next owner's database name, what a power cut may still take away.
        """
        for number in self._unsynced:
            if (file := self.files.file(number)) is not None:
                self.files.sync(file)
        self._unsynced.clear()

    def _go_on(self, groups: int) -> _Doubt | None:
        """Take what is there since; returns where something seems to be missing."""
        self._doubt = None
        group = self._late.groups or groups
        if not self._is_all(group):
            for number, at, head, control in self._frames(*self._at, group):
                self._take(number, at, head, control)
        return self._doubt

    def _is_all(self, group: int) -> bool:
        """Whether this is the newest group that is durable: what lies behind it is none of a reader's business."""
        return self._durable is not None and group >= self._durable

    def _take(self, number: int, position: int, head: FrameHead, control: Control) -> None:
        at = position + HEAD_BYTES + head.control_bytes
        entries = []
        for framed in control.entries:
            entries.append(framed.filed(number, at))
            at += framed.size
        if self._is_lent:
            self._late, self._is_lent = self._late.copy(), False
        if self._durable is None:
            self._unsynced.add(number)
        late = self._late
        late.add(head.group, entries)
        if control.sessions or control.gone:
            total = None if control.session_count is None else (control.session_count, control.session_sum)
            late.add_sessions(control.sessions, control.gone, total)
        late.proofs.append(proof_of(head, control))
        self._at = (number, position + head.size)

    def _frames(self, first: int, position: int, group: int) -> Iterator[tuple[int, int, FrameHead, Control]]:
        """Whole frames behind a group, with their places; from this place on, then in files with higher numbers."""
        for number in self.files.numbers():
            try:
                file = self.files.file(number) if number >= first else None
            except SpoiledFile:
                self._doubt = _Doubt(number, 0, group + 1, 0)
                return
            if file is None:
                continue
            at = position if number == first else FRAMES_BEGIN
            while not self._is_all(group) and (found := self._frame(file, at, group)) is not None:
                head, control = found
                if control is not None:
                    yield number, at, head, control
                group, at = max(group, head.group), at + head.size
            if self._is_all(group) or self._is_damaged(file, at, group):
                return

    def _frame(self, file: GroupFile, at: int, group: int) -> tuple[FrameHead, Control | None] | None:
        """The frame at a place: of the next group, or (without its content) of one before it."""
        if at < FRAMES_BEGIN or at % SECTOR_BYTES:
            return None
        head = head_of(file.read(at, HEAD_BYTES), file.salt)
        if head is None or head.group > group + 1:
            return None
        if head.group <= group:
            return None if self._control(file, at, head) is None else (head, None)
        control = self._whole(file, at, head)
        return None if control is None else (head, control)

    def _control(self, file: GroupFile, position: int, head: FrameHead) -> Control | None:
        if position + head.size > file.size:
            return None
        return control_of(head, file.read(position + HEAD_BYTES, head.control_bytes))

    def _whole(self, file: GroupFile, position: int, head: FrameHead) -> Control | None:
        """The control part of a frame that is whole, bodies included."""
        control = self._control(file, position, head)
        if control is None or sum(framed.size for framed in control.entries) != head.body_bytes:
            return None
        bodies = position + HEAD_BYTES + head.control_bytes
        is_whole = are_whole(control, self.files.log_id, lambda at, size: file.read(bodies + at, size))
        return control if is_whole else None

    def _is_damaged(self, file: GroupFile, position: int, group: int) -> bool:
        """Whether this file has a later group behind a place that has no whole frame of the next one.

        A head with the file's salt is enough: nobody else knows it. So this takes one reading, whatever is there.
        """
        if file.number in self._clean:
            return False
        for at in range(position, file.size, _PIECE_BYTES):
            data = file.read(at, _PIECE_BYTES + HEAD_BYTES)
            for start in starts(data, file.salt):
                head = head_of(data[start : start + HEAD_BYTES], file.salt)
                is_torn = at + start == position  # by a power cut, if it is the last one
                if head is not None and head.group > group and not (is_torn and head.group == group + 1):
                    self._doubt = _Doubt(file.number, position, group + 1, head.group)
                    return True
        self._clean.add(file.number)
        return False


def _damage(files: GroupFiles, doubt: _Doubt) -> Corrupt:
    path = str(files.path(doubt.file))
    if not doubt.found:
        return Corrupt(f"a file of groups does not begin as this log writes them file={doubt.file}", path=path)
    return Corrupt(
        f"a group cannot be read, and later ones can file={doubt.file} position={doubt.position}"
        f" group={doubt.group} found={doubt.found}",
        path=path,
        hint="put the newest copy of the whole directory back; from a copy made piece by piece while its owner wrote,"
        " holdfast rebuild recovers what exists",
    )
