"""One connection to a store on a loop: a socket, with TLS or without, how it is dialled, and whether it still lives.

Bytes out, bytes in, one user at a time; whose turn it is and when to open another one is the pool's business. All calls
belong to the loop's thread, except `abandon` after a fork.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from holdfast.errors import Invalid
from holdfast.store.port import Cause, StoreUnavailable

YOUNG = 1.0
"""A connection that ends sooner than this, without a single answer, counts as one that could not be opened."""

_WRITE_BUFFER = 256 * 1024
_LONG = 64 * 1024
"""After writing more than this, other tasks of the loop get a turn."""
_ADDRESS_SECONDS = 1.0
"""The least time that each of a server's addresses gets."""


class Endpoint(NamedTuple):
    """Where to connect."""

    host: str
    port: int
    tls: bool


Result = TypeVar("Result")


class AsyncConnection(asyncio.Protocol):
    """One socket: bytes out, bytes in, and whether it has ended. One user at a time."""

    def __init__(self, endpoint: Endpoint, disturbed: Callable[[AsyncConnection], None]) -> None:
        self.endpoint = endpoint
        self.served = 0
        """Whole answers that came over it."""
        self.reusable = True
        """Whether another request may follow; its user says so."""
        self.ended = False
        self.idle_since = 0.0
        self._loop = asyncio.get_running_loop()
        self._opened_at = self._loop.time()
        self._disturbed = disturbed
        self._received: list[bytes] = []
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None
        self.gone: asyncio.Future[None] = self._loop.create_future()
        """Done when the socket is closed."""

    # -- what the loop says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        self._descriptor: int = transport.get_extra_info("socket").fileno()
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)

    def data_received(self, data: bytes) -> None:
        """Bytes came; from an idle peer they are no answer to anything."""
        self._received.append(data)
        self._wake()

    def eof_received(self) -> None:
        """The peer will send no more."""
        self.ended = True
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """The socket is closed."""
        self.ended = True
        self.gone.set_result(None)
        self._wake()

    def pause_writing(self) -> None:
        """The peer is slower than we are."""
        self._paused = True

    def resume_writing(self) -> None:
        """There is room again."""
        self._paused = False
        self._wake()

    def _wake(self) -> None:
        if self._waiter is None:
            self._disturbed(self)
        elif not self._waiter.done():
            self._waiter.set_result(None)

    # -- what its user does

    @property
    def alive(self) -> bool:
        """Whether it is open, as far as the loop knows."""
        return not self.ended and not self._transport.is_closing()

    @property
    def has_room(self) -> bool:
        """Whether more should be written now."""
        return not self._paused

    @property
    def has_data(self) -> bool:
        """Whether something came that was not taken."""
        return bool(self._received)

    @property
    def failed_young(self) -> bool:
        """Whether its peer hung up, or talked out of turn, before it was of any use."""
        hopeless = (self.ended or self.has_data) and not self.served
        return hopeless and self._loop.time() - self._opened_at < YOUNG

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes, some time; `has_room` says when to pause."""
        self._transport.write(data)

    def take(self) -> bytes:
        """What came since the last time."""
        taken = self._received[0] if len(self._received) == 1 else b"".join(self._received)
        self._received.clear()
        return taken

    async def changed(self, seconds: float) -> None:
        """Wait until bytes come, there is room, or it ends; raises TimeoutError."""
        self._waiter = self._loop.create_future()
        timer = self._loop.call_later(seconds, expire, self._waiter, TimeoutError())
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    def now(self) -> float:
        """The loop's time: its timers go by it."""
        return self._loop.time()

    async def send(self, data: bytes | memoryview, seconds: float) -> bool:
        """Send bytes, and wait until there is room for more; False when the peer answered or hung up meanwhile."""
        if not self.ended:
            self.write(data)
        if len(data) > _LONG:
            await asyncio.sleep(0)
        while not self.has_room and not self.has_data and not self.ended:
            await self.changed(seconds)
        return not self.has_data and not self.ended

    async def receive(self, seconds: float) -> bytes:
        """What came since the last time, or comes next; empty when it has ended."""
        while not self.has_data and not self.ended:
            await self.changed(seconds)
        return self.take() if self.has_data else b""

    async def fill(self, place: memoryview, seconds: float) -> int:
        """What comes next, put there; what is more than fits stays."""
        while not self.has_data and not self.ended:
            await self.changed(seconds)
        filled = 0
        while self._received and filled < len(place):
            piece = memoryview(self._received.pop(0))
            fits = min(len(piece), len(place) - filled)
            place[filled : filled + fits] = piece[:fits]
            if fits < len(piece):
                self._received.insert(0, bytes(piece[fits:]))
            filled += fits
        return filled

    async def off_loop(self, call: Callable[[], Result]) -> Result:
        """Call it in another thread: the loop goes on."""
        return await asyncio.to_thread(call)

    async def still_open(self) -> bool:
        """Whether the peer has not hung up, also not in a way that only the kernel knows of yet."""
        if self._poll.poll(0):
            # Its end, or something harmless of TLS: the loop reads it in its next round and tells us in the one after.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return self.alive and not self._received

    def abort(self) -> None:
        """Close the socket, now."""
        self.ended = True
        self._transport.abort()

    def abandon(self) -> None:
        """In a forked child: let go of the socket, which is the parent's, without a word to the peer."""
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(nothing, self._descriptor, inheritable=False)
        os.close(nothing)


async def dial(endpoint: Endpoint, timeout: float) -> socket.socket:
    """A socket to the first of a server's addresses that answers.

    Not the loop's own happy eyeballs: when those are cancelled, they may forget a socket that is open already.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    seconds = seconds_per_address(found, timeout)
    error: OSError = socket.gaierror("the name has no address")
    for family, _, protocol, _, address in alternating(found):
        dialled = socket.socket(family, socket.SOCK_STREAM, protocol)
        dialled.setblocking(False)
        try:
            async with asyncio.timeout(seconds):
                await loop.sock_connect(dialled, address)
        except OSError as failure:
            dialled.close()
            error = failure
        except BaseException:
            dialled.close()
            raise
        else:
            return dialled
    raise error


_AddressInfo = tuple[Any, Any, int, str, Any]


def seconds_per_address(found: list[_AddressInfo], timeout: float) -> float:
    """How long each of a server's addresses gets."""
    return max(_ADDRESS_SECONDS, timeout / max(1, len(found)))


def alternating(found: list[_AddressInfo]) -> list[_AddressInfo]:
    """The families in turn: where one of them leads nowhere, the other's first address comes second."""
    seen: Counter[Any] = Counter()
    places = []
    for info in found:
        places.append((seen[info[0]], info))
        seen[info[0]] += 1
    return [info for _, info in sorted(places, key=lambda place: place[0])]


def tls_context(ca_file: str) -> ssl.SSLContext:
    """What is trusted: what the system trusts, and besides it the certificates in a file; raises Invalid."""
    try:
        context = ssl.create_default_context()
        if ca_file:  # besides the system's: given at creation, they would be trusted instead
            context.load_verify_locations(ca_file)
        return context
    except OSError as error:
        raise Invalid(
            f"cannot load the certificates path={ca_file}", hint="store.ca_file names a file in PEM form"
        ) from error


_OUR_OWN_TROUBLE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
_CAUSES: tuple[tuple[tuple[type[Exception], ...], Cause], ...] = (
    ((socket.gaierror, UnicodeError), "dns"),
    ((ssl.SSLError,), "tls"),
    ((TimeoutError,), "timeout"),
    ((ConnectionResetError, ConnectionAbortedError, BrokenPipeError), "reset"),
    ((OSError,), "refused"),
)


def cause_of(error: Exception) -> Cause:
    """Why a connection could not be opened, or broke, in one word."""
    if isinstance(error, StoreUnavailable):
        return error.cause
    if isinstance(error, OSError) and error.errno in _OUR_OWN_TROUBLE:
        return "other"
    return next((cause for kinds, cause in _CAUSES if isinstance(error, kinds)), "other")


def expire(waiter: asyncio.Future[Any], error: Exception) -> None:
    """A waiter gets an error, unless something came in the same moment."""
    if not waiter.done():
        waiter.set_exception(error)
