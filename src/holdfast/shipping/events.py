"""What subscribers see: `accepted` when a batch that is durable here was handed to a connection, `shipped` when it
counts on the store, `resent` when the store has lost commits that it had acknowledged, and they are sent again.

A subscription is a bounded buffer between the shipper and one consumer. Publishing appends and notifies; it never waits
for a consumer and never raises. When the buffer is full the oldest events make room, and the next one that is
delivered says how many are missing before it (`missed`). Events come in the order in which they were published.

Publishers share one lock, which numbers the events; consumers of one subscription share another; no lock is common to
both, and none is held while they are notified. Losses are seen by the consumer as gaps in the numbers. A subscription
that nobody refers to any more is forgotten; `close()` says so at once.
"""

from __future__ import annotations

import weakref
from _thread import RLock
from asyncio import get_running_loop
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Literal, NamedTuple, Self

import msgspec

from holdfast.caller import once
from holdfast.errors import Closed, HoldfastError
from holdfast.signals import Signal

_SLEEP_S = 3600.0


class Event(msgspec.Struct, frozen=True):
    """Something that happened to a run of commits."""

    kind: Literal["accepted", "shipped", "resent"]
    """`accepted`: durable here, and handed to a connection. `shipped`: acknowledged, in order. `resent`: the store
    had lost these commits, and they are sent again.
    """
    first_seq: int
    """The first journal entry of the batch."""
    last_seq: int
    """The last one."""
    records: int
    """Records in it."""
    bytes: int
    """Its bytes."""
    missed: int = 0
    """Events dropped just before this one, because the consumer was slow."""


class _End(NamedTuple):
    """Why nothing more will come."""

    error: HoldfastError | None = None

    def raise_error(self) -> None:
        if self.error is not None:
            raise self.error.again()


_CLOSED = _End()


class Subscription:
    """Events from now on; iterate it with `for` or `async for`, and close it or use it in a `with` block."""

    def __init__(self, events_max: int, number: int, forget: Callable[[Subscription], None]) -> None:
        self._buffer: deque[tuple[int, Event]] = deque(maxlen=events_max)
        self._expected = number
        self._forget = forget
        self._taking = RLock()
        self._signal = Signal()
        self._end: _End | None = None
        self._is_closed = False

    def get(self, timeout: float) -> Event | None:
        """The next event; None when there was none within `timeout` seconds, or another thread took it.

        Raises Closed when there will be no more, or the error with which shipping ended.
        """
        found = self._look()
        if found is None:
            self._signal.sleep(self._has_news, timeout)
            found = self._look()
        if isinstance(found, _End):
            found.raise_error()
            raise Closed("no more events: the subscription was closed, or the log was")
        return found

    def close(self) -> None:
        """End it now; waiters for an event are woken. Events still held are dropped."""
        self._is_closed = True
        self._forget(self)
        self._buffer.clear()
        self._signal.notify()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        while (found := self._look()) is None:
            self._signal.sleep(self._has_news, _SLEEP_S)
        if isinstance(found, _End):
            found.raise_error()
            raise StopIteration
        return found

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        while (found := self._look()) is None:
            future = self._signal.future(get_running_loop(), _SLEEP_S)
            if not self._has_news():  # look again: it may have been done before we registered
                await future
        if isinstance(found, _End):
            found.raise_error()
            raise StopAsyncIteration
        return found

    def _look(self) -> Event | _End | None:
        """The next event; the end when all events were taken; None when there is nothing yet."""
        if self._is_closed:
            return _CLOSED
        # The end is read before the buffer: otherwise what was published in between would be lost.
        end = self._end
        event = self._take()
        return end if event is None else event

    def _take(self) -> Event | None:
        with once(self._taking):
            try:
                number, event = self._buffer.popleft()
            except IndexError:
                return None
            missed, self._expected = number - self._expected, number + 1
        return msgspec.structs.replace(event, missed=event.missed + missed) if missed else event

    def _has_news(self) -> bool:
        return bool(self._buffer) or self._end is not None or self._is_closed


class EventSubscribers:
    """All subscriptions of one log."""

    def __init__(self, events_max: int) -> None:
        self._events_max = events_max
        # Re-entrant: the garbage collector may close a forgotten `with` block in the midst of publishing.
        self._lock = RLock()
        self._published = 0
        self._subscriptions: tuple[weakref.ref[Subscription], ...] = ()
        self._end: _End | None = None

    def __len__(self) -> int:
        return len(self._alive())

    def subscribe(self) -> Subscription:
        """A new subscription, for events from now on; one that has ended when shipping has."""
        with once(self._lock):
            subscription = Subscription(self._events_max, self._published, self._forget)
            if self._end is not None:
                subscription._end = self._end
            else:
                self._subscriptions = (*map(weakref.ref, self._alive()), weakref.ref(subscription))
        return subscription

    def publish(self, event: Event) -> None:
        """Give an event to all; after the end it goes nowhere."""
        if not self._subscriptions:
            return
        with self._lock:
            subscriptions = self._alive()  # none after the end
            self._subscriptions = tuple(map(weakref.ref, subscriptions))  # without those that nobody holds any more
            for subscription in subscriptions:
                subscription._buffer.append((self._published, event))  # atomic; a full buffer drops its oldest
            self._published += 1
        for subscription in subscriptions:
            subscription._signal.notify()

    def end(self, error: HoldfastError | None) -> None:
        """Nothing more will come: the log was closed, or shipping ended with an error. The first end counts."""
        with self._lock:
            if self._end is not None:
                return
            self._end = end = _End(error)
            subscriptions = self._alive()
            for subscription in subscriptions:
                subscription._end = end
            self._subscriptions = ()
        for subscription in subscriptions:
            subscription._signal.notify()

    def _forget(self, gone: Subscription) -> None:
        with self._lock:
            self._subscriptions = tuple(weakref.ref(kept) for kept in self._alive() if kept is not gone)

    def _alive(self) -> list[Subscription]:
        references = self._subscriptions
        return [alive for reference in references if (alive := reference()) is not None]
