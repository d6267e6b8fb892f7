"""Removing what a table needs no longer: by its cause, not by its age.

A file carries the number of the run that wrote it, and each run has one commit. So once run 7 is committed, a file of
run 7 or of an older one that no kept version names will never be named: its attempt failed, lost a race or was
repeated. Files of later runs are left alone, however old they are: a run may be writing them. What else lies in the
table's folder was not made by us, and stays.

Removing is safe at any moment, and by several at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from holdfast.store.port import ObjectInfo, Store
from holdfast.tables import table_layout

_AT_ONCE = 500


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


def remove_garbage(store: Store, table: str, kept: Collection[str], newest_run: int) -> tuple[int, int]:
    """Remove files of runs up to the newest that are not among these; returns how many, and their bytes."""
    found = list(_garbage(store, table, kept, newest_run))
    remove_in_order(store, [info.key for info in found])
    return len(found), sum(info.size for info in found)


def _garbage(store: Store, table: str, kept: Collection[str], newest_run: int) -> Iterator[ObjectInfo]:
    start = len(table_layout.table_folder(table))
    for folder in table_layout.folders(table):
        for info in store.list(folder):
            path = info.key[start:]
            name = table_layout.parse_file(path)
            if name is not None and name.run <= newest_run and path not in kept:
                yield info


def remove_in_order(store: Store, keys: Sequence[str]) -> None:
    """Remove objects, a number at a time, in this order."""
    for at in range(0, len(keys), _AT_ONCE):
        store.delete(keys[at : at + _AT_ONCE])
