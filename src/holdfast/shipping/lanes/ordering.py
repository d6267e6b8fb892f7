"""Ordered acknowledgement: batches finish in any order and count in the order in which they began.

`BatchOrder` decides which batches count: those that are complete, with all before them complete, each exactly once. An
abandoned batch (shutdown, fencing, a store that refuses) never counts, and nor does anything after it.

`Stage` guards what one batch holds: its payload, let go as soon as the store has it or the batch is given up, and its
mark, published by acknowledgement and by nothing else. Every stage is released exactly once; a second release is an
error, a forgotten one is logged. Both belong to the shipper's thread; wrong calls raise Invalid and change nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, Literal, TypeVar

from holdfast.errors import Invalid

logger = logging.getLogger("holdfast.shipping")

Outcome = Literal["acknowledged", "abandoned"]
T = TypeVar("T")

_HINT = "this is a defect in holdfast: the log itself is not affected; please report it"


class BatchOrder:
    """The places of batches in line.

    >>> line = BatchOrder()
    >>> first, second = line.begin(), line.begin()
    >>> line.complete(second)
    >>> line.acknowledge()
    []
    >>> line.complete(first)
    >>> line.acknowledge()
    [0, 1]
    """

    __slots__ = ("_abandoned", "_acknowledged", "_begun", "_complete", "_end")

    def __init__(self) -> None:
        self._begun = 0
        self._acknowledged = 0
        self._complete: set[int] = set()
        self._abandoned: set[int] = set()
        self._end: int | None = None

    @property
    def unacknowledged(self) -> int:
        """Places that began and do not count yet."""
        return self._begun - self._acknowledged

    def begin(self) -> int:
        """The next place in line; refused behind an abandoned one, where nothing can count any more."""
        if self._end is not None:
            raise Invalid(f"nothing begins after an abandoned batch place={self._end}", hint=_HINT)
        place = self._begun
        self._begun += 1
        return place

    def complete(self, place: int) -> None:
        """The batch at this place is durable on the store; said once."""
        self._check_open(place)
        if place in self._complete or place in self._abandoned:
            raise Invalid(f"this batch was completed or abandoned before place={place}", hint=_HINT)
        self._complete.add(place)

    def abandon(self, place: int) -> None:
        """The batch at this place is given up, complete or not: neither it nor anything behind it will ever count."""
        self._check_open(place)
        if place in self._abandoned:
            raise Invalid(f"this batch was abandoned before place={place}", hint=_HINT)
        self._complete.discard(place)
        self._abandoned.add(place)
        self._end = place if self._end is None else min(self._end, place)

    def acknowledge(self) -> list[int]:
        """The places that count from now on, in order; each is returned once."""
        start = self._acknowledged
        while self._acknowledged in self._complete:
            self._complete.remove(self._acknowledged)
            self._acknowledged += 1
        return list(range(start, self._acknowledged))

    def _check_open(self, place: int) -> None:
        if not self._acknowledged <= place < self._begun:
            raise Invalid(f"no such batch is open place={place}", hint=_HINT)


class Stage(Generic[T]):
    """What one batch holds until it is acknowledged or abandoned.

    `label` names it in logs (never with payloads); `publish` moves the mark and is called by acknowledgement alone.
    """

    _is_held = False  # of the class: __del__ also runs where __init__ never did

    def __init__(self, payload: T, publish: Callable[[], None], label: str = "") -> None:
        self._payload: T | None = payload
        self._publish: Callable[[], None] | None = publish
        self._label = label
        self._outcome: Outcome | None = None
        self._is_held = True

    @property
    def outcome(self) -> Outcome | None:
        """How it was released; None while it is held."""
        return self._outcome

    @property
    def payload(self) -> T:
        """What is to be sent, as often as it takes; gone once the store has it."""
        if self._payload is None:
            raise Invalid(f"the payload was let go {self._label}".rstrip(), hint=_HINT)
        return self._payload

    def sent(self) -> None:
        """The store has it: let go of the payload; the mark still waits for all before."""
        self._payload = None

    def release(self, outcome: Outcome) -> None:
        """Let go of everything, once; acknowledgement publishes the mark."""
        if self._outcome is not None:
            raise Invalid(f"released twice: {self._outcome}, then {outcome} {self._label}".rstrip(), hint=_HINT)
        publish = self._publish
        self._outcome, self._is_held = outcome, False
        self._payload = self._publish = None
        if outcome == "acknowledged" and publish is not None:
            publish()

    def __repr__(self) -> str:
        return f"Stage({self._label!r}, outcome={self._outcome!r})"

    def __del__(self) -> None:
        if self._is_held:
            logger.error("a batch was dropped without release %s", self._label, extra={"action": "stage_leaked"})
