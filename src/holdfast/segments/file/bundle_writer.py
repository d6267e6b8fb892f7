"""Writes one bundle: the encrypted blocks of several neighbouring segments, moved into one file without being opened.

The blocks stay as they are, byte for byte, and so do the footers that prove them: the bundle's footer carries those as
its parts (docs/formats/0004-segment.md). No key is needed, and none is used. Each source's blocks are compared with its
content digest on the way; what does not match is Corrupt, and the bundle is given up. Whether the sources are the right
ones is the caller's business: they come from a manifest that was proved.

Row groups of the sources are joined, never cut, so that the parts' footers vouch for the bundle's row groups, too.

The writer owns a temporary file, as a segment's writer does: after `finish` its content is durable and its name is not.
The indexes of the sources' keys are moved, too, behind the row groups: each stays encrypted for its own segment.

Memory: one row group to be written, and one that is read, and those indexes. Sources may be bundles themselves.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import pyarrow as pa

from holdfast.crypto import digests
from holdfast.errors import Invalid
from holdfast.model.segment import SegmentFacts, SegmentHead, chain_value
from holdfast.segments.file.encrypted_blocks import BLOCK_SCHEMA
from holdfast.segments.file.file_shape import FileShape
from holdfast.segments.file.footer import BundlePart, Footer, RowGroupStatistics, bundled, joined_groups
from holdfast.segments.file.row_group_file import RowGroupFile
from holdfast.segments.file.segment_reader import SegmentReader
from holdfast.segments.file.segment_writer import parquet_settings
from holdfast.segments.file.stored_parts import PART_GROUPS_MAX, PARTS_MAX


class BundleWriter:
    """Writes one bundle at a temporary `path`. Row groups are as large as `shape` says, if the sources' are not larger.

    `rewrite` is the nonce of the rewrite that the file is for: without one, the same sources give the same bytes.

    >>> with BundleWriter(path, FileShape()) as bundle:  # doctest: +SKIP
    ...     for reader in readers:
    ...         bundle.add(reader)
    ...     facts = bundle.finish()
    """

    def __init__(self, path: Path, shape: FileShape, *, rewrite: str = "") -> None:
        self._rewrite = rewrite
        self._rows_max, self._bytes_max = shape.row_group_rows, shape.row_group_bytes
        self._parts: list[BundlePart] = []
        self._part_groups = 0
        self._key_blobs: list[bytes] = []
        self._keys_at = 0
        self._pending: list[tuple[RowGroupStatistics, pa.RecordBatch]] = []
        self._rows = 0
        self._bytes = 0
        self._file = RowGroupFile(path, BLOCK_SCHEMA, parquet_settings(BLOCK_SCHEMA, is_encrypted=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()  # which does nothing to a file that is finished

    def fits(self, source: SegmentReader) -> bool:
        """Whether a bundle may have the parts of this file as well."""
        parts = source.parts()
        groups = sum(len(part.footer.groups) for part in parts)
        return len(self._parts) + len(parts) <= PARTS_MAX and self._part_groups + groups <= PART_GROUPS_MAX

    def add(self, source: SegmentReader) -> None:
        """Move all blocks of the next file, which is encrypted; Invalid if it does not follow the one before it."""
        self._file.require_open()
        if not self.fits(source):
            raise Invalid(
                f"a bundle has too many parts max={PARTS_MAX} row_groups_max={PART_GROUPS_MAX}",
                hint="begin another bundle: compact with a smaller target_size",
            )
        try:
            for part in source.parts():
                self._require_next(part.footer)
                self._parts.append(part)
                self._part_groups += len(part.footer.groups)
            self._key_blobs += source.key_blobs()
            for about, table in source.blocks_to_move():
                self._take(about, table)
        except BaseException:
            self.abandon()  # some of its blocks may be there already
            raise

    def finish(self) -> SegmentFacts:
        """Write the footer, make the file durable and close it. It still has its temporary name."""
        self._file.require_open()
        self._write_pending()
        self._keys_at = self._file.write_behind(b"".join(self._key_blobs))
        return self._file.finish(self._footer, digests.plain_stamp)

    def abandon(self) -> None:
        """Close the file as it is; removing it is the caller's business. Does nothing after `finish`."""
        self._file.abandon()

    @property
    def head(self) -> SegmentHead:
        """Where the bundle belongs: in the place of its first segment."""
        return msgspec.structs.replace(self._parts[0].footer.head, epoch=self._parts[-1].footer.head.epoch)

    def _footer(self, blocks: bytes) -> Footer:
        return bundled(self._parts, self._file.groups, blocks, self._rewrite, self._keys_at)

    def _require_next(self, footer: Footer) -> None:
        if not self._parts:
            return
        last = self._parts[-1].footer
        expected = msgspec.structs.replace(
            last.head,
            number=last.head.number + 1,
            first=last.end,
            epoch=footer.head.epoch,
            previous=chain_value(last.head, last.rows, last.content),
        )
        if footer.head != expected or footer.shape != last.shape:
            head = footer.head
            raise Invalid(
                f"a bundle's segments must follow each other, with one schema expected={expected.number}"
                f" is={head.topic}/{head.partition}/{head.number}",
                hint="give neighbours, in order, each once",
            )

    def _take(self, about: RowGroupStatistics, table: pa.RecordBatch) -> None:
        size = table.nbytes
        if self._rows + about.rows > self._rows_max or self._bytes + size > self._bytes_max:
            self._write_pending()
        self._pending.append((about, table))
        self._rows += about.rows
        self._bytes += size

    def _write_pending(self) -> None:
        pending, self._pending, self._rows, self._bytes = self._pending, [], 0, 0
        if pending:
            self._file.write(
                pa.Table.from_batches([table for _, table in pending]), joined_groups([about for about, _ in pending])
            )
