"""A connection before its handshake: it counts, and is given little time."""

from __future__ import annotations

import asyncio
import ssl

from holdfast.server.connections.connection_guard import ConnectionGuard
from holdfast.server.connections.http_connection import HttpConnection

_GOODBYE_S = 2.0
"""How long the end of TLS may take: a client that does not answer must not hold up the server's own end."""


class TlsGate(asyncio.Protocol):
    """What a client meets first; behind the handshake it meets `inner`."""

    def __init__(self, inner: HttpConnection, context: ssl.SSLContext, guard: ConnectionGuard) -> None:
        self._inner = inner
        self._context = context
        self._guard = guard
        self._task: asyncio.Task[None] | None = None
        self._is_lost = False
        self._early = b""
        """What a client sends with the last message of its handshake: that comes before the handshake has ended."""

    def data_received(self, data: bytes) -> None:
        """Some bytes, decrypted."""
        self._early += data

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        assert isinstance(transport, asyncio.Transport)
        if self._inner.is_admitted(transport):
            self._task = asyncio.get_running_loop().create_task(self._shake_hands(transport))

    def connection_lost(self, exc: Exception | None) -> None:
        """It went before the handshake had ended."""
        self._is_lost = True
        self._guard.drop(self._inner)

    async def _shake_hands(self, transport: asyncio.Transport) -> None:
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport,
                self,
                self._context,
                server_side=True,
                ssl_handshake_timeout=self._guard.handshake_s,
                ssl_shutdown_timeout=_GOODBYE_S,
            )
        except (OSError, ssl.SSLError, asyncio.CancelledError):
            secured = None
        if secured is None or self._is_lost:
            self._guard.drop(self._inner)
            transport.abort()
        else:
            secured.set_protocol(self._inner)
            self._inner.connection_made(secured)
            if self._early:
                self._inner.data_received(self._early)
