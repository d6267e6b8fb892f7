"""What `holdfast inspect` prints, line by line: one flat value per row of the database.

With `--json` each is an object whose `type` says what it is; in text the same fields are the columns of a
table. A field named `…_check` is "ok", "BAD" or "unchecked". Digests and commitments are cut short: they are
for comparing by eye.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from holdfast.cli.inspection.typed_entries import Rows
from holdfast.cli.text import short
from holdfast.crypto.vault import KeyEpoch
from holdfast.errors import Corrupt
from holdfast.journal.proving.inspected_database import EntryVerdict, Inspection, SegmentVerdict, StoredEntry, Verdict
from holdfast.model.control_rows import (
    EXPIRED,
    EXPIRING,
    LIVE,
    LOST,
    EpochRow,
    HeadRow,
    LogRow,
    PolicyRow,
    SchemaRow,
    SegmentRow,
    ShipmentRow,
    ShippingRow,
    TopicRow,
    WatermarkRow,
)
from holdfast.model.entry import RAW, TYPED
from holdfast.model.record_columns import BadRecords, Columns
from holdfast.model.record_json import Encoding, iso, record_line
from holdfast.model.row_json import plain_rows

_STATES = {LIVE: "live", EXPIRING: "expiring", EXPIRED: "expired", LOST: "lost"}
_KINDS = {RAW: "raw", TYPED: "typed"}


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


def log_line(row: LogRow, verdict: Verdict, found: Inspection) -> LogLine:
    """The log's own row."""
    return LogLine(
        row.log_id.hex(),
        iso(row.created_us),
        bool(row.keyed),
        row.epoch,
        row.next_seq,
        row.groups,
        row.key_epoch,
        found.idempotency_keys,
        verdict.stamp,
    )


def epoch_line(row: EpochRow, verdict: Verdict, _: Inspection) -> EpochLine:
    """An ownership."""
    return EpochLine(row.number, iso(row.opened_us), row.pid, row.key_epoch, verdict.stamp)


def key_epoch_line(row: KeyEpoch, verdict: Verdict, _: Inspection) -> KeyEpochLine:
    """A key epoch."""
    return KeyEpochLine(row.number, row.scheme, row.key_id, short(row.commitment), verdict.stamp)


def topic_line(row: TopicRow, verdict: Verdict, _: Inspection) -> TopicLine:
    """A topic."""
    return TopicLine(
        row.id, row.name, row.partitions, row.codec or None, iso(row.created_us), row.key_epoch, verdict.stamp
    )


def schema_line(row: SchemaRow, verdict: Verdict, found: Inspection) -> SchemaLine:
    """A version of a schema."""
    return SchemaLine(
        found.names.get(row.topic_id),
        row.version,
        short(row.fingerprint),
        len(row.definition),
        iso(row.created_us),
        row.key_epoch,
        verdict.stamp,
    )


def policy_line(row: PolicyRow, verdict: Verdict, found: Inspection) -> PolicyLine:
    """A retention policy."""
    topic = found.names.get(row.topic_id)
    return PolicyLine(topic, row.bytes_max, row.age_max_us, row.records_max, row.key_epoch, verdict.stamp)


def head_line(row: HeadRow, verdict: Verdict, found: Inspection) -> HeadLine:
    """A head."""
    return HeadLine(
        row.partition_id,
        found.names.get(row.topic_id),
        row.number,
        row.next_offset,
        short(row.link),
        row.key_epoch,
        verdict.stamp,
        verdict.place,
    )


def watermark_line(row: WatermarkRow, verdict: Verdict, found: Inspection) -> WatermarkLine:
    """A watermark."""
    return WatermarkLine(
        row.partition_id,
        *found.place(row.partition_id),
        row.segments,
        row.sealed_offset,
        row.first_segment,
        row.first_offset,
        short(row.chain),
        row.key_epoch,
        verdict.stamp,
        verdict.place,
    )


def shipping_line(row: ShippingRow, verdict: Verdict, _: Inspection) -> ShippingLine:
    """Where the log is shipped to."""
    return ShippingLine(row.root, row.shipped_seq, bool(row.copy), row.key_epoch, verdict.stamp, row.epoch, row.fenced)


def shipment_line(row: ShipmentRow, verdict: Verdict, found: Inspection) -> ShipmentLine:
    """How far a partition is on the store."""
    return ShipmentLine(
        row.partition_id,
        *found.place(row.partition_id),
        row.slots,
        row.settled_segments,
        row.settled_offset,
        row.shipped_offset,
        row.key_epoch,
        verdict.stamp,
        verdict.place,
    )


CONTROL_LINES: dict[type[object], tuple[str, Callable[[Any, Verdict, Inspection], Line]]] = {
    LogRow: ("log", log_line), EpochRow: ("epochs", epoch_line), KeyEpoch: ("key epochs", key_epoch_line),
    TopicRow: ("topics", topic_line), SchemaRow: ("schemas", schema_line), PolicyRow: ("policies", policy_line),
    HeadRow: ("heads", head_line), WatermarkRow: ("watermarks", watermark_line),
    ShippingRow: ("shipping", shipping_line), ShipmentRow: ("shipments", shipment_line),
}  # fmt: skip
"""The control rows that are printed: under which title, and as what."""


def segment_line(row: SegmentRow, verdict: SegmentVerdict, found: Inspection) -> SegmentLine:
    """A segment."""
    return SegmentLine(
        *found.place(row.partition_id),
        row.number,
        row.first_offset,
        row.end,
        row.rows,
        row.size,
        _STATES.get(row.state, str(row.state)),
        iso(row.sealed_us),
        iso(row.time_min),
        iso(row.time_max),
        short(row.schema) if any(row.schema) else None,
        row.key_id or None,
        row.epoch,
        row.key_epoch,
        short(row.sha256),
        short(row.chain),
        verdict.stamp,
        verdict.chain,
    )


def entry_line(stored: StoredEntry, verdict: EntryVerdict, found: Inspection) -> EntryLine:
    """An entry."""
    entry = stored.entry
    return EntryLine(
        entry.seq,
        *found.place(entry.partition_id),
        entry.first,
        entry.first + entry.count,
        entry.count,
        stored.bytes,
        entry.group_number,
        _KINDS.get(entry.kind, str(entry.kind)),
        entry.codec,
        short(entry.schema) or None,
        iso(entry.time_min),
        iso(entry.time_max),
        entry.key_epoch,
        short(entry.digest),
        verdict.link,
        verdict.digest,
        verdict.body,
    )


def content_lines(
    stored: StoredEntry, verdict: EntryVerdict, found: Inspection, *, reveal: bool
) -> Iterator[SizesLine | RowLine]:
    """The records or rows of an entry, where it could be opened; what is in them only when they are revealed."""
    entry, content = stored.entry, verdict.content
    topic, partition = found.place(entry.partition_id)
    if topic is None or partition is None or content is None:
        return iter(())
    if isinstance(content, Rows):
        return row_lines(entry.first, topic, partition, content, reveal=reveal)
    assert isinstance(content, Columns)
    sizes = size_lines(entry.first, topic, partition, content)
    return revealed_lines(entry.first, sizes, content, found.problems) if reveal else sizes


def size_lines(first: int, topic: str, partition: int, columns: Columns) -> Iterator[SizesLine]:
    """The records of an entry by their sizes."""
    for i, (payload, time) in enumerate(zip(columns.payloads, columns.times, strict=True)):
        extra = columns.extras.get(i, (None, None, None))
        key, kind, headers = (None if part is None else len(part) for part in extra)
        yield SizesLine(topic, partition, first + i, iso(time), time, key, kind, headers, len(payload))


def revealed_lines(
    first: int, lines: Iterator[SizesLine], columns: Columns, problems: list[Corrupt]
) -> Iterator[RevealedLine]:
    """The records of an entry with all that is in them; one that cannot be decoded is a problem."""
    for i, sizes in enumerate(lines):
        try:
            record = next(columns.records(first, sizes.partition, i, i + 1, sizes.topic))
        except (BadRecords, UnicodeDecodeError):
            message = "a record's kind or headers are malformed"
            problems.append(Corrupt(message, topic=sizes.topic, partition=sizes.partition, offset=sizes.offset))
            continue
        revealed = msgspec.structs.asdict(record_line(sizes.topic, record))
        del revealed["value"]  # bytes are what is looked at here
        yield RevealedLine(**{**msgspec.structs.asdict(sizes), **revealed})


def row_lines(first: int, topic: str, partition: int, rows: Rows, *, reveal: bool) -> Iterator[RowLine]:
    """The rows of a typed entry."""
    found = plain_rows(rows.batch, len(rows.times)) if reveal else None
    for i, time in enumerate(rows.times):
        row = msgspec.UNSET if found is None else found[i]
        yield RowLine(topic, partition, first + i, iso(time), time, row)


def problem_line(error: Corrupt) -> ProblemLine:
    """Damage."""
    return ProblemLine(error.message, error.topic, error.partition, error.offset, error.hint)
