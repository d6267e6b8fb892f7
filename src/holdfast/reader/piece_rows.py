"""Reading the pieces of a task, from files or from the manifest alone, as batches of one schema.

Everything is proved on the way, as far as `verify` asks: `off` compares sizes and footers only, `hash` every block that
is read, `full` the whole segment, rows, times and chain included, before its first row is returned. Damage is Corrupt
with the file's key; what retention or compaction removed in the meantime is NotFound. Runs in Spark's executors: one
piece after the other, one row group in memory, and beside it what `prefetch` may ask a store for ahead of its turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from holdfast.crypto.keyring import Keyring
from holdfast.crypto.vault import Vault
from holdfast.errors import Corrupt, Invalid, NotFound
from holdfast.reader.object_bytes import is_in_place, open_bytes, opening
from holdfast.reader.prefetch import Prefetch, prefetching
from holdfast.reader.read_columns import RowShaper
from holdfast.reader.read_options import ReadOptions
from holdfast.reader.read_plan import Piece, Task, TimeBounds
from holdfast.root.rewrites import read_rewrites, was_replaced
from holdfast.root.root_store import RootStore
from holdfast.root.store_manifest import read_expired
from holdfast.segments.file import encrypted_blocks
from holdfast.segments.file.segment_reader import SegmentReader
from holdfast.store.port import Store


class TaskReader:
    """Reads tasks of one read."""

    def __init__(self, store: RootStore, options: ReadOptions, shaping: RowShaper, bounds: TimeBounds) -> None:
        self._store = store
        self._options = options
        self._shaping = shaping
        self._bounds = bounds
        self._keyring = Keyring.from_reference(options.keyring) if options.keyring else None
        # With keys, planning believed only what they signed.
        self._is_authentic = self._keyring is not None

    def read(self, task: Task) -> Iterator[pa.RecordBatch]:
        """The rows of a task, in order."""
        settings = self._options.store
        if is_in_place(self._store.files) or not settings.prefetch_requests:
            yield from self._read_all(task.pieces, None)
            return
        parts = (opening(piece.key, piece.facts.size) for piece in task.pieces if self._is_opened(piece))
        with prefetching(
            self._store.files, parts, requests_max=settings.prefetch_requests, bytes_max=settings.prefetch_bytes
        ) as prefetch:
            yield from self._read_all(task.pieces, prefetch)

    def _read_all(self, pieces: Iterable[Piece], prefetch: Prefetch | None) -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            yield from self._read_piece(piece, prefetch)

    def _read_piece(self, piece: Piece, prefetch: Prefetch | None) -> Iterator[pa.RecordBatch]:
        topic, partition = piece.head.topic, piece.head.partition
        if self._is_known(piece):
            if piece.share[0] == 0:
                yield from self._shaping.made(topic, partition, piece.start, piece.end)
            return
        try:
            with self._open(piece, prefetch) as reader:
                if self._options.verify == "full":
                    reader.verify()
                for batch in self._batches(reader, piece):
                    yield self._shaping.shape(batch, topic, partition)
        except FileNotFoundError:
            raise missing(self._store, piece) from None

    def _is_known(self, piece: Piece) -> bool:
        """Whether the manifest alone determines these rows."""
        bounds = self._bounds
        has_times = bounds.since is not None or bounds.until is not None
        in_times = not has_times or (
            (bounds.since is None or piece.facts.time_min >= bounds.since)
            and (bounds.until is None or piece.facts.time_max <= bounds.until)
        )
        return (
            not self._shaping.needs_file
            and in_times
            and self._options.verify != "full"
            and self._options.encrypted == "open"
        )

    def _is_opened(self, piece: Piece) -> bool:
        """Whether a piece's file will be opened, as far as that is known beforehand."""
        is_readable = self._keyring is not None or not piece.facts.key_id or self._options.encrypted == "sealed"
        return is_readable and not self._is_known(piece)

    def _open(self, piece: Piece, prefetch: Prefetch | None) -> SegmentReader:
        key_id = piece.facts.key_id
        if key_id and self._keyring is None and self._options.encrypted == "open":
            raise no_key(piece.head.topic, key_id)
        if self._keyring is not None and not key_id:
            raise Corrupt("a segment of this log is not encrypted, and a keyring was passed", path=piece.key)
        vault = Vault(piece.head.log_id, self._keyring)
        opener = vault.segment_keys if key_id else None
        return SegmentReader(
            piece.key,
            piece.head,
            piece.facts,
            opener,
            source=open_bytes(self._store.files, piece.key, piece.facts.size, prefetch),
            compare_blocks=self._options.verify != "off",
            trusted=self._is_authentic,
            row_group_bytes_max=self._options.store.read_bytes_max,
        )

    def _batches(self, reader: SegmentReader, piece: Piece) -> Iterator[pa.RecordBatch]:
        if self._options.encrypted == "sealed":
            if reader.encrypted_with is None:
                raise Invalid(f"topic {piece.head.topic!r} is not encrypted", hint="leave encrypted=sealed out")
            blocks = reader.stored_blocks(piece.share)
            # A file that holds several segments may be wanted in part; what is cut is cut between blocks.
            return blocks if piece.is_whole else (encrypted_blocks.meeting(b, piece.start, piece.end) for b in blocks)
        there = set(reader.schema.names)
        return reader.batches(
            piece.start,
            piece.end,
            columns=[name for name in self._shaping.needs if name in there],
            since=self._bounds.since,
            until=self._bounds.until,
            share=piece.share,
        )


def no_key(topic: str, key_id: str) -> Invalid:
    """The error for an encrypted topic without a keyring."""
    return Invalid(
        f"topic {topic!r} is encrypted, and there is no key key_id={key_id}",
        hint="name a keyring that driver and executors find: option keyring = env:NAME or file:PATH;"
        " or read its encrypted blocks with encrypted=sealed",
    )


def missing(store: Store, piece: Piece) -> Corrupt | NotFound:
    """The error for a segment whose file is gone: retention or compaction removed it, or it is lost."""
    head = piece.head
    place = (head.log_id.hex(), head.topic, head.partition)
    expired = read_expired(store, *place)
    span = f"offsets={head.first}..{piece.segment.end - 1}"
    if expired is not None and head.number < expired.upto:
        return NotFound(
            f"a segment expired before it was read {span} key={piece.key}",
            hint="read again, from what is left; keep segments longer, or name a reader for a lease",
        )
    if was_replaced(piece.segment, read_rewrites(store, *place)):
        return NotFound(
            f"a longer file has taken the place of a segment before it was read {span} key={piece.key}",
            hint="read again: the rows are the same, in the new file; a longer delete_after_ms, or a reader's lease,"
            " keeps replaced files for queries that take long",
        )
    return Corrupt(
        f"a segment is missing {span}",
        path=piece.key,
        topic=head.topic,
        partition=head.partition,
        offset=head.first,
        hint="`holdfast reconcile DIR --remote --deep --fix` brings it back from the log that wrote it",
    )
