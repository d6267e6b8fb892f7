"""Connecting to a server: what a caller gave, checked; then one question, whether it is there and what it serves."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from holdfast.arguments import flag, seconds
from holdfast.clock import SystemClock
from holdfast.errors import Invalid
from holdfast.remote.http.exchange import Exchange
from holdfast.remote.http.server_address import ServerAddress
from holdfast.remote.http.server_connections import Connections, tls_context
from holdfast.remote.http.token_reference import Reference, token_of
from holdfast.remote.remote_log import RemoteLog
from holdfast.remote.server_info import ServerInfo
from holdfast.settings import Settings

_CONNECT_S = 10.0


def connect(
    url: str,
    *,
    token: Reference | None = None,
    ca: str | os.PathLike[str] | None = None,
    insecure: bool = False,
    timeout: float = _CONNECT_S,
    settings: Settings | Mapping[str, Any] | None = None,
) -> RemoteLog:
    """The log that a server has (`holdfast serve`), with the face of one that is open here.

        with holdfast.connect("https://logs.example.org:7474", token="env:HOLDFAST_TOKEN") as log:
            log.topic("orders").append(b"two chairs", key="c-42")

    The token is given by reference: `env:NAME`, `file:PATH`, or a function that returns it. It travels over TLS or to
    this machine only; `insecure=True` allows plain HTTP elsewhere, where the network itself is safe. `ca` names a file
    of certificates to trust in place of the system's. `settings` are those of this client's queue (`journal.…`): how
    long its callers wait, for instance; limits are the server's. Raises Unavailable when the server does not answer
    within `timeout` seconds.

    In a coroutine: `log = await asyncio.to_thread(holdfast.connect, url, token=…)`, then `async with log`.
    """
    address = ServerAddress.of(url)
    settings = Settings.given(settings, token if isinstance(token, str) else None)
    found = token_of(token)
    if found is not None:
        address.check_token_is_safe(insecure=flag(insecure, "insecure"))
    if ca is not None and not address.is_tls:
        raise Invalid("ca names authorities for TLS, and this address has none", hint="use https://…")
    context = tls_context(ca) if address.is_tls else None
    exchange = Exchange(address, Connections(address, context), found)
    try:
        info = ServerInfo.ask(exchange, seconds(timeout))
        exchange.log = info.log
        return RemoteLog(exchange, info, settings, SystemClock())
    except BaseException:
        exchange.close()
        raise
