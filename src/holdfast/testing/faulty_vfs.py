"""The VFS shim: what SQLite does to files below the root is counted, failed and recorded here.

It derives from the VFS that was the default before it, so locks, shared memory and everything that is not
listed here go straight to the real one; WAL and several connections work as ever. Files elsewhere, and
temporary files without a name, are opened by the real VFS and never seen again.

A step happens in this order: the gate is consulted; if the step is to fail nothing is done (a short write does half)
and the error is raised; else the real file is changed, and then the change is recorded.

Two deliberate departures from a plain shim:

* A sync of a file below the root is not passed on. Its only effect would be to make the test slow:
  the recording says what is durable, and the process losing power is not something a test survives.
* The first sync of a journal or WAL counts as a sync of its directory too, because SQLite's unix VFS
  does exactly that inside its own sync, where no shim can see it.
"""

# ruff: noqa: N802 (the names of the methods are SQLite's)

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import apsw

from holdfast.testing.fault import Op
from holdfast.testing.recording import Recording, parent
from holdfast.testing.step_gate import StepGate

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

_SYNCS_DIRECTORY = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL


class FaultyVFS(apsw.VFS):
    """Hands out `FaultyFile`s for what lies below the root."""

    def __init__(self, name: str, base: str, gate: StepGate, recording: Recording) -> None:
        super().__init__(name, base)
        self._base, self._gate, self._recording = base, gate, recording

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        """Open a file, ours if it lies below the root."""
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        below = None if path is None else self._gate.name_of(path)
        if path is None or below is None:
            return PassingFile(self._base, name, flags)
        _pass(self._gate, "open", below)
        existed = os.path.lexists(path)
        file = FaultyFile(self._base, name, flags, below, self._gate, self._recording)
        file.inode = self._recording.opened(below, existed=existed)
        return file

    def xDelete(self, filename: str, syncdir: bool) -> None:
        """Delete a file, and sync its directory if SQLite asks for it."""
        below = self._gate.name_of(filename)
        if below is None:
            super().xDelete(filename, syncdir)
            return
        _pass(self._gate, "delete", below)
        super().xDelete(filename, False)
        self._recording.unlinked(below)
        if syncdir:
            self._recording.directory_synced(parent(below))


class PassingFile(apsw.VFSFile):
    """One open file, whose steps go straight to the real one."""

    def __init__(self, base: str, filename: str | apsw.URIFilename | None, flags: list[int]) -> None:
        super().__init__(base, filename, flags)
        self._read_only = bool(flags[1] & apsw.SQLITE_OPEN_READONLY)

    def xLock(self, level: int) -> None:
        """Lock; where a file that was opened for reading cannot be locked for writing, that is no error."""
        try:
            super().xLock(level)
        except apsw.IOError:
            # SQLite tries this when it closes a reader and takes a no for an answer; apsw would raise it, but not BUSY.
            if not self._read_only:
                raise
            raise apsw.BusyError("opened for reading only") from None


class FaultyFile(PassingFile):
    """One open file below the root."""

    inode: int

    def __init__(
        self,
        base: str,
        filename: str | apsw.URIFilename | None,
        flags: list[int],
        name: str,
        gate: StepGate,
        recording: Recording,
    ) -> None:
        super().__init__(base, filename, flags)
        self._name, self._gate, self._recording = name, gate, recording
        self._directory_due = bool(flags[0] & apsw.SQLITE_OPEN_CREATE and flags[0] & _SYNCS_DIRECTORY)

    def xRead(self, amount: int, offset: int) -> bytes:
        """Read; a step that changes nothing."""
        _pass(self._gate, "read", self._name)
        return super().xRead(amount, offset)

    def xWrite(self, data: Buffer, offset: int) -> None:
        """Write all, nothing, or half."""
        content = bytes(data)
        step, fault = self._gate.enter("write", self._name)
        if fault is not None and fault.kind != "short_write":
            raise fault.as_sqlite(step)
        kept = content if fault is None else content[: len(content) // 2]
        super().xWrite(kept, offset)
        self._recording.wrote(self.inode, self._name, offset, kept)
        if fault is not None:
            raise fault.as_sqlite(step)

    def xTruncate(self, newsize: int) -> None:
        """Give the file another size."""
        _pass(self._gate, "truncate", self._name)
        super().xTruncate(newsize)
        self._recording.truncated(self.inode, self._name, newsize)

    def xSync(self, flags: int) -> None:
        """Make durable what was written, or lose it."""
        step, fault = self._gate.enter("sync", self._name)
        if fault is not None:
            self._recording.sync_failed(self.inode)
            raise fault.as_sqlite(step)
        self._recording.synced(self.inode)
        self._recording.name_synced(self.inode)
        if self._directory_due:
            self._recording.directory_synced(parent(self._name))
            self._directory_due = False


def _pass(gate: StepGate, op: Op, name: str) -> None:
    step, fault = gate.enter(op, name)
    if fault is not None:
        raise fault.as_sqlite(step)
