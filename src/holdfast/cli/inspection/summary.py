"""How far the partitions of a log have got and what they hold, from its control rows. Values in, values out.

Without another store the log's own directory is what readers read: what is sealed is settled, and `shipped` is None.
A store's marks are those stored last; an owner that is shipping may be a little further.
"""

from __future__ import annotations

import msgspec

from holdfast.journal.proving.inspected_database import ControlRows, PartitionBytes
from holdfast.model.control_rows import HeadRow
from holdfast.model.record import Marks

RAW, TYPED = "raw", "typed"


class PartitionStatus(msgspec.Struct, frozen=True):
    """How far a partition got, and what it holds."""

    partition: int
    """Its number."""
    first: int
    """The first offset that is left; what was before it has expired."""
    appended: int
    """Everything below has come so far, as of the other marks. Seen from another process it is `durable`."""
    durable: int
    """Committed and synced."""
    sealed: int
    """In segments."""
    shipped: int | None
    """None where there is no store."""
    settled: int
    """On the store in segments; without one, what is sealed."""
    tail_records: int
    """What is durable and not sealed yet."""
    tail_bytes: int
    """Its stored bytes."""
    segments: int
    """Segments that are there."""
    segment_bytes: int
    """Bytes of their files, by the manifest."""
    unshipped: int | None
    """Records that are durable and not on the store; null where there is none, and so are the next two."""
    unsettled_segments: int | None
    """Sealed segments that the store does not list yet."""
    stranded: int | None = None
    """The same as `unshipped` of a log that was taken over, where that is 0."""

    @property
    def shown_shipped(self) -> object:
        """The mark `shipped`, for people."""
        return "no store" if self.shipped is None else self.shipped

    @property
    def records(self) -> int:
        """Records that can be read."""
        return max(0, self.durable - self.first)


class TopicStatus(msgspec.Struct, frozen=True):
    """A topic and its partitions."""

    topic: str
    """Its name."""
    kind: str
    """`raw`, `typed`, or of raw records with a codec its name."""
    partitions: list[PartitionStatus]
    """One by one."""


def topics(control: ControlRows, sizes: dict[int, PartitionBytes]) -> dict[int, TopicStatus]:
    """All topics by id, in the order of their names."""
    typed = {row.topic_id for row in control.schemas}
    partitions: dict[int, list[PartitionStatus]] = {}
    for head in control.heads:
        size = sizes.get(head.partition_id, PartitionBytes())
        partitions.setdefault(head.topic_id, []).append(_partition(control, head, size))
    return {
        topic.id: TopicStatus(
            topic.name, TYPED if topic.id in typed else topic.codec or RAW, partitions.get(topic.id, [])
        )
        for topic in sorted(control.topics, key=lambda topic: topic.name)
    }


def _partition(control: ControlRows, head: HeadRow, size: PartitionBytes) -> PartitionStatus:
    mark = control.watermarks.get(head.partition_id)
    sealed, first, segments = (
        (0, 0, 0) if mark is None else (mark.sealed_offset, mark.first_offset, mark.segments - mark.first_segment)
    )
    shipment = control.shipment(head.partition_id)
    shipped, settled = (None, sealed) if shipment is None else (shipment.shipped_offset, shipment.settled_offset)
    marks = Marks(head.next_offset, head.next_offset, sealed, shipped, settled)
    all_segments = 0 if mark is None else mark.segments
    left = None if shipment is None else max(0, head.next_offset - shipment.shipped_offset)
    # Once a log has been taken over, nothing of it is on its way any more.
    is_fenced = control.shipping is not None and control.shipping.fenced > 0
    return PartitionStatus(
        partition=head.number,
        first=first,
        **msgspec.structs.asdict(marks),
        tail_records=head.next_offset - sealed,
        tail_bytes=size.tail,
        segments=segments,
        segment_bytes=size.segments,
        unshipped=0 if is_fenced else left,
        stranded=left if is_fenced else None if left is None else 0,
        unsettled_segments=None if shipment is None else max(0, all_segments - shipment.settled_segments),
    )
