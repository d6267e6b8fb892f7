"""Reading the log of a table: finding the newest checkpoint that can be used, and going on from there.

Everything in the log is untrusted: sizes are checked before reading, types while decoding, and what comes of it is held
against digests (`table_replay`). A hint is only a place to begin; a checkpoint that is not ours, or damaged, is passed
over, as long as the commits before it are there. Who cleans meanwhile removes what was just listed; then the log is
read again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from holdfast.errors import Corrupt, NotFound
from holdfast.publish.delta.delta_log import DeltaLog, ForeignCommit, Listing, version_of
from holdfast.root.store_manifest import in_parallel
from holdfast.store.port import ObjectInfo, Store
from holdfast.tables import table_commit, table_layout
from holdfast.tables.table_commit import COMMIT_BYTES_MAX, REMEDY, TableCommit, damaged
from holdfast.tables.table_replay import TableReplay, read_checkpoint

_CHECKPOINT_BYTES_MAX = 2**29
_REPLAY_BYTES_MAX = 2**31
_REPLAY_COMMITS_MAX = 100_000
_AT_ONCE, _BYTES_AT_ONCE = 64, 16 * 2**20
_ATTEMPTS = 4

logger = logging.getLogger("holdfast.tables")


class _ListingGone(Exception):
    """What was listed a moment ago is gone: a cleaning may run; look again."""


class LogReading:
    """The log of one table, to be read. Holds no state."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self.log = DeltaLog(store, table_layout.log_folder(name), REMEDY)

    def replay(self, version: int | None) -> TableReplay:
        """The table at a version, or at the newest; raises NotFound, ForeignCommit, Corrupt."""
        for attempt in range(_ATTEMPTS):
            try:
                return self._replayed(version)
            except _ListingGone:
                if attempt == _ATTEMPTS - 1:
                    raise damaged("objects of a table's log are listed and are not there", self.log.folder) from None
        raise AssertionError("not reached")

    def _replayed(self, version: int | None) -> TableReplay:
        hint = self.log.hint()
        if hint > 0 and (version is None or hint <= version):
            found = self._from(_unbroken(self.log.listing(hint)), version, hint)
            if found is not None:
                return found
        listing = self.listing()
        if not listing.commits and version is None:
            return TableReplay()
        target = listing.last if version is None else version
        if not listing.first <= target <= listing.last:
            raise NotFound(
                f"the table has no such version (any more) table={self._name} version={version}",
                hint=f"there are versions {listing.first} to {listing.last}" if listing.commits else "it has none",
            )
        found = self._from(listing, target, 0)
        if found is None:
            if version is not None and version < listing.last:
                raise NotFound(
                    f"a version of the table cannot be put together any more table={self._name} version={version}",
                    hint="what is before the oldest checkpoint was cleaned",
                )
            raise damaged("a commit of the table is missing", self.log.folder)
        return found

    def listing(self) -> Listing:
        """What is in the log."""
        return _unbroken(self.log.listing())

    def _from(self, listing: Listing, version: int | None, least: int) -> TableReplay | None:
        """The table at a version, from the newest checkpoint that can be read; None where none leads there."""
        target = listing.last if version is None else version
        if listing.first < 0 or listing.first < least or not listing.first <= target <= listing.last:
            return None
        bases = [base for base in listing.checkpoints if listing.first <= base <= target]
        for base in reversed(bases):
            replay = self._base(base)
            if replay is not None:
                return self._forward(replay, listing, target)
        return self._forward(TableReplay(), listing, target) if listing.first == 0 else None

    def _base(self, version: int) -> TableReplay | None:
        """What a checkpoint says, if it is ours and whole."""
        try:
            data = self._store.get(self.log.checkpoint_key(version), _CHECKPOINT_BYTES_MAX)
            replay = read_checkpoint(data, self.log.checkpoint_key(version))
            commit = self.commit(version)
            if commit is not None:
                replay.prove(version, commit, self.log.checkpoint_key(version))
                return replay
        except (NotFound, Corrupt) as error:
            logger.warning(
                "a checkpoint of a table cannot be used: %s",
                error.message,
                extra={"action": "table_checkpoint_unusable", "table": self._name},
            )
        return None

    def _forward(self, replay: TableReplay, listing: Listing, target: int) -> TableReplay:
        behind = [info for info in listing.commits if replay.version < version_of(info) <= target]
        if sum(info.size for info in behind) > _REPLAY_BYTES_MAX or len(behind) > _REPLAY_COMMITS_MAX:
            raise damaged("the commits of a table are more than can be read", self.log.folder)
        for info, commit in self._read(behind):
            if commit is None:
                replay.note(version_of(info))
            else:
                replay.apply(version_of(info), commit, info.key)
        if replay.run is None and behind:
            raise self._foreign(version_of(behind[0]))
        return replay

    def _read(self, infos: Sequence[ObjectInfo]) -> Iterator[tuple[ObjectInfo, TableCommit | None]]:
        """Commits, in order, some at a time."""
        for some in _groups(infos):
            yield from zip(some, in_parallel(self._listed, some), strict=True)

    def _listed(self, info: ObjectInfo) -> TableCommit | None:
        try:
            return self.commit(version_of(info))
        except NotFound:
            raise _ListingGone from None

    def commit(self, version: int) -> TableCommit | None:
        """A commit; None for a note. Raises NotFound, Corrupt, ForeignCommit."""
        key = self.log.commit_key(version)
        data = self._store.get(key, COMMIT_BYTES_MAX)
        commit = table_commit.decode(data, key)
        if commit is None and not self.log.is_note(ObjectInfo(key, len(data), 0)):
            raise self._foreign(version)
        if commit is not None and commit.run.table != self._name:
            raise self._foreign(version)
        return commit

    def _foreign(self, version: int) -> ForeignCommit:
        return ForeignCommit(
            f"another writer wrote to a table of a pipeline table={self._name} version={version}",
            hint="only its pipeline may write to it: remove this commit and those after it "
            f"({self.log.commit_key(version)} …), or the table's folder, and run again",
        )

    def newest_first(self, upto: int) -> Iterator[tuple[int, TableCommit]]:
        """Our commits, downwards from a version; ends where they are gone."""
        for version in range(upto, -1, -1):
            try:
                commit = self.commit(version)
            except NotFound:
                return
            if commit is not None:
                yield version, commit

    def between(self, first: int, last: int) -> Iterator[tuple[int, TableCommit]]:
        """Our commits from a version to another one; raises NotFound where one is gone."""
        found = self.log.listing(first).commits if first <= last else []
        infos = [info for info in found if first <= version_of(info) <= last]
        if len(infos) != max(last + 1 - first, 0):
            raise self._gone(first)
        try:
            for info, commit in self._read(infos):
                if commit is not None:
                    yield version_of(info), commit
        except _ListingGone:
            raise self._gone(first) from None

    def _gone(self, version: int) -> NotFound:
        return NotFound(
            f"versions of the table are gone, or were never there table={self._name} since={version}",
            hint="they were cleaned; a longer `keep` lets tables that read this one fall further behind",
        )


def _unbroken(found: Listing) -> Listing:
    """Of commits with a hole those behind it: the others were cleaned, or came too late."""
    start = len(found.commits) - 1
    while start > 0 and version_of(found.commits[start - 1]) == version_of(found.commits[start]) - 1:
        start -= 1
    return Listing(found.commits[max(start, 0) :], found.checkpoints)


def _groups(infos: Sequence[ObjectInfo]) -> Iterator[list[ObjectInfo]]:
    """What is read at once: so many commits, of so many bytes together."""
    some: list[ObjectInfo] = []
    size = 0
    for info in infos:
        if some and (len(some) >= _AT_ONCE or size + info.size > _BYTES_AT_ONCE):
            yield some
            some, size = [], 0
        some.append(info)
        size += info.size
    if some:
        yield some
