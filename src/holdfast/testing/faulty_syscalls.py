"""The system-call shim: what holdfast itself does to files below the root, counted, failed and recorded.

It stands in for the `os` module where `holdfast.disk` looks for it, and answers every name that `os` has.
The calls that change files are its own; the rest, and every path or descriptor outside the root, go to `os`
unchanged. Descriptors are real ones, so locks on them work.

Strict where SQLite's files are treated kindly: a name is durable only after its directory was synced, and a
rename says nothing about the content of what was renamed. Syncs below the root are not passed on (see
`faulty_vfs`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.testing.fault import Op
from holdfast.testing.recording import Recording
from holdfast.testing.step_gate import StepGate

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]


@dataclass(frozen=True, slots=True)
class _Handle:
    name: str
    inode: int | None  # None for a directory
    appends: bool


class FaultySyscalls:
    """Looks like `os`; breaks on request."""

    def __init__(self, gate: StepGate, recording: Recording) -> None:
        self._gate, self._recording = gate, recording
        self._handles: dict[int, _Handle] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: AnyPath, flags: int, mode: int = 0o777, **more: Any) -> int:
        """As `os.open`; a step, and maybe a creation or a truncation."""
        name = self._gate.name_of(path)
        if name is None:
            return os.open(path, flags, mode, **more)
        self._pass("open", name)
        existed = os.path.lexists(path)
        if existed and not os.path.isdir(path):
            self._recording.opened(name, existed=True)
        descriptor = os.open(path, flags, mode, **more)
        self._handles[descriptor] = self._handle(name, flags, existed, os.path.isdir(path))
        return descriptor

    def close(self, descriptor: int) -> None:
        """As `os.close`; not a step."""
        self._handles.pop(descriptor, None)
        os.close(descriptor)

    def write(self, descriptor: int, data: Buffer) -> int:
        """As `os.write`, at the position the descriptor has."""
        handle = self._handles.get(descriptor)
        if handle is None:
            return os.write(descriptor, data)
        end = os.fstat(descriptor).st_size
        offset = end if handle.appends else os.lseek(descriptor, 0, os.SEEK_CUR)
        content, failure = self._cut(handle, bytes(data))
        return self._wrote(handle, offset, content, os.write(descriptor, content), failure)

    def pwrite(self, descriptor: int, data: Buffer, offset: int) -> int:
        """As `os.pwrite`."""
        handle = self._handles.get(descriptor)
        if handle is None:
            return os.pwrite(descriptor, data, offset)
        content, failure = self._cut(handle, bytes(data))
        return self._wrote(handle, offset, content, os.pwrite(descriptor, content, offset), failure)

    def pwritev(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        """As `os.pwritev`."""
        return self.pwrite(descriptor, b"".join(buffers), offset)

    def ftruncate(self, descriptor: int, length: int) -> None:
        """As `os.ftruncate`."""
        handle = self._handles.get(descriptor)
        if handle is None or handle.inode is None:
            os.ftruncate(descriptor, length)
            return
        self._pass("truncate", handle.name)
        os.ftruncate(descriptor, length)
        self._recording.truncated(handle.inode, handle.name, length)

    def fsync(self, descriptor: int) -> None:
        """As `os.fsync`, but nothing below the root is synced for real."""
        handle = self._handles.get(descriptor)
        if handle is None:
            os.fsync(descriptor)
            return
        step, fault = self._gate.enter("sync", handle.name)
        if fault is not None:
            if handle.inode is not None:
                self._recording.sync_failed(handle.inode)
            raise fault.as_os(step)
        if handle.inode is None:
            self._recording.directory_synced(handle.name)
        else:
            self._recording.synced(handle.inode)

    fdatasync = fsync

    def mkdir(self, path: AnyPath, mode: int = 0o777, **more: Any) -> None:
        """As `os.mkdir`."""
        name = self._gate.name_of(path)
        if name is None:
            os.mkdir(path, mode, **more)
            return
        self._pass("mkdir", name)
        os.mkdir(path, mode, **more)
        self._recording.made_directory(name)

    def unlink(self, path: AnyPath, **more: Any) -> None:
        """As `os.unlink`."""
        name = self._gate.name_of(path)
        if name is None:
            os.unlink(path, **more)
            return
        self._pass("delete", name)
        os.unlink(path, **more)
        self._recording.unlinked(name)

    remove = unlink

    def replace(self, source: AnyPath, target: AnyPath, **more: Any) -> None:
        """As `os.replace`; a step when both names lie below the root."""
        names = self._gate.name_of(source), self._gate.name_of(target)
        if names[0] is None or names[1] is None:
            os.replace(source, target, **more)
            return
        self._pass("rename", names[0])
        if os.path.lexists(source):
            self._recording.opened(names[0], existed=True)
        os.replace(source, target, **more)
        self._recording.renamed(names[0], names[1])

    rename = replace

    def link(self, source: AnyPath, target: AnyPath, **more: Any) -> None:
        """As `os.link`; a step when both names lie below the root."""
        names = self._gate.name_of(source), self._gate.name_of(target)
        if names[0] is None or names[1] is None:
            os.link(source, target, **more)
            return
        self._pass("link", names[1])
        if os.path.lexists(source):
            self._recording.opened(names[0], existed=True)
        os.link(source, target, **more)
        self._recording.linked(names[0], names[1])

    def _handle(self, name: str, flags: int, existed: bool, directory: bool) -> _Handle:
        if directory:
            return _Handle(name, None, False)
        inode = self._recording.opened(name, existed=existed)
        if existed and flags & os.O_TRUNC:
            self._recording.truncated(inode, name, 0)
        return _Handle(name, inode, bool(flags & os.O_APPEND))

    def _pass(self, op: Op, name: str) -> None:
        step, fault = self._gate.enter(op, name)
        if fault is not None:
            raise fault.as_os(step)

    def _cut(self, handle: _Handle, data: bytes) -> tuple[bytes, OSError | None]:
        """What of a write is to be done, and the error to raise after it."""
        step, fault = self._gate.enter("write", handle.name)
        if fault is None:
            return data, None
        if fault.kind != "short_write":
            raise fault.as_os(step)
        return data[: len(data) // 2], fault.as_os(step)

    def _wrote(self, handle: _Handle, offset: int, data: bytes, count: int, failure: OSError | None) -> int:
        if handle.inode is not None:
            self._recording.wrote(handle.inode, handle.name, offset, data[:count])
        if failure is not None:
            raise failure
        return count
