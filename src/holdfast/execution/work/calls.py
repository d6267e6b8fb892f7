"""What a worker's function is called with, and what it came to, as bytes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import Invalid, StepFailed
from holdfast.execution.steps.step_errors import decode_error, encode_error
from holdfast.execution.steps.step_values import PLAIN, codec_of


class CallArguments(msgspec.Struct, frozen=True, array_like=True):
    """Arguments by place and by name."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]


_calls = msgspec.msgpack.Decoder(CallArguments)


def encode_call(args: Sequence[Any], kwargs: Mapping[str, Any], size_max: int) -> bytes:
    """Arguments as bytes."""
    try:
        body, _ = PLAIN.encode(CallArguments(args, kwargs), "start")
    except Invalid as error:
        raise Invalid(
            f"these arguments cannot be stored: {error.message}"[:300],
            hint="give plain values, dataclasses or msgspec structs; for others, a reference",
        ) from None
    _check_size(body, size_max)
    return body


def check_call(body: object, size_max: int) -> None:
    """Refuse what was not made by `encode_call`: it came from another process."""
    if not isinstance(body, bytes):
        raise Invalid("arguments are bytes here", hint="the message was made by another version of holdfast")
    _check_size(body, size_max)
    try:
        decode_call(body)
    except msgspec.DecodeError:
        raise Invalid("these arguments do not decode", hint="the message is damaged; send it again") from None


def _check_size(body: bytes, size_max: int) -> None:
    if len(body) > size_max:
        raise Invalid(
            f"these arguments are too large bytes={len(body)}",
            hint="see executions.payload_bytes_max; append them to a topic, and give their offset",
        )


def decode_call(body: bytes) -> CallArguments:
    """Arguments, of plain types."""
    return _calls.decode(body) if body else CallArguments((), {})


def encode_outcome(value: Any, *, is_error: bool) -> bytes:
    """What a program returned or raised."""
    return encode_error(value, "")[0] if is_error else PLAIN.encode(value, "value")[0]


def decode_outcome(body: bytes, wanted: Any, *, is_error: bool) -> Any:
    """What a program returned, as this type; what it raised is raised."""
    if is_error:
        raise decode_error(body, "") if body else StepFailed("it failed", path="", type_name="")
    return codec_of(wanted).decode(body, "result") if body else None
