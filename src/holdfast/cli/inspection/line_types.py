"""The lines of `holdfast inspect`, as values: one flat type for each kind of row of the database.

With `--json` each is an object whose `type` says what it is; in text the same fields are the columns of a
table. A field named `…_check` is "ok", "BAD" or "unchecked". Digests and commitments are cut short: they are
for comparing by eye.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.record_json import Encoding


class Line(msgspec.Struct, frozen=True, tag_field="type"):
    """One line of an inspection."""


class FormatLine(Line, frozen=True, tag="format"):
    """The file FORMAT."""

    text: str | None
    log_id: str | None
    format_check: str
    """`absent` where there is no file FORMAT."""


class TableLine(Line, frozen=True, tag="table"):
    """A table that a topic is published as, in this directory."""

    topic: str
    format: str
    """`delta`."""
    version: int
    files: int
    rows: int
    settled: int
    """The offsets up to which it shows its partitions, added up."""
    table_check: str


class LogLine(Line, frozen=True, tag="log"):
    """The log's own row."""

    log_id: str
    created: str | None
    encrypted: bool
    epoch: int
    next_seq: int
    groups: int
    """Commits so far."""
    key_epoch: int
    idempotency_keys: int
    """How many are remembered."""
    stamp_check: str


class EpochLine(Line, frozen=True, tag="epoch"):
    """One ownership."""

    number: int
    opened: str | None
    pid: int
    key_epoch: int
    stamp_check: str


class KeyEpochLine(Line, frozen=True, tag="key_epoch"):
    """One key epoch, without its salt."""

    number: int
    scheme: str
    key_id: str
    commitment: str
    stamp_check: str


class TopicLine(Line, frozen=True, tag="topic"):
    """One topic."""

    id: int
    topic: str
    partitions: int
    codec: str | None
    """Null for bytes, and for typed topics."""
    created: str | None
    key_epoch: int
    stamp_check: str


class HeadLine(Line, frozen=True, tag="head"):
    """One partition's head."""

    partition_id: int
    topic: str | None
    partition: int
    next_offset: int
    link: str
    key_epoch: int
    stamp_check: str
    tail_check: str
    """Ends where its entries end."""


class SchemaLine(Line, frozen=True, tag="schema"):
    """One version of a typed topic's schema."""

    topic: str | None
    version: int
    fingerprint: str
    bytes: int
    """Of its definition."""
    created: str | None
    key_epoch: int
    stamp_check: str


class PolicyLine(Line, frozen=True, tag="policy"):
    """A topic's own retention policy; 0 is no limit."""

    topic: str | None
    bytes_max: int
    age_max_us: int
    records_max: int
    """0 = no limit."""
    key_epoch: int
    stamp_check: str


class WatermarkLine(Line, frozen=True, tag="watermark"):
    """How far one partition is sealed, and where what is kept of it begins."""

    partition_id: int
    topic: str | None
    partition: int | None
    segments: int
    """Sealed so far."""
    sealed_offset: int
    first_segment: int
    first_offset: int
    """That retention has left."""
    chain: str
    key_epoch: int
    stamp_check: str
    seal_check: str
    """The manifest ends there, with this chain value."""


class ShippingLine(Line, frozen=True, tag="shipping"):
    """Where the log is shipped to, and how far in the order of commits."""

    root: str
    """Its address."""
    shipped_seq: int
    """Entries up to this one are there."""
    copy: bool
    key_epoch: int
    stamp_check: str
    epoch: int = 0
    """The newest claim."""
    fenced: int = 0
    """The claim that took the log over, or 0."""


class ShipmentLine(Line, frozen=True, tag="shipment"):
    """How far one partition is on the store."""

    partition_id: int
    topic: str | None
    partition: int | None
    slots: int
    """Manifest objects on the store."""
    settled_segments: int
    settled_offset: int
    shipped_offset: int
    key_epoch: int
    stamp_check: str
    shipment_check: str
    """No further than the partition is here."""


class SegmentLine(Line, frozen=True, tag="segment"):
    """One segment of the manifest: a span of offsets from `first` up to, not including, `end`."""

    topic: str | None
    partition: int | None
    number: int
    first: int
    end: int
    """Offsets, end not included."""
    rows: int
    bytes: int
    """Of its file."""
    state: str
    """`live`, `expiring`, `expired`, `lost`."""
    sealed: str | None
    """When."""
    time_min: str | None
    time_max: str | None
    schema: str | None
    """Fingerprint, `null` for raw records."""
    key_id: str | None
    """`null` when it is plain."""
    epoch: int
    key_epoch: int
    sha256: str
    chain: str
    stamp_check: str
    chain_check: str
    """Follows from the segment before it."""


class EntryLine(Line, frozen=True, tag="entry"):
    """One entry: a span of offsets from `first` up to, not including, `end`."""

    seq: int
    topic: str | None
    partition: int | None
    first: int
    end: int
    """Offsets, end not included."""
    count: int
    bytes: int
    """Of the stored body."""
    group: int
    """The commit."""
    kind: str
    """`raw` or `typed`."""
    codec: int
    schema: str | None
    """Fingerprint, `null` for raw records."""
    time_min: str | None
    time_max: str | None
    key_epoch: int
    digest: str
    link_check: str
    """Follows the entry before."""
    digest_check: str
    """Stored bytes are those that were written."""
    body_check: str
    """Opens and decodes."""


class SizesLine(Line, frozen=True, tag="record"):
    """One record by its sizes; None where it has no such part."""

    topic: str
    partition: int
    offset: int
    time: str | None
    time_us: int
    key_bytes: int | None
    kind_bytes: int | None
    headers_bytes: int | None
    """`null` where there is none."""
    payload_bytes: int


class RevealedLine(SizesLine, frozen=True, tag="record"):
    """One record with all that is in it."""

    key: str | None
    kind: str | None
    headers: dict[str, str] | None
    payload: str
    key_encoding: Encoding = msgspec.UNSET
    headers_encoding: Encoding = msgspec.UNSET
    payload_encoding: Encoding = msgspec.UNSET


class RowLine(Line, frozen=True, tag="row"):
    """One row of a typed topic by its place; what is in it only when it is revealed."""

    topic: str
    partition: int
    offset: int
    time: str | None
    time_us: int
    row: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class ProblemLine(Line, frozen=True, tag="problem"):
    """Damage that was found."""

    message: str
    topic: str | None
    partition: int | None
    offset: int | None
    hint: str


LINES = (
    FormatLine, TableLine, LogLine, EpochLine, KeyEpochLine, TopicLine, SchemaLine, PolicyLine, HeadLine, WatermarkLine,
    ShippingLine, ShipmentLine, SegmentLine, EntryLine, SizesLine, RevealedLine, RowLine, ProblemLine,
)  # fmt: skip
