"""The verbs about a log's segments, each with both ends: what the owner does for it, and the proxy that asks for it.

Nothing is sealed, removed or repaired where the proxy is. The progress of a compaction is not seen there.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec.structs import replace

from holdfast.compaction.compaction_report import CompactionReport
from holdfast.errors import HoldfastError, Invalid
from holdfast.journal.commit.owner_calls import Nothing
from holdfast.model.topic_name import check_users
from holdfast.owner.verb import (
    ADMIN_LOG,
    DONE,
    READ_LOG,
    SECONDS_MAX,
    Asks,
    Name,
    Names,
    PublicRequest,
    Right,
    Seconds,
    Verb,
    its_topic,
    its_topics,
    without_paths,
)
from holdfast.reconcile.reconcile_report import ReconcileReport
from holdfast.segments.retention.retention_plan import Policy
from holdfast.segments.retention.retention_report import RetentionReport
from holdfast.segments.segment_stats import SegmentStats

if TYPE_CHECKING:
    from holdfast.compaction.compactor import Progress
    from holdfast.log.upkeep.topic_retention import TopicRetention
    from holdfast.owner.log_owner import LogOwner
    from holdfast.owner.peer import Peer, Rights

_ADMIN_TOPICS = Right(("admin",), its_topics, show=without_paths)

logger = logging.getLogger("holdfast.sharing")


# -- seal -------------------------------------------------------------------------------------------------


class SealTopics(PublicRequest, frozen=True):
    """Seal what is durable now."""

    topic: Name | Names | None = None
    """One topic, several, or all."""
    timeout: Seconds | None = None
    waits: bool = True


def _seal(owner: LogOwner, _: Peer, request: SealTopics) -> Nothing:
    """Seal what is durable now."""
    if request.waits:
        owner.maintenance.seal(_names(request.topic), owner.patience(request.timeout))
    else:
        owner.maintenance.seal_soon(_names(request.topic))
    return DONE


SEAL = Verb("seal", SealTopics, Nothing, _ADMIN_TOPICS, _seal, is_long=True, route="POST /v1/seal")


# -- retain -----------------------------------------------------------------------------------------------


class Retain(PublicRequest, frozen=True):
    """Apply retention now."""

    dry_run: bool = False


def _retain(owner: LogOwner, _: Peer, request: Retain) -> RetentionReport:
    """Apply retention now."""
    return owner.maintenance.retain(request.dry_run)


RETAIN = Verb("retain", Retain, RetentionReport, ADMIN_LOG, _retain, is_long=True, route="POST /v1/retain")

Limits = tuple[int | None, int | None, int | None]
"""Bytes, age in microseconds, records."""


class SetRetention(msgspec.Struct, frozen=True, array_like=True):
    """Give a topic a retention policy of its own."""

    topic: Name
    policy: Limits
    consumers: Annotated[tuple[Name, ...], msgspec.Meta(max_length=100)]
    limit: Limits


def limits_of(policy: Policy) -> Limits:
    """The limits of a policy."""
    return policy.bytes_max, policy.age_max_us, policy.records_max


def _set_retention(owner: LogOwner, _: Peer, request: SetRetention) -> Nothing:
    """Give a topic a retention policy of its own, and have it wait for consumers."""
    owner.maintenance.set_retention(check_users(request.topic), _checked(request))
    return DONE


def _checked(request: SetRetention) -> TopicRetention:
    """What is asked for, as `log.set_retention` checks it: the other end may be anybody."""
    from holdfast.log.upkeep.topic_retention import TopicRetention

    policy, limit = Policy(*request.policy), Policy(*request.limit)
    wait_limit = limit.bytes_max if limit.age_max_us is None else _span(limit.age_max_us)
    age_max = None if policy.age_max_us is None else _span(policy.age_max_us)
    return TopicRetention.asked_for(policy.bytes_max, age_max, policy.records_max, request.consumers, wait_limit)


def _span(microseconds: int) -> timedelta:
    try:
        return timedelta(microseconds=microseconds)
    except OverflowError:
        raise Invalid("no calendar has this age", hint="leave it out for no limit") from None


SET_RETENTION = Verb("set_retention", SetRetention, Nothing, Right(("admin",), its_topic, changes=True), _set_retention)


# -- compact ----------------------------------------------------------------------------------------------


class Compact(PublicRequest, frozen=True):
    """Join small segment files."""

    topic: Name | Names | None = None
    """One topic, several, or all."""
    target_size: int | Annotated[str, msgspec.Meta(max_length=64)] = "128MiB"
    dry_run: bool = False


def _compact(owner: LogOwner, _: Peer, request: Compact) -> CompactionReport:
    """Join small segment files."""
    from holdfast.compaction.compact_root import target_bytes

    target = target_bytes(request.target_size)
    return owner.maintenance.compact(_names(request.topic), target, None, dry_run=request.dry_run)


def _without_root(rights: Rights, report: CompactionReport) -> CompactionReport:
    return without_paths(rights, replace(report, root=""))


COMPACT = Verb(
    "compact",
    Compact,
    CompactionReport,
    Right(("admin",), its_topics, show=_without_root),
    _compact,
    is_long=True,
    route="POST /v1/compact",
)


# -- reconcile --------------------------------------------------------------------------------------------


class Reconcile(PublicRequest, frozen=True):
    """Compare the manifest with the files, or with the store."""

    remote: bool = False
    fix: bool = False
    deep: bool = False
    limit: int | None = None


class LastReport(msgspec.Struct, frozen=True, array_like=True):
    """The last complete pass of reconciliation."""

    report: ReconcileReport | None


def _reconcile(owner: LogOwner, _: Peer, request: Reconcile) -> ReconcileReport:
    """Compare the manifest with the files, or with the store."""
    side = owner.store if request.remote else owner.maintenance
    return side.reconcile(fix=request.fix, deep=request.deep, limit=request.limit)


def _last_reconcile(owner: LogOwner, _: Peer, __: Nothing) -> LastReport:
    return LastReport(owner.maintenance.last_report())


RECONCILE = Verb(
    "reconcile", Reconcile, ReconcileReport, ADMIN_LOG, _reconcile, is_long=True, route="POST /v1/reconcile"
)
LAST_RECONCILE = Verb("last_reconcile", Nothing, LastReport, ADMIN_LOG, _last_reconcile)


# -- stats ------------------------------------------------------------------------------------------------


def _segment_stats(owner: LogOwner, _: Peer, __: Nothing) -> SegmentStats:
    return owner.maintenance.stats()


SEGMENT_STATS = Verb("segment_stats", Nothing, SegmentStats, READ_LOG, _segment_stats)

SEGMENT_VERBS = (SET_RETENTION, SEAL, COMPACT, RETAIN, RECONCILE, LAST_RECONCILE, SEGMENT_STATS)


def _names(topics: str | tuple[str, ...] | None) -> tuple[str, ...] | None:
    return (topics,) if isinstance(topics, str) else topics


# -- the other end ----------------------------------------------------------------------------------------


class MaintenanceProxy:
    """The maintenance of a log that another process owns, or a server has: its owner does it."""

    counters = None

    def __init__(self, owner: Asks, timeout: float) -> None:
        """`timeout` is for what takes no time."""
        self._owner = owner
        self._timeout = timeout

    def last_report(self) -> ReconcileReport | None:
        """The report of the last complete pass."""
        return LAST_RECONCILE.ask(self._owner, DONE, self._timeout).report

    def seal(self, topics: tuple[str, ...] | None, timeout: float) -> None:
        """Seal what is durable now."""
        SEAL.ask(self._owner, SealTopics(topics, min(timeout, SECONDS_MAX)), timeout)

    def seal_soon(self, topics: tuple[str, ...] | None) -> None:
        """Seal what is durable now, without waiting for it; where that cannot be asked, it is sealed when due."""
        try:
            SEAL.ask(self._owner, SealTopics(topics, 0.0, waits=False), self._timeout)
        except HoldfastError as error:
            logger.info("a seal could not be asked for: %s", error.message, extra={"action": "seal_not_asked"})

    def retain(self, dry_run: bool) -> RetentionReport:
        """Apply retention, or say what would be removed."""
        return RETAIN.ask(self._owner, Retain(dry_run))

    def compact(
        self, topics: tuple[str, ...] | None, target: int, progress: Progress | None, *, dry_run: bool
    ) -> CompactionReport:
        """Join small segment files."""
        return COMPACT.ask(self._owner, Compact(topics, target, dry_run))

    def set_retention(self, topic: str, wanted: TopicRetention) -> None:
        """Give a topic a policy of its own, durably, and have it wait for consumers."""
        request = SetRetention(topic, limits_of(wanted.policy), wanted.consumers, limits_of(wanted.limit))
        SET_RETENTION.ask(self._owner, request, self._timeout)

    def reconcile(self, *, fix: bool, deep: bool, limit: int | None) -> ReconcileReport:
        """Compare manifest and files."""
        return RECONCILE.ask(self._owner, Reconcile(False, fix, deep, limit))

    def stats(self) -> SegmentStats:
        """Sealing, retention and reconciliation in the owner's process at this moment."""
        return SEGMENT_STATS.ask(self._owner, DONE, self._timeout)

    def settle(self, timeout: float) -> None:
        """The owner seals."""

    def close(self, timeout: float, *, seal: bool = True) -> None:
        """The owner goes on."""

    def forget(self) -> None:
        """In a forked child: nothing here is the parent's."""
