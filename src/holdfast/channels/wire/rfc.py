"""The dialect of LIP-109, as `@waku/sds` speaks it: its wire format, its filters and its repair delays.

    SdsMessage     1 sender · 2 id · 3 channel · 10 Lamport time · 11 causal history … · 12 filter · 13 repair …
                   20 content
    HistoryEntry   1 id · 2 retrieval hint · 3 sender

What is empty or None is not written. Reading takes everything for optional, but a message with neither content nor
Lamport time is none. Without a Lamport time it is ephemeral, without content it is a sync message.

The reference implementation ignores wire types, reads groups and field number 0, takes a truncated Lamport time for a
smaller one and reads an entry beyond its end: here these are refused. Everything else that it accepts is accepted.
A numeric field 2 is refused as well, so no message of nim-sds is ever taken for one of this format.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from holdfast.channels.wire.bloom_filters import RFC_FLAVOUR, ReceivedBloom, RollingBloom, read_rfc
from holdfast.channels.wire.dialect import Dialect, DialectName
from holdfast.channels.wire.hashing import javascript_bytes
from holdfast.channels.wire.message import SdsMessage
from holdfast.channels.wire.protobuf import HINT, UINT64_MAX, varint
from holdfast.channels.wire.wire_fields import (
    Layout,
    check_size,
    entry_fields,
    id_field,
    read_bloom,
    read_content,
    read_id,
    take_apart,
)
from holdfast.errors import Invalid

_SENDER, _ID, _CHANNEL, _LAMPORT, _CAUSES, _BLOOM, _REQUESTS, _CONTENT = 0x0A, 0x12, 0x1A, 0x50, 0x5A, 0x62, 0x6A, 0xA2
_LAYOUT = Layout(
    scalars=(_SENDER, _ID, _CHANNEL, _LAMPORT, _BLOOM, _CONTENT),
    causal_history=_CAUSES,
    repair_request=_REQUESTS,
    strict=True,
)


class RfcDialect:
    """`Dialect` of LIP-109."""

    name: DialectName = "rfc"
    clock_unit_ms = 1
    ticks_on_receipt = False
    is_sorted = True
    carries_ephemeral = True
    acks_needed = 2
    response_window_ms = 120_000

    def encode(self, message: SdsMessage) -> bytes:
        """The message's bytes; Invalid if it says nothing at all, or is over a limit."""
        check_size(message)
        content, bloom = message.content, message.bloom_filter
        return b"".join(
            (
                id_field(b"\x0a", message.sender_id) if message.sender_id else b"",
                id_field(b"\x12", message.message_id) if message.message_id else b"",
                id_field(b"\x1a", message.channel_id) if message.channel_id else b"",
                _lamport_field(message),
                entry_fields(b"\x5a", message.causal_history, empty_ids=False),
                b"\x62" + varint(len(bloom)) if bloom else b"",
                bloom,
                entry_fields(b"\x6a", message.repair_request, empty_ids=False),
                b"\xa2\x01" + varint(len(content)) if content else b"",
                content,
            )
        )

    def write(self, message: SdsMessage) -> tuple[bytes, None]:
        """The same; messages are kept in nim's format."""
        return self.encode(message), None

    def read(self, data: bytes) -> tuple[SdsMessage, None]:
        """The message in these bytes, which is kept in nim's format."""
        return self.decode(data), None

    def decode(self, data: bytes) -> SdsMessage:
        """The message in these bytes; Invalid when there is none."""
        places, causes, requests, _ = take_apart(data, _LAYOUT)
        content = read_content(data, *places.get(_CONTENT, (0, 0)))
        if not content and _LAMPORT not in places:
            raise Invalid("a message has neither content nor a Lamport time", hint=HINT)
        return SdsMessage(
            message_id=read_id(data, *places.get(_ID, (0, 0))),
            channel_id=read_id(data, *places.get(_CHANNEL, (0, 0))),
            lamport=places[_LAMPORT][0] if _LAMPORT in places else None,
            content=content,
            sender_id=read_id(data, *places.get(_SENDER, (0, 0))),
            causal_history=causes,
            bloom_filter=read_bloom(data, *places.get(_BLOOM, (0, 0))),
            repair_request=requests,
        )

    def new_filter(self, capacity: int, error_rate: float) -> RollingBloom:
        """An empty filter for so many ids."""
        return RollingBloom(RFC_FLAVOUR, capacity, error_rate)

    def read_filter(self, data: bytes, capacity: int, error_rate: float) -> ReceivedBloom | None:
        """A filter as received, which is taken to have our own parameters."""
        return read_rfc(data, capacity, error_rate)

    def request_delay_ms(self, participant: str, message_id: str, t_min: int, t_max: int) -> int:
        """T_req: spread over the window by participant and message."""
        if t_max <= t_min:
            return t_min
        return t_min + _hash(participant, message_id) % (t_max - t_min)

    def response_delay_ms(self, participant: str, sender: str, message_id: str, t_max: int) -> int:
        """T_resp: the sender answers at once, others by their distance from it."""
        if t_max <= 0:
            return 0
        return (_hash(participant) ^ _hash(sender)) * _hash(message_id) % t_max

    def responds(self, participant: str, sender: str, message_id: str, groups: int) -> bool:
        """Whether participant and sender fall into the same group for this message; nobody answers without a sender."""
        if not sender or groups <= 1:
            return bool(sender)
        return _hash(participant, message_id) % groups == _hash(sender, message_id) % groups


def _lamport_field(message: SdsMessage) -> bytes:
    lamport = message.lamport
    if lamport is None:
        if not message.content:
            raise Invalid("an ephemeral message has no content", hint="give it content, or a Lamport time")
        return b""
    if not 0 <= lamport <= UINT64_MAX:
        raise Invalid(f"a Lamport time is out of range lamport={lamport} limit={UINT64_MAX}", hint="start from 0")
    return b"\x50" + varint(lamport)


def _hash(*parts: str) -> int:
    """The first eight bytes of SHA-256; joined without a separator, as the reference implementation does."""
    return int.from_bytes(sha256(javascript_bytes(*parts)).digest()[:8], "big")


RFC: Final[Dialect] = RfcDialect()
