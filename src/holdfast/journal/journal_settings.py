"""What can be set about the journal, with defaults and bounds in one place."""

from __future__ import annotations

import msgspec

from holdfast.errors import Invalid

_ENTRY_OVERHEAD = 64 * 1024
_GROUP_FILE_BYTES_MIN = 64 * 1024
_FIRST_MAX = 2**53


class JournalSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits and times of the journal. Every limit is checked before anything is written.

    >>> JournalSettings(flush_interval_ms=2).flush_interval_ms
    2
    """

    flush_interval_ms: float = 10
    """How long buffered records (`offer`) may wait for others before they are committed on their own."""

    ack_timeout_ms: float = 5_000
    """How long an append waits for its acknowledgement before it raises OutcomeUnknown."""

    close_timeout_ms: float = 30_000
    """How long close() waits for the queue to drain."""

    queue_records_max: int = 65_536
    """Records that may wait for the writer; beyond that offer() answers False and submit() waits or raises Full."""

    queue_bytes_max: int = 64 * 2**20
    """The same bound in bytes of payloads, keys and headers."""

    group_records_max: int = 16_384
    """Records in one group commit."""

    group_bytes_max: int = 2**20
    """Bytes in one group commit, one oversized record excepted; this bounds the latency of a commit."""

    payload_bytes_max: int = 2**20
    """The largest payload, checked when it is written. What is read is bounded by the entry: this and group_bytes_max,
    or batch_bytes_max, checked before anything is decoded.
    """

    batch_records_max: int = 100_000
    """Records in one append_batch."""

    batch_bytes_max: int = 16 * 2**20
    """Bytes in one append_batch."""

    key_bytes_max: int = 4_096
    """The largest record key or idempotency key."""

    headers_bytes_max: int = 16 * 2**10
    """All headers of one record, encoded."""

    partitions_max: int = 1_024
    """Partitions of one topic."""

    topics_max: int = 10_000
    """Topics in one log."""

    idempotency_keys_max: int = 1_000_000
    """How many idempotency keys are remembered, newest first; an older key is forgotten and can be used again."""

    sessions_max: int = 10_000
    """How many sessions are kept, of producers and of processes that share the log; beyond that the oldest goes,
    unless it was used within the last minute: then a new one is refused.
    """

    session_answers_max: int = 64
    """Of how many sequence numbers of one session the answers are kept: these may be sent again."""

    session_expiry_ms: float = 7 * 86_400_000
    """How long a session is kept after its last use."""

    clock_jump_max_ms: float = 86_400_000
    """How far the clock may jump. After a longer jump nothing is removed for its age until it has lasted as long,
    with the log open. A very high value says that the clock is right.
    """

    checkpoint_bytes: int = 8 * 2**20
    """How much write-ahead log may gather before it is folded into the database file."""

    group_file_bytes: int = 32 * 2**20
    """The largest file in which groups of plain records become durable (format 0013); 0: none, everything goes
    through the database.
    """

    tail_bytes_max: int = 4 * 2**30
    """Stored bytes of the whole log that may be durable and not sealed yet; beyond that appends wait for the roller,
    then raise Full. From half of it on, the longest tail is sealed whatever its size.
    """

    def __post_init__(self) -> None:
        problems = [
            f"journal.{name} must be above zero, got {value}"
            for name, value in msgspec.structs.asdict(self).items()
            if value <= 0 and (name, value) != ("group_file_bytes", 0)
        ]
        if 0 < self.group_file_bytes < _GROUP_FILE_BYTES_MIN:
            problems.append(f"journal.group_file_bytes must be 0 or at least {_GROUP_FILE_BYTES_MIN // 1024}KiB")
        if self.payload_bytes_max > 2**30 or self.batch_bytes_max > 2**30:
            problems.append("journal.payload_bytes_max and journal.batch_bytes_max must not exceed 1GiB")
        if self.payload_bytes_max > self.queue_bytes_max or self.batch_bytes_max > self.queue_bytes_max:
            problems.append("journal.queue_bytes_max must hold at least one largest payload and one largest batch")
        if problems:
            raise Invalid("; ".join(problems), hint="correct these settings; all problems found are listed")

    def check_topic(self, partitions: int, first: int, topics: int) -> None:
        """Raise unless a topic may have so many partitions that begin there, beside so many other topics."""
        if not 1 <= partitions <= self.partitions_max:
            raise Invalid(
                f"a topic has 1 to {self.partitions_max} partitions, not {partitions}",
                hint="see journal.partitions_max",
            )
        if topics >= self.topics_max:
            raise Invalid(f"the log has {self.topics_max} topics already", hint="see journal.topics_max")
        if not 0 <= first <= _FIRST_MAX:
            raise Invalid(f"a topic cannot begin at offset {first}", hint=f"give 0 to {_FIRST_MAX}")

    @property
    def entry_bytes_max(self) -> int:
        """The largest body that this journal may have written; anything longer is refused unread."""
        largest_group = self.group_bytes_max + self.payload_bytes_max
        lengths_and_times = 24 * max(self.batch_records_max, self.group_records_max)
        return max(largest_group, self.batch_bytes_max) + lengths_and_times + _ENTRY_OVERHEAD
