"""What can be set about the HTTP server, with defaults and bounds in one place.

In base, because all settings are put together far below the room that serves (`server/`).
"""

from __future__ import annotations

import msgspec

from holdfast.errors import Invalid

AUDIT_TOPIC = "_audit"


class ServerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits and times of `holdfast serve`. What is beyond a limit is refused, nothing waits without bound.

    >>> ServerSettings().listen
    '127.0.0.1:7474'
    """

    listen: str = "127.0.0.1:7474"
    """Host and port; beyond loopback only with tokens."""

    hosts: str = ""
    """Names that requests may have in `Host`, beside those of the address, with commas between; others are refused."""

    tokens: str | None = None
    """The file with the hashes of tokens; default: `TOKENS` in the log's directory."""

    token: str | None = None
    """One more token, with all rights, by reference: `env:NAME` or `file:PATH`."""

    tls_certificate: str | None = None
    """A file with the certificate chain, in PEM."""

    tls_key: str | None = None
    """A file with its private key, in PEM."""

    console: bool = True
    """Whether `GET /` answers with the console, a page that shows the log."""

    headers_bytes_max: int = 32 * 2**10
    """Request line and headers of one request."""

    headers_timeout_ms: float = 10_000
    """How long they may take to arrive; a TLS handshake, too."""

    body_bytes_max: int = 16 * 2**20
    """The largest body."""

    body_timeout_ms: float = 30_000
    """How long a body may take to arrive."""

    bodies_bytes_max: int = 128 * 2**20
    """All bodies that are in memory at a time; and as much of large answers that clients have not taken."""

    connections_max: int = 1_000
    """Open connections; more are closed at once."""

    idle_timeout_ms: float = 60_000
    """How long a connection may stay open without a request."""

    send_timeout_ms: float = 30_000
    """How long a client may take no bytes of what it requested."""

    requests_max: int = 256
    """Requests at work at a time, followers not counted."""

    request_timeout_ms: float = 30_000
    """How long a request may work, beside the waiting that it asks for."""

    rate_max: float = 0
    """Requests per second of one token; 0: no limit. A token may have a limit of its own."""

    audit: bool = False
    """Whether each request with a token is recorded in the topic `_audit`: who, which route and topic, which status."""

    token_share: float = 0.5
    """The part of all places that one token may take: requests, bodies, followers, members, sessions, connections."""

    page_bytes_max: int = 16 * 2**20
    """Bytes in one page of a read."""

    followers_max: int = 128
    """Connections that follow topics; and as many clients that wait for events."""

    heartbeat_ms: float = 15_000
    """How often a follower gets a sign of life from the server."""

    members_max: int = 256
    """Members of consumers: those that live in the server, and those of clients."""

    member_timeout_ms: float = 60_000
    """How long a member, or a client that waits for events, lives without a request."""

    shutdown_timeout_ms: float = 30_000
    """How long requests may go on after SIGTERM, before they are cut off."""

    def __post_init__(self) -> None:
        problems = [
            f"server.{name} must be above zero, got {value}"
            for name, value in msgspec.structs.asdict(self).items()
            if type(value) in (int, float) and value <= 0 and (name, value) != ("rate_max", 0)
        ]
        if (self.tls_certificate is None) != (self.tls_key is None):
            problems.append("server.tls_certificate and server.tls_key go together")
        if self.token_share > 1:
            problems.append(f"server.token_share is a part of all places, at most 1, got {self.token_share}")
        if max(self.body_bytes_max, self.page_bytes_max) > self.bodies_bytes_max:
            problems.append("server.bodies_bytes_max must hold at least one largest body, or page")
        if problems:
            raise Invalid("; ".join(problems), hint="correct these settings; all problems found are listed")
