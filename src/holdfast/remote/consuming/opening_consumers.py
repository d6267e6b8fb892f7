"""Consumers of a server's log, opened: what a topic's `consumer(…)` was asked for, checked and handed on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.arguments import seconds
from holdfast.errors import Invalid
from holdfast.log.consumers.assignment import numbers_of
from holdfast.log.consumers.consumer_status import ConsumerStatus
from holdfast.model.topic_name import check_name
from holdfast.remote.consuming.member_session import MemberSession
from holdfast.remote.consuming.remote_consumer import RemoteConsumer
from holdfast.remote.http.exchange import Exchange, Question
from holdfast.remote.writing.client_journal import ClientJournal

if TYPE_CHECKING:
    import pyarrow as pa


class ConsumerOpening:
    """How topics of one client open their consumers."""

    def __init__(self, exchange: Exchange, journal: ClientJournal) -> None:
        self._exchange = exchange
        self._journal = journal
        self._timeout = journal.settings.ack_timeout_ms / 1000

    def open(
        self, reader: Any, name: str, start: int | str | datetime, partitions: Any, on_expired: str, patience: float
    ) -> RemoteConsumer[Any]:
        """A member of the consumer of this name."""
        topic, parts, _, _ = reader
        named = numbers_of(partitions, len(parts))
        if on_expired not in ("fail", "first"):
            raise Invalid(f"unknown on_expired={on_expired!r}", hint="use 'fail' or 'first'")
        if isinstance(start, datetime):
            if start.tzinfo is None:
                raise Invalid("a time needs a time zone", hint="use datetime.now(UTC)")
            start = start.astimezone(UTC).isoformat()
        options = {
            "start": start,
            "partitions": None if named is None else list(named),
            "on_expired": on_expired,
            "patience": seconds(patience, "patience"),
        }
        session = MemberSession(self._exchange, topic, check_name(name, "consumer"), options, self._timeout)
        items, place = _shape(topic in self._journal.schemas)
        return RemoteConsumer(self._journal, session, items, place, named)

    def status(self, topic: str | None = None) -> list[ConsumerStatus]:
        """How far all consumers are, or those of one topic."""
        query = () if topic is None else (("topic", topic),)
        answer = self._exchange.ask(Question("GET", ("v1", "consumers"), query), self._timeout)
        return answer.decoded(_Consumers).consumers

    def forget_consumer(self, name: str, topic: str) -> None:
        """Let go of a consumer's position in a topic, durably."""
        place = ("v1", "topics", check_name(topic), "consumers", name)
        self._exchange.ask(Question("DELETE", place, again=False), self._timeout)


class _Consumers(msgspec.Struct):
    consumers: list[ConsumerStatus]


def _shape(typed: bool) -> tuple[Callable[[pa.RecordBatch], Iterator[Any]], Callable[[Any], tuple[int, int]]]:
    if typed:
        from holdfast.model import plain_arrays

        return lambda batch: iter(plain_arrays.rows(batch)), lambda row: (row["_partition"], row["_offset"])
    return _records, lambda record: (record.partition, record.offset)


def _records(batch: pa.RecordBatch) -> Iterator[Any]:
    from holdfast.segments.typed.arrow_records import records

    numbers = batch.column("partition")
    at = 0
    while at < batch.num_rows:  # one run of rows for each partition
        number = numbers[at].as_py()
        end = at + 1
        while end < batch.num_rows and numbers[end].as_py() == number:
            end += 1
        yield from records(batch.slice(at, end - at).drop_columns(["partition"]), number)
        at = end
