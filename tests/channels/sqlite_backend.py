"""A backend as a user might write it: two tables of sqlite3, two transactions, and the `commit` that comes along."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Lock

from holdfast.channels import ChannelData, ChannelMeta, HistoryUpdate, Persistence
from holdfast.channels.keeping.storage import decode_meta, encode_meta, store_message, stored_message
from holdfast.channels.wire.message import raw, text

_TABLES = """
PRAGMA synchronous = OFF;  -- for quick tests; who wants to survive a power cut leaves this out
CREATE TABLE IF NOT EXISTS metas (channel BLOB PRIMARY KEY, meta BLOB);
CREATE TABLE IF NOT EXISTS messages (
    place INTEGER PRIMARY KEY AUTOINCREMENT, channel BLOB, id BLOB, message BLOB, hint BLOB, UNIQUE (channel, id)
);
"""


class SqliteBackend(Persistence):
    """One connection and one lock; `broken` makes the second half of a commit fail."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, check_same_thread=False)
        self._connection.executescript(_TABLES)
        self._lock = Lock()
        self.broken = False

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._connection:
            yield self._connection

    def save_channel_meta(self, channel_id: str, meta: ChannelMeta) -> None:
        with self._changing() as connection:
            if self.broken:
                raise sqlite3.OperationalError("disk I/O error")
            connection.execute("REPLACE INTO metas VALUES (?, ?)", (raw(channel_id), encode_meta(meta)))

    def update_history(self, channel_id: str, update: HistoryUpdate) -> None:
        channel = raw(channel_id)
        with self._changing() as connection:
            connection.executemany(
                "DELETE FROM messages WHERE channel = ? AND id = ?",
                [(channel, raw(message_id)) for message_id in update.displaced],
            )
            connection.executemany(
                "INSERT INTO messages (channel, id, message) VALUES (?, ?, ?)"
                " ON CONFLICT (channel, id) DO UPDATE SET message = excluded.message",
                [(channel, raw(message.message_id), store_message(message)) for message in update.append],
            )
            connection.executemany(
                "DELETE FROM messages WHERE channel = ? AND id = ?",
                [(channel, raw(message_id)) for message_id in update.evict],
            )

    def load_channel(self, channel_id: str) -> ChannelData:
        with self._lock, closing(self._connection.cursor()) as cursor:
            meta = cursor.execute("SELECT meta FROM metas WHERE channel = ?", (raw(channel_id),)).fetchone()
            rows = cursor.execute(
                "SELECT id, message, hint FROM messages WHERE channel = ? ORDER BY place", (raw(channel_id),)
            ).fetchall()
        return ChannelData(
            decode_meta(meta[0]) if meta else ChannelMeta(),
            tuple(stored_message(message) for _, message, _ in rows),
            {text(message_id): hint for message_id, _, hint in rows if hint is not None},
        )

    def drop_channel(self, channel_id: str) -> None:
        with self._changing() as connection:
            connection.execute("DELETE FROM metas WHERE channel = ?", (raw(channel_id),))
            connection.execute("DELETE FROM messages WHERE channel = ?", (raw(channel_id),))

    def set_retrieval_hint(self, channel_id: str, message_id: str, hint: bytes) -> None:
        with self._changing() as connection:
            connection.execute(
                "UPDATE messages SET hint = ? WHERE channel = ? AND id = ?", (hint, raw(channel_id), raw(message_id))
            )

    def close(self) -> None:
        self._connection.close()
