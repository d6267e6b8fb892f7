"""Values that come from outside, or go to a waiting program, as bytes. MessagePack, never pickle."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import Corrupt, Invalid
from holdfast.model.typed_decoding import from_msgpack

_encode = msgspec.msgpack.Encoder().encode


def payload_of(value: object, what: str, most: int) -> bytes:
    """A value's bytes, up to so many."""
    try:
        payload = _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Invalid(
            f"the value of {what} cannot be stored: {error}"[:300],
            hint="give data: numbers, text, lists, dictionaries, dataclasses, Structs",
        ) from error
    if len(payload) > most:
        raise Invalid(
            f"the value of {what} has {len(payload)} bytes, more than {most}",
            hint="put it elsewhere (a topic, a file) and give where it is; see executions.payload_bytes_max",
        )
    return payload


def value_of(payload: bytes, wanted: Any, what: str) -> Any:
    """A stored value, as the type that the program asks for."""
    try:
        return from_msgpack(payload, wanted)
    except msgspec.ValidationError as error:
        raise Invalid(
            f"the value for {what} is not of the requested type: {error}"[:300],
            hint="correct returns=…, or have the program take any value and check it itself",
        ) from error
    except msgspec.DecodeError:
        raise Corrupt(f"the recorded value of {what} does not decode") from None
