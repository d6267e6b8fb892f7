"""The fault: one planned failure of the disk, and how it appears to the code that runs into it.

A `Fault` is a value. It says which step fails (the n-th that it matches, counted from when it was armed),
how, and whether the disk stays broken afterwards. It counts nothing and breaks nothing itself: `StepGate`
counts, the two shims (`faulty_vfs`, `faulty_syscalls`) break.

The same failure looks different from SQLite and from `os`, so a fault can present itself as either. The
result codes are those that SQLite's own unix VFS returns for the same errno, which is coarser than one
might expect:

| step     | eio                | enospc             | fsync         |
|----------|--------------------|--------------------|---------------|
| write    | IOERR_WRITE        | FULL               |               |
| sync     | IOERR_FSYNC        | IOERR_FSYNC        | IOERR_FSYNC   |
| truncate | IOERR_TRUNCATE     | IOERR_TRUNCATE     |               |
| open     | CANTOPEN           | CANTOPEN           |               |
| delete   | IOERR_DELETE       | IOERR_DELETE       |               |
| read     | IOERR_CORRUPTFS    | IOERR_READ         |               |

`short_write` is a write that stops half-way and then answers FULL. apsw takes the result code for SQLite
from the `extendedresult` of an exception raised in a VFS method, and then raises that very exception to the
caller. One made by hand has no such attribute (SQLite would see a bare IOERR, and the caller could not read
the code), hence `apsw.exception_for`.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import apsw

from holdfast.errors import Invalid

Op = Literal["read", "write", "sync", "truncate", "open", "delete", "rename", "link", "mkdir"]
Kind = Literal["eio", "enospc", "short_write", "fsync"]

# Kinds that make sense for one operation only; with op="any" they still match just that one.
_ONLY: dict[Kind, Op] = {"short_write": "write", "fsync": "sync"}

_CODES: dict[Op, int] = {
    "read": apsw.SQLITE_IOERR_READ,
    "write": apsw.SQLITE_IOERR_WRITE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "open": apsw.SQLITE_CANTOPEN,
    "delete": apsw.SQLITE_IOERR_DELETE,
}

_NOTE = "injected by holdfast.testing.FaultyDisk"


class DiskStep(NamedTuple):
    """One I/O step the disk saw: its number from 1, what it was, and the file's name below the root."""

    number: int
    op: Op
    name: str


@dataclass(frozen=True, slots=True)
class Fault:
    """Fail the `nth` step that matches; with `sticky`, every matching step after it as well.

    >>> third_sync_fails = Fault(3, "fsync")                           # and its data is lost
    >>> disk_is_full = Fault(1, "enospc", op="write", sticky=True)     # from now on
    """

    nth: int
    kind: Kind
    sticky: bool = False
    op: Op | Literal["any"] = "any"

    def __post_init__(self) -> None:
        if self.nth < 1:
            raise Invalid(f"a fault counts its steps from 1 nth={self.nth}")
        if self.kind not in get_args(Kind) or self.op not in (*get_args(Op), "any"):
            raise Invalid(f"no such fault kind={self.kind!r} op={self.op!r}")
        if self.op not in ("any", _ONLY.get(self.kind, self.op)):
            raise Invalid(f"this kind of fault never happens to this operation kind={self.kind} op={self.op}")

    def matches(self, op: Op) -> bool:
        """Whether a step of this operation counts towards `nth`."""
        return self.op in ("any", op) and _ONLY.get(self.kind, op) == op

    def as_sqlite(self, step: DiskStep) -> Exception:
        """The exception that makes SQLite see what its unix VFS would have reported."""
        error = apsw.exception_for(self._code(step.op))
        error.args = (self._about(step),)
        error.add_note(_NOTE)
        return error

    def as_os(self, step: DiskStep) -> OSError:
        """The exception that `os` would have raised."""
        number = errno.ENOSPC if self.kind in ("enospc", "short_write") else errno.EIO
        error = OSError(number, f"{os.strerror(number)}: {self._about(step)}", step.name)
        error.add_note(_NOTE)
        return error

    def _code(self, op: Op) -> int:
        if op == "write" and self.kind in ("enospc", "short_write"):
            return apsw.SQLITE_FULL
        if op == "read" and self.kind == "eio":
            return apsw.SQLITE_IOERR_CORRUPTFS
        return _CODES[op]

    def _about(self, step: DiskStep) -> str:
        return f"injected {self.kind} at step {step.number}: {step.op} {step.name}"


def was_injected(error: BaseException | None) -> bool:
    """Whether an error is one of ours, and not a real one."""
    return _NOTE in getattr(error, "__notes__", ())
