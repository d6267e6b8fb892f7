"""What can be set about durable executions, with defaults and bounds in one place."""

from __future__ import annotations

import msgspec

from holdfast.errors import Invalid

TOPIC = "_executions"
"""Where a log records what happens in its executions."""

EXECUTIONS_MAX = 90_000
"""All rows are items of one space."""


class ExecutionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits and times of durable executions.

    >>> ExecutionSettings(steps_max=500).steps_max
    500
    """

    payload_bytes_max: int = 2**20
    """The largest result, argument or value that is kept with an entry; exactly this much is allowed. A larger result
    of a step goes beside the journal, by reference.
    """

    steps_max: int = 10_000
    """Steps of one execution that are not folded. At nine tenths of that, what is finished is folded, and counts no
    more; what is not finished still does. 0 = no limit.
    """

    executions_max: int = 10_000
    """Executions that are kept; beyond that the oldest that have ended go, and if none has, new ones are refused
    (`Full`). At most 90,000.
    """

    journal_bytes_max: int = 2**30
    """Bytes of the journals of all executions together; likewise, and entries of those that run are refused, too
    (`Unavailable`). An execution can always be ended.
    """

    ack_timeout_ms: int = 5_000
    """How long an entry that must be durable is waited for, then `OutcomeUnknown`; and for room in the queue, then
    `Full`.
    """

    keep_completed_ms: int = 7 * 86_400_000
    """How long an execution that completed is kept."""

    keep_failed_ms: int = 30 * 86_400_000
    """How long one is kept that failed, was aborted or canceled."""

    poll_interval_ms: int = 500
    """How often a log looks for timers and schedules that are due."""

    waiting_max: int = 1_000
    """Promises, timers and signals that may be waited for at once."""

    topic_bytes_max: int = 2**30
    """Bytes of segments that the topic `_executions` keeps, unless it has a policy of its own; of this and
    `retention.bytes_max` the smaller counts. 0 = no limit.
    """

    topic_age_max_ms: int = 90 * 86_400_000
    """How long the topic `_executions` keeps a sealed segment, likewise. 0 = no limit."""

    def __post_init__(self) -> None:
        least = {"steps_max": 0, "topic_bytes_max": 0, "topic_age_max_ms": 0}
        if self.executions_max > EXECUTIONS_MAX:
            raise Invalid(
                f"executions.executions_max is up to {EXECUTIONS_MAX}", hint="prune earlier, or use several logs"
            )
        for name in self.__struct_fields__:
            if getattr(self, name) < least.get(name, 1):
                raise Invalid(f"executions.{name} must be at least {least.get(name, 1)}", hint="see the settings' page")
