"""The closed set of databases that a journal can live in, and the only door to them.

There is no plug-in point: durability is a property of every statement that a backend runs, so a new one is
a change to holdfast, with its own tests. It is a folder beside `sqlite/` with a backend (transactions and
writes) and its rows (what is read back, each value checked), and joins both unions here. Nothing else
in the journal names a database. SQLite is the embedded one, and today the only one.
"""

from __future__ import annotations

from typing import TypeAlias

from holdfast.journal.sqlite.control_tables import ControlRows, ControlTables, PartitionBytes
from holdfast.journal.sqlite.entry_walk import EntryWalk, StoredEntry
from holdfast.journal.sqlite.open_file import create_backend, open_backend
from holdfast.journal.sqlite.sqlite_backend import SqliteBackend
from holdfast.journal.sqlite.stored_rows import StoredRows

__all__ = [
    "Backend", "ControlRows", "ControlTables", "EntryWalk", "PartitionBytes", "Rows", "StoredEntry",
    "create_backend", "open_backend",
]  # fmt: skip

Backend: TypeAlias = SqliteBackend
"""One open database: one writer, any number of short readers."""

Rows: TypeAlias = StoredRows
"""What is stored, as one read transaction sees it."""
