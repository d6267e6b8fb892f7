"""What a worker's function is called with, and what it came to, as bytes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import Invalid, StepFailed
from holdfast.execution.steps.step_errors import decode_error, encode_error
from holdfast.execution.steps.step_values import PLAIN, codec_of


class Call(msgspec.Struct, frozen=True, array_like=True):
    """Arguments by place and by name."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]


_calls = msgspec.msgpack.Decoder(Call)


def encode_call(args: Sequence[Any], kwargs: Mapping[str, Any], size_max: int) -> bytes:
    """Arguments as bytes."""
    try:
        body, _ = PLAIN.encode(Call(args, kwargs), "start")
    except Invalid as error:
        raise Invalid(
            f"these arguments cannot be stored: {error.message}"[:300],
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
    return encode_error(value, "")[0] if is_error else PLAIN.encode(value, "value")[0]


def decode_outcome(body: bytes, wanted: Any, *, is_error: bool) -> Any:
    """What a program returned, as this type; what it raised is raised."""
    if is_error:
        raise decode_error(body, "") if body else StepFailed("it failed", path="", type_name="")
    return codec_of(wanted).decode(body, "result") if body else None
