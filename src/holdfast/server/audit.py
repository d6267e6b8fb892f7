"""Who did what over HTTP: one record of the topic `_audit` for each request that came with a token, if `server.audit`.

A record has the token's name, the right that the route asks for, the route's pattern, the topic of its path, the
status and the time; nothing else that a client chose, and no secret. It is offered to the log and never waited for:
when there is no room, or this server does not own the log, it is dropped, and the next one says how many were. So is
most of what comes without a known token: else strangers could fill the trail, and push out what it is for. Over HTTP
it takes the scope `audit` to read it. Used by the event loop alone.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError
from holdfast.execution.work.rate_limit import RateLimit
from holdfast.log.local_parts import parts_of
from holdfast.log.log import Log
from holdfast.log.topics.topic import Topic
from holdfast.server.request_caller import Caller
from holdfast.server_settings import AUDIT_TOPIC

if TYPE_CHECKING:
    from holdfast.server.route_table import RouteDefinition

_log = logging.getLogger("holdfast.server")
_STRANGERS_PER_S = 1.0
"""So many requests without a known token are recorded."""


class AuditRecord(msgspec.Struct, frozen=True):
    """The payload of a record, as JSON."""

    token: str
    """Its name; `-` where none was known."""
    scopes: tuple[str, ...]
    """One of these is needed."""
    route: str
    topic: str | None
    status: int
    dropped: int
    """Requests before this one that are not recorded."""


class Audit:
    """The audit trail of one server."""

    def __init__(self, log: Log, *, is_wanted: bool) -> None:
        self._clock = SystemClock()
        parts = parts_of(log)
        self._topic: Topic | None = parts.topics.own(AUDIT_TOPIC) if is_wanted and parts.journal.owned else None
        self.is_wanted = is_wanted
        self._strangers = RateLimit(_STRANGERS_PER_S)
        self.dropped = 0

    def note(self, caller: Caller | None, route: RouteDefinition, topic: str | None, status: int) -> None:
        """A request was answered."""
        if not self.is_wanted or route.about == "open":
            return
        name = "-" if caller is None else caller.name
        record = AuditRecord(name, route.scopes, f"{route.method} {route.path}", topic, status, self.dropped)
        is_taken = caller is not None or self._strangers.take(self._clock.monotonic())
        if is_taken and self._offered(msgspec.json.encode(record)):
            self.dropped = 0
            return
        if not self.dropped:
            _log.warning("the audit trail leaves requests out", extra={"action": "audit_dropped"})
        self.dropped += 1

    def _offered(self, payload: bytes) -> bool:
        try:
            return self._topic is not None and self._topic.offer(payload, kind="request")
        except HoldfastError:
            return False
