"""A transaction: appends to any topics, changes of spaces and positions of consumers, durable together or not at all.

    with log.transaction() as tx:                   # or: async with
        tx.append("orders", order)
        paid = tx.append("payments", payment, key=customer)
        tx.put("balances", customer, balance)
    print(paid.receipt.offset)

The block only gathers, in memory; nobody else sees any of it. When it ends, all of it is handed to the journal as one
unit, which is one commit, and the block is left once that survives power loss. A block that raises writes nothing.
Everything is checked when it is asked for, so that what is handed over fits.

A transaction isolates nothing: what is read in the block is what is committed, and others may change it meanwhile.

Failing. Raises what an append would: Full, where there was no room in time, Unavailable, where the disk would not take
it, and Closed mean that nothing was written. OutcomeUnknown means that nobody knows yet; `error.ticket` still settles.
One object is one transaction: it is entered once, and takes nothing before and after. Threads may share it.
"""

from __future__ import annotations

import warnings
from _thread import RLock
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, overload

from holdfast.arguments import seconds
from holdfast.caller import in_coroutine, refuse_second
from holdfast.errors import HoldfastError, Invalid
from holdfast.journal.journal_port import JournalPort, Operation
from holdfast.journal.queue.ticket import ShippedTicket, UnitTicket
from holdfast.journal.state.partition import Partition
from holdfast.log.ports import ItemKeys, TopicsPort
from holdfast.log.topics.topic import Topic
from holdfast.log.topics.topic_arguments import TopicArguments
from holdfast.log.topics.topic_partitions import PreparedBatch
from holdfast.log.topics.typed_topic import TypedTopic
from holdfast.log.topics.validation import Headers
from holdfast.log.transactions.pending_receipts import Pending, PendingBatch
from holdfast.log.transactions.space import Space, item_body, item_key, stored_name
from holdfast.log.transactions.transaction_changes import TransactionChanges
from holdfast.model.record import Durability, Receipt
from holdfast.process_lifetime import let_go

if TYPE_CHECKING:
    from holdfast.log.consumers.members import PositionCommit

Content: TypeAlias = tuple[list[Operation], int, int]
"""Operations, how many records are among them, and their bytes."""

Put: TypeAlias = Callable[[list[Operation], int, int, float], UnitTicket]
"""Hands operations over, with their records and bytes; waits for room so many seconds."""

_NEW, _OPEN, _OVER = range(3)


class Consuming(Protocol):
    """A consumer, as far as transactions know it."""

    def commit_operations(self) -> PositionCommit | None:
        """The position of what was given out so far; None where it is committed, or about to be."""


class Transaction:
    """What commits together; get it with `log.transaction()`."""

    def __init__(
        self,
        journal: JournalPort,
        topics: TopicsPort,
        hidden: ItemKeys,
        *,
        timeout: float | None = None,
        durability: Durability = "durable",
        put: Put | None = None,
    ) -> None:
        """`put` is for those who have more to commit with it; else it is a unit of the journal."""
        if journal.read_only:
            raise Invalid("this log is open for reading only", hint="open it without read_only=True to write")
        if durability != "durable":
            journal.check_durability(durability)
        self._journal = journal
        self._topics = TopicArguments(journal, topics, "a transaction", "tx.append(topic, rows) takes one row or many")
        self._hidden = hidden
        self._wait_seconds = journal.settings.ack_timeout_ms / 1000 if timeout is None else seconds(timeout)
        self._shipped_within = None if timeout is None else self._wait_seconds
        self._durability = durability
        self._put = put or self._transact
        self._lock = RLock()
        self._state = _NEW
        self._changes = TransactionChanges(journal.settings)
        self._puts_items = False
        self._given: list[Pending | PendingBatch] = []
        self._consumed: dict[int, tuple[Consuming, PositionCommit]] = {}
        """By the consumer's identity: of a consumer only the last position counts."""
        self._ticket: UnitTicket | None = None
        self._failure: HoldfastError | None = None
        """Why it was not handed over."""

    # -- what is gathered ---------------------------------------------------------------------------------

    @overload
    def append(
        self,
        topic: Topic | str,
        payload: Any,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        kind: str | None = None,
        time: int | datetime | None = None,
        partition: int | None = None,
        idempotency_key: bytes | str | None = None,
    ) -> Pending: ...
    @overload
    def append(
        self,
        topic: TypedTopic,
        payload: object,
        *,
        time: int | datetime | str | None = None,
        partition: int | None = None,
        idempotency_key: bytes | str | None = None,
    ) -> PendingBatch: ...
    def append(
        self,
        topic: Topic | TypedTopic | str,
        payload: object,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        kind: str | None = None,
        time: int | datetime | str | None = None,
        partition: int | None = None,
        idempotency_key: bytes | str | None = None,
    ) -> Pending | PendingBatch:
        """Append one record, or rows of a typed topic, with the transaction; the arguments are those of `append` there.

        A raw topic may be given by its name, and is created at once if it is not there. The result has the `receipt`,
        of rows the `receipts`, after the block. A record whose idempotency key is known is not written again, and its
        receipt is the original one; the rest of the transaction is written all the same. A key that stands for
        something else refuses the whole transaction.
        """
        if isinstance(topic, TypedTopic):
            self._topics.check_typed(topic, key, headers, kind)
            return self._add_batch(topic._prepared(payload, time, partition, idempotency_key))
        raw = topic if type(topic) is Topic and topic._journal is self._journal else self._raw(topic)
        part, row, size = raw._row(payload, key, headers, kind, time, partition, idempotency_key)  # type: ignore[arg-type]
        refuse_second(self._lock)
        with self._lock:
            self._check_open()
            pending = Pending(self._check_stored, *self._changes.add_row(part, row, size))
            self._given.append(pending)
        return pending

    def append_batch(self, topic: Topic | str, records: Iterable[Any], *, partition: int | None = None) -> PendingBatch:
        """Append records with the transaction; `Topic.append_batch` says how they find their partitions."""
        return self._add_batch(self._raw(topic)._prepared(records, partition))

    def put(self, space: Space | str, key: bytes | str, body: bytes) -> None:
        """Put an item into a space, or replace it, with the transaction. Of an item the last word counts."""
        name = stored_name(space, self._journal)
        self._change(name, [self._hidden.item(name, item_key(key), item_body(body))], [])

    def delete(self, space: Space | str, key: bytes | str) -> None:
        """Delete an item of a space with the transaction; one that is not there is no error."""
        name = stored_name(space, self._journal)
        self._change(name, [], [self._hidden.stored_key(name, item_key(key))])

    def consumed(self, consumer: Consuming) -> None:
        """Commit a consumer's position with the transaction: what it has given out so far is consumed.

        What was read, what was made of it and how far it was read become durable together: after a crash nothing is
        read twice and nothing is left out.
        """
        refuse_second(self._lock)
        with self._lock:
            self._check_open()
            before = self._consumed.pop(id(consumer), None)
        if before is not None:
            before[1].failed()
        committing = consumer.commit_operations()
        if committing is not None:
            try:
                self._take_position(consumer, committing)
            except BaseException:
                committing.failed()
                raise

    def _take_position(self, consumer: Consuming, committing: PositionCommit) -> None:
        if not committing.is_of(self._journal):
            raise Invalid("the consumer belongs to another log", hint="a transaction is of one log")
        refuse_second(self._lock)
        with self._lock:
            self._check_open()
            self._consumed[id(consumer)] = (consumer, committing)

    def _raw(self, topic: object) -> Topic:
        if isinstance(topic, str):
            self._check_open()  # before a topic is created
        return self._topics.raw(topic)

    def _add_batch(self, batch: PreparedBatch) -> PendingBatch:
        refuse_second(self._lock)
        with self._lock:
            self._check_open()
            runs = self._changes.add_batch(batch.parts, batch.size)
            pending = PendingBatch(self._check_stored, runs, batch.positions, batch.starts)
            self._given.append(pending)
        return pending

    def _change(self, name: str, puts: list[tuple[bytes, int, bytes]], deletes: list[bytes]) -> None:
        change, size = self._journal.spaces.checked(name, puts, deletes)
        refuse_second(self._lock)
        with self._lock:
            self._check_open()
            self._changes.add_change(change, size)
            self._puts_items = self._puts_items or bool(puts)

    # -- what became of it --------------------------------------------------------------------------------

    @property
    def receipts(self) -> list[Receipt]:
        """The receipts of all records, in the order of the appends. Invalid before the block has ended."""
        self._check_stored()
        return [receipt for one in self._given for receipt in one.receipts]

    def _check_stored(self) -> None:
        """Raise unless all of it is known to be durable."""
        if self._ticket is not None:
            self._ticket.result(0)
        elif self._state != _OVER:
            raise Invalid("the transaction is not committed yet", hint="receipts are there after its block")
        elif self._failure is not None:
            raise self._failure.again()
        elif self._given:
            raise Invalid("the transaction was not written: its block raised an exception", hint="begin another")

    def __repr__(self) -> str:
        state = ("not begun", "open", "over")[self._state]
        return f"Transaction({state}, records={self._changes.records})"

    # -- the block ----------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if in_coroutine():
            warnings.warn(
                "a transaction blocks the event loop; use: async with log.transaction()", RuntimeWarning, stacklevel=2
            )
        return self._begin()

    async def __aenter__(self) -> Self:
        return self._begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _log = let_go(self)  # open until the block has ended; what was given in it knows the transaction, and stays
        content = self._end(is_wanted=kind is None)
        if content is None:
            return
        monotonic = self._journal.clock.monotonic
        began = monotonic()
        deadline = began + self._wait_seconds
        try:
            ticket = self._hand_over(content, self._wait_seconds)
            ticket.result(max(0.0, deadline - monotonic()))
        except BaseException as failure:
            self._note_failure(failure)
            raise
        self._note_stored()
        if self._durability == "shipped":
            ShippedTicket(ticket, self._ends, self._left(began)).result()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _log = let_go(self)  # open until the block has ended; what was given in it knows the transaction, and stays
        content = self._end(is_wanted=kind is None)
        if content is None:
            return
        began = self._journal.clock.monotonic()
        try:
            ticket = await self._journal.when_room(lambda left: self._hand_over(content, left), self._wait_seconds)
            await ticket
        except BaseException as failure:
            self._note_failure(failure)
            raise
        self._note_stored()
        if self._durability == "shipped":
            await ShippedTicket(ticket, self._ends, self._left(began))

    def _left(self, began: float) -> float | None:
        """Of the caller's time-out; None where the log's setting says how long to wait for the store."""
        spent = self._journal.clock.monotonic() - began
        return None if self._shipped_within is None else max(0.0, self._shipped_within - spent)

    def _begin(self) -> Self:
        refuse_second(self._lock)
        with self._lock:
            if self._state != _NEW:
                raise Invalid("a transaction is used once", hint="begin another: log.transaction()")
            self._state = _OPEN
        return self

    def _end(self, *, is_wanted: bool) -> Content | None:
        """Take nothing more; what is to be committed, or None if that is nothing."""
        refuse_second(self._lock)
        with self._lock:
            self._check_open()
            self._state = _OVER
        try:
            if not is_wanted:
                self._note_failure(None)
                return None
            for _, committing in self._consumed.values():
                self._changes.add_operations(committing.operations, committing.records, committing.size)
            operations = [*self._salt(), *self._changes.operations()]
        except HoldfastError as failure:
            self._note_failure(failure)
            raise
        if not operations:
            self._note_stored()
            return None
        return operations, self._changes.records, self._changes.size

    def _salt(self) -> list[Operation]:
        salt = self._hidden.change() if self._puts_items else None
        return [] if salt is None else [salt[0]]

    def _hand_over(self, content: Content, timeout: float) -> UnitTicket:
        ticket = self._ticket = self._put(*content, timeout)
        for _, committing in self._consumed.values():
            committing.queued(ticket)
        return ticket

    def _transact(self, operations: list[Operation], records: int, size: int, timeout: float) -> UnitTicket:
        scopes = [committing.scope for _, committing in self._consumed.values() if committing.scope is not None]
        if not scopes:
            return self._journal.transact(operations, records=records, size=size, timeout=timeout)
        return self._journal.transact(
            operations, records=records, size=size, scope=",".join(scopes), reissue=True, timeout=timeout
        )

    def _note_stored(self) -> None:
        for _, committing in self._consumed.values():
            committing.stored()

    def _note_failure(self, failure: BaseException | None) -> None:
        if isinstance(failure, HoldfastError):
            self._failure = failure
        if self._ticket is None:
            for _, committing in self._consumed.values():
                committing.failed()

    def _ends(self, _: None) -> Sequence[tuple[Partition, int]]:
        return self._changes.ends()

    def _check_open(self) -> None:
        if self._state == _NEW:
            raise Invalid("the transaction has not begun", hint="use it in a block: with log.transaction() as tx: …")
        if self._state == _OVER:
            raise Invalid("the transaction is over", hint="begin another: log.transaction()")
