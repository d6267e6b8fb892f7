"""Values of steps as bytes: what goes into a journal, and what a program gets.

Values are MessagePack by msgspec, never pickle: what can be stored is data (scalars, lists, dictionaries, dates,
dataclasses, msgspec Structs, attrs classes, pydantic models), and reading it runs no code of the writer's. A value
comes back as the type that the step's function says it returns, or as `returns=` says; without either as plain data:
lists for tuples, text for UUIDs. A program gets the same value on its first run as on every later one, because on the
first run, too, it gets what the stored bytes come to.

A *fingerprint* is the bytes of what a step is called with, in one order whatever the order of keys was. Arguments that
are no data (a connection, a client) count by their type alone.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from inspect import CO_COROUTINE
from types import CodeType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from holdfast.errors import Corrupt, Invalid
from holdfast.model.typed_decoding import make_known

_KNOWN_MAX = 4_096
_PLAIN = frozenset({bool, int, float, str, bytes})
_NONE = b"\xc0"


def _plain_data(value: object) -> object:
    """What msgspec does not know: pydantic's models, by the verb that they have for it."""
    dump = getattr(value, "model_dump", None)
    if dump is None or isinstance(value, type):
        raise NotImplementedError(f"{type(value).__qualname__} is no data")
    return dump(mode="json")


def _made_of(wanted: type, data: object) -> object:
    validate = getattr(wanted, "model_validate", None)
    if validate is not None:
        return validate(data)
    if isinstance(data, wanted):
        return data
    raise NotImplementedError(f"{wanted.__qualname__} cannot be decoded from data")


def _by_type(value: object) -> object:
    dump = getattr(value, "model_dump", None)
    if dump is not None and not isinstance(value, type):
        return dump(mode="json")
    kind = value if isinstance(value, type) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


_encode = msgspec.msgpack.Encoder(enc_hook=_plain_data).encode
_encode_arguments = msgspec.msgpack.Encoder(enc_hook=_by_type, order="deterministic").encode


class Codec:
    """Values of one type, both ways."""

    __slots__ = ("_decode", "wanted")

    def __init__(self, wanted: Any) -> None:
        self.wanted = wanted
        make_known(wanted)
        self._decode = msgspec.msgpack.Decoder(wanted, dec_hook=_made_of).decode

    def encode(self, value: object, path: str) -> tuple[bytes, Any]:
        """The bytes of a value, and the value as every later run will see it; nothing (None) is always a value."""
        if value is None:
            return _NONE, None
        try:
            payload = _encode(value)
        except Exception as error:
            raise Invalid(
                f"the result of this step cannot be stored: {_reason(error)} step={path}",
                hint="return data (numbers, text, lists, dictionaries, dataclasses, Structs), or nothing",
            ) from error
        kind = type(value)
        if kind in _PLAIN and (self.wanted is Any or self.wanted is kind):
            return payload, value
        try:
            return payload, self._decode(payload)
        except Exception as error:
            raise Invalid(
                f"the result of this step is not of its declared type: {_reason(error)} step={path}",
                hint="correct the function's annotation, or say returns=…",
            ) from error

    def decode(self, payload: bytes, path: str) -> Any:
        """A stored value."""
        if payload == _NONE:
            return None
        try:
            return self._decode(payload)
        except msgspec.ValidationError as error:
            raise Invalid(
                f"what was recorded of this step is not what it returns now: {_reason(error)} step={path}",
                hint="keep the type that the execution began with, or mark the change with ctx.version(…)",
            ) from error
        except msgspec.DecodeError:
            raise Corrupt(f"the recorded result of a step does not decode step={path}") from None
        except Exception as error:
            raise Invalid(
                f"what was recorded of this step cannot be made into what it returns: {_reason(error)} step={path}",
                hint="keep the type that the execution began with, or mark the change with ctx.version(…)",
            ) from error


PLAIN = Codec(Any)


class Function(NamedTuple):
    """What is known of a step's function."""

    is_async: bool
    codec: Codec


_functions: dict[CodeType, Function] = {}
_codecs: dict[Any, Codec] = {Any: PLAIN}


def function_of(fn: Callable[..., Any]) -> Function:
    """Whether a function is a coroutine function, and what it returns."""
    code = getattr(fn, "__code__", None)
    known = _functions.get(code) if code is not None else None
    if known is None:
        known = _examined(fn)
        if code is not None:
            if len(_functions) >= _KNOWN_MAX:
                _functions.clear()
            _functions[code] = known
    return known


def codec_of(wanted: Any) -> Codec:
    """How values of a type are stored."""
    try:
        known = _codecs.get(wanted)
        if known is None:
            if len(_codecs) >= _KNOWN_MAX:
                _codecs.clear()
            known = _codecs[wanted] = Codec(wanted)
    except TypeError as error:
        raise Invalid(
            f"values of this type cannot be stored: {error}"[:300], hint="say returns=… with a type that can be"
        ) from error
    return known


_TOKEN = re.compile(rb"(hfp1_[A-Za-z0-9_-]{42})[A-Za-z0-9_-]{44}")
"""A promise's token: what follows execution and promise is a secret of its own for each run."""


def fingerprint(args: tuple[Any, ...], kwargs: dict[str, Any], path: str) -> bytes:
    """The bytes of what a step is called with; of a promise's token only whose it is, since each run has another."""
    if not args and not kwargs:
        return b""
    try:
        return _TOKEN.sub(rb"\1", _encode_arguments((args, kwargs)))
    except Exception as error:
        raise Invalid(
            f"the arguments of this step have no fingerprint: {_reason(error)} step={path}",
            hint="give fingerprint=… with what should be compared on a later run",
        ) from error


def given_fingerprint(given: object, path: str) -> bytes:
    """What a caller wants to be compared instead of the arguments."""
    return b"=" + fingerprint((given,), {}, path)


def _examined(fn: Callable[..., Any]) -> Function:
    while isinstance(fn, partial):
        fn = fn.func
    if not callable(fn):
        raise Invalid("a step is a function", hint="ctx.step('charge', charge, order)")
    inner = fn if hasattr(fn, "__code__") else type(fn).__call__
    code = getattr(inner, "__code__", None)
    is_async = code is not None and bool(code.co_flags & CO_COROUTINE)
    return Function(is_async, codec_of(_returned(inner)))


def _returned(fn: Callable[..., Any]) -> Any:
    """The type that a function says it returns."""
    try:
        wanted = get_type_hints(fn).get("return", Any)
    except Exception:  # names that are only there for type checkers, builtins without annotations
        return Any
    if get_origin(wanted) in (Awaitable, Coroutine):
        wanted = get_args(wanted)[-1]
    return Any if wanted is object else wanted


def _reason(error: Exception) -> str:
    """What went wrong, without the value."""
    if isinstance(error, (msgspec.ValidationError, NotImplementedError)):
        return str(error)[:200]
    return type(error).__name__ if not isinstance(error, (TypeError, OverflowError)) else str(error)[:200]
