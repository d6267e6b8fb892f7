"""A topic: the verbs of the log, each named after what you get.

    offer    True at once, or False when refused        survives nothing until the next group commit
    submit   a ticket at once                            survives power loss once the ticket has been awaited
    append   a receipt, after the fsync                  survives power loss when it returns

All three check their arguments before anything is queued. Records with the same key go to the same
partition and stay in order; records without one go round robin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.arguments import seconds, several
from holdfast.journal.journal_port import JournalPort
from holdfast.journal.queue.ticket import BatchTicket, Ticket
from holdfast.journal.state.partition import Partition
from holdfast.log.topics.any_topic import AnyTopic
from holdfast.log.topics.key_filter import KeyFilter
from holdfast.log.topics.reading import ResultColumns, Span, Times
from holdfast.log.topics.topic_partitions import Partitions, PreparedBatch
from holdfast.log.topics.validation import Headers, Validation
from holdfast.model.record import NOW, Durability, Receipt, Record
from holdfast.model.record_columns import Columns, Extra, Row
from holdfast.model.topic_name import check_users

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.model.value_codec import ValueCodec


class Topic(AnyTopic[Record]):
    """One topic of an open log; get it with `log.topic(name)`."""

    codec: ValueCodec | None = None
    """What its payloads stand for; None: they are bytes."""

    def __init__(self, name: str, journal: JournalPort, partitions: Partitions, checks: Validation) -> None:
        super().__init__(name, journal, partitions, checks, _Raw)
        self._only = partitions.only
        self._payload_bytes_max = self._journal.settings.payload_bytes_max

    # -- appending ----------------------------------------------------------------------------------------

    def append(
        self,
        payload: bytes,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        kind: str | None = None,
        time: int | datetime | None = None,
        partition: int | None = None,
        idempotency_key: bytes | str | None = None,
        timeout: float | None = None,
        durability: Durability = "durable",
    ) -> Receipt:
        """Append one record and return its receipt once it survives power loss.

        `key` (bytes or text) chooses the partition: records with one key are in one partition, in order; those
        without a key take turns, unless `partition` says which. `headers` map text to bytes or text, `kind` is a
        short text. `time` is an aware datetime, or microseconds since 1970 UTC (default: now).

        With `durability="shipped"` once it survives the loss of this machine: the store has acknowledged it, and
        everything before it (needs a store; waits `shipping.shipped_timeout_ms` more, then raises Unavailable).

        Raises Full when there is no room within `timeout` seconds, OutcomeUnknown when there was no acknowledgement
        (default: `journal.ack_timeout_ms`). A repeated `idempotency_key` writes nothing and returns the original
        receipt, which then says that it is `repeated`; with another payload, key, kind or headers than the first time
        it is Invalid.
        """
        wait_seconds, deadline = self._begin("append", timeout, durability)
        ticket = self.submit(
            payload,
            key=key,
            headers=headers,
            kind=kind,
            time=time,
            partition=partition,
            idempotency_key=idempotency_key,
            timeout=wait_seconds,
        )
        return self._wait(ticket, deadline, durability, timeout)

    async def append_async(
        self,
        payload: bytes,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        kind: str | None = None,
        time: int | datetime | None = None,
        partition: int | None = None,
        idempotency_key: bytes | str | None = None,
        timeout: float | None = None,
        durability: Durability = "durable",
    ) -> Receipt:
        """What `append` does, for coroutines: waits for room and for the acknowledgement without blocking the loop.

        Cancelling the wait for the acknowledgement does not take the record back.
        """

        def put(left: float) -> Ticket:
            return self.submit(
                payload,
                key=key,
                headers=headers,
                kind=kind,
                time=time,
                partition=partition,
                idempotency_key=idempotency_key,
                timeout=left,
            )

        return await self._wait_async(put, timeout, durability)

    def submit(
        self,
        payload: bytes,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        kind: str | None = None,
        time: int | datetime | None = None,
        partition: int | None = None,
        idempotency_key: bytes | str | None = None,
        timeout: float | None = None,
    ) -> Ticket:
        """Queue one record for the next commit and return its ticket; `ticket.result()` or `await ticket`.

        Waits for room at most `timeout` seconds, and never on an event loop; then raises Full.
        """
        if type(payload) is not bytes:
            payload = self._checks.payload(payload)
        size = len(payload)
        if size > self._payload_bytes_max:
            raise self._checks.too_large(size)
        extra: Extra | None = None
        unique: bytes | None = None
        if key is not None or headers is not None or kind is not None:
            extra, size = self._checks.extras(key, kind, headers, size)
        if idempotency_key is not None:
            idempotency_key, unique = self._checks.unique_record(idempotency_key, payload, extra)
        submit, now = self._journal.submit, self._now  # calling them by way of their objects would be slower
        return submit(
            self._only if partition is None and self._only is not None else self._choose(partition, extra),
            payload,
            now() if time is None else self._checks.time(time),
            extra,
            unique,
            size,
            self._wait_seconds if timeout is None else seconds(timeout),
            idempotency_key,
        )

    def offer(
        self,
        payload: bytes,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        kind: str | None = None,
        time: int | datetime | None = None,
        partition: int | None = None,
        idempotency_key: bytes | str | None = None,
    ) -> bool:
        """Queue one record without waiting for anything; False when the queue is full.

        It becomes durable with the next group commit, at the latest `journal.flush_interval_ms` after it
        came to wait alone, and always before any append that was acknowledged after it.
        """
        if type(payload) is not bytes:
            payload = self._checks.payload(payload)
        size = len(payload)
        if size > self._payload_bytes_max:
            raise self._checks.too_large(size)
        extra: Extra | None = None
        unique: bytes | None = None
        if key is not None or headers is not None or kind is not None:
            extra, size = self._checks.extras(key, kind, headers, size)
        if idempotency_key is not None:
            _, unique = self._checks.unique_record(idempotency_key, payload, extra)
        return self._journal.offer(
            self._only if partition is None and self._only is not None else self._choose(partition, extra),
            payload,
            self._now() if time is None else self._checks.time(time),
            extra,
            unique,
            size,
        )

    def append_batch(
        self,
        records: Iterable[bytes | Record],
        *,
        partition: int | None = None,
        timeout: float | None = None,
        durability: Durability = "durable",
    ) -> Sequence[Receipt]:
        """Append records as one unit: all of them are durable when this returns, or none is.

        Records with keys go to their partitions; those without a key stay together, in order.
        """
        wait_seconds, deadline = self._begin("append_batch", timeout, durability)
        return self._wait(
            self.submit_batch(records, partition=partition, timeout=wait_seconds), deadline, durability, timeout
        )

    async def append_batch_async(
        self,
        records: Iterable[bytes | Record],
        *,
        partition: int | None = None,
        timeout: float | None = None,
        durability: Durability = "durable",
    ) -> Sequence[Receipt]:
        """What `append_batch` does, for coroutines."""
        batch = list(several(records, "records", "append_batch([b'one'])"))  # once: it may be an iterator
        return await self._wait_async(
            lambda left: self.submit_batch(batch, partition=partition, timeout=left), timeout, durability
        )

    def submit_batch(
        self, records: Iterable[bytes | Record], *, partition: int | None = None, timeout: float | None = None
    ) -> BatchTicket:
        """Queue records as one unit and return its ticket."""
        wait_seconds = self._wait_seconds if timeout is None else seconds(timeout)
        return self._submit_batch(self._prepared(records, partition), wait_seconds)

    def _prepared(
        self, records: Iterable[bytes | Record], partition: int | None, keyless: bytes | None = None
    ) -> PreparedBatch:
        """Records as one batch; for transactions and producers, too. Those without a key go where `keyless` belongs."""
        records = records if isinstance(records, list) else list(several(records, "records", "append_batch([b'one'])"))
        self._checks.batch(records)
        if set(map(type, records)) == {bytes}:
            columns = Columns(records, [self._now()] * len(records))  # type: ignore[arg-type]
            sizes = list(map(len, columns.payloads))
            size = self._checks.batch_size(sum(sizes), max(sizes))
            return PreparedBatch([(self._partitions.choose(partition, keyless), columns)], size, range(len(records)))
        target = None if keyless is None else self._partitions.choose(None, keyless)
        return self._prepared_mixed(records, partition, target)

    def _prepared_mixed(
        self, records: Sequence[bytes | Record], partition: int | None, keyless: Partition | None
    ) -> PreparedBatch:
        now = self._now()
        parts: dict[Partition, tuple[list[bytes], list[int], dict[int, Extra]]] = {}
        places: list[tuple[Partition, int]] = []
        size = 0
        for given in records:
            record, payload, extra, weight = self._checks.record(given)
            if partition is None and record.key is None:
                target = keyless = keyless or self._choose(None, None)
            else:
                target = self._choose(partition, extra)
            payloads, times, extras = parts.setdefault(target, ([], [], {}))
            places.append((target, len(payloads)))
            if extra is not None:
                extras[len(payloads)] = extra
            payloads.append(payload)
            times.append(now if record.time == NOW else self._checks.time(record.time))
            size += weight
        self._checks.batch_size(size)
        batches = [(target, Columns(*columns)) for target, columns in parts.items()]
        ends = list(accumulate((len(payloads) for payloads, _, _ in parts.values()), initial=0))
        starts = dict(zip(parts, ends, strict=False))
        positions = [starts[target] + index for target, index in places]
        return PreparedBatch(batches, size, positions, ends[:-1])

    def _row(
        self,
        payload: bytes,
        key: bytes | str | None,
        headers: Headers | None,
        kind: str | None,
        time: int | datetime | None,
        partition: int | None,
        idempotency_key: bytes | str | None,
    ) -> tuple[Partition, Row, int]:
        """One record as `submit` queues it, for transactions: its partition, what is stored of it, and its bytes."""
        if type(payload) is not bytes:
            payload = self._checks.payload(payload)
        size = len(payload)
        if size > self._payload_bytes_max:
            raise self._checks.too_large(size)
        extra: Extra | None = None
        unique: bytes | None = None
        if key is not None or headers is not None or kind is not None:
            extra, size = self._checks.extras(key, kind, headers, size)
        if idempotency_key is not None:
            _, unique = self._checks.unique_record(idempotency_key, payload, extra)
        part = self._only if partition is None and self._only is not None else self._choose(partition, extra)
        return part, (payload, self._now() if time is None else self._checks.time(time), extra, unique), size

    def _wanted(self, key: object) -> KeyFilter:
        encoded = self._checks.key(key)  # type: ignore[arg-type]  # which says so
        return KeyFilter(encoded, "key", encoded)

    def __repr__(self) -> str:
        return f"Topic({self.name!r}, partitions={self.partitions})"

    def _choose(self, partition: int | None, extra: Extra | None) -> Partition:
        return self._partitions.choose(partition, extra[0] if extra is not None else None)


class Unwritten:
    """What topics that holdfast alone writes have in place of the verbs that append, transactions and producers too."""

    name: str

    def submit(self, *_: Any, **__: Any) -> NoReturn:
        """Denied: its writers are parts of holdfast, which do not come this way."""
        check_users(self.name)
        raise AssertionError(self.name)

    offer = submit_batch = _prepared = _row = submit


class OwnTopic(Unwritten, Topic):
    """A topic that holdfast alone writes; it is read like any other."""


class _Raw:
    """How raw records are read."""

    def items(self, span: Span, times: Times, reverse: bool, key: KeyFilter | None = None) -> Iterator[Record]:
        return span.stream.records(span.start, span.end, times, reverse=reverse, key=key)

    def place(self, item: Record) -> tuple[int, int]:
        return item.partition, item.offset

    def size(self, item: Record) -> int:
        headers = sum(len(name) + len(value) for name, value in item.headers.items()) if item.headers else 0
        return len(item.payload) + len(item.key or b"") + headers

    def schema(self) -> pa.Schema:
        from holdfast.segments.file.segment_columns import RAW_SCHEMA
        from holdfast.segments.file.selection import with_partition

        return with_partition(RAW_SCHEMA, "partition")

    def batches(
        self, span: Span, times: Times, reverse: bool, key: KeyFilter | None = None
    ) -> Iterator[pa.RecordBatch]:
        columns, end = ResultColumns(self.schema()), span.to_the_end
        return span.stream.results(columns, span.start, span.end, times, reverse=reverse, key=key, to_the_end=end)
