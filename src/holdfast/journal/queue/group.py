"""What one commit makes durable together: a group of runs and units, in order of arrival.

A *run* is consecutive plain records of one partition; the writer packs it into one entry. A *unit* is a
list of operations that must commit together or not at all; packing never crosses one. A place in a group
is all that a ticket holds. After the commit the group knows base offsets, failures and repeats; only then
is it `done`, and never again changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.errors import HoldfastError, Invalid, Unavailable, refuse_to_travel
from holdfast.journal.journal_settings import JournalSettings
from holdfast.journal.state.operations import ChangeSpace, Control
from holdfast.journal.state.partition import Partition
from holdfast.model.record import Receipt
from holdfast.model.record_columns import Cells, Columns, EncodedRows, Row, RowEncoder
from holdfast.signals import Signal

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from holdfast.journal.queue.forwarded import ForwardedTicket


class Run:
    """Consecutive records of one partition in one group; stored as one entry.

    Plain records gather as `rows`, each by one append that cannot be interrupted half-way (Ctrl-C may strike a
    caller anywhere); so do single rows of a typed topic, as `cells`, until `encode`. A batch comes as `columns`.
    """

    __slots__ = (
        "cell_bytes", "cells", "columns", "count", "encoder", "error", "extras", "first", "group", "keyed", "offered",
        "partition", "repeated", "repeats", "rows", "seq", "slots",
    )  # fmt: skip

    def __init__(self, group: Group, partition: Partition, columns: Columns | EncodedRows | None = None) -> None:
        self.group = group
        self.partition = partition
        self.rows: list[Row] = []
        self.columns = columns
        self.encoder: RowEncoder | None = None
        """What makes `columns` of `cells`: rows of a typed topic, with their times."""
        self.cells: list[tuple[Cells, int]] = []
        self.cell_bytes = 0
        self.extras = False
        """Some of the rows have a key, a kind or headers."""
        self.keyed = False
        """Some of the rows have an idempotency key."""
        self.offered: list[int] = []
        """Positions with an idempotency key for which nobody holds a ticket."""
        self.count = 0
        self.first = -1
        self.seq = -1
        self.error: HoldfastError | None = None
        self.repeated = False
        """All of it stands for rows that were stored before."""
        self.repeats: dict[int, tuple[Partition, int, int] | HoldfastError] = {}
        """Partition, offset and seq of the originals of positions whose idempotency key was known already; or why the
        position was refused: its key stands for something else."""
        self.slots: list[int] | None = None
        """Where each position ended up, when repeats left gaps."""

    @classmethod
    def unplaced(cls, partition: Partition, columns: Columns | EncodedRows | None = None) -> Run:
        """Records of a unit that is still to be queued: it gets its group there."""
        return cls(NO_GROUP, partition, columns)

    def release(self) -> None:
        """Let go of the records; a ticket that is kept must not keep a whole group's payloads alive."""
        self.count = len(self)
        self.rows, self.cells = [], []
        self.columns = None

    def takes(self, encoder: RowEncoder, size: int, settings: JournalSettings) -> bool:
        """Whether such a row may join: one of the same schema, while all of them make a batch that may be appended."""
        return (
            self.encoder is encoder
            and len(self.cells) < settings.batch_records_max
            and self.cell_bytes + size <= settings.batch_bytes_max
        )

    def encode(self) -> None:
        """Make one batch of single rows, if that is what was gathered; by the taker of the group, once."""
        if self.encoder is None or self.columns is not None or not self.cells:
            return
        try:
            self.columns = self.encoder.encode(self.cells)
        except Exception as error:  # each was checked when it was appended
            raise Unavailable(
                f"rows could not be encoded; nothing of them was written topic={self.partition.topic}",
                hint="see the cause; this is a defect in holdfast",
            ) from error

    def __len__(self) -> int:
        return len(self.rows or self.cells) if self.columns is None else len(self.columns)

    def receipt(self, index: int) -> Receipt:
        """The receipt of one position; the group is done."""
        error = self.error or self.group.error
        if error is not None:
            raise error.again()
        if not self.repeats and not self.repeated and self.first >= 0:  # what most of them are
            partition = self.partition
            return Receipt(partition.topic, partition.number, self.first + index, self.seq)
        partition, offset, seq = self.place(index)
        return Receipt(partition.topic, partition.number, offset, seq, self.repeated or index in self.repeats)

    def refused_offered(self) -> Iterator[HoldfastError]:
        """Why some of it was refused that nobody holds a ticket for."""
        return (why for at in self.offered if isinstance(why := self.repeats.get(at), HoldfastError))

    def fail(self, error: HoldfastError) -> None:
        """Nothing of it was stored."""
        self.error = error

    def check_stored(self) -> None:
        """Raise what became of it, if it was not stored."""
        error = self.error or self.group.error
        if error is not None:
            raise error.again()

    def place(self, index: int) -> tuple[Partition, int, int]:
        """Partition, offset and seq of one position; the run was stored."""
        if self.repeats and (known := self.repeats.get(index)) is not None:
            if isinstance(known, HoldfastError):
                raise known.again()
            return known
        if self.first < 0:  # cannot happen; but never call durable what is not
            raise Unavailable("the record was not stored", hint="this is a defect in holdfast; append it again")
        slot = index if self.slots is None else self.slots[index]
        return self.partition, self.first + slot, self.seq


Operation = Run | ChangeSpace | Control
"""What a unit may consist of: a closed set."""


class ProducerNumber(NamedTuple):
    """A producer's name, the number of what it sends, and the one that it began with."""

    producer: bytes
    sequence: int
    start: int

    def something_else(self) -> Invalid:
        """The refusal of what is sent under a number under which something else was."""
        return Invalid(
            f"this number is already in use for other content; nothing was written producer={self.producer.decode()}"
            f" sequence={self.sequence}",
            hint="a number identifies one append: send the same content again, or use the next number",
        )


class Unit:
    """Operations that commit together or not at all, optionally in a causal scope.

    When a unit of a scope fails or is dropped, later units of that scope fail with the same cause, until
    one comes that says `reissue`: a caller that depends on an order never finds a hole in it.

    A unit that *gathers* has no operations yet. Parts may join it until the writer takes its group (the queue sees to
    that); then `make` is called, by the writer and once, and says what they come to.
    """

    __slots__ = ("alone", "error", "group", "make", "operations", "parts", "produced", "promised", "reissue", "scope")

    def __init__(
        self,
        group: Group,
        operations: list[Operation],
        *,
        scope: str | None = None,
        reissue: bool = False,
        make: Make | None = None,
    ) -> None:
        self.group = group
        self.operations = operations
        self.scope = scope
        self.reissue = reissue
        self.make = make
        self.alone = False
        """Its records are entries of their own: what cannot be packed or encrypted of it fails alone."""
        self.produced: ProducerNumber | None = None
        """Who sends it under a number, in a process that does not own the log: the owner needs to know."""
        self.parts: list[Any] = []
        self.promised: dict[Partition, int] = {}
        """How many records the parts of a unit that gathers will become."""
        self.error: HoldfastError | None = None

    @classmethod
    def of(cls, group: Group, batches: Sequence[tuple[Partition, Columns | EncodedRows]]) -> Unit:
        """A batch, of records that commit together: one run per partition."""
        unit = cls(group, [Run(group, partition, columns) for partition, columns in batches])
        unit.alone = True
        return unit

    def runs(self) -> list[Run]:
        """The records among the operations."""
        return [operation for operation in self.operations if isinstance(operation, Run)]

    def records(self, partition: Partition) -> int:
        """How many of its records are for this partition."""
        if self.promised:
            return self.promised.get(partition, 0)
        return sum(len(run) for run in self.runs() if run.partition is partition)

    def join(self, part: object, partition: Partition | None, records: int) -> None:
        """One more part, with records for a partition; by the queue, before the writer takes the group."""
        self.parts.append(part)
        if partition is not None:
            self.promised[partition] = self.promised.get(partition, 0) + records

    def promise(self, others: Mapping[Partition, int]) -> None:
        """The newest part becomes so many records of other partitions, too."""
        for partition, records in others.items():
            self.promised[partition] = self.promised.get(partition, 0) + records

    def fail(self, error: HoldfastError) -> None:
        """Nothing of this unit was stored."""
        self.error = error
        for run in self.runs():
            run.error = error

    @property
    def is_light(self) -> bool:
        """Whether it changes spaces, each once, and appends plain records: that is staged without a savepoint.

        Rows with idempotency keys, typed ones and control operations may fail half-way; these cannot, once the changes
        of spaces are prepared.
        """
        operations = self.operations
        if self.alone or not operations:
            return False
        if len(operations) == 1:  # what most of them are
            return isinstance(operations[0], ChangeSpace) or _is_plain(operations[0])
        names: set[bytes] = set()
        for operation in operations:
            if isinstance(operation, ChangeSpace):
                if operation.name in names:
                    return False
                names.add(operation.name)
            elif not _is_plain(operation):
                return False
        return True

    def check_repeats(self) -> None:
        """Raise if idempotency keys refuse all of it: one stands for something else, or a batch is half known.

        Rows of one batch in several partitions have a key each; at the edge of the window some may be forgotten.
        """
        runs = self.runs()
        for run in runs:
            for repeat in run.repeats.values():
                if isinstance(repeat, HoldfastError):
                    raise repeat.again()
        known: dict[int, bool] = {}
        for run in runs:
            batch = run.columns.batch if isinstance(run.columns, EncodedRows) else None
            if batch is not None and known.setdefault(id(batch), run.repeated) is not run.repeated:
                raise Invalid(
                    f"the idempotency key is known of a part of this batch only topic={run.partition.topic}",
                    hint="it is about to leave the window of keys; see journal.idempotency_keys_max",
                )

    def release(self) -> None:
        """Let go of records, bodies and parts."""
        for operation in self.operations:
            if isinstance(operation, (Run, ChangeSpace)):
                operation.release()
        self.make, self.parts = None, []

    @property
    def is_stored(self) -> bool:
        """Whether all of it is known to be durable."""
        return self.group.done and self.error is None and self.group.error is None

    def check_stored(self) -> None:
        """Raise what became of this unit, if it was not stored."""
        error = self.error or self.group.error
        if error is not None:
            raise error.again()


class OpenUnit:
    """What one scope hands over, part after part, by any number of threads: the unit that the next part may join.

    Guarded by the queue's lock, so that parts are stored in the order in which they came. Its first unit repairs the
    scope; once it has ended, it takes no more.
    """

    __slots__ = ("end", "unit")

    def __init__(self) -> None:
        self.unit: Unit | None = None
        """The one that was handed over last."""
        self.end: HoldfastError | None = None
        """Why it takes no more parts."""

    def joined(self, *, alone: bool = False) -> Unit | None:
        """The unit that a part may go with; raises if it has ended. By the queue."""
        if self.end is not None:
            raise self.end.again()
        return None if alone else self.unit


def _is_plain(operation: Operation) -> bool:
    return isinstance(operation, Run) and isinstance(operation.columns, Columns)


class Group:
    """One group commit: open while it gathers, then committing, then done."""

    __reduce__ = refuse_to_travel

    __slots__ = (
        "acked",
        "bytes",
        "bytes_cap",
        "done",
        "error",
        "forwarded",
        "hurry",
        "is_plain",
        "items",
        "offered",
        "records",
        "records_cap",
        "runs",
        "signal",
        "since",
    )  # fmt: skip

    def __init__(self, records_cap: int, bytes_cap: int, hurry: Callable[[], None] | None = None) -> None:
        self.items: list[Run | Unit] = []
        self.runs: dict[Partition, Run] = {}
        """The run of each partition that still takes records."""
        self.forwarded: list[ForwardedTicket] = []
        """What sessions sent, whose records are among the items."""
        self.records = 0
        self.bytes = 0
        self.is_plain = True
        """Nothing but runs of records without idempotency keys, and none that a session sent."""
        self.offered = 0
        """Records among them for which nobody holds a ticket."""
        self.since = 0.0
        """When its first record was queued, for those who measure."""
        self.records_cap = records_cap
        self.bytes_cap = bytes_cap
        self.acked = False
        """A caller waits for this group: it starts at once."""
        self.done = False
        self.error: HoldfastError | None = None
        """Why nothing of this group was stored, or is known to be."""
        self.signal = Signal()
        self.hurry = hurry
        """Says that a thread is about to block until this is done; raises where that must not be."""

    def wait(self, timeout: float) -> bool:
        """Block this thread until it is done or the time is up; whether it is done."""
        if self.hurry is not None:
            self.hurry()
        return self.signal.sleep(self.is_done, timeout)

    def run_for(self, partition: Partition) -> Run:
        """The run that takes this partition's next record."""
        run = self.runs.get(partition)
        if run is None:
            run = Run(self, partition)
            # In this order: a caller interrupted in between leaves an empty run, not one that is never stored.
            self.items.append(run)
            self.runs[partition] = run
        return run

    def begin_rows(self, partition: Partition, encoder: RowEncoder) -> Run:
        """A new run that takes this partition's next single rows."""
        run = Run(self, partition)
        run.encoder = encoder
        self.items.append(run)  # in this order, as above
        self.runs[partition] = run
        return run

    def add(self, item: Run | Unit) -> None:
        """Put a batch or a unit in its place; records that come later are packed behind it."""
        self.runs.clear()
        self.is_plain = False
        self.items.append(item)

    def is_done(self) -> bool:
        """What signals wait for."""
        return self.done

    def finish(self, error: HoldfastError | None = None, given_by: AbstractEventLoop | None = None) -> None:
        """Publish the outcome; everything it says must be set before. `given_by` is as in `Signal.notify`."""
        self.error = error
        for item in self.items:
            item.release()
        # Runs point here; pointing back any longer would leave cycles that only the collector frees.
        self.items = []
        self.runs = {}
        if self.forwarded:
            for one in self.forwarded:
                one.release()
            self.forwarded = []
        self.done = True
        self.signal.notify(given_by)


Make = Callable[[Unit], list[Operation]]
"""What a unit that gathered consists of."""

NO_GROUP = Group(0, 0)
"""The group of a run that the queue has not placed yet."""
