"""What happens in channels, as records of a topic, and messages made of such records again.

A record of a message that was sent or delivered has all of it: content, sender, Lamport time, and the causes that it
names. So a message that has left history can still be sent on request, for as long as the topic has its record. It is
found by the record's time, which is remembered with the message's id: no index is kept, and none can be damaged.
Reading holds no lock of a channel, and looks at so many records and no more.

What retention has removed is not found, and nothing is said about it: another participant may have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from holdfast.channels.keeping.snapshot import HistoryUpdate, KnownMessage, Note
from holdfast.channels.keeping.stored_message import StoredMessage
from holdfast.channels.wire.message import HistoryEntry, SdsMessage, raw, text
from holdfast.channels.wire.protobuf import fields
from holdfast.channels.wire.wire_fields import entry_fields, read_entry
from holdfast.errors import Invalid, NotFound
from holdfast.model.record import Record
from holdfast.model.record_columns import Columns, Extra, encode_headers

Read = Callable[..., Iterable[Record]]
"""A topic's `read`, of which `since` and `until` are used."""

CAUSES_BYTES_MAX = 2**15
"""What a record tells of a message's causes: all of them, without hints if need be, or nothing."""
MISSING_BYTES_MAX = 8_192
"""Of all the ids that a message waits for: as many as fit into this, so that headers stay below their limit."""

_ENTRY, _ENTRY_TAG = b"\x1a", 0x1A
"""As in the wire format `nim`: an entry is encoded once for both."""
_APART_MS = 1_000
"""Messages that happened within this time are looked for together."""
_SPANS_MAX = 32
_BYTES_MAX = 4 * 2**20
_RECORDS_MAX = 50_000
"""How much is looked at, at once; what was not found is asked for again."""


# -- records of notes -----------------------------------------------------------------------------------------


Noted = tuple[Note, StoredMessage | None]
"""What happened, and the bytes of the message to which it did, where there are any."""


def noted(update: HistoryUpdate) -> list[Noted]:
    """The notes of a commit, each with its message's bytes."""
    written = update.written
    return [(note, written.get(note.message_id) if written else None) for note in update.notes]


def columns(participant: bytes, channel_id: str, notes: Sequence[Noted]) -> Columns:
    """What happened, as records: the content is the payload, the channel the key, the rest headers."""
    key = raw(channel_id)
    extras: dict[int, Extra] = {}
    for number, (note, written) in enumerate(notes):
        extras[number] = (key, note.kind.encode(), encode_headers(_headers(participant, note, written)))
    return Columns([note.content for note, _ in notes], [note.at_ms * 1000 for note, _ in notes], extras)


def _headers(participant: bytes, note: Note, written: StoredMessage | None) -> dict[str, bytes]:
    headers = {
        "participant_id": participant,
        "message_id": raw(note.message_id),
        "sender_id": raw(note.sender_id),
        "lamport": b"%d" % note.lamport,
    }
    if note.kind == "delivered":
        headers["waited_ms"] = b"%d" % note.waited_ms
    if note.content:
        if written is not None and written.causes_size <= CAUSES_BYTES_MAX:
            headers["causes"] = written.causes()
        elif (causes := _causes(note.causes)) is not None:
            headers["causes"] = causes
    if note.missing:
        headers["missing"] = _joined(note.missing)
    return headers


def _causes(entries: Sequence[HistoryEntry]) -> bytes | None:
    """What a message names, one after the other; None where that is too much."""
    written = entry_fields(_ENTRY, entries, empty_ids=True)
    if len(written) > CAUSES_BYTES_MAX:
        written = entry_fields(
            _ENTRY, [HistoryEntry(entry.message_id, b"", entry.sender_id) for entry in entries], empty_ids=True
        )
    return written if len(written) <= CAUSES_BYTES_MAX else None


def _joined(ids: Sequence[str]) -> bytes:
    """Ids, one per line: as many as fit, and none of them cut."""
    joined = b"\n".join(map(raw, ids))
    if len(joined) > MISSING_BYTES_MAX:
        joined = joined[: MISSING_BYTES_MAX + 1].rpartition(b"\n")[0]
    return joined


def note_size(note: Note, written: StoredMessage | None = None) -> int:
    """A record's bytes, or a few more."""
    ids = len(note.message_id) + len(note.sender_id) + (sum(map(len, note.missing)) if note.missing else 0)
    named = written.causes_size if written is not None else 4 * sum(map(_named_size, note.causes)) if note.causes else 0
    return len(note.content) + min(4 * ids, MISSING_BYTES_MAX) + min(named, CAUSES_BYTES_MAX) + 4_096


def _named_size(entry: HistoryEntry) -> int:
    return len(entry.message_id) + len(entry.sender_id) + len(entry.retrieval_hint) + 16


# -- messages of records --------------------------------------------------------------------------------------


def find_messages(read: Read, participant: bytes, channel_id: str, wanted: Sequence[KnownMessage]) -> list[SdsMessage]:
    """Those of the messages that can be made of their records."""
    left = {raw(known.message_id): None for known in wanted}
    key = raw(channel_id)
    found = []
    size = 0
    try:
        for record in islice(_records(read, wanted), _RECORDS_MAX):
            headers = record.headers or {}
            if record.key != key or record.kind not in ("sent", "delivered"):
                continue
            if headers.get("participant_id") != participant or headers.get("message_id") not in left:
                continue
            message = _message(channel_id, record, headers)
            if message is not None:
                del left[headers["message_id"]]
                found.append(message)
                size += message.size
            if not left or size > _BYTES_MAX:
                break
    except NotFound:
        pass  # retention was quicker
    return found


def _records(read: Read, wanted: Sequence[KnownMessage]) -> Iterator[Record]:
    for first, last in _spans(sorted(known.at_ms for known in wanted)):
        yield from read(since=first * 1000, until=last * 1000)


def _spans(times: Sequence[int]) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for time in times:
        if spans and time - spans[-1][1] <= _APART_MS:
            spans[-1] = spans[-1][0], time
        else:
            spans.append((time, time))
    return spans[:_SPANS_MAX]


def _message(channel_id: str, record: Record, headers: Mapping[str, bytes]) -> SdsMessage | None:
    """The message that a record tells of; None where it does not tell enough: what it names was too much."""
    try:
        causes = headers["causes"]
        named = tuple(
            read_entry(causes, start, stop) for tag, start, stop in fields(causes, 0, len(causes)) if tag == _ENTRY_TAG
        )
        return SdsMessage(
            text(headers["message_id"]),
            channel_id,
            int(headers["lamport"]),
            record.payload,
            text(headers["sender_id"]),
            named,
        )
    except (KeyError, ValueError, Invalid):
        return None
