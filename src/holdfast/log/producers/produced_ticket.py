"""The promise of what a producer sent: its receipts, whether it was written now or an earlier time."""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from holdfast.errors import OutcomeUnknown
from holdfast.journal.journal_port import ProducerNumber, Run
from holdfast.journal.queue.forwarded import Sent, fill
from holdfast.journal.queue.receipts import Receipts
from holdfast.journal.queue.ticket import ShippedTicket
from holdfast.journal.sessions.outcomes import RunOutcome
from holdfast.journal.state.partition import Partition
from holdfast.log.topics.topic_partitions import PreparedBatch
from holdfast.model.record import Receipt

Given = TypeVar("Given")


class NumberedBatch:
    """What was sent: by whom, under which number, to which topic, and what distinguishes its records."""

    __slots__ = ("partitions", "positions", "producer", "sequence", "starts", "topic")

    def __init__(
        self,
        producer: str,
        sequence: int,
        topic: str,
        partitions: Mapping[int, Partition],
        batch: PreparedBatch | None = None,
    ) -> None:
        self.producer = producer
        self.sequence = sequence
        self.topic = topic
        self.partitions = partitions
        self.positions: Sequence[int] = (0,) if batch is None else batch.positions
        self.starts: Sequence[int] = (0,) if batch is None else batch.starts

    def receipts(self, runs: Sequence[RunOutcome]) -> Receipts:
        """The receipts of all records; Invalid where the number stands for something else."""
        made = [self._run(outcome) for outcome in runs]
        is_same = len(made) == len(self.starts) and sum(outcome.count for outcome in runs) == len(self.positions)
        if not is_same or any(run.partition.topic != self.topic for run in made):
            raise ProducerNumber(self.producer.encode(), self.sequence, 1).something_else()
        return Receipts(made, self.positions, self.starts)

    def _run(self, outcome: RunOutcome) -> Run:
        run = Run.unplaced(self.partitions[outcome.partition_id])
        run.count = outcome.count
        fill(run, outcome, self.partitions)
        return run


class ProducedTicket(Generic[Given]):
    """The promise of an append by a producer; `result()` or `await` gives its receipt, or its receipts.

    A repeat of an earlier number gives what that gave, and its receipts say that they are `repeated`.
    """

    __slots__ = ("_given", "_numbered", "_sent", "_timeout")

    def __init__(self, sent: Sent, numbered: NumberedBatch, given: Callable[[Receipts], Given], timeout: float) -> None:
        self._sent = sent
        self._numbered = numbered
        self._given = given
        self._timeout = timeout

    @property
    def done(self) -> bool:
        """Whether the outcome is known: durable, repeated or refused."""
        return self._sent.done

    def result(self, timeout: float | None = None) -> Given:
        """Wait until it survives power loss, and return what it gave.

        Raises what became of it if it failed, and OutcomeUnknown after `timeout` seconds (default:
        `journal.ack_timeout_ms`): then send it again, under the same number.
        """
        seconds = self._timeout if timeout is None else timeout
        if not self._sent.wait(seconds):
            raise self._unknown(seconds)
        return self._given(self._receipts())

    def __await__(self) -> Generator[Any, None, Given]:
        group = self._sent.group
        if group is not None and not group.done:
            parked = group.signal.park(self._timeout, get_running_loop())
            if not group.done:  # look again: it may have been done before we parked
                yield parked
            if not group.done:
                raise self._unknown(self._timeout)
        return self._given(self._receipts())

    @property
    def when_shipped(self) -> ShippedTicket[Given]:
        """The promise that it is on the store; `await ticket.when_shipped`."""
        return ShippedTicket(self, self._ends)

    def shipped(self, timeout: float | None = None) -> Given:
        """Wait until it survives the loss of this machine: acknowledged by the store, with all before it."""
        return self.when_shipped.result(timeout)

    def _ends(self, _: Given) -> Sequence[tuple[Partition, int]]:
        return [(run.partition, run.first + run.count) for run in self._receipts().runs if run.count]

    def _receipts(self) -> Receipts:
        (outcome,) = self._sent.outcomes()
        if outcome.error is not None:
            raise outcome.error.error()
        for run in outcome.runs:
            for _, refusal in run.refused:
                raise refusal.error()
        return self._numbered.receipts(outcome.runs)

    def _unknown(self, seconds: float) -> OutcomeUnknown:
        numbered = self._numbered
        return OutcomeUnknown(
            f"no acknowledgement within {seconds:g} s topic={numbered.topic} producer={numbered.producer}"
            f" sequence={numbered.sequence}",
            hint="send it again under the same sequence number: it is written once, and gives the original receipt",
        )

    def __repr__(self) -> str:
        return f"ProducedTicket({self._numbered.producer!r}, sequence={self._numbered.sequence}, done={self.done})"


def only(receipts: Receipts) -> Receipt:
    """Of one record."""
    return receipts[0]


def all_of(receipts: Receipts) -> Sequence[Receipt]:
    """Of a batch."""
    return receipts
