"""Shipping's events in processes that do not ship: the owner sends them, and each of the others has its subscriptions.

`EventCalls` is at the owner: one subscription there, passed on to every process that asked for events. The other side,
`ShippingEventRelay`, is in a member: what comes goes to its own subscriptions, which are bounded as those of the
owner are. Nobody waits for a slow one. When the log changes hands, the next owner is asked for its events; some may
have happened of which nobody heard, so the first one that comes says that one, or more, is missing before it.
"""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING

import msgspec

from holdfast.caller import once
from holdfast.errors import Closed, HoldfastError
from holdfast.journal.commit.owner_calls import Asking, Nothing
from holdfast.journal.sessions.outcomes import Refusal
from holdfast.owner.link_port import MET, OwnerLink
from holdfast.owner.peer import Peer
from holdfast.shipping.events import Event, EventSubscribers, Subscription

if TYPE_CHECKING:
    from holdfast.log.ports import StorePort

SHIPPING = "shipping"


class ShippingNews(msgspec.Struct, frozen=True, array_like=True):
    """The event `shipping`: something happened to commits, or nothing more will."""

    event: Event | None
    end: Refusal | None = None


_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(ShippingNews).decode


class EventCalls:
    """Tells the clients of one owner; `_lock` guards who they are, and the subscription."""

    def __init__(self, store: StorePort) -> None:
        self._store = store
        self._callers: set[Peer] = set()
        self._lock = RLock()
        self._subscription: Subscription | None = None

    def subscribe(self, caller: Peer) -> Nothing:
        """Tell a peer what happens to commits."""
        with once(self._lock):
            if self._subscription is None:
                self._subscription = self._store.subscribe()
                work = partial(self._work, self._subscription)
                Thread(target=work, name="holdfast-shipping-news", daemon=True).start()
            if caller in self._callers:
                return Nothing()
            self._callers.add(caller)
        caller.at_end(partial(self._forget, caller))
        return Nothing()

    def _forget(self, caller: Peer) -> None:
        with once(self._lock):
            self._callers.discard(caller)

    def stop(self) -> None:
        """The owner ends: its clients ask the next one."""
        with once(self._lock):
            subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.close()

    def _work(self, subscription: Subscription) -> None:
        end: Refusal | None = None
        try:
            for event in subscription:
                self._tell(ShippingNews(event))
        except HoldfastError as error:  # shipping has ended for good
            end = Refusal.of(error)
        with once(self._lock):
            if self._subscription is subscription:
                self._subscription = None
        if end is not None:  # last: a caller that comes from now on begins another subscription
            self._tell(ShippingNews(None, end))

    def _tell(self, news: ShippingNews) -> None:
        body = _encode(news)
        with once(self._lock):
            callers = tuple(self._callers)
        for caller in callers:
            caller.tell(SHIPPING, body)


class ShippingEventRelay:
    """The subscriptions of one member; the link's lock guards which they are, and what was missed.

    Events come in turns of the link, where it is held.
    """

    def __init__(
        self,
        link: OwnerLink,
        asking: Asking,
        soon: Callable[[Callable[[], None]], None],
        events_max: int,
        timeout: float,
    ) -> None:
        """`soon` does something in a thread that may wait for the owner."""
        self._asking = asking
        self._soon = soon
        self._events_max = events_max
        self._timeout = timeout
        self._subscribers = EventSubscribers(events_max)
        self._lock = link.turns
        self._is_told = False
        self._has_gap = False
        link.on_event(SHIPPING, self._take)
        link.on_event(MET, self._met)

    def subscribe(self) -> Subscription:
        """Events from now on; raises what the owner's own log would."""
        with once(self._lock):
            subscription = self._subscribers.subscribe()
            self._is_told = True  # before it is asked: an owner that comes meanwhile is asked, too
        try:
            self._ask()
        except BaseException:
            subscription.close()
            raise
        return subscription

    def _ask(self) -> None:
        self._asking.ask("subscribe", Nothing(), Nothing, self._timeout)

    def _met(self, _: bytes) -> None:
        """There is another owner."""
        self._has_gap = self._is_told
        if self._is_told:
            self._soon(self._ask)

    def _take(self, body: bytes) -> None:
        try:
            news = _decode(body)
        except msgspec.MsgspecError:
            return
        if news.event is not None:
            gap, self._has_gap = int(self._has_gap), False
            self._subscribers.publish(msgspec.structs.replace(news.event, missed=news.event.missed + gap))
        elif news.end is not None:
            subscribers, self._subscribers = self._subscribers, EventSubscribers(self._events_max)
            subscribers.end(news.end.error())

    def close(self) -> None:
        """The log is closed: waiters for events are woken."""
        with once(self._lock):
            subscribers = self._subscribers
        subscribers.end(None)

    def forget(self) -> None:
        """In a forked child: the subscriptions are the parent's."""
        self._lock = RLock()
        self._subscribers = EventSubscribers(self._events_max)
        self._subscribers.end(Closed("this log was opened before a fork", reason="forked"))
