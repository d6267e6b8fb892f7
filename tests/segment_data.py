"""Segments for tests: batches of raw and typed records, and files made of them."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa

from holdfast import Keyring
from holdfast.crypto.vault import Vault
from holdfast.model.segment import NO_CHAIN, NO_SCHEMA, SegmentFacts, SegmentHead
from holdfast.segments.file.file_shape import FileShape
from holdfast.segments.file.segment_columns import RAW_SCHEMA, TIME, typed_schema
from holdfast.segments.file.segment_writer import SegmentWriter
from holdfast.testing.manual_clock import ManualClock

LOG_ID = bytes(range(16))
BEGINNING = 1_700_000_000_000_000
SMALL = FileShape(row_group_rows=100, block_rows=30)

USER_SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("address", pa.struct([("street", pa.string()), ("numbers", pa.list_(pa.int32()))])),
        pa.field("extra", pa.map_(pa.string(), pa.float64())),
        pa.field("colour", pa.dictionary(pa.int8(), pa.string())),
    ]
)


def keyed_vault(seed: int = 7) -> Vault:
    """A vault of the test log with a key."""
    return Vault(LOG_ID, Keyring.generate("k1", clock=ManualClock(seed=seed)))


def head(first: int = 0, *, typed: bool = False, **changes: object) -> SegmentHead:
    """The head of the test partition's segment."""
    values = {
        "log_id": LOG_ID, "topic": "orders", "partition": 2, "number": 5, "first": first, "epoch": 3,
        "schema": b"s" * 16 if typed else NO_SCHEMA, "previous": NO_CHAIN, **changes,
    }  # fmt: skip
    return SegmentHead(**values)  # type: ignore[arg-type]


def raw_batch(first: int, count: int, seed: int = 0) -> pa.RecordBatch:
    """Raw records with nulls, empty values, headers and unicode; times go up and down."""
    chance = random.Random(seed + first)
    times = [BEGINNING + (first % 2**40 + i) * 1000 + chance.randrange(-5000, 5000) for i in range(count)]
    headers = [
        chance.choice([None, [], [{"key": "trace", "value": chance.randbytes(4)}, {"key": "ü", "value": b""}]])
        for _ in range(count)
    ]
    columns = [
        pa.arange(first, first + count, 1),
        pa.array(times, pa.int64()).view(TIME),
        pa.array([chance.choice([None, b"", b"k-%d" % i]) for i in range(count)], pa.binary()),
        pa.array([chance.choice([None, "", "naïve ✓", "order"]) for _ in range(count)], pa.string()),
        pa.array(headers, RAW_SCHEMA.field("headers").type),
        pa.array([chance.randbytes(chance.randrange(30)) for _ in range(count)], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RAW_SCHEMA)


def typed_batch(first: int, count: int, seed: int = 0) -> pa.RecordBatch:
    """Typed records, nested and with nulls."""
    chance = random.Random(seed + first)
    rows = [
        {
            "id": first + i,
            "name": chance.choice([None, "", "Zoë", "x" * 40]),
            "price": None if i % 7 == 0 else i,
            "tags": chance.choice([None, [], ["a", None, ""]]),
            "address": chance.choice([None, {"street": None, "numbers": [1, None]}, {"street": "s", "numbers": None}]),
            "extra": chance.choice([None, [], [("a", 1.5), ("b", None)]]),
            "colour": chance.choice([None, "red", "blue"]),
        }
        for i in range(count)
    ]
    own = pa.RecordBatch.from_pylist(rows, schema=USER_SCHEMA)
    return pa.RecordBatch.from_arrays(
        [*raw_batch(first, count, seed).columns[:2], *own.columns], schema=typed_schema(USER_SCHEMA)
    )


def batch_of(shape: str, first: int, count: int) -> pa.RecordBatch:
    """Records for one of the shapes `raw`, `typed`, `sealed-raw`, `sealed-typed`."""
    return (typed_batch if shape.endswith("typed") else raw_batch)(first, count)


def head_of(shape: str, first: int = 0, **changes: object) -> SegmentHead:
    """The head for one of the shapes."""
    return head(first, typed=shape.endswith("typed"), **changes)


def write(
    path: Path,
    place: SegmentHead,
    batches: list[pa.RecordBatch],
    *,
    vault: Vault | None = None,
    shape: FileShape = SMALL,
    salt: bytes = b"s" * 32,
) -> SegmentFacts:
    """A finished segment file."""
    key = vault.segment_key(salt) if vault else None
    writer = SegmentWriter(path, place, batches[0].schema, shape, key)
    for batch in batches:
        writer.write(batch)
    return writer.finish()
