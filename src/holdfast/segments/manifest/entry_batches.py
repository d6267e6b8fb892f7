"""Entries of the journal as record batches: what is sealed, what is salvaged, and what Arrow reads of the tail get.

Entries are gathered into batches of about a mebibyte; a larger typed one is a batch. An entry that does not hold what
it says is `Corrupt`, with its place.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from holdfast.journal.entry_reader import EntryReader
from holdfast.journal.journal import Journal
from holdfast.journal.state.partition import Partition
from holdfast.model.entry import Entry
from holdfast.model.record_columns import BadRecords
from holdfast.segments.file.segment_columns import RAW_SCHEMA, typed_schema
from holdfast.segments.manifest.schema_versions import version
from holdfast.segments.typed.tail_batches import BATCH_BYTES, BadEntryRows, RawGathering, TypedBatchBuffer


def batches_of(
    journal: Journal, partition: Partition, reader: EntryReader, entries: Iterator[Entry], fingerprint: bytes
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Entries of one schema as record batches, and that schema."""
    return stored_batches(stored_columns(journal, partition, fingerprint), reader, entries)


def stored_columns(journal: Journal, partition: Partition, fingerprint: bytes) -> pa.Schema | None:
    """The columns that typed entries hold; None for raw ones."""
    return version(journal, partition.topic, fingerprint).stored if fingerprint else None


def stored_batches(
    stored: pa.Schema | None, reader: EntryReader, entries: Iterator[Entry]
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Entries as record batches, and their schema; `stored` as above."""
    if stored is None:
        return RAW_SCHEMA, _raw(reader, entries)
    target = typed_schema(stored)
    return target, _typed(reader, entries, stored, target)


def _raw(reader: EntryReader, entries: Iterator[Entry]) -> Iterator[pa.RecordBatch]:
    gathering: RawGathering | None = None
    for entry in entries:
        gathering = gathering or RawGathering(entry.first)
        try:
            count = gathering.add(reader.body(entry))
        except BadRecords as error:
            raise reader.malformed(entry, error) from None
        if count != entry.count:
            raise reader.malformed(entry, "it does not hold as many records as it says")
        if gathering.bytes >= BATCH_BYTES:
            yield gathering.take()
    if gathering is not None and gathering.records:
        yield gathering.take()


def _typed(
    reader: EntryReader, entries: Iterator[Entry], stored: pa.Schema, target: pa.Schema
) -> Iterator[pa.RecordBatch]:
    gathering = TypedBatchBuffer(stored, target)
    gathered: list[Entry] = []
    for entry in entries:
        body = reader.body(entry)
        if gathered and (gathering.bytes + len(body) > BATCH_BYTES or gathering.end != entry.first):
            yield _taken(reader, gathering, gathered)
            gathered = []
        gathering.add(entry.first, entry.count, body)
        gathered.append(entry)
    if gathered:
        yield _taken(reader, gathering, gathered)


def _taken(reader: EntryReader, gathering: TypedBatchBuffer, gathered: list[Entry]) -> pa.RecordBatch:
    try:
        return gathering.take()
    except BadEntryRows as error:
        entry = next(entry for entry in gathered if entry.first == error.first)
        raise reader.malformed(entry, error) from None
