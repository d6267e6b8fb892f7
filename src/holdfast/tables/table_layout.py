"""Where things of a pipeline's tables lie, below the folder or the bucket of all its tables: the only module that
spells their keys. What is inside a table's log is spelled in `store.layout`.

    <table>/data/<run, 10 digits>-<nonce>-<number>.parquet      rows
    <table>/_deleted/<run>-<nonce>-<number>.parquet             keys that were deleted, for us alone: no VACUUM looks
                                                                into folders that begin with `_`
    <table>/_delta_log/                                         the Delta log

A file's name contains the run that wrote it, so that the files of runs that never committed can be found (`cleaning`).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast.model.topic_name import check_name

DATA, DELETED = "data", "_deleted"
_FILE = re.compile(r"(?:data|_deleted)/([0-9]{10})-([0-9a-z]{1,64}(?:-[0-9a-z]{1,64})?)-([0-9]{1,9})\.parquet\Z")


class FileName(NamedTuple):
    """A file's path, taken apart."""

    run: int
    nonce: str
    number: int


def table_folder(table: str) -> str:
    """Where a table lies; raises Invalid."""
    return f"{check_name(table)}/"


def log_folder(table: str) -> str:
    """Where a table's Delta log lies."""
    return f"{table_folder(table)}_delta_log/"


def folders(table: str) -> tuple[str, str]:
    """Where a table's files lie: rows, and keys that were deleted."""
    folder = table_folder(table)
    return f"{folder}{DATA}/", f"{folder}{DELETED}/"


def file_path(run: int, nonce: str, number: int, *, folder: str = DATA) -> str:
    """A file, relative to its table."""
    return f"{folder}/{run:010d}-{nonce}-{number}.parquet"


def file_key(table: str, path: str) -> str:
    """A file's key."""
    return f"{table_folder(table)}{path}"


def parse_file(path: str) -> FileName | None:
    """A file's path relative to its table, taken apart; None for what we did not name."""
    found = _FILE.match(path)
    return FileName(int(found[1]), found[2], int(found[3])) if found else None
