"""Heads as the database has them: stamped when it gets them, which is once for many groups that are in files."""

from __future__ import annotations

from holdfast.crypto.vault import Vault
from holdfast.journal.groups.unfolded_rows import UnfoldedRows
from holdfast.journal.state.partition import Partition
from holdfast.journal.state.state_digest import Vouched
from holdfast.journal.state.topic_registry import TopicRegistry
from holdfast.model.control_rows import HeadRow


def head_row(partition: Partition, topic_id: int, next_offset: int, link: bytes, vault: Vault) -> HeadRow:
    """A head, stamped."""
    values = (partition.id, topic_id, partition.number, next_offset, link, vault.epoch)
    return HeadRow(*values, vault.stamp(HeadRow.covered(*values)))


def stamp_late(late: UnfoldedRows, topics: TopicRegistry, vault: Vault) -> dict[Vouched, bytes]:
    """Stamp the heads of what is in files alone: the database is about to get them. Returns their stamps."""
    for number in late.partitions:
        partition, last = topics.by_id[number], late.last(number)
        assert last is not None
        end = last.first + last.count
        late.heads[number] = head_row(partition, topics.ids[partition.topic], end, last.digest, vault)
    return {("head", number): head.stamp for number, head in late.heads.items()}
