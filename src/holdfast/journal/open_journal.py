"""Opening a journal in one of three ways: as its owner, as one of those who share it, or only to read it.

An owner takes the log over and is refused at the first damage. One that shares it reads the same files and has their
owner write. A reader learns of damage and reads what is left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from holdfast import disk
from holdfast.errors import Unavailable
from holdfast.journal import time_keeper
from holdfast.journal.backend import Backend, open_backend
from holdfast.journal.commit.forwarder import GroupLink
from holdfast.journal.journal import Journal
from holdfast.journal.journal_context import JournalContext
from holdfast.journal.proving import recovery
from holdfast.model.control_rows import DiskFailed

logger = logging.getLogger("holdfast.journal")


def open_owned(path: Path, log_id: bytes | None, context: JournalContext) -> Journal:
    """Recover the journal in this file, take ownership and start the writer."""

    def own(backend: Backend) -> recovery.RecoveredState:
        backend.filed.take_over(context.clock.random_bytes)
        recovered = _recover(backend, log_id, context, sessions=True)
        _refuse_damaged(recovered)
        files = context.settings.group_file_bytes > 0
        recovered.row = recovery.take_ownership(backend, recovered, context.clock, files=files)
        backend.filed.own(recovered.row, context.clock.random_bytes, context.settings.group_file_bytes)
        return recovered

    try:
        backend, recovered = _with(open_backend(path), own)
    except DiskFailed as error:
        raise Unavailable(
            f"the disk failed while opening path={path}",
            hint=disk.remedy_at(path.parent, "check the disk, then reopen"),
        ) from error
    journal = Journal(backend, recovered, context, owned=True)
    time_keeper.recall(journal)
    journal.start()
    return journal


def open_read_only(path: Path, log_id: bytes, context: JournalContext) -> Journal:
    """Read the journal in this file, which another process may own; damage is reported, not refused."""
    backend, recovered = _read(path, log_id, context)
    for problem in recovered.problems:
        logger.warning("damaged log: %s", problem.message, extra={"action": "damage", "path": str(path)})
    journal = Journal(backend, recovered, context, owned=False)
    journal.refuse_writes()
    return journal


def open_shared(path: Path, log_id: bytes, context: JournalContext, link: GroupLink) -> Journal:
    """Read the journal in this file, and have its owner, at the other end of the link, write to it.

    All verbs are there. What is appended goes through a queue of this process to the owner, in groups; what is read is
    read from the files, whether there is an owner at the moment or not.
    """
    backend, recovered = _read(path, log_id, context, link)
    journal = Journal(backend, recovered, context, owned=False, link=link)
    journal.start()
    return journal


def _read(
    path: Path, log_id: bytes, context: JournalContext, link: GroupLink | None = None
) -> tuple[Backend, recovery.RecoveredState]:
    def recover(backend: Backend) -> recovery.RecoveredState:
        if link is not None:
            backend.filed.heard = lambda: link.durable
        backend.has_changed()  # from here on: what is recovered now need not be recovered again
        recovered = _recover(backend, log_id, context)
        if link is not None:
            _refuse_damaged(recovered)
        return recovered

    try:
        return _with(open_backend(path, read_only=True, beside=link is not None), recover)
    except DiskFailed as error:
        raise Unavailable(f"cannot read the database path={path}", hint="check the disk") from error


def _with(
    backend: Backend, recover: Callable[[Backend], recovery.RecoveredState]
) -> tuple[Backend, recovery.RecoveredState]:
    try:
        return backend, recover(backend)
    except BaseException:
        backend.close_quietly()
        raise


def _recover(
    backend: Backend, log_id: bytes | None, context: JournalContext, *, sessions: bool = False
) -> recovery.RecoveredState:
    return recovery.recover(backend, log_id, context.keyring, context.cipher, context.clock, sessions=sessions)


def _refuse_damaged(recovered: recovery.RecoveredState) -> None:
    if recovered.problems:
        raise recovered.problems[0]
