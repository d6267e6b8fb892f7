"""Bytes and text as people see them on a terminal. Pure: values in, text out. As JSON: `model/record_json.py`.

What came out of a log may hold anything, terminal escapes included. A terminal gets escapes in place of everything that
does not print: control characters old and new (C0, C1), line and paragraph separators, marks that turn the direction of
text round, zero-width characters. JSON has them as escapes of its own, for it is shown on terminals, too.
"""

from __future__ import annotations

from base64 import b64encode

from holdfast.errors import printable
from holdfast.model.record_json import BASE64, plain_text

SHORT_HEX = 12
"""Digits shown of a digest or a commitment: enough to compare by eye."""


def shown(value: bytes | None) -> str:
    """Bytes for a terminal: text with escapes, or base64 with its name in front; a dash for none."""
    if value is None:
        return "-"
    text = plain_text(value)
    return f"{BASE64}:{b64encode(value).decode()}" if text is None else printable(text)


def printable_lines(text: str) -> str:
    """Several lines, each printable."""
    return "\n".join(printable(line) for line in text.split("\n"))


def printable_json(encoded: bytes) -> bytes:
    """JSON with an escape in place of everything that does not print: the same values for programs."""
    text = encoded.decode("utf-8", "surrogatepass")
    if text.isprintable():
        return encoded
    return "".join(c if c.isprintable() else _json_escape(c) for c in text).encode()


def _json_escape(character: str) -> str:
    """JSON has nothing unprintable outside of strings, so this is inside of one."""
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def short(digest: bytes) -> str:
    """The first digits of a hash."""
    return digest.hex()[:SHORT_HEX]
