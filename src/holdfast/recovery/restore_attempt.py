"""The file RESTORE: that a log is being brought back into a directory, and how far that is known to have come.

It is written before anything else and removed when nothing is left to do, so the next run resumes an interrupted one,
as the same owner to the store; and a directory that has something else in it is left alone.
"""

from __future__ import annotations

import os

import msgspec

from holdfast import disk
from holdfast.errors import Corrupt, Invalid
from holdfast.log_directory import Directory
from holdfast.recovery.restore_report import RestoreReport

MARKER = "RESTORE"
_BYTES_MAX = 64 * 2**20


class RestoreAttempt(msgspec.Struct, frozen=True):
    """The file RESTORE: which log is being brought back here, and who this directory is to its store."""

    log: str
    store: str
    owner: str
    report: RestoreReport | None = None
    """Set just before FORMAT is written: with both, nothing is left to do."""


def earlier(directory: Directory) -> RestoreAttempt | None:
    """What was begun in a directory and not finished."""
    marker = directory.path / MARKER
    try:
        return msgspec.json.decode(disk.read_file(marker, _BYTES_MAX), type=RestoreAttempt)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, disk.NotRegular, disk.TooLong):
        raise Corrupt("RESTORE is damaged", path=str(marker), hint="remove the directory, then restore again") from None


def refuse_foreign(directory: Directory) -> None:
    """The place for a restore is a new or empty directory, or one where it was interrupted."""
    path, hint = directory.path, "restore into a new or empty directory"
    if not path.is_dir():
        return
    begun = earlier(directory)
    if directory.log_id() is not None and (begun is None or begun.report is None):
        raise Invalid(f"there is a log already path={path}", hint=hint)
    if begun is None and set(os.listdir(path)) - {"LOCK", MARKER + ".tmp"}:
        raise Invalid(f"the directory is not empty path={path}", hint=hint)
