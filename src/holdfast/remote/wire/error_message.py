"""Errors that a server told us about, as the exceptions that a log of this process would raise. Pure.

What comes is hostile until it is checked: a class is taken from `holdfast.errors` by its name and never imported from
elsewhere, fields are those that the class has, texts are cut. What cannot be understood is Unavailable.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast import errors
from holdfast.errors import HoldfastError, Invalid, NotFound, Unavailable, printable

_TEXT_MAX = 2_000
_FIELDS = frozenset(
    (
        "asked", "expected", "first", "holder", "key", "offset", "partition", "path", "reason", "recorded", "topic",
        "type_name",
    )
)  # fmt: skip
_BYTES = frozenset(("asked", "key", "recorded"))


class ErrorBody(msgspec.Struct):
    """The body of an answer that is not 2xx."""

    kind: str = ""
    message: str = ""
    hint: str = ""
    fields: dict[str, Any] = {}


_decoder = msgspec.json.Decoder(ErrorBody)


def error_of(status: int, body: bytes, where: str) -> HoldfastError:
    """What an answer that is not 2xx means."""
    try:
        told = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        told = ErrorBody()
    error = raised(told) or _by_status(status, where)
    if isinstance(error, errors.Closed):  # what is closed is the server's log, or the server; not what the caller holds
        return Unavailable(
            f"the log of the server at {where} is not open: {error.message}", hint="start the server again"
        )
    return error


def raised(told: ErrorBody) -> HoldfastError | None:
    """The exception of this kind, or None where there is no such kind."""
    kind = getattr(errors, told.kind, None) if told.kind.isidentifier() else None
    if not (isinstance(kind, type) and issubclass(kind, HoldfastError)):
        return None
    # Not by its constructor: that would add the values to the message a second time.
    error: HoldfastError = kind.__new__(kind, printable(told.message[:_TEXT_MAX]))
    error.message, error.hint = error.args[0], printable(told.hint[:_TEXT_MAX]) or kind.default_hint
    for name in ("idempotency_key", "ticket"):
        if kind is errors.OutcomeUnknown:
            setattr(error, name, None)
    for name in _FIELDS & _own_fields(kind):
        setattr(error, name, _value(name, told.fields.get(name)))
    return error


def told(error: HoldfastError) -> ErrorBody:
    """An exception as it travels."""
    fields = {name: getattr(error, name) for name in _FIELDS if isinstance(getattr(error, name, None), int | str)}
    found = {name: getattr(error, name).hex() for name in _BYTES if isinstance(getattr(error, name, None), bytes)}
    return ErrorBody(type(error).__name__, error.message[:_TEXT_MAX], error.hint[:_TEXT_MAX], {**fields, **found})


_OWN = {
    "Expired": {"first"}, "Closed": {"reason"}, "Corrupt": {"path", "topic", "partition", "offset"},
    "Diverged": {"path", "recorded", "asked"}, "AmbiguousEffect": {"path", "key"}, "ExecutionHeld": {"holder"},
    "StepFailed": {"path", "type_name"}, "PromiseFailed": {"reason"}, "Invalid": {"expected"},
}  # fmt: skip


def _own_fields(kind: type[HoldfastError]) -> set[str]:
    return _OWN.get(kind.__name__, set())


def _value(name: str, value: object) -> object:
    if name in _BYTES:
        try:
            return bytes.fromhex(value) if isinstance(value, str) else b""
        except ValueError:
            return b""
    if isinstance(value, str):
        return value[:_TEXT_MAX]
    return value if isinstance(value, int) else None


def _by_status(status: int, where: str) -> HoldfastError:
    if status in (401, 403):
        return Invalid(f"the server at {where} does not allow this status={status}", hint="check the token")
    if status == 404:
        return NotFound(f"the server at {where} does not know this", hint="is this the address of a holdfast server?")
    if 400 <= status < 500:
        return Invalid(f"the server at {where} refused the request status={status}", hint="is it a holdfast server?")
    return Unavailable(f"the server at {where} failed status={status}", hint="its log says why; try again")
