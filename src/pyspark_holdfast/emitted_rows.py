"""Rows about segments in place of their records. No segment is opened.

`emit=segments`: a stream names segments, and Spark's own Parquet reader reads them.

`emit=manifest`: what was sealed, when, and when readers could see it. One row per segment as it was sealed, whatever
compaction has made of its file since. A segment belongs to the span of offsets that its first record lies in: however
spans are cut, each segment is given once. When it was settled is not in the manifest: it is the time of its manifest
object on the store, which a listing shows. Rows are made on the driver, and tasks carry them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from holdfast.reader.open_root import SettledRoot
from holdfast.reader.read_plan import Piece
from holdfast.reader.resolve import OffsetSpan
from holdfast.root.objects.documents import SegmentDocument
from holdfast.root.store_manifest import in_parallel
from holdfast.store import layout
from pyspark_holdfast.versions.arrow_schema import arrow_schema

MANIFEST_ROWS = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("number", LongType()),
        StructField("first_offset", LongType()),
        StructField("rows", LongType()),
        StructField("bytes", LongType()),
        StructField("time_min", TimestampType()),
        StructField("time_max", TimestampType()),
        StructField("sealed_at", TimestampType()),
        StructField("settled_at", TimestampType()),
        StructField("is_encrypted", BooleanType()),
        StructField("is_lost", BooleanType()),
    ]
)
"""One row per segment. `is_lost`: its records were lost, and a rebuild has put this entry in their place."""

SEGMENT_ROWS = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("number", LongType()),
        StructField("key", StringType()),
        StructField("first_offset", LongType()),
        StructField("rows", LongType()),
        StructField("bytes", LongType()),
        StructField("start_offset", LongType()),
        StructField("end_offset", LongType()),
        StructField("schema", StringType()),
        StructField("key_id", StringType()),
    ]
)
"""One row per segment: where it is below the root, and which of its records are meant (start included, end not)."""

_TASK_ROWS = 20_000


def segment_rows(pieces: Iterable[Piece], target: pa.Schema) -> pa.RecordBatch:
    """Pieces as rows of these columns."""
    rows = [
        {
            "topic": piece.head.topic,
            "partition": piece.head.partition,
            "number": piece.head.number,
            "key": piece.key,
            "first_offset": piece.head.first,
            "rows": piece.facts.rows,
            "bytes": piece.facts.size,
            "start_offset": piece.start,
            "end_offset": piece.end,
            "schema": piece.head.schema.hex() if any(piece.head.schema) else "",
            "key_id": piece.facts.key_id,
        }
        for piece in pieces
    ]
    return pa.RecordBatch.from_pylist(rows, target)


def manifest_tasks(root: SettledRoot, spans: Sequence[OffsetSpan]) -> list[bytes]:
    """What the manifests say about these spans, as tasks."""
    wanted = [span for span in spans if span.start < span.end]
    found = [row for rows in in_parallel(lambda span: _rows(root, span), wanted) for row in rows]
    target = arrow_schema(MANIFEST_ROWS)
    parts = [found[at : at + _TASK_ROWS] for at in range(0, len(found), _TASK_ROWS)]
    return [_encoded(pa.RecordBatch.from_pylist(part, target)) for part in parts]


def manifest_rows(task: bytes, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a task, in these columns."""
    for batch in pa.ipc.open_stream(task):
        yield pa.RecordBatch.from_arrays([batch.column(name) for name in target.names], schema=target)


def _encoded(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


def _rows(root: SettledRoot, span: OffsetSpan) -> list[dict[str, object]]:
    segments = [one for one in root.segments((span.topic, span.partition)) if span.start <= one.first < span.end]
    settled = _settled(root, segments)
    return [
        {
            "topic": segment.topic,
            "partition": segment.partition,
            "number": segment.number,
            "first_offset": segment.first,
            "rows": segment.rows,
            "bytes": segment.size,
            "time_min": segment.time_min,
            "time_max": segment.time_max,
            "sealed_at": segment.sealed_us,
            "settled_at": settled.get(segment.slot),
            "is_encrypted": bool(segment.key_id),
            "is_lost": segment.is_filler,
        }
        for segment in segments
    ]


def _settled(root: SettledRoot, segments: Sequence[SegmentDocument]) -> dict[int | None, int]:
    """By slot: when the store got the manifest object; only those from the first of the segments on are listed."""
    if not segments:
        return {}
    place, slot = (segments[0].topic, segments[0].partition), segments[0].slot
    after = layout.manifest_key(*place, slot - 1) if slot else None
    return {
        layout.parse_number(info.key): info.modified_us
        for info in root.store.list(layout.manifest_folder(*place), after)
    }
