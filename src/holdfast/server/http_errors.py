"""Errors as answers: each kind has a status, and a body from which a client raises the same kind again. Pure.

The body has what the error says, in the words of `holdfast.errors`, which hold no payload, key or token; of a damaged
place it has topic, partition and offset, and no path of this machine. What is no error of holdfast is a defect: the
client learns its request's number, the server's log the rest.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.errors import (
    Closed,
    Corrupt,
    Denied,
    ExecutionError,
    Expired,
    Full,
    HoldfastError,
    Invalid,
    NotFound,
    OutcomeUnknown,
    PromiseRejected,
    Unavailable,
    WaitTimedOut,
)
from holdfast.log.topics.topic_partitions import NoTopic
from holdfast.owner.machine_paths import without_places
from holdfast.remote.http.error_message import ErrorBody
from holdfast.server.guards.browser_guard import WrongHost
from holdfast.server.request_caller import NotKnown

_STATUSES: tuple[tuple[type[HoldfastError], int], ...] = (
    (Expired, 410), (NotFound, 404), (WrongHost, 421), (NotKnown, 401), (Denied, 403), (Full, 429), (Unavailable, 503),
    (Closed, 503), (Corrupt, 500), (OutcomeUnknown, 504), (PromiseRejected, 403), (WaitTimedOut, 504),
    (ExecutionError, 409), (Invalid, 400), (HoldfastError, 500),
)  # fmt: skip
"""The first that fits counts."""

_FIELDS = ("first", "reason", "topic", "partition", "offset", "holder", "expected")
"""What clients may learn of an error's attributes."""

_HINT_OF_FULL = "wait as long as Retry-After says, then send it again"
_HINT_OF_UNKNOWN = "send it again with the same producer and sequence, or the same Idempotency-Key: it is written once"


class RefusedRequest(Invalid):
    """A request that is wrong in a way for which HTTP has a status of its own."""

    def __init__(
        self, status: int, message: str, *, hint: str, headers: dict[str, str] | None = None, kind: str = "Invalid"
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.headers = headers or {}
        self.kind = kind


def status_of(error: HoldfastError) -> int:
    """The status of an error."""
    if isinstance(error, RefusedRequest):
        return error.status
    if isinstance(error, Invalid) and getattr(error, "expected", None) is not None:
        return 409  # a producer's number that leaves a gap
    return next(status for kind, status in _STATUSES if isinstance(error, kind))


def body_of(error: HoldfastError, request: str, sees: Callable[[str], bool] = lambda topic: False) -> ErrorBody:
    """An error as a client gets it, who may know of topics that it `sees`."""
    if isinstance(error, NoTopic):
        error = error.shown_to(sees)
    fields = {name: value for name in _FIELDS if (value := getattr(error, name, None)) is not None}
    return ErrorBody(kind_of(error), without_places(error.message), _hint(error), fields, request)


def kind_of(error: HoldfastError) -> str:
    """The documented kind of an error; what was raised may be a subclass that a room keeps to itself."""
    if isinstance(error, RefusedRequest):
        return error.kind
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == HoldfastError.__module__)


def headers_of(error: HoldfastError, status: int) -> list[tuple[bytes, bytes]]:
    """What stands in headers of such an answer."""
    headers = []
    if status in (429, 503):
        headers.append((b"retry-after", b"1"))
    if status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="holdfast"'))
    if isinstance(error, RefusedRequest):
        headers += [(name.encode(), value.encode()) for name, value in error.headers.items()]
    return headers


def _hint(error: HoldfastError) -> str:
    if isinstance(error, Full):
        return _HINT_OF_FULL
    return _HINT_OF_UNKNOWN if isinstance(error, OutcomeUnknown) else without_places(error.hint)
