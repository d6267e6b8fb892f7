"""Channels kept in a log: the default backend.

A participant's channel is a space of the journal: its snapshot, one item per message of history, per message that waits
and is not in history, and per retrieval hint. A message is written once; the snapshot names those that wait, and stays
small. A commit is one unit of the journal, with what happened appended to the topic `_channels` in the same unit; units
of one channel form a causal scope, so after a failed one nothing is kept until a complete one comes. Nobody waits here:
the journal gathers the commits of all channels, and of everybody else, into groups. Commits of one channel that the
writer has not begun with are one unit; what they come to is worked out and encoded once, by the writer (`_made`).

Spaces live in the journal's database alone. What is shipped is the topic; a log that is restored or rebuilt elsewhere
has the topic's records and starts its channels over.
"""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar
from urllib.parse import quote, unquote

import msgspec

from holdfast.caller import once
from holdfast.channels.keeping.channel_records import Noted, Read, columns, find_messages, note_size, noted
from holdfast.channels.keeping.kept_items import (
    HINT,
    KNOWN,
    MESSAGE,
    META,
    WAITING,
    ChannelChanges,
    ChannelPlaces,
    block_key,
)
from holdfast.channels.keeping.persistence import Commit, Persistence
from holdfast.channels.keeping.snapshot import ChannelData, ChannelMeta, HistoryUpdate, KnownMessage
from holdfast.channels.keeping.storage import (
    Migration,
    decode_known,
    decode_meta,
    decode_newest,
    encode_meta,
    stored_message,
)
from holdfast.channels.wire.message import SdsMessage, raw, text
from holdfast.errors import Corrupt
from holdfast.journal.journal import Journal, Make, Operation, Unit
from holdfast.journal.queue.ticket import UnitTicket
from holdfast.journal.state.partition import Partition
from holdfast.model.record_columns import Columns

One = TypeVar("One")

_SPACES = "channel/"


class CommitPart(msgspec.Struct, frozen=True, gc=False):
    """What one commit says, or, where that is too much for one unit, a part of it."""

    meta: ChannelMeta | None
    """None: more comes."""
    update: HistoryUpdate
    waiting: tuple[SdsMessage, ...]
    """Of a commit that says everything again: messages to put ahead of the snapshot that names them."""
    size: int
    """About as many bytes."""


def kept_channels(journal: Journal) -> list[tuple[str, str]]:
    """Participant and channel of everything that is kept, sorted."""
    found = []
    for name in journal.spaces.names():
        if name.startswith(_SPACES):
            participant, _, channel_id = name.removeprefix(_SPACES).partition("/")
            found.append((unquote(participant, errors="surrogateescape"), channel_id))
    return sorted(found)


class LogPersistence(Persistence):
    """The channels of one log; got from `Log.channels`."""

    blocks = False

    def __init__(
        self,
        journal: Journal,
        participant_id: str,
        partition: Partition | None = None,
        migrations: Mapping[int, Migration] | None = None,
        ack_timeout_ms: float | None = None,
        read: Read | None = None,
    ) -> None:
        """What happens goes to `partition`, if there is one, and `read` finds it there."""
        self._journal = journal
        self._participant = raw(participant_id)
        self._prefix = _SPACES + quote(participant_id, safe="", errors="surrogateescape") + "/"
        self._partition = partition
        self._migrations = migrations
        self._read = read
        self._timeout = (journal.settings.ack_timeout_ms if ack_timeout_ms is None else ack_timeout_ms) / 1000
        self._part_bytes_max = min(journal.settings.batch_bytes_max, journal.settings.queue_bytes_max // 4)
        self._places: dict[str, ChannelPlaces] = {}
        self._lock = RLock()

    def load_channel(self, channel_id: str) -> ChannelData:
        """All that is kept of a channel, proved."""
        snapshot: bytes | None = None
        history: dict[str, SdsMessage] = {}
        waiting: dict[str, SdsMessage] = {}
        hints: dict[str, bytes] = {}
        blocks: list[list[KnownMessage]] = []
        places = ChannelPlaces(self._prefix + channel_id)
        for key, number, body in self._journal.spaces.load(self._prefix + channel_id):
            if key == META:
                snapshot = body
            elif key[:1] == MESSAGE:
                message = stored_message(body)
                history[message.message_id] = message
                places.put(message.message_id, number)
            elif key[:1] == WAITING:
                message = stored_message(body)
                waiting[message.message_id] = message
                places.waiting.add(message.message_id)
            elif key[:1] == HINT:
                hints[text(key[1:])] = body
                places.hints.add(text(key[1:]))
            elif key[:1] == KNOWN:
                blocks.append(decode_known(body))
                places.known.found(number, len(blocks[-1]))
            else:
                raise Corrupt(f"an item of a channel is not one that was ever kept channel={channel_id!r}")
        meta = ChannelMeta()
        if snapshot is not None:
            meta = decode_meta(snapshot, self._migrations, {**waiting, **history})
            blocks.append(decode_newest(snapshot))
            for known in blocks[-1]:
                places.known.add(known)
        with once(self._lock):
            self._places[channel_id] = places
        return ChannelData(meta, tuple(history.values()), hints, tuple(known for block in blocks for known in block))

    def commit(
        self, channel_id: str, meta: ChannelMeta, update: HistoryUpdate, *, reissue: bool = False
    ) -> Commit | None:
        """Hand the snapshot, the change of history and what happened to the journal, as one unit.

        A unit that the writer has not begun with takes one commit after the other of its channel: what they say is put
        together and encoded once, when it begins. What says everything again goes alone.
        """
        places = self._places_of(channel_id)
        # What was loaded is complete, whatever became of commits before that.
        reissue, places.loaded = reissue or places.loaded, False
        ticket, places.newest = None if reissue else places.newest, None
        *ahead, last = self._parts(meta, update, again=reissue)
        make = partial(self._made, channel_id, places, reissue)
        for part in ahead:
            self._hand_over(places, part, make, reissue, None)
            reissue = False
        places.newest = self._hand_over(places, last, make, reissue, None if ahead else ticket)
        return places.newest

    def _hand_over(
        self, places: ChannelPlaces, part: CommitPart, make: Make, reissue: bool, join: UnitTicket | None
    ) -> UnitTicket:
        notes = 0 if self._partition is None else len(part.update.notes)
        return self._journal.spaces.gather(
            part,
            make,
            append=(self._partition, notes),
            size=part.size,
            scope=places.space,
            reissue=reissue,
            join=join,
            timeout=self._timeout,
        )

    def _parts(self, meta: ChannelMeta, update: HistoryUpdate, *, again: bool) -> list[CommitPart]:
        """What goes into one unit; after a long outage, or a huge cascade, into several: the last has the snapshot.

        A crash in between leaves history ahead of the snapshot: such a message is in both, and its events may be
        delivered twice.
        """
        most = self._part_bytes_max
        waiting = _waiting(meta) if again else ()
        written = update.written
        size = _about(meta) + _known_size(update)
        for message in (*update.append, *waiting):
            bytes_of = written.get(message.message_id)
            size += message.size if bytes_of is None else len(bytes_of.stored)
        for note in update.notes:
            size += note_size(note, written.get(note.message_id))
        if size <= most:
            return [CommitPart(meta, update, (), size)]
        return _split(meta, update, waiting, most)

    def _made(self, channel_id: str, places: ChannelPlaces, again: bool, unit: Unit) -> list[Operation]:
        """By the writer: what the parts of a unit come to. Of an item, and of the snapshot, the last word counts."""
        places.settle(again=again)
        if unit.reissue:
            places.ahead.clear()
        changes = ChannelChanges(places)
        notes: list[Noted] = []
        meta: ChannelMeta | None = None
        for part in unit.parts:
            meta = part.meta
            notes += noted(part.update)
            changes.add(part.update, part.waiting)
        puts, blocks = changes.puts, places.known.due()
        for number, body in blocks.items():
            puts[block_key(number)] = (block_key(number), number, body)
        if meta is not None:
            named = changes.wait_for(meta, again=again)
            puts[META] = (META, 0, encode_meta(meta, elsewhere=named, newest=places.known.newest))
            changes.delete_owed()
        places.await_outcome(unit, list(changes.deletes), list(blocks))
        operations, _ = self._journal.spaces.operations(
            self._prefix + channel_id, changes.items(), list(changes.deletes), append=self._records(channel_id, notes)
        )
        return operations

    def save_channel_meta(self, channel_id: str, meta: ChannelMeta) -> None:
        """Keep a snapshot."""
        self._settle(self.commit(channel_id, meta, HistoryUpdate(), reissue=True))

    def update_history(self, channel_id: str, update: HistoryUpdate) -> None:
        """Keep a change of history; what the snapshot names of it stays."""
        kept = self.load_channel(channel_id)
        self._settle(self.commit(channel_id, kept.meta, update, reissue=True))

    def set_retrieval_hint(self, channel_id: str, message_id: str, hint: bytes) -> None:
        """Hand the hint over; it is durable no later than the channel's next commit."""
        places, name, key = self._places_of(channel_id), self._prefix + channel_id, HINT + raw(message_id)

        def make(_: Unit) -> list[Operation]:
            places.hints.add(message_id)
            places.forgive(key)
            return self._journal.spaces.operations(name, [(key, 0, hint)], [])[0]

        places.newest = None  # else a later commit, which removes it, would come before it
        self._journal.spaces.gather(hint, make, append=(None, 0), size=len(hint), timeout=self._timeout)

    def find_messages(self, channel_id: str, wanted: Sequence[KnownMessage]) -> Iterable[SdsMessage]:
        """Those that the topic still has."""
        if self._read is None:
            return ()
        return find_messages(self._read, self._participant, channel_id, wanted)

    def drop_channel(self, channel_id: str) -> None:
        """Forget a channel, durably."""
        places = self._places.get(channel_id)
        if places is not None:
            places.newest = None
        ticket = self._journal.spaces.change(
            self._prefix + channel_id,
            [],
            [],
            drop=True,
            scope=self._prefix + channel_id,
            reissue=True,
            timeout=self._timeout,
        )
        ticket.result(self._timeout)
        with once(self._lock):
            self._places.pop(channel_id, None)

    def _settle(self, ticket: Commit | None) -> None:
        if ticket is not None:
            ticket.result(self._timeout)

    def _places_of(self, channel_id: str) -> ChannelPlaces:
        places = self._places.get(channel_id)
        if places is None:
            self.load_channel(channel_id)
            places = self._places[channel_id]
        return places

    def _records(self, channel_id: str, notes: Sequence[Noted]) -> tuple[Partition, Columns] | None:
        if self._partition is None or not notes:
            return None
        return self._partition, columns(self._participant, channel_id, notes)


def _about(meta: ChannelMeta) -> int:
    """A snapshot's bytes, roughly."""
    entries = len(meta.outgoing) + len(meta.incoming) + len(meta.met)
    return 64 * (entries + 2) + 128 * (len(meta.requests) + len(meta.responses))


def _known_size(update: HistoryUpdate) -> int:
    """At most so many bytes of ids."""
    size = 0
    for known in update.known:
        size += 4 * (len(known.message_id) + len(known.sender_id)) + 32
    return size


def _waiting(meta: ChannelMeta) -> tuple[SdsMessage, ...]:
    return (*(entry.message for entry in meta.outgoing), *(entry.message for entry in meta.incoming))


def _split(meta: ChannelMeta, update: HistoryUpdate, waiting: Sequence[SdsMessage], most: int) -> list[CommitPart]:
    """A commit in parts of at most so many bytes, or of one item."""
    parts: list[CommitPart] = []
    displaced = set(update.displaced)
    for messages, size in _chunks(update.append, _message_size, most):
        behind = tuple(one.message_id for one in messages if one.message_id in displaced)
        parts.append(CommitPart(None, HistoryUpdate(messages, displaced=behind), (), size))
    parts += [
        CommitPart(None, HistoryUpdate(), messages, size) for messages, size in _chunks(waiting, _message_size, most)
    ]
    parts += [
        CommitPart(None, HistoryUpdate(notes=notes), (), size) for notes, size in _chunks(update.notes, note_size, most)
    ]
    last = HistoryUpdate(evict=update.evict, known=update.known, remembered=update.remembered)
    return [*parts, CommitPart(meta, last, (), _about(meta) + _known_size(update))]


def _chunks(items: Sequence[One], size_of: Callable[[One], int], most: int) -> Iterator[tuple[tuple[One, ...], int]]:
    chunk: list[One] = []
    total = 0
    for item in items:
        size = size_of(item)
        if chunk and total + size > most:
            yield tuple(chunk), total
            chunk, total = [], 0
        chunk.append(item)
        total += size
    if chunk:
        yield tuple(chunk), total


def _message_size(message: SdsMessage) -> int:
    return message.size
