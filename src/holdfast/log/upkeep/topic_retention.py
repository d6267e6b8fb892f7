"""What a caller wants a topic's retention to be: the arguments of `log.set_retention`, checked."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple

from holdfast.arguments import texts, whole
from holdfast.errors import Invalid
from holdfast.model.topic_name import check_name
from holdfast.segments.retention.retention_plan import Policy

_WAIT_FOR_MAX = 100


class TopicRetention(NamedTuple):
    """What a caller wants a topic's retention to be, checked."""

    policy: Policy
    consumers: tuple[str, ...]
    """For whom it waits …"""
    limit: Policy
    """… and up to which age or size."""

    @classmethod
    def asked_for(
        cls,
        bytes_max: int | None,
        age_max: timedelta | None,
        records_max: int | None,
        wait_for: Iterable[str],
        wait_limit: timedelta | int | None,
    ) -> TopicRetention:
        """The arguments of `log.set_retention`; Invalid where they make no sense."""
        if age_max is not None and not isinstance(age_max, timedelta):
            raise Invalid(
                f"age_max is a timedelta, not {type(age_max).__name__}", hint="for instance timedelta(days=7)"
            )
        policy = Policy(
            None if bytes_max is None else whole(bytes_max, "bytes_max"),
            None if age_max is None else age_max // timedelta(microseconds=1),
            None if records_max is None else whole(records_max, "records_max"),
        )
        return cls(policy, *_wait(wait_for, wait_limit, policy))


def _wait(
    wait_for: Iterable[str], wait_limit: timedelta | int | None, policy: Policy
) -> tuple[tuple[str, ...], Policy]:
    """For whom a policy waits, and up to which limit; checked."""
    consumers = tuple(check_name(name, "consumer") for name in texts(wait_for, "wait_for", "billing"))
    if bool(consumers) != (wait_limit is not None) or len(consumers) > _WAIT_FOR_MAX:
        raise Invalid(
            f"retention waits for up to {_WAIT_FOR_MAX} consumers, and always with a limit",
            hint="for instance wait_for=['billing'], wait_limit=timedelta(days=30); a number is one of bytes",
        )
    if consumers and policy == Policy():
        raise Invalid("without a limit nothing is removed, and nothing has to wait", hint="give bytes_max, age_max …")
    if isinstance(wait_limit, timedelta):
        return consumers, Policy(age_max_us=wait_limit // timedelta(microseconds=1))
    return consumers, Policy(bytes_max=None if wait_limit is None else whole(wait_limit, "wait_limit"))
