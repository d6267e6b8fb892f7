"""Bytes and times as people and JSON see them. Pure: values in, text out.

What came out of a log may hold anything, terminal escapes included. JSON gets text only where the bytes are
text without control characters (line ends and tabs excepted), else base64 and a field that says so; a
terminal gets escapes in place of everything that does not print: control characters old and new (C0, C1), line and
paragraph separators, marks that turn the direction of text round, zero-width characters. JSON has them as escapes of
its own, for it is looked at on terminals, too.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.model.record import Record

BASE64 = "base64"
SHORT_HEX = 12
"""Digits shown of a digest or a commitment: enough to compare by eye."""

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Encoding = str | msgspec.UnsetType


class RecordLine(msgspec.Struct, frozen=True):
    """A record as one JSON object; `…_encoding` is there only where the value is base64."""

    topic: str
    partition: int
    offset: int
    time: str | None
    time_us: int
    key: str | None
    kind: str | None
    headers: dict[str, str] | None
    payload: str
    key_encoding: Encoding = msgspec.UNSET
    headers_encoding: Encoding = msgspec.UNSET
    payload_encoding: Encoding = msgspec.UNSET


def record_line(topic: str, record: Record) -> RecordLine:
    """A record for JSON."""
    key, key_encoding = (None, msgspec.UNSET) if record.key is None else encoded(record.key)
    headers, headers_encoding = encoded_headers(record.headers)
    payload, payload_encoding = encoded(record.payload)
    return RecordLine(
        topic, record.partition, record.offset, iso(record.time), record.time, key, record.kind, headers, payload,
        key_encoding, headers_encoding, payload_encoding,
    )  # fmt: skip


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


def shown(value: bytes | None) -> str:
    """Bytes for a terminal: text with escapes, or base64 with its name in front; a dash for none."""
    if value is None:
        return "-"
    text = plain_text(value)
    return f"{BASE64}:{b64encode(value).decode()}" if text is None else printable(text)


def printable(text: str) -> str:
    """The text with an escape in place of everything that does not print."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def printable_lines(text: str) -> str:
    """Several lines, each printable."""
    return "\n".join(printable(line) for line in text.split("\n"))


def printable_json(encoded: bytes) -> bytes:
    """JSON with an escape in place of everything that does not print: the same values for whoever parses it."""
    text = encoded.decode("utf-8", "surrogatepass")
    if text.isprintable():
        return encoded
    return "".join(c if c.isprintable() else _json_escape(c) for c in text).encode()


def _json_escape(character: str) -> str:
    """JSON has nothing unprintable outside of strings, so this is inside of one."""
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def iso(time_us: int) -> str | None:
    """Microseconds since 1970 as ISO 8601 in UTC; None beyond the years 1 to 9999."""
    try:
        moment = _EPOCH + timedelta(microseconds=time_us)
    except OverflowError:
        return None
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def short(digest: bytes) -> str:
    """The first digits of a hash."""
    return digest.hex()[:SHORT_HEX]
