"""Bundles for tests: runs of encrypted segments that follow each other, and the bundles made of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast import Keyring
from holdfast.crypto import digests
from holdfast.crypto.vault import Vault
from holdfast.model.segment import NO_CHAIN, SegmentFacts, SegmentHead, chain_value
from holdfast.segments.file import footer as footers
from holdfast.segments.file.bundle_writer import BundleWriter
from holdfast.segments.file.encrypted_blocks import BLOCK_SCHEMA
from holdfast.segments.file.file_shape import FileShape
from holdfast.segments.file.footer import BundlePart, Footer, RowGroupStatistics
from holdfast.segments.file.row_group_file import RowGroupFile
from holdfast.segments.file.segment_columns import conform, stored_schema
from holdfast.segments.file.segment_reader import SegmentReader
from holdfast.segments.file.segment_writer import parquet_settings
from holdfast.testing.manual_clock import ManualClock
from tests.segment_data import LOG_ID, SMALL, batch_of, head_of, write

RING = Keyring.generate("k1", clock=ManualClock(seed=7)).rotated("k2", clock=ManualClock(seed=8))
"""Two keys: segments are encrypted with one or the other, and readers have both."""
VAULT = Vault(LOG_ID, RING)
OLD_VAULT = Vault(LOG_ID, Keyring({"k1": RING.key("k1")}))
"""As before the key was rotated."""


class Masked:
    """A cipher of the user's own, good for tests only."""

    name = "masked"

    def encrypt(self, plaintext: bytes, associated: bytes) -> bytes:
        return self.mac(bytes(plaintext) + associated) + bytes(byte ^ 0x5A for byte in plaintext)

    def decrypt(self, encrypted: bytes, associated: bytes) -> bytes:
        plaintext = bytes(byte ^ 0x5A for byte in encrypted[32:])
        if self.mac(plaintext + associated) != encrypted[:32]:
            raise ValueError("no")
        return plaintext

    def mac(self, message: bytes) -> bytes:
        return hashlib.sha256(b"secret" + bytes(message)).digest()


class File(NamedTuple):
    """A file, and what a manifest would say of it."""

    path: Path
    head: SegmentHead
    facts: SegmentFacts


def write_run(
    folder: Path,
    sizes: Sequence[int],
    *,
    shape: str = "sealed-raw",
    first: int = 1000,
    number: int = 5,
    file_shape: FileShape = SMALL,
    rotated_at: int = 1,
    vaults: tuple[Vault, Vault] = (OLD_VAULT, VAULT),
    seed: int = 0,
) -> list[File]:
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


Row = dict[str, Any]
"""A block, as a row of a file."""


class Forgery:
    """A bundle taken apart, to be put together in another way, with all hashes and stamps right."""

    def __init__(self, made: File) -> None:
        with SegmentReader(made.path, None, None, None) as reader:
            self.parts = list(reader.parts())
            self.footer = reader._footer
            self.key_blobs = dict(zip((part.mac for part in self.parts), reader.key_blobs(), strict=True))
        self.rows = pq.read_table(made.path).to_pylist()
        self.path = made.path.with_name("forged")

    def blocks_of(self, *indexes: int) -> list[Row]:
        """The rows of some parts."""
        spans = [(p.footer.head.first, p.footer.end) for p in self.parts]
        return [r for i in indexes for r in self.rows if spans[i][0] <= r["first_offset"] < spans[i][1]]

    def parse_parts(self, parts: Sequence[BundlePart]) -> list[BundlePart]:
        """Parts as a reader understands them in this order: places follow from the order."""
        shell = footers.bundled(self.parts, self.footer.groups, b"")
        stored = [footers._stored(part, self.footer.schema) for part in parts]
        return footers._parts(shell, stored)

    def write(
        self,
        parts: Sequence[BundlePart],
        rows: list[Row],
        *,
        groups: Sequence[RowGroupStatistics] | None = None,
        change: Callable[[Footer], Footer] | None = None,
    ) -> File:
        """The forged file; its row groups are the parts', unless others are given."""
        parts = self.parse_parts(parts)
        groups = groups or [footers.joined_groups([g for part in parts for g in part.footer.groups])]
        writer = RowGroupFile(self.path, BLOCK_SCHEMA, parquet_settings(BLOCK_SCHEMA, is_encrypted=True))
        count = -(-len(rows) // len(groups))
        for at, group in enumerate(groups):
            writer.write(pa.Table.from_pylist(rows[at * count : (at + 1) * count], BLOCK_SCHEMA), group)
        keys_at = writer.write_behind(b"".join(self.key_blobs.get(part.mac, b"") for part in parts))
        bundled = partial(footers.bundled, parts, groups, rewrite="", keys_at=keys_at)
        footer_of = lambda blocks: (change or (lambda f: f))(bundled(blocks=blocks))  # noqa: E731
        facts = writer.finish(footer_of, digests.plain_stamp)
        with_head = footers.bundled(parts, groups, b"").head
        return File(self.path, with_head, facts)
