"""A link: channels joined to something that carries bytes to everybody, and may lose, repeat and reorder them.

Two directions. What is sent, and what the channels' timers find due (resends, repairs, syncs), goes to one function
that broadcasts. What comes in goes to `Link.receive`, which never raises for what strangers, damage or a backend's bad
day make of a packet: it is counted, and is as if it had been lost. The application keeps its callbacks.

    link = Link(channels, broadcast)
    link.send(b"hello", "room")

Content is broadcast after it is kept: when the process ends in between it is not lost, but sent again later. A
transport that fails is a network that loses: `send` has succeeded all the same.
"""

from __future__ import annotations

import logging
from _thread import RLock
from collections.abc import Callable

import msgspec

from holdfast.caller import once
from holdfast.channels.participant import Channels
from holdfast.channels.protocol.steps import Received
from holdfast.errors import HoldfastError, Invalid

logger = logging.getLogger("holdfast.channels")


class LinkStats(msgspec.Struct, frozen=True):
    """Counters of a link since it was made."""

    sent_total: int
    """Messages handed to the transport."""
    failed_total: int
    """Messages that the transport did not take; those that matter are sent again."""
    received_total: int
    """Received messages that were taken."""
    refused_total: int
    """Received packets that were no messages, absurd ones, for channels that are not ours, or not to be loaded."""


class Link:
    """Channels joined to a transport.

    >>> air = []
    >>> with Channels("alice") as alice, Channels("bob") as bob:
    ...     here, there = Link(alice, air.append), Link(bob, air.append)
    ...     bob.ensure_channel("room")
    ...     _ = here.send(b"hello", "room")
    ...     there.receive(air.pop()).content, there.receive(b"what is this")
    (b'hello', None)
    """

    def __init__(
        self, channels: Channels, broadcast: Callable[[bytes], object], *, bytes_max: int | None = None
    ) -> None:
        """`broadcast` sends bytes to all others; `bytes_max` is the most that it takes at once."""
        self.channels = channels
        self._transport = broadcast
        self._bytes_max = bytes_max
        self._lock = RLock()
        self._sent = self._failed = self._received = self._refused = 0
        channels.set_transport(self.broadcast, bytes_max=bytes_max)

    def send(self, content: bytes, channel_id: str, message_id: str | None = None) -> str:
        """Send content to everybody, reliably, once it is kept; returns its message's id."""
        message_id, data = self.channels.wrap_with_id(content, channel_id, message_id)
        self.broadcast(data)
        return message_id

    async def send_async(self, content: bytes, channel_id: str, message_id: str | None = None) -> str:
        """`send` for coroutines; the transport is called on their loop."""
        message_id, data = await self.channels.wrap_with_id_async(content, channel_id, message_id)
        self.broadcast(data)
        return message_id

    def send_ephemeral(self, content: bytes, channel_id: str) -> None:
        """Send content once, to whom it may reach."""
        data = self.channels.wrap_ephemeral_message(content, channel_id)
        if self._bytes_max is not None and len(data) > self._bytes_max:
            raise Invalid(
                f"the message needs {len(data)} bytes, its transport carries {self._bytes_max}",
                hint="send less at once",
            )
        self.broadcast(data)

    def receive(self, data: bytes) -> Received | None:
        """Take a packet that came in; None when it is refused."""
        try:
            received = self.channels.unwrap_received_message(data)
        except HoldfastError as error:
            self._refuse(error)
            return None
        with once(self._lock):
            self._received += 1
        return received

    async def receive_async(self, data: bytes) -> Received | None:
        """`receive` for coroutines."""
        try:
            received = await self.channels.unwrap_received_message_async(data)
        except HoldfastError as error:
            self._refuse(error)
            return None
        with once(self._lock):
            self._received += 1
        return received

    def _refuse(self, error: HoldfastError) -> None:
        logger.debug("a packet was refused: %s", error.message, extra={"action": "channel_packet_refused"})
        with once(self._lock):
            self._refused += 1

    def broadcast(self, data: bytes) -> None:
        """Hand a message to the transport; what it does not take counts as lost."""
        try:
            self._transport(data)
        except Exception as error:  # a transport is foreign code, and so is the network
            logger.warning(
                "a message was not taken by its transport bytes=%d: %s: %s",
                len(data),
                type(error).__name__,
                error,
                extra={"action": "channel_broadcast_failed"},
            )
            with once(self._lock):
                self._failed += 1
            return
        with once(self._lock):
            self._sent += 1

    def close(self) -> None:
        """Let go of the channels, which stay open: nothing of theirs is broadcast any more."""
        self.channels.set_transport(None)

    def stats(self) -> LinkStats:
        """Counters."""
        with once(self._lock):
            return LinkStats(self._sent, self._failed, self._received, self._refused)
