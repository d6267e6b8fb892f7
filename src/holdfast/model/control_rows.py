"""What a backend stores and how it fails: the rows of each table, with what their stamps cover.

Rows are plain values in the order of their columns. Control rows (all but entries and items) carry a stamp over the
canonical bytes of everything before it; `holdfast.crypto.vault` makes and verifies stamps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from holdfast.crypto import digests
from holdfast.model.segment import Segment, SegmentFacts, SegmentHead

if TYPE_CHECKING:
    from holdfast.crypto.vault import Vault


class DiskFailed(Exception):
    """The storage failed and its state is unknown; the writer must stop."""


class LogRow(NamedTuple):
    """The table `log`'s only row."""

    log_id: bytes
    created_us: int
    keyed: int
    epoch: int
    key_epochs: int
    topics: int
    partitions: int
    entries: int
    next_seq: int
    groups: int
    keys: int
    heads: bytes
    segments: int
    schemas: int
    policies: int
    spaces: int
    group_file: int
    """The file in which the group after this one may be, and where it begins there at the earliest; 0: none."""
    group_position: int
    sessions: int
    """How many sessions of producers are kept, and what they add up to; empty: there is none."""
    session_sum: bytes
    key_epoch: int
    stamp: bytes

    def message(self) -> bytes:
        """What the stamp covers: everything else."""
        return digests.canonical("log", *self[:-1])


class EpochRow(NamedTuple):
    """One ownership of the log."""

    number: int
    opened_us: int
    pid: int
    key_epoch: int
    stamp: bytes

    def message(self) -> bytes:
        """What the stamp covers: everything else."""
        return digests.canonical("epochs", *self[:-1])


class TopicRow(NamedTuple):
    """One topic."""

    id: int
    name: str
    partitions: int
    codec: str
    """What its payloads are: `json`, `text` or `msgpack`; empty where they are bytes, or rows."""
    created_us: int
    key_epoch: int
    stamp: bytes

    def message(self) -> bytes:
        """What the stamp covers: everything else."""
        return digests.canonical("topics", *self[:-1])


class HeadRow(NamedTuple):
    """One partition's head."""

    partition_id: int
    topic_id: int
    number: int
    next_offset: int
    link: bytes
    key_epoch: int
    stamp: bytes

    def message(self) -> bytes:
        """What the stamp covers: everything else."""
        return self.covered(*self[:-1])

    @staticmethod
    def covered(*values: int | bytes) -> bytes:
        """What a stamp over these values covers."""
        return digests.canonical("heads", *values)


class KeyRow(NamedTuple):
    """One remembered idempotency key."""

    id: int
    hash: bytes
    partition_id: int
    record: int
    seq: int
    digest: bytes
    """Of what was appended under the key, encrypted in a log with keys."""
    key_epoch: int
    stamp: bytes

    def message(self) -> bytes:
        """What the stamp covers: everything else."""
        return digests.canonical("idempotency", *self[:-1])


class WatermarkRow(NamedTuple):
    """How far one partition is sealed, and where what is retained begins."""

    partition_id: int
    segments: int
    sealed_offset: int
    chain: bytes
    first_segment: int
    first_offset: int
    key_epoch: int
    stamp: bytes

    def message(self) -> bytes:
        """What the stamp covers: everything else."""
        return digests.canonical("watermarks", *self[:-1])


LIVE, EXPIRING, EXPIRED, LOST = 1, 2, 3, 4
"""States of a segment: its file is there; may be removed; was removed; was lost."""


class SegmentRow(NamedTuple):
    """One segment in the manifest. It stays when its file goes: the chain needs it."""

    partition_id: int
    number: int
    first_offset: int
    rows: int
    size: int
    time_min: int
    time_max: int
    low: int
    high: int
    sha256: bytes
    content: bytes
    footer: bytes
    chain: bytes
    schema: bytes
    key_id: str
    epoch: int
    sealed_us: int
    state: int
    key_epoch: int
    stamp: bytes

    @classmethod
    def of(
        cls,
        segment: Segment,
        *,
        partition_id: int,
        sealed_us: int,
        state: int = LIVE,
        chain: bytes | None = None,
        low: int = 0,
        high: int = 0,
    ) -> SegmentRow:
        """The row of a segment: head, facts and state; `chain` is given for fillers, which have no content."""
        head, facts = segment.head, segment.facts
        return cls(
            partition_id=partition_id,
            number=head.number,
            first_offset=head.first,
            rows=facts.rows,
            size=facts.size,
            time_min=facts.time_min,
            time_max=facts.time_max,
            low=low,
            high=high,
            sha256=facts.sha256,
            content=facts.content,
            footer=facts.footer,
            chain=segment.chain if chain is None else chain,
            schema=head.schema,
            key_id=facts.key_id,
            epoch=head.epoch,
            sealed_us=sealed_us,
            state=state,
            key_epoch=0,
            stamp=b"",
        )

    def head(self, log_id: bytes, topic: str, partition: int, previous: bytes) -> SegmentHead:
        """What the segment's file must say about itself; the row does not have the rest of its place."""
        return SegmentHead(
            log_id=log_id,
            topic=topic,
            partition=partition,
            number=self.number,
            first=self.first_offset,
            epoch=self.epoch,
            schema=self.schema,
            previous=previous,
        )

    @property
    def facts(self) -> SegmentFacts:
        """What this says about the segment's file."""
        return SegmentFacts(
            rows=self.rows,
            size=self.size,
            time_min=self.time_min,
            time_max=self.time_max,
            sha256=self.sha256,
            content=self.content,
            footer=self.footer,
            key_id=self.key_id,
        )

    @property
    def end(self) -> int:
        """The offset after its last record."""
        return self.first_offset + self.rows

    def message(self) -> bytes:
        """What the stamp covers: everything else."""
        return digests.canonical("segments", *self[:-1])


class SchemaRow(NamedTuple):
    """One version of a typed topic's schema."""

    topic_id: int
    version: int
    fingerprint: bytes
    definition: bytes
    created_us: int
    key_epoch: int
    stamp: bytes

    def message(self) -> bytes:
        """What the stamp covers: everything else."""
        return digests.canonical("schemas", *self[:-1])


class PolicyRow(NamedTuple):
    """A topic's own retention policy; 0 = no limit."""

    topic_id: int
    bytes_max: int
    age_max_us: int
    records_max: int
    key_epoch: int
    stamp: bytes

    def message(self) -> bytes:
        """What the stamp covers: everything else."""
        return digests.canonical("policies", *self[:-1])


class ShippingRow(NamedTuple):
    """The table `shipping`'s only row: where the log is shipped to, and how far in the order of commits."""

    root: str
    owner: bytes
    epoch: int
    shipped_seq: int
    copy: int
    fenced: int = 0
    """The claim that took the log over; 0 = nobody's."""
    alarm: str = ""
    """What holds shipping up; empty when nothing does."""
    ended: str = ""
    """Why shipping ended for good in the handle that was open last."""
    last_error: str = ""
    """What the store said last when it failed."""
    key_epoch: int = 0
    stamp: bytes = b""

    def message(self) -> bytes:
        """What the stamp covers: everything else."""
        return digests.canonical("shipping", *self[:-1])


class ShipmentRow(NamedTuple):
    """How far one partition is on the store."""

    partition_id: int
    slots: int
    settled_segments: int
    settled_offset: int
    shipped_offset: int
    key_epoch: int = 0
    stamp: bytes = b""

    def message(self) -> bytes:
        """What the stamp covers: everything else."""
        return digests.canonical("shipments", *self[:-1])


SHIPPING_TEXT_BYTES_MAX = 2_048
SPACE_NAME_BYTES_MAX = 4_200
ITEM_KEY_BYTES_MAX = 2_048
"""What is longer is neither written nor read."""


class SpaceRow(NamedTuple):
    """One space: how many items it has, and what they add up to."""

    id: int
    name: bytes
    items: int
    sum: bytes
    key_epoch: int
    stamp: bytes

    def message(self) -> bytes:
        """What the stamp covers: everything else."""
        return digests.canonical("spaces", *self[:-1])


class ItemRow(NamedTuple):
    """One item of a space. It has no stamp: its space's row says what all of them add up to."""

    space_id: int
    key: bytes
    number: int
    key_epoch: int
    body: bytes


SESSION_NAME_BYTES_MAX = 256
SESSION_ANSWERS_BYTES_MAX = 16 * 2**20
"""What is longer is neither written nor read."""


class SessionRow(NamedTuple):
    """One session of a producer. It has no stamp: the log's own row says what all of them add up to."""

    name: bytes
    last: int
    """The highest sequence number that was stored."""
    floor: int
    """All answers below it were received, or are forgotten."""
    used_us: int
    answers: bytes
    """What was answered from there on, by sequence number."""
    key_epoch: int

    def message(self, log_id: bytes) -> bytes:
        """What it is weighed by: all of it, and the log that it belongs to."""
        return digests.canonical("sessions", log_id, *self)


Row = TypeVar(
    "Row",
    LogRow,
    EpochRow,
    TopicRow,
    HeadRow,
    KeyRow,
    WatermarkRow,
    SegmentRow,
    SchemaRow,
    PolicyRow,
    ShippingRow,
    ShipmentRow,
    SpaceRow,
)


def stamped(row: Row, vault: Vault) -> Row:
    """The row with its stamp, which replaces any other."""
    return type(row)(*row[:-1], vault.stamp(row.message()))
