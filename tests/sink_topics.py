"""Topics of sinks by hand: batches written to a root as a sink writes them, each step by itself.

A test commits a batch without its manifest objects, or applies half of them, to see what everybody else makes of that.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from holdfast.clock import SystemClock
from holdfast.crypto.keyring import Keyring
from holdfast.crypto.segment_key import encrypting_key
from holdfast.crypto.signatures import Signer
from holdfast.errors import NotFound
from holdfast.model.schema import TopicSchema, declare
from holdfast.model.segment import NO_SCHEMA, Segment, SegmentHead
from holdfast.root import sink_batches
from holdfast.root.batch_application import apply
from holdfast.root.objects import documents
from holdfast.root.objects.documents import (
    LogDocument,
    PartitionEnd,
    SchemaVersion,
    SegmentDocument,
    SinkBatchDocument,
    SinkTopicDocument,
)
from holdfast.root.root_store import RootStore
from holdfast.root.root_trust import RootTrust
from holdfast.root.sink_batches import NOTHING, end_behind
from holdfast.segments.file.file_shape import FileShape
from holdfast.segments.file.segment_columns import RAW_SCHEMA, TIME, typed_schema
from holdfast.segments.file.segment_writer import SegmentWriter
from holdfast.store import layout
from holdfast.store.port import Body, Store

BEGINNING_US = 1_700_000_000_000_000
LOG_ID = "ab" * 16
Rows = Sequence[bytes]


class SinkTopic:
    """One topic of a root that a sink writes; `schema` for a typed one, `keyring` for a root with keys.

    A root without a log gets one, as a sink makes it.
    """

    def __init__(
        self, store: Store, topic: str = "spark", *, keyring: Keyring | None = None, schema: pa.Schema | None = None
    ) -> None:
        self.store = RootStore(store, RootTrust(Signer.of(keyring)))
        self.topic, self._keyring = topic, keyring
        try:
            self.log = self.store.log().log
        except NotFound:
            self.log = LOG_ID
            self.store.create(layout.LOG, Body.of(documents.encode(LogDocument(log=LOG_ID, created_us=BEGINNING_US))))
        self.schemas: list[TopicSchema] = [] if schema is None else [declare(schema)]
        self.version = self.partitions = 0

    # -- the steps of a write -----------------------------------------------------------------------------

    def describe(self, partitions: int, schema: pa.Schema | None = None) -> None:
        """The next version of the topic's document."""
        if schema is not None:
            self.schemas.append(declare(schema))
        self.version, self.partitions = self.version + 1, partitions
        document = SinkTopicDocument(
            log=self.log,
            topic=self.topic,
            version=self.version,
            partitions=partitions,
            first_offset=0,
            schemas=tuple(
                SchemaVersion(one.fingerprint.hex(), b64encode(one.serialize()).decode()) for one in self.schemas
            ),
        )
        self.store.create(layout.topic_key(self.topic, self.version), Body.of(documents.encode(document)))

    def written(self, partition: int, end: PartitionEnd, rows: Sequence[object], *, plain: bool = False) -> Segment:
        """One segment behind an end, on the store; nothing speaks of it yet."""
        schema = self.schemas[-1] if self.schemas else None
        head = SegmentHead(
            log_id=bytes.fromhex(self.log),
            topic=self.topic,
            partition=partition,
            number=end.number,
            first=end.first,
            epoch=1,
            schema=NO_SCHEMA if schema is None else schema.fingerprint,
            previous=bytes.fromhex(end.chain),
        )
        batch = _raw(end.first, rows) if schema is None else _typed(end.first, rows, schema)
        keyring = None if plain else self._keyring
        key = encrypting_key(keyring, None, head.log_id, SystemClock().random_bytes(32))
        with TemporaryDirectory() as folder:
            path = Path(folder) / "segment"
            with SegmentWriter(path, head, batch.schema, FileShape(), key) as writer:
                writer.write(batch)
                segment = Segment(head=head, facts=writer.finish())
            name = layout.segment_key(self.topic, partition, head.number, segment.facts.sha256)
            self.store.files.create(name, Body.of(path.read_bytes()))
        return segment

    def document(
        self, rows: Mapping[int, Sequence[Sequence[object]]], *, writer: str = "", batch: int = -1, plain: bool = False
    ) -> SinkBatchDocument:
        """The next batch, whose segments are on the store: by partition, the rows of each of its segments."""
        before = self.newest
        segments: list[SegmentDocument] = []
        ends = {} if before is None else dict(before.ends)
        for partition, parts in sorted(rows.items()):
            for part in parts:
                end = ends.get(str(partition), NOTHING)
                segment = self.written(partition, end, part, plain=plain)
                made = SegmentDocument.of(segment, slot=end.slots, chain=segment.chain, sealed_us=BEGINNING_US)
                segments.append(made)
                ends[str(partition)] = end_behind(made)
        marks = {} if before is None else dict(before.marks)
        if writer:
            marks[writer] = batch
        return SinkBatchDocument(
            log=self.log,
            topic=self.topic,
            number=0 if before is None else before.number + 1,
            writer=writer,
            batch=batch,
            nonce=SystemClock().random_bytes(16).hex(),
            segments=tuple(segments),
            ends=ends,
            marks=marks,
            committed_us=BEGINNING_US,
        )

    def commit(self, document: SinkBatchDocument) -> SinkBatchDocument:
        """Create the batch's object: from now on its rows are there."""
        key = layout.sink_key(self.topic, document.number)
        self.store.create(key, Body.of(documents.encode(document)))
        return document

    def write(
        self, rows: Mapping[int, Sequence[Sequence[object]]], *, applied: bool = True, writer: str = "", batch: int = -1
    ) -> SinkBatchDocument:
        """All of it: documents of the topic, segments, the batch, and (`applied`) its manifest objects."""
        apply(self.store, self.newest)
        needed = max([self.partitions, *(partition + 1 for partition in rows)])
        if needed > self.partitions or not self.version:
            self.describe(max(1, needed))
        document = self.commit(self.document(rows, writer=writer, batch=batch))
        if applied:
            apply(self.store, document)
        return document

    @property
    def newest(self) -> SinkBatchDocument | None:
        return sink_batches.newest_batch(self.store, self.log, self.topic)

    def keys(self) -> Iterator[str]:
        """All objects of the topic."""
        return (info.key for info in self.store.files.list(layout.table_folder(self.topic)))

    def objects(self) -> dict[str, bytes]:
        """All objects of the topic, with their bytes."""
        return {key: self.store.files.get(key) for key in self.keys()}


def _times(first: int, count: int) -> pa.Array:
    return pa.array([BEGINNING_US + first + i for i in range(count)], pa.int64()).view(TIME)


def _raw(first: int, rows: Sequence[object]) -> pa.RecordBatch:
    count = len(rows)
    columns = [
        pa.arange(first, first + count, 1),
        _times(first, count),
        pa.nulls(count, pa.binary()),
        pa.nulls(count, pa.string()),
        pa.nulls(count, RAW_SCHEMA.field("headers").type),
        pa.array(rows, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RAW_SCHEMA)


def _typed(first: int, rows: Sequence[object], schema: TopicSchema) -> pa.RecordBatch:
    own = pa.RecordBatch.from_pylist(list(rows), schema=schema.stored)
    columns = [pa.arange(first, first + len(rows), 1), _times(first, len(rows)), *own.columns]
    return pa.RecordBatch.from_arrays(columns, schema=typed_schema(schema.stored))
