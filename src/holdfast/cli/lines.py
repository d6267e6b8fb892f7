"""What `holdfast inspect` prints, line by line: one flat value per row of the database.

With `--json` each is an object whose `type` says what it is; in text the same fields are the columns of a
table. A field named `…_check` is "ok", "BAD" or "unchecked". Digests and commitments are cut short: they are
for comparing by eye.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from holdfast.cli.examination import Examination, Examined
from holdfast.cli.glance import KeyEpochRow
from holdfast.cli.text import Encoding, RecordLine, iso, record_line, short
from holdfast.errors import Corrupt
from holdfast.journal.columns import BadFrame, Columns
from holdfast.journal.partition import Partition
from holdfast.journal.rows import EpochRow, HeadRow, LogRow, TopicRow


class Line(msgspec.Struct, frozen=True, tag_field="type"):
    """One line of an inspection."""


class FormatLine(Line, frozen=True, tag="format"):
    """The file FORMAT."""

    text: str | None
    log_id: str | None
    format_check: str


class LogLine(Line, frozen=True, tag="log"):
    """The log's own row."""

    log_id: str
    created: str | None
    encrypted: bool
    epoch: int
    next_seq: int
    groups: int
    key_epoch: int
    schema_version: int
    idempotency_keys: int
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


class EntryLine(Line, frozen=True, tag="entry"):
    """One entry: a span of offsets from `first` up to, not including, `end`."""

    seq: int
    topic: str | None
    partition: int | None
    first: int
    end: int
    count: int
    bytes: int
    group: int
    kind: int
    codec: int
    time_min: str | None
    time_max: str | None
    key_epoch: int
    digest: str
    link_check: str
    digest_check: str
    body_check: str


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


class ProblemLine(Line, frozen=True, tag="problem"):
    """Damage that was found."""

    message: str
    topic: str | None
    partition: int | None
    offset: int | None
    hint: str


LINES = (
    FormatLine, LogLine, EpochLine, KeyEpochLine, TopicLine, HeadLine, EntryLine, SizesLine, RevealedLine, ProblemLine,
)  # fmt: skip


def log_line(row: LogRow, version: int, idempotency_keys: int, examination: Examination) -> LogLine:
    """The log's own row."""
    return LogLine(
        row.log_id.hex(), iso(row.created_us), bool(row.keyed), row.epoch, row.next_seq, row.groups, row.key_epoch,
        version, idempotency_keys, examination.stamp(row, "the log's own row"),
    )  # fmt: skip


def epoch_line(row: EpochRow, examination: Examination) -> EpochLine:
    """An ownership."""
    check = examination.stamp(row, f"epoch {row.number}")
    return EpochLine(row.number, iso(row.opened_us), row.pid, row.key_epoch, check)


def key_epoch_line(row: KeyEpochRow, examination: Examination) -> KeyEpochLine:
    """A key epoch."""
    return KeyEpochLine(row.number, row.scheme, row.key_id, short(row.commitment), examination.key_epoch(row.number))


def topic_line(row: TopicRow, examination: Examination) -> TopicLine:
    """A topic."""
    check = examination.stamp(row, "a topic", row.name)
    return TopicLine(row.id, row.name, row.partitions, iso(row.created_us), row.key_epoch, check)


def head_line(row: HeadRow, examination: Examination) -> HeadLine:
    """A head."""
    topic = examination.topic_of(row)
    return HeadLine(
        row.partition_id, topic, row.number, row.next_offset, short(row.link), row.key_epoch,
        examination.stamp(row, "a head", topic, row.number), examination.tail(row),
    )  # fmt: skip


def entry_line(examined: Examined) -> EntryLine:
    """An entry."""
    entry, partition = examined.stored.entry, examined.partition
    return EntryLine(
        entry.seq, None if partition is None else partition.topic, None if partition is None else partition.number,
        entry.first, entry.first + entry.count, entry.count, examined.stored.bytes, entry.group_number,
        entry.kind, entry.codec, iso(entry.time_min), iso(entry.time_max), entry.key_epoch, short(entry.digest),
        examined.link, examined.digest, examined.body,
    )  # fmt: skip


def size_lines(first: int, partition: Partition, columns: Columns) -> Iterator[SizesLine]:
    """The records of an entry by their sizes."""
    for i, (payload, time) in enumerate(zip(columns.payloads, columns.times, strict=True)):
        extra = columns.extras.get(i, (None, None, None))
        key, kind, headers = (None if part is None else len(part) for part in extra)
        yield SizesLine(
            partition.topic, partition.number, first + i, iso(time), time, key, kind, headers, len(payload)
        )  # fmt: skip


def revealed_lines(
    first: int, partition: Partition, columns: Columns, problems: list[Corrupt]
) -> Iterator[RevealedLine]:
    """The records of an entry with all that is in them; one that cannot be decoded is a problem."""
    for i, sizes in enumerate(size_lines(first, partition, columns)):
        try:
            record = next(columns.records(first, partition.number, i, i + 1))
        except (BadFrame, UnicodeDecodeError):
            place = {"topic": partition.topic, "partition": partition.number, "offset": first + i}
            problems.append(Corrupt("a record's kind or headers are malformed", **place))  # type: ignore[arg-type]
            continue
        yield _revealed(sizes, record_line(partition.topic, record))


def problem_line(error: Corrupt) -> ProblemLine:
    """Damage."""
    return ProblemLine(error.message, error.topic, error.partition, error.offset, error.hint)


def _revealed(sizes: SizesLine, record: RecordLine) -> RevealedLine:
    return RevealedLine(**{**msgspec.structs.asdict(sizes), **msgspec.structs.asdict(record)})
