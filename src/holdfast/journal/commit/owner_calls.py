"""What a journal that is shared asks its owner for beside commits: requests and answers, as values, and how it asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.clock import Clock
from holdfast.errors import OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.journal.commit.forwarder import GroupLink


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


class DoneAnswer(msgspec.Struct, frozen=True, array_like=True):
    """It was done, durably; there is nothing else to say."""


def ask(link: GroupLink, call: str, request: msgspec.Struct, timeout: float, clock: Clock) -> None:
    """Have the owner do what is the same done once or twice: if it ends before it answers, the next one is asked."""
    deadline = clock.monotonic() + timeout
    while True:
        try:
            link.call(call, request, DoneAnswer, max(0.0, deadline - clock.monotonic()))
            return
        except OutcomeUnknown:
            if clock.monotonic() >= deadline:
                raise
