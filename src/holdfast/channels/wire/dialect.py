"""A dialect: everything in which the two existing implementations differ, behind one small interface.

`nim` is nim-sds, `rfc` is LIP-109 as `@waku/sds` writes it. They share no wire format, no hash function, no filter and
no unit of time; the rules of the protocol are the same for both (`channels.protocol`). A dialect has no state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from holdfast.channels.keeping.stored_message import StoredMessage
from holdfast.channels.wire.message import SdsMessage

if TYPE_CHECKING:
    from holdfast.channels.wire.bloom_filters import RollingBloom  # its hashes come with an extra

DialectName = Literal["nim", "rfc"]


class Filter(Protocol):
    """A bloom filter that a participant sent."""

    def __contains__(self, message_id: str) -> bool: ...


class Dialect(Protocol):
    """One way to speak the protocol."""

    @property
    def name(self) -> DialectName:
        """What settings call it."""

    @property
    def clock_unit_ms(self) -> int:
        """Milliseconds in one tick of its Lamport clock's wall time: 1000 or 1."""

    @property
    def ticks_on_receipt(self) -> bool:
        """Whether every message received moves the clock one further; else only those delivered raise it."""

    @property
    def is_sorted(self) -> bool:
        """Whether history is in the order of (Lamport time, id); else in that of delivery."""

    @property
    def carries_ephemeral(self) -> bool:
        """Whether there are ephemeral messages."""

    @property
    def acks_needed(self) -> int:
        """Filters of others that must know a message before it counts as acknowledged."""

    @property
    def response_window_ms(self) -> int:
        """The default for `repair_t_max_ms`."""

    def encode(self, message: SdsMessage) -> bytes:
        """The message's bytes."""

    def write(self, message: SdsMessage) -> tuple[bytes, StoredMessage | None]:
        """The same, and what it is kept by, if that can be cut out of them."""

    def decode(self, data: bytes) -> SdsMessage:
        """The message in these bytes; Invalid when there is none. Whatever the reference implementation accepts."""

    def read(self, data: bytes) -> tuple[SdsMessage, StoredMessage | None]:
        """The same, and what it is kept by, if that can be cut out of them."""

    def new_filter(self, capacity: int, error_rate: float) -> RollingBloom:
        """An empty filter for so many ids."""

    def read_filter(self, data: bytes, capacity: int, error_rate: float) -> Filter | None:
        """A filter as received; None when it is none, or one that would say yes to everything."""

    def request_delay_ms(self, participant: str, message_id: str, t_min: int, t_max: int) -> int:
        """T_req: how long to wait before asking for a missing message."""

    def response_delay_ms(self, participant: str, sender: str, message_id: str, t_max: int) -> int:
        """T_resp: how long to wait before answering such a request; 0 for its sender."""

    def responds(self, participant: str, sender: str, message_id: str, groups: int) -> bool:
        """Whether this participant is in the group that answers requests for a message."""
