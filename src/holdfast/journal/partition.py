"""A partition's head: where its next record goes, and the digest that the next entry links to.

Only the writer thread changes a head, and only after the commit that stored it; everybody may read
`durable`. The head row in the database is rewritten in the transaction of every group that touches it.
"""

from __future__ import annotations

from holdfast.crypto import chain
from holdfast.errors import Corrupt
from holdfast.journal.bell import Bell
from holdfast.journal.entry import Place


class Partition:
    """The live state of one partition of one topic."""

    __slots__ = ("bell", "damage", "durable", "id", "link", "number", "place", "topic")

    def __init__(self, partition_id: int, topic: str, number: int, log_id: bytes, bell: Bell) -> None:
        self.id = partition_id
        self.topic = topic
        self.number = number
        self.place = Place(log_id, topic, number)
        self.durable = 0
        self.link = chain.NO_LINK
        self.damage: Corrupt | None = None
        """Why nothing can be read here, for those who look at a damaged log."""
        self.bell = bell
        """Rung after `durable` moved; all partitions of a topic share one."""

    def advance(self, durable: int, link: bytes) -> None:
        """Publish a committed head."""
        self.link = link
        self.durable = durable
        self.bell.ring()
