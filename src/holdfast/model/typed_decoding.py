"""Decoding values as types that are not known before: by several threads, the first time included.

msgspec gathers what it knows of a type when that is first decoded, and other threads see it half made: two that decode
a type for the first time at once end the whole process. So a type is made known under one lock, before anything is
decoded as it. Decoders that a module makes when it is imported need none of this.
"""

from __future__ import annotations

from _thread import RLock
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from holdfast.caller import once

Kind = TypeVar("Kind")

_TYPES_MAX = 10_000
_lock = RLock()
"""Guards `_known`, and making types known."""
_known: set[Any] = set()


def from_msgpack(data: bytes | memoryview, kind: type[Kind]) -> Kind:
    """MessagePack as a value of this type; raises what msgspec raises."""
    make_known(kind)
    return msgspec.msgpack.decode(data, type=kind)


def from_json(data: bytes | memoryview | str, kind: type[Kind]) -> Kind:
    """JSON as a value of this type."""
    make_known(kind)
    return msgspec.json.decode(data, type=kind)


def converted(value: object, kind: type[Kind], *, strict: bool = True) -> Kind:
    """Plain data as a value of this type."""
    make_known(kind)
    return msgspec.convert(value, kind, strict=strict)


def make_known(kind: Any) -> None:
    """Have msgspec know a type; what is wrong with one is said where something is decoded as it."""
    try:
        if kind in _known:
            return
    except TypeError:  # it has no hash, so it cannot be noted
        with once(_lock):
            _know(kind)
        return
    with once(_lock):
        _know(kind)
        if len(_known) >= _TYPES_MAX:
            _known.clear()
        _known.add(kind)


def _know(kind: Any) -> None:
    with suppress(TypeError, ValueError, NameError, RecursionError):
        msgspec.msgpack.Decoder(kind)
