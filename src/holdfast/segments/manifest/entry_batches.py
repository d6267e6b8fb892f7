"""Entries of the journal as record batches: what is sealed, what is salvaged, and what Arrow reads of the tail get.

Raw entries are gathered into batches of about a mebibyte; a typed entry is one batch. An entry that does not hold what
it says is `Corrupt`, with its place.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from holdfast.journal.entry_reader import Reader
from holdfast.journal.journal import Journal
from holdfast.journal.state.partition import Partition
from holdfast.model.entry import Entry
from holdfast.model.record_columns import BadFrame
from holdfast.segments.file.segment_columns import RAW_SCHEMA, typed_schema
from holdfast.segments.manifest.schema_versions import version
from holdfast.segments.typed.tail_batches import BATCH_BYTES, RawGathering, typed_batch


def batches_of(
    journal: Journal, partition: Partition, reader: Reader, entries: Iterator[Entry], fingerprint: bytes
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Entries of one schema as record batches, and that schema."""
    if not fingerprint:
        return RAW_SCHEMA, _raw(reader, entries)
    stored = version(journal, partition.topic, fingerprint).stored
    target = typed_schema(stored)
    return target, _typed(reader, entries, stored, target)


def _raw(reader: Reader, entries: Iterator[Entry]) -> Iterator[pa.RecordBatch]:
    gathering: RawGathering | None = None
    for entry in entries:
        gathering = gathering or RawGathering(entry.first)
        try:
            count = gathering.add(reader.body(entry))
        except BadFrame as error:
            raise reader.malformed(entry, error) from None
        if count != entry.count:
            raise reader.malformed(entry, "it does not hold as many records as it says")
        if gathering.bytes >= BATCH_BYTES:
            yield gathering.take()
    if gathering is not None and gathering.records:
        yield gathering.take()


def _typed(reader: Reader, entries: Iterator[Entry], stored: pa.Schema, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    for entry in entries:
        try:
            batch = typed_batch(reader.body(entry), entry.first, stored, target)
        except BadFrame as error:
            raise reader.malformed(entry, error) from None
        if batch.num_rows != entry.count:
            raise reader.malformed(entry, "it does not hold as many rows as it says")
        yield batch
