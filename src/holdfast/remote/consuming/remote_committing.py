"""The position of a server's consumer on its way into a transaction: sent with it, and committed with it there.

In the client it is a change of the space that a log keeps positions in, whose one item names the member and how far it
got. The server takes it for what it is (`group_screening`); nobody else sees it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from holdfast.journal.state.operations import ChangeSpace
from holdfast.log.consumers.stored_positions import SPACE

if TYPE_CHECKING:
    from holdfast.journal.queue.ticket import UnitTicket

_SPACE = SPACE.encode()


class Consumed(msgspec.Struct, array_like=True, frozen=True):
    """How far a member of a consumer, which the server keeps, got in partitions whose position changes."""

    topic: str
    consumer: str
    member: str
    position: dict[int, int]


_decode = msgspec.msgpack.Decoder(Consumed).decode


class Taker(Protocol):
    """The consumer that wants to hear what becomes of it."""

    def position_queued(self, ticket: UnitTicket, position: Mapping[int, int]) -> None:
        """It is in the queue; the ticket tells what becomes of it."""

    def position_stored(self) -> None:
        """It is durable."""

    def position_failed(self) -> None:
        """It was not queued, and never will be."""


class RemoteCommitting:
    """See `log.transactions.committing.Committing`."""

    records = 0
    scope = None

    def __init__(self, taker: Taker, journal: object, told: Consumed) -> None:
        self._taker = taker
        self._journal = journal
        self._told = told
        key = "\0".join((told.consumer, told.topic, told.member)).encode()
        body = msgspec.msgpack.encode(told)
        self.operations: Sequence[ChangeSpace] = [ChangeSpace(_SPACE, ((key, 0, body),))]
        self.size = len(key) + len(body)

    def is_of(self, journal: object) -> bool:
        """Whether its consumer reads the log of this journal."""
        return journal is self._journal

    def queued(self, ticket: UnitTicket) -> None:
        """It is in the queue; the ticket tells what becomes of it."""
        self._taker.position_queued(ticket, self._told.position)

    def stored(self) -> None:
        """It is durable."""
        self._taker.position_stored()

    def failed(self) -> None:
        """It was not queued, and never will be."""
        self._taker.position_failed()


def positions_in(change: ChangeSpace) -> list[Consumed] | None:
    """The positions that a change stands for; None where it is a change of a user's space."""
    return [_decode(body) for _, _, body in change.puts] if change.name == _SPACE else None
