"""Saving a tail whose database is damaged: what can still be read and proved becomes a segment, written straight away.

Used by `rebuild` alone. The segment follows the newest one as if it had been sealed in time; the manifest that would
list it is rebuilt afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from holdfast import disk
from holdfast.clock import Clock
from holdfast.crypto.cipher import SALT_BYTES
from holdfast.errors import Corrupt
from holdfast.journal.entry_reader import EntryReader
from holdfast.journal.journal import Journal
from holdfast.journal.state.partition import Partition
from holdfast.model.entry import Entry
from holdfast.model.segment import NO_SCHEMA, Segment, SegmentHead
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.store import layout

logger = logging.getLogger("holdfast.segments")


def salvage(journal: Journal, manifest: Manifest, partition: Partition, clock: Clock) -> int:
    """Write the readable beginning of a partition's tail into segments; returns how many records were saved."""
    sealed = partition.sealed
    at, number, previous = sealed.sealed_offset, sealed.segments, sealed.chain
    saved = 0
    for schema, entries in _readable_runs(journal.reader(partition), at, partition.durable):
        head = SegmentHead(
            log_id=journal.log_id,
            topic=partition.topic,
            partition=partition.number,
            number=number,
            first=at,
            epoch=journal.epoch,
            schema=schema or NO_SCHEMA,
            previous=previous,
        )
        segment = _write(journal, manifest, partition, head, entries, schema, clock)
        at, number, previous, saved = segment.end, number + 1, segment.chain, saved + segment.facts.rows
    return saved


def _readable_runs(reader: EntryReader, start: int, end: int) -> Iterator[tuple[bytes, list[Entry]]]:
    """Entries that prove themselves, up to the first that does not, in runs of one schema and bounded size."""
    run: list[Entry] = []
    size = 0
    try:
        for entry in reader.entries(start, end):
            reader.body(entry)
            if run and (entry.schema != run[0].schema or size >= _RUN_BYTES):
                yield run[0].schema, run
                run, size = [], 0
            run.append(entry)
            size += len(entry.body)
    except Corrupt as damage:
        logger.error("the tail ends in damage: %s", damage.message, extra={"action": "rebuild_tail_damaged"})
    if run:
        yield run[0].schema, run


def _write(
    journal: Journal,
    manifest: Manifest,
    partition: Partition,
    head: SegmentHead,
    entries: list[Entry],
    schema: bytes,
    clock: Clock,
) -> Segment:
    from holdfast.segments.file.file_shape import FileShape
    from holdfast.segments.file.segment_writer import SegmentWriter
    from holdfast.segments.manifest.entry_batches import batches_of
    from holdfast.segments.manifest.schema_versions import key_column_of

    folder = manifest.folder(partition)
    disk.make_directory(folder, root=manifest.root)
    temporary = folder / layout.temporary_name(head.number, head.epoch)
    columns, batches = batches_of(journal, partition, journal.reader(partition), iter(entries), schema)
    key = journal.segment_key(clock.random_bytes(SALT_BYTES))
    try:
        key_column = key_column_of(journal, partition.topic)
        codec = journal.codecs.get(partition.topic, "")
        with SegmentWriter(temporary, head, columns, FileShape(), key, key_column=key_column, codec=codec) as writer:
            for batch in batches:
                writer.write(batch)
            facts = writer.finish()
    except BaseException:
        disk.remove(temporary)
        raise
    disk.rename(temporary, folder / layout.segment_name(head.number, facts.sha256))
    return Segment(head=head, facts=facts)


_RUN_BYTES = 64 * 2**20
