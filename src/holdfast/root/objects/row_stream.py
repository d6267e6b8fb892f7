"""Rows as one Arrow IPC stream with a hash behind it, laid out by holdfast itself (docs/formats/0006-store.md).

    schema message ‖ record-batch message ‖ end of stream ‖ hash

Any Arrow tool reads it: they stop at the end of the stream and never see the hash. Nothing is compressed, and no column
has nulls. Encoding is a pure function of the rows: equal rows are equal bytes, in every process. Values, which are
nearly all of it, are copied once, into the object; Arrow would need them in one piece first.

Decoding trusts nothing. The hash is compared first, and finds accidents. An attacker who forges an object can forge
the hash as well, and crafted Arrow data can crash a process: so Arrow reads only the schema, and the rows are taken
from where the head, compared byte for byte, says they are. Anything else raises `DamagedRows`; the caller, who knows
the object's key, adds where.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import pyarrow as pa
from blake3 import blake3

from holdfast.errors import Invalid, other_version

HASH_BYTES = 16
DIGEST = pa.binary(16)
_DIGEST_BYTES = 16
_HEADER_BYTES_MAX = 2**25
"""Of the schema message."""
_MARKER = b"\xff\xff\xff\xff"
_END_OF_STREAM = _MARKER + bytes(4)
_ZEROS = bytes(8)
_PIECE_BYTES = 8 * 2**10
"""From which mean size on values are not joined."""
_MISTAKE = "this is a mistake in holdfast"

Columns = Mapping[str, Sequence[Any]]
"""By name: numbers, texts, bytes."""


class DamagedRows(Exception):
    """These are not such rows. The text says why."""


class RowObject(NamedTuple):
    """An object whose hash and schema are as they should be; its rows are still to be taken."""

    metadata: dict[bytes, bytes]
    rest: memoryview


class RowStream:
    """How rows of some columns are laid out: numbers and times (8 bytes each), digests (16 bytes), texts and bytes.

    The head of a record-batch message is a flatbuffer (Arrow's Message.fbs): tables that name their fields by distance.
    With the columns fixed, so is every distance, and it is one struct.
    """

    def __init__(self, schema: pa.Schema, context: str) -> None:
        self.schema = schema
        self.context = context
        columns = len(schema)
        self.buffers = 2 * columns + sum(_is_lengthy(field.type) for field in schema)
        self.struct = struct.Struct(
            "<4sI"  # marker, bytes that follow
            "I"  # way to the message
            "6H"  # message: sizes of this list and of the table, places of version, type, header, body size
            "ihBxI4xq"  # way back to that list, version, type, way to the header, body size
            "5H2x"  # batch: sizes of this list and of the table, places of rows, nodes, buffers
            "iqII4x"  # way back to that list, rows, ways to nodes and buffers
            f"I{2 * columns}q4x"  # nodes: rows and nulls of each column
            f"I{2 * self.buffers}q"  # buffers: where each begins in the body, and its bytes
        )
        # Version 5 of the format; a record batch.
        self._start = (_MARKER, self.struct.size - 8, 16, 12, 24, 4, 6, 8, 16, 12, 4, 3, 28)
        self._middle = (10, 20, 4, 12, 16, 12)
        self._ways = (12, 80 + 16 * columns + 4 - 68)
        self._rows_at = len(self._start) + 1 + len(self._middle)
        """Which of the head's numbers says how many rows there are."""

    # -- writing ------------------------------------------------------------------------------------------

    def encode(self, metadata: Mapping[bytes, bytes], columns: Columns, bytes_max: int) -> bytes:
        """Rows as an object; raises Invalid where they do not fit."""
        body = _Body()
        try:
            for field in self.schema:
                body.write(field.type, columns[field.name])
        except struct.error:
            raise Invalid("a number does not fit into 64 bits", hint=_MISTAKE) from None
        schema = bytes(self.schema.with_metadata(dict(metadata)).serialize())
        head = self.head(len(columns[self.schema.names[0]]), body.size, body.places)
        size = len(schema) + len(head) + body.size + len(_END_OF_STREAM)
        if size + HASH_BYTES > bytes_max or len(schema) > _HEADER_BYTES_MAX:
            raise Invalid(f"an object is too large bytes={size} max={bytes_max}", hint="put fewer rows into it")
        pieces = (schema, head, *body.pieces, _END_OF_STREAM)
        data = b"".join((*pieces, hash_of(self.context, *pieces)))
        if len(data) != size + HASH_BYTES:  # a view of something else than bytes
            raise Invalid("a value is not bytes", hint=_MISTAKE)
        return data

    def head(self, rows: int, size: int, places: Sequence[int]) -> bytes:
        """The head of so many rows, with the size of the body and the places of its buffers."""
        columns = len(self.schema)
        nodes = (rows, 0) * columns
        return self.struct.pack(
            *self._start, size, *self._middle, rows, *self._ways, columns, *nodes, self.buffers, *places
        )

    # -- reading ------------------------------------------------------------------------------------------

    def columns(self, opened: RowObject, rows_max: int) -> dict[str, Sequence[Any]]:
        """The values of all columns: one record-batch message and the end of the stream, and nothing else."""
        data, head_bytes = opened.rest, self.struct.size
        if len(data) < head_bytes + len(_END_OF_STREAM):
            raise DamagedRows("is damaged: it ends too early")
        values = self.struct.unpack_from(data)
        rows, places = values[self._rows_at], values[-2 * self.buffers :]
        body = data[head_bytes : -len(_END_OF_STREAM)]
        # Equal heads have equal numbers everywhere; only where the buffers are is left to be proved.
        if not 0 <= rows <= rows_max or data[:head_bytes] != self.head(rows, len(body), places):
            raise DamagedRows("is damaged: its head is not one of ours")
        if data[-len(_END_OF_STREAM) :] != _END_OF_STREAM:
            raise DamagedRows("is damaged: its stream does not end")
        return _Buffers(body, places).columns(self.schema, rows)


def opened(data: memoryview, key: str, stream: RowStream, bytes_max: int, known: int) -> RowObject:
    """An object, its hash compared and its schema read; `known` is its format.

    Raises Damaged, or Invalid if another version of holdfast wrote it.
    """
    end = len(data) - HASH_BYTES
    if end < 0 or len(data) > bytes_max or hash_of(stream.context, data[:end]) != data[end:]:
        raise DamagedRows("does not match its hash")
    size = int.from_bytes(data[4:8], "little") + 8
    if data[:4] != _MARKER or size > min(end, _HEADER_BYTES_MAX):
        raise DamagedRows("is damaged: it has no schema")
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data[:size]))
        metadata = schema.metadata or {}
        found = int(metadata.get(b"holdfast.format", b""))
    except Exception:  # Arrow says no in many ways
        raise DamagedRows("is damaged: its schema cannot be read") from None
    if found > known:
        raise other_version("object", key=key, format=found, known=known)
    if found != known or not schema.equals(stream.schema):
        raise DamagedRows("is damaged: it has other columns")
    return RowObject(metadata, data[size:end])


def hash_of(context: str, *pieces: bytes | memoryview) -> bytes:
    """The hash at the end of an object, for its kind."""
    hasher = blake3(derive_key_context=context)
    for piece in pieces:
        hasher.update(piece)
    return hasher.digest(length=HASH_BYTES)


def _is_lengthy(kind: pa.DataType) -> bool:
    """Whether values have lengths of their own: offsets, then bytes."""
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


class _Body:
    """The buffers of all columns, one after the other, each at a multiple of eight bytes."""

    def __init__(self) -> None:
        self.pieces: list[bytes | memoryview] = []
        self.places: list[int] = []
        self.size = 0

    def write(self, kind: pa.DataType, values: Sequence[Any]) -> None:
        """Lay out a column."""
        self._add(0)  # nothing is null
        if _is_lengthy(kind):
            parts = [value.encode() for value in values] if pa.types.is_large_string(kind) else values
            ends = list(accumulate(map(len, parts), initial=0))
            self._add(8 * len(ends), struct.pack(f"<{len(ends)}q", *ends))
            # Small ones are joined, which is a second copy: hashing them one by one takes longer.
            self._add(ends[-1], *(parts if ends[-1] > _PIECE_BYTES * len(parts) else [b"".join(parts)]))
        elif kind == DIGEST:
            self._add(_DIGEST_BYTES * len(values), b"".join(values))
        else:
            self._add(8 * len(values), struct.pack(f"<{len(values)}q", *values))

    def _add(self, size: int, *pieces: bytes | memoryview) -> None:
        self.places += (self.size, size)
        self.pieces += pieces
        if size % 8:
            self.pieces.append(_ZEROS[size % 8 :])
        self.size += size + -size % 8


class _Buffers:
    """The buffers of a body, taken one after the other; each must begin where the one before it ended."""

    def __init__(self, body: memoryview, places: Sequence[int]) -> None:
        self._body = body
        self._places = iter(places)
        self._at = 0

    def columns(self, schema: pa.Schema, rows: int) -> dict[str, Sequence[Any]]:
        """The values of all columns, and nothing is left over."""
        columns = {field.name: self._column(field, rows) for field in schema}
        if self._at != len(self._body):
            raise DamagedRows("is damaged: its buffers do not fill it")
        return columns

    def _column(self, field: pa.Field, rows: int) -> Sequence[Any]:
        self._take(0)
        if _is_lengthy(field.type):
            return self._lengthy(field, rows)
        if field.type == DIGEST:
            content = bytes(self._take(_DIGEST_BYTES * rows))
            return [content[at : at + _DIGEST_BYTES] for at in range(0, len(content), _DIGEST_BYTES)]
        return struct.unpack(f"<{rows}q", self._take(8 * rows))

    def _lengthy(self, field: pa.Field, rows: int) -> Sequence[Any]:
        ends = struct.unpack(f"<{rows + 1}q", self._take(8 * (rows + 1)))
        content = self._take(ends[-1])
        if ends[0] or any(start > end for start, end in pairwise(ends)):
            raise DamagedRows(f"is damaged: lengths do not add up column={field.name}")
        values = [bytes(content[start:end]) for start, end in pairwise(ends)]
        if pa.types.is_large_binary(field.type):
            return values
        try:
            return [value.decode() for value in values]
        except UnicodeDecodeError:
            raise DamagedRows(f"is damaged: a {field.name} is not text") from None

    def _take(self, size: int) -> memoryview:
        start, self._at = self._at, self._at + size
        found = (next(self._places), next(self._places))
        if found != (start, size) or size < 0 or self._at > len(self._body):
            raise DamagedRows("is damaged: a buffer is not where it should be")
        self._at += -size % 8
        return self._body[start : start + size]
