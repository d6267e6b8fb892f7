"""Removing what a table needs no longer: by its cause, not by its age.

A file carries the number of the run that wrote it, and each run has one commit. So once run 7 is committed, a file of
run 7 or of an older one that no kept version names will never be named: its attempt failed, lost a race or was
repeated. Files of later runs are left alone, however old they are: a run may be writing them. What else lies in the
table's folder was not made by us, and stays.

What kept versions name is the files of the newest, and those that left the table since the oldest: commits show them,
or, where those are many, the newest checkpoint, so that cleaning costs what is new and not what is kept. Of deleted
keys in that case all stay that are newer than the oldest kept version.

Removing is safe at any moment, and by several at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from holdfast.errors import NotFound
from holdfast.publish.delta.delta_log import version_of
from holdfast.store.port import ObjectInfo, Store
from holdfast.tables import table_layout
from holdfast.tables.log_reading import LogReading
from holdfast.tables.table_commit import TableCommit
from holdfast.tables.table_replay import TOMBSTONES_MAX, TableReplay

_AT_ONCE = 500
_WALK_MAX = 64
"""Commits that are read to know what they removed; of more, a checkpoint is asked."""
_ATTEMPTS = 4


class CleanReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was removed."""

    table: str
    files: int = 0
    """Data files."""
    bytes: int = 0
    """Of these files."""
    commits: int = 0
    """Commits and checkpoints."""
    oldest: int = -1
    """The oldest version whose files are all there."""


class _Survivors(NamedTuple):
    """What stays."""

    since: int
    """The oldest version."""
    paths: set[str]
    deleted_since: int
    """Files of deleted keys stay from this run on."""


class TableCleaner:
    """Cleans one table, once."""

    def __init__(self, store: Store, reading: LogReading, table: str, now_ms: int) -> None:
        self._store = store
        self._reading = reading
        self._table = table
        self._now_ms = now_ms

    def clean(self, keep_ms: int) -> CleanReport:
        """Remove what no version of the last `keep_ms` needs."""
        for _ in range(_ATTEMPTS):
            try:
                return self._cleaned(keep_ms)
            except NotFound:
                continue  # another process cleans, too, and faster
        return CleanReport(table=self._table)

    def _cleaned(self, keep_ms: int) -> CleanReport:
        newest = self._reading.replay(None)
        if newest.run is None:
            return CleanReport(table=self._table)
        kept = self._kept(newest, keep_ms)
        garbage = list(self._garbage(kept, newest.run.run))
        self._remove([info.key for info in garbage])
        return CleanReport(
            table=self._table,
            files=len(garbage),
            bytes=sum(info.size for info in garbage),
            commits=self._forget(kept.since),
            oldest=kept.since,
        )

    # -- what stays ---------------------------------------------------------------------------------------------

    def _kept(self, newest: TableReplay, keep_ms: int) -> _Survivors:
        limit_ms = self._now_ms - keep_ms
        first = self._reading.listing().first
        since = self._newest_before(limit_ms, first, newest.version)
        _, oldest = self._at(since)
        kept = {*newest.files, *oldest.run.tombstones.values()}
        if self._is_told(newest, since, keep_ms):
            kept.update(path for path, one in newest.removed.items() if one.deletion_timestamp > limit_ms)
            return _Survivors(since, kept, oldest.run.run)
        for _, commit in self._reading.between(since + 1, newest.version):
            kept.update(one.path for one in commit.removed)
            kept.update(commit.run.tombstones.values())
        assert newest.run is not None
        return _Survivors(since, kept, newest.run.run + 1)

    def _is_told(self, newest: TableReplay, since: int, keep_ms: int) -> bool:
        """Whether the newest checkpoint tells all files that left the table since then, and that is cheaper."""
        is_long = newest.version - since > _WALK_MAX
        return is_long and keep_ms <= newest.retention_ms and len(newest.removed) < TOMBSTONES_MAX

    def _newest_before(self, limit_ms: int, first: int, last: int) -> int:
        """The version that was the newest at a time; the oldest one, where all are younger.

        The last versions are looked at one by one: a clock may have been set back. Of a longer history, halves are.
        """
        high = last
        for walked in range(_WALK_MAX + 1):
            high, commit = self._at(high - 1 if walked else high)
            if commit.info.timestamp <= limit_ms or high <= first:
                return high
        low = first
        while low + 1 < high:
            middle = (low + high) // 2
            at, commit = self._at(middle)
            if at <= low or commit.info.timestamp > limit_ms:
                high = middle
            else:
                low = middle
        return low

    def _at(self, version: int) -> tuple[int, TableCommit]:
        """Our commit at a version, or the one before; raises NotFound."""
        found = next(self._reading.newest_first(version), None)
        if found is None:
            raise NotFound("a commit is gone")
        return found

    # -- what goes ----------------------------------------------------------------------------------------------

    def _garbage(self, kept: _Survivors, newest_run: int) -> Iterator[ObjectInfo]:
        start = len(table_layout.table_folder(self._table))
        for folder in table_layout.folders(self._table):
            for info in self._store.list(folder):
                path = info.key[start:]
                name = table_layout.parse_file(path)
                if name is None or name.run > newest_run or path in kept.paths:
                    continue
                if not path.startswith(f"{table_layout.DELETED}/") or name.run < kept.deleted_since:
                    yield info

    def _forget(self, since: int) -> int:
        """Remove commits and checkpoints below the newest checkpoint that all kept versions can be read from."""
        try:
            base = self._reading.replay(since).checkpoint
        except NotFound:
            return 0  # another process removed them already
        listing = self._reading.log.listing()
        keys = [info.key for info in listing.commits if version_of(info) < base]
        keys += [self._reading.log.checkpoint_key(version) for version in listing.checkpoints if version < base]
        self._remove(keys)
        return len(keys)

    def _remove(self, keys: Sequence[str]) -> None:
        """Remove objects, a number at a time, in this order."""
        for at in range(0, len(keys), _AT_ONCE):
            self._store.delete(keys[at : at + _AT_ONCE])
