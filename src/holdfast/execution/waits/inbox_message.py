"""Messages between processes and their answers: values and their bytes. No I/O.

A message is a file whose name says when it was sent and what its id is; its answer has the same id. In a log with keys
both are encrypted and authenticated, each under a key of its own, and bound to log, id and direction: nobody without
the keyring can make one, read one, answer one, or pass one off as another. In a log without keys a file is believed if
it lies in the log's own folder and belongs to the log's user (`inbox.py`), who can write to the log anyway.

    magic "hfm1" ‖ MessagePack [key id, scheme, salt, commitment, body]     body: encrypted, or as it is
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from holdfast import errors
from holdfast.crypto.cipher import NotAuthentic
from holdfast.crypto.segment_key import MessageKeys, SegmentKeyFacts
from holdfast.errors import HoldfastError, Invalid

ID_BYTES = 16
MESSAGE, ANSWER = ".message", ".answer"
OVERHEAD_BYTES = 64 * 1024
"""What a file may have beside the value it carries."""

_MAGIC = b"hfm1"
_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{32})\.(?:message|answer)\Z")
_VERSION = 1


_Part = TypeVar("_Part")


class NotAMessage(Exception):
    """These bytes are no message for this log; the text says why, without a byte of them."""


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Something that the owner of a log is asked to do."""

    version: int
    id: bytes
    at_us: int
    action: str
    fields: dict[str, Any]


class InboxAnswer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What became of it: a value, or the kind and text of an error."""

    version: int
    id: bytes
    value: Any = None
    error: str = ""
    text: str = ""
    hint: str = ""

    def result(self) -> Any:
        """The value, or the error, raised."""
        if self.error:
            raise _KINDS.get(self.error, errors.Unavailable)(self.text, hint=self.hint)
        return self.value


class _Envelope(msgspec.Struct, frozen=True, array_like=True, gc=False):
    key_id: str
    scheme: str
    salt: bytes
    commitment: bytes
    body: bytes


_KINDS: dict[str, type[HoldfastError]] = {
    kind.__name__: kind
    for kind in (
        errors.Invalid,
        errors.NotFound,
        errors.Unavailable,
        errors.Full,
        errors.ExecutionError,
        errors.ExecutionCanceled,
        errors.PromiseRejected,
    )
}
"""Errors that another process raises as what they are; they need a text and a hint, and nothing else."""

_encoder = msgspec.msgpack.Encoder()
_envelopes = msgspec.msgpack.Decoder(_Envelope)
_messages = msgspec.msgpack.Decoder(Message)
_answers = msgspec.msgpack.Decoder(InboxAnswer)


def message(clock_us: int, random: bytes, action: str, fields: dict[str, Any]) -> Message:
    """A new message."""
    return Message(_VERSION, random, clock_us, action, fields)


def answer(to: Message, value: Any) -> InboxAnswer:
    """It was done."""
    return InboxAnswer(_VERSION, to.id, value)


def refusal(to: Message, error: HoldfastError) -> InboxAnswer:
    """It was not done."""
    lineage = (kind.__name__ for kind in type(error).__mro__)
    kind = next((name for name in lineage if name in _KINDS), errors.Unavailable.__name__)
    return InboxAnswer(_VERSION, to.id, None, kind, error.message, error.hint)


def file_name(about: Message, ending: str = MESSAGE) -> str:
    """The name of a message's file, or of its answer's; they sort by time."""
    return f"{max(0, about.at_us):016x}-{about.id.hex()}{ending}"


def name_parts(name: str) -> tuple[int, bytes] | None:
    """Time and id in a file's name; None if it is the name of something else."""
    found = _NAME.match(name)
    return None if found is None else (int(found[1], 16), bytes.fromhex(found[2]))


def encode(part: Message | InboxAnswer, keys: MessageKeys) -> bytes:
    """A file's bytes."""
    try:
        body = _encoder.encode(part)
    except (TypeError, ValueError, OverflowError) as error:
        raise Invalid(f"this cannot be sent: {error}", hint="values are what MessagePack has") from None
    key = keys.fresh()
    if key is None:
        return _MAGIC + _encoder.encode(_Envelope("", "", b"", b"", body))
    encrypted = bytes(key.encrypt(body, _bound(part.id, keys, is_answer=isinstance(part, InboxAnswer))))
    with_ = key.encrypted_with
    return _MAGIC + _encoder.encode(_Envelope(with_.key_id, with_.scheme, with_.salt, with_.commitment, encrypted))


def decode_message(content: bytes, name: str, keys: MessageKeys) -> Message:
    """The message in a file of this name; raises NotAMessage."""
    at_us, id_ = _parts(name)
    found = _decoded(_messages, _body(content, id_, keys, is_answer=False))
    if (found.version, found.id, found.at_us) != (_VERSION, id_, at_us):
        raise NotAMessage("it is not what its name says")
    return found


def decode_answer(content: bytes, to: Message, keys: MessageKeys) -> InboxAnswer:
    """The answer to a message; raises NotAMessage."""
    found = _decoded(_answers, _body(content, to.id, keys, is_answer=True))
    if (found.version, found.id) != (_VERSION, to.id):
        raise NotAMessage("it answers something else")
    return found


def _parts(name: str) -> tuple[int, bytes]:
    found = name_parts(name)
    if found is None:
        raise NotAMessage("its name is not a message's")
    return found


def _body(content: bytes, id_: bytes, keys: MessageKeys, *, is_answer: bool) -> bytes:
    if content[:4] != _MAGIC:
        raise NotAMessage("it does not begin as one")
    envelope = _decoded(_envelopes, content[4:])
    # Not what the file says about itself: whether it must be encrypted is known beforehand.
    if not keys.keyed:
        if envelope.scheme:
            raise NotAMessage("it is encrypted, and this log has no keys")
        return envelope.body
    encrypted_with = SegmentKeyFacts(envelope.key_id, envelope.scheme, envelope.salt, envelope.commitment)
    try:
        return keys.of(encrypted_with).decrypt(envelope.body, _bound(id_, keys, is_answer=is_answer))
    except (NotAuthentic, HoldfastError):
        raise NotAMessage("it was not made with this log's keys") from None


def _bound(id_: bytes, keys: MessageKeys, *, is_answer: bool) -> bytes:
    """What an encrypted body is bound to."""
    return (b"holdfast 1 answer|" if is_answer else b"holdfast 1 message|") + keys.log_id + id_


def _decoded(decoder: msgspec.msgpack.Decoder[_Part], body: bytes) -> _Part:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError):
        raise NotAMessage("it does not decode") from None
