"""Channels kept in a log: the default backend.

A participant's channel is a space of the journal: its snapshot, one item per message of history, per message that waits
and is not in history, and per retrieval hint. A message is written once; the snapshot names those that wait, and stays
small. A commit is one unit of the journal, with what happened appended to the topic `_channels` in the same unit; units
of one channel form a causal scope, so after a failed one nothing is kept until a complete one comes. Nobody waits here:
the journal gathers the commits of all channels, and of everybody else, into groups.

Spaces live in the journal's database alone. What is shipped is the topic; a log that is restored or rebuilt elsewhere
has the topic's records and starts its channels anew.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Container, Iterable, Mapping, Sequence
from threading import Lock
from urllib.parse import quote, unquote

from holdfast.channel_known import KnownBlocks
from holdfast.channel_records import Read, columns, find_messages, note_size
from holdfast.channels.message import SdsMessage, raw, text
from holdfast.channels.persistence import Commit, Persistence
from holdfast.channels.snapshot import ChannelData, ChannelMeta, HistoryUpdate, Known, Note
from holdfast.channels.storage import (
    Migration,
    decode_known,
    decode_meta,
    decode_newest,
    encode_meta,
    store_message,
    stored_message,
)
from holdfast.errors import Corrupt, HoldfastError
from holdfast.journal.columns import Columns
from holdfast.journal.journal import Journal
from holdfast.journal.partition import Partition
from holdfast.journal.ticket import UnitTicket

TOPIC = "_channels"

_SPACES = "channel/"
_META, _MESSAGE, _WAITING, _HINT, _KNOWN = b"m", b"h", b"w", b"r", b"k"

Item = tuple[bytes, int, bytes]


def kept_channels(journal: Journal) -> list[tuple[str, str]]:
    """Participant and channel of everything that is kept, sorted."""
    found = []
    for name in journal.spaces():
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
        self._places: dict[str, _Places] = {}
        self._lock = Lock()

    def load_channel(self, channel_id: str) -> ChannelData:
        """All that is kept of a channel, proved."""
        snapshot: bytes | None = None
        history: dict[str, SdsMessage] = {}
        waiting: dict[str, SdsMessage] = {}
        hints: dict[str, bytes] = {}
        blocks: list[list[Known]] = []
        places = _Places()
        for key, number, body in self._journal.load_space(self._prefix + channel_id):
            if key == _META:
                snapshot = body
            elif key[:1] == _MESSAGE:
                message = stored_message(body)
                history[message.message_id] = message
                places.put(message.message_id, number)
            elif key[:1] == _WAITING:
                message = stored_message(body)
                waiting[message.message_id] = message
                places.waiting.add(message.message_id)
            elif key[:1] == _HINT:
                hints[text(key[1:])] = body
                places.hints.add(text(key[1:]))
            elif key[:1] == _KNOWN:
                blocks.append(decode_known(body))
                places.known.found(number, len(blocks[-1]))
            else:
                raise Corrupt(f"an item of a channel is none that was ever kept channel={channel_id!r}")
        meta = ChannelMeta()
        if snapshot is not None:
            meta = decode_meta(snapshot, self._migrations, {**waiting, **history})
            blocks.append(decode_newest(snapshot))
            for known in blocks[-1]:
                places.known.add(known)
        with self._lock:
            self._places[channel_id] = places
        return ChannelData(meta, tuple(history.values()), hints, tuple(known for block in blocks for known in block))

    def commit(
        self, channel_id: str, meta: ChannelMeta, update: HistoryUpdate, *, reissue: bool = False
    ) -> Commit | None:
        """Hand the snapshot, the change of history and what happened to the journal, as one unit."""
        places = self._places_of(channel_id)
        places.settle(again=reissue)
        puts, deletes = self._changes(places, update)
        for known in update.known:
            places.known.add(known)
        deletes += [_KNOWN + number.to_bytes(8, "big") for number in places.known.trim(update.remembered)]
        blocks = places.known.due()
        puts += [(_KNOWN + number.to_bytes(8, "big"), number, body) for number, body in blocks.items()]
        named = self._wait_for(places, meta, puts, deletes, again=reissue)
        deletes = places.with_owed(puts, deletes)
        # What was loaded is complete, whatever became of commits before that.
        reissue, places.loaded = reissue or places.loaded, False
        *ahead, (puts, notes) = self._parts(puts, update.notes)
        try:
            for some_puts, some_notes in ahead:
                self._hand_over(channel_id, some_puts, [], some_notes, reissue)
                reissue = False
            snapshot = (_META, 0, encode_meta(meta, elsewhere=named, newest=places.known.newest))
            ticket = self._hand_over(channel_id, [*puts, snapshot], deletes, notes, reissue)
        except BaseException:
            places.owe(deletes)
            raise
        places.handed_over(ticket, deletes, list(blocks))
        return ticket

    def _hand_over(
        self, channel_id: str, puts: Sequence[Item], deletes: Sequence[bytes], notes: Sequence[Note], reissue: bool
    ) -> UnitTicket:
        name = self._prefix + channel_id
        return self._journal.change_space(
            name, puts, deletes, append=self._records(channel_id, notes), scope=name, reissue=reissue,
            timeout=self._timeout,
        )  # fmt: skip

    def _parts(self, puts: list[Item], notes: Sequence[Note]) -> list[tuple[list[Item], list[Note]]]:
        """What goes into one unit; after a long outage, or a huge cascade, into several: the last has the snapshot.

        A crash in between leaves history ahead of the snapshot: such a message is in both, and what happened to it may
        be told twice.
        """
        settings = self._journal.settings
        most = min(settings.batch_bytes_max, settings.queue_bytes_max // 4)
        if sum(len(body) for _, _, body in puts) + sum(map(note_size, notes)) <= most:
            return [(puts, list(notes))]
        parts: list[tuple[list[Item], list[Note]]] = [([], [])]
        left = most
        for put in puts:
            left -= len(put[2])
            if left < 0 and parts[-1][0]:
                parts.append(([], []))
                left = most - len(put[2])
            parts[-1][0].append(put)
        for note in notes:
            left -= note_size(note)
            if left < 0:
                parts.append(([], []))
                left = most - note_size(note)
            parts[-1][1].append(note)
        return parts

    def _wait_for(
        self, places: _Places, meta: ChannelMeta, puts: list[Item], deletes: list[bytes], *, again: bool
    ) -> Container[str]:
        """Messages that wait are items of their own, written once, unless history has them: the snapshot names them.

        An id that was used twice is the exception: both messages stay in the snapshot.
        """
        ids = [entry.message.message_id for entry in meta.outgoing]
        named = set(ids)
        if len(named) < len(ids):
            named = {message_id for message_id, count in Counter(ids).items() if count == 1}
        waiting = {
            message.message_id: message
            for message in (
                *(entry.message for entry in meta.outgoing if entry.message.message_id in named),
                *(entry.message for entry in meta.incoming),
            )
            if message.message_id not in places
        }
        named.update(waiting)
        for message_id, message in waiting.items():
            if again or message_id not in places.waiting:
                puts.append((_WAITING + raw(message_id), 0, store_message(message)))
        deletes += [_WAITING + raw(message_id) for message_id in places.waiting if message_id not in waiting]
        places.waiting = set(waiting)
        return named

    def save_channel_meta(self, channel_id: str, meta: ChannelMeta) -> None:
        """Keep a snapshot."""
        self._settle(self.commit(channel_id, meta, HistoryUpdate(), reissue=True))

    def update_history(self, channel_id: str, update: HistoryUpdate) -> None:
        """Keep a change of history; what the snapshot names of it stays."""
        kept = self.load_channel(channel_id)
        self._settle(self.commit(channel_id, kept.meta, update, reissue=True))

    def set_retrieval_hint(self, channel_id: str, message_id: str, hint: bytes) -> None:
        """Hand the hint over; it is durable no later than the channel's next commit."""
        places, item = self._places_of(channel_id), (_HINT + raw(message_id), 0, hint)
        places.hints.add(message_id)
        places.forgive(item[0])
        self._journal.change_space(self._prefix + channel_id, [item], [], timeout=self._timeout)

    def find_messages(self, channel_id: str, wanted: Sequence[Known]) -> Iterable[SdsMessage]:
        """Those that the topic still has."""
        if self._read is None:
            return ()
        return find_messages(self._read, self._participant, channel_id, wanted)

    def drop_channel(self, channel_id: str) -> None:
        """Forget a channel, durably."""
        ticket = self._journal.change_space(
            self._prefix + channel_id,
            [],
            [],
            drop=True,
            scope=self._prefix + channel_id,
            reissue=True,
            timeout=self._timeout,
        )
        ticket.result(self._timeout)
        with self._lock:
            self._places.pop(channel_id, None)

    def _settle(self, ticket: Commit | None) -> None:
        if ticket is not None:
            ticket.result(self._timeout)

    def _places_of(self, channel_id: str) -> _Places:
        places = self._places.get(channel_id)
        if places is None:
            self.load_channel(channel_id)
            places = self._places[channel_id]
        return places

    def _changes(self, places: _Places, update: HistoryUpdate) -> tuple[list[Item], list[bytes]]:
        puts: list[Item] = []
        deletes: list[bytes] = []
        for message_id in update.displaced:
            deletes += places.displace(message_id)
        for message in update.append:
            number = places.place(message.message_id)
            puts.append((_key(number), number, store_message(message)))
        for message_id in update.evict:
            deletes += places.forget(message_id)
        return puts, deletes

    def _records(self, channel_id: str, notes: Sequence[Note]) -> tuple[Partition, Columns] | None:
        if self._partition is None or not notes:
            return None
        return self._partition, columns(self._participant, channel_id, notes)


_OWED_MAX = 20_000
"""Beyond that, what should have been deleted while nothing could be kept is found, and goes, after the next loading."""


def _key(number: int) -> bytes:
    """The key of a message of history: neighbours in time are neighbours on disk."""
    return _MESSAGE + number.to_bytes(8, "big")


class _Places:
    """What is kept of one channel, by id; where a commit failed, what should be."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        """Where the messages of history stand in its order."""
        self._next = 1
        self._under_way: deque[tuple[UnitTicket, Sequence[bytes], Sequence[int]]] = deque()
        """Commits under way, the keys that they delete, and the blocks of known ids that they put."""
        self._owed: dict[bytes, None] = {}
        """Keys that were to be deleted by commits that failed."""
        self.known = KnownBlocks()
        self.waiting: set[str] = set()
        self.hints: set[str] = set()
        self.loaded = True
        """Nothing was committed since it was loaded."""

    def __contains__(self, message_id: str) -> bool:
        """Whether history has it."""
        return message_id in self._numbers

    def put(self, message_id: str, number: int) -> None:
        self._numbers[message_id] = number
        self._next = max(self._next, number + 1)

    def place(self, message_id: str) -> int:
        """A message's number: the one that it has if it is replaced."""
        number = self._numbers.get(message_id)
        if number is None:
            number = self._next
            self.put(message_id, number)
        return number

    def displace(self, message_id: str) -> list[bytes]:
        """The message has no place any more; tells the key to delete, if it had one."""
        number = self._numbers.pop(message_id, 0)
        return [_key(number)] if number else []

    def forget(self, message_id: str) -> list[bytes]:
        """The message is evicted; tells the keys to delete."""
        keys = self.displace(message_id)
        if message_id in self.hints:
            self.hints.discard(message_id)
            keys.append(_HINT + raw(message_id))
        return keys

    # -- what failed commits were to delete ---------------------------------------------------------------

    def settle(self, *, again: bool) -> None:
        """Take notice of what became of commits; if all is said again, those still under way are bound to fail."""
        while self._under_way and (again or self._under_way[0][0].done):
            ticket, keys, blocks = self._under_way.popleft()
            is_stored = _is_stored(ticket)
            self.known.settle(blocks, is_stored=is_stored)
            if not is_stored:
                self.owe(keys)

    def owe(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            if len(self._owed) < _OWED_MAX:
                self._owed[key] = None

    def forgive(self, key: bytes) -> None:
        """It is put again."""
        self._owed.pop(key, None)

    def with_owed(self, puts: Iterable[Item], deletes: list[bytes]) -> list[bytes]:
        """What a commit has to delete."""
        if not self._owed:
            return deletes
        put = {key for key, _, _ in puts}
        owed, self._owed = self._owed, {}
        return [key for key in {**owed, **dict.fromkeys(deletes)} if key not in put]

    def handed_over(self, ticket: UnitTicket, keys: Sequence[bytes], blocks: Sequence[int]) -> None:
        """A commit that deletes these keys, and puts these blocks, was handed over."""
        self.known.hand_over(blocks)
        if keys or blocks:
            self._under_way.append((ticket, keys, blocks))


def _is_stored(ticket: UnitTicket) -> bool:
    try:
        ticket.result(0)
    except HoldfastError:
        return False
    return True
