"""Reads one segment file, and trusts nothing in it that was not proved (docs/formats/0004-segment.md).

Proof comes before parsing: the footer against its hash in the manifest, then every block that is read against its
hash in the footer, then decryption. Without a manifest (a rebuild, an inspection) the footer is proved by its `mac` if
there is a key, and by agreement with itself alone if there is none; `verify` then reads everything. A bundle is read
like the file of one segment; what its parts change is in `encrypted_parts`.

The bytes come from a file or from an object of a store (`Bytes`). A missing file is FileNotFoundError: the caller knows
what that means. Anything else wrong with the bytes is Corrupt, with the place of the first record concerned. A reader
serves one thread at a time and never writes.

Memory: one row group decoded, and its stored bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.crypto import digests
from holdfast.crypto.segment_key import SegmentKeyFacts
from holdfast.errors import Corrupt, Invalid, other_version
from holdfast.model.content_digest import ContentDigest
from holdfast.model.segment import SegmentFacts, SegmentHead
from holdfast.segments.file import encrypted_blocks
from holdfast.segments.file import footer as footers
from holdfast.segments.file.encrypted_parts import EncryptedParts, FindKey
from holdfast.segments.file.footer import BadFooter, BundlePart, Footer, RowGroupStatistics, UnknownVersion
from holdfast.segments.file.group_decoding import STEP_ROWS, TYPED_STEP_ROWS, GroupDecoding
from holdfast.segments.file.key_places import IndexedRows, KeyCheck, blobs, indexes
from holdfast.segments.file.proven_file import FOOTER_BYTES_MAX, Bytes, DamagedFile, FileBytes, Piece, ProvenFile
from holdfast.segments.file.proven_footer import read_footer
from holdfast.segments.file.segment_columns import RAW_SCHEMA, decoded, has_ends, is_dense, is_raw, time_range
from holdfast.segments.file.selection import Selection, joined, select, shared, turned
from holdfast.segments.file.unproven_footer import BadStructure, TooLarge, read_metadata
from holdfast.segments.keys.key_index import BadIndex

__all__ = ["ROW_GROUP_BYTES_MAX", "FindKey", "SegmentReader"]

# What Arrow may raise on bytes that are not what they say; LookupError is KeyError and IndexError.
_ARROW_ERRORS = (
    pa.ArrowException, OSError, ValueError, ArithmeticError, MemoryError, TypeError, LookupError, RuntimeError,
)  # fmt: skip

ROW_GROUP_BYTES_MAX = 256 * 2**20
"""What a row group of an untrusted file may take, unless the reader allows more. Ours take 32 MiB."""

_GROUPS_AHEAD = 2
"""Row groups that are announced to where the bytes come from, while one is read."""


class SegmentReader:
    """One segment file, open for reading; a context manager.

    `head` and `facts` are what the manifest says; a file that differs is Corrupt. Without them they are taken from
    the file. `open_key` finds the key of an encrypted file; give it whenever the log has keys, and only then:
    without facts, a plain file in a log with keys is refused. `source` is where the bytes come from, if not from a file
    at `path`, which then only names it; without `compare_blocks` only the footer is proved.

    `trusted` says that the facts are proved: they come from the log's own database, or from a document that the log's
    key signed. Otherwise they are untrusted, however well they match. Then the footer is taken apart before
    Arrow sees it, pages are weighed before they are unpacked, and a row group of more than `row_group_bytes_max` is
    refused (Invalid). With `keys_only` it gives indexes of keys and no rows, and takes half the time to open.
    """

    def __init__(
        self,
        path: Path | str,
        head: SegmentHead | None,
        facts: SegmentFacts | None,
        open_key: FindKey | None,
        *,
        trusted: bool = False,
        source: Bytes | None = None,
        compare_blocks: bool = True,
        row_group_bytes_max: int = ROW_GROUP_BYTES_MAX,
        keys_only: bool = False,
    ) -> None:
        assert facts is not None or not trusted, "without facts there is nothing to trust"
        self.path = path
        self._head, self._facts = head, facts
        self._find_key = open_key
        self._bytes_max = row_group_bytes_max
        self._trusted = trusted
        self._file = ProvenFile(source or FileBytes(Path(path)), compare_blocks=compare_blocks)
        try:
            with self._as_corrupt():
                self._footer, self._pairs, self._footer_hash, metadata, self._unproven = read_footer(
                    self._file, head, facts, trusted=trusted, bytes_max=row_group_bytes_max
                )
                self._logical = self._read_schema()
                if not keys_only:
                    metadata = metadata or self._admitted()
                    self._decoding = GroupDecoding(self._file, metadata, self._unproven, self._bytes_max)
                    self._require_structure()
                self._encrypted = self._encrypted_parts()
            self._prove_stamp()
        except BaseException:
            self._file.shut()
            raise
        self._firsts = list(accumulate((g.rows for g in self._footer.groups), initial=self._footer.head.first))

    # -- what it is ---------------------------------------------------------------------------------------

    @property
    def head(self) -> SegmentHead:
        """Where the segment belongs."""
        return self._footer.head

    @property
    def facts(self) -> SegmentFacts:
        """What the segment is; `sha256` is empty unless it was given or `verify` ran."""
        if self._facts is not None:
            return self._facts
        return self._footer.facts(size=self._file.size, sha256=b"", footer=self._footer_hash)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the records, whether they are encrypted or not."""
        return self._logical

    @property
    def encrypted_with(self) -> SegmentKeyFacts | None:
        """How the file is encrypted; None when it is plain. Of a bundle, how its last part is."""
        return self._footer.encrypted_with

    @property
    def codec(self) -> str:
        """What the payloads of raw records are; empty for bytes."""
        return self._footer.codec

    @property
    def is_rewritten(self) -> bool:
        """Whether a rewrite made the file, to take the place of others; it may not have come to that."""
        return bool(self._footer.rewrite)

    @property
    def is_bundle(self) -> bool:
        """Whether the file holds the blocks of several segments, as they were."""
        return bool(self._footer.parts)

    @property
    def key_column(self) -> str | None:
        """The column of the records' keys, as far as the file says; None where a typed topic's file does not."""
        footers_of = [part.footer for part in self._footer.parts] or [self._footer]
        named = next((one.keys.column for one in footers_of if one.keys is not None), None)
        return "key" if is_raw(self._logical) else named

    def close(self) -> None:
        """Close the file; batches that were read stay good."""
        self._file.shut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- reading ------------------------------------------------------------------------------------------

    def batches(
        self,
        start: int,
        end: int,
        *,
        columns: Sequence[str] | None = None,
        since: int | None = None,
        until: int | None = None,
        reverse: bool = False,
        share: tuple[int, int] = (0, 1),
        to_the_end: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Records with start <= offset < end and since <= time <= until (microseconds), in the order of offsets.

        Offset and time always come along; `columns` chooses the others. With `reverse` the last record comes first.
        `share` (k, n) takes the k-th of n even parts of the row groups: n readers read a segment together, each once.
        `to_the_end` says that the caller will hardly stop early: typed rows are then decoded in larger steps.
        """
        wanted = Selection(
            max(start, self.head.first),
            min(end, self._footer.end),
            self._names(columns),
            since,
            until,
            reverse,
            share,
            to_the_end,
        )
        if wanted.start >= wanted.end:
            return iter(())
        return self._batches(wanted)

    def _names(self, columns: Sequence[str] | None) -> list[str]:
        names: list[str] = self._logical.names
        if columns is None:
            return names
        unknown = sorted(set(columns) - set(names))
        if unknown:
            raise Invalid(f"the segment has no such column columns={unknown}", hint=f"it has {', '.join(names)}")
        return list(dict.fromkeys((*names[:2], *columns)))

    def _batches(self, wanted: Selection) -> Iterator[pa.RecordBatch]:
        if self._encrypted is not None:
            self._encrypted.prove()  # before anything is passed over because of what a footer says
        about = self._footer.groups
        groups = [
            i
            for i in shared(len(self._footer.groups), wanted.share)
            if wanted.meets(self._firsts[i], about[i].rows, about[i].time_min, about[i].time_max)
        ]
        if wanted.reverse:
            groups.reverse()
        encrypted = self._encrypted
        found = (
            self._plain_batches(groups, wanted)
            if encrypted is None
            else self._encrypted_batches(encrypted, groups, wanted)
        )
        for batch in found:
            chosen = select(batch, wanted.start, wanted.end, wanted.since, wanted.until)
            yield from turned(chosen, wanted.reverse)

    def _plain_batches(self, groups: Sequence[int], wanted: Selection) -> Iterator[pa.RecordBatch]:
        """Records of plain row groups, in pieces: a reader that stops early has not decoded the rest."""
        for group, pieces in self._fetched(groups, wanted.names):
            with self._as_corrupt(self._firsts[group]):
                batches = self._decode_rows(group, wanted, pieces)
                yield from reversed(list(batches)) if wanted.reverse else batches

    def stored_blocks(self, share: tuple[int, int] = (0, 1)) -> Iterator[pa.RecordBatch]:
        """The blocks of an encrypted file as they are stored, for readers without a key."""
        groups = shared(len(self._footer.groups), share)
        for _, table in self._tables(groups, list(encrypted_blocks.BLOCK_SCHEMA.names)):
            yield table

    def blocks_to_move(self) -> Iterator[tuple[RowGroupStatistics, pa.RecordBatch]]:
        """The row groups of an encrypted file as they are stored, for a bundle; nothing is decrypted.

        Raises Corrupt where the blocks are not those of the parts: dense, each once, and with the parts' contents.
        """
        contents = self._parts().contents()
        for group, table in self._tables(range(len(self._footer.groups)), list(encrypted_blocks.BLOCK_SCHEMA.names)):
            with self._as_corrupt(self._firsts[group]):
                contents.update(table, self._places(group, table))
            yield self._footer.groups[group], table

    def parts(self) -> tuple[BundlePart, ...]:
        """What a bundle says of the segments that are in this encrypted file."""
        with self._as_corrupt():
            return self._parts().parts

    def _parts(self) -> EncryptedParts:
        if self._encrypted is None:
            raise Invalid(f"a plain segment has no encrypted blocks path={self.path}", hint="read its records")
        return self._encrypted

    def _encrypted_batches(
        self, encrypted: EncryptedParts, groups: Sequence[int], wanted: Selection
    ) -> Iterator[pa.RecordBatch]:
        for group, table in self._tables(groups, list(encrypted_blocks.BLOCK_SCHEMA.names)):
            with self._as_corrupt(self._firsts[group]):
                rows = self._decrypted_rows(encrypted, group, table, wanted)
                yield from rows if wanted.reverse else joined(rows)

    def _tables(self, groups: Sequence[int], names: list[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Whole row groups as they are stored."""
        for group, pieces in self._fetched(groups, names):
            yield group, self._decode(group, names, pieces)

    def _fetched(self, groups: Sequence[int], names: list[str]) -> Iterator[tuple[int, list[Piece]]]:
        """The stored bytes of row groups, proved, one after the other."""
        # Hazard: no thread reads ahead here. A reading that is abandoned half-way is finished by the garbage collector,
        # in whatever thread that runs; joining a thread there deadlocks when that thread is itself just being started.
        # The source of the bytes may do it: it is asked for what comes next.
        reads_ahead = self._file.reads_ahead
        for at, group in enumerate(groups):
            with self._as_corrupt(self._firsts[group]):
                if reads_ahead:
                    self._decoding.announce(groups[at + 1 : at + 1 + _GROUPS_AHEAD], names)
                pieces = self._decoding.fetch(group, names)
            yield group, pieces

    def _decode(self, group: int, names: list[str], pieces: list[Piece]) -> pa.RecordBatch:
        with self._as_corrupt(self._firsts[group]):
            return self._one_batch(self._decoding.whole(group, names, pieces), names)

    def _decode_rows(self, group: int, wanted: Selection, pieces: list[Piece]) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([self._logical.field(name) for name in wanted.names])
        at, end = self._firsts[group], self._firsts[group + 1]
        rows = TYPED_STEP_ROWS if wanted.to_the_end and self._footer.shape != footers.RAW else STEP_ROWS
        for batch in self._decoding.steps(group, wanted.names, pieces, rows):
            columns = [decoded(batch.column(field.name), field.type) for field in schema]
            if at + batch.num_rows > end or not has_ends(columns[0], at):
                raise DamagedFile("has a row group whose offsets are not dense")
            at += batch.num_rows
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
        if at != end:
            raise DamagedFile("has a row group whose offsets are not dense")

    def _one_batch(self, table: pa.Table, names: list[str]) -> pa.RecordBatch:
        schema = self._logical if self._footer.encrypted_with is None else encrypted_blocks.BLOCK_SCHEMA
        fields = [schema.field(name) for name in names]
        batches = table.select(names).combine_chunks().to_batches()
        if len(batches) != 1:
            raise DamagedFile("has a row group without rows")
        columns = [decoded(column, field.type) for column, field in zip(batches[0].columns, fields, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def _decrypted_rows(
        self, encrypted: EncryptedParts, group: int, table: pa.RecordBatch, wanted: Selection
    ) -> Iterator[pa.RecordBatch]:
        about, blocks = self._footer.groups[group], table.column(4)
        found = list(enumerate(self._places(group, table)))
        for row, place in reversed(found) if wanted.reverse else found:
            times = place if encrypted.is_vouched else about
            if wanted.meets(place.first, place.rows, times.time_min, times.time_max):
                yield encrypted.decrypted(place, blocks[row].as_py()).select(wanted.names)

    def _places(self, group: int, table: pa.RecordBatch) -> list[encrypted_blocks.BlockFacts]:
        return self._parts().places(table, self._firsts[group], self._firsts[group + 1])

    # -- proving ------------------------------------------------------------------------------------------

    def verify(self) -> SegmentFacts:
        """Read and prove everything: all bytes, all rows, the content, the chain; raises Corrupt at what is wrong.

        Returns the facts with the file's SHA-256. What is encrypted is decrypted if there is a key.
        """
        sha256 = self._verify_bytes()
        if self._encrypted is None:
            self._verify_plain()
        else:
            self._verify_encrypted(self._encrypted)
        self._facts = msgspec.structs.replace(self.facts, sha256=sha256)
        return self._facts

    def _verify_plain(self) -> None:
        content = ContentDigest(self._logical)
        covered = KeyCheck(self.key_indexes(), self.key_column)
        for group, batch in self._tables(range(len(self._footer.groups)), self._logical.names):
            with self._as_corrupt(self._firsts[group]):
                first, about = self._firsts[group], self._footer.groups[group]
                place = encrypted_blocks.BlockFacts(first, about.rows, about.time_min, about.time_max)
                self._verify_rows(batch, place)
                content.update(batch)
                covered.check(batch)
        if content.digest() != self._footer.content:
            raise self._corrupt("has other content than its footer says")

    def _verify_encrypted(self, encrypted: EncryptedParts) -> None:
        if encrypted.has_keys:
            encrypted.prove()
        contents = encrypted.contents()
        covered = KeyCheck(self.key_indexes() if encrypted.has_keys else [], self.key_column)
        names = list(encrypted_blocks.BLOCK_SCHEMA.names)
        for group, table in self._tables(range(len(self._footer.groups)), names):
            with self._as_corrupt(self._firsts[group]):
                places = self._verify_blocks(encrypted, group, table, covered)
                contents.update(table, places)

    def key_indexes(self) -> list[IndexedRows]:
        """The indexes of keys in the file, one for each of its parts, in order; raises Corrupt if one is damaged."""
        with self._as_corrupt():
            return list(indexes(self._footer, self._file, self._encrypted))

    def key_blobs(self) -> list[bytes]:
        """The same as they are stored, for a bundle; empty where there is none."""
        with self._as_corrupt():
            return [bytes(blob) for _, blob in blobs(self._footer, self._file)]

    def chunks(self) -> Iterator[memoryview]:
        """All bytes of the file, each block compared with its hash; raises Corrupt at the first that differs."""
        try:
            yield from self._file.chunks()
        except DamagedFile as error:
            raise self._corrupt(str(error), self._offset_at(error.at)) from error

    def _verify_bytes(self) -> bytes:
        sha256 = hashlib.sha256()
        for chunk in self.chunks():
            sha256.update(chunk)
        digest = sha256.digest()
        if self._facts is not None and self._facts.sha256 and self._facts.sha256 != digest:
            raise self._corrupt("has another SHA-256 than the manifest says")
        return digest

    def _verify_blocks(
        self, encrypted: EncryptedParts, group: int, table: pa.RecordBatch, covered: KeyCheck
    ) -> list[encrypted_blocks.BlockFacts]:
        places, about = self._places(group, table), self._footer.groups[group]
        earliest, latest = min(p.time_min for p in places), max(p.time_max for p in places)
        if (earliest, latest) != (about.time_min, about.time_max):
            raise DamagedFile("has a row group with other times than its footer says")
        if encrypted.has_keys:
            for place, block in zip(places, table.column(4), strict=True):
                batch = encrypted.decrypted(place, block.as_py())
                self._verify_rows(batch, place)
                covered.check(batch)
        return places

    def _verify_rows(self, batch: pa.RecordBatch, place: encrypted_blocks.BlockFacts) -> None:
        if batch.num_rows != place.rows or not is_dense(batch.column(0), place.first):
            raise self._corrupt("has offsets that are not dense", place.first)
        if time_range(batch) != (place.time_min, place.time_max):
            raise self._corrupt("has records with other times than it says", place.first)
        batch.validate(full=True)

    def _offset_at(self, at: int | None) -> int:
        """The first record with bytes at or behind this byte."""
        for group, first in enumerate(self._firsts[:-1]):
            if at is None or at < max(chunk.end for chunk in self._decoding.row_group(group).chunks):
                return first
        return self._firsts[-2]

    def _prove_stamp(self) -> None:
        is_plainly_stamped = self._encrypted is None or self.is_bundle
        if is_plainly_stamped and not footers.is_stamped(self._pairs, digests.plain_stamp):
            raise self._corrupt("has a footer that does not match its stamp")
        if self._facts is not None or self._find_key is None:
            return
        if self._encrypted is None:
            # A log with keys has no plain files: one that claims to be plain was put there.
            raise self._corrupt("is not encrypted, but its log is")
        self._encrypted.prove()

    # -- opening ------------------------------------------------------------------------------------------

    def _admitted(self) -> pq.FileMetaData:
        assert self._unproven is not None, "trusted footers are read as they are"
        is_encrypted = self._footer.encrypted_with is not None
        content = self._unproven.admit(self._logical, is_encrypted=is_encrypted, data_end=self._file.data_end)
        return read_metadata(content, 2 * FOOTER_BYTES_MAX)

    def _read_schema(self) -> pa.Schema:
        schema = pa.ipc.read_schema(pa.py_buffer(self._footer.schema))
        raw = self._footer.shape in (footers.RAW, footers.ENCRYPTED_RAW)
        if raw != is_raw(schema) or not schema.field(1).type.equals(RAW_SCHEMA.field(1).type):
            raise DamagedFile("has other columns than its shape")
        return schema

    def _encrypted_parts(self) -> EncryptedParts | None:
        if self._footer.encrypted_with is None:
            return None
        return EncryptedParts(
            self._footer, self._pairs, self._logical, self._find_key, self._corrupt, is_trusted=self._trusted
        )

    def _require_structure(self) -> None:
        """Parquet's own metadata must agree with ours, so that nothing is read past or left out."""
        groups, decoding = self._footer.groups, self._decoding
        stored = self._logical if self._footer.encrypted_with is None else encrypted_blocks.BLOCK_SCHEMA
        if decoding.names != stored.names or len(decoding) != len(groups):
            raise DamagedFile("has other columns or row groups than its footer says")
        rows = [decoding.rows(i) for i in range(len(groups))]
        if self._footer.encrypted_with is None:
            if rows != [group.rows for group in groups]:
                raise DamagedFile("has row groups of other sizes than its footer says")
        elif not all(0 < blocks <= group.rows for blocks, group in zip(rows, groups, strict=True)):
            raise DamagedFile("has more encrypted blocks than records")

    @contextmanager
    def _as_corrupt(self, offset: int | None = None) -> Iterator[None]:
        try:
            yield
        except UnknownVersion:
            raise other_version("segment", path=self.path) from None
        except (DamagedFile, BadFooter, BadIndex) as error:
            raise self._corrupt(str(error), offset) from error.__cause__
        except BadStructure:
            raise self._corrupt("has a structure that is not ours", offset) from None
        except TooLarge:
            raise Invalid(
                f"a row group takes more memory than a reader may use path={self.path} max={self._bytes_max}",
                hint="if you trust the writer, raise store.read_bytes_max",
            ) from None
        except FileNotFoundError:  # an object that was removed while it was read: the caller knows why
            raise
        except _ARROW_ERRORS as error:
            raise self._corrupt("cannot be decoded", offset) from error

    def _corrupt(self, what: str, offset: int | None = None) -> Corrupt:
        footer: Footer | None = getattr(self, "_footer", None)
        head = self._head or (footer.head if footer else None)
        rows = self._facts.rows if self._facts else footer.rows if footer else None
        span = f" span={head.first}..{head.first + rows - 1}" if head and rows else ""
        return Corrupt(
            f"the segment file {what}{span}",
            path=str(self.path),
            topic=head.topic if head else None,
            partition=head.partition if head else None,
            offset=offset if offset is not None else head.first if head else None,
        )
