"""What can be set about reliable channels, with defaults and bounds in one place.

Names and defaults are those of nim-sds where it has them, as `*_ms` and `*_max`. Every buffer has a bound and a policy
for what happens at it: a sender gets `Full`, a receiver refuses the newcomer as if the network had lost it.
"""

from __future__ import annotations

import msgspec

from holdfast.channels.wire.dialect import DialectName
from holdfast.channels.wire.message import CONTENT_BYTES_MAX, ENTRIES_MAX
from holdfast.errors import Invalid

TOPIC = "_channels"
"""Where a log records what happens in its channels, by default."""


class ChannelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits and times of reliable channels.

    >>> ChannelSettings(resend_interval_ms=5_000).resend_attempts_max
    5
    """

    dialect: DialectName = "nim"
    """The wire format of channels that do not say: `nim` (nim-sds) or `rfc` (LIP-109, `@waku/sds`)."""

    bloom_capacity: int = 10_000
    """Message ids in the filter that goes with every message; not below `history_max`. All participants of an `rfc`
    channel need the same.
    """

    bloom_error_rate: float = 0.001
    """How often the filter may say yes by mistake when it is full. All participants of an `rfc` channel need the
    same.
    """

    history_max: int = 1_000
    """Messages that a channel has at hand, for causal history and repair; the oldest go first."""

    remembered_max: int = 100_000
    """Ids that a channel remembers, so that nothing is delivered twice; each takes about 300 bytes of memory and 60
    of disk. Not below `history_max`; at most 1,000,000.
    """

    causal_history_max: int = 10
    """Messages that a sent message names as its causes; at most 1,000."""

    content_bytes_max: int = 2**20
    """The largest content, sent or received; exactly this much is allowed, and 1 MiB is the most.
    `journal.payload_bytes_max` bounds it, too, where channels are kept in a log.
    """

    outgoing_max: int = 10_000
    """Messages that may wait for an acknowledgement; beyond that sending raises Full."""

    incoming_max: int = 2_000
    """Messages that may wait for others they depend on; beyond that new ones are refused, as if they were lost."""

    repairs_max: int = 1_000
    """Repair requests, and answers to such requests, that may wait; beyond that those due last are dropped."""

    resend_interval_ms: int = 60_000
    """How long a message waits for an acknowledgement before it is due to be sent again."""

    resend_attempts_max: int = 5
    """How often a message is sent again before it is given up."""

    sync_interval_ms: int = 30_000
    """How often a channel sends what it knows, when it has nothing else to send; 0 = never."""

    buffer_sweep_interval_ms: int = 60_000
    """How often unacknowledged messages are checked."""

    repair_sweep_interval_ms: int = 5_000
    """How often repair requests and answers are checked."""

    repair_t_min_ms: int = 30_000
    """The shortest wait before a missing message is requested."""

    repair_t_max_ms: int = 0
    """The longest wait before a missing message is requested, or answered; 0 = 300 s for nim, 120 s for rfc."""

    repair_requests_max: int = 3
    """Missing messages that one message asks for; at most 1,000."""

    repair_bytes_per_s: int = 64 * 2**10
    """How many bytes of answers to others' requests go out in the long run, of each channel; at once as many as in 16
    s.
    """

    response_groups: int = 1
    """Into how many groups participants are divided, one of which answers a request; 1 = everybody may."""

    lost_after_ms: int = 0
    """How long a message waits for others before they count as lost and it is delivered without them; 0 = forever.
    """

    lamport_jump_max_ms: int = 24 * 3600 * 1000
    """How far ahead of our wall clock a message's time may be; beyond that it is refused. A minute at least. What we
    send is never more than 18 hours ahead (three quarters of this, if that is less), whatever was received.
    """

    derived_ids: bool = False
    """Whether ids are derived from what they name, and messages under other ids refused. All participants alike."""

    keyring: str = ""
    """The key that participants share, by reference (`env:NAME`, `file:PATH`): it encrypts every message."""

    accept_unknown_channels: bool = False
    """Whether a message may create the channel that it names."""

    channels_max: int = 10_000
    """Channels beyond which no message creates another one."""

    topic_bytes_max: int = 2**30
    """Bytes of segments that the topic `_channels` keeps, unless it has a policy of its own; of this and
    `retention.bytes_max` the smaller counts. 0 = no limit.
    """

    topic_age_max_ms: float = 90 * 24 * 3600 * 1000
    """How long the topic `_channels` keeps a sealed segment, likewise. 0 = no limit."""

    ack_timeout_ms: float = 5_000
    """How long an operation waits for its state to be durable; it succeeds in memory nevertheless."""

    def __post_init__(self) -> None:
        problems = [
            f"channels.{name}={getattr(self, name)} must be at least {least}"
            for name, least in _LEAST.items()
            if getattr(self, name) < least
        ]
        problems += [
            f"channels.{name}={getattr(self, name)} must be at most {most}"
            for name, most in _MOST.items()
            if getattr(self, name) > most
        ]
        if not 0 < self.bloom_error_rate < 1:
            problems.append(f"channels.bloom_error_rate={self.bloom_error_rate} must lie between 0 and 1")
        if 0 < self.repair_t_max_ms < self.repair_t_min_ms:
            problems.append("channels.repair_t_max_ms must not be below channels.repair_t_min_ms")
        if self.keyring and not self.keyring.startswith(("env:", "file:")):  # it may be the key itself: not shown
            problems.append("channels.keyring must be a reference, 'env:NAME' or 'file:PATH'")
        if self.history_max > self.bloom_capacity:
            problems.append("channels.history_max must not exceed channels.bloom_capacity")
        if self.remembered_max < self.history_max:
            problems.append("channels.remembered_max must not be below channels.history_max")
        if problems:
            raise Invalid("; ".join(problems), hint="see the reference of settings")


_LEAST = {
    "bloom_capacity": 1, "history_max": 1, "remembered_max": 1, "causal_history_max": 1, "content_bytes_max": 1,
    "outgoing_max": 1, "incoming_max": 1, "repairs_max": 1, "resend_interval_ms": 1,
    "resend_attempts_max": 0, "sync_interval_ms": 0, "buffer_sweep_interval_ms": 1,
    "repair_sweep_interval_ms": 1, "repair_t_min_ms": 0, "repair_t_max_ms": 0, "repair_requests_max": 0,
    "repair_bytes_per_s": 1,
    "response_groups": 1, "lost_after_ms": 0, "lamport_jump_max_ms": 60_000, "channels_max": 1, "ack_timeout_ms": 0,
    "topic_bytes_max": 0, "topic_age_max_ms": 0,
}  # fmt: skip

_MOST = {
    "causal_history_max": ENTRIES_MAX,
    "repair_requests_max": ENTRIES_MAX,
    "content_bytes_max": CONTENT_BYTES_MAX,
    "history_max": 30_000,
    "remembered_max": 1_000_000,
    "outgoing_max": 20_000,
    "incoming_max": 20_000,
}
"""What the wire formats carry, and what a log keeps of one channel: 100,000 items, hints among them."""
