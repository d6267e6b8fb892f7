"""What an open journal knows in memory: recovered when it is opened, changed by the writer after each commit.

Everybody may read it without a lock: a field is replaced as a whole, or changes only as its own module says.
"""

from __future__ import annotations

from holdfast.crypto.vault import Vault
from holdfast.journal.sessions.session_table import SessionTable
from holdfast.journal.state.spaces import Spaces
from holdfast.journal.state.topic_registry import TopicRegistry
from holdfast.model.control_rows import LogRow


class JournalState:
    """One journal's state."""

    __slots__ = ("row", "sessions", "spaces", "topics", "vault")

    def __init__(
        self, row: LogRow, vault: Vault, topics: TopicRegistry, spaces: Spaces, sessions: SessionTable
    ) -> None:
        self.row = row
        """The log's own row, as it was last committed."""
        self.vault = vault
        self.topics = topics
        self.spaces = spaces
        self.sessions = sessions
