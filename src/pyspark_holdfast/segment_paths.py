"""Segments as rows (`emit=segments`): the stream names segments, and Spark's own Parquet reader reads them."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from holdfast.reader.read_plan import Piece

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
