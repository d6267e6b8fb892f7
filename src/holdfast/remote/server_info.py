"""What a server says of itself: its version, its log, and the limits that callers can meet.

The checks of a topic are made here, before anything is sent, by the server's limits; it makes them again.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import Invalid, Unavailable
from holdfast.journal.journal_settings import JournalSettings
from holdfast.model.typed_decoding import from_json
from holdfast.remote.http.exchange import API, Exchange, Question

CLIENT_LIMITS = (
    "payload_bytes_max",
    "batch_records_max",
    "batch_bytes_max",
    "key_bytes_max",
    "headers_bytes_max",
    "partitions_max",
)
"""The limits of the server's journal that count here, too. How long its own callers wait each client decides."""
_GROUP_BYTES_MAX = 4 * 2**20
_ENVELOPE_BYTES = 1 << 20
"""What a request needs beside the records themselves: lengths, times, keys."""


class ServerInfo(msgspec.Struct, frozen=True):
    """What a client must know of a server."""

    holdfast: str
    api: int
    log: str
    read_only: bool
    ships: bool
    shipped_timeout_ms: float
    limits: dict[str, Any]

    @classmethod
    def ask(cls, exchange: Exchange, timeout: float) -> ServerInfo:
        """Ask it."""
        answer = exchange.ask(Question("GET", ("v1", "client"), first=True), timeout)
        try:
            info = from_json(answer.body, cls)
            bytes.fromhex(info.log)
        except (msgspec.MsgspecError, ValueError):
            raise Unavailable("the server does not say what it is", hint="is this a holdfast server?") from None
        if str(info.api) != API:
            raise Invalid(
                f"the server speaks another version of the API server={info.holdfast[:20]!r} api={info.api} ours={API}",
                hint="install the same version of holdfast on both sides",
            )
        return info

    def journal_settings(self, given: JournalSettings) -> JournalSettings:
        """The limits of this client's queue: the server's, where it has any."""
        limits: dict[str, Any] = {name: value for name in CLIENT_LIMITS if _is_limit(value := self.limits.get(name))}
        body = self.limits.get("body_bytes_max")
        room = max(_ENVELOPE_BYTES, body - _ENVELOPE_BYTES) if isinstance(body, int) else given.batch_bytes_max
        limits["batch_bytes_max"] = min(limits.get("batch_bytes_max", given.batch_bytes_max), room)
        limits["group_bytes_max"] = min(_GROUP_BYTES_MAX, room)
        limits["queue_bytes_max"] = max(given.queue_bytes_max, limits["group_bytes_max"], limits["batch_bytes_max"])
        return msgspec.structs.replace(given, **limits)


def _is_limit(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 2**53
