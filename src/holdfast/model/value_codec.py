"""The values of a topic's records, and the payloads that they are stored as: JSON, text, MessagePack.

    log.topic("orders", codec="json")       topic.append({"id": 1})         record.value == {"id": 1}

| | where |
|---|---|
| its name is recorded | with the topic: its row in the journal, its document at a root, the footers of its segments |
| a value becomes bytes | in the caller's thread, before anything is queued: what is refused is refused there |
| bytes become a value | when `record.value` is asked for; `record.payload` is always there |
| what travels and is stored | bytes, as in any other topic: keys, digests, entries and transactions know no codec |

A type (of msgspec, pydantic, a dataclass, anything that msgspec decodes) is JSON, and is recorded as that: the type is
the reader's. Bytes that are appended are a payload that is encoded already, and are only checked.

What is appended can be read again: each payload is decoded once before it is taken. Where that gives another value, it
is by what JSON has no word for. Tuples come back as lists, times and UUIDs as text, as msgspec writes them; NaN,
infinities, bytes and names that are no text are refused.

What a client sends is checked again by its server. So a payload that does not decode comes from a process of the same
user that wrote bytes past this module, or the reader's type is another one than the writer's: Undecodable, with the
place of the record. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Any, Literal, TypeAlias

import msgspec

from holdfast.errors import Invalid, Undecodable, other_version
from holdfast.model.record import Record
from holdfast.model.typed_decoding import make_known

JSON, TEXT, MSGPACK = "json", "text", "msgpack"
CODECS = (JSON, TEXT, MSGPACK)
CodecName: TypeAlias = Literal["json", "text", "msgpack"]

_NAMED = ", ".join(CODECS)
_FAILURES = (ValueError, TypeError, OverflowError, RecursionError)
"""How decoders say no: msgspec's errors, pydantic's, and those of Unicode, are ValueErrors."""
_PAYLOADS = (bytes, bytearray, memoryview)
_LEAVES = (str, int, float, bool, type(None))
_SEVERAL = (list, tuple, set, frozenset)


class ValueCodec:
    """One way from values to payloads and back; a value itself, which can be compared, hashed and pickled."""

    __slots__ = ("_decode", "_encode", "kind", "name")

    def __init__(self, name: str, kind: Any = None) -> None:
        """`kind` is the type that values are read as; None: as they come."""
        self.name = name
        self.kind = kind
        self._encode, self._decode = _functions(name, kind)

    def encode(self, value: object) -> bytes:
        """The payload of a value, or a payload itself; Invalid where it could not be read again."""
        if isinstance(value, Record):
            raise Invalid("a record is not a value", hint="append its value; append_batch takes records, too")
        is_payload = isinstance(value, _PAYLOADS)
        try:
            payload = bytes(value) if isinstance(value, _PAYLOADS) else self._encode(value)
            found = self._decode(payload)
        except _FAILURES as error:
            raise self._refused(error, is_payload=is_payload) from error
        if not is_payload and self.name == JSON and not _are_equal(found, value):
            self._check_lost(value)
        return payload

    def value_of(self, record: Record) -> Any:
        """The value of a record; raises Undecodable, with its place."""
        try:
            return self._decode(record.payload)
        except _FAILURES as error:
            raise Undecodable(
                f"the payload is not {self}", topic=record.topic, partition=record.partition, offset=record.offset
            ) from error

    def as_json(self, payload: bytes) -> msgspec.Raw | msgspec.UnsetType:
        """The value of a payload as JSON in one line, for those who print it; UNSET where it has none."""
        try:
            return msgspec.Raw(msgspec.json.encode(self._decode(payload)))
        except _FAILURES:
            return msgspec.UNSET

    def from_json(self, text: bytes) -> bytes:
        """The payload of a value that somebody wrote as JSON."""
        try:
            value = msgspec.json.decode(text)
        except _FAILURES as error:
            raise Invalid("a value is not JSON", hint='for instance {"id": 1}') from error
        return self.encode(value)

    def _check_lost(self, value: object) -> None:
        """What was written is not what is read: refuse what JSON has no word for."""
        try:
            _require_json(value, self.kind)
        except _FAILURES as error:
            raise self._refused(error, is_payload=False) from error

    def _refused(self, error: Exception, *, is_payload: bool) -> Invalid:
        if is_payload:
            return Invalid(
                f"these bytes are not {self}",
                hint="append the value itself; bytes are taken as a payload that is encoded already",
            )
        if isinstance(error, _Lost):
            return Invalid(f"the value is not {self}: {error}", hint=error.hint)
        why = _why(error)
        return Invalid(f"the value is not {self}{why and ': '}{why}", hint=self._hint)

    @property
    def _hint(self) -> str:
        return _HINTS[self.name] if self.kind is None else "give what its fields say"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ValueCodec) and (self.name, self.kind) == (other.name, other.kind)

    def __hash__(self) -> int:
        return hash((self.name, repr(self.kind)))

    def __reduce__(self) -> tuple[object, ...]:
        return ValueCodec, (self.name, self.kind)

    def __str__(self) -> str:
        return _SPOKEN[self.name] if self.kind is None else f"JSON of {getattr(self.kind, '__name__', self.kind)}"

    def __repr__(self) -> str:
        return f"ValueCodec({self.name!r})" if self.kind is None else f"ValueCodec({self.name!r}, {self.kind!r})"


class ValueRecord(Record, frozen=True, eq=False, kw_only=True):
    """A record of a topic with a codec. Its payload is what is stored; its value is decoded when it is asked for."""

    codec: ValueCodec

    @classmethod
    def of(cls, record: Record, codec: ValueCodec) -> ValueRecord:
        """The same record."""
        return cls(
            record.payload,
            record.key,
            record.kind,
            record.headers,
            record.time,
            record.offset,
            record.partition,
            record.topic,
            codec=codec,
        )

    @property
    def value(self) -> Any:
        """What the payload stands for; Undecodable where it is something else, and `payload` has it then, too."""
        return self.codec.value_of(self)


def codec_of(given: object) -> ValueCodec | None:
    """What a caller gives for a codec: a name, a type, that of another topic, or None for what the topic has."""
    if given is None or isinstance(given, ValueCodec):
        return given
    if isinstance(given, str):
        if given not in CODECS:
            raise Invalid(f"unknown codec={given!r}", hint=f"{_NAMED}, or a type; bytes need none")
        return ValueCodec(given)
    if given in (bytes, str):
        raise Invalid("bytes and text are no types of JSON", hint="leave codec out for bytes; codec='text' for text")
    return ValueCodec(JSON, given)


def recorded_codec(name: str) -> ValueCodec | None:
    """The codec that is recorded with a topic; None for bytes."""
    if name and name not in CODECS:
        raise other_version("topic", codec=name)
    return ValueCodec(name) if name else None


_SPOKEN = {JSON: "JSON", TEXT: "text", MSGPACK: "MessagePack"}
_HINTS = {
    JSON: "give what JSON has: text, numbers, true, false, None, lists, dictionaries; or a dataclass or msgspec.Struct",
    TEXT: "give str; for anything else the topic needs codec='json'",
    MSGPACK: "give what MessagePack has; integers have 64 bits",
}


def _functions(name: str, kind: Any) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    if name == TEXT:
        return _encode_text, bytes.decode
    if name == MSGPACK:
        return msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode
    if hasattr(kind, "model_validate_json"):
        return lambda value: _pydantic_json(kind, value), kind.model_validate_json
    make_known(kind)
    try:
        decode = msgspec.json.Decoder().decode if kind is None else msgspec.json.Decoder(kind).decode
    except (TypeError, ValueError, NameError) as error:
        raise Invalid(f"not a codec: {error}", hint=f"{_NAMED}, or a type that JSON is read as") from None
    return msgspec.json.Encoder().encode, decode


def _encode_text(value: object) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"it is {type(value).__name__}")
    return value.encode()


def _pydantic_json(kind: Any, value: object) -> bytes:
    model: Any = value if isinstance(value, kind) else kind.model_validate(value)
    encoded: bytes = model.model_dump_json().encode()
    return encoded


def _are_equal(found: Any, value: object) -> bool:
    try:
        return bool(found == value)
    except _FAILURES:  # a type has its own idea of it, or it is too deep
        return False


class _Lost(ValueError):
    """What would not come back, and what to do about it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def _require_json(value: object, kind: Any) -> None:
    """Raise _Lost at what JSON has no word for. Without recursion: a value may be deep."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, float) and not isfinite(one):
            raise _Lost("it has no NaN and no infinity", "give None, or have the topic in msgpack")
        if kind is None and isinstance(one, _PAYLOADS):  # a type may say that text is base64, or a name a number
            raise _Lost("it has no bytes", "give base64 as text, or have the topic in msgpack")
        if kind is None and isinstance(one, Mapping) and not all(isinstance(name, str) for name in one):
            raise _Lost("names are text", "make them so: {str(name): …}")
        left.extend(_inside(one))


def _inside(value: Any) -> Iterable[object]:
    """What a value is made of."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, _SEVERAL):
        return value
    if isinstance(value, _PAYLOADS) or type(value) in _LEAVES:
        return ()
    plain = value.model_dump() if hasattr(value, "model_dump") else msgspec.to_builtins(value)
    return () if type(plain) is type(value) else (plain,)


def _why(error: Exception) -> str:
    """What may be said of it: types and places, never what was found there."""
    text = str(error)
    if isinstance(error, RecursionError):
        return "it is too deep"
    if isinstance(error, UnicodeEncodeError):
        return "a text in it has lone surrogates"
    return text if isinstance(error, TypeError) or text.startswith("Expected ") else ""
