"""What topics, transactions, producers and spaces need of a journal, wherever it is.

Two have it: `Journal`, whose writer is in this process or at the log's owner, and `ClientJournal`, whose writer is at a
server. Both put records into the same queue; what differs is who takes them out, and who is asked for what is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from holdfast.errors import Invalid
from holdfast.journal.queue.group import Make, Operation, ProducerNumber, Run, Unit
from holdfast.model.control_rows import SESSION_NAME_BYTES_MAX

if TYPE_CHECKING:
    from holdfast.clock import Clock
    from holdfast.errors import Closed
    from holdfast.journal.journal_context import News
    from holdfast.journal.journal_settings import JournalSettings
    from holdfast.journal.queue.forwarded import ForwardedRows, ForwardedUnit, Sent
    from holdfast.journal.queue.ticket import Ticket, UnitTicket
    from holdfast.journal.state.operations import ChangeSpace
    from holdfast.journal.state.partition import Partition
    from holdfast.journal.state.shipping_state import ShippingState
    from holdfast.model.control_rows import SchemaRow
    from holdfast.model.record_columns import Cells, Columns, EncodedRows, Extra, RowEncoder

__all__ = [
    "JournalPort", "Operation", "ProducerNumber", "Run", "SessionInfo", "SessionsPort", "SpacesPort", "Unit",
    "check_producer",
]  # fmt: skip

Put = TypeVar("Put")

NUMBER_MAX = 2**62
"""The highest sequence number."""


class SessionInfo(NamedTuple):
    """What is kept about one session."""

    name: bytes
    """Of a producer its name; of a process that shares the log 16 random bytes."""
    is_producer: bool
    last: int
    floor: int
    used_us: int


class SessionsPort(Protocol):
    """What producers need of a journal's sessions."""

    def produce(
        self, producer: bytes, sequence: int, item: ForwardedRows | ForwardedUnit, timeout: float, *, start: int = 1
    ) -> Sent:
        """Have something written once, under a producer's number."""

    def last_produced(self, producer: bytes) -> int | None:
        """The highest number of a producer that is durable; None where none is known."""

    def all(self) -> list[SessionInfo]:
        """All sessions, those that were used longest ago first."""


class SpacesPort(Protocol):
    """What users' spaces need of a journal's."""

    def checked(
        self, name: str, puts: Sequence[tuple[bytes, int, bytes]], deletes: Sequence[bytes], *, drop: bool = False
    ) -> tuple[ChangeSpace, int]:
        """A change alone, checked, and its bytes."""

    def change(
        self,
        name: str,
        puts: Sequence[tuple[bytes, int, bytes]] = (),
        deletes: Sequence[bytes] = (),
        *,
        drop: bool = False,
        timeout: float,
    ) -> UnitTicket:
        """Have items put and deleted, as one unit."""

    def gather(
        self,
        part: object,
        make: Make,
        *,
        append: tuple[Partition | None, int],
        size: int,
        scope: str | None = None,
        reissue: bool = False,
        join: UnitTicket | None = None,
        timeout: float,
    ) -> UnitTicket:
        """Hand over a part of a unit that is made when its turn comes, with so many records."""

    def load(self, name: str) -> list[tuple[bytes, int, bytes]]:
        """Key, number and body of all items of a space, as it is committed."""

    def get(self, name: str, key: bytes) -> bytes | None:
        """The body of one item, as it is committed; None where there is none."""

    def names(self) -> list[str]:
        """The names of all spaces."""


class JournalPort(Protocol):
    """The way of records into one log, and what is known here of its topics."""

    @property
    def settings(self) -> JournalSettings:
        """Its limits and time-outs."""

    @property
    def clock(self) -> Clock:
        """What time it is for this log."""

    @property
    def log_id(self) -> bytes:
        """The log's id."""

    @property
    def read_only(self) -> bool:
        """Whether nothing can be written through this handle."""

    @property
    def owned(self) -> bool:
        """Whether this handle is the log's owner."""

    @property
    def news(self) -> News | None:
        """Of a log that is shared with its owner: who hears from it."""

    @property
    def end(self) -> Closed | None:
        """Why nothing more will become durable through this handle; None while it may."""

    @property
    def topics(self) -> Mapping[str, tuple[Partition, ...]]:
        """The partitions of each topic that is known here, by its name."""

    @property
    def partitions(self) -> Mapping[int, Partition]:
        """All of them by their ids."""

    def owns(self, partition: Partition) -> bool:
        """Whether a partition is one of this log."""

    @property
    def schemas(self) -> Mapping[str, tuple[SchemaRow, ...]]:
        """The versions of each typed topic's schema, oldest first."""

    @property
    def codecs(self) -> Mapping[str, str]:
        """What the payloads of topics are, where they are not bytes."""

    @property
    def shipping_state(self) -> ShippingState:
        """What anyone who waits for the store needs to know."""

    @property
    def sessions(self) -> SessionsPort:
        """What producers have sent."""

    @property
    def spaces(self) -> SpacesPort:
        """Small state beside the records."""

    def submit(
        self,
        partition: Partition,
        payload: bytes,
        time: int,
        extra: Extra | None,
        unique: bytes | None,
        size: int,
        timeout: float,
        idempotency_key: bytes | None,
        /,
    ) -> Ticket:
        """Queue one record; its ticket."""

    def offer(
        self, partition: Partition, payload: bytes, time: int, extra: Extra | None, unique: bytes | None, size: int, /
    ) -> bool:
        """Queue one record, or refuse it at once."""

    def put_row(
        self, partition: Partition, cells: Cells, time: int, encoder: RowEncoder, size: int, timeout: float, /
    ) -> tuple[Run, int]:
        """Queue one row of a typed topic; where it is."""

    def put_runs(self, runs: Sequence[tuple[Partition, Columns | EncodedRows]], size: int, timeout: float, /) -> Unit:
        """Queue records that commit together."""

    async def when_room(self, put: Callable[[float], Put], timeout: float) -> Put:
        """What `put` gives as soon as there is room for it."""

    def refuse_second(self) -> None:
        """Refuse a call of a thread that was interrupted in the middle of another one."""

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

    def forget_producers(self, names: Sequence[bytes]) -> Sequence[bytes]:
        """Let go of producers, durably; those that were known, and had nothing under way."""

    def check_durability(self, durability: str) -> None:
        """Before anything is written: what a caller wants to wait for must be something that can come."""

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything put so far is durable; raises if something since the last flush was not stored."""


def check_producer(producer: bytes, sequence: int, start: int) -> None:
    """Whether a producer can have this name and these numbers."""
    if not 0 < len(producer) < SESSION_NAME_BYTES_MAX:
        raise Invalid(
            f"a producer's name has 1 to {SESSION_NAME_BYTES_MAX - 1} bytes, not {len(producer)}",
            hint="give each producer a short name of its own",
        )
    if not 1 <= sequence <= NUMBER_MAX or not 1 <= start <= NUMBER_MAX:
        raise Invalid(f"a sequence number is 1 to {NUMBER_MAX} sequence={sequence}", hint="number them 1, 2, 3 …")
