"""The items of one channel that is kept in a log: which there are, and what a unit changes of them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Container, Iterable, Sequence

from holdfast.channels.keeping.known_blocks import KnownBlocks
from holdfast.channels.keeping.snapshot import ChannelMeta, HistoryUpdate
from holdfast.channels.keeping.storage import store_message
from holdfast.channels.keeping.stored_message import StoredMessage
from holdfast.channels.wire.message import SdsMessage, raw
from holdfast.journal.journal import Unit
from holdfast.journal.queue.ticket import UnitTicket
from holdfast.journal.state.spaces import Item

META, MESSAGE, WAITING, HINT, KNOWN = b"m", b"h", b"w", b"r", b"k"
"""The first bytes of keys."""
_OWED_MAX = 20_000
"""Beyond that, what should have been deleted while nothing could be kept is found, and goes, after the next loading."""


def message_key(number: int) -> bytes:
    """The key of a message of history: neighbours in time are neighbours on disk."""
    return MESSAGE + number.to_bytes(8, "big")


def block_key(number: int) -> bytes:
    """The key of a block of ids that are remembered."""
    return KNOWN + number.to_bytes(8, "big")


def _body(given: bytes | SdsMessage | StoredMessage) -> bytes:
    if isinstance(given, StoredMessage):
        return given.stored
    return given if isinstance(given, bytes) else store_message(given)


class ChannelChanges:
    """The items that a unit puts and deletes; no key is in both."""

    def __init__(self, places: ChannelPlaces) -> None:
        self._places = places
        self.puts: dict[bytes, tuple[bytes, int, bytes | SdsMessage | StoredMessage]] = {}
        self.deletes: dict[bytes, None] = {}

    def items(self) -> list[Item]:
        """What to put: each message is encoded here, once, however often it was said; or cut out of its wire form."""
        return [(key, number, _body(body)) for key, number, body in self.puts.values()]

    def add(self, update: HistoryUpdate, waiting: Sequence[SdsMessage]) -> None:
        """What one commit does to history, in this order; and messages that wait, ahead of the snapshot."""
        places = self._places
        for message_id in update.displaced:
            self._delete(places.displace(message_id))
        for message in update.append:
            number = places.place(message.message_id)
            self._put(message_key(number), number, update.written.get(message.message_id, message))
        for message_id in update.evict:
            self._delete(places.forget(message_id))
        for known in update.known:
            places.known.add(known)
        self._delete(map(block_key, places.known.trim(update.remembered)))
        for message in waiting:
            if message.message_id not in places:
                places.waiting.add(message.message_id)
                places.ahead.add(message.message_id)
                self._put(WAITING + raw(message.message_id), 0, message)

    def wait_for(self, meta: ChannelMeta, *, again: bool) -> Container[str]:
        """Messages that wait are items of their own, written once, unless history has them: the snapshot names them.

        An id that was used twice is the exception: both messages stay in the snapshot.
        """
        places = self._places
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
            if message_id not in places.waiting or (again and message_id not in places.ahead):
                self._put(WAITING + raw(message_id), 0, message)
        self._delete(WAITING + raw(message_id) for message_id in places.waiting if message_id not in waiting)
        places.waiting = set(waiting)
        return named

    def delete_owed(self) -> None:
        """What failed units were to delete, unless it is put again."""
        self.deletes.update(self._places.take_owed(self.puts))

    def _put(self, key: bytes, number: int, message: SdsMessage | StoredMessage) -> None:
        self.deletes.pop(key, None)
        self.puts[key] = (key, number, message)

    def _delete(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self.puts.pop(key, None)
            self.deletes[key] = None


class ChannelPlaces:
    """What is kept of one channel, by id; where a commit failed, what should be.

    Once a channel is loaded this is the writer's alone, who makes unit after unit; but for `loaded` and `newest`, which
    belong to the committer.
    """

    def __init__(self, space: str) -> None:
        self.space = space
        self._numbers: dict[str, int] = {}
        """Where the messages of history stand in its order."""
        self._next = 1
        self._under_way: deque[tuple[Unit, Sequence[bytes], Sequence[int]]] = deque()
        """Units under way, the keys that they delete, and the blocks of known ids that they put."""
        self._owed: dict[bytes, None] = {}
        """Keys that were to be deleted by commits that failed."""
        self.known = KnownBlocks()
        self.waiting: set[str] = set()
        self.ahead: set[str] = set()
        """Of what waits, what was put again already by earlier parts of the commit that says everything again."""
        self.hints: set[str] = set()
        self.loaded = True
        """Nothing was committed since it was loaded."""
        self.newest: UnitTicket | None = None
        """Of the last commit, if nothing else of this channel was handed over since: the next one may go with it."""

    def __contains__(self, message_id: str) -> bool:
        """Whether history has it."""
        return message_id in self._numbers

    def put(self, message_id: str, number: int) -> None:
        """A message of history has this number."""
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
        return [message_key(number)] if number else []

    def forget(self, message_id: str) -> list[bytes]:
        """The message is evicted; tells the keys to delete."""
        keys = self.displace(message_id)
        if message_id in self.hints:
            self.hints.discard(message_id)
            keys.append(HINT + raw(message_id))
        return keys

    # -- what failed commits were to delete ---------------------------------------------------------------

    def settle(self, *, again: bool) -> None:
        """Take notice of what became of units; if all is said again, those still under way are bound to fail."""
        while self._under_way and (again or self._under_way[0][0].group.done):
            unit, keys, blocks = self._under_way.popleft()
            self.known.settle(blocks, is_stored=unit.is_stored)
            if not unit.is_stored:
                for key in keys[: max(0, _OWED_MAX - len(self._owed))]:
                    self._owed[key] = None

    def forgive(self, key: bytes) -> None:
        """It is put again."""
        self._owed.pop(key, None)

    def take_owed(self, puts: Container[bytes]) -> dict[bytes, None]:
        """What failed units were to delete, unless it is put again; nobody owes it any more."""
        owed, self._owed = self._owed, {}
        return {key: None for key in owed if key not in puts} if owed else owed

    def await_outcome(self, unit: Unit, keys: Sequence[bytes], blocks: Sequence[int]) -> None:
        """A unit that deletes these keys, and puts these blocks, is made."""
        self.known.hand_over(blocks)
        if keys or blocks:
            self._under_way.append((unit, keys, blocks))
