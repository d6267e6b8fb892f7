"""The closed set of databases that a journal can live in.

There is no plug-in point: durability is a property of every statement that a backend runs, so a new one is
a change to holdfast, with its own tests, and joins the union here. SQLite is the embedded one, and today
the only one.
"""

from __future__ import annotations

from typing import TypeAlias

from holdfast.journal.sqlite.sqlite_backend import SqliteBackend

Backend: TypeAlias = SqliteBackend
