"""The dialect of nim-sds: its wire format, its filters and its repair delays.

    SdsMessage     1 id · 2 Lamport time · 3 causes … · 4 channel · 5 content · 6 filter · 7 sender · 13 repair …
    HistoryEntry   1 id · 2 retrieval hint · 3 sender

Fields 1, 2, 4, 5 and 6 are always written, the others unless they are empty, in this order. Reading needs 1, 2 and 4,
and 1 of an entry: content and filter are left out by nim-sds 0.4 when they are empty. A field of another type than it
should have counts as absent, of several the last one counts. There are no ephemeral messages.

Lamport times are 64-bit and signed there, and one of 2⁶³ or more ends the process: it is refused. Ids are any bytes.
"""

from __future__ import annotations

from typing import Final

from holdfast.channels.keeping.stored_message import NO_FILTER, StoredMessage
from holdfast.channels.wire.bloom_filters import NIM_FLAVOUR, ReceivedBloom, RollingBloom, magnitude, read_nim
from holdfast.channels.wire.dialect import Dialect, DialectName
from holdfast.channels.wire.hashing import farmhash64
from holdfast.channels.wire.message import SdsMessage, raw
from holdfast.channels.wire.protobuf import HINT, varint
from holdfast.channels.wire.wire_fields import (
    Layout,
    Places,
    check_size,
    entry_fields,
    id_field,
    read_bloom,
    read_content,
    read_id,
    take_apart,
)
from holdfast.errors import Invalid

LAMPORT_MAX = 2**63 - 1

_ID, _LAMPORT, _CAUSES, _CHANNEL, _CONTENT, _BLOOM, _SENDER, _REQUESTS = 0x0A, 0x10, 0x1A, 0x22, 0x2A, 0x32, 0x3A, 0x6A
_LAYOUT = Layout(
    scalars=(_ID, _LAMPORT, _CHANNEL, _CONTENT, _BLOOM, _SENDER),
    causal_history=_CAUSES,
    repair_request=_REQUESTS,
    strict=False,
)


class NimDialect:
    """`Dialect` of nim-sds."""

    name: DialectName = "nim"
    clock_unit_ms = 1000
    ticks_on_receipt = True
    is_sorted = False
    carries_ephemeral = False
    acks_needed = 1
    response_window_ms = 300_000

    def encode(self, message: SdsMessage) -> bytes:
        """The message's bytes; Invalid if it is ephemeral, or over a limit."""
        return self.write(message)[0]

    def write(self, message: SdsMessage) -> tuple[bytes, StoredMessage]:
        """The same, and where in it is what is kept."""
        check_size(message)
        content, bloom = message.content, message.bloom_filter
        head = b"".join((id_field(b"\x0a", message.message_id), b"\x10", varint(_sendable(message.lamport))))
        causes = entry_fields(b"\x1a", message.causal_history, empty_ids=True)
        channel = id_field(b"\x22", message.channel_id)
        before = b"".join((head, causes, channel, b"\x2a", varint(len(content)), content))
        behind = id_field(b"\x3a", message.sender_id) if message.sender_id else b""
        if message.repair_request:
            behind += entry_fields(b"\x6a", message.repair_request, empty_ids=True)
        data = b"".join((before, b"\x32", varint(len(bloom)), bloom, behind))
        return data, StoredMessage(before + NO_FILTER + behind, len(head), len(head) + len(causes))

    def decode(self, data: bytes) -> SdsMessage:
        """The message in these bytes; Invalid when there is none."""
        return self._read(data)[0]

    def read(self, data: bytes) -> tuple[SdsMessage, StoredMessage | None]:
        """The same, and where in them is what is kept, if they are written as everybody writes them."""
        message, places, named = self._read(data)
        return message, _written(data, message, places, named)

    def _read(self, data: bytes) -> tuple[SdsMessage, Places, int]:
        places, causes, requests, named = take_apart(data, _LAYOUT)
        if _ID not in places or _LAMPORT not in places or _CHANNEL not in places:
            raise Invalid("a message lacks its id, its channel or its Lamport time", hint=HINT)
        lamport = places[_LAMPORT][0]
        if lamport > LAMPORT_MAX:
            raise Invalid(f"a Lamport time is out of range lamport={lamport} limit={LAMPORT_MAX}", hint=HINT)
        message = SdsMessage(
            message_id=read_id(data, *places[_ID]),
            channel_id=read_id(data, *places[_CHANNEL]),
            lamport=lamport,
            content=read_content(data, *places.get(_CONTENT, (0, 0))),
            sender_id=read_id(data, *places.get(_SENDER, (0, 0))),
            causal_history=causes,
            bloom_filter=read_bloom(data, *places.get(_BLOOM, (0, 0))),
            repair_request=requests,
        )
        return message, places, named

    def new_filter(self, capacity: int, error_rate: float) -> RollingBloom:
        """An empty filter for so many ids."""
        return RollingBloom(NIM_FLAVOUR, capacity, error_rate)

    def read_filter(self, data: bytes, capacity: int, error_rate: float) -> ReceivedBloom | None:
        """A filter as received; it brings its own parameters."""
        return read_nim(data)

    def request_delay_ms(self, participant: str, message_id: str, t_min: int, t_max: int) -> int:
        """T_req: spread over the window by participant and message."""
        if t_max <= t_min:
            return t_min
        return t_min + _hash(participant, message_id) % (t_max - t_min)

    def response_delay_ms(self, participant: str, sender: str, message_id: str, t_max: int) -> int:
        """T_resp: the sender answers at once, others by their distance from it."""
        if t_max <= 0:
            return 0
        distance = magnitude(farmhash64(raw(participant)) ^ farmhash64(raw(sender)))
        return distance * _hash(message_id) % t_max

    def responds(self, participant: str, sender: str, message_id: str, groups: int) -> bool:
        """Whether participant and sender fall into the same group for this message."""
        return groups <= 1 or _hash(participant, message_id) % groups == _hash(sender, message_id) % groups


def _written(data: bytes, message: SdsMessage, places: Places, named: int) -> StoredMessage | None:
    """Where what is kept of a message is, if each field lies behind the one before it: then there is nothing besides.

    With repair requests, or anything long, it is not worth the trouble.
    """
    if len(places) < len(_LAYOUT.scalars) or message.repair_request:
        return None
    (_, id_end), (lamport, causes_at), (channel, channel_end) = places[_ID], places[_LAMPORT], places[_CHANNEL]
    (content, content_end), (bloom, bloom_end), (sender, end) = places[_CONTENT], places[_BLOOM], places[_SENDER]
    if (
        places[_ID][0] == 2
        and causes_at == id_end + 1 + len(varint(lamport))
        and channel - 2 == causes_at + named + 2 * len(message.causal_history)
        and content == channel_end + 1 + len(varint(content_end - content))
        and bloom == content_end + 1 + len(varint(bloom_end - bloom))
        and sender == bloom_end + 2
        and end == len(data)
    ):
        return StoredMessage(data[:content_end] + NO_FILTER + data[bloom_end:], causes_at, channel - 2)
    return None


def _sendable(lamport: int | None) -> int:
    if lamport is None:
        raise Invalid("nim-sds has no ephemeral messages", hint='send it with a Lamport time, or use the dialect "rfc"')
    if not 0 <= lamport <= LAMPORT_MAX:
        raise Invalid(f"a Lamport time is out of range lamport={lamport} limit={LAMPORT_MAX}", hint="start from 0")
    return lamport


def _hash(*parts: str) -> int:
    """Joined without a separator, as the reference implementation does."""
    return magnitude(farmhash64(b"".join(map(raw, parts))))


NIM: Final[Dialect] = NimDialect()
