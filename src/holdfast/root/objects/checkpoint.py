"""A checkpoint: all manifest objects of one partition up to a slot, in one Parquet file, for fast planning.

    data (PAR1, row groups) ‖ hash ‖ Thrift footer ‖ its length ‖ PAR1        (docs/formats/0006-store.md)

One row per object, by slot, from slot 0 without a gap; the columns are the fields of both kinds of objects. It says
nothing that the objects do not say: it may be missing, and any process can recreate it. Any Parquet tool reads it; none
looks between the data and the footer, where the hash over everything else stands. (Two versions of Arrow write the same
rows in different bytes: compare checkpoints by what they decode to.)

Decoding compares the hash before Arrow sees anything; that finds accidents. The hash has no key, so the footer and the
pages are checked like those of any untrusted file. Then the rows are proved to follow from each other
(`manifest_chain`). Damage is `Corrupt` with the object's key. The documents come back without their `check`, which
belongs to the bytes of the object that they were read from.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from io import BytesIO
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3

from holdfast.errors import Corrupt, Invalid, other_version
from holdfast.parquet.outline import ZSTD, Model, Outline, outline, rewritten
from holdfast.parquet.pages import TooLarge, weigh
from holdfast.parquet.thrift import BadStructure
from holdfast.root.objects import documents as docs
from holdfast.root.objects.documents import ManifestDocument, SegmentDocument, StartDocument
from holdfast.root.objects.manifest_chain import HASHES, prove
from holdfast.store import layout, object_limits

FORMAT = 1
HASH_BYTES = 16
BYTES_MAX = object_limits.CHECKPOINT
ROWS_MAX = 2**22

_CONTEXT = "holdfast 1 checkpoint"
_FORMAT_KEY = "holdfast.format"
_MAGIC, _TAIL_BYTES = b"PAR1", 8
_FOOTER_BYTES_MAX = 2**20
_GROUP_ROWS = 2**17
_GROUP_ROWS_LEAST = 2**7
"""What readers expect of row groups, on average."""
_ROW_BYTES_LEAST, _ROWS_SPARE = 16, 256
_VALUE_BYTES_MAX, _SPARE_BYTES = 1024, 2**20
"""The longest value of a column, and what a small file may take besides."""
_SEGMENT, _START = "segment", "start"
_HINT = "remove it: it says nothing that the manifest objects do not say, and a new one will be made"

_TEXTS = ("kind", "log", "topic", "key_id", "nonce")
_FIELDS: dict[str, tuple[str, ...]] = {
    _SEGMENT: tuple(name for name in SegmentDocument.__struct_fields__ if name != "check"),
    _START: tuple(name for name in StartDocument.__struct_fields__ if name != "check"),
}
_NAMES = ("kind", *dict.fromkeys(_FIELDS[_SEGMENT] + _FIELDS[_START]))
_REQUIRED = {"kind", *(name for name in _FIELDS[_SEGMENT] if name in _FIELDS[_START])}


def _type_of(name: str) -> pa.DataType:
    return pa.binary() if name in HASHES else pa.string() if name in _TEXTS else pa.int64()


SCHEMA = pa.schema([pa.field(name, _type_of(name), nullable=name not in _REQUIRED) for name in _NAMES])
"""The columns; those of one kind alone are null in rows of the other."""


class _Damaged(Exception):
    """This is not a checkpoint. The text says why; `decode` says where."""


def encode(documents: Sequence[ManifestDocument]) -> bytes:
    """All manifest objects of a partition, from slot 0 on, as a Parquet file; raises Invalid if they are not that."""
    try:
        _require_order(documents)
    except Corrupt as wrong:
        message = f"these manifest objects cannot be a checkpoint: {wrong.message}"
        raise Invalid(message, hint="give all of them, in order") from None
    stream = BytesIO()
    with pq.ParquetWriter(stream, SCHEMA, **_SETTINGS) as writer:
        writer.write_batch(_rows(documents), row_group_size=_GROUP_ROWS)
        writer.add_key_value_metadata({_FORMAT_KEY: str(FORMAT)})
    data = _with_hash(memoryview(stream.getvalue()))
    if len(data) > BYTES_MAX:
        raise Invalid(f"a checkpoint is too large bytes={len(data)} max={BYTES_MAX}", hint="do without it")
    return data


def decode(data: bytes, key: str, *, values: bool = False) -> list[ManifestDocument]:
    """The manifest objects in a checkpoint; their order is proved, and with `values` all that can be.

    Raises Corrupt, or Invalid if another version of holdfast wrote it.
    """
    try:
        _check_hash(memoryview(data))
        documents = _documents(_read(data, key))
        _require_order(documents, values=values)
        newest = documents[-1]
        if layout.checkpoint_key(newest.topic, newest.partition, newest.slot) != key:
            raise _Damaged("is not the one that its key says")
    except _Damaged as damage:
        raise Corrupt(f"a checkpoint {damage}", path=key, hint=_HINT) from None
    except Corrupt as wrong:
        raise Corrupt(f"a checkpoint is damaged: {wrong.message}", path=key, hint=_HINT) from None
    return documents


# -- the hash ---------------------------------------------------------------------------------------------


def _with_hash(data: memoryview) -> bytes:
    at = len(data) - _footer_bytes(data)
    proof = _hash(data)
    return b"".join((data[:at], proof, data[at:]))


def _check_hash(data: memoryview) -> None:
    end = len(data) - _footer_bytes(data)
    start = end - HASH_BYTES
    if start < len(_MAGIC) or len(data) > BYTES_MAX or _hash(data[:start], data[end:]) != data[start:end]:
        raise _Damaged("does not match its hash")


def _footer_bytes(data: memoryview) -> int:
    """Thrift footer, its length and the magic."""
    length = int.from_bytes(data[-_TAIL_BYTES : -len(_MAGIC)], "little") + _TAIL_BYTES
    if data[-len(_MAGIC) :] != _MAGIC or length > min(len(data), _FOOTER_BYTES_MAX):
        raise _Damaged("has no footer")
    return length


def _hash(*parts: memoryview) -> bytes:
    hasher = blake3(derive_key_context=_CONTEXT)
    for part in parts:
        hasher.update(part)
    return hasher.digest(length=HASH_BYTES)


# -- what the documents must be ---------------------------------------------------------------------------


def _require_order(documents: Sequence[ManifestDocument], *, values: bool = False) -> None:
    """Check that these are a partition's objects from slot 0 on; raises Corrupt."""
    if not 1 <= len(documents) <= ROWS_MAX:
        raise Corrupt(f"there are none, or too many rows={len(documents)}")
    if any(document.format != docs.FORMAT for document in documents):
        raise Corrupt("they are of another format")
    prove(documents, documents[0].log, documents[0].topic, documents[0].partition, values=values)


# -- rows -------------------------------------------------------------------------------------------------

_SETTINGS: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 3,
    "use_dictionary": ["kind", "log", "topic", "key_id", "schema"],
    "write_statistics": ["slot", "number", "first", "time_min", "time_max"],
    "store_schema": False,
    "write_page_checksum": True,
}


def _rows(documents: Sequence[ManifestDocument]) -> pa.RecordBatch:
    starts = [isinstance(document, StartDocument) for document in documents]
    validity = {_SEGMENT: _bits(starts, flipped=True), _START: _bits(starts, flipped=False)}
    return pa.RecordBatch.from_arrays([_array(name, documents, validity) for name in _NAMES], schema=SCHEMA)


def _bits(values: Sequence[bool], *, flipped: bool) -> pa.Buffer:
    """Booleans as Arrow stores them, one bit each."""
    bits = bytearray((b"\xff" if flipped else b"\0") * -(-len(values) // 8))
    for row, value in enumerate(values):
        if value:  # takeovers are rare
            bits[row // 8] ^= 1 << row % 8
    return pa.py_buffer(bytes(bits))


def _array(name: str, documents: Sequence[ManifestDocument], validity: dict[str, pa.Buffer]) -> pa.Array:
    # Not pa.array, which imports pandas wherever there is one: a third of a second in the shipper's thread.
    nulls = None if name in _REQUIRED else validity[_SEGMENT if name in _FIELDS[_SEGMENT] else _START]
    buffers = [nulls, *map(pa.py_buffer, _values(name, documents))]
    return pa.Array.from_buffers(SCHEMA.field(name).type, len(documents), buffers)


def _values(name: str, documents: Sequence[ManifestDocument]) -> tuple[bytes, ...]:
    """The bytes of a column: numbers, or offsets and what they point to. A field that a document lacks takes none."""
    if name == "kind":
        return _lengthy([str(document.__struct_config__.tag).encode() for document in documents])
    if name in _TEXTS:
        return _lengthy([getattr(document, name, "").encode() for document in documents])
    if name in HASHES:
        return _lengthy([_unhex(name, getattr(document, name, None)) for document in documents])
    try:
        return (struct.pack(f"<{len(documents)}q", *[getattr(document, name, 0) for document in documents]),)
    except struct.error:
        raise Invalid(
            f"a number does not fit into 64 bits column={name}", hint="this is a mistake in holdfast"
        ) from None


def _lengthy(values: list[bytes]) -> tuple[bytes, bytes]:
    ends = list(accumulate(map(len, values), initial=0))
    return struct.pack(f"<{len(ends)}i", *ends), b"".join(values)


def _unhex(name: str, value: str | None) -> bytes:
    if value is None:
        return b""
    try:
        found = bytes.fromhex(value)
    except ValueError:
        found = b""
    if len(found) != HASHES[name] or found.hex() != value:
        raise Invalid(f"this is not a hash column={name}", hint="give the documents as they were read")
    return found


# -- reading ----------------------------------------------------------------------------------------------


def _read(data: bytes, key: str) -> pa.RecordBatch:
    footer = data[-_footer_bytes(memoryview(data)) :]
    try:
        outlined = outline(footer, ROWS_MAX // _GROUP_ROWS_LEAST)
        found = int(outlined.pairs.get(_FORMAT_KEY.encode(), b""))
    except (BadStructure, ValueError):
        raise _Damaged("is damaged: its footer cannot be read") from None
    if found > FORMAT:
        raise other_version("object", key=key, format=found, known=FORMAT)
    rows = sum(group.rows for group in outlined.groups)
    # Every row has hashes, which do not compress: a file that claims more rows than its bytes can hold is a bomb.
    if found != FORMAT or not 1 <= rows <= min(ROWS_MAX, _ROWS_SPARE + len(data) // _ROW_BYTES_LEAST):
        raise _Damaged("is damaged: it has no rows, or more than it can have")
    try:
        batch = _decoded(data, outlined, len(data) - len(footer) - HASH_BYTES)
        batch.validate(full=True)
    except Exception:  # Arrow says no in many ways
        raise _Damaged("is damaged: its rows cannot be read") from None
    if batch.num_rows != rows or not batch.schema.equals(SCHEMA):
        raise _Damaged("is damaged: it has other columns, or other rows")
    return batch


@cache
def _model() -> Model:
    return Model(SCHEMA, _SETTINGS, (ZSTD,))


def _decoded(data: bytes, outlined: Outline, data_end: int) -> pa.RecordBatch:
    """The rows, read by Arrow, which sees only a rewritten footer and checked pages."""
    model = _model()
    footer = rewritten(outlined, model, data_end)
    content = memoryview(data)
    for group in outlined.groups:
        for chunk, leaf in zip(group.chunks, model.leaves, strict=True):
            weight = weigh(content[chunk.start : chunk.end], chunk, leaf, _SPARE_BYTES + _VALUE_BYTES_MAX * group.rows)
            if weight.longest > _VALUE_BYTES_MAX:
                raise TooLarge
    metadata = pq.ParquetFile(pa.BufferReader(footer)).metadata
    file = pq.ParquetFile(pa.BufferReader(data), metadata=metadata)
    batch: pa.RecordBatch
    (batch,) = file.read(use_threads=False).combine_chunks().to_batches()
    return batch


def _documents(rows: pa.RecordBatch) -> list[ManifestDocument]:
    kinds = rows.column("kind").to_pylist()
    if not {_SEGMENT, _START}.issuperset(kinds):
        raise _Damaged("is damaged: a row is of an unknown kind")
    starts = [kind == _START for kind in kinds]
    segments_of = iter(_of_kind(SegmentDocument, _SEGMENT, rows, _bits(starts, flipped=True)))
    starts_of = iter(_of_kind(StartDocument, _START, rows, _bits(starts, flipped=False)))
    return [next(starts_of) if is_start else next(segments_of) for is_start in starts]


def _of_kind(
    make: type[ManifestDocument], kind: str, rows: pa.RecordBatch, chosen: pa.Buffer
) -> list[ManifestDocument]:
    chosen_rows = rows.filter(pa.Array.from_buffers(pa.bool_(), rows.num_rows, [None, chosen]))
    names = _FIELDS[kind]
    for name, array in zip(_NAMES[1:], chosen_rows.columns[1:], strict=True):
        if array.null_count != (0 if name in names else len(array)):
            raise _Damaged(f"is damaged: a value is missing, or should not be there column={name}")
    columns = [_column(name, chosen_rows.column(name)) for name in names]
    return [make(**dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)]


def _column(name: str, array: pa.Array) -> Sequence[Any]:
    if name in _TEXTS or not len(array):
        return list(array.to_pylist())
    if name in HASHES:
        return _hexed(name, array)
    return struct.unpack_from(f"<{len(array)}q", array.buffers()[1], 8 * array.offset)


def _hexed(name: str, array: pa.Array) -> list[str]:
    """The values of a column of hashes of one length, converted all at once because there are many."""
    size = HASHES[name]
    _, offsets, values = array.buffers()
    ends = struct.unpack_from(f"<{len(array) + 1}i", offsets, 4 * array.offset)
    if ends != tuple(range(ends[0], ends[0] + size * len(array) + 1, size)):
        raise _Damaged(f"is damaged: a hash has a wrong length column={name}")
    digits = bytes(memoryview(values)[ends[0] : ends[-1]]).hex()
    return [digits[at : at + 2 * size] for at in range(0, len(digits), 2 * size)]
