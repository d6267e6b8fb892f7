"""What the benches of segments work on: payloads, rows and logs that are the same in every run.

Payloads are JSON-like text of exactly 200 bytes with some entropy (ids, numbers, a token), no two alike, from a fixed
seed; zstd at level 1 makes them three to four times smaller. Random bytes would measure a compressor that gives up,
and one payload repeated a compressor that has nothing to do. Typed rows have six columns, as skewed as such data is.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import holdfast
from holdfast import Keyring, Log, Settings

KEYRING = Keyring.generate()
TOPIC = "bench"
PAYLOAD_BYTES = 200
RAW_BATCH, TYPED_BATCH = 1_000, 10_000

QUIET: dict[str, Any] = {"rows_max": 2**40, "bytes_max": 2**40, "age_max_ms": 86_400_000.0, "seal_on_close": False}
"""Segment settings under which the roller does nothing unless it is asked."""

SCHEMA = pa.schema(
    [
        pa.field("order", pa.int64(), nullable=False),
        pa.field("amount", pa.float64(), nullable=False),
        pa.field("placed", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("city", pa.string()),
        pa.field("note", pa.string()),
        pa.field("paid", pa.bool_(), nullable=False),
    ]
)
_CITIES = ("Aachen", "Bergen", "Cork", "Dresden", "Espoo", "Florence", "Ghent", "Hull", "Innsbruck", "Jena")
_STATES = ("placed", "paid", "packed", "shipped", "returned")
_WORDS = ("blue", "box", "fragile", "gift", "large", "leave", "night", "ring", "small", "twice", "with", "wrapped")


def payloads(count: int) -> list[bytes]:
    """So many payloads of 200 bytes."""
    chance = random.Random(200)
    return [_payload(chance, number) for number in range(count)]


def _payload(chance: random.Random, number: int) -> bytes:
    text = (
        f'{{"order":{number},"customer":"c-{chance.getrandbits(24):06x}","city":"{chance.choice(_CITIES)}",'
        f'"state":"{chance.choice(_STATES)}","cents":{chance.randrange(100, 1_000_000)},'
        f'"token":"{chance.getrandbits(160):040x}","note":"'
    )
    note = " ".join(chance.choices(_WORDS, k=20))
    return (text + note)[: PAYLOAD_BYTES - 2].encode() + b'"}'


def typed_batches(count: int) -> list[pa.RecordBatch]:
    """So many batches of 10 000 rows."""
    chance = random.Random(6)
    return [_typed_batch(chance, number * TYPED_BATCH) for number in range(count)]


def _typed_batch(chance: random.Random, first: int) -> pa.RecordBatch:
    many = range(TYPED_BATCH)
    columns = [
        pa.array(range(first, first + TYPED_BATCH), pa.int64()),
        pa.array([chance.randrange(100, 1_000_000) / 100 for _ in many], pa.float64()),
        pa.array([1_700_000_000_000_000 + (first + i) * 1_000 + chance.randrange(900) for i in many], SCHEMA[2].type),
        pa.array(chance.choices(_CITIES, k=TYPED_BATCH), pa.string()),
        pa.array([" ".join(chance.choices(_WORDS, k=5)) if chance.random() < 0.8 else None for _ in many], pa.string()),
        pa.array([chance.random() < 0.7 for _ in many], pa.bool_()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def chunks(records: Sequence[bytes], size: int = RAW_BATCH) -> Iterator[Sequence[bytes]]:
    """Payloads in batches."""
    return (records[at : at + size] for at in range(0, len(records), size))


def opened(path: Path, keyring: Keyring | None = None, **segments: Any) -> Log:
    """A log whose roller is quiet, except for what `segments` says."""
    settings = {"segments": {**QUIET, **segments}, "journal": {"tail_bytes_max": 2**40}}
    return holdfast.open(path, keyring=keyring, settings=Settings.from_mapping(settings))


@contextmanager
def fresh(path: Path, keyring: Keyring | None = None, **segments: Any) -> Iterator[Log]:
    """The same, removed afterwards."""
    try:
        with opened(path, keyring, **segments) as log:
            yield log
    finally:
        shutil.rmtree(path, ignore_errors=True)


def files(path: Path) -> list[Path]:
    """The segment files of a log, in order."""
    return sorted(path.glob("segments/topics/*/*/segments/*.parquet"))


def stored_table(file: Path) -> tuple[pa.Table, int]:
    """What a plain segment file holds, in one piece, and the rows of its row groups."""
    with pq.ParquetFile(file) as parquet:
        return parquet.read().replace_schema_metadata(None).combine_chunks(), parquet.metadata.row_group(0).num_rows
