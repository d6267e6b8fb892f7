"""What shipping counts: plain integers while counting, one frozen snapshot on request."""

from __future__ import annotations

import msgspec

from holdfast.errors import HoldfastError
from holdfast.journal.journal_stats import Histogram, Timings
from holdfast.shipping import cost
from holdfast.shipping.alarm import AlarmState
from holdfast.store.pool_state import PoolState


class Unshipped(msgspec.Struct, frozen=True):
    """Records of one partition that are durable here and not known to be on the store."""

    topic: str
    partition: int
    first: int
    """The offset of the first one."""
    records: int
    """How many."""


class ShippingStats(msgspec.Struct, frozen=True):
    """Shipping at one moment. Totals count since the log was opened."""

    store: str
    """The address, without secrets."""
    epoch: int
    """The claim on the store; 0 before the first object."""
    in_flight: int
    """Objects under way."""
    batches_total: int
    """Commit batches that were acknowledged in order."""
    segments_total: int
    """Segments that were settled."""
    objects_total: int
    """Objects that the store has accepted."""
    bytes_total: int
    """Their bytes."""
    put_seconds: Histogram
    """How long they took."""
    resolved_total: int
    """Objects that were there already, and were ours: the reply had been lost."""
    retries: dict[str, int]
    """Failed attempts by cause."""
    lag_records: int
    """Records that are durable here and not on the store."""
    lag_bytes: int
    """Their stored bytes in the journal."""
    lag_seconds: float
    """Age of the oldest commit that is not on the store."""
    unsettled_segments: int
    """Segments that are sealed and whose manifest object the store does not have."""
    pool: PoolState
    """Connections to S3; zeros for other stores."""
    requests: dict[str, int]
    """Requests by kind, as the store's list price counts them."""
    dollars: float
    """Their list price."""
    events_subscribers: int
    """Open subscriptions."""
    alarm: AlarmState | None
    """None while all is well."""
    last_error: str | None
    """The last failure, whether or not it has passed."""
    ended: str | None
    """Why nothing more is shipped through this handle, if so."""
    fenced: bool = False
    """Whether another process has taken the log over."""
    stranded_records: int = 0
    """Of a log that was taken over: records that are durable here and nowhere else; they are not on their way."""
    forgotten: str | None = None
    """What the store has lost, while nothing is acknowledged there for it."""
    resent_total: int = 0
    """Records that the store had acknowledged and lost, and that were sent again."""


class ShippingCounters:
    """The shipper's own counters; one thread writes."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.batches = self.segments = self.objects = self.bytes = self.resolved = self.resent = 0
        self.acknowledged_bytes = self.backlog_bytes = 0
        self.retries: dict[str, int] = {}
        self.last_error: str | None = None
        self.failure: HoldfastError | None = None
        """What the store said last, while that was no success …"""
        self.failing_since = 0.0
        """… and since when that is so, on the loop's clock."""
        self.cost = cost.Counter()
        self.durations = Timings()

    def begin(self) -> None:
        """An object is under way."""
        self.in_flight += 1

    def end(self) -> None:
        """It is not any more, whatever became of it."""
        self.in_flight -= 1

    def put(self, seconds: float, size: int) -> None:
        """The store has taken an object."""
        self.objects += 1
        self.bytes += size
        self.durations.add(seconds)

    def failed(self, cause: str, failure: HoldfastError, now: float) -> None:
        """An attempt failed."""
        self.retries = {**self.retries, cause: self.retries.get(cause, 0) + 1}
        self.last_error = failure.message
        if self.failure is None:
            self.failing_since = now
        self.failure = failure

    def succeeded(self) -> None:
        """An attempt was answered."""
        self.failure = None
