"""How a channel's state is stored: protobuf, with an explicit version in every snapshot.

Version 1 is the one that nim-sds writes, too, and its snapshots are read. Ours have more fields, and less in some of
them: stored messages have no filter (19 KB each, and worth nothing later) and may be named instead of repeated; what
a message waits for is a bit for each of its causes; and it is kept whose filters knew a message, since when a message
waits, which ids count as met, the dialect, how much the filter holds, and the newest of the ids that are remembered
beyond history. Messages are stored in nim's wire format, whatever format their channel speaks.

A version that is not known is refused, and so is a snapshot in which anything does not decode: half a state is worse
than none. An application with snapshots of another version can teach `decode_meta` to read them (`migrations`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from functools import lru_cache
from typing import Literal, TypeVar

from holdfast.channels.keeping.snapshot import (
    BufferedMessage,
    ChannelData,
    ChannelMeta,
    HistoryUpdate,
    KnownMessage,
    RepairRequest,
    RepairResponse,
    UnacknowledgedMessage,
)
from holdfast.channels.wire.dialect import DialectName
from holdfast.channels.wire.message import HistoryEntry, SdsMessage, raw, text
from holdfast.channels.wire.nim import NIM
from holdfast.channels.wire.protobuf import delimited, fields, varint
from holdfast.channels.wire.wire_fields import read_entry, write_entry
from holdfast.errors import Corrupt, Invalid

VERSION = 1

Migration = Callable[[bytes], bytes]
"""From a snapshot of some version to one of a version that is known."""

_F1, _F2, _F3, _F4, _F5, _F6, _F7, _F8, _, _, _F11, _F12 = (bytes((number << 3 | 2,)) for number in range(1, 13))
_N9, _N10 = (bytes((number << 3,)) for number in (9, 10))
_N1, _N2, _N3, _N4 = (bytes((number << 3,)) for number in range(1, 5))
_ENCRYPTED = b"\x78\x01"
_BYTES = 2
_MET, _LOST = 0x3A, 0x5A

Value = TypeVar("Value")


# -- snapshots ------------------------------------------------------------------------------------------------


def encode_meta(meta: ChannelMeta, elsewhere: Container[str] = (), newest: bytes = b"") -> bytes:
    """A snapshot's bytes. Messages whose ids are `elsewhere` are named, not repeated.

    `newest` are ids that are remembered (`encode_known`), where a backend keeps the newest of them in the snapshot.
    """
    parts = [_N1, varint(VERSION), _N2, varint(meta.lamport)]
    parts += [delimited(_F3, _unacknowledged(entry, elsewhere)) for entry in meta.outgoing]
    parts += [delimited(_F4, _buffered(entry, elsewhere)) for entry in meta.incoming]
    for request in meta.requests:
        body = delimited(_F1, write_entry(request.entry)) + _number(_N2, request.due_ms)
        parts.append(_keyed(_F5, request.entry.message_id, body))
    for response in meta.responses:
        body = delimited(_F1, write_entry(response.entry)) + delimited(_F2, response.data)
        parts.append(_keyed(_F6, response.entry.message_id, body + _number(_N3, response.due_ms)))
    parts += [delimited(_F7, raw(message_id)) for message_id in meta.met]
    parts.append(delimited(_F8, meta.dialect.encode()))
    if meta.encrypted:
        parts.append(_ENCRYPTED)
    parts += [_N9, varint(meta.filter_ids), _N10, varint(meta.filter_rolled)]
    parts += [delimited(_F11, raw(message_id)) for message_id in meta.lost]
    if newest:
        parts.append(delimited(_F12, newest))
    return b"".join(parts)


def _unacknowledged(entry: UnacknowledgedMessage, elsewhere: Container[str]) -> bytes:
    body = _message(entry.message, elsewhere) + _number(_N2, entry.sent_ms) + _number(_N3, entry.attempts)
    return body + _number(_N4, entry.possible_acks) if entry.possible_acks else body


def _buffered(entry: BufferedMessage, elsewhere: Container[str]) -> bytes:
    message = _message(entry.message, elsewhere)
    return message + delimited(_F6, _missing_bits(entry)) + _number(_N3, entry.received_ms)


def _missing_bits(entry: BufferedMessage) -> bytes:
    """Which entries of its causal history a message waits for, a bit for each: far shorter than their ids."""
    missing = set(entry.missing)
    bits = sum(1 << at for at, cause in enumerate(entry.message.causal_history) if cause.message_id in missing)
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def _message(message: SdsMessage, elsewhere: Container[str]) -> bytes:
    if message.message_id in elsewhere:
        return delimited(_F5, raw(message.message_id))
    return delimited(_F1, store_message(message))


def decode_meta(
    data: bytes, migrations: Mapping[int, Migration] | None = None, elsewhere: Mapping[str, SdsMessage] | None = None
) -> ChannelMeta:
    """The snapshot in these bytes; Corrupt when there is none, or one of an unknown version.

    Messages that it only names are taken from `elsewhere`.
    """
    with_hooks = migrations or {}
    version = _version(data)
    for _ in with_hooks:
        if version == VERSION or version not in with_hooks:
            break
        data = with_hooks[version](data)
        version = _version(data)
    if version == VERSION:
        return _whole(lambda: _read_meta(data, elsewhere or {}))
    raise Corrupt(
        f"a channel's snapshot has an unknown schema version={version} known={VERSION}",
        hint="another version of holdfast wrote it: use that one, or give a migration from that version",
    )


def _version(data: bytes) -> int:
    found = _whole(lambda: [value for tag, value, _ in fields(data, 0, len(data)) if tag == 1 << 3])
    if not found:
        raise Corrupt("a channel's snapshot has no schema version", hint="it is damaged, or no snapshot")
    return found[-1]


def _read_meta(data: bytes, elsewhere: Mapping[str, SdsMessage]) -> ChannelMeta:
    numbers: dict[int, int] = {}
    outgoing: list[UnacknowledgedMessage] = []
    incoming: list[BufferedMessage] = []
    requests: dict[str, RepairRequest] = {}
    responses: dict[str, RepairResponse] = {}
    ids: dict[int, list[str]] = {_MET: [], _LOST: []}
    dialect: DialectName | Literal[""] = ""
    for tag, start, stop in fields(data, 0, len(data)):
        match tag:
            case 0x10 | 0x48 | 0x50 | 0x78:
                numbers[tag] = start
            case 0x1A:
                outgoing.append(_read_unacknowledged(data, start, stop, elsewhere))
            case 0x22:
                incoming.append(_read_buffered(data, start, stop, elsewhere))
            case 0x2A:
                key, body = _read_keyed(data, start, stop)
                requests[key] = _read_request(body)
            case 0x32:
                key, body = _read_keyed(data, start, stop)
                responses[key] = _read_response(body)
            case 0x3A | 0x5A:
                ids[tag].append(text(data[start:stop]))
            case 0x42:
                dialect = _dialect(text(data[start:stop]))
    if 0x10 not in numbers:
        raise Invalid("a snapshot has no Lamport time")
    return ChannelMeta(
        numbers[0x10],
        tuple(outgoing),
        tuple(incoming),
        tuple(requests.values()),
        tuple(responses.values()),
        tuple(ids[_MET]),
        dialect,
        bool(numbers.get(0x78)),
        tuple(ids[_LOST]),
        numbers.get(0x48, 0),
        bool(numbers.get(0x50)),
    )


def _read_unacknowledged(data: bytes, at: int, end: int, elsewhere: Mapping[str, SdsMessage]) -> UnacknowledgedMessage:
    values = {tag: (start, stop) for tag, start, stop in fields(data, at, end)}
    message = _read_message(data, values, elsewhere)
    return UnacknowledgedMessage(message, _needed_number(values, 0x10), _given(values, 0x18), _given(values, 0x20))


def _read_buffered(data: bytes, at: int, end: int, elsewhere: Mapping[str, SdsMessage]) -> BufferedMessage:
    values = {tag: (start, stop) for tag, start, stop in fields(data, at, end)}
    message = _read_message(data, values, elsewhere)
    missing = [text(data[start:stop]) for tag, start, stop in fields(data, at, end) if tag == 0x12]
    if 0x32 in values:
        bits = int.from_bytes(_needed(data, values, 0x32), "little")
        if bits >> len(message.causal_history):
            raise Invalid("a message waits for what it does not name")
        missing += [cause.message_id for n, cause in enumerate(message.causal_history) if bits >> n & 1]
    return BufferedMessage(message, tuple(dict.fromkeys(missing)), _given(values, 0x18))


def _read_message(
    data: bytes, values: Mapping[int, tuple[int, int]], elsewhere: Mapping[str, SdsMessage]
) -> SdsMessage:
    if 0x2A not in values:
        return NIM.decode(_needed(data, values, 0x0A))
    message = elsewhere.get(text(_needed(data, values, 0x2A)))
    if message is None:
        raise Invalid("a snapshot names a message that is not there")
    return message


def _read_keyed(data: bytes, at: int, end: int) -> tuple[str, bytes]:
    values = {tag: (start, stop) for tag, start, stop in fields(data, at, end)}
    return text(_needed(data, values, 0x0A)), _needed(data, values, 0x12)


def _read_request(data: bytes) -> RepairRequest:
    values = {tag: (start, stop) for tag, start, stop in fields(data, 0, len(data))}
    return RepairRequest(_entry(_needed(data, values, 0x0A)), _needed_number(values, 0x10))


def _read_response(data: bytes) -> RepairResponse:
    values = {tag: (start, stop) for tag, start, stop in fields(data, 0, len(data))}
    return RepairResponse(
        _entry(_needed(data, values, 0x0A)), _needed_number(values, 0x18), _needed(data, values, 0x12)
    )


def _entry(data: bytes) -> HistoryEntry:
    return read_entry(data, 0, len(data))


def _dialect(name: str) -> DialectName | Literal[""]:
    if name not in ("nim", "rfc", ""):
        raise Invalid(f"a snapshot names an unknown dialect {name!r}")
    return name  # type: ignore[return-value]


# -- ids that are remembered ----------------------------------------------------------------------------------


def encode_known(known: KnownMessage) -> bytes:
    """An id that is remembered; several stand one after the other."""
    return delimited(_F1, delimited(_F1, raw(known.message_id)) + _when_and_whose(known.at_ms, known.sender_id))


@lru_cache(256)
def _when_and_whose(at_ms: int, sender_id: str) -> bytes:
    """Remembered: many messages of one sender come within a millisecond."""
    return _number(_N2, at_ms) + (delimited(_F3, raw(sender_id)) if sender_id else b"")


def decode_known(data: bytes) -> list[KnownMessage]:
    """Ids that are remembered; Corrupt when they are none."""
    return _whole(lambda: [_read_known(body) for body in _delimited(data, 1)])


def decode_newest(data: bytes) -> list[KnownMessage]:
    """Those that stand in a snapshot."""
    return _whole(lambda: [known for body in _delimited(data, 12) for known in decode_known(body)])


def _read_known(data: bytes) -> KnownMessage:
    values = {tag: (start, stop) for tag, start, stop in fields(data, 0, len(data))}
    sender_id = text(_needed(data, values, 0x1A)) if 0x1A in values else ""
    return KnownMessage(text(_needed(data, values, 0x0A)), _given(values, 0x10), sender_id)


# -- whole channels and changes -------------------------------------------------------------------------------


def encode_data(data: ChannelData) -> bytes:
    """A snapshot with its history."""
    history = b"".join(delimited(_F2, store_message(message)) for message in data.history)
    known = b"".join(map(encode_known, data.known))
    hints = b"".join(_keyed(_F4, *hint) for hint in data.hints.items())
    return delimited(_F1, encode_meta(data.meta)) + history + (delimited(_F3, known) if known else b"") + hints


def decode_data(data: bytes, migrations: Mapping[int, Migration] | None = None) -> ChannelData:
    """A snapshot with its history; Corrupt when it is none."""
    metas = _whole(lambda: list(_delimited(data, 1)))
    if not metas:
        raise Corrupt("a channel has no snapshot", hint="it is damaged, or no channel")
    history = _whole(lambda: tuple(NIM.decode(body) for body in _delimited(data, 2)))
    known = [one for body in _delimited(data, 3) for one in decode_known(body)]
    hints = _whole(lambda: dict(_read_keyed(body, 0, len(body)) for body in _delimited(data, 4)))
    return ChannelData(decode_meta(metas[-1], migrations), history, hints, tuple(known))


def encode_update(update: HistoryUpdate) -> bytes:
    """A change of history; an empty one is nothing to encode."""
    if not (update.append or update.evict or update.known):
        raise Invalid("an empty change of history cannot be stored", hint="make no call")
    appended = b"".join(delimited(_F1, store_message(message)) for message in update.append)
    evicted = b"".join(delimited(_F2, raw(message_id)) for message_id in update.evict)
    if not update.known:
        return appended + evicted
    known = delimited(_F3, b"".join(map(encode_known, update.known)))
    return appended + evicted + known + (_number(_N4, update.remembered) if update.remembered else b"")


def decode_update(data: bytes) -> HistoryUpdate:
    """A change of history; Corrupt when it is none."""
    appended = _whole(lambda: tuple(NIM.decode(body) for body in _delimited(data, 1)))
    known = [one for body in _delimited(data, 3) for one in decode_known(body)]
    numbers = [value for tag, value, _ in fields(data, 0, len(data)) if tag == 4 << 3]
    evicted = tuple(text(body) for body in _delimited(data, 2))
    return HistoryUpdate(appended, evicted, known=tuple(known), remembered=numbers[-1] if numbers else 0)


def store_message(message: SdsMessage) -> bytes:
    """A message as it is stored: without its filter."""
    return NIM.encode(message.without_bloom())


def stored_message(data: bytes) -> SdsMessage:
    """A stored message; Corrupt when it is none."""
    return _whole(lambda: NIM.decode(data))


# -- pieces ---------------------------------------------------------------------------------------------------


def _whole(read: Callable[[], Value]) -> Value:
    """What is read, or that it cannot be: what we stored ourselves is not a stranger's message but damage."""
    try:
        return read()
    except Invalid as error:
        raise Corrupt(
            f"what is stored of a channel cannot be read: {error.message}",
            hint="restore it from a copy, or start the channel from nothing with recover='empty'",
        ) from error


def _delimited(data: bytes, number: int) -> Iterator[bytes]:
    for tag, start, stop in fields(data, 0, len(data)):
        if tag == number << 3 | _BYTES:
            yield data[start:stop]


def _number(tag: bytes, value: int) -> bytes:
    return tag + varint(max(0, value))


def _keyed(tag: bytes, key: str, body: bytes) -> bytes:
    return delimited(tag, delimited(_F1, raw(key)) + delimited(_F2, body))


def _needed(data: bytes, values: Mapping[int, tuple[int, int]], tag: int) -> bytes:
    place = values.get(tag)
    if place is None:
        raise Invalid(f"a field is missing tag={tag}")
    return data[place[0] : place[1]]


def _needed_number(values: Mapping[int, tuple[int, int]], tag: int) -> int:
    place = values.get(tag)
    if place is None:
        raise Invalid(f"a field is missing tag={tag}")
    return place[0]


def _given(values: Mapping[int, tuple[int, int]], tag: int) -> int:
    return values.get(tag, (0, 0))[0]
