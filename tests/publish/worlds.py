"""A log, its root, and the tables that its topics are published as: what tests of publishing do to them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq

import holdfast
from holdfast import Log, Settings
from holdfast.model.segment import SegmentHead
from holdfast.publish.publication import Publisher
from holdfast.root.objects import documents
from holdfast.root.objects.documents import ExpiredDocument, RewriteDocument, RewrittenFile, SegmentDocument
from holdfast.root.rewrites import in_effect, read_rewrites
from holdfast.root.root_store import RootStore
from holdfast.root.root_trust import RootTrust
from holdfast.root.store_manifest import read_manifest
from holdfast.segments.file.file_shape import FileShape
from holdfast.segments.file.segment_writer import SegmentWriter
from holdfast.store import layout
from holdfast.store.directory import DirectoryStore
from holdfast.store.port import Body
from tests.publish.counting_store import CLOCK, publisher_of

Row = dict[str, Any]
Table = dict[tuple[int, int], Row]
"""Rows by partition and offset."""
QUIET = {"segments": {"seal_on_close": False}, "publish": {"interval_ms": 3_600_000}}


class World:
    """One log in a directory, with or without a store in another one."""

    def __init__(self, path: Path, *, shipped: bool = False, **sections: dict[str, object]) -> None:
        self.path = path
        self.root = path / "store" if shipped else path / "log" / "segments"
        self.place = str(path / "store") if shipped else str(path / "log")
        store = self.root.as_uri() if shipped else None
        settings = Settings.from_mapping({**QUIET, **sections})
        self.log: Log = holdfast.open(path / "log", store=store, settings=settings)
        self._is_shipped = shipped

    def settle(self) -> None:
        """Seal and ship what is there."""
        self.log.seal()
        if self._is_shipped:
            self.log.ship()

    def close(self) -> None:
        self.log.close()

    def table(self, topic: str) -> Path:
        return self.root / layout.table_folder(topic)

    def expected(self, topic: str) -> Table:
        """What is settled, by holdfast's own reader."""
        return keyed(holdfast.read(self.place, topic, fail_on_data_loss=False).to_arrow())

    def publisher(self) -> Publisher:
        return publisher_of(DirectoryStore(self.root, CLOCK))

    def store(self) -> RootStore:
        return RootStore(DirectoryStore(self.root, CLOCK), RootTrust(None))

    def segments(self, topic: str, partition: int) -> list[SegmentDocument]:
        return read_manifest(self.store(), self.log.id, topic, partition).segments

    def expire(self, topic: str, partition: int, upto: int) -> None:
        """Retire segments below a number, as retention does."""
        document = ExpiredDocument(
            log=self.log.id,
            topic=topic,
            partition=partition,
            upto=upto,
            first=self.segments(topic, partition)[upto - 1].end,
            expired_us=CLOCK.now_us(),
        )
        self.store().create(layout.expired_key(topic, partition, upto), Body.of(documents.encode(document)))

    def join(self, topic: str, partition: int, first: int, upto: int) -> None:
        """Put one file in the place of segments [first, upto), as compaction does."""
        store, segments = self.store(), self.segments(topic, partition)
        done = read_rewrites(store, self.log.id, topic, partition)
        taken = [file for file in in_effect(segments, done) if first <= file.segment.number < upto]
        assert taken[0].segment.number == first
        assert taken[-1].upto == upto
        one = joined(self.root, [file.segment for file in taken])
        rewrite = RewriteDocument(
            log=self.log.id,
            topic=topic,
            partition=partition,
            number=len(done),
            nonce="0" * 16,
            outputs=(RewrittenFile(upto=upto, segment=one),),
            rewritten_us=CLOCK.now_us(),
        )
        store.create(layout.rewrite_key(topic, partition, len(done)), Body.of(documents.encode(rewrite)))


def joined(root: Path, taken: Sequence[SegmentDocument]) -> SegmentDocument:
    """One segment file with the rows of several."""
    first = taken[0]
    tables = [pq.read_table(root / one.key) for one in taken]
    schema = tables[0].schema.remove_metadata()
    head = SegmentHead(
        log_id=bytes.fromhex(first.log),
        topic=first.topic,
        partition=first.partition,
        number=first.number,
        first=first.first,
        epoch=first.epoch,
        schema=bytes.fromhex(first.schema),
        previous=bytes.fromhex(first.previous),
    )
    temporary = root / layout.segments_folder(first.topic, first.partition) / "joined.tmp"
    with SegmentWriter(temporary, head, schema, FileShape(), None) as writer:
        for table in tables:
            for batch in table.cast(schema).to_batches():
                writer.write(batch)
        facts = writer.finish()
    from holdfast.model.segment import Segment

    segment = Segment(head=head, facts=facts)
    document = SegmentDocument.of(
        segment, slot=first.slot, chain=segment.chain, sealed_us=max(one.sealed_us for one in taken)
    )
    os.replace(temporary, root / document.key)
    return document


def keyed(table: pa.Table) -> Table:
    """Rows by partition and offset; a row that is there twice is an error."""
    prefix = "_" if "_offset" in table.column_names else ""
    found: Table = {}
    for row in table.to_pylist():
        row.pop(f"{prefix}topic", None)
        place = (row[f"{prefix}partition"], row[f"{prefix}offset"])
        assert place not in found, place
        found[place] = row
    return found


def delta_rows(path: Path, version: int | None = None) -> Table:
    """What deltalake reads."""
    return keyed(deltalake.DeltaTable(str(path), version=version).to_pyarrow_table())


def log_folder(path: Path) -> Path:
    return path / "_delta_log"


def files_below(path: Path) -> dict[str, bytes]:
    files = {found.relative_to(path).as_posix(): found for found in path.rglob("*") if found.is_file()}
    # A frontier is written behind the marks, and may be on its way.
    return {name: found.read_bytes() for name, found in files.items() if not name.startswith("frontiers/")}
