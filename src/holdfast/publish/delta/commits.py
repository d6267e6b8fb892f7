"""The log of a topic's Delta table: finding its newest commit, and adding one.

A commit is created once, under the next version; where that is taken, another writer committed. What counts is the
newest commit that changed anything. If we wrote it, it says where to go on. In that case the table has another writer:
that is `ForeignCommit`, and nothing is written. A VACUUM notes in the log that it was here; such a commit changes
nothing and is passed over. Everything in the log is untrusted, so sizes, types and values are checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from holdfast.errors import other_version
from holdfast.publish.delta.delta_log import DeltaLog, ForeignCommit, version_of
from holdfast.publish.delta.topic_actions import FORMAT, PublishedState
from holdfast.store import layout
from holdfast.store.port import ObjectInfo, Store

_LINE_BYTES = 64 * 2**10
_LINE_BYTES_MAX = 64 * 2**20
"""The first line of a commit names every partition: it may be long, but not without end."""
_PASSED_MAX = 1_000
_UNPUBLISH = "holdfast unpublish ROOT TOPIC removes the table's log and no data; then publish it again"


class TableStanding(NamedTuple):
    """Where a table stands."""

    version: int = -1
    """Of the newest commit; -1 when there is none."""
    own: int = -1
    """Of the newest commit that we wrote."""
    published: PublishedState | None = None
    """What that one says."""
    checkpoint: int = -1
    """The newest checkpoint; -1 for none."""


class _FirstLine(msgspec.Struct):
    commit_info: _OurInfo | None = msgspec.field(name="commitInfo", default=None)


class _OurInfo(msgspec.Struct):
    holdfast: PublishedState | None = None


_first_line = msgspec.json.Decoder(_FirstLine)


class DeltaCommits:
    """The commits of one topic's table."""

    def __init__(self, store: Store, log: str, topic: str) -> None:
        self._store = store
        self._log = log
        self._topic = topic
        self.objects = DeltaLog(store, layout.delta_folder(topic), _UNPUBLISH)

    def standing(self) -> TableStanding:
        """The newest commit, and what our newest one says; raises ForeignCommit, Corrupt."""
        checkpoint = self.objects.hint()
        if checkpoint > 0:
            listed = self.objects.dense(checkpoint)
            # A hint may promise what is not there; and behind it there may be nothing but notes.
            if listed.first == checkpoint and (found := self._newest(listed.commits)) is not None:
                return found._replace(checkpoint=checkpoint)
        listed = self.objects.dense()
        found = self._newest(listed.commits)
        if found is None and listed.commits:
            raise self._foreign(listed.first)
        checkpoint = min(checkpoint, listed.last) if listed.commits else -1
        return TableStanding() if found is None else found._replace(checkpoint=checkpoint)

    def _newest(self, listed: Sequence[ObjectInfo]) -> TableStanding | None:
        """Our newest commit among these; None where there are only notes."""
        for passed, info in enumerate(reversed(listed)):
            published = self._ours(info)
            if published is not None:
                return TableStanding(version_of(info) + passed, version_of(info), published)
            if passed == _PASSED_MAX or not self.objects.is_note(info):
                raise self._foreign(version_of(info))
        return None

    def is_ours(self) -> bool:
        """Whether the first commit is ours."""
        first = next(iter(self.objects.dense().commits), None)
        return first is not None and self._ours(first) is not None

    # -- reading one --------------------------------------------------------------------------------------

    def _ours(self, info: ObjectInfo) -> PublishedState | None:
        """What we wrote into a commit; None where another writer wrote it."""
        line = self._line(info)
        try:
            first = None if line is None else _first_line.decode(line)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return None
        published = first.commit_info.holdfast if first is not None and first.commit_info is not None else None
        if published is None:
            return None
        if published.format > FORMAT:
            raise other_version("table", key=info.key)
        if (published.log, published.topic) != (self._log, self._topic):
            return None
        if not _is_sound(published):
            raise self.objects.damaged("a commit of the table says what cannot be", info.key)
        return published

    def _line(self, info: ObjectInfo) -> bytes | None:
        """The first line of a commit; None where there is no end to it."""
        for most in (_LINE_BYTES, _LINE_BYTES_MAX):
            data = self._store.get_range(info.key, 0, min(info.size, most)) if info.size else b""
            line, end, _ = data.partition(b"\n")
            if end or info.size <= most:
                return line
        return None

    def _foreign(self, version: int) -> ForeignCommit:
        return ForeignCommit(
            f"another writer wrote to the published table topic={self._topic} version={version}", hint=_UNPUBLISH
        )


def _is_sound(published: PublishedState) -> bool:
    numbers = (published.created_ms, published.delete_after_ms, published.files, published.rows, published.bytes)
    return (
        all(0 <= number < 2**62 for number in numbers)
        and all(key.isascii() and key.isdigit() and len(key) <= 5 for key in published.cursors)
        and all(cursor.is_sound for cursor in published.cursors.values())
    )
