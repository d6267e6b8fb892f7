"""Delivered messages as an async iterator: in order, none left out, and no more of them in memory than allowed.

    messages = channels.delivered("room")
    async for message in messages:
        …

It has every message that is delivered from the moment that it is made, in causal order; each of several iterators has
all of them. Messages wait in it until they are fetched. Nobody who delivers waits for that: a callback must not block,
and the one who asks may run on the same loop. Instead, when `waiting_max` of them wait, received content is refused, as
if the network had lost it: it is sent again, or requested again, when there is room. So nothing is lost, but for
ephemeral messages, and memory is bounded: one packet may free messages that wait for it, `channels.incoming_max` of
them at most, and those are taken.

Cancelling a waiter loses no message. The iterator ends when the channels are closed or the channel is removed, after
the messages that were delivered before. One that nobody holds any more is forgotten.
"""

from __future__ import annotations

import asyncio
from _thread import RLock
from collections import deque
from types import TracebackType
from typing import Self
from weakref import ref

from holdfast.caller import once
from holdfast.channels.channel_events import MessageReady
from holdfast.channels.wire.message import SdsMessage
from holdfast.errors import Full, Invalid


class Delivered:
    """Messages of one channel as they are delivered; got from `Channels.delivered`."""

    def __init__(self, channel_id: str, waiting_max: int) -> None:
        self.channel_id = channel_id
        self._waiting_max = waiting_max
        self._messages: deque[MessageReady] = deque()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._lock = RLock()
        self._over = False

    @property
    def waiting(self) -> int:
        """Messages that were delivered and not asked for yet."""
        return len(self._messages)

    @property
    def is_full(self) -> bool:
        """Whether content is refused until a participant asks for what waits."""
        return len(self._messages) >= self._waiting_max and not self._over

    def put(self, message: MessageReady) -> None:
        """From any thread, in order."""
        with once(self._lock):
            if not self._over:
                self._messages.append(message)
        self._wake()

    def end(self) -> None:
        """Nothing more will come; what waits can still be had."""
        with once(self._lock):
            self._over = True
        self._wake()

    def close(self) -> None:
        """Nothing more is wanted; waiters for a message stop."""
        with once(self._lock):
            self._messages.clear()
            self._over = True
        self._wake()

    async def aclose(self) -> None:
        """`close`, as `contextlib.aclosing` calls it."""
        self.close()

    def _wake(self) -> None:
        with once(self._lock):
            waiters = list(self._waiters)
        for loop, event in waiters:
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:  # its loop is closed: nobody waits there
                pass

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MessageReady:
        waiter = asyncio.get_running_loop(), asyncio.Event()
        with once(self._lock):
            self._waiters.append(waiter)
        try:
            while True:
                with once(self._lock):
                    # Nothing is awaited after this: a cancelled waiter has taken nothing.
                    if self._messages:
                        return self._messages.popleft()
                    if self._over:
                        raise StopAsyncIteration
                    waiter[1].clear()
                await waiter[1].wait()
        finally:
            with once(self._lock):
                self._waiters.remove(waiter)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Delivered({self.channel_id!r}, {len(self._messages)} wait)"


class DeliverySubscribers:
    """All iterators of one participant; those that are forgotten elsewhere are forgotten here."""

    def __init__(self) -> None:
        self._refs: tuple[ref[Delivered], ...] = ()
        self._lock = RLock()

    def add(self, channel_id: str, waiting_max: int) -> Delivered:
        """One more."""
        if waiting_max < 1:
            raise Invalid(f"waiting_max must be at least 1, not {waiting_max}", hint="the default is 1000")
        made = Delivered(channel_id, waiting_max)
        with once(self._lock):
            self._refs = (*(one for one in self._refs if one() is not None), ref(made))
        return made

    def tell(self, event: MessageReady) -> None:
        """A message is delivered."""
        for one in self._of(event.channel_id):
            one.put(event)

    def check_room(self, message: SdsMessage) -> None:
        """Refuse content that nobody has asked for yet; what is lost on the network comes again."""
        if self._refs and message.content and any(one.is_full for one in self._of(message.channel_id)):
            raise Full(
                f"delivered messages wait to be read channel={message.channel_id!r}",
                hint="read them: `async for message in channels.delivered(…)`; it comes again",
            )

    def end(self, channel_id: str | None = None) -> None:
        """A channel was removed, or all are closed."""
        for made in self._refs:
            one = made()
            if one is not None and channel_id in (None, one.channel_id):
                one.end()

    def forget(self) -> None:
        """In a forked child: they belong to the parent's loops."""
        self._refs, self._lock = (), RLock()

    def _of(self, channel_id: str) -> list[Delivered]:
        found = (made() for made in self._refs)
        return [one for one in found if one is not None and one.channel_id == channel_id]
