"""The log of a topic's Delta table: finding its newest commit, and adding one.

A commit is created once, under the next version; where that is taken, somebody else committed. What counts is the
newest commit that changed anything. If we wrote it, it says where to go on. If somebody else did, the table has another
writer: that is `ForeignCommit`, and nothing is written. A VACUUM notes in the log that it was here; such a commit
changes nothing and is passed over. Everything in the log may be anybody's, so sizes, types and values are checked.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import Corrupt, Invalid, NotFound
from holdfast.publish.delta.actions import ENGINE, FORMAT, Published
from holdfast.store import layout
from holdfast.store.port import AlreadyExists, Body, ObjectInfo, Store

_HINT_BYTES_MAX = 64 * 2**10
_LINE_BYTES = 64 * 2**10
_LINE_BYTES_MAX = 64 * 2**20
"""The first line of a commit names every partition: it may be long, but not without end."""
_FOREIGN_BYTES_MAX = 2**20
"""A note that changes nothing is short."""
_PASSED_MAX = 1_000
_VERSION_MAX = 2**53
_UNPUBLISH = "holdfast unpublish ROOT TOPIC removes the table's log and no data; then publish it anew"

logger = logging.getLogger("holdfast.publish")


class ForeignCommit(Invalid):
    """Somebody else writes to a published table; nothing of it was changed by us."""


class Standing(NamedTuple):
    """Where a table stands."""

    version: int = -1
    """Of the newest commit; -1 when there is none."""
    own: int = -1
    """Of the newest commit that we wrote."""
    published: Published | None = None
    """What that one says."""
    checkpoint: int = -1
    """The newest checkpoint; -1 for none."""


class _FirstLine(msgspec.Struct):
    commit_info: _OurInfo | None = msgspec.field(name="commitInfo", default=None)


class _OurInfo(msgspec.Struct):
    holdfast: Published | None = None


class _Hint(msgspec.Struct):
    version: int


_first_line = msgspec.json.Decoder(_FirstLine)
_hint = msgspec.json.Decoder(_Hint)


class Commits:
    """The commits of one topic's table."""

    def __init__(self, store: Store, log: str, topic: str) -> None:
        self._store = store
        self._log = log
        self._topic = topic

    def standing(self) -> Standing:
        """The newest commit, and what our newest one says; raises ForeignCommit, Corrupt."""
        checkpoint = self._hint()
        if checkpoint > 0:
            listed = self._commits(layout.delta_commit_key(self._topic, checkpoint - 1))
            # A hint may promise what is not there; and behind it there may be nothing but notes.
            if listed and _version(listed[0]) == checkpoint and (found := self._newest(listed)) is not None:
                return found._replace(checkpoint=checkpoint)
        listed = self._commits(None)
        found = self._newest(listed)
        if found is None and listed:
            raise self._foreign(_version(listed[0]))
        checkpoint = min(checkpoint, _version(listed[-1])) if listed else -1
        return Standing() if found is None else found._replace(checkpoint=checkpoint)

    def _newest(self, listed: Sequence[ObjectInfo]) -> Standing | None:
        """Our newest commit among these; None where there are only notes."""
        for passed, info in enumerate(reversed(listed)):
            published = self._ours(info)
            if published is not None:
                return Standing(_version(info) + passed, _version(info), published)
            if passed == _PASSED_MAX or not self._is_note(info):
                raise self._foreign(_version(info))
        return None

    def is_ours(self) -> bool:
        """Whether the first commit is ours."""
        first = next(iter(self._commits(None)), None)
        return first is not None and self._ours(first) is not None

    def create(self, version: int, data: bytes) -> bool:
        """Add a commit; False where the version is taken by another one."""
        key = layout.delta_commit_key(self._topic, version)
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

    # -- finding the newest -------------------------------------------------------------------------------

    def _hint(self) -> int:
        """The version of the newest checkpoint, as the table's hint says; -1 where there is none that makes sense."""
        key = layout.delta_hint_key(self._topic)
        try:
            version = _hint.decode(self._store.get(key, _HINT_BYTES_MAX)).version
        except NotFound:
            return -1
        except (Corrupt, msgspec.DecodeError, ValueError, RecursionError):
            logger.warning("the hint at a checkpoint makes no sense and is ignored key=%s", key)
            return -1
        return version if 0 <= version < _VERSION_MAX else -1

    def _commits(self, after: str | None) -> list[ObjectInfo]:
        found = [
            info for info in self._store.list(layout.delta_folder(self._topic), after)
            if layout.parse_delta_commit(info.key) is not None
        ]  # fmt: skip
        versions = [_version(info) for info in found]
        if versions and versions != list(range(versions[0], versions[0] + len(versions))):
            raise self._damaged("a commit of the table is missing", layout.delta_folder(self._topic))
        return found

    # -- reading one --------------------------------------------------------------------------------------

    def _ours(self, info: ObjectInfo) -> Published | None:
        """What we wrote into a commit; None where somebody else wrote it."""
        line = self._line(info)
        try:
            first = None if line is None else _first_line.decode(line)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return None
        published = first.commit_info.holdfast if first is not None and first.commit_info is not None else None
        if published is None:
            return None
        if published.format > FORMAT:
            raise Invalid(
                f"a newer holdfast published this table key={info.key}", hint="upgrade: pip install -U holdfast-log"
            )
        if (published.log, published.topic) != (self._log, self._topic):
            return None
        if not _is_sound(published):
            raise self._damaged("a commit of the table says what cannot be", info.key)
        return published

    def _line(self, info: ObjectInfo) -> bytes | None:
        """The first line of a commit; None where there is no end to it."""
        for most in (_LINE_BYTES, _LINE_BYTES_MAX):
            data = self._store.get_range(info.key, 0, min(info.size, most)) if info.size else b""
            line, end, _ = data.partition(b"\n")
            if end or info.size <= most:
                return line
        return None

    def _is_note(self, info: ObjectInfo) -> bool:
        """Whether a commit changes nothing: it only tells that somebody was here."""
        if info.size > _FOREIGN_BYTES_MAX:
            return False
        lines = [line for line in self._store.get(info.key, _FOREIGN_BYTES_MAX).splitlines() if line.strip()]
        try:
            actions: list[dict[str, Any]] = [msgspec.json.decode(line, type=dict[str, Any]) for line in lines]
        except (msgspec.DecodeError, ValueError, RecursionError):
            raise self._damaged("a commit of the table is damaged", info.key) from None
        infos = [action.get("commitInfo") for action in actions if set(action) == {"commitInfo"}]
        is_ours = any(isinstance(info, dict) and ENGINE in info for info in infos)  # and yet it could not be read
        return bool(actions) and len(infos) == len(actions) and not is_ours

    def _foreign(self, version: int) -> ForeignCommit:
        return ForeignCommit(
            f"somebody else wrote to the published table topic={self._topic} version={version}", hint=_UNPUBLISH
        )

    def _damaged(self, message: str, path: str) -> Corrupt:
        return Corrupt(message, path=path, topic=self._topic, hint=_UNPUBLISH)


def _version(info: ObjectInfo) -> int:
    return layout.parse_delta_commit(info.key) or 0


def _is_sound(published: Published) -> bool:
    numbers = (
        published.created_ms, published.delete_after_ms, published.files, published.rows, published.bytes,
    )  # fmt: skip
    return (
        all(0 <= number < 2**62 for number in numbers)
        and all(key.isascii() and key.isdigit() and len(key) <= 5 for key in published.cursors)
        and all(cursor.is_sound for cursor in published.cursors.values())
    )
