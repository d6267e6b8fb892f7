"""When a commit batch is sent: a decision over numbers, taken again at each event.

    at max_in_flight_requests              wait for a reply: nothing else can help
    nothing pending                        wait for a commit, without a timer: idle is blocked
    pending, nothing in flight             send at once (unless `send_when_idle` is off)
    pending, a threshold is reached        send
    pending, the timeout since the last    send
    pending, none of these                 wait for the timeout or a threshold, whichever is first

Replies wake the loop by themselves, whatever it waits for. It owns no clock and no queue: time, pending work and work
in flight are passed in. The timeout counts from the last send, so the first commit after a pause goes at once.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from holdfast.shipping.shipping_settings import ShippingSettings

NEVER_SENT = -inf
"""The time of the last send, before the first one."""


class SendBatch(NamedTuple):
    """Send what is pending now, as much as fits one batch."""


class WaitForReply(NamedTuple):
    """Only a reply can change anything."""


class WaitForCommits(NamedTuple):
    """Decide again at `until`, or as soon as that many commits or bytes are pending in all; a reply wakes, too."""

    until: float | None
    """None: no timer."""
    commits: int
    bytes: int

    def is_over(self, now: float, pending_commits: int, pending_bytes: int) -> bool:
        """Whether it is time to decide again."""
        is_late = self.until is not None and now >= self.until
        return is_late or pending_commits >= self.commits or pending_bytes >= self.bytes


Decision = SendBatch | WaitForReply | WaitForCommits

_SEND = SendBatch()
_WAIT_FOR_REPLY = WaitForReply()
_WAIT_FOR_ANY_COMMIT = WaitForCommits(None, 1, 1)


class BatchRule:
    """The rule, with the limits that it applies."""

    __slots__ = ("_bytes", "_commits", "_in_flight_max", "_is_eager", "_timeout")

    def __init__(self, settings: ShippingSettings) -> None:
        self._timeout = settings.batch_timeout_ms / 1000
        self._commits = settings.batch_size_threshold
        self._bytes = settings.batch_bytes_max
        self._in_flight_max = settings.max_in_flight_requests
        self._is_eager = settings.send_when_idle

    def decide(
        self, now: float, pending_commits: int, pending_bytes: int, in_flight: int, last_sent: float
    ) -> Decision:
        """What to do now. Times are seconds of one monotonic clock; `last_sent` may be NEVER_SENT."""
        if in_flight >= self._in_flight_max:
            return _WAIT_FOR_REPLY
        if not pending_commits:
            return _WAIT_FOR_ANY_COMMIT
        waiting = WaitForCommits(last_sent + self._timeout, self._commits, self._bytes)
        if (self._is_eager and not in_flight) or waiting.is_over(now, pending_commits, pending_bytes):
            return _SEND
        return waiting
