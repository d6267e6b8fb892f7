"""History that is not known to be kept yet: what to append and what to evict, by id.

Two things in one. Within an operation it gathers what one commit will change; and when commits fail it holds what has
to be said again. The latest word about an id wins, so an id is never in both lists, and every id to append is in
history, where its message is looked up when the time comes. One that was evicted and came back is at the end of history
then, wherever it may still stand on disk: it is displaced, and so are those behind it.

A commit *takes* everything; until its outcome is known it is in flight. Success forgets exactly what was taken;
failure puts it back below whatever came since.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import dropwhile

import msgspec

from holdfast.channels.keeping.snapshot import HistoryUpdate, KnownMessage, Note
from holdfast.channels.keeping.stored_message import StoredMessage
from holdfast.channels.protocol.state import MessageHistory
from holdfast.channels.protocol.steps import NOT_WRITTEN


class Batch(msgspec.Struct, frozen=True, gc=False, eq=False):
    """What one commit took: the very values of its update, where they are the same."""

    appends: tuple[str, ...]
    evicts: tuple[str, ...]
    notes: tuple[Note, ...]
    returned: tuple[str, ...]
    known: tuple[KnownMessage, ...]

    def displaced(self) -> tuple[str, ...]:
        """Those behind one that is put at the end come after it."""
        if not self.returned:  # as usual
            return ()
        returned = set(self.returned)
        return tuple(dropwhile(lambda message_id: message_id not in returned, self.appends))


class PendingHistory:
    """The queue of one channel."""

    def __init__(self, notes_max: int) -> None:
        self._notes_max = notes_max
        self._appends: dict[str, None] = {}
        self._evicts: dict[str, None] = {}
        self._notes: list[Note] = []
        self._returned: dict[str, None] = {}
        """Ids to append that are to be evicted first, if they are still where they were."""
        self._known: list[KnownMessage] = []
        self._flying: list[Batch] = []
        self.notes_dropped = 0

    def __bool__(self) -> bool:
        return bool(self._appends or self._evicts or self._notes)

    def ids(self) -> tuple[str, ...]:
        """Every id that is not known to be kept, or known to be gone, in flight or not."""
        flying = (one for batch in self._flying for one in (*batch.appends, *batch.evicts))
        return tuple(dict.fromkeys((*flying, *self._appends, *self._evicts)))

    def add(self, appended: Iterable[str], evicted: Sequence[str], notes: Sequence[Note]) -> None:
        """What one step did, in this order: an id that came and went at once only goes."""
        self._merge(appended, evicted)
        if notes:
            # Those of one step stay together, however many they are: a cascade may deliver more than history holds.
            self._keep_notes(self._notes, self._notes_max - len(notes))
            self._notes += notes

    def remember(self, known: Sequence[KnownMessage]) -> None:
        """Ids to remember; by themselves they are no reason for a commit."""
        self._known += known

    def take(
        self, history: MessageHistory, remembered: int = 0, written: Mapping[str, StoredMessage] = NOT_WRITTEN
    ) -> tuple[Batch, HistoryUpdate]:
        """Everything that waits, as the update for one commit; so many ids are remembered with it.

        `written` is given where nothing waits but what one step did.
        """
        batch = self._all()
        found = tuple([message for one in batch.appends if (message := history.get(one)) is not None])
        update = HistoryUpdate(found, batch.evicts, batch.notes, batch.displaced(), batch.known, remembered, written)
        self._flying.append(batch)
        return batch, update

    def kept(self, batch: Batch) -> None:
        """What a commit took is durable."""
        self._flying.remove(batch)

    def failed(self, batches: Sequence[Batch]) -> None:
        """What these commits took, in their order, has to be said again."""
        later = self._all()
        for batch in (*batches, later):
            if batch is not later:
                self._flying.remove(batch)
            self._merge(batch.appends, batch.evicts, set(batch.returned))
            self._notes += batch.notes
            self.remember(batch.known)
        self._keep_notes(self._notes, self._notes_max)

    def renew(self, message_ids: Iterable[str]) -> None:
        """All of history has to be said again, in its order."""
        self._appends = dict.fromkeys(message_ids)

    def clear(self) -> None:
        """The channel is gone."""
        self._all()
        self._flying = []

    def _all(self) -> Batch:
        """Everything that waits; nothing does any more."""
        batch = Batch(
            tuple(self._appends), tuple(self._evicts), tuple(self._notes), tuple(self._returned), tuple(self._known)
        )
        for taken in (self._appends, self._evicts, self._notes, self._returned, self._known):
            taken.clear()
        return batch

    def _merge(self, appended: Iterable[str], evicted: Iterable[str], returned: Container[str] = ()) -> None:
        for message_id in appended:
            if message_id in self._evicts or message_id in returned:
                self._evicts.pop(message_id, None)
                self._appends.pop(message_id, None)
                self._returned[message_id] = None
            self._appends[message_id] = None
        for message_id in evicted:
            self._appends.pop(message_id, None)
            self._returned.pop(message_id, None)
            self._evicts[message_id] = None

    def _keep_notes(self, notes: list[Note], most: int) -> None:
        """Notes are for onlookers: while nothing can be kept, the oldest go."""
        excess = min(len(notes), len(notes) - most)
        if excess > 0:
            self.notes_dropped += excess
            notes = notes[excess:]
        self._notes = notes
