"""What callers append, checked and turned into bytes before anything is queued.

Whatever can be wrong with a record is found here, in the caller's thread: the writer only ever sees records that
fit. Limits come from the journal's settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from blake3 import blake3

from holdfast.errors import Invalid
from holdfast.journal.journal_settings import JournalSettings
from holdfast.model.record import Record, microseconds, stamped_at
from holdfast.model.record_columns import Extra, decode_headers, encode_headers

Headers = Mapping[str, bytes | str]

_INT64 = 2**63
_KIND_BYTES_MAX = 255
_HASH_BYTES = 16
_DIGEST_CONTEXT = b"holdfast 1 idempotent content\0"
_PART_CONTEXT = b"holdfast 1 idempotent part\0"
_ABSENT = b"\xff" * 8


class Validation:
    """The checks of one topic."""

    def __init__(self, topic: str, settings: JournalSettings) -> None:
        self._settings = settings
        self._key_context = b"holdfast 1 idempotency\0" + topic.encode() + b"\0"

    def payload(self, payload: object) -> bytes:
        """A payload as bytes, not too large."""
        if not isinstance(payload, (bytes, bytearray, memoryview)):
            raise Invalid(f"a payload is bytes, not {type(payload).__name__}", hint=_encoding_of(payload))
        taken = bytes(payload)
        if len(taken) > self._settings.payload_bytes_max:
            raise self.too_large(len(taken))
        return taken

    def too_large(self, size: int) -> Invalid:
        """The refusal of a payload of this size."""
        return Invalid(
            f"the payload is too large bytes={size} max={self._settings.payload_bytes_max}",
            hint="raise journal.payload_bytes_max, or store the data elsewhere and append a reference",
        )

    def extras(
        self, key: bytes | str | None, kind: str | None, headers: Headers | None, size: int
    ) -> tuple[Extra, int]:
        """Key, kind and headers as bytes, and the record's size with them."""
        parts = (
            None if key is None else self.key(key),
            None if kind is None else self._kind(kind),
            None if headers is None else self._headers(headers),
        )
        return parts, size + sum(len(part) for part in parts if part is not None)

    def key(self, key: bytes | str) -> bytes:
        """A record key or idempotency key."""
        encoded = _encoded(key) if isinstance(key, str) else key
        if not isinstance(encoded, bytes):
            raise Invalid(f"a key is bytes or text, not {type(key).__name__}", hint="encode it first")
        if len(encoded) > self._settings.key_bytes_max:
            raise Invalid(f"the key is too large bytes={len(encoded)}", hint="see journal.key_bytes_max")
        return encoded

    def unique(self, idempotency_key: bytes | str, *parts: bytes | None) -> tuple[bytes, bytes]:
        """An idempotency key; and the hash under which the topic remembers it, with a digest of what it stands for."""
        key = self.unique_key(idempotency_key)
        key_hash = self.key_hash(key)
        content = [_DIGEST_CONTEXT, key_hash]
        for part in parts:
            content += (_ABSENT,) if part is None else (len(part).to_bytes(8, "little"), part)
        return key, key_hash + blake3(b"".join(content)).digest(length=_HASH_BYTES)

    def unique_key(self, idempotency_key: bytes | str) -> bytes:
        """An idempotency key as bytes."""
        key = self.key(idempotency_key)
        if not key:
            raise Invalid("an idempotency key is empty", hint="leave it out, or give a unique one")
        return key

    def key_hash(self, key: bytes) -> bytes:
        """The hash under which the topic remembers an idempotency key: another one in every topic."""
        return blake3(self._key_context + key).digest(length=_HASH_BYTES)

    def unique_part(self, unique: bytes, number: int) -> bytes:
        """The same for a part of what a key stands for: rows of one batch in several partitions."""
        part = _PART_CONTEXT + number.to_bytes(4, "little")
        digest = blake3(part + unique).digest(length=_HASH_BYTES)
        return blake3(part + unique[:_HASH_BYTES]).digest(length=_HASH_BYTES) + digest

    def unique_record(self, idempotency_key: bytes | str, payload: bytes, extra: Extra | None) -> tuple[bytes, bytes]:
        """The same for one record: its payload, key, kind and headers count; its time and partition do not."""
        key, kind, headers = (None, None, None) if extra is None else extra
        if headers is not None:  # a mapping: the order of its names means nothing
            headers = encode_headers(dict(sorted(decode_headers(headers).items())))
        return self.unique(idempotency_key, payload, key, kind, headers)

    def time(self, time: int | datetime) -> int:
        """The time of a record in microseconds."""
        return time_of(time, stamped_at)

    def record(self, given: object) -> tuple[Record, bytes, Extra | None, int]:
        """One record of a batch: itself, its payload, its extras and its size."""
        record = given if isinstance(given, Record) else Record(given)  # type: ignore[arg-type]  # checked in the next line
        payload = self.payload(record.payload)
        if record.key is None and record.kind is None and record.headers is None:
            return record, payload, None, len(payload)
        extra, size = self.extras(record.key, record.kind, record.headers, len(payload))
        return record, payload, extra, size

    def batch(self, records: Sequence[object]) -> None:
        """A batch must hold something, and not too much."""
        if not records:
            raise Invalid("the batch is empty", hint="give at least one record")
        if len(records) > self._settings.batch_records_max:
            raise Invalid(f"the batch is too long records={len(records)}", hint="see journal.batch_records_max")

    def batch_size(self, size: int, largest: int = 0) -> int:
        """The size of a batch, within its limit; `largest` is that of its largest payload."""
        if largest > self._settings.payload_bytes_max:
            raise self.too_large(largest)
        if size > self._settings.batch_bytes_max:
            raise Invalid(f"the batch is too large bytes={size}", hint="see journal.batch_bytes_max")
        return size

    def _kind(self, kind: object) -> bytes:
        encoded = _encoded(kind) if isinstance(kind, str) else b""
        if not 0 < len(encoded) <= _KIND_BYTES_MAX:
            raise Invalid("a kind is text of 1 to 255 bytes", hint="shorten it")
        return encoded

    def _headers(self, headers: Headers) -> bytes:
        if not isinstance(headers, Mapping):
            raise Invalid("headers are a mapping", hint="for instance headers={'trace': b'…'}")
        plain = {name: _encoded(value) if isinstance(value, str) else value for name, value in headers.items()}
        if not all(isinstance(name, str) and isinstance(value, bytes) for name, value in plain.items()):
            raise Invalid("headers map text to bytes or text", hint="for instance headers={'trace': b'…'}")
        for name in plain:
            _encoded(name)
        encoded = encode_headers(plain)
        if len(encoded) > self._settings.headers_bytes_max:
            raise Invalid(f"the headers are too large bytes={len(encoded)}", hint="see journal.headers_bytes_max")
        return encoded


class SentKeys(Validation):
    """The checks of a topic of a server's log: idempotency keys are sent as they are, and hashed there."""

    def unique(self, idempotency_key: bytes | str, *parts: bytes | None) -> tuple[bytes, bytes]:
        """An idempotency key; and the same as another object, which all parts of one batch share."""
        key = self.unique_key(idempotency_key)
        return key, bytes(bytearray(key))

    def unique_part(self, unique: bytes, number: int) -> bytes:
        """The server makes it."""
        return unique

    def unique_record(self, idempotency_key: bytes | str, payload: bytes, extra: Extra | None) -> tuple[bytes, bytes]:
        """As `unique`."""
        return self.unique(idempotency_key)


def time_of(time: int | datetime, taken: Callable[[int | datetime], int] = microseconds) -> int:
    """A user's time in microseconds since 1970, or Invalid."""
    if isinstance(time, datetime) and time.tzinfo is None:
        raise Invalid("a time needs a time zone", hint="use datetime.now(UTC), or microseconds as an int")
    moment = taken(time)
    if not isinstance(moment, int) or not -_INT64 < moment < _INT64:
        raise Invalid("a time is a datetime or microseconds since 1970", hint="it must fit in 64 bits")
    return moment


def _encoding_of(payload: object) -> str:
    if isinstance(payload, str):
        return "encode it: text.encode(); or have a topic of text: log.topic(name, codec='text')"
    return "a topic with a codec takes values: log.topic(name, codec='json')"


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Invalid("a text contains lone surrogates, which cannot be stored", hint="give bytes") from None
