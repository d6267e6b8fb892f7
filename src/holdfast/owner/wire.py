"""What travels over the socket: frames, their limits, and the small messages in them. Values and their bytes, no I/O.

A frame is a header of 16 bytes, a *head* (MessagePack) and a *body* (raw bytes, which the head describes):

    kind u8 ‖ 1 u8 ‖ 0 u16 ‖ bytes of the head u32 ‖ bytes of the body u64        little-endian

Every size is checked against what its kind may have before anything is allocated or decoded. What does not fit is
`BadFrame`: its sender is disconnected. Format 0014 has all of it.
"""

from __future__ import annotations

from struct import Struct
from typing import Annotated, NamedTuple

import msgspec

from holdfast.errors import HoldfastError, Unavailable
from holdfast.journal.sessions.outcomes import Outcomes, Refusal

PROTOCOL = 1
"""What both sides must speak. Any change of a frame or of what one means makes it another."""

HELLO, WELCOME, REFUSED, GROUP, ANSWER, CALL, RESULT, EVENT, BYE, CLOSING, CHALLENGE, PROOF = range(1, 13)

HEADER = Struct("<BBHIQ")
_FORM = 1
SESSION_BYTES = 16
NONCE_BYTES = 32
HELLO_BYTES_MAX = 64 * 1024
HEAD_BYTES_MAX = 16 * 2**20
CALL_BYTES_MAX = 64 * 2**20

_Short = Annotated[str, msgspec.Meta(max_length=256)]
Bytes16 = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
Bytes32 = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class BadFrame(Exception):
    """The other end does not speak this protocol; the text says why, without a byte of what was sent."""


class Header(NamedTuple):
    """The beginning of a frame, checked."""

    kind: int
    head: int
    body: int

    @property
    def size(self) -> int:
        """Bytes of the whole frame."""
        return HEADER.size + self.head + self.body


class Hello(msgspec.Struct, frozen=True):
    """The first frame of a client. A map, so that every later version can still read what it needs to refuse one."""

    protocol: int
    version: _Short
    log: Bytes16
    session: Bytes16
    pid: int
    settings: dict[_Short, bytes]
    """A digest of each section of the settings."""
    nonce: Bytes32
    """Fresh random bytes of the client, for this connection."""
    keyed: bool = False
    """Whether the client has keys, and so wants to be asked for a proof."""
    shares: bool = True
    """Whether it shares the log, and may own it next; else it is a caller, which only asks."""


class Challenge(msgspec.Struct, frozen=True):
    """The owner's answer to a hello in a log with keys."""

    nonce: Bytes32
    """Fresh random bytes of the owner, for this connection."""


class Proof(msgspec.Struct, frozen=True):
    """The client's answer to that."""

    proof: bytes
    """What only a holder of the key can make, of this session and both nonces."""


class Welcome(msgspec.Struct, frozen=True):
    """The owner's answer to it."""

    protocol: int
    version: _Short
    epoch: int
    last: int
    """The newest sequence of this session that the log knows; 0: none."""
    proof: bytes = b""
    """The same by the owner."""


class GroupAnswer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What became of a group."""

    sequence: int
    outcomes: Outcomes = ()
    error: Refusal | None = None
    """Why nothing of it was stored."""


class Call(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Something else that the owner is asked for; the body is the request."""

    number: int
    name: _Short


class Result(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What came of a call; the body is the answer."""

    number: int
    error: Refusal | None = None


class OwnerEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Something that the owner tells without being asked; the body says more."""

    name: _Short


class WaitingEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event that waits for a client over HTTP to ask for it."""

    number: int
    name: _Short
    body: bytes


class WaitingEvents(msgspec.Struct, frozen=True, array_like=True):
    """What such a client gets at once."""

    peer: bytes
    """Who it is to the owner: where that changes, events may have been lost."""
    events: tuple[WaitingEvent, ...]


_encode = msgspec.msgpack.Encoder().encode
_hello = msgspec.msgpack.Decoder(Hello).decode
_challenge = msgspec.msgpack.Decoder(Challenge).decode
_proof = msgspec.msgpack.Decoder(Proof).decode
_welcome = msgspec.msgpack.Decoder(Welcome).decode
_answer = msgspec.msgpack.Decoder(GroupAnswer).decode
_call = msgspec.msgpack.Decoder(Call).decode
_result = msgspec.msgpack.Decoder(Result).decode
_event = msgspec.msgpack.Decoder(OwnerEvent).decode
_error = msgspec.msgpack.Decoder(Refusal).decode
_DECODERS = {
    HELLO: _hello, WELCOME: _welcome, REFUSED: _error, ANSWER: _answer, CALL: _call, RESULT: _result, EVENT: _event,
    CHALLENGE: _challenge, PROOF: _proof,
}  # fmt: skip


def refusal(error: BaseException) -> Refusal:
    """An error as a value; of a defect only its kind is said, because its text may hold anything."""
    if isinstance(error, HoldfastError):
        return Refusal.of(error)
    return Refusal.of(Unavailable(f"the owner of the log failed: {type(error).__name__}", hint="see what it logged"))


def frame(kind: int, head: msgspec.Struct | None = None, body: bytes | memoryview = b"") -> list[bytes | memoryview]:
    """A frame as buffers, to be sent one behind the other; the body is not copied."""
    begin = begin_frame(kind, head, len(body))
    return [begin, body] if len(body) else [begin]


def begin_frame(kind: int, head: msgspec.Struct | None, body_bytes: int) -> bytes:
    """Header and head of a frame whose body has so many bytes."""
    packed = b"" if head is None else _encode(head)
    return HEADER.pack(kind, _FORM, 0, len(packed), body_bytes) + packed


def header(buffer: bytes | bytearray | memoryview, at: int, limits: Limits) -> Header:
    """The header that begins here, if a frame may have it; raises BadFrame."""
    kind, form, zero, head, body = HEADER.unpack_from(buffer, at)
    if form != _FORM or zero:
        raise BadFrame("this is no frame")
    most = limits.get(kind)
    if most is None:
        raise BadFrame(f"a frame of kind {kind} has no place here")
    if head > most[0] or body > most[1]:
        raise BadFrame(f"a frame is too large kind={kind} head={head} body={body}")
    return Header(kind, head, body)


def decoded(kind: int, head: memoryview | bytes) -> msgspec.Struct:
    """The message in a head; raises BadFrame."""
    try:
        found: msgspec.Struct = _DECODERS[kind](head)
        return found
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyError, ValueError) as error:
        raise BadFrame(f"a head does not decode kind={kind}") from error


Limits = dict[int, tuple[int, int]]
"""How many bytes the head and the body of each kind of frame may have; a kind that is not named may not come."""

BEFORE_HELLO: Limits = {HELLO: (HELLO_BYTES_MAX, 0)}
BEFORE_PROOF: Limits = {PROOF: (HELLO_BYTES_MAX, 0)}
BEFORE_WELCOME: Limits = dict.fromkeys((WELCOME, REFUSED, CHALLENGE), (HELLO_BYTES_MAX, 0))
FROM_OWNER: Limits = {
    ANSWER: (HEAD_BYTES_MAX, 0),
    RESULT: (HELLO_BYTES_MAX, CALL_BYTES_MAX),
    EVENT: (HELLO_BYTES_MAX, CALL_BYTES_MAX),
    CLOSING: (0, 0),
}


def from_client(group_bytes_max: int) -> Limits:
    """What a client may send, once it was welcomed."""
    return {GROUP: (HEAD_BYTES_MAX, group_bytes_max), CALL: (HELLO_BYTES_MAX, CALL_BYTES_MAX), BYE: (0, 0)}
