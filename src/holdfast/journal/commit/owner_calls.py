"""What a journal that is shared asks its owner for beside commits: requests and answers, as values, and how it asks.

What may be asked twice is asked through `Asking`. The owner may die while it is at it; then nobody knows how far it
came, and the next one is asked again, with what is left of the time: a seal, a report or a policy is the same whether
it is asked for once or twice. When the time is over, it is `Unavailable`, as it would be in the owner's own process.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

from holdfast.clock import Clock
from holdfast.errors import OutcomeUnknown, Unavailable

Reply = TypeVar("Reply")

_GRACE_S = 2.0
"""How much longer than the owner itself a caller waits for the answer: the owner says better why it took so long."""
_PATIENCE_S = 86_400.0
"""How long something may take that has no time-out: as long as it takes."""


class Nothing(msgspec.Struct, frozen=True, array_like=True):
    """A request that says no more than its name, or an answer that says that it was done, durably."""


class CreateTopicCall(msgspec.Struct, frozen=True, array_like=True):
    """Declare a topic."""

    name: str
    partitions: int
    first: int
    fingerprint: bytes
    definition: bytes
    codec: str = ""


class AddSchemaCall(msgspec.Struct, frozen=True, array_like=True):
    """Start a version of a topic's schema."""

    topic: str
    version: int
    fingerprint: bytes
    definition: bytes


class SetPolicyCall(msgspec.Struct, frozen=True, array_like=True):
    """Give a topic its retention policy."""

    topic: str
    bytes_max: int
    age_max_us: int
    records_max: int


class ForgetProducersCall(msgspec.Struct, frozen=True, array_like=True):
    """Let go of producers."""

    names: tuple[bytes, ...]


class ForgottenProducers(msgspec.Struct, frozen=True, array_like=True):
    """Those that were known, and had nothing under way."""

    names: tuple[bytes, ...]


class Calls(Protocol):
    """The way to the owner, as far as calls need it."""

    def call(self, name: str, request: msgspec.Struct, answer: type[Reply], timeout: float) -> Reply:
        """Ask the owner for something, and wait for its answer; OutcomeUnknown where it ended meanwhile."""


class Asking:
    """Asks the owner, through one link."""

    def __init__(self, link: Calls, clock: Clock) -> None:
        self._link = link
        self._clock = clock

    def ask(self, name: str, request: msgspec.Struct, answer: type[Reply], timeout: float = _PATIENCE_S) -> Reply:
        """What the owner answers; it has so many seconds for what it does."""
        deadline = self._clock.monotonic() + timeout + _GRACE_S
        while True:
            try:
                return self._link.call(name, request, answer, max(0.0, deadline - self._clock.monotonic()))
            except OutcomeUnknown as error:
                if self._clock.monotonic() >= deadline:
                    raise Unavailable(
                        f"the owner of this log did not answer within {timeout:g} s call={name}",
                        hint="another process may be taking the log over; ask again",
                    ) from error
