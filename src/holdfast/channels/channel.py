"""One channel at work: its state, its lock, what of it is kept, and its events in order.

Steps are taken under the channel's lock, and a step's commit is handed over before the lock is given back, so commits
have the order of steps. Waiting for the disk and telling the application happen outside of it. Events are delivered by
one thread at a time, in the order of steps, each step's when its commit is settled: durable, or refused. Steps in a row
may have one commit, if their backend takes them together.

When a commit fails the operation does not: memory is the truth, what was to be kept is still pending, and the next
operation or sweep of this channel says it again, complete. `persistence` tells.
"""

from __future__ import annotations

import logging
from _thread import RLock
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from threading import Lock

import msgspec

from holdfast.caller import once
from holdfast.channels.channel_events import Event, MessageReady, RepairReady
from holdfast.channels.keeping.pending_history import Batch, PendingHistory
from holdfast.channels.keeping.persistence import Commit, Persistence
from holdfast.channels.keeping.snapshot import BufferedMessage, ChannelMeta, KnownMessage, UnacknowledgedMessage
from holdfast.channels.keeping.stored_message import StoredMessage
from holdfast.channels.protocol.lamport import AheadOfClock, sendable
from holdfast.channels.protocol.machine import step
from holdfast.channels.protocol.state import ChannelState
from holdfast.channels.protocol.steps import NOT_WRITTEN, Input, Receive, StepEffects
from holdfast.channels.wire.dialect import DialectName
from holdfast.channels.wire.message import SdsMessage
from holdfast.errors import Closed, Corrupt, HoldfastError, Invalid, Unavailable

logger = logging.getLogger("holdfast.channels")


class PersistenceState(msgspec.Struct, frozen=True):
    """How well a channel is kept."""

    ok: bool
    """Everything up to the last settled operation is durable."""
    retrying_since_ms: int | None
    """Since when not (Unix time)."""
    pending: tuple[str, ...]
    """Ids of history that are not known to be kept, or to be gone; operations under way included."""
    error: str | None
    """What the backend said last."""


class ChannelStats(msgspec.Struct, frozen=True):
    """Counters of one channel since it was opened, and the size of its buffers now."""

    lamport: int
    """The Lamport time."""
    history: int
    """Messages remembered."""
    outgoing: int
    """Messages that are not acknowledged."""
    incoming: int
    """Messages that wait for others."""
    requests: int
    """Requests that are to be sent."""
    responses: int
    """Answers that are to be sent."""
    delivered_total: int
    """Messages delivered."""
    duplicates_total: int
    """Messages received again."""
    refused_total: int
    """Messages not taken: absurd ones, and those for which there was no room."""
    commits_total: int
    """Operations that went with one commit are counted once."""
    commits_failed_total: int
    """Commits that failed."""
    notes_dropped_total: int
    """Records of `_channels` that were dropped because nothing could be kept for so long."""
    clock_refused_total: int = 0
    """Of the refused ones: those whose Lamport time is too far ahead of our wall clock. Ten in a row are logged
    (`channel_clock_behind`): then it is our clock that is wrong.
    """
    forged_total: int = 0
    """Messages that came with the id of another one."""
    repairs_total: int = 0
    """Answers to others' requests."""
    repair_bytes_total: int = 0
    """Their bytes."""
    repairs_withheld_total: int = 0
    """Answers that were put off because the message was answered a moment ago, or left out for want of budget."""


class Flight:
    """A step with its commit and its events, until both are done with."""

    __slots__ = ("batch", "commit", "error", "events", "settled")

    def __init__(self, events: list[Event]) -> None:
        self.events = events
        self.batch: Batch | None = None
        """What its commit is to keep; None once a later commit has taken that over."""
        self.commit: Commit | None = None
        self.error: HoldfastError | None = None
        self.settled = True
        """Its events may be delivered."""


class Channel:
    """A channel that is loaded; got from `Channels.channel`."""

    def __init__(
        self, state: ChannelState, persistence: Persistence, tell: Callable[[Event], None], now: Callable[[], int]
    ) -> None:
        self.state = state
        self.id = state.rules.channel_id
        self.lock = RLock()
        self._backend = persistence
        self._tell = tell
        self._now = now
        self._pending = PendingHistory(state.rules.settings.history_max)
        self._flights: deque[Flight] = deque()
        """Steps whose commit is not settled, oldest first."""
        self._events: deque[Flight] = deque()
        """Steps whose events were not delivered, oldest first."""
        self._telling = Lock()
        self._failing_since: int | None = None
        self._error: HoldfastError | None = None
        self._dirty = False
        """What is kept is older than what is in memory, and no commit under way will change that."""
        self.removed = self._warned = False
        self._delivered = self._duplicates = self._refused = self._commits = self._commits_failed = 0

    # -- looking ------------------------------------------------------------------------------------------

    @property
    def dialect(self) -> DialectName:
        """The wire format it speaks."""
        return self.state.rules.dialect.name

    @property
    def persistence(self) -> PersistenceState:
        """How well it is kept."""
        with once(self.lock):
            self._settle()
            error = None if self._error is None else self._error.message
            return PersistenceState(self._failing_since is None, self._failing_since, self._pending.ids(), error)

    def stats(self) -> ChannelStats:
        """Counters and sizes."""
        with once(self.lock):
            state = self.state
            return ChannelStats(
                state.lamport,
                len(state.history),
                len(state.outgoing),
                len(state.incoming),
                len(state.requests),
                len(state.responses),
                self._delivered,
                self._duplicates,
                self._refused,
                self._commits,
                self._commits_failed,
                self._pending.notes_dropped,
                *state.guard.counters(),
            )

    def history(self) -> list[str]:
        """The ids that it remembers, oldest first."""
        with once(self.lock):
            return self.state.history.ids()

    def outgoing(self) -> list[UnacknowledgedMessage]:
        """Our messages that nobody has acknowledged."""
        with once(self.lock):
            return list(self.state.outgoing)

    def incoming(self) -> list[BufferedMessage]:
        """Messages that wait for others."""
        with once(self.lock):
            return list(self.state.incoming.values())

    def snapshot(self) -> ChannelMeta:
        """The state as it would be kept now."""
        with once(self.lock):
            return self.state.snapshot()

    def __repr__(self) -> str:
        return f"Channel({self.id!r}, dialect={self.dialect!r})"

    # -- working ------------------------------------------------------------------------------------------

    def take(self, given: Input) -> tuple[StepEffects, Flight]:
        """One step, and its commit if there is anything to keep, handed over."""
        with once(self.lock):
            if self.removed:
                raise Closed(f"the channel was removed channel={self.id}", hint="ensure_channel() creates it again")
            self._settle()
            _, effects = step(self.state, given, self._now())
            self._count(effects)
            if isinstance(given, Receive) and given.message.content and not self._warned:
                self._warn_of_history(len(given.message.causal_history))
            # What waits from before is said again as it is in memory, and encoded: its ids may have been used twice.
            written = NOT_WRITTEN if self._pending else effects.written
            self._pending.add(effects.appended, effects.evicted, effects.notes)
            self._pending.remember(effects.known)
            flight = Flight(effects.events)
            if effects.changed or self._dirty or self._pending:
                self._commit(flight, written)
            if flight.events:
                self._events.append(flight)
        return effects, flight

    def flush(self) -> Flight | None:
        """Hand over what waits to be kept; returns the newest commit that is under way, if one is."""
        with once(self.lock):
            self._settle()
            if self._dirty or self._pending:
                self._commit(Flight([]))
            return self._flights[-1] if self._flights else None

    def mend(self, beyond: list[str], unknown: list[KnownMessage]) -> None:
        """After loading: what is beyond the limits goes, and what was not remembered is, with the next commit."""
        with once(self.lock):
            self._pending.add((), beyond, ())
            self._pending.remember(unknown)

    def settle(self, flight: Flight) -> None:
        """Take notice of commits whose outcome is known by now; that of this one should be."""
        with once(self.lock):
            self._settle()
            if not flight.settled:
                self._fails(Unavailable("the backend has not answered in time", hint="its disk may be stalled"))

    def doubt(self) -> None:
        """It could not be dropped, or so it seems: what is kept of it is said again with the next commit, all of it."""
        self._pending.renew(self.state.history.ids())
        self._pending.remember([self.state.known_of(message) for message in self.state.history.messages()])
        self._dirty = True

    def _commit(self, flight: Flight, written: Mapping[str, StoredMessage] = NOT_WRITTEN) -> None:
        if self._dirty and any(one.batch is not None for one in self._flights):
            return  # what is kept next must be complete, and what is under way may yet fail: it waits for that
        flight.batch, update = self._pending.take(self.state.history, len(self.state.known), written)
        flight.settled = False
        self._commits += 1
        before = self._flights[-1].commit if self._flights else None
        self._flights.append(flight)
        try:
            flight.commit = self._backend.commit(self.id, self.state.snapshot(), update, reissue=self._dirty)
            self._dirty = False
            if before is not None and flight.commit is before:  # it goes with the one before
                self._commits -= 1
        except Exception as error:  # a backend is foreign code
            flight.error, flight.settled = as_failure(error), True
            self._flights.pop()
            self._failed([flight], flight.error)
        self._settle()

    def _settle(self) -> None:
        while self._flights and ((commit := self._flights[0].commit) is None or commit.done):
            flight = self._flights.popleft()
            flight.settled = True
            if flight.error is None and flight.commit is not None:
                try:
                    flight.commit.result(0)
                except Exception as error:
                    flight.error = as_failure(error)
            if flight.batch is None:
                continue
            if flight.error is None:
                self._pending.kept(flight.batch)
                self._recovered()
            else:  # those behind it fail with it
                self._failed([flight, *self._flights], flight.error)

    def _failed(self, flights: Sequence[Flight], error: HoldfastError) -> None:
        """What these were to keep is pending again."""
        self._pending.failed([one.batch for one in flights if one.batch is not None])
        for one in flights:
            one.batch = None
        self._dirty = True
        self._commits_failed += 1
        self._fails(error)

    def _fails(self, error: HoldfastError) -> None:
        self._error = error
        if self._failing_since is None:
            self._failing_since = self._now()
            logger.error(
                "channel cannot be kept, going on in memory channel=%s: %s",
                self.id,
                error.message,
                extra={"action": "channel_not_kept", "channel": self.id},
                exc_info=error,
            )

    def _recovered(self) -> None:
        if self._dirty:
            return
        if self._failing_since is not None:
            logger.info(
                "channel is kept again channel=%s", self.id, extra={"action": "channel_kept", "channel": self.id}
            )
        self._failing_since = self._error = None

    def _warn_of_history(self, named: int) -> None:
        """Once: it costs reads of the log for what history should have at hand, and nobody else would tell."""
        most = self.state.rules.settings.history_max
        if named > most:
            self._warned = True
            logger.warning(
                "a peer's messages name more causes (%d) than channels.history_max has at hand (%d): raise it to %d or "
                "more channel=%s",
                named,
                most,
                2 * named,
                self.id,
                extra={"action": "channel_history_short", "channel": self.id},
            )

    def _count(self, effects: StepEffects) -> None:
        if effects.received is not None:
            self._duplicates += effects.received.duplicate
            self._refused += effects.received.refused
        for event in effects.events:
            self._delivered += isinstance(event, MessageReady)

    def refuse(self, error: Invalid) -> None:
        """Count a message that was not even taken."""
        with once(self.lock):
            self._refused += 1
            if isinstance(error, AheadOfClock):
                self.state.guard.refuse_time(self.id)

    def set_hint(self, message_id: str, hint: bytes) -> None:
        """Keep the retrieval hint of a message in history; that it cannot be kept is logged and no more."""
        with once(self.lock):  # else the message might go first, and its hint would stay forever
            if self.removed or message_id not in self.state.history:
                return
            self.state.hints[message_id] = hint
            try:
                self._backend.set_retrieval_hint(self.id, message_id, hint)
            except Exception as error:
                logger.warning(
                    "a retrieval hint was not kept channel=%s: %s",
                    self.id,
                    as_failure(error).message,
                    extra={"action": "channel_hint_not_kept", "channel": self.id},
                )

    # -- answering from the log ---------------------------------------------------------------------------

    def find(self, wanted: Sequence[KnownMessage]) -> list[SdsMessage]:
        """Messages that have left history, if the backend finds them; under no lock, for that may take a while."""
        try:
            return list(self._backend.find_messages(self.id, wanted))
        except Exception as error:
            logger.warning(
                "requested messages were not found channel=%s: %s",
                self.id,
                as_failure(error).message,
                extra={"action": "channel_not_found", "channel": self.id},
            )
            return []

    def answer(self, messages: Sequence[SdsMessage]) -> None:
        """Have these broadcast for those who asked, as far as the budget goes."""
        rules, guard, now = self.state.rules, self.state.guard, self._now()
        events: list[Event] = []
        with once(self.lock):
            for message in messages:
                if not guard.may_answer:
                    guard.withheld += 1
                    continue
                data = rules.dialect.encode(sendable(message, rules.dialect, rules.settings, now))
                guard.answer(message.message_id, len(data), now)
                events.append(RepairReady(self.id, message.message_id, data))
            self._events.append(Flight(events))
        self.tell()

    def forget(self) -> None:
        """It was removed: nothing of it will be kept any more; what happened before is still delivered."""
        self.removed = True
        self._pending.clear()
        for flight in self._flights:
            flight.settled = True
        self._flights.clear()

    # -- telling ------------------------------------------------------------------------------------------

    def tell(self) -> None:
        """Tell the application what is settled, in order; the thread that delivers already delivers this, too."""
        while self._events and (self._events[0].settled or self.removed):
            if not self._telling.acquire(blocking=False):
                return
            try:
                while self._events and (self._events[0].settled or self.removed):
                    for event in self._events.popleft().events:
                        self._tell(event)
            finally:
                self._telling.release()


def as_failure(error: Exception) -> HoldfastError:
    """A backend's failure as one of ours."""
    if isinstance(error, Unavailable | Corrupt | Closed):
        return error
    if isinstance(error, HoldfastError):
        failure: HoldfastError = Unavailable(error.message, hint=error.hint)
    else:
        failure = Unavailable(f"the channel's backend failed: {type(error).__name__}: {error}", hint="see the cause")
    failure.__cause__ = error
    return failure
