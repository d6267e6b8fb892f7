"""Bundles for tests: runs of encrypted segments that follow each other, and the bundles made of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from holdfast import Keyring
from holdfast.crypto.vault import Vault
from holdfast.model.segment import NO_CHAIN, SegmentFacts, SegmentHead, chain_value
from holdfast.segments.file.bundle_writer import BundleWriter
from holdfast.segments.file.file_shape import FileShape
from holdfast.segments.file.segment_columns import conform, stored_schema
from holdfast.segments.file.segment_reader import SegmentReader
from holdfast.testing.manual_clock import ManualClock
from tests.segment_data import LOG_ID, SMALL, batch_of, head_of, write

RING = Keyring.generate("k1", clock=ManualClock(seed=7)).rotated("k2", clock=ManualClock(seed=8))
"""Two keys: segments are encrypted with one or the other, and readers have both."""
VAULT = Vault(LOG_ID, RING)
OLD_VAULT = Vault(LOG_ID, Keyring({"k1": RING.key("k1")}))
"""As before the key was rotated."""


class File(NamedTuple):
    """A file, and what a manifest would say of it."""

    path: Path
    head: SegmentHead
    facts: SegmentFacts


def write_run(
    folder: Path, sizes: Sequence[int], *, shape: str = "sealed-raw", first: int = 1000, number: int = 5,
    file_shape: FileShape = SMALL, rotated_at: int = 1, vaults: tuple[Vault, Vault] = (OLD_VAULT, VAULT), seed: int = 0,
) -> list[File]:  # fmt: skip
    """Segments of these sizes that follow each other; from `rotated_at` on they have another key and another epoch."""
    files, previous = [], NO_CHAIN
    for index, size in enumerate(sizes):
        vault = vaults[index >= rotated_at]
        place = head_of(shape, first, number=number + index, previous=previous, epoch=3 + index)
        path = folder / f"{seed}-{number + index}"
        salt = bytes([seed, index % 256, index // 256]) + b"s" * 29
        facts = write(path, place, [batch_of(shape, first, size)], vault=vault, shape=file_shape, salt=salt)
        files.append(File(path, place, facts))
        previous = chain_value(place, facts.rows, facts.content)
        first += size
    return files


def bundle(path: Path, files: Sequence[File], shape: FileShape = SMALL) -> File:
    """A bundle of these files; no key is given to anybody."""
    with BundleWriter(path, shape) as writer:
        for file in files:
            with SegmentReader(file.path, file.head, file.facts, None) as reader:
                writer.add(reader)
        facts = writer.finish()
        return File(path, writer.head, facts)


def rows_of(files: Sequence[File], vault: Vault = VAULT, **how: object) -> pa.Table:
    """The records of files, one after the other."""
    batches: list[pa.RecordBatch] = []
    with ExitStack() as stack:
        for file in files:
            reader = stack.enter_context(SegmentReader(file.path, file.head, file.facts, vault.stored_segment_key))
            batches += reader.batches(0, 2**63, **how)  # type: ignore[arg-type]
        return pa.Table.from_batches(batches, reader.schema)


def written(files: Sequence[File], shape: str = "sealed-raw") -> pa.Table:
    """What was put into such files."""
    batches = [batch_of(shape, file.head.first, file.facts.rows) for file in files]
    return pa.Table.from_batches([conform(batch, stored_schema(batch.schema)) for batch in batches])
