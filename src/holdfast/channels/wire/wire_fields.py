"""What the two wire formats have in common: the same eight fields under other numbers, history entries, limits.

Reading finds the fields and decodes the entries; what must be there, and what is made of it, is for the formats to say
(`nim`, `rfc`). The limits of `message` hold for what is read and for what is written, and are checked
before anything is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NoReturn

from holdfast.channels.wire.message import (
    BLOOM_BYTES_MAX,
    CONTENT_BYTES_MAX,
    ENTRIES_BYTES_MAX,
    ENTRIES_MAX,
    HINT_BYTES_MAX,
    ID_BYTES_MAX,
    HistoryEntry,
    SdsMessage,
    raw,
    text,
)
from holdfast.channels.wire.protobuf import HINT, delimited, fields
from holdfast.errors import Invalid

_ENTRY_ID, _ENTRY_HINT, _ENTRY_SENDER = 0x0A, 0x12, 0x1A
_ENTRIES_SURELY_FIT = ENTRIES_BYTES_MAX // (2 * ID_BYTES_MAX + HINT_BYTES_MAX + 16) // 2
"""So many causes and so many requests fit, however long their ids and hints are."""
_ENTRIES_CACHED = 2_048
"""Entries that are remembered as read and as written: each is named by many messages, one after the other."""
_ENTRY_NUMBERS = frozenset((1, 2, 3))

Places = dict[int, tuple[int, int]]
"""Tag to (start, stop), or (value, end) of a varint; of several the last counts."""


class Layout:
    """The tags of a format, and what it does about those that it does not expect."""

    def __init__(self, *, scalars: Sequence[int], causal_history: int, repair_request: int, strict: bool) -> None:
        self.scalars = frozenset(scalars)
        """Tags of the fields that are there once."""
        self.causal_history, self.repair_request = causal_history, repair_request
        self.numbers = frozenset(tag >> 3 for tag in (*scalars, causal_history, repair_request))
        self.strict = strict
        """Whether a field of a known number but another type is refused; else it is as if it were not there."""


def take_apart(data: bytes, layout: Layout) -> tuple[Places, tuple[HistoryEntry, ...], tuple[HistoryEntry, ...], int]:
    """Where the fields of a message are, its causal history and its repair requests, and the bytes of both."""
    places: Places = {}
    causes: list[HistoryEntry] = []
    requests: list[HistoryEntry] = []
    strict = layout.strict
    named = 0
    for tag, start, stop in fields(data, 0, len(data)):
        if tag == layout.causal_history:
            entries = causes
        elif tag == layout.repair_request:
            entries = requests
        elif tag in layout.scalars:
            places[tag] = start, stop
            continue
        elif strict and tag >> 3 in layout.numbers:
            _refuse_type(tag)
        else:
            continue
        if len(entries) == ENTRIES_MAX:
            _refuse("history entries", ENTRIES_MAX + 1, ENTRIES_MAX)
        named += stop - start
        if named > ENTRIES_BYTES_MAX:
            _refuse("bytes of history entries", named, ENTRIES_BYTES_MAX)
        entry = _usual_entry(data[start:stop])
        entries.append(_any_entry(data, start, stop, strict=strict) if entry is None else entry)
    return places, tuple(causes), tuple(requests), named


def read_entry(data: bytes, at: int, end: int) -> HistoryEntry:
    """An entry."""
    usual = _usual_entry(data[at:end])
    return _any_entry(data, at, end, strict=False) if usual is None else usual


@lru_cache(_ENTRIES_CACHED)
def _usual_entry(data: bytes) -> HistoryEntry | None:
    """An entry as everybody writes them, with short values: written out, as messages consist of little else."""
    hint = sender_id = b""
    at, end = 0, len(data)
    try:
        if data[at] != _ENTRY_ID:
            return None
        sizes = data[at + 1]
        stop = at + 2 + sizes
        message_id = data[at + 2 : stop]
        if stop < end and data[stop] == _ENTRY_HINT:
            size = data[stop + 1]
            at, stop, sizes = stop + 2, stop + 2 + size, sizes | size
            hint = data[at:stop]
        if stop < end and data[stop] == _ENTRY_SENDER:
            size = data[stop + 1]
            at, stop, sizes = stop + 2, stop + 2 + size, sizes | size
            sender_id = data[at:stop]
    except IndexError:
        return None
    if stop != end or sizes >= 0x80:
        return None
    return HistoryEntry(text(message_id), hint, text(sender_id))


def _any_entry(data: bytes, at: int, end: int, *, strict: bool) -> HistoryEntry:
    message_id, hint, sender_id = "" if strict else None, b"", ""
    for tag, start, stop in fields(data, at, end):
        if tag == _ENTRY_ID:
            message_id = read_id(data, start, stop)
        elif tag == _ENTRY_HINT:
            if stop - start > HINT_BYTES_MAX:
                _refuse("a retrieval hint", stop - start, HINT_BYTES_MAX)
            hint = data[start:stop]
        elif tag == _ENTRY_SENDER:
            sender_id = read_id(data, start, stop)
        elif strict and tag >> 3 in _ENTRY_NUMBERS:
            _refuse_type(tag)
    if message_id is None:
        raise Invalid("a history entry names no message", hint=HINT)
    return HistoryEntry(message_id, hint, sender_id)


def read_id(data: bytes, start: int, stop: int) -> str:
    """An id of a message, channel or participant."""
    if stop - start > ID_BYTES_MAX:
        _refuse("an id", stop - start, ID_BYTES_MAX)
    return text(data[start:stop])


def read_content(data: bytes, start: int, stop: int) -> bytes:
    """What the message is about."""
    if stop - start > CONTENT_BYTES_MAX:
        _refuse("the content", stop - start, CONTENT_BYTES_MAX)
    return data[start:stop]


def read_bloom(data: bytes, start: int, stop: int) -> bytes:
    """The filter, as yet unread."""
    if stop - start > BLOOM_BYTES_MAX:
        _refuse("the filter", stop - start, BLOOM_BYTES_MAX)
    return data[start:stop]


def check_size(message: SdsMessage) -> None:
    """Refuse to write what nobody would read; ids and hints are checked as they are written."""
    if len(message.content) > CONTENT_BYTES_MAX:
        _refuse("the content", len(message.content), CONTENT_BYTES_MAX)
    if len(message.bloom_filter) > BLOOM_BYTES_MAX:
        _refuse("the filter", len(message.bloom_filter), BLOOM_BYTES_MAX)
    entries = max(len(message.causal_history), len(message.repair_request))
    if entries > ENTRIES_MAX:
        _refuse("history entries", entries, ENTRIES_MAX)
    if entries > _ENTRIES_SURELY_FIT:
        named = sum(len(write_entry(entry)) for entry in (*message.causal_history, *message.repair_request))
        if named > ENTRIES_BYTES_MAX:
            _refuse("bytes of history entries", named, ENTRIES_BYTES_MAX)


def id_field(tag: bytes, value: str) -> bytes:
    """An id, as it is written."""
    body = raw(value)
    if len(body) > ID_BYTES_MAX:
        _refuse("an id", len(body), ID_BYTES_MAX)
    return delimited(tag, body)


def entry_fields(tag: bytes, entries: Sequence[HistoryEntry], *, empty_ids: bool) -> bytes:
    """Entries as they are written; `empty_ids`: whether an empty id is written at all."""
    return b"".join([_entry_field(tag, entry, empty_ids) for entry in entries])


@lru_cache(_ENTRIES_CACHED)
def _entry_field(tag: bytes, entry: HistoryEntry, empty_ids: bool) -> bytes:
    return delimited(tag, write_entry(entry, empty_ids=empty_ids))


def write_entry(entry: HistoryEntry, *, empty_ids: bool = True) -> bytes:
    """The body of one of them."""
    body = id_field(b"\x0a", entry.message_id) if entry.message_id or empty_ids else b""
    hint = entry.retrieval_hint
    if hint:
        if len(hint) > HINT_BYTES_MAX:
            _refuse("a retrieval hint", len(hint), HINT_BYTES_MAX)
        body += delimited(b"\x12", hint)
    return body + id_field(b"\x1a", entry.sender_id) if entry.sender_id else body


def _refuse(what: str, size: int, limit: int) -> NoReturn:
    raise Invalid(
        f"a message is over a limit: {what} size={size} limit={limit}",
        hint="drop it if it was received; else send less at once",
    )


def _refuse_type(tag: int) -> NoReturn:
    raise Invalid(f"a field of a message has the wrong type tag={tag}", hint=HINT)
