"""A topic: the verbs of the log, each named after what you get.

    offer    True at once, or False when refused        survives nothing until the next group commit
    submit   a ticket at once                            survives power loss once the ticket has been awaited
    append   a receipt, after the fsync                  survives power loss when it returns

All three check their arguments before anything is queued. Records with the same key go to the same
partition and stay in order; records without one go round robin.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from holdfast.arguments import seconds, several
from holdfast.caller import in_coroutine
from holdfast.clock import Clock
from holdfast.journal.commit.ticket import BatchTicket, Ticket
from holdfast.journal.state.partition import Partition
from holdfast.log.following import Follower
from holdfast.log.partition_stream import Times
from holdfast.log.reading import Reading, Span
from holdfast.log.topic_partitions import Partitions
from holdfast.log.validation import Headers, Intake
from holdfast.log.watching import Watch
from holdfast.model.record import NOW, Durability, Marks, Receipt, Record, Watermark
from holdfast.model.record_columns import Columns, Extra

if TYPE_CHECKING:
    import pyarrow as pa


class Topic:
    """One topic of an open log; get it with `log.topic(name)`."""

    def __init__(self, name: str, partitions: Partitions, clock: Clock) -> None:
        self.name = name
        self._partitions = partitions
        self._journal = journal = partitions.journal
        self._only = partitions.only
        self._now = clock.now_us
        self._monotonic = clock.monotonic
        self._patience = journal.settings.ack_timeout_ms / 1000
        self._payload_bytes_max = journal.settings.payload_bytes_max
        self._intake = Intake(name, journal.settings)

    @property
    def partitions(self) -> int:
        """How many partitions the topic has."""
        return len(self._partitions.parts)

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

        With `durability="shipped"` once it survives the loss of this machine: the store has acknowledged it, and
        everything before it (needs a store; waits `shipping.shipped_timeout_ms` more, then raises Unavailable).

        Raises Full when there is no room within `timeout` seconds, OutcomeUnknown when there was no
        acknowledgement (default: `journal.ack_timeout_ms`). A repeated `idempotency_key` writes nothing and
        returns the original receipt, which then says that it is `repeated`; with another payload, key, kind or headers
        than the first time it is Invalid.
        """
        if in_coroutine():
            warnings.warn(
                "append() blocks the event loop; use: await topic.append_async(…)", RuntimeWarning, stacklevel=2
            )
        if durability != "durable":
            self._journal.check_durability(durability)
        patience = self._patience if timeout is None else seconds(timeout)
        started = self._monotonic()
        ticket = self.submit(
            payload, key=key, headers=headers, kind=kind, time=time, partition=partition,
            idempotency_key=idempotency_key, timeout=patience,
        )  # fmt: skip
        receipt = ticket.result(max(0.0, patience - (self._monotonic() - started)))  # one time-out for room and ack
        return receipt if durability == "durable" else ticket.shipped()

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

        Cancelling whoever waits for the acknowledgement does not take the record back.
        """
        if durability != "durable":
            self._journal.check_durability(durability)
        patience = self._patience if timeout is None else seconds(timeout)

        def put(left: float) -> Ticket:
            return self.submit(
                payload, key=key, headers=headers, kind=kind, time=time, partition=partition,
                idempotency_key=idempotency_key, timeout=left,
            )  # fmt: skip

        ticket = await self._journal.queue.when_room(put, patience)
        return await (ticket if durability == "durable" else ticket.when_shipped)

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
            payload = self._intake.payload(payload)
        size = len(payload)
        if size > self._payload_bytes_max:
            raise self._intake.too_large(size)
        extra: Extra | None = None
        unique: bytes | None = None
        if key is not None or headers is not None or kind is not None:
            extra, size = self._intake.extras(key, kind, headers, size)
        if idempotency_key is not None:
            idempotency_key, unique = self._intake.unique_record(idempotency_key, payload, extra)
        patience = self._patience if timeout is None else seconds(timeout)
        run, index = self._journal.queue.put(
            self._only if partition is None and self._only is not None else self._choose(partition, extra),
            payload,
            self._now() if time is None else self._intake.time(time),
            extra,
            unique,
            size,
            True,
            patience,
        )
        return Ticket(run, index, patience, idempotency_key)

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
            payload = self._intake.payload(payload)
        size = len(payload)
        if size > self._payload_bytes_max:
            raise self._intake.too_large(size)
        extra: Extra | None = None
        unique: bytes | None = None
        if key is not None or headers is not None or kind is not None:
            extra, size = self._intake.extras(key, kind, headers, size)
        if idempotency_key is not None:
            _, unique = self._intake.unique_record(idempotency_key, payload, extra)
        return self._journal.queue.offer(
            self._only if partition is None and self._only is not None else self._choose(partition, extra),
            payload,
            self._now() if time is None else self._intake.time(time),
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
        if in_coroutine():
            warnings.warn(
                "append_batch() blocks the event loop; use: await topic.append_batch_async(…)",
                RuntimeWarning, stacklevel=2,
            )  # fmt: skip
        patience = self._patience if timeout is None else seconds(timeout)
        started = self._monotonic()
        if durability != "durable":
            self._journal.check_durability(durability)
        ticket = self.submit_batch(records, partition=partition, timeout=patience)
        receipts = ticket.result(max(0.0, patience - (self._monotonic() - started)))
        return receipts if durability == "durable" else ticket.shipped()

    async def append_batch_async(
        self,
        records: Iterable[bytes | Record],
        *,
        partition: int | None = None,
        timeout: float | None = None,
        durability: Durability = "durable",
    ) -> Sequence[Receipt]:
        """What `append_batch` does, for coroutines."""
        if durability != "durable":
            self._journal.check_durability(durability)
        patience = self._patience if timeout is None else seconds(timeout)
        batch = list(several(records, "records", "append_batch([b'one'])"))
        ticket = await self._journal.queue.when_room(
            lambda left: self.submit_batch(batch, partition=partition, timeout=left), patience
        )
        return await (ticket if durability == "durable" else ticket.when_shipped)

    def submit_batch(
        self, records: Iterable[bytes | Record], *, partition: int | None = None, timeout: float | None = None
    ) -> BatchTicket:
        """Queue records as one unit and return its ticket."""
        records = records if isinstance(records, list) else list(several(records, "records", "append_batch([b'one'])"))
        self._intake.batch(records)
        patience = self._patience if timeout is None else seconds(timeout)
        if set(map(type, records)) == {bytes}:
            columns = Columns(records, [self._now()] * len(records))  # type: ignore[arg-type]
            sizes = list(map(len, columns.payloads))
            size = self._intake.batch_size(sum(sizes), max(sizes))
            unit = self._journal.queue.put_runs([(self._choose(partition, None), columns)], size, patience)
            return BatchTicket(unit, unit.runs()[0], patience)
        return self._submit_mixed(records, partition, patience)

    def _submit_mixed(self, records: Sequence[bytes | Record], partition: int | None, patience: float) -> BatchTicket:
        now = self._now()
        keyless: Partition | None = None
        parts: dict[Partition, tuple[list[bytes], list[int], dict[int, Extra]]] = {}
        places: list[tuple[Partition, int]] = []
        size = 0
        for given in records:
            record, payload, extra, weight = self._intake.record(given)
            if partition is None and record.key is None:
                target = keyless = keyless or self._choose(None, None)
            else:
                target = self._choose(partition, extra)
            payloads, times, extras = parts.setdefault(target, ([], [], {}))
            places.append((target, len(payloads)))
            if extra is not None:
                extras[len(payloads)] = extra
            payloads.append(payload)
            times.append(now if record.time == NOW else self._intake.time(record.time))
            size += weight
        self._intake.batch_size(size)
        batches = [(target, Columns(*columns)) for target, columns in parts.items()]
        unit = self._journal.queue.put_runs(batches, size, patience)
        runs = {run.partition: run for run in unit.runs()}
        return BatchTicket(unit, [(runs[target], index) for target, index in places], patience)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything queued so far is durable; raises if anything accepted was not stored."""
        self._journal.flush(None if timeout is None else seconds(timeout))

    # -- reading ------------------------------------------------------------------------------------------

    def read(
        self,
        start: int | str | None = None,
        end: int | str | None = None,
        limit: int | None = None,
        reverse: bool = False,
        *,
        partition: int | Iterable[int] | None = None,
        since: int | datetime | None = None,
        until: int | datetime | None = None,
        bytes_max: int | None = None,
    ) -> Reading[Record]:
        """Durable records with offsets from `start` up to, not including, `end`, in order of offsets.

        Begins with the first record that is left and ends with the last that is durable now; negative offsets count
        from there: `start=-10` is the last ten. `since` and `until` keep only records with such times, both ends
        included; times need not be in order. `limit` bounds the number of records, `bytes_max` their size (the
        first is given in any case). A topic with several partitions is read one partition after the other, unless
        one or some are named. A `position` of an earlier reading may stand for `start`, or for `end` backwards.
        """
        return self._partitions.read(_Raw, start, end, limit, reverse, partition, since, until, bytes_max)

    def follow(
        self, start: int | str | None = None, *, partition: int | Iterable[int] | None = None
    ) -> Follower[Record]:
        """Records as they become durable, for ever: `for record in topic.follow()` or `async for`.

        Begins at offset `start` of every partition, or at the `position` of a reading (default: with the next
        record). Order holds within each partition. Ends when the log is closed.
        """
        return self._partitions.follow(_Raw, start, partition)

    def marks(self) -> tuple[Marks, ...]:
        """How far each partition got."""
        return self._partitions.marks()

    def watermark(self, partition: int = 0) -> Watermark:
        """How far a partition is sealed: its newest segment (None before the first) and the offset behind it."""
        return self._partitions.watermark(partition)

    def watch(self, partition: int = 0) -> Watch:
        """The watermark as it moves: `.value` at any time, `for` or `async for` each change."""
        return self._partitions.watch(partition)

    def wait_sealed(self, offset: int, timeout: float, *, partition: int = 0) -> Watermark:
        """Wait until everything below `offset` is sealed; raises Unavailable when it is not in time."""
        return self._partitions.watch(partition).wait(offset, timeout)

    def __repr__(self) -> str:
        return f"Topic({self.name!r}, partitions={self.partitions})"

    def _choose(self, partition: int | None, extra: Extra | None) -> Partition:
        return self._partitions.choose(partition, extra[0] if extra is not None else None)


class _Raw:
    """How raw records are read."""

    def items(self, span: Span, times: Times, reverse: bool) -> Iterator[Record]:
        return span.stream.records(span.start, span.end, times, reverse=reverse)

    def place(self, item: Record) -> tuple[int, int]:
        return item.partition, item.offset

    def size(self, item: Record) -> int:
        headers = sum(len(name) + len(value) for name, value in item.headers.items()) if item.headers else 0
        return len(item.payload) + len(item.key or b"") + headers

    def schema(self) -> pa.Schema:
        from holdfast.segments.file.segment_columns import RAW_SCHEMA
        from holdfast.segments.file.selection import with_partition

        return with_partition(RAW_SCHEMA, "partition")

    def batches(self, span: Span, times: Times, reverse: bool) -> Iterator[pa.RecordBatch]:
        from holdfast.segments.file.selection import add_partition

        schema = self.schema()
        number = span.stream.partition.number
        for _, batch in span.stream.batches(span.start, span.end, times, reverse=reverse):
            yield add_partition(batch, number, schema)
