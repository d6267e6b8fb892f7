"""What keeps strangers from making a channel work for them: counters, and limits on what we answer.

Requests for repair are cheap to send and dear to answer: sixteen kilobytes may name a thousand messages. So answers
have a budget in bytes, which fills with time, and a message that was answered is not answered again for a while. Where
the budget does not cover all that is due, small answers go first: requests for the largest ones do not delay others.
What is not answered waits, and is forgotten after the longest wait that answers have.

Nothing of this is kept: after a restart the budget is full and the counters are zero.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable

from holdfast.channels.channel_settings import ChannelSettings

logger = logging.getLogger("holdfast.channels")

_WARNED_AT = frozenset((10, 1_000, 100_000))
_BUDGET_S = 16
"""What may go out at once is what may go out in so many seconds; the last answer may exceed it."""
_POSTPONED_MAX = 3
"""How often others may ask in our place before we ask all the same: who asks might tell nobody but us."""


class AnswerLimits:
    """Counters and limits of one channel, in memory."""

    def __init__(self, settings: ChannelSettings) -> None:
        self.cooldown_ms = min(max(settings.repair_t_min_ms, 1_000), 5_000)
        self._per_s = settings.repair_bytes_per_s
        self._budget = self._budget_max = float(self._per_s * _BUDGET_S)
        self._filled_ms: int | None = None
        self._answered: dict[str, int] = {}
        self._postponed: dict[str, int] = {}
        self.clock_refused = 0
        """Messages whose time was too far ahead of our clock."""
        self.clock_refused_in_a_row = 0
        self.forged = 0
        """Messages that came with the id of another one."""
        self.repairs = 0
        self.repair_bytes = 0
        self.withheld = 0
        """Requests that were put off or not answered."""

    def counters(self) -> tuple[int, int, int, int, int]:
        """As they end `ChannelStats`."""
        return self.clock_refused, self.forged, self.repairs, self.repair_bytes, self.withheld

    def refuse_time(self, channel_id: str) -> None:
        """A message came from the future; if all do, it is our clock that is wrong, and it must be reported."""
        self.clock_refused += 1
        self.clock_refused_in_a_row += 1
        if self.clock_refused_in_a_row in _WARNED_AT:
            logger.warning(
                "%d messages in a row were refused, for their time is more than channels.lamport_jump_max_ms ahead of "
                "this machine's clock: set the clock, if it is slow; on a busy nim channel with other "
                "implementations, raise the setting channel=%s",
                self.clock_refused_in_a_row,
                channel_id,
                extra={"action": "channel_clock_behind", "channel": channel_id},
            )

    # -- answering ----------------------------------------------------------------------------------------

    def fill(self, now: int) -> None:
        """Let the budget grow by the time that has passed; a clock that goes back adds nothing."""
        passed = 0 if self._filled_ms is None else max(0, now - self._filled_ms)
        self._filled_ms = now
        grown = self._budget + passed * self._per_s / 1000
        self._budget = min(grown, self._budget_max)
        cooling = now - self.cooldown_ms
        self._answered = {one: at for one, at in self._answered.items() if cooling < at <= now}

    def affords(self, sizes: Iterable[int]) -> bool:
        """Whether there is enough for all of these."""
        return sum(sizes) <= self._budget

    @property
    def may_answer(self) -> bool:
        """Whether anything is left; the last answer may take more than that, else large ones would never go."""
        return self._budget > 0

    def answer(self, message_id: str, size: int, now: int) -> None:
        """An answer goes out."""
        self._budget -= size
        self.repairs += 1
        self.repair_bytes += size
        self._answered[message_id] = now

    def not_before(self, message_id: str, due: int) -> int:
        """When a message may be answered that is due then: later, if it was answered a moment ago."""
        answered = self._answered.get(message_id)
        if answered is None or due >= answered + self.cooldown_ms:
            return due
        self.withheld += 1
        return answered + self.cooldown_ms

    # -- asking -------------------------------------------------------------------------------------------

    def may_postpone(self, message_id: str) -> bool:
        """Whether a request of ours may wait anew because another participant asks for the same."""
        times = self._postponed.get(message_id, 0)
        self._postponed[message_id] = times + 1
        return times < _POSTPONED_MAX

    def asked(self, message_id: str) -> None:
        """We have asked ourselves."""
        self._postponed.pop(message_id, None)

    def forget_all_but(self, message_ids: Container[str]) -> None:
        """These are asked for; what is remembered of others is worth nothing."""
        self._postponed = {one: times for one, times in self._postponed.items() if one in message_ids}
