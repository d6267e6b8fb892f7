"""What `holdfast inspect` prints, line by line: rows of the database, with what was proved of them, as `line_types`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from holdfast.cli.inspection.line_types import (
    EntryLine,
    EpochLine,
    HeadLine,
    KeyEpochLine,
    Line,
    LogLine,
    PolicyLine,
    ProblemLine,
    RevealedLine,
    RowLine,
    SchemaLine,
    SegmentLine,
    ShipmentLine,
    ShippingLine,
    SizesLine,
    TopicLine,
    WatermarkLine,
)
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
from holdfast.model.record_json import iso, record_line
from holdfast.model.row_json import plain_rows

_STATES = {LIVE: "live", EXPIRING: "expiring", EXPIRED: "expired", LOST: "lost"}
_KINDS = {RAW: "raw", TYPED: "typed"}


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
