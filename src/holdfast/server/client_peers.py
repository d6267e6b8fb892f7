"""Clients that hear of events: each is a peer of the log's owner for as long as it asks for its events.

A client names a session with its calls, and asks for events under the same one, again and again. Its peer is there
from the first of these requests on, and gone when nobody asked for a while, or when the client says goodbye: then its
members of consumers leave, and what it watched is watched no more.

Events wait, numbered, until the client says that it has them, so that an answer that is lost loses none of them. Those
who wait are few and what waits is bounded: a client that lets too much gather is another peer from then on, which it
learns with its next answer. It then looks at everything itself, as one does who has met another owner.

All of it belongs to the event loop, but for what `tell` brings from any thread, which the peer's own lock guards.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from threading import Lock

import msgspec

from holdfast.clock import Clock
from holdfast.log.consumers.member_messages import JoinConsumer, LeaveConsumer, SyncMember
from holdfast.owner.peer import Peer
from holdfast.owner.wire import WaitingEvent, WaitingEvents
from holdfast.server.guards.places import Places
from holdfast.server.request_caller import Caller

_EVENTS_MAX, _BYTES_MAX = 1_000, 2**20
_ANSWER_EVENTS = 200
_ID_BYTES = 8


class ClientPeer(Peer):
    """One of them."""

    def __init__(self, session: bytes, caller: Caller, clock: Clock) -> None:
        super().__init__(session, 0, self._hear, caller)
        self.caller = caller
        self.members: set[bytes] = set()
        """The tokens of its members of consumers."""
        self.used_at = 0.0
        self.is_waited_for = False
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._news = asyncio.Event()
        self._turn = 0
        self._events: deque[WaitingEvent] = deque()
        self._id = clock.random_bytes(_ID_BYTES)
        self._number = self._given = self._bytes = 0
        self._guard = Lock()

    def _hear(self, name: str, body: bytes) -> None:
        with self._guard:
            last = self._events[-1] if self._events else None
            if last is not None and last.number > self._given and (last.name, last.body) == (name, body):
                return  # it is going to hear that
            self._number += 1
            self._events.append(WaitingEvent(self._number, name, body))
            self._bytes += len(body)
            if len(self._events) > _EVENTS_MAX or self._bytes > _BYTES_MAX:
                self._id = self._clock.random_bytes(_ID_BYTES)
                self._events.clear()
                self._bytes = 0
        try:
            self._loop.call_soon_threadsafe(self._news.set)
        except RuntimeError:  # the server has ended
            pass

    async def events(self, after: int, wait: float) -> WaitingEvents:
        """The events behind a number; waits until there is one. A later question ends an earlier one."""
        self._turn += 1
        turn = self._turn
        self._news.set()
        deadline = self._loop.time() + wait
        self.is_waited_for = True
        try:
            while True:
                self._news.clear()
                found = self._waiting(after)
                left = deadline - self._loop.time()
                if found.events or turn != self._turn or left <= 0 or self.is_gone:
                    return found
                try:
                    await asyncio.wait_for(self._news.wait(), left)
                except TimeoutError:
                    pass
        finally:
            if turn == self._turn:
                self.is_waited_for = False
                self.used_at = self._loop.time()

    def _waiting(self, after: int) -> WaitingEvents:
        with self._guard:
            while self._events and self._events[0].number <= after:
                self._bytes -= len(self._events.popleft().body)
            found = tuple(islice(self._events, _ANSWER_EVENTS))
            self._given = max(self._given, found[-1].number if found else 0)
            return WaitingEvents(self._id, found)


class ClientPeers:
    """All of one server; used by the event loop alone."""

    def __init__(self, peers: Places, members: Places, timeout: float, clock: Clock) -> None:
        self._peers: dict[bytes, ClientPeer] = {}
        self._places = peers
        self._members = members
        self._timeout = timeout
        self._clock = clock
        self._reaper: asyncio.Task[None] | None = None

    def of(self, caller: Caller, session: bytes) -> ClientPeer:
        """The peer of a session, which its token alone can name; Full where there is no place for one more."""
        found = self._peers.get(session)
        if found is None:
            self._places.take(caller)
            found = self._peers[session] = ClientPeer(session, caller, self._clock)
            if self._reaper is None or self._reaper.done():
                self._reaper = asyncio.ensure_future(self._reap())
        found.used_at = asyncio.get_running_loop().time()
        return found

    @contextmanager
    def member_place(self, peer: ClientPeer, message: msgspec.Struct) -> Iterator[None]:
        """A member that joins takes a place, unless it has one; one that goes gives it back."""
        is_new = isinstance(message, JoinConsumer) and message.token not in peer.members
        if isinstance(message, JoinConsumer) and is_new:
            self._members.take(peer.caller)
            peer.members.add(message.token)
        try:
            yield
        except BaseException:
            if isinstance(message, JoinConsumer) and is_new:
                self._forget(peer, message.token)
            raise
        for token in _gone(message):
            self._forget(peer, token)
        if peer.is_gone:  # it said goodbye meanwhile
            self._forget_all(peer)

    def _forget(self, peer: ClientPeer, token: bytes) -> None:
        if token in peer.members:
            peer.members.remove(token)
            self._members.give_back(peer.caller)

    def _forget_all(self, peer: ClientPeer) -> None:
        for token in tuple(peer.members):
            self._forget(peer, token)

    def end(self, session: bytes) -> None:
        """A client says goodbye, or is not heard of any more."""
        peer = self._peers.pop(session, None)
        if peer is not None:
            self._places.give_back(peer.caller)
            self._forget_all(peer)
            peer.end()

    async def _reap(self) -> None:
        loop = asyncio.get_running_loop()
        while self._peers:
            await asyncio.sleep(min(1.0, self._timeout / 4))
            for session, peer in list(self._peers.items()):
                if not peer.is_waited_for and loop.time() - peer.used_at > self._timeout:
                    self.end(session)


def _gone(message: msgspec.Struct) -> tuple[bytes, ...]:
    if isinstance(message, LeaveConsumer):
        return (message.token,)
    return message.gone if isinstance(message, SyncMember) else ()
