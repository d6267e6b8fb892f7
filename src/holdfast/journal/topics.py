"""The topics of a log and their partitions, as the writer stored them.

Created by the writer in a unit of its own; published only after the commit. Names are checked where they
enter: what is a valid name here is also a valid object key and directory name everywhere else.
"""

from __future__ import annotations

import re

from holdfast.clock import Clock
from holdfast.crypto import chain
from holdfast.crypto.vault import Vault
from holdfast.errors import Corrupt, Invalid
from holdfast.journal.backend import Backend
from holdfast.journal.bell import Bell
from holdfast.journal.partition import Partition
from holdfast.journal.rows import HeadRow, TopicRow, stamped

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}\Z")


def check_name(name: str) -> str:
    """A topic's name, or Invalid; '007' stays '007', and no name is a path."""
    if not isinstance(name, str) or not _NAME.match(name) or ".." in name:
        raise Invalid(
            f"not a topic name: {name!r}",
            hint="use 1 to 200 ASCII letters, digits, '.', '_' or '-', not starting with '.' or '-', no '..'",
        )
    return name


class Topics:
    """Names to partitions; read by everybody, changed by the writer."""

    def __init__(self, log_id: bytes) -> None:
        self._log_id = log_id
        self.ids: dict[str, int] = {}
        self.stamps: dict[int, bytes] = {}
        """Stamps of the stored heads, as they were when the log was opened."""
        self.by_id: dict[int, Partition] = {}
        self.partitions: dict[str, tuple[Partition, ...]] = {}

    def adopt(self, row: TopicRow, heads: dict[int, HeadRow], count: int, path: str) -> None:
        """Take a stored topic with its heads, by number; where one is lost, its partition says so when it is read."""
        created = []
        bell = Bell()
        for number in range(count):
            head = heads.get(number)
            partition = Partition(-1 if head is None else head.partition_id, row.name, number, self._log_id, bell)
            if head is None:
                partition.damage = Corrupt("the partition's head is lost", path=path, topic=row.name, partition=number)
            else:
                partition.durable, partition.link = head.next_offset, head.link
                self.stamps[head.partition_id] = head.stamp
            created.append(partition)
        self.ids[row.name] = row.id
        self.publish(row.name, created)

    def store(
        self, backend: Backend, vault: Vault, name: str, count: int, clock: Clock
    ) -> tuple[list[Partition], dict[int, bytes]]:
        """Insert a topic and its heads into the open transaction; returns its partitions and their heads' stamps."""
        topic_id, partition_id = backend.next_ids()
        topic = TopicRow(topic_id, name, count, clock.now_us(), vault.epoch, b"")
        backend.insert_topic(stamped(topic, vault))
        bell = Bell()
        created = [Partition(partition_id + n, name, n, self._log_id, bell) for n in range(count)]
        drafts = [HeadRow(p.id, topic_id, p.number, 0, chain.NO_LINK, vault.epoch, b"") for p in created]
        heads = [stamped(head, vault) for head in drafts]
        backend.insert_heads(heads)
        self.ids[name] = topic_id
        return created, {head.partition_id: head.stamp for head in heads}

    def publish(self, name: str, created: list[Partition]) -> None:
        """Make a stored topic visible."""
        self.by_id.update({partition.id: partition for partition in created if partition.damage is None})
        self.partitions[name] = tuple(created)

    def ring_all(self) -> None:
        """Wake everybody who waits for any partition."""
        for partition in list(self.by_id.values()):
            partition.bell.ring()
