"""A commit batch: journal entries of all partitions, in the order of their commits, as one object.

One row per entry, laid out as `row_stream` does it (docs/formats/0006-store.md). Besides the entries a batch says up to
where commits had been acknowledged as shipped when it was cut (`acked`), so that a reader that finds a hole can
distinguish damage from what was in flight; and the idempotency keys of its records, as hashes, with digests of what
they stand for, all of it encrypted in a log with keys.

Entries that were sealed and trimmed before they could be shipped are in no batch. Where some are missing, the batch
names the segments that hold them (`segments`), as their manifest objects will: a reader of the batch has those, too,
and no part of a commit is on the store without the others.

Encoding is a pure function of the batch: equal batches are equal bytes, in every process. Decoding trusts nothing; what
is not as it should be is `Corrupt` with the object's key. Digests and encrypted bodies of the entries stay as they were
stored; the caller proves them, that the log is the right one, and that segments follow those that are settled.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from operator import ge
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from holdfast.crypto.vault import KeyEpoch
from holdfast.errors import Corrupt, Invalid
from holdfast.root.objects import documents, row_stream
from holdfast.root.objects.documents import SegmentDocument
from holdfast.root.objects.row_stream import DIGEST, DamagedRows, RowStream
from holdfast.store import layout

FORMAT = 1
BYTES_MAX = 4 * 2**30
"""Of the object. A group has 1 GiB at most; S3 takes 5 GiB in one request."""
ENTRIES_MAX = 2**22
SEGMENTS_MAX = 2**14
"""So many are less than what a schema message may have."""

_CONTEXT = "holdfast 1 commit batch"
_DIGEST_BYTES, _NO_SCHEMA = 16, bytes(16)
_IDEMPOTENT = struct.Struct("<I16s16s")
_HINT = "the log that shipped it still has these entries, as entries or in segments"


class TailEntry(NamedTuple):
    """A journal entry as it is stored, with its place by name; one row of the batch."""

    topic: str
    partition: int
    seq: int
    first: int
    count: int  # type: ignore[assignment]  # as in the journal; nobody counts values in a row
    group_number: int
    kind: int
    codec: int
    key_epoch: int
    time_min: int
    time_max: int
    link: bytes
    digest: bytes
    body: bytes | memoryview
    schema: bytes = b""
    """Fingerprint of the schema of a typed entry; empty for raw records."""
    idempotency: bytes = b""
    """For each record with an idempotency key its place in the entry, the key's hash and a digest; see `idempotent`."""


class TailKey(NamedTuple):
    """A key epoch: what is needed to decrypt entries, besides the key."""

    number: int
    scheme: str
    key_id: str
    salt: bytes
    commitment: bytes
    stamp: bytes

    @classmethod
    def of(cls, epoch: KeyEpoch) -> TailKey:
        """A key epoch of the journal."""
        return cls(*msgspec.structs.astuple(epoch))


class CommitBatch(NamedTuple):
    """Entries of one stretch of sequence numbers; those that were settled before may be left out."""

    log_id: bytes
    epoch: int
    """The store's, under which it was written."""
    first_seq: int
    last_seq: int
    keys: tuple[TailKey, ...]
    """Ascending; all that the entries name."""
    entries: Sequence[TailEntry]
    acked: int = 0
    """Up to where commits had been acknowledged as shipped when this was cut."""
    segments: tuple[SegmentDocument, ...] = ()
    """Those that hold what it lacks, each with its check, by partition and slot."""


_WHOLE, _TIME = pa.int64(), pa.timestamp("us", "UTC")
_DIGESTS = ("link", "digest", "schema")
_TYPES = {
    "topic": pa.large_string(), "time_min": _TIME, "time_max": _TIME, "link": DIGEST, "digest": DIGEST,
    "body": pa.large_binary(), "schema": DIGEST, "idempotency": pa.large_binary(),
}  # fmt: skip
SCHEMA = pa.schema([pa.field(name, _TYPES.get(name, _WHOLE), nullable=False) for name in TailEntry._fields])
"""The columns, without what stands in the metadata."""
STREAM = RowStream(SCHEMA, _CONTEXT)

_LEAST = {"partition": 0, "seq": 1, "first": 0, "count": 1, "group_number": 0, "kind": 0, "codec": 0, "key_epoch": 0}

Columns = dict[str, Sequence[Any]]


def encode(batch: CommitBatch) -> bytes:
    """A batch as an object; raises Invalid if it is not one that `decode` would take."""
    columns = _columns_of(batch.entries)
    wrong = _problem(batch, columns)
    if wrong is not None:
        raise Invalid(f"these entries cannot be a commit batch: {wrong}", hint="this is a mistake in holdfast")
    columns["schema"] = [value or _NO_SCHEMA for value in columns["schema"]]
    return STREAM.encode(_metadata(batch), columns, BYTES_MAX)


def decode(data: bytes | memoryview, key: str) -> CommitBatch:
    """The batch in an object, whole and under its own key; raises Corrupt, or Invalid for another format."""
    try:
        batch = _decoded(memoryview(data), key)
        if layout.parse_batch_key(key) != (batch.epoch, batch.first_seq, batch.last_seq):
            raise DamagedRows("is not the one that its key says")
    except DamagedRows as damage:
        raise Corrupt(f"a commit batch {damage}", path=key, hint=_HINT) from None
    return batch


def _decoded(data: memoryview, key: str) -> CommitBatch:
    opened = row_stream.opened(data, key, STREAM, BYTES_MAX, FORMAT)
    columns = STREAM.columns(opened, ENTRIES_MAX)
    columns["schema"] = [b"" if value == _NO_SCHEMA else value for value in columns["schema"]]
    entries = tuple(map(TailEntry._make, zip(*columns.values(), strict=True)))
    batch = _batch_of(opened.metadata, entries)
    wrong = _problem(batch, columns)
    if wrong is not None:
        raise DamagedRows(f"is damaged: {wrong}")
    return batch


def idempotent(entry: TailEntry) -> list[tuple[int, bytes, bytes]]:
    """Records of an entry that were given idempotency keys: place in the entry, hash and digest as they stand here."""
    return list(_IDEMPOTENT.iter_unpack(entry.idempotency))


def with_idempotent(keys: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """Places, hashes and digests as they stand in an entry."""
    return b"".join(_IDEMPOTENT.pack(*key) for key in keys)


# -- what a batch must be ---------------------------------------------------------------------------------


def _columns_of(entries: Sequence[TailEntry]) -> Columns:
    if not entries:
        return dict.fromkeys(TailEntry._fields, ())
    return dict(zip(TailEntry._fields, zip(*entries, strict=True), strict=True))


def _problem(batch: CommitBatch, columns: Columns) -> str | None:
    """What is wrong with a batch, if anything."""
    return next(_problems(batch, columns), None)


def _problems(batch: CommitBatch, columns: Columns) -> Iterator[str]:
    seqs, numbers = columns["seq"], [key.number for key in batch.keys]
    if len(batch.log_id) != 16 or batch.epoch < 0 or not 1 <= batch.first_seq <= batch.last_seq < 2**63:
        yield "its place is none"
    if not 0 <= batch.acked < 2**63:
        yield "what it says is acknowledged cannot be"
    if len(batch.entries) > ENTRIES_MAX:
        yield "it has too many entries"
    if seqs and not batch.first_seq <= seqs[0] <= seqs[-1] <= batch.last_seq:
        yield "an entry is outside of it"
    if any(map(ge, seqs, seqs[1:])):
        yield "its entries are not in order"
    if any(map(ge, [0, *numbers], numbers)) or not set(columns["key_epoch"]) <= {0, *numbers}:
        yield "its keys are not those of its entries"
    if len(batch.segments) > SEGMENTS_MAX:
        yield "its segments are too many"
    if any(segment.log != batch.log_id.hex() for segment in batch.segments):
        yield "its segments are another log's"
    yield from _entry_problems(columns)


def _entry_problems(columns: Columns) -> Iterator[str]:
    for name, least in _LEAST.items():
        if min(columns[name], default=least) < least:
            yield f"a value is too small column={name}"
    if any(map(int.__gt__, columns["time_min"], columns["time_max"])):
        yield "a range of times is none"
    if not all(columns["topic"]):
        yield "an entry has no topic"
    for name in _DIGESTS:
        lengths = set(map(len, columns[name]))
        if not lengths <= ({0, _DIGEST_BYTES} if name == "schema" else {_DIGEST_BYTES}):
            yield f"a value has a wrong length column={name}"
    if _NO_SCHEMA in columns["schema"]:
        yield "a fingerprint is none"
    if any(columns["idempotency"]) and not all(map(_are_idempotent, columns["idempotency"], columns["count"])):
        yield "idempotency keys are none"


def _are_idempotent(keys: bytes, count: int) -> bool:
    """Whether these are hashes of some of so many records, in their order."""
    if len(keys) % _IDEMPOTENT.size or len(keys) > _IDEMPOTENT.size * count:
        return False
    places = [-1, *(place for place, _, _ in _IDEMPOTENT.iter_unpack(keys)), count]
    return not any(map(ge, places, places[1:]))


# -- metadata ---------------------------------------------------------------------------------------------


class _Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key epoch as JSON; bytes are lower-case hex."""

    number: int
    scheme: str
    key_id: str
    salt: str
    commitment: str
    stamp: str


_key_decoder = msgspec.json.Decoder(tuple[_Key, ...])
_segment_decoder = msgspec.json.Decoder(tuple[SegmentDocument, ...])


def _metadata(batch: CommitBatch) -> dict[bytes, bytes]:
    return {
        b"holdfast.format": b"%d" % FORMAT,
        b"holdfast.log": batch.log_id.hex().encode(),
        b"holdfast.epoch": b"%d" % batch.epoch,
        b"holdfast.first_seq": b"%d" % batch.first_seq,
        b"holdfast.last_seq": b"%d" % batch.last_seq,
        b"holdfast.acked": b"%d" % batch.acked,
        b"holdfast.keys": keys_as_json(batch.keys),
        b"holdfast.segments": _segments_as_json(batch.segments),
    }


def _segments_as_json(segments: Sequence[SegmentDocument]) -> bytes:
    return msgspec.json.encode([documents.checked(segment) for segment in segments])


def keys_as_json(keys: Sequence[TailKey]) -> bytes:
    """Key epochs as they stand in the metadata."""
    return msgspec.json.encode([_Key(*key[:3], *(part.hex() for part in key[3:])) for key in keys])


def keys_of_json(encoded: bytes) -> tuple[TailKey, ...]:
    """Key epochs out of the metadata; raises ValueError or a kind of MsgspecError."""
    keys = _key_decoder.decode(encoded)
    return tuple(
        TailKey(k.number, k.scheme, k.key_id, *map(bytes.fromhex, (k.salt, k.commitment, k.stamp))) for k in keys
    )


def _batch_of(metadata: dict[bytes, bytes], entries: tuple[TailEntry, ...]) -> CommitBatch:
    try:
        batch = CommitBatch(
            bytes.fromhex(metadata[b"holdfast.log"].decode()),
            int(metadata[b"holdfast.epoch"]),
            int(metadata[b"holdfast.first_seq"]),
            int(metadata[b"holdfast.last_seq"]),
            keys_of_json(metadata[b"holdfast.keys"]),
            entries,
            int(metadata[b"holdfast.acked"]),
            _segment_decoder.decode(metadata[b"holdfast.segments"]),
        )
    except (KeyError, ValueError, RecursionError, msgspec.MsgspecError):
        raise DamagedRows("is damaged: its metadata cannot be read") from None
    if _metadata(batch) != metadata:  # each value has one spelling, and there are no others
        raise DamagedRows("is damaged: its metadata is not as we write it")
    return batch
