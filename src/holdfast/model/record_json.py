"""Records as JSON, and back. Pure.

JSON gets text only where the bytes are text without control characters (line ends and tabs excepted), else base64 and a
field that says so. What is read can be appended as it is. The command line prints records in this form, and the HTTP
API reads and writes them.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec

from holdfast.errors import Invalid
from holdfast.model.record import NOW, Record
from holdfast.model.value_codec import ValueCodec, ValueRecord

BASE64 = "base64"

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DIGITS_MAX = 20

Encoding = str | msgspec.UnsetType


class RecordLine(msgspec.Struct, frozen=True):
    """A record as one JSON object; `…_encoding` is there only where the value is base64."""

    topic: str
    partition: int
    offset: int
    time: str | None
    """When it was appended, or the time that it was given; null outside of the years 1 to 9999."""
    time_us: int
    """The same in microseconds since 1970, always exact."""
    key: str | None
    """Null where it has none, as `kind` and `headers`."""
    kind: str | None
    headers: dict[str, str] | None
    """An object."""
    payload: str
    """Text where it is plain UTF-8, else base64."""
    key_encoding: Encoding = msgspec.UNSET
    """Only there, as `base64`, where the key is that; the same of the next two."""
    headers_encoding: Encoding = msgspec.UNSET
    payload_encoding: Encoding = msgspec.UNSET
    value: Any = msgspec.UNSET
    """Of a topic with a codec, what the payload stands for; left out where that is not JSON."""


class JsonRecord(msgspec.Struct):
    """A record that is passed as JSON, in the same form; what it does not know is ignored, for what was read may
    be given as it is.
    """

    payload: str | msgspec.UnsetType = msgspec.UNSET
    key: str | None = None
    kind: str | None = None
    headers: dict[str, str] | None = None
    time_us: int | None = None
    time: str | None = None
    partition: int | None = None
    payload_encoding: Literal["base64"] | None = None
    key_encoding: Literal["base64"] | None = None
    headers_encoding: Literal["base64"] | None = None
    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """In place of the payload, in a topic with a codec."""

    def content(self, codec: ValueCodec | None) -> bytes | Record:
        """What is appended to a topic with this codec: the payload, where it is nothing else."""
        if (self.key, self.kind, self.headers, self.time_us, self.time) == (None, None, None, None, None):
            if isinstance(self.payload, str) and self.payload_encoding is None:
                return self.payload.encode()
            return self._payload(codec)
        return self.record(codec)

    def _payload(self, codec: ValueCodec | None) -> bytes:
        if not isinstance(self.payload, msgspec.UnsetType):
            return decoded(self.payload, self.payload_encoding)
        if isinstance(self.value, msgspec.UnsetType) or codec is None:
            raise Invalid("a record has no payload", hint="give payload; value goes to a topic with a codec")
        return codec.from_json(bytes(self.value))

    def record(self, codec: ValueCodec | None) -> Record:
        """The record; its partition is not part of it."""
        key = None if self.key is None else decoded(self.key, self.key_encoding)
        headers = self.headers
        plain = None if headers is None else {n: decoded(v, self.headers_encoding) for n, v in headers.items()}
        time = self.time_us if self.time_us is not None else NOW if self.time is None else moment(self.time)
        return Record(self._payload(codec), key, self.kind, plain, time)


def decoded(text: str, encoding: str | None) -> bytes:
    """The bytes that a text stands for; Invalid where it is not what its encoding says."""
    try:
        return text.encode() if encoding is None else b64decode(text, validate=True)
    except (ValueError, UnicodeEncodeError):
        raise Invalid("a value is not base64, or not text", hint="bytes go with …_encoding: 'base64'") from None


def moment(text: str) -> int:
    """ISO 8601 with a zone, or a number, as microseconds since 1970; Invalid for anything else."""
    if text.removeprefix("-").isdecimal() and len(text) < _DIGITS_MAX:
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise Invalid("a time is ISO 8601 with a zone, or microseconds since 1970", hint="2026-01-31T12:00:00Z")
    return (found - _EPOCH) // timedelta(microseconds=1)


def record_line(topic: str, record: Record) -> RecordLine:
    """A record for JSON."""
    key, key_encoding = (None, msgspec.UNSET) if record.key is None else encoded(record.key)
    headers, headers_encoding = encoded_headers(record.headers)
    payload, payload_encoding = encoded(record.payload)
    return RecordLine(
        topic,
        record.partition,
        record.offset,
        iso(record.time),
        record.time,
        key,
        record.kind,
        headers,
        payload,
        key_encoding,
        headers_encoding,
        payload_encoding,
        record.codec.as_json(record.payload) if isinstance(record, ValueRecord) else msgspec.UNSET,
    )


def plain_text(value: bytes) -> str | None:
    """The bytes as text, or None where JSON or people could not take them as text."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return None if _CONTROL.search(text) else text


def encoded(value: bytes) -> tuple[str, Encoding]:
    """Text, or base64 and the word that says so."""
    text = plain_text(value)
    return (b64encode(value).decode(), BASE64) if text is None else (text, msgspec.UNSET)


def encoded_headers(headers: Mapping[str, bytes] | None) -> tuple[dict[str, str] | None, Encoding]:
    """Headers as text if all of them are, else all of them as base64."""
    if headers is None:
        return None, msgspec.UNSET
    texts = {name: plain_text(value) for name, value in headers.items()}
    if None in texts.values():
        return {name: b64encode(value).decode() for name, value in headers.items()}, BASE64
    return {name: text or "" for name, text in texts.items()}, msgspec.UNSET


def iso(time_us: int) -> str | None:
    """Microseconds since 1970 as ISO 8601 in UTC; None beyond the years 1 to 9999."""
    try:
        moment = _EPOCH + timedelta(microseconds=time_us)
    except OverflowError:
        return None
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
