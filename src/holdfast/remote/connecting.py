"""Connecting to a server: what a caller gave, checked; then one question, whether it is there and what it serves."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from holdfast.arguments import flag, seconds
from holdfast.clock import SystemClock
from holdfast.errors import Invalid
from holdfast.log.log import Log
from holdfast.log.ports import LogParts
from holdfast.remote.client_parts import (
    ClientLifetime,
    ServerCalls,
    ServerExecutions,
    ServerIdentity,
    maintenance_of,
    stats_of,
    store_of,
)
from holdfast.remote.consuming.opening_consumers import ConsumerOpening
from holdfast.remote.http.exchange import Exchange
from holdfast.remote.http.server_address import ServerAddress
from holdfast.remote.http.server_connections import ServerConnections, tls_context
from holdfast.remote.http.server_link import ServerLink
from holdfast.remote.http.token_reference import Reference, token_of
from holdfast.remote.own_thread import awaited
from holdfast.remote.refused_verbs import RefusedVerbs
from holdfast.remote.remote_catalog import RemoteCatalog
from holdfast.remote.server_info import ServerInfo
from holdfast.remote.shipped_waiting import shipping_state_of
from holdfast.remote.writing.client_journal import ClientJournal
from holdfast.remote.writing.remote_spaces import PlainKeys
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
) -> Log:
    """The log that a server has (`holdfast serve`), with the face of one that is open here.

        with holdfast.connect("https://logs.example.org:7474", token="env:HOLDFAST_TOKEN") as log:
            log.topic("orders").append(b"two chairs", key="c-42")

    The token is given by reference: `env:NAME`, `file:PATH`, or a function that returns it. It travels over TLS or to
    this machine only; `insecure=True` allows plain HTTP elsewhere, where the network itself is safe. `ca` names a file
    of certificates to trust in place of the system's. `settings` are those of this client's queue (`journal.…`): how
    long its callers wait, for instance; limits are the server's. Raises Unavailable when the server does not answer
    within `timeout` seconds, and at once where nobody listens.

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
    exchange = Exchange(address, ServerConnections(address, context), found)
    try:
        info = ServerInfo.ask(exchange, seconds(timeout))
        exchange.log = info.log
        return _put_together(exchange, info, settings)
    except BaseException:
        exchange.close()
        raise


def _put_together(exchange: Exchange, info: ServerInfo, settings: Settings) -> Log:
    """A log whose parts ask a server."""
    settings = msgspec.structs.replace(settings, journal=info.journal_settings(settings.journal))
    state, signal = shipping_state_of(ships=info.ships, timeout=info.shipped_timeout_ms / 1000)
    journal = ClientJournal(exchange, settings.journal, SystemClock(), state, bytes.fromhex(info.log))
    topics = RemoteCatalog(exchange, journal)
    link = ServerLink(exchange, journal.clock)
    consumers = ConsumerOpening(link, journal)
    topics.open_consumer = consumers.open
    signal.listen = topics.listen
    timeout = settings.journal.ack_timeout_ms / 1000
    calls, refused = ServerCalls(link), RefusedVerbs()
    return Log(
        LogParts(
            settings,
            ServerIdentity(exchange, info),
            journal,
            topics,
            PlainKeys(),
            consumers,
            refused,
            ServerExecutions(exchange, timeout),
            partial(maintenance_of, calls, timeout),
            partial(store_of, calls, timeout, refused, info.ships),
            refused,
            partial(stats_of, exchange, timeout),
            ClientLifetime(journal, topics, str(exchange.address), settings),
            awaited,
        )
    )
