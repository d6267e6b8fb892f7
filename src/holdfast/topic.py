"""A topic: the verbs of the log, each named after what you get.

    offer    True at once, or False when refused        survives nothing until the next group commit
    submit   a ticket at once                            survives power loss once the ticket has been awaited
    append   a receipt, after the fsync                  survives power loss when it returns

All three check their arguments before anything is queued. Records with the same key go to the same
partition and stay in order; records without one go round robin.
"""

from __future__ import annotations

import sys
import warnings
from asyncio.events import _get_running_loop
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import count, islice
from typing import TYPE_CHECKING
from zlib import crc32

from holdfast.errors import Invalid
from holdfast.following import Follower
from holdfast.intake import Headers, Intake
from holdfast.journal.columns import Columns, Extra
from holdfast.journal.journal import Journal
from holdfast.journal.partition import Partition
from holdfast.journal.ticket import BatchTicket, Ticket
from holdfast.record import NOW, Marks, Receipt, Record

if TYPE_CHECKING:
    from holdfast.clock import Clock


class Topic:
    """One topic of an open log; get it with `log.topic(name)`."""

    def __init__(self, name: str, partitions: tuple[Partition, ...], journal: Journal, clock: Clock) -> None:
        self.name = name
        self._partitions = partitions
        self._journal = journal
        self._only = partitions[0] if len(partitions) == 1 else None
        self._turn = count()
        self._now = clock.now_us
        self._monotonic = clock.monotonic
        self._patience = journal.settings.ack_timeout_ms / 1000
        self._payload_bytes_max = journal.settings.payload_bytes_max
        self._intake = Intake(name, journal.settings)

    @property
    def partitions(self) -> int:
        """How many partitions the topic has."""
        return len(self._partitions)

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
    ) -> Receipt:
        """Append one record and return its receipt once it survives power loss.

        Raises Full when there is no room within `timeout` seconds, OutcomeUnknown when there was no
        acknowledgement (default: `journal.ack_timeout_ms`). A repeated `idempotency_key` writes nothing and
        returns the original receipt.
        """
        if _get_running_loop() is not None:
            warnings.warn("append() blocks the event loop; use: await topic.submit(...)", RuntimeWarning, stacklevel=2)
        patience = self._patience if timeout is None else timeout
        started = self._monotonic()
        ticket = self.submit(
            payload, key=key, headers=headers, kind=kind, time=time, partition=partition,
            idempotency_key=idempotency_key, timeout=patience,
        )  # fmt: skip
        return ticket.result(max(0.0, patience - (self._monotonic() - started)))  # one time-out for room and ack

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
            idempotency_key, unique = self._intake.unique(idempotency_key)
        patience = self._patience if timeout is None else timeout
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
            _, unique = self._intake.unique(idempotency_key)
        return self._journal.queue.offer(
            self._only if partition is None and self._only is not None else self._choose(partition, extra),
            payload,
            self._now() if time is None else self._intake.time(time),
            extra,
            unique,
            size,
        )

    def append_batch(
        self, records: Iterable[bytes | Record], *, partition: int | None = None, timeout: float | None = None
    ) -> Sequence[Receipt]:
        """Append records as one unit: all of them are durable when this returns, or none is.

        Records with keys go to their partitions; those without a key stay together, in order.
        """
        if _get_running_loop() is not None:
            warnings.warn(
                "append_batch() blocks the event loop; use: await topic.submit_batch(...)", RuntimeWarning, stacklevel=2
            )
        patience = self._patience if timeout is None else timeout
        started = self._monotonic()
        ticket = self.submit_batch(records, partition=partition, timeout=patience)
        return ticket.result(max(0.0, patience - (self._monotonic() - started)))

    def submit_batch(
        self, records: Iterable[bytes | Record], *, partition: int | None = None, timeout: float | None = None
    ) -> BatchTicket:
        """Queue records as one unit and return its ticket."""
        records = records if isinstance(records, list) else list(records)
        self._intake.batch(records)
        patience = self._patience if timeout is None else timeout
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
        self._journal.flush(timeout)

    # -- reading ------------------------------------------------------------------------------------------

    def read(
        self,
        start: int = 0,
        end: int | None = None,
        limit: int | None = None,
        reverse: bool = False,
        *,
        partition: int | None = None,
    ) -> Iterator[Record]:
        """Durable records with offsets from `start` up to, not including, `end`, in order of offsets.

        `end` defaults to all that is durable now. Negative offsets count from there: `start=-10` is the
        last ten. A topic with several partitions is read one partition after the other, unless one is named.
        """
        if limit is not None and limit < 0:
            raise Invalid(f"limit must not be negative, got {limit}", hint="leave it out to read everything")
        self._journal.refresh()
        wanted = self._partitions if partition is None else (self._explicit(partition),)
        found = self._read_all(wanted[::-1] if reverse else wanted, start, end, reverse)
        return found if limit is None else islice(found, min(limit, sys.maxsize))

    def _read_all(self, wanted: tuple[Partition, ...], start: int, end: int | None, reverse: bool) -> Iterator[Record]:
        for part in wanted:
            durable = part.durable
            first = max(0, durable + start) if start < 0 else start
            last = durable if end is None else min(durable, durable + end if end < 0 else end)
            yield from self._journal.read(part, first, last, reverse)

    def follow(self, start: int | None = None, *, partition: int | None = None) -> Follower:
        """Records as they become durable, for ever: `for record in topic.follow()` or `async for`.

        Begins at offset `start` of every partition (default: with the next record). Order holds within
        each partition. Ends when the log is closed.
        """
        self._journal.refresh()
        wanted = self._partitions if partition is None else (self._explicit(partition),)
        positions = {part: part.durable if start is None else _position(start, part.durable) for part in wanted}
        return Follower(self._journal, positions)

    def marks(self) -> tuple[Marks, ...]:
        """How far each partition got."""
        self._journal.refresh()
        return tuple(Marks(self._journal.appended(part), part.durable) for part in self._partitions)

    def __repr__(self) -> str:
        return f"Topic({self.name!r}, partitions={len(self._partitions)})"

    # -- partitions ---------------------------------------------------------------------------------------

    def _choose(self, partition: int | None, extra: Extra | None) -> Partition:
        """Explicit, by key hash, or round robin."""
        if partition is not None:
            return self._explicit(partition)
        if self._only is not None:
            return self._only
        key = extra[0] if extra is not None else None
        number = next(self._turn) if key is None else crc32(key)
        return self._partitions[number % len(self._partitions)]

    def _explicit(self, partition: int) -> Partition:
        if not isinstance(partition, int) or not 0 <= partition < len(self._partitions):
            raise Invalid(
                f"topic {self.name!r} has no partition {partition}",
                hint=f"its partitions are 0 to {len(self._partitions) - 1}",
            )
        return self._partitions[partition]


def _position(start: int, durable: int) -> int:
    return max(0, durable + start) if start < 0 else start
