"""How far the journal has committed, for the shipper, which takes entries in the order of commits.

The writer publishes after every commit that brought entries. It notifies once as much has come as the shipper
requested, so that a busy log does not wake it for each commit. Numbers are read without a lock: each is one reference,
and the last sequence number is written last.
"""

from __future__ import annotations

from holdfast.signals import Signal

_NEVER = 2**63


class CommitCounts:
    """Counts of one writer; `ask` says when to notify."""

    __slots__ = ("_bytes_wanted", "_groups_wanted", "bytes", "groups", "last_seq", "seals", "signal")

    def __init__(self, last_seq: int) -> None:
        self.last_seq = last_seq
        """Entries up to this one are durable."""
        self.groups = 0
        """Commits with entries since the log was opened, and their bytes."""
        self.bytes = 0
        self.signal = Signal()
        self.seals = Signal()
        """Notified after each seal."""
        self._groups_wanted = self._bytes_wanted = _NEVER

    def ask(self, groups: int, size: int) -> None:
        """Ring once there are this many commits or bytes."""
        self._groups_wanted, self._bytes_wanted = groups, size

    def publish(self, last_seq: int, size: int) -> None:
        """By the writer: a commit brought entries up to this one."""
        self.groups += 1
        self.bytes += size
        self.last_seq = last_seq
        if self.groups >= self._groups_wanted or self.bytes >= self._bytes_wanted:
            self.signal.notify()
