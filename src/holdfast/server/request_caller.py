"""What the token of a request may do: its scopes, its patterns of topics, the names that it may use.

All rights of HTTP are decided here. What each verb needs stands in the table of verbs (`owner/verbs.py`), what each
other route needs in `route_table`; the table for people is docs/reference/rights.md. Topics whose names begin with an
underscore are holdfast's own: no token writes them, a star at the front of a pattern does not stand for them, and two
of them show so much that reading takes a right of its own.
"""

from __future__ import annotations

from blake3 import blake3

from holdfast.errors import Denied
from holdfast.execution.work.rate_limit import RateLimit
from holdfast.model.topic_name import check_users, is_own
from holdfast.server.tokens import SCOPES, StoredToken
from holdfast.server_settings import AUDIT_TOPIC

POSITIONS = "_consumers"
EXECUTIONS, SPACES = "_executions", "_spaces"
"""Patterns that match these names reach executions and spaces."""

_OWN = "holdfast 2026-11 a token's own"
_REMEMBERED = 1_000
_NAME_CHARS_MAX = 255
"""No topic, consumer or producer has a longer name."""
_READERS = {EXECUTIONS: "admin", AUDIT_TOPIC: "audit"}
"""What reading these takes in place of `read`: they hold arguments and results of programs, and who did what."""


class NotKnown(Denied):
    """Nobody knows who asks."""


class Caller:
    """The sender of a request."""

    __slots__ = ("_fine", "_names", "_topics", "id", "is_anyone", "limit", "name", "scopes", "token")

    def __init__(self, token: StoredToken | None, rate_max: float | None) -> None:
        self.token = token
        self.is_anyone = token is None
        """Whether there are no tokens."""
        self.id = "anyone" if token is None else token.id
        self.name = "anyone" if token is None else token.name
        given = SCOPES if token is None else token.scopes
        if "admin" in given:
            given = tuple({*given, "append", "read", "consume:*", "produce:*"})
        self.scopes: frozenset[str] = frozenset(given)
        self._names = {kind: _named(given, kind) for kind in ("consume", "produce")}
        self._topics = ("*", "_*") if token is None else token.topics
        self.limit = RateLimit(rate_max or None)
        self._fine: set[tuple[tuple[str, ...], str | None, str | None]] = set()

    @property
    def topics(self) -> tuple[str, ...]:
        """Its patterns of topics."""
        return self._topics

    def sees(self, topic: str) -> bool:
        """Whether it may know that there is such a topic."""
        return self._matches(topic) and (topic not in _READERS or _READERS[topic] in self.scopes)

    def _matches(self, topic: str) -> bool:
        return any(_matches(pattern, topic) for pattern in self._topics)

    def may(self, scope: str, topic: str | None) -> bool:
        """Whether it may do this to a topic; None stands for the whole log."""
        if scope not in self.scopes:
            return False
        return "*" in self._topics if topic is None else self._matches(topic)

    def may_consume(self, consumer: str, topic: str) -> bool:
        """Whether it may read as this consumer of a topic, and move its position."""
        return self._may_use("consume", consumer) and self.sees(topic)

    def sees_consumer(self, consumer: str, topic: str) -> bool:
        """Whether it may know how far a consumer is."""
        return self.sees(topic) and (self.may("read", topic) or self.may_consume(consumer, topic))

    def _may_use(self, kind: str, name: str) -> bool:
        return any(_fits(pattern, name) for pattern in self._names[kind])

    # -- what routes ask ----------------------------------------------------------------------------------

    def require(self, scopes: tuple[str, ...], topic: str | None) -> None:
        """Raise Denied unless one of these scopes is allowed."""
        self._remembered(scopes, topic, None)

    def require_topic(self, scopes: tuple[str, ...], topic: str, consumer: str | None) -> None:
        """The same for a route about a topic and, where it names one, a consumer of it."""
        if "read" in scopes and topic in _READERS:
            scopes = (_READERS[topic],)
        self._remembered(scopes, topic, consumer)

    def require_append(self, topic: str) -> None:
        """Raise Denied unless it may append to a topic, or change it: nobody may, where it is holdfast's own."""
        self._remembered(("append",), topic, None)
        check_users(topic)

    def require_consumer(self, consumer: str, topic: str) -> None:
        """Raise Denied unless it may move the position of this consumer."""
        self._remembered(("consume",), topic, consumer)

    def require_producer(self, producer: str) -> None:
        """Raise Denied unless it may append under this producer's name: its own, or one that a scope names."""
        if not (self.is_anyone or producer == self.name or self._may_use("produce", producer)):
            raise Denied(
                f"this token may not use this producer's name token={self.id}",
                hint="a token may use its own name, and those of a scope: --scope 'produce:device-*'",
            )

    def _remembered(self, scopes: tuple[str, ...], topic: str | None, consumer: str | None) -> None:
        if (scopes, topic, consumer) in self._fine:
            return
        if not any(self._allows(scope, topic, consumer) for scope in scopes):
            where = "the whole log" if topic is None else f"topic {topic!r}"
            raise Denied(f"this token does not allow {' or '.join(scopes)} of {where} token={self.id}")
        if len(self._fine) < _REMEMBERED:
            self._fine.add((scopes, topic, consumer))

    def _allows(self, scope: str, topic: str | None, consumer: str | None) -> bool:
        if scope != "consume" or topic is None:  # whose records it may not see, of that it reaches no consumer either
            return self.may(scope, topic) and (consumer is None or topic is None or self.sees(topic))
        if consumer is None:  # what any consumer must know; nobody consumes positions
            return bool(self._names["consume"]) and self.sees(topic) and topic != POSITIONS
        return self.may_consume(consumer, topic)

    def own(self, chosen: bytes) -> bytes:
        """What a client chose to name a session or a question, as 16 bytes that no other token comes to."""
        if self.is_anyone:
            return chosen
        return blake3(self.name.encode() + b"\0" + chosen, derive_key_context=_OWN).digest(length=16)


def _named(scopes: tuple[str, ...], kind: str) -> tuple[str, ...]:
    return tuple(one.partition(":")[2] for one in scopes if one.startswith(kind + ":"))


def _matches(pattern: str, topic: str) -> bool:
    """A star at the front does not stand for an underscore: such topics are holdfast's own."""
    if is_own(topic) and pattern.startswith("*"):
        return False
    return _fits(pattern, topic)


def _fits(pattern: str, name: str) -> bool:
    """Whether a star's place in a pattern can be anything and give this name.

    Each part takes the first place that it finds, and no other is tried: a name that a client wrote must not decide
    how long this takes.
    """
    head, star, rest = pattern.partition("*")
    if not star or len(name) > _NAME_CHARS_MAX:
        return pattern == name
    *middle, tail = rest.split("*")
    at, end = len(head), len(name) - len(tail)
    if at > end or not name.startswith(head) or not name.endswith(tail):
        return False
    for part in middle:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True
