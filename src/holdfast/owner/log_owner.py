"""The owner's side of the port: what each verb does with the owner's own log. Who may ask stands in `verbs.py`.

A handler gets a request that was checked by its type and returns what the verb returns; what the verb raises is raised
at the other end.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import astuple

from holdfast.errors import Invalid
from holdfast.journal.commit.owner_calls import (
    AddSchemaCall,
    CreateTopicCall,
    DoneAnswer,
    ForgetProducersCall,
    ForgottenProducers,
    SetPolicyCall,
)
from holdfast.log.consumers.member_messages import AskConsumers, ConsumersNow, ForgetConsumer, Ok
from holdfast.log.local_parts import parts_of
from holdfast.log.log import patience
from holdfast.log.upkeep.topic_retention import TopicRetention
from holdfast.model.topic_name import MEMBERS_WRITE, check_users
from holdfast.owner.call_messages import (
    SECONDS_MAX,
    EncryptedKeys,
    LastReport,
    Nothing,
    ShippingNow,
    TookKeys,
    UnshippedNow,
)
from holdfast.owner.consumer_calls import ConsumerCalls
from holdfast.owner.event_relay import EventCalls
from holdfast.owner.execution_actions import check_fields
from holdfast.owner.mark_events import MarkEvents
from holdfast.segments.retention.retention_plan import Policy

if TYPE_CHECKING:
    from holdfast.compaction.compaction_report import CompactionReport
    from holdfast.execution.work.execution_request import ExecutionAnswer
    from holdfast.log.consumers.member_messages import Assignment, JoinConsumer, LeaveConsumer, SyncMember
    from holdfast.log.log import Log
    from holdfast.log.log_executions import AskExecutions
    from holdfast.log.upkeep.published_tables import TableStats
    from holdfast.owner.call_messages import (
        AskMarks,
        Compact,
        RebuildStore,
        Reconcile,
        RequireFree,
        Retain,
        SealTopics,
        SetRetention,
        Ship,
        Shipments,
        WatchMarks,
    )
    from holdfast.owner.peer import Peer
    from holdfast.reconcile.reconcile_report import ReconcileReport
    from holdfast.segments.retention.retention_report import RetentionReport
    from holdfast.segments.segment_stats import SegmentStats
    from holdfast.shipping.refill.store_loss import StoreRebuildReport

_DONE = Nothing()


class Sharing(Protocol):
    """What members ask of their owner as the members that they are."""

    def own(self, peer: Peer) -> None:
        """This member wants to own the log."""

    def rotate(self, peer: Peer, asked: EncryptedKeys, /) -> Nothing:
        """Write under another key."""

    def took(self, peer: Peer, asked: TookKeys, /) -> Nothing:
        """This member has the keys."""


class LogOwner:
    """Answers with the verbs of one owned log; any thread may use it."""

    def __init__(self, log: Log, *, wait_max: float = SECONDS_MAX, sharing: Sharing | None = None) -> None:
        """`wait_max`: no verb waits longer, whatever is asked for."""
        self._parts = parts = parts_of(log).beside()
        self._journal = parts.journal
        self._maintenance = parts.maintenance
        self._store = parts.store
        self._wait_max = wait_max
        self._sharing = sharing
        self._marks = MarkEvents(self._journal)
        self._events = EventCalls(self._store)
        self.consumers = ConsumerCalls(parts)
        """Its members of consumers in other processes."""

    def stop(self) -> None:
        """The owner ends: nobody is told anything any more."""
        for one in (self._marks, self.consumers, self._events):
            one.stop()

    def _seconds(self, asked: float | None) -> float:
        return min(patience(asked), self._wait_max)

    # -- topics -------------------------------------------------------------------------------------------

    def create_topic(self, _: Peer, asked: CreateTopicCall) -> DoneAnswer:
        """Declare a topic."""
        if asked.name not in MEMBERS_WRITE:  # the others are made where they are written
            check_users(asked.name)
        if asked.name not in self._journal.topics:
            self._journal.create_topic(*astuple(asked))
        return DoneAnswer()

    def add_schema(self, _: Peer, asked: AddSchemaCall) -> DoneAnswer:
        """Start a version of a topic's schema."""
        check_users(asked.topic)
        known = self._journal.schemas.get(asked.topic, ())
        if any(row.fingerprint == asked.fingerprint for row in known):
            return DoneAnswer()  # it was asked for before, of an owner that is no more
        if not known or asked.version != len(known) + 1:
            raise Invalid("this is not the next version of a typed topic's schema", hint="ask for the topic again")
        self._journal.add_schema(asked.topic, asked.version, asked.fingerprint, asked.definition)
        return DoneAnswer()

    def set_policy(self, _: Peer, asked: SetPolicyCall) -> DoneAnswer:
        """Give a topic its retention policy."""
        check_users(asked.topic)
        self._journal.set_policy(asked.topic, asked.bytes_max, asked.age_max_us, asked.records_max)
        return DoneAnswer()

    def set_retention(self, _: Peer, asked: SetRetention) -> Nothing:
        """Give a topic a retention policy of its own, and have it wait for consumers."""
        self._maintenance.set_retention(check_users(asked.topic), _checked_retention(asked))
        return _DONE

    def require_free(self, _: Peer, asked: RequireFree) -> Nothing:
        """Raise Invalid where a sink writes a topic of this name."""
        self._store.require_free(asked.topic)
        return _DONE

    def watch(self, peer: Peer, asked: WatchMarks) -> Nothing:
        """Tell when these topics move."""
        return self._marks.watch(peer, asked)

    def marks(self, peer: Peer, asked: AskMarks) -> Shipments:
        """How far a topic is on the store."""
        return self._marks.marks(peer, asked)

    # -- segments -----------------------------------------------------------------------------------------

    def seal(self, _: Peer, asked: SealTopics) -> Nothing:
        """Seal what is durable now."""
        if asked.waits:
            self._maintenance.seal(_names(asked.topic), self._seconds(asked.timeout))
        else:
            self._maintenance.seal_soon(_names(asked.topic))
        return _DONE

    def compact(self, _: Peer, asked: Compact) -> CompactionReport:
        """Join small segment files."""
        from holdfast.compaction.compact_root import target_bytes

        target = target_bytes(asked.target_size)
        return self._maintenance.compact(_names(asked.topic), target, None, dry_run=asked.dry_run)

    def retain(self, _: Peer, asked: Retain) -> RetentionReport:
        """Apply retention now."""
        return self._maintenance.retain(asked.dry_run)

    def reconcile(self, _: Peer, asked: Reconcile) -> ReconcileReport:
        """Compare the manifest with the files, or with the store."""
        side = self._store if asked.remote else self._maintenance
        return side.reconcile(fix=asked.fix, deep=asked.deep, limit=asked.limit)

    def last_reconcile(self, _: Peer, __: Nothing) -> LastReport:
        """The last complete pass of reconciliation."""
        return LastReport(self._maintenance.last_report())

    def segment_stats(self, _: Peer, __: Nothing) -> SegmentStats:
        """Sealing, retention and reconciliation now."""
        return self._maintenance.stats()

    def table_stats(self, _: Peer, __: Nothing) -> TableStats:
        """Published tables now."""
        return self._parts.tables.stats()

    # -- the store ----------------------------------------------------------------------------------------

    def ship(self, _: Peer, asked: Ship) -> Nothing:
        """Wait until all that is sealed now is settled."""
        self._store.ship(self._seconds(asked.timeout))
        return _DONE

    def unshipped(self, _: Peer, __: Nothing) -> UnshippedNow:
        """What is durable and not known to be on the store."""
        return UnshippedNow(self._store.unshipped())

    def rebuild_store(self, _: Peer, asked: RebuildStore) -> StoreRebuildReport:
        """Bring back what the store has lost."""
        return self._store.rebuild(accept_loss=asked.accept_loss, timeout=self._seconds(asked.timeout))

    def shipping_stats(self, _: Peer, __: Nothing) -> ShippingNow:
        """Shipping now."""
        return ShippingNow(self._store.stats())

    def subscribe(self, peer: Peer, _: Nothing) -> Nothing:
        """Tell what happens to commits."""
        return self._events.subscribe(peer)

    # -- producers, consumers, executions -----------------------------------------------------------------

    def forget_producers(self, _: Peer, asked: ForgetProducersCall) -> ForgottenProducers:
        """Let go of producers."""
        return ForgottenProducers(tuple(self._journal.forget_producers(asked.names)))

    def join_consumer(self, peer: Peer, asked: JoinConsumer) -> Assignment:
        """A member of a consumer comes."""
        return self.consumers.join(peer, asked)

    def sync_member(self, peer: Peer, asked: SyncMember) -> Assignment:
        """What it has."""
        return self.consumers.sync(peer, asked)

    def leave_consumer(self, _: Peer, asked: LeaveConsumer) -> Ok:
        """It goes."""
        return self.consumers.leave(asked)

    def consumers_now(self, _: Peer, asked: AskConsumers) -> ConsumersNow:
        """How far consumers are."""
        return ConsumersNow(tuple(self._parts.consumers.status(asked.topic)))

    def forget_consumer(self, _: Peer, asked: ForgetConsumer) -> Ok:
        """Let go of a consumer's position."""
        self._parts.consumers.forget_consumer(asked.name, asked.topic)
        return Ok()

    def ask_executions(self, _: Peer, asked: AskExecutions) -> ExecutionAnswer:
        """Change an execution, once."""
        check_fields(asked)
        return self._parts.executions.apply(asked.request)

    # -- among members ------------------------------------------------------------------------------------

    def make_salt(self, _: Peer, __: Nothing) -> Nothing:
        """Draw the salt that hides keys of items."""
        self._parts.hidden_keys.make()
        return _DONE

    def own(self, peer: Peer, _: Nothing) -> Nothing:
        """Leave the log to a member."""
        self._members().own(peer)
        return _DONE

    def rotate_key(self, peer: Peer, asked: EncryptedKeys) -> Nothing:
        """Write under another key."""
        return self._members().rotate(peer, asked)

    def took_keys(self, peer: Peer, asked: TookKeys) -> Nothing:
        """A member has the keys."""
        return self._members().took(peer, asked)

    def _members(self) -> Sharing:
        if self._sharing is None:
            raise Invalid("this log is not shared", hint="open it with share=True")
        return self._sharing


def _checked_retention(asked: SetRetention) -> TopicRetention:
    """What is asked for, as `log.set_retention` checks it: the other end may be anybody."""
    policy, limit = Policy(*asked.policy), Policy(*asked.limit)
    wait_limit = limit.bytes_max if limit.age_max_us is None else _span(limit.age_max_us)
    age_max = None if policy.age_max_us is None else _span(policy.age_max_us)
    return TopicRetention.asked_for(policy.bytes_max, age_max, policy.records_max, asked.consumers, wait_limit)


def _span(microseconds: int) -> timedelta:
    try:
        return timedelta(microseconds=microseconds)
    except OverflowError:
        raise Invalid("no calendar has this age", hint="leave it out for no limit") from None


def _names(topics: str | tuple[str, ...] | None) -> tuple[str, ...] | None:
    return (topics,) if isinstance(topics, str) else topics
