"""The objects of a Delta table's log: finding them, and adding to them. What stands in them is the caller's business.

A commit is created once, under the next version; where that is taken, another writer committed. A checkpoint only says
again what commits say, and the hint at it only that it is there: both may be missing, and everything is untrusted.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import Corrupt, Invalid, NotFound
from holdfast.publish.delta.actions import ENGINE
from holdfast.store import layout
from holdfast.store.port import AlreadyExists, Body, ObjectInfo, Store

NOTE_BYTES_MAX = 2**20
"""A note that changes nothing is short."""
_HINT_BYTES_MAX = 64 * 2**10
_VERSION_MAX = 2**53
_CHECKPOINT_LEAST, _CHECKPOINT_MOST = 10, 1_000

logger = logging.getLogger("holdfast.publish")


class ForeignCommit(Invalid):
    """Another writer writes to a table of ours; nothing of it was changed by us."""


class _Hint(msgspec.Struct):
    version: int


_hint = msgspec.json.Decoder(_Hint)


class Listing(NamedTuple):
    """What is in a log, by version."""

    commits: list[ObjectInfo]
    checkpoints: list[int]

    @property
    def first(self) -> int:
        """The oldest commit; -1 when there is none."""
        return version_of(self.commits[0]) if self.commits else -1

    @property
    def last(self) -> int:
        """The newest commit; -1 when there is none."""
        return version_of(self.commits[-1]) if self.commits else -1


class DeltaLog:
    """One table's log."""

    def __init__(self, store: Store, folder: str, hint: str) -> None:
        """`folder` ends in `/`; `hint` is the remedy where something is damaged."""
        self._store = store
        self.folder = folder
        self._remedy = hint

    def commit_key(self, version: int) -> str:
        """Where a commit lies."""
        return layout.delta_commit_key(self.folder, version)

    def checkpoint_key(self, version: int) -> str:
        """Where a checkpoint lies."""
        return layout.delta_checkpoint_key(self.folder, version)

    def hint(self) -> int:
        """The version of the newest checkpoint, as the table's hint says; -1 where there is none that makes sense."""
        key = layout.delta_hint_key(self.folder)
        try:
            version = _hint.decode(self._store.get(key, _HINT_BYTES_MAX)).version
        except NotFound:
            return -1
        except (Corrupt, msgspec.DecodeError, ValueError, RecursionError):
            logger.warning(
                "the hint at a checkpoint makes no sense and is ignored key=%s",
                key,
                extra={"action": "table_checkpoint_unusable"},
            )
            return -1
        return version if 0 <= version < _VERSION_MAX else -1

    def listing(self, since: int = 0) -> Listing:
        """Commits and checkpoints of this version and newer ones."""
        after = self.commit_key(since - 1) if since else None
        commits, checkpoints = [], []
        for info in self._store.list(self.folder, after):
            if (version := layout.parse_delta_commit(info.key)) is not None:
                commits.append(info)
            elif (version := layout.parse_delta_checkpoint(info.key)) is not None and version >= since:
                checkpoints.append(version)
        return Listing(commits, checkpoints)

    def dense(self, since: int = 0) -> Listing:
        """The same; raises Corrupt where a commit is missing."""
        found = self.listing(since)
        if found.last - found.first >= max(len(found.commits), 1):
            raise self.damaged("a commit of the table is missing", self.folder)
        return found

    def create(self, version: int, data: bytes) -> bool:
        """Add a commit; False where the version is taken by another one."""
        key = self.commit_key(version)
        try:
            self._store.create(key, Body.of(data))
        except AlreadyExists:
            return self._is(key, data)  # it may be this very one, whose reply was lost
        return True

    def _is(self, key: str, data: bytes) -> bool:
        try:
            return self._store.get(key, len(data)) == data
        except (NotFound, Corrupt):
            return False

    def create_checkpoint(self, version: int, data: bytes, hint: bytes) -> None:
        """Add a checkpoint, and say that it is there."""
        try:
            self._store.create(self.checkpoint_key(version), Body.of(data))
        except AlreadyExists:
            pass  # its writer wrote what the same commits say
        # Objects are never overwritten. Without the hint readers list the log, so it may be missing for a moment.
        key = layout.delta_hint_key(self.folder)
        self._store.delete([key])
        try:
            self._store.create(key, Body.of(hint))
        except AlreadyExists:
            pass

    def is_note(self, info: ObjectInfo) -> bool:
        """Whether a commit changes nothing: it only shows that another writer was here."""
        if info.size > NOTE_BYTES_MAX:
            return False
        lines = [line for line in self._store.get(info.key, NOTE_BYTES_MAX).splitlines() if line.strip()]
        try:
            actions: list[dict[str, Any]] = [msgspec.json.decode(line, type=dict[str, Any]) for line in lines]
        except (msgspec.DecodeError, ValueError, RecursionError):
            raise self.damaged("a commit of the table is damaged", info.key) from None
        infos = [action.get("commitInfo") for action in actions if set(action) == {"commitInfo"}]
        is_ours = any(isinstance(info, dict) and ENGINE in info for info in infos)  # and yet it could not be read
        return bool(actions) and len(infos) == len(actions) and not is_ours

    def damaged(self, message: str, path: str) -> Corrupt:
        """What to raise where the log is not whole."""
        return Corrupt(message, path=path, hint=self._remedy)


def version_of(info: ObjectInfo) -> int:
    """The version of a commit."""
    return layout.parse_delta_commit(info.key) or 0


def is_checkpoint_due(version: int, checkpoint: int, files: int) -> bool:
    """Whether there were enough commits since the last one: more for large tables, whose checkpoints cost more."""
    every = min(max(files // 100, _CHECKPOINT_LEAST), _CHECKPOINT_MOST)
    return version - max(checkpoint, 0) >= every
