"""A commit batch: journal entries of all partitions, in the order of their commits, as one object.

    schema message ‖ record-batch message ‖ end of stream ‖ hash        (docs/formats/0006-store.md)

It is an Arrow IPC stream, one row per entry, that any Arrow tool reads: they stop at the end of the stream and never
see the hash behind it. Nothing is compressed: bodies are sealed, or will be compressed in their segment soon.

Encoding is a pure function of the batch: equal batches are equal bytes, in every process. The bodies, which are nearly
all of it, are copied once, into the object; so the record batch is laid out here and not by Arrow, which would need
them in one piece first. Its head is always the same but for its numbers.

Decoding trusts nothing. The hash is compared before anything else is looked at, and finds accidents. Whoever forges a
batch can make the hash, too, and crafted Arrow data can end a process: so Arrow reads the schema alone, and the rows
are taken from where the head, compared byte for byte, says they are. What is not as it should be is `Corrupt` with the
object's key. Digests and seals of the entries stay as they were stored; whoever has the journal's entry proves them,
and that the log is the right one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from operator import ge
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from blake3 import blake3

from holdfast.errors import Corrupt, Invalid
from holdfast.store import layout

FORMAT = 1
HASH_BYTES = 16
BYTES_MAX = 4 * 2**30
"""Of the object. A group has 1 GiB at most; S3 takes 5 GiB in one request."""
ENTRIES_MAX = 2**22

_CONTEXT = "holdfast 1 commit batch"
_HEADER_BYTES_MAX = 2**20
"""Of the schema message."""
_DIGEST_BYTES, _NO_SCHEMA = 16, bytes(16)
_MARKER = b"\xff\xff\xff\xff"
_END_OF_STREAM = _MARKER + bytes(4)
_ZEROS = bytes(8)
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


class TailKey(NamedTuple):
    """A key epoch: what is needed to open sealed entries, besides the key."""

    number: int
    scheme: str
    key_id: str
    salt: bytes
    commitment: bytes
    stamp: bytes


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


_WHOLE, _TIME = pa.int64(), pa.timestamp("us", "UTC")
_DIGEST = pa.binary(_DIGEST_BYTES)
_DIGESTS = ("link", "digest", "schema")
_TYPES = {
    "topic": pa.large_string(), "time_min": _TIME, "time_max": _TIME, "link": _DIGEST, "digest": _DIGEST,
    "body": pa.large_binary(), "schema": _DIGEST,
}  # fmt: skip
SCHEMA = pa.schema([pa.field(name, _TYPES.get(name, _WHOLE), nullable=False) for name in TailEntry._fields])
"""The columns, without what stands in the metadata."""

_LEAST = {"partition": 0, "seq": 1, "first": 0, "count": 1, "group_number": 0, "kind": 0, "codec": 0, "key_epoch": 0}

Columns = dict[str, Sequence[Any]]


class _Damaged(Exception):
    """This is no commit batch. The text says why; `decode` says where."""


def encode(batch: CommitBatch) -> bytes:
    """A batch as an object; raises Invalid if it is not one that `decode` would take."""
    columns = _columns_of(batch.entries)
    wrong = _problem(batch, columns)
    if wrong is not None:
        raise Invalid(f"these entries cannot be a commit batch: {wrong}", hint="this is a mistake in holdfast")
    body = _Body()
    try:
        body.write(columns)
    except struct.error:
        raise Invalid("a number does not fit into 64 bits", hint="this is a mistake in holdfast") from None
    schema = bytes(SCHEMA.with_metadata(_metadata(batch)).serialize())
    head = _head(len(batch.entries), body.size, body.places)
    size = len(schema) + len(head) + body.size + len(_END_OF_STREAM)
    if size + HASH_BYTES > BYTES_MAX or len(schema) > _HEADER_BYTES_MAX:
        raise Invalid(f"a commit batch is too large bytes={size} max={BYTES_MAX}", hint="put fewer entries into it")
    pieces = (schema, head, *body.pieces, _END_OF_STREAM)
    data = b"".join((*pieces, _hash(*pieces)))
    if len(data) != size + HASH_BYTES:  # a view of something else than bytes
        raise Invalid("a body is not made of bytes", hint="this is a mistake in holdfast")
    return data


def decode(data: bytes, key: str) -> CommitBatch:
    """The batch in an object, whole and under its own key; raises Corrupt, or Invalid if a newer holdfast wrote it."""
    try:
        batch = _decoded(memoryview(data), key)
        if layout.parse_batch_key(key) != (batch.epoch, batch.first_seq, batch.last_seq):
            raise _Damaged("is not the one that its key says")
    except _Damaged as damage:
        raise Corrupt(f"a commit batch {damage}", path=key, hint=_HINT) from None
    return batch


def _decoded(data: memoryview, key: str) -> CommitBatch:
    end = len(data) - HASH_BYTES
    if end < 0 or len(data) > BYTES_MAX or _hash(data[:end]) != data[end:]:
        raise _Damaged("does not match its hash")
    metadata, at = _read_schema(data[:end], key)
    columns = _read_columns(data[at:end])
    entries = tuple(map(TailEntry._make, zip(*columns.values(), strict=True)))
    batch = _batch_of(metadata, entries)
    wrong = _problem(batch, columns)
    if wrong is not None:
        raise _Damaged(f"is damaged: {wrong}")
    return batch


def _hash(*pieces: bytes | memoryview) -> bytes:
    hasher = blake3(derive_key_context=_CONTEXT)
    for piece in pieces:
        hasher.update(piece)
    return hasher.digest(length=HASH_BYTES)


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
    if len(batch.entries) > ENTRIES_MAX:
        yield "it has too many entries"
    if seqs and not batch.first_seq <= seqs[0] <= seqs[-1] <= batch.last_seq:
        yield "an entry lies outside of it"
    if any(map(ge, seqs, seqs[1:])):
        yield "its entries are not in order"
    if any(map(ge, [0, *numbers], numbers)) or not set(columns["key_epoch"]) <= {0, *numbers}:
        yield "its keys are not those of its entries"
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


def _metadata(batch: CommitBatch) -> dict[bytes, bytes]:
    keys = [_Key(*key[:3], *(part.hex() for part in key[3:])) for key in batch.keys]
    return {
        b"holdfast.format": b"%d" % FORMAT,
        b"holdfast.log": batch.log_id.hex().encode(),
        b"holdfast.epoch": b"%d" % batch.epoch,
        b"holdfast.first_seq": b"%d" % batch.first_seq,
        b"holdfast.last_seq": b"%d" % batch.last_seq,
        b"holdfast.keys": msgspec.json.encode(keys),
    }


def _read_schema(data: memoryview, key: str) -> tuple[dict[bytes, bytes], int]:
    """The metadata, and where the schema message ends."""
    size = int.from_bytes(data[4:8], "little") + 8
    if data[:4] != _MARKER or size > min(len(data), _HEADER_BYTES_MAX):
        raise _Damaged("is damaged: it has no schema")
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data[:size]))
        metadata = schema.metadata or {}
        found = int(metadata.get(b"holdfast.format", b""))
    except Exception:  # Arrow says no in many ways
        raise _Damaged("is damaged: its schema cannot be read") from None
    if found > FORMAT:
        raise Invalid(
            f"this object was written by a newer holdfast key={key} format={found} known={FORMAT}",
            hint="upgrade holdfast: pip install -U holdfast",
        )
    if not schema.equals(SCHEMA):
        raise _Damaged("is damaged: it has other columns")
    return metadata, size


def _batch_of(metadata: dict[bytes, bytes], entries: tuple[TailEntry, ...]) -> CommitBatch:
    try:
        keys = _key_decoder.decode(metadata[b"holdfast.keys"])
        batch = CommitBatch(
            bytes.fromhex(metadata[b"holdfast.log"].decode()),
            int(metadata[b"holdfast.epoch"]),
            int(metadata[b"holdfast.first_seq"]),
            int(metadata[b"holdfast.last_seq"]),
            tuple(
                TailKey(k.number, k.scheme, k.key_id, *map(bytes.fromhex, (k.salt, k.commitment, k.stamp)))
                for k in keys
            ),
            entries,
        )
    except (KeyError, ValueError, RecursionError, msgspec.MsgspecError):
        raise _Damaged("is damaged: its metadata cannot be read") from None
    if _metadata(batch) != metadata:  # each value has one spelling, and there are no others
        raise _Damaged("is damaged: its metadata are not as they are written")
    return batch


# -- the record batch -------------------------------------------------------------------------------------

_LENGTHY = ("topic", "body")
"""Columns whose values have lengths of their own: offsets, then bytes."""
_PIECE_BYTES = 8 * 2**10
"""From which mean size on bodies are not joined."""
_BUFFERS = 2 * len(SCHEMA) + len(_LENGTHY)

# The head of a record-batch message is a flatbuffer (Arrow's Message.fbs): tables that name their fields by distance.
# With the columns fixed, so is every distance, and it is one struct.
_HEAD = struct.Struct(
    "<4sI"  # marker, bytes that follow
    "I"  # way to the message
    "6H"  # message: sizes of this list and of the table, places of version, type, header, body size
    "ihBxI4xq"  # way back to that list, version, type, way to the header, body size
    "5H2x"  # batch: sizes of this list and of the table, places of rows, nodes, buffers
    "iqII4x"  # way back to that list, rows, ways to nodes and buffers
    f"I{2 * len(SCHEMA)}q4x"  # nodes: rows and nulls of each column
    f"I{2 * _BUFFERS}q"  # buffers: where each begins in the body, and its bytes
)
_START = (_MARKER, _HEAD.size - 8, 16, 12, 24, 4, 6, 8, 16, 12, 4, 3, 28)  # version 5 of the format; a record batch
_MIDDLE = (10, 20, 4, 12, 16, 12)
_WAYS = (12, 80 + 16 * len(SCHEMA) + 4 - 68)
_ROWS = len(_START) + 1 + len(_MIDDLE)
"""Which of the head's numbers says how many rows there are."""


def _head(rows: int, size: int, places: Sequence[int]) -> bytes:
    nodes = (rows, 0) * len(SCHEMA)
    return _HEAD.pack(*_START, size, *_MIDDLE, rows, *_WAYS, len(SCHEMA), *nodes, _BUFFERS, *places)


class _Body:
    """The buffers of all columns, one after the other, each at a multiple of eight bytes."""

    def __init__(self) -> None:
        self.pieces: list[bytes | memoryview] = []
        self.places: list[int] = []
        self.size = 0

    def write(self, columns: Columns) -> None:
        """Lay out all columns."""
        for name, values in columns.items():
            self._add(0)  # nothing is null
            if name in _LENGTHY:
                parts = [value.encode() for value in values] if name == "topic" else values
                ends = list(accumulate(map(len, parts), initial=0))
                self._add(8 * len(ends), struct.pack(f"<{len(ends)}q", *ends))
                # Small ones are joined, which is a second copy: hashing them one by one takes longer.
                self._add(ends[-1], *(parts if ends[-1] > _PIECE_BYTES * len(parts) else [b"".join(parts)]))
            elif name in _DIGESTS:
                self._add(_DIGEST_BYTES * len(values), b"".join(value or _NO_SCHEMA for value in values))
            else:
                self._add(8 * len(values), struct.pack(f"<{len(values)}q", *values))

    def _add(self, size: int, *pieces: bytes | memoryview) -> None:
        self.places += (self.size, size)
        self.pieces += pieces
        if size % 8:
            self.pieces.append(_ZEROS[size % 8 :])
        self.size += size + -size % 8


def _read_columns(data: memoryview) -> Columns:
    """The rows of what follows the schema: one record-batch message and the end of the stream."""
    if len(data) < _HEAD.size + len(_END_OF_STREAM):
        raise _Damaged("is damaged: it ends too early")
    values = _HEAD.unpack_from(data)
    rows, places = values[_ROWS], values[-2 * _BUFFERS :]
    body = data[_HEAD.size : -len(_END_OF_STREAM)]
    # Equal heads have equal numbers everywhere; only where the buffers are is left to be proved.
    if not 0 <= rows <= ENTRIES_MAX or data[: _HEAD.size] != _head(rows, len(body), places):
        raise _Damaged("is damaged: its head is not one of ours")
    if data[-len(_END_OF_STREAM) :] != _END_OF_STREAM:
        raise _Damaged("is damaged: its stream does not end")
    return _Buffers(body, places).columns(rows)


class _Buffers:
    """The buffers of a body, taken one after the other; each must begin where the one before it ended."""

    def __init__(self, body: memoryview, places: Sequence[int]) -> None:
        self._body = body
        self._places = iter(places)
        self._at = 0

    def columns(self, rows: int) -> Columns:
        """The values of all columns, and nothing is left over."""
        columns = {name: self._column(name, rows) for name in SCHEMA.names}
        if self._at != len(self._body):
            raise _Damaged("is damaged: its buffers do not fill it")
        return columns

    def _column(self, name: str, rows: int) -> Sequence[Any]:
        self._take(0)
        if name in _LENGTHY:
            return self._lengthy(name, rows)
        if name in _DIGESTS:
            content = bytes(self._take(_DIGEST_BYTES * rows))
            digests = [content[at : at + _DIGEST_BYTES] for at in range(0, len(content), _DIGEST_BYTES)]
            return [b"" if d == _NO_SCHEMA else d for d in digests] if name == "schema" else digests
        return struct.unpack(f"<{rows}q", self._take(8 * rows))

    def _lengthy(self, name: str, rows: int) -> Sequence[Any]:
        ends = struct.unpack(f"<{rows + 1}q", self._take(8 * (rows + 1)))
        content = self._take(ends[-1])
        if ends[0] or any(start > end for start, end in pairwise(ends)):
            raise _Damaged(f"is damaged: lengths do not add up column={name}")
        values = [bytes(content[start:end]) for start, end in pairwise(ends)]
        if name == "body":
            return values
        try:
            return [value.decode() for value in values]
        except UnicodeDecodeError:
            raise _Damaged("is damaged: a topic is not text") from None

    def _take(self, size: int) -> memoryview:
        start, self._at = self._at, self._at + size
        found = (next(self._places), next(self._places))
        if found != (start, size) or size < 0 or self._at > len(self._body):
            raise _Damaged("is damaged: a buffer is not where it should be")
        self._at += -size % 8
        return self._body[start : start + size]
