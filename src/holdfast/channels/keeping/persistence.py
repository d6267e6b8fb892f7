"""The port through which channels are kept, and its two backends that need no disk.

A backend gets values, not bytes; encoding is its own business (`storage` has one). A method returns when its changes
are durable, and raises when it is not: `Unavailable` or `Corrupt`, with the cause. Any other exception is taken for
`Unavailable` and logged once, where it came through.

`commit` is what holdfast uses: the snapshot and the change of history, both or neither. A backend that cannot do that
inherits it from `Persistence`: history first, then the snapshot, so that a crash in between leaves a message in both
places, which loading mends, and never in none. A backend that can hand a commit over and learn of its outcome later
returns a `Commit`; its order is the order of calls, and after one has failed all later ones of that channel fail, until
one says `reissue`: that one is complete. As long as it has not begun with one, it may take the next ones of that
channel along, and returns the same `Commit` for each.
"""

from __future__ import annotations

from _thread import RLock
from collections.abc import Generator, Iterable, Sequence
from typing import Any, Protocol

from holdfast.channels.keeping.snapshot import ChannelData, ChannelMeta, HistoryUpdate, KnownMessage, Note
from holdfast.channels.wire.message import SdsMessage
from holdfast.errors import Unavailable


class Commit(Protocol):
    """A commit that was handed over."""

    @property
    def done(self) -> bool:
        """Whether its outcome is known."""

    def result(self, timeout: float | None = None) -> object:
        """Wait until it is durable; raises what became of it."""

    def __await__(self) -> Generator[Any, None, object]: ...


class Persistence:
    """What a backend has to do; the base class of backends."""

    blocks = True
    """Whether `commit` waits for a disk; on an event loop it is then called in a thread."""

    def save_channel_meta(self, channel_id: str, meta: ChannelMeta) -> None:
        """Keep a channel's snapshot in place of the one before."""
        raise NotImplementedError

    def update_history(self, channel_id: str, update: HistoryUpdate) -> None:
        """Append messages (replacing those with the same id, in their place unless `displaced`), then evict.

        `update.known` and `update.remembered` may be passed over: then what has left history is not known any more
        after a restart, and would be delivered again.
        """
        raise NotImplementedError

    def load_channel(self, channel_id: str) -> ChannelData:
        """All that is kept of a channel, history in the order of appending; of a channel never kept, nothing."""
        raise NotImplementedError

    def drop_channel(self, channel_id: str) -> None:
        """Forget a channel; one that was never kept is no error."""
        raise NotImplementedError

    def set_retrieval_hint(self, channel_id: str, message_id: str, hint: bytes) -> None:
        """Keep a hint for a message of history; it goes when the message is evicted."""
        raise NotImplementedError

    def commit(
        self, channel_id: str, meta: ChannelMeta, update: HistoryUpdate, *, reissue: bool = False
    ) -> Commit | None:
        """Keep a snapshot and a change of history together; None = it is durable."""
        if update.append or update.evict or update.known:
            self.update_history(channel_id, update)
        self.save_channel_meta(channel_id, meta)
        return None

    def find_messages(self, channel_id: str, wanted: Sequence[KnownMessage]) -> Iterable[SdsMessage]:
        """Messages that have left history, as far as they can still be found; by default none can.

        It is called outside of all locks, on an event loop in a thread, and may take its time. What it raises is
        logged, and is as if it had found nothing.
        """
        return ()

    def close(self) -> None:
        """Nothing more will be asked of it."""


class NoPersistence(Persistence):
    """Keeps nothing: a channel lives as long as its process."""

    blocks = False

    def save_channel_meta(self, channel_id: str, meta: ChannelMeta) -> None:
        """Nothing."""

    def update_history(self, channel_id: str, update: HistoryUpdate) -> None:
        """Nothing."""

    def load_channel(self, channel_id: str) -> ChannelData:
        """An empty channel."""
        return ChannelData()

    def drop_channel(self, channel_id: str) -> None:
        """Nothing."""

    def set_retrieval_hint(self, channel_id: str, message_id: str, hint: bytes) -> None:
        """Nothing."""

    def commit(
        self, channel_id: str, meta: ChannelMeta, update: HistoryUpdate, *, reissue: bool = False
    ) -> Commit | None:
        """Nothing."""
        return None


class MemoryPersistence(Persistence):
    """Keeps channels in memory, and fails on demand: for tests, of holdfast and of what is built on it.

    It outlives the `Channels` that use it, as a disk would. `failing_ops` names methods that raise; a commit also
    fails when one of the two that it stands for is named.

    >>> store = MemoryPersistence(failing_ops={"update_history"})
    >>> try:
    ...     store.commit("room", ChannelMeta(), HistoryUpdate())
    ... except Unavailable as error:
    ...     print(error.message)
    update_history was made to fail
    """

    blocks = False

    def __init__(self, failing_ops: Iterable[str] = ()) -> None:
        self.failing_ops = set(failing_ops)
        """May be changed at any time."""
        self.calls: list[tuple[str, str]] = []
        """Method and channel of every call."""
        self._channels: dict[str, _ChannelCopy] = {}
        self._lock = RLock()

    def save_channel_meta(self, channel_id: str, meta: ChannelMeta) -> None:
        """Replace the snapshot."""
        with self._calling(channel_id, "save_channel_meta"):
            self._kept(channel_id).meta = meta

    def update_history(self, channel_id: str, update: HistoryUpdate) -> None:
        """Change history."""
        with self._calling(channel_id, "update_history"):
            self._kept(channel_id).change(update)

    def load_channel(self, channel_id: str) -> ChannelData:
        """What was saved."""
        with self._calling(channel_id, "load_channel"):
            kept = self._channels.get(channel_id) or _ChannelCopy()
            return ChannelData(kept.meta, tuple(kept.history.values()), dict(kept.hints), tuple(kept.known))

    def drop_channel(self, channel_id: str) -> None:
        """Forget it."""
        with self._calling(channel_id, "drop_channel"):
            self._channels.pop(channel_id, None)

    def set_retrieval_hint(self, channel_id: str, message_id: str, hint: bytes) -> None:
        """Keep the hint."""
        with self._calling(channel_id, "set_retrieval_hint"):
            self._kept(channel_id).hints[message_id] = hint

    def commit(
        self, channel_id: str, meta: ChannelMeta, update: HistoryUpdate, *, reissue: bool = False
    ) -> Commit | None:
        """Both or neither."""
        with self._calling(channel_id, "commit", "save_channel_meta", "update_history"):
            kept = self._kept(channel_id)
            kept.meta = meta
            kept.change(update)
        return None

    def find_messages(self, channel_id: str, wanted: Sequence[KnownMessage]) -> Iterable[SdsMessage]:
        """Those whose ids are remembered."""
        with self._calling(channel_id, "find_messages"):
            notes = self._kept(channel_id).notes
            found = [notes[known.message_id] for known in wanted if known.message_id in notes]
        return [
            SdsMessage(note.message_id, channel_id, note.lamport, note.content, note.sender_id, note.causes)
            for note in found
        ]

    def _calling(self, channel_id: str, name: str, *parts: str) -> RLock:
        self.calls.append((name, channel_id))
        failing = next((one for one in (name, *parts) if one in self.failing_ops), None)
        if failing is not None:
            raise Unavailable(f"{failing} was made to fail", hint="take it out of failing_ops")
        return self._lock

    def _kept(self, channel_id: str) -> _ChannelCopy:
        return self._channels.setdefault(channel_id, _ChannelCopy())


class _ChannelCopy:
    """One channel."""

    def __init__(self) -> None:
        self.meta = ChannelMeta()
        self.history: dict[str, SdsMessage] = {}
        self.hints: dict[str, bytes] = {}
        self.known: list[KnownMessage] = []
        self.notes: dict[str, Note] = {}
        """What is known of messages whose ids are remembered, as a log has it in its topic."""

    def change(self, update: HistoryUpdate) -> None:
        self.known += update.known
        excess = len(self.known) - update.remembered if update.remembered else 0
        if excess > 0:
            for forgotten in self.known[:excess]:
                self.notes.pop(forgotten.message_id, None)
            del self.known[:excess]
        self.notes.update((note.message_id, note) for note in update.notes if note.kind in ("sent", "delivered"))
        for message_id in update.displaced:
            self.history.pop(message_id, None)
        for message in update.append:
            self.history[message.message_id] = message
        for message_id in update.evict:
            self.history.pop(message_id, None)
            self.hints.pop(message_id, None)
