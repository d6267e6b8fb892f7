"""Channels over UDP: the smallest real transport, for a few peers that know each other's addresses.

One socket, one thread. A message is one datagram to each peer; the network may lose, repeat and reorder them, which is
what channels are for. A datagram holds 65 507 bytes, filter and all: with the default filter of 18.8 KB some 42 KB of
content fit (a fifth of the filter is kept free, since filters grow), and more is refused before anything is kept.

What holds. A message is sent after it is kept, and what came in is acknowledged by later messages after it is kept: so
`kill -9` at either end loses nothing that was acknowledged, and what was not is sent again after the restart. In a
log's topic (`_channels`) each delivery is recorded exactly once. The callback `message_ready` is called after that, in
this transport's thread: a process that dies in between is not called again, and one that continues while its disk
refuses may be called again after a restart. Who must see everything exactly once reads the topic.

Datagrams from addresses that are no peers' are dropped and counted. That is order, not security: anyone who can send
from a peer's address can say anything, unless the channel has a key (`keys` of `Channels`): then every datagram is
encrypted and authenticated.
"""

from __future__ import annotations

import logging
import selectors
import socket
from _thread import RLock
from collections.abc import Iterable
from threading import Thread, current_thread
from types import TracebackType
from typing import Any, Self

import msgspec

from holdfast.caller import once
from holdfast.channels.participant import Channels
from holdfast.channels.transport.link import Link
from holdfast.errors import Closed, Invalid, Unavailable

DATAGRAM_BYTES_MAX = 65_507
_RECEIVE_BUFFER_BYTES = 4 * 2**20
"""Asked of the kernel, which may give less: a burst that does not fit is lost, and has to be repaired."""

Address = tuple[str, int]

logger = logging.getLogger("holdfast.channels")


class UdpStats(msgspec.Struct, frozen=True):
    """Counters of a transport since it was made; one message is one datagram per peer."""

    sent_total: int
    """Datagrams sent, one for each peer."""
    failed_total: int
    """Datagrams that the operating system did not take, and messages too large for one."""
    received_total: int
    """Datagrams from peers."""
    refused_total: int
    """Of those: no messages, absurd ones, or for channels that are not ours."""
    strangers_total: int
    """Datagrams from others, which were dropped."""


class UdpTransport:
    """Channels joined to peers over UDP, from now until `close()`; the channels stay open after that.

    >>> with Channels("alice") as alice, Channels("bob") as bob:
    ...     with UdpTransport(alice) as here, UdpTransport(bob, peers=[here.address]) as there:
    ...         here.add_peer(there.address)
    ...         _ = here.send(b"hello", "room")
    ...         here.stats().sent_total
    1
    """

    def __init__(self, channels: Channels, bind: Address = ("127.0.0.1", 0), peers: Iterable[Address] = ()) -> None:
        """`bind` is the address to receive at and to send from; port 0 takes any free one (`address` tells)."""
        self._socket = _bound(bind)
        try:
            self._peers = {_key(peer): peer for peer in (self._resolved(address) for address in peers)}
        except Exception:
            self._socket.close()
            raise
        self._wake, self._woken = socket.socketpair()
        self._closed = False
        self._lock = RLock()
        self._sent = self._failed = self._received = self._refused = self._strangers = 0
        self.link = Link(channels, self._broadcast, bytes_max=DATAGRAM_BYTES_MAX)
        self._thread = Thread(target=self._work, name="holdfast-udp", daemon=True)
        self._thread.start()

    @property
    def address(self) -> Address:
        """Where it receives."""
        return _key(self._socket.getsockname())

    def add_peer(self, address: Address) -> None:
        """Send to one more, and listen to it; adding it again changes nothing."""
        self._check_open()
        resolved = self._resolved(address)
        with once(self._lock):
            self._peers = {**self._peers, _key(resolved): resolved}

    def _resolved(self, address: Address) -> tuple[str | int, ...]:
        resolved: tuple[str | int, ...] = _addresses(address, self._socket.family)[0][4]
        return resolved

    # -- sending ------------------------------------------------------------------------------------------

    def send(self, content: bytes, channel_id: str, message_id: str | None = None) -> str:
        """Send content to everybody, reliably, once it is kept; returns its message's id.

        Raises Invalid when it does not fit into a datagram; nothing has changed then.
        """
        self._check_open()
        return self.link.send(content, channel_id, message_id)

    async def send_async(self, content: bytes, channel_id: str, message_id: str | None = None) -> str:
        """`send` for coroutines."""
        self._check_open()
        return await self.link.send_async(content, channel_id, message_id)

    def send_ephemeral(self, content: bytes, channel_id: str) -> None:
        """Send content once, to whom it may reach."""
        self._check_open()
        self.link.send_ephemeral(content, channel_id)

    def _broadcast(self, data: bytes) -> None:
        if len(data) > DATAGRAM_BYTES_MAX:
            self._count(failed=1)
            raise Invalid(
                f"a message does not fit into a datagram bytes={len(data)} limit={DATAGRAM_BYTES_MAX}",
                hint="lower channels.bloom_capacity or channels.causal_history_max",
            )
        for peer in list(self._peers.values()):
            try:
                self._socket.sendto(data, peer)
            except OSError as error:  # this one's route; the others may hear it
                logger.debug("a datagram was not sent: %s", error, extra={"action": "channel_datagram_failed"})
                self._count(failed=1)
            else:
                self._count(sent=1)

    # -- receiving ----------------------------------------------------------------------------------------

    def _work(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while not self._closed:
                selector.select()
                if not self._closed:
                    self._receive()

    def _receive(self) -> None:
        """Take one datagram; whatever it is and does, the next one is taken, too."""
        try:
            data, sender = self._socket.recvfrom(DATAGRAM_BYTES_MAX + 1, socket.MSG_DONTWAIT)
            if _key(sender) not in self._peers:
                self._count(strangers=1)
            elif self.link.receive(data) is None:
                self._count(received=1, refused=1)
            else:
                self._count(received=1)
        except OSError as error:  # an earlier datagram of ours was not wanted somewhere, or there is none after all
            logger.debug("nothing received: %s", error, extra={"action": "channel_datagram_failed"})
        except Exception as error:
            self._count(received=1, refused=1)
            logger.error(
                "a datagram could not be handled: %s",
                error,
                extra={"action": "channel_datagram_failed"},
                exc_info=error,
            )

    # -- lifetime -----------------------------------------------------------------------------------------

    def stats(self) -> UdpStats:
        """Counters."""
        with once(self._lock):
            return UdpStats(self._sent, self._failed, self._received, self._refused, self._strangers)

    def _count(
        self, *, sent: int = 0, failed: int = 0, received: int = 0, refused: int = 0, strangers: int = 0
    ) -> None:
        with once(self._lock):
            self._sent += sent
            self._failed += failed
            self._received += received
            self._refused += refused
            self._strangers += strangers

    def close(self) -> None:
        """Stop receiving, when the datagram at hand is done with, and sending; closing again does nothing."""
        with once(self._lock):
            if self._closed:
                return
            self._closed = True
        self.link.close()
        self._wake.send(b"x")
        if self._thread is not current_thread():  # a callback may close us
            self._thread.join()
        for one in (self._socket, self._wake, self._woken):
            one.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this transport is closed", hint="make a new one")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        where = "closed" if self._closed else ":".join(map(str, self.address))
        return f"UdpTransport({where}, {len(self._peers)} peers)"


def _bound(address: Address) -> socket.socket:
    family, kind, protocol, _, resolved = _addresses(address, socket.AF_UNSPEC)[0]
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        opened.bind(resolved)
    except OSError as error:
        opened.close()
        raise Unavailable(
            f"cannot receive at {address[0]}:{address[1]}: {error.strerror}",
            hint="is another process using that port, or is it not an address of this machine?",
        ) from error
    return opened


def _addresses(address: Address, family: int) -> list[tuple[int, int, int, str, Any]]:
    """As the system resolves them."""
    host, port = address
    if not isinstance(port, int) or not 0 <= port < 2**16:
        raise Invalid(f"there is no such port port={port!r}", hint="ports are 0 to 65535")
    try:
        return [*socket.getaddrinfo(host, port, family=family, type=socket.SOCK_DGRAM)]
    except (OSError, UnicodeError) as error:
        raise Invalid(
            f"there is no such address host={host!r}: {error}", hint="give all addresses in the family of `bind`"
        ) from error


def _key(address: tuple[str | int, ...]) -> Address:
    """Host and port, without what IPv6 adds."""
    return str(address[0]), int(address[1])
