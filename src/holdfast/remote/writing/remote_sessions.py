"""Producers of a server's log: what they send goes with the client's groups, each number is written once."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.errors import NotFound
from holdfast.journal.journal_port import SessionInfo, check_producer
from holdfast.journal.queue.forwarded import ForwardedRows, ForwardedUnit, ProducedUnit
from holdfast.journal.queue.group import ProducerNumber
from holdfast.journal.queue.queue import Queue
from holdfast.remote.http.exchange import Exchange, Question


class _SessionState(msgspec.Struct):
    producer: str
    last: int | None
    first_known: int = 1
    used_us: int = 0


class _AllKnown(msgspec.Struct):
    producers: list[_SessionState]


class RemoteSessions:
    """What a journal's sessions are to producers, at a server."""

    def __init__(self, exchange: Exchange, queue: Queue, timeout: float) -> None:
        self._exchange = exchange
        self._queue = queue
        self._timeout = timeout

    def produce(
        self, producer: bytes, sequence: int, item: ForwardedRows | ForwardedUnit, timeout: float, *, start: int = 1
    ) -> ProducedUnit:
        """Have something written once, under a producer's number."""
        check_producer(producer, sequence, start)
        return self._queue.put_produced(ProducerNumber(producer, sequence, start), item, timeout)

    def last_produced(self, producer: bytes) -> int | None:
        """The highest number of a producer that is durable; None where none is known."""
        answer = self._exchange.ask(Question("GET", ("v1", "producers", producer.decode())), self._timeout)
        return answer.decoded(_SessionState).last

    def all(self) -> list[SessionInfo]:
        """All producers, those that were used longest ago first."""
        answer = self._exchange.ask(Question("GET", ("v1", "client", "producers")), self._timeout)
        found = answer.decoded(_AllKnown).producers
        return [SessionInfo(one.producer.encode(), True, one.last or 0, one.first_known, one.used_us) for one in found]

    def forget(self, producers: Sequence[bytes], timeout: float) -> list[bytes]:
        """Let go of producers, durably: those that are known, and have nothing under way."""
        gone = []
        for name in producers:
            question = Question("DELETE", ("v1", "client", "producers", name.decode()), again=False)
            try:
                self._exchange.ask(question, timeout)
            except NotFound:
                continue
            gone.append(name)
        return gone
