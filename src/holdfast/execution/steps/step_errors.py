"""Exceptions of steps as bytes: a program that caught an error on its first run catches the same one on the next.

An exception is stored as the place of its class, what it is made of, and its text; no stack. It comes back as the same
type if the class can be made again of these, which is tried before it is stored: what could not be raised again on a
later run is `StepFailed` on the first one already.

A class is looked for in modules that the program has loaded, by looking things up in their dictionaries, under the name
that it gives itself. So nothing that a journal says imports a module or runs code of one, and nothing is called but the
class of an exception. What is not found there is `StepFailed`, with the name and the text.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, cast

import msgspec

from holdfast.errors import Corrupt, HoldfastError, StepFailed

_TEXT_MAX = 2_000


class StoredError(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An exception, stored."""

    module: str
    name: str
    text: str
    args: list[Any] | None
    """What it is made of; None if it cannot be made again."""
    state: dict[str, Any] = {}
    hint: str | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StoredError).decode


def encode_error(error: BaseException, path: str, most: int = 2**20) -> tuple[bytes, BaseException]:
    """The bytes of an exception, up to so many, and the exception as every later run will see it."""
    stored = _stored(error)
    payload = _payload_of(stored)
    if payload is not None and len(payload) <= most:
        twin = _twin(payload)
        if type(twin) is type(error) and str(twin) == str(error):
            return payload, error
    stored = StoredError(stored.module, stored.name, stored.text, None)
    failed = _step_failed(stored, path)
    failed.__cause__ = error
    return _encode(stored), failed


def decode_error(payload: bytes, path: str) -> BaseException:
    """A stored exception, to be raised."""
    try:
        stored = _decode(payload)
    except msgspec.DecodeError:
        raise Corrupt(f"the recorded error of a step does not decode step={path}") from None
    return _twin(payload) or _step_failed(stored, path)


def type_name(error: BaseException) -> str:
    """The class of an exception: all that is shown where payloads are not."""
    return type(error).__qualname__[:200]


def _stored(error: BaseException) -> StoredError:
    kind = type(error)
    text = str(error).encode("utf-8", "replace").decode()[:_TEXT_MAX]
    args: list[Any] | None = None
    state: dict[str, Any] = {}
    hint: str | None = None
    try:
        if isinstance(error, HoldfastError):
            args, hint = [error.message], error.hint
        else:
            made_of = error.__reduce__()
            if isinstance(made_of, tuple) and made_of[0] is kind:
                args = list(made_of[1])
                state = _data_of(made_of[2] if len(made_of) > 2 else None)
    except Exception:  # a class with a __reduce__ of its own
        args = None
    return StoredError(kind.__module__, kind.__qualname__, text, args, state, hint)


def _data_of(state: object) -> dict[str, Any]:
    """Attributes that can be stored."""
    items = state.items() if isinstance(state, dict) else ()
    return {
        name: value
        for name, value in items
        if isinstance(name, str) and not name.startswith("_") and _payload_of(value) is not None
    }


def _payload_of(value: object) -> bytes | None:
    try:
        return _encode(value)
    except Exception:  # whatever an object of the program's own does when it is encoded
        return None


def _twin(payload: bytes) -> BaseException | None:
    """The exception that these bytes come to; None if its class cannot be made of them."""
    try:
        return _made(_decode(payload))
    except Exception:  # whatever an exception's class does when it is made
        return None


def _made(stored: StoredError) -> BaseException | None:
    """The exception, if its class is here and can be made of what is stored."""
    kind = _class_at(stored.module, stored.name)
    if kind is None or stored.args is None:
        return None
    named = {} if stored.hint is None else {"hint": stored.hint}
    error = kind(*stored.args, **named)
    error.__dict__.update((name, value) for name, value in stored.state.items() if not name.startswith("_"))
    return error


def _class_at(module: str, name: str) -> type[Exception] | None:
    """A loaded exception that says itself that it is there: no alias, and never by `getattr`, which may run code."""
    found: object = sys.modules.get(module)
    for part in name.split("."):
        if not isinstance(found, ModuleType | type):
            return None
        home = type if isinstance(found, type) else ModuleType  # not a custom class, with its own lookup
        found = home.__getattribute__(found, "__dict__").get(part)
    if not (isinstance(found, type) and Exception in type.__getattribute__(found, "__mro__")):
        return None
    kind = cast("type[Exception]", found)
    return kind if (kind.__module__, kind.__qualname__) == (module, name) else None


def _step_failed(stored: StoredError, path: str) -> StepFailed:
    name = stored.name if stored.module == "builtins" else f"{stored.module}.{stored.name}"
    return StepFailed(
        f"a step raised {name}: {stored.text} step={path}",
        path=path,
        type_name=name,
        hint="its class cannot be made again from its arguments, or is not imported here",
    )
