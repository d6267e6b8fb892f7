"""What stands where a log of this process has its journal: the same queue, tickets and errors; its writer is far away.

Topics and transactions work on this as they work on a journal, up to the queue. The thread that takes groups sends them
(`group_sender`). Limits are the server's, as it gave them; the queue's own are those of this client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.clock import Clock
from holdfast.errors import Closed, Invalid, Unavailable
from holdfast.journal.journal_settings import JournalSettings
from holdfast.journal.queue.group import Operation
from holdfast.journal.queue.queue import Queue
from holdfast.journal.queue.room_lines import RoomLines
from holdfast.journal.queue.ticket import UnitTicket
from holdfast.journal.state.partition import Partition
from holdfast.journal.state.shipping_state import ShippingState
from holdfast.model.control_rows import SchemaRow
from holdfast.remote.http.exchange import Exchange, closed, not_understood
from holdfast.remote.reading.topic_state import TopicState
from holdfast.remote.writing.group_sender import GroupSender
from holdfast.remote.writing.remote_sessions import RemoteSessions
from holdfast.remote.writing.remote_spaces import RemoteSpaces


class ClientJournal:
    """The way of records to one server.

    `lock` is the queue's; it guards how far partitions are, too: the sender and callers of the server both move that.
    What topics there are is guarded by the catalog's.
    """

    read_only = False
    owned = False
    news = None

    def __init__(
        self, exchange: Exchange, settings: JournalSettings, clock: Clock, shipping_state: ShippingState, log_id: bytes
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.log_id = log_id
        self.shipping_state = shipping_state
        self.check_durability = shipping_state.check_durability
        self.topics: dict[str, tuple[Partition, ...]] = {}
        """The partitions of each topic that was asked for here …"""
        self.partitions: dict[int, Partition] = {}
        """… and all of them by their ids, which are the log's."""
        self.schemas: dict[str, tuple[SchemaRow, ...]] = {}
        self.codecs: dict[str, str] = {}
        self.end: Closed | None = None
        self.ends: list[Callable[[], None]] = []
        """Called when all is sent, as long as the server can be asked."""
        self._exchange = exchange
        self._use(Queue(settings, clock))
        self._sender = GroupSender(self._queue, exchange, self.partitions, self._stored)
        self._sender.start()

    def _use(self, queue: Queue) -> None:
        self._queue, self.lock = queue, queue.lock
        self.submit, self.offer, self.put_runs, self.put_row = queue.submit, queue.offer, queue.put_runs, queue.put_row
        self.wait_for_room, self.when_room = queue.wait_for_room, RoomLines(queue).when_room
        self.refuse_second = queue.refuse_second
        self.spaces = RemoteSpaces(self._exchange, queue, self.settings.ack_timeout_ms / 1000)
        self.sessions = RemoteSessions(self._exchange, queue, self.settings.ack_timeout_ms / 1000)

    def add_topic(self, state: TopicState) -> tuple[Partition, ...]:
        """Take up a topic that was asked for; its partitions."""
        parts = self.topics.get(state.name)
        if parts is None:
            parts = state.new_partitions(self.log_id, self.shipping_state)
            if self.partitions.keys() & {part.id for part in parts}:
                raise not_understood()  # an id belongs to one topic
            self.partitions.update((part.id, part) for part in parts)
            self.topics[state.name] = parts
            if state.codec:
                self.codecs[state.name] = state.codec
        if state.schemas:
            self.schemas[state.name] = state.schema_rows()
        return parts

    def owns(self, partition: Partition) -> bool:
        """Whether a partition is one of this log."""
        return self.partitions.get(partition.id) is partition

    def _stored(self, ends: list[tuple[Partition, int]]) -> None:
        """What was acknowledged is durable: no question is needed to know that."""
        with self.lock:
            moved = [partition for partition, end in ends if end > partition.durable]
            for partition, end in ends:
                partition.durable = max(partition.durable, end)
        for partition in moved:
            partition.signal.notify()

    # -- as journals do -----------------------------------------------------------------------------------

    def transact(
        self,
        operations: list[Operation],
        *,
        records: int,
        size: int,
        scope: str | None = None,
        reissue: bool = False,
        timeout: float,
    ) -> UnitTicket:
        """Have records appended and spaces changed together or not at all."""
        if size > self.settings.queue_bytes_max:
            raise Invalid(f"a transaction is too large bytes={size}", hint="see journal.queue_bytes_max; split it")
        unit = self._queue.put_unit(operations, records, size, timeout, scope=scope, reissue=reissue)
        return UnitTicket(unit, timeout, "a transaction")

    def forget_producers(self, names: Sequence[bytes]) -> Sequence[bytes]:
        """Let go of what is known about producers, durably; those that were known, and had nothing under way."""
        return self.sessions.forget(names, self.settings.ack_timeout_ms / 1000)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything put so far is durable; raises if something since the last flush was not stored."""
        seconds = self.settings.ack_timeout_ms / 1000 if timeout is None else timeout
        if self.end is not None:
            raise self.end.again()
        group = self._queue.barrier()
        if not group.signal.sleep(group.is_done, seconds):
            raise Unavailable(f"the server did not take everything within {seconds:g} s", hint="flush again to wait on")
        self._raise_failure()

    def waiting(self, partition: Partition) -> int:
        """Records of this partition that were accepted here and are not durable yet."""
        return self._queue.waiting(partition)

    @property
    def pending_records(self) -> int:
        """Records that were accepted and are not durable yet."""
        return self._queue.depth()[0]

    # -- the end ------------------------------------------------------------------------------------------

    def close(self, timeout: float) -> None:
        """Send what was accepted, then end. What the server does not take in time is given up, and that is raised."""
        if self.end is not None:
            return
        self._queue.refuse(closed(), finish=True)
        is_drained = self._sender.join(timeout)
        pending = self.pending_records
        for call in self.ends:
            call()
        self.end = closed()
        self._exchange.close()
        self._sender.join(timeout)
        for parts in self.topics.values():
            parts[0].signal.notify()
        if not is_drained:
            raise Unavailable(
                f"the server did not take everything within {timeout:g} s: given up records={pending}",
                hint="their tickets say for each whether it may have been written; give idempotency keys to send again",
            )
        self._raise_failure()

    def _raise_failure(self) -> None:
        failure = self._sender.offered_failure.take()
        if failure is not None:
            raise failure.again()

    def forget(self) -> None:
        """In a forked child: the thread that sends is the parent's."""
        self.end = Closed(
            "this client was connected before a fork", reason="forked", hint="connect in the process that uses it"
        )
        self._use(Queue(self.settings, self.clock))
        self._queue.refuse(self.end, finish=True)
        self._exchange.forget()
