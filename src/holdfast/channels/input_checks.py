"""Checks of an application's input, before anything is done with it."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.channels.wire.message import HINT_BYTES_MAX, ID_BYTES_MAX, raw
from holdfast.errors import Invalid


def checked_content(content: bytes) -> bytes:
    """Bytes of any kind, as bytes."""
    if not isinstance(content, bytes | bytearray | memoryview):
        raise Invalid(f"content must be bytes, not {type(content).__name__}", hint="encode text: 'text'.encode()")
    return bytes(content)


def checked_ids(values: Iterable[str]) -> list[str]:
    """Several message ids."""
    if isinstance(values, str):
        raise Invalid("message_ids must be a list of ids, not a single id", hint="give a list: [message_id]")
    return [checked_id("message_id", value, empty=True) for value in values]


def checked_id(name: str, value: str, *, empty: bool = False) -> str:
    """An id that both wire formats carry."""
    if not isinstance(value, str) or (not value and not empty):
        raise Invalid(f"{name} must be text that is not empty, not {value!r}", hint="ids are text")
    if len(raw(value)) > ID_BYTES_MAX:
        raise Invalid(f"{name} is longer than {ID_BYTES_MAX} bytes", hint="use a shorter one")
    return value


def checked_hint(hint: bytes) -> bytes:
    """A retrieval hint that both wire formats carry."""
    given = checked_content(hint)
    if len(given) > HINT_BYTES_MAX:
        raise Invalid(f"a retrieval hint is longer than {HINT_BYTES_MAX} bytes", hint="give a reference")
    return given
