"""Records side by side instead of one by one: the shape in which they are packed and read.

Joining a list of payloads is one call into C, where a loop over records is thousands. Keys, kinds and headers are
rarer, so they stay in a dictionary until they are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from holdfast.model.record import Record

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, bytes]).decode

Extra = tuple[bytes | None, bytes | None, bytes | None]
"""Key, kind (UTF-8) and headers (encoded) of one record."""


Row = tuple[bytes, int, Extra | None, bytes | None]
"""A queued record: payload, time, extra, and the hash of its idempotency key, followed by the digest of the record."""


Cells = tuple[Any, ...]
"""A row of a typed topic that was checked and copied: its values in the order of the columns."""


class BadRecords(Exception):
    """Stored bytes are not the records they claim to be; the reader says where they were found."""


class Columns:
    """A run of records of one partition, by column. `extras` has an item for each record that needs one."""

    __slots__ = ("extras", "payloads", "times")

    def __init__(self, payloads: Sequence[bytes], times: Sequence[int], extras: dict[int, Extra] | None = None) -> None:
        self.payloads = payloads
        self.times = times
        self.extras: dict[int, Extra] = {} if extras is None else extras

    @classmethod
    def of(cls, rows: Sequence[Row], *, extras: bool) -> Columns:
        """Queued records, by column; `extras` says whether any of them has one."""
        payloads, times, found, _ = zip(*rows, strict=True)
        return cls(
            payloads, times, {i: extra for i, extra in enumerate(found) if extra is not None} if extras else None
        )

    @classmethod
    def joined(cls, parts: Sequence[Columns]) -> Columns:
        """Several runs as one."""
        if len(parts) == 1:
            return parts[0]
        payloads: list[bytes] = []
        times: list[int] = []
        extras: dict[int, Extra] = {}
        for part in parts:
            first = len(payloads)
            extras.update((first + at, extra) for at, extra in part.extras.items())
            payloads += part.payloads
            times += part.times
        return cls(payloads, times, extras)

    def __len__(self) -> int:
        return len(self.payloads)

    def size(self) -> int:
        """Bytes of payloads, keys, kinds and headers."""
        extras = (value for extra in self.extras.values() for value in extra if value is not None)
        return sum(map(len, self.payloads)) + sum(map(len, extras))

    def select(self, wanted: list[int]) -> Columns:
        """The records at these positions, in this order."""
        extras = {new: self.extras[old] for new, old in enumerate(wanted) if old in self.extras}
        return Columns([self.payloads[i] for i in wanted], [self.times[i] for i in wanted], extras)

    def records(self, first: int, partition: int, start: int, stop: int, topic: str) -> Iterator[Record]:
        """The records at positions start..stop as objects, the first of all columns having offset `first`."""
        payloads, times, extras = self.payloads, self.times, self.extras
        if not extras:
            for i in range(start, stop):
                yield Record(payloads[i], None, None, None, times[i], first + i, partition, topic)
            return
        for i in range(start, stop):
            key, kind, headers = extras.get(i, _NOTHING)
            yield Record(
                payloads[i],
                key,
                None if kind is None else decode_kind(kind),
                None if headers is None else decode_headers(headers),
                times[i],
                first + i,
                partition,
                topic,
            )


class EncodedRows:
    """Rows of a typed topic, already as the bytes of an entry's body; the caller knows their schema."""

    __slots__ = ("batch", "body", "count", "key", "schema", "time_max", "time_min")

    def __init__(self, count: int, time_min: int, time_max: int, body: bytes | memoryview, schema: bytes) -> None:
        self.count = count
        self.time_min = time_min
        self.time_max = time_max
        self.body = body
        self.schema = schema
        self.key: bytes | None = None
        """The hash of the batch's idempotency key, followed by the digest of its rows."""
        self.batch: bytes | None = None
        """The same of the whole batch, where it lies in several partitions and this is a part: one object for all."""

    def __len__(self) -> int:
        return self.count


class RowEncoder(Protocol):
    """Encodes rows of one schema that were appended one by one, and are stored as one entry."""

    overhead: int
    """Bytes that the entry takes beside what its rows count."""

    def encode(self, rows: Sequence[tuple[Cells, int]]) -> EncodedRows:
        """Rows with their times."""


_NOTHING: Extra = (None, None, None)


def decode_kind(encoded: bytes) -> str:
    """A kind from UTF-8; raises BadFrame for anything else."""
    try:
        return encoded.decode()
    except UnicodeDecodeError as error:
        raise BadRecords("a kind is not text") from error


def encode_headers(headers: Mapping[str, bytes]) -> bytes:
    """Headers as MessagePack: a map of text to binary."""
    return _encode(headers)


def decode_headers(encoded: bytes) -> dict[str, bytes]:
    """Headers from MessagePack; raises BadFrame for anything else."""
    try:
        return _decode(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRecords("headers are malformed") from error
