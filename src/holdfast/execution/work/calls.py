"""What a worker's function is called with, and what it came to, as bytes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import Invalid, StepFailed


class Call(msgspec.Struct, frozen=True, array_like=True):
    """Arguments by place and by name."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]


_calls = msgspec.msgpack.Decoder(Call)


def encode_call(args: Sequence[Any], kwargs: Mapping[str, Any], size_max: int) -> bytes:
    """Arguments as bytes."""
    try:
        body = msgspec.msgpack.encode(Call(args, kwargs))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Invalid(
            f"these arguments cannot be stored: {error}"[:300],
            hint="give plain values, dataclasses or msgspec structs; for others, a reference",
        ) from None
    if len(body) > size_max:
        raise Invalid(
            f"these arguments are too large bytes={len(body)}",
            hint="see executions.payload_bytes_max; append them to a topic, and give their offset",
        )
    return body


def decode_call(body: bytes) -> Call:
    """Arguments, of plain types."""
    return _calls.decode(body) if body else Call((), {})


def encode_outcome(value: Any, *, is_error: bool) -> bytes:
    """What a program returned or raised."""
    if is_error:
        return msgspec.msgpack.encode([type(value).__name__, str(value)])
    return msgspec.msgpack.encode(value)


def decode_outcome(body: bytes, *, is_error: bool) -> Any:
    """What a program returned; what it raised is raised."""
    value = msgspec.msgpack.decode(body) if body else None
    if is_error:
        raise StepFailed(str(value), path="", type_name="")
    return value
