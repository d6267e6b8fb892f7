"""Connections to one server: kept open between requests, a few at a time, checked before they are used again.

HTTP/1.1 by Python's own client, over sockets with a deadline. Nothing is followed: a redirect is refused, because a
token and records must reach nobody but the server that was named. No proxy is taken from the environment, for the same
reason. TLS verifies certificate and name, always.

A connection that lay idle may have been closed by the server meanwhile; one that has something to read before anything
was asked is dropped, be it behind the last answer, and so is one that is older than servers usually keep.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections import deque
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, cast

from holdfast.clock import SystemClock
from holdfast.errors import Invalid
from holdfast.remote.http.deadline_socket import DeadlineSocket
from holdfast.remote.http.server_address import ServerAddress

_IDLE_MAX = 8
_IDLE_S = 3.0
_CONNECT_S_MAX = 10.0

monotonic = SystemClock().monotonic


class NotSent(Exception):
    """The server certainly did not get the request."""


class NotTrusted(NotSent):
    """The server is not who it should be; trying again would not change that."""


class AnswerLost(Exception):
    """The request may have reached the server; its answer did not come."""


def harden(context: ssl.SSLContext) -> None:
    """TLS 1.3, and of 1.2 the suites that authenticate what they encrypt and keep old sessions secret."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")


def tls_context(ca: str | os.PathLike[str] | None) -> ssl.SSLContext:
    """What TLS trusts: the system's authorities, or those of a file."""
    try:
        context = ssl.create_default_context(cafile=None if ca is None else os.fspath(ca))
    except (OSError, ssl.SSLError, TypeError) as error:
        raise Invalid(f"the authorities cannot be read: {error}", hint="ca= names a file of PEM certificates") from None
    harden(context)
    return context


class ServerConnection:
    """One connection; used by one thread at a time."""

    def __init__(self, address: ServerAddress, context: ssl.SSLContext | None) -> None:
        self._address = address
        self._context = context
        self._http: HTTPConnection | None = None
        self._socket: DeadlineSocket | None = None
        self._idle_since = 0.0
        self._is_ended = False

    def request(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, deadline: float
    ) -> HTTPResponse:
        """Send a request and return the answer as soon as its headers are here."""
        http = self._connected(deadline)
        try:
            http.request(method, target, body, dict(headers))
            return http.getresponse()
        except (OSError, HTTPException) as error:
            self.close()
            raise AnswerLost(_words(error)) from error

    def until(self, deadline: float) -> None:
        """Give the next steps until then."""
        if self._socket is not None:
            self._socket.deadline = deadline

    def _connected(self, deadline: float) -> HTTPConnection:
        if self._http is None:
            self._open(deadline)
        assert self._http is not None
        self.until(deadline)
        return self._http

    def _open(self, deadline: float) -> None:
        left = min(deadline - monotonic(), _CONNECT_S_MAX)
        if left <= 0:
            raise NotSent("no time is left to connect")
        address = self._address
        try:
            plain = socket.create_connection((address.host, address.port), timeout=left)
        except (OSError, UnicodeError) as error:
            raise NotSent(_words(error)) from error
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context is not None:
                plain = self._context.wrap_socket(plain, server_hostname=address.host)
        except OSError as error:
            plain.close()
            is_trusted = not isinstance(error, ssl.SSLCertVerificationError)
            raise (NotSent if is_trusted else NotTrusted)(_words(error)) from error
        self._socket = DeadlineSocket(plain)
        self._http = HTTPConnection(address.host, address.port)
        self._http.sock = cast("Any", self._socket)
        self._http.auto_open = 0
        if self._is_ended:  # meanwhile: `shutdown` has seen no socket
            self.close()
            raise NotSent("the client is closed")

    def rest(self) -> None:
        """The answer was read to its end: it may serve another request."""
        self._idle_since = monotonic()

    @property
    def is_fresh(self) -> bool:
        """Whether it can be used again; something to read means that the server has closed it."""
        if self._socket is None or monotonic() - self._idle_since > _IDLE_S:
            return False
        try:
            return not self._socket.has_news()
        except (OSError, ValueError):
            return False

    def shutdown(self) -> None:
        """End it from another thread."""
        self._is_ended = True
        sock = self._socket  # its user may let go of it meanwhile
        if sock is not None:
            sock.shutdown()

    def close(self) -> None:
        """Let go of it; a later request opens it again."""
        if self._http is not None:
            self._http.close()
        if self._socket is not None:
            self._socket.close()
        self._http = self._socket = None


class ServerConnections:
    """All connections of one client, for any thread.

    Hazard: no lock. A signal handler may interrupt any step here, and wait for a record that another thread brings,
    over a connection. So each step is one operation of a deque or a dictionary; a thread that takes one notes it first
    and looks then whether all has ended, and `interrupt` does the same the other way round.
    """

    def __init__(self, address: ServerAddress, context: ssl.SSLContext | None) -> None:
        self._address = address
        self._context = context
        self._idle: deque[ServerConnection] = deque()
        self._used: dict[ServerConnection, None] = {}
        self._is_over = False

    def take(self) -> ServerConnection:
        """One that nobody uses."""
        while True:
            try:
                connection, is_new = self._idle.pop(), False
            except IndexError:
                connection, is_new = ServerConnection(self._address, self._context), True
            self._used[connection] = None
            if self._is_over:
                connection.shutdown()
            if is_new or connection.is_fresh:
                return connection
            self.give_back(connection, reusable=False)

    def give_back(self, connection: ServerConnection, *, reusable: bool) -> None:
        """It is free again; unless its answer was read to the end, it is closed."""
        if reusable:
            connection.rest()
        self._used.pop(connection, None)
        if not reusable:
            connection.close()
            return
        self._idle.append(connection)
        self._close_idle(0 if self._is_over else _IDLE_MAX)

    def interrupt(self) -> None:
        """End what is under way, from another thread, and what is idle."""
        self._is_over = True
        for connection in list(self._used):
            connection.shutdown()
        self._close_idle(0)

    def _close_idle(self, most: int) -> None:
        while len(self._idle) > most:
            try:
                self._idle.popleft().close()
            except IndexError:  # another thread has taken it
                return

    def forget(self) -> None:
        """In a forked child: the sockets are the parent's; ours are closed without a word to the server."""
        for connection in [*self._idle, *self._used]:
            connection.close()
        self._idle.clear()
        self._used.clear()


def _words(error: BaseException) -> str:
    """What went wrong, without anything that was sent."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return "it does not speak TLS there; its address may begin with http://"
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    return getattr(error, "strerror", None) or type(error).__name__
