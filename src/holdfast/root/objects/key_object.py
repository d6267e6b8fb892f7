"""Idempotency keys of a stretch of commits, as one object (docs/formats/0006-store.md).

Commit batches carry the keys of their own records; when batches go, an object of keys stays in their place, for as
long as the window of keys reaches. One row per key, in the order in which keys were remembered, laid out as
`row_stream` does it. Hashes, and digests of what keys stand for, are encrypted in a log with keys: the object names the
key epoch that it takes to read them.

Encoding is a pure function of the rows. Decoding trusts nothing: what is not as it should be is `Corrupt` with the
object's key. Nothing here proves that the hashes are those that were written.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import gt
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from holdfast.errors import Corrupt, Invalid
from holdfast.root.objects import row_stream
from holdfast.root.objects.commit_batch import TailKey, keys_as_json, keys_of_json
from holdfast.root.objects.row_stream import DIGEST, DamagedRows, RowStream
from holdfast.store import layout

FORMAT = 1
BYTES_MAX = 2**30
ROWS_MAX = 2**22

_CONTEXT = "holdfast 1 idempotency keys"
_NUMBER_MAX = 2**62
_HINT = "without it, repeats of older appends are not recognised; the log that wrote it still knows its keys"


class StoredKey(NamedTuple):
    """Where the record with an idempotency key is."""

    topic: str
    partition: int
    record: int
    """Its offset."""
    seq: int
    hash: bytes
    """16 bytes, encrypted in a log with keys."""
    digest: bytes
    """Of what was appended under the key, encrypted in a log with keys."""


class KeyObject(NamedTuple):
    """The idempotency keys of the commits from one sequence number to another."""

    log_id: bytes
    epoch: int
    """The store's, under which it was written."""
    first_seq: int
    last_seq: int
    key: TailKey | None
    """The key epoch that encrypts the hashes; None in a log without keys."""
    rows: Sequence[StoredKey]
    """In the order of their sequence numbers."""


_TYPES = {"topic": pa.large_string(), "hash": DIGEST, "digest": DIGEST}
SCHEMA = pa.schema([pa.field(name, _TYPES.get(name, pa.int64()), nullable=False) for name in StoredKey._fields])
STREAM = RowStream(SCHEMA, _CONTEXT)


def encode(keys: KeyObject) -> bytes:
    """Keys as an object; raises Invalid if they are not what `decode` would take."""
    columns = _columns_of(keys.rows)
    wrong = _problem(keys, columns)
    if wrong is not None:
        raise Invalid(f"these cannot be idempotency keys: {wrong}", hint="this is a mistake in holdfast")
    return STREAM.encode(_metadata(keys), columns, BYTES_MAX)


def decode(data: bytes | memoryview, key: str) -> KeyObject:
    """The keys in an object, whole and under its own key; raises Corrupt, or Invalid for another format."""
    try:
        opened = row_stream.opened(memoryview(data), key, STREAM, BYTES_MAX, FORMAT)
        columns = STREAM.columns(opened, ROWS_MAX)
        keys = _keys_of(opened.metadata, columns)
        wrong = _problem(keys, columns)
        if wrong is not None:
            raise DamagedRows(f"is damaged: {wrong}")
        if layout.parse_keys_key(key) != (keys.epoch, keys.first_seq, keys.last_seq):
            raise DamagedRows("is not the one that its key says")
    except DamagedRows as damage:
        raise Corrupt(f"an object of idempotency keys {damage}", path=key, hint=_HINT) from None
    return keys


def _columns_of(rows: Sequence[StoredKey]) -> dict[str, Sequence[Any]]:
    if not rows:
        return dict.fromkeys(StoredKey._fields, ())
    return dict(zip(StoredKey._fields, zip(*rows, strict=True), strict=True))


def _problem(keys: KeyObject, columns: dict[str, Sequence[Any]]) -> str | None:
    seqs = columns["seq"]
    if len(keys.log_id) != 16 or keys.epoch < 0 or not 1 <= keys.first_seq <= keys.last_seq < 2**63:
        return "its place is none"
    if len(seqs) > ROWS_MAX:
        return "it has too many rows"
    if seqs and (seqs[0] < keys.first_seq or seqs[-1] > keys.last_seq or any(map(gt, seqs, seqs[1:]))):
        return "its rows are not in order"
    numbers = (*columns["partition"], *columns["record"])
    if numbers and not 0 <= min(numbers) <= max(numbers) < _NUMBER_MAX:
        return "a number is too small or too large"
    if not all(columns["topic"]) or not {*map(len, columns["hash"]), *map(len, columns["digest"])} <= {16}:
        return "a row names no record"
    return None


def _metadata(keys: KeyObject) -> dict[bytes, bytes]:
    return {
        b"holdfast.format": b"%d" % FORMAT,
        b"holdfast.log": keys.log_id.hex().encode(),
        b"holdfast.epoch": b"%d" % keys.epoch,
        b"holdfast.first_seq": b"%d" % keys.first_seq,
        b"holdfast.last_seq": b"%d" % keys.last_seq,
        b"holdfast.keys": keys_as_json(() if keys.key is None else (keys.key,)),
    }


def _keys_of(metadata: dict[bytes, bytes], columns: dict[str, Sequence[Any]]) -> KeyObject:
    try:
        epochs = keys_of_json(metadata[b"holdfast.keys"])
        keys = KeyObject(
            bytes.fromhex(metadata[b"holdfast.log"].decode()),
            int(metadata[b"holdfast.epoch"]),
            int(metadata[b"holdfast.first_seq"]),
            int(metadata[b"holdfast.last_seq"]),
            epochs[0] if epochs else None,
            tuple(map(StoredKey._make, zip(*columns.values(), strict=True))),
        )
    except (KeyError, ValueError, RecursionError, msgspec.MsgspecError):
        raise DamagedRows("is damaged: its metadata cannot be read") from None
    if _metadata(keys) != metadata:  # each value has one spelling, and there are no others
        raise DamagedRows("is damaged: its metadata are not as they are written")
    return keys
