"""The policy for an object that cannot be brought to the store within the configured number of attempts.

No data is ever given up: the records are durable in the local log, and an outage of the store is no reason to lose them
or to stop the application. By default the shipper keeps trying, with an alarm that escalates and stays visible until
the object is there (`keep-trying`). Users who would rather refuse records than run without a second copy choose
`fail-appends`: appends are refused until the store is back. `abort` ends the process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from holdfast.errors import HoldfastError, Unavailable
from holdfast.shipping.alarm import Alarm, AlarmState
from holdfast.store.port import Cause

logger = logging.getLogger("holdfast.shipping")

Hold = Callable[[HoldfastError | None], None]
"""Refuses appends with a reason, or (None) takes them again."""


class Escalation:
    """The user's policy, applied to whatever is stuck."""

    def __init__(
        self,
        policy: str,
        hold: Hold,
        abort: Callable[[], None],
        note: Callable[[AlarmState | None], None] = lambda state: None,
    ) -> None:
        self._policy = policy
        self._hold = hold
        self._abort = abort
        self._stuck: set[str] = set()
        """Objects that ran out of attempts."""
        self._refused: dict[str, str] = {}
        """Topics that cannot be shipped, and why: intervention is needed, and the others continue."""
        self._alarm = Alarm()
        self._note = note
        """Called when an alarm is raised, for a new cause, or cleared."""

    @property
    def state(self) -> AlarmState | None:
        """The alarm; None while all is well."""
        return self._alarm.state

    @property
    def is_stuck(self) -> bool:
        """Whether the store takes something not: a topic that it has from another writer is not the store's fault."""
        return bool(self._stuck)

    def exhausted(self, now: float, key: str, cause: Cause, message: str) -> None:
        """An object ran out of attempts, once more."""
        is_first = not self._stuck
        self._stuck.add(key)
        # Refused before the alarm is seen, taken again before it is gone: its observers may rely on it.
        if self._policy == "fail-appends" and is_first:
            self._hold(
                Unavailable(
                    f"appends are refused while the store cannot be reached: {message}",
                    hint="they continue when the store answers; or set shipping.escalation to 'keep-trying'",
                )
            )
        before = self._alarm.state
        self._alarm.raise_(now, cause, message)
        if before is None or before.cause != cause:
            self._note(self._alarm.state)
        if self._policy == "abort":
            logger.critical("the store failed, aborting: %s", message, extra={"action": "shipping_abort"})
            self._abort()

    def refused(self, now: float, topic: str, message: str) -> None:
        """A topic is not shipped, whatever the policy says: the store takes all others."""
        self._refused[topic] = message
        self._alarm.raise_(now, "taken", message)
        self._note(self._alarm.state)

    def recovered(self, now: float, key: str) -> None:
        """An object is there after all."""
        if key in self._stuck:
            self._stuck.discard(key)
            if not self._stuck:
                if self._policy == "fail-appends":
                    self._hold(None)
                self._alarm.clear(now)
                self._note(None)
                for topic, message in self._refused.items():
                    self.refused(now, topic, message)
