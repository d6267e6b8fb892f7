"""The table of verbs: all that others ask the owner of a log for, beside groups and events.

Each verb has a name, what is asked and answered, who may ask it over HTTP and about what, whether it may be asked
twice, and what does it. The owner of a shared log answers its members through this table, and a server its clients;
both check requests by their types, and peers with rights (`Peer.rights`) by the right that stands here. Rights
are decided nowhere else. Over the socket comes a process of the same user that proved to have the log's keys: it has
all of them; what is among members asks for a process that shares the log. What nobody may ask over HTTP has no right.

A verb may block: the host calls it in a thread of its own. What it raises is raised at the other end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from holdfast.compaction.compaction_report import CompactionReport
from holdfast.errors import Denied, Invalid
from holdfast.execution.work.execution_request import ExecutionAnswer
from holdfast.journal.commit.owner_calls import (
    AddSchemaCall,
    CreateTopicCall,
    DoneAnswer,
    ForgetProducersCall,
    ForgottenProducers,
    SetPolicyCall,
)
from holdfast.log.consumers.member_messages import (
    AskConsumers,
    Assignment,
    ConsumersNow,
    ForgetConsumer,
    JoinConsumer,
    LeaveConsumer,
    Ok,
    SyncMember,
)
from holdfast.log.log_executions import AskExecutions
from holdfast.log.upkeep.published_tables import TableStats
from holdfast.model.topic_name import check_users
from holdfast.owner.call_messages import (
    AskMarks,
    Compact,
    EncryptedKeys,
    LastReport,
    Nothing,
    RebuildStore,
    Reconcile,
    RequireFree,
    Retain,
    SealTopics,
    SetRetention,
    Ship,
    Shipments,
    ShippingNow,
    TookKeys,
    UnshippedNow,
    WatchMarks,
)
from holdfast.owner.execution_actions import scope_of
from holdfast.owner.log_owner import LogOwner
from holdfast.owner.machine_paths import without_places_in
from holdfast.owner.peer import Peer, Rights
from holdfast.reconcile.reconcile_report import ReconcileReport
from holdfast.segments.retention.retention_report import RetentionReport
from holdfast.segments.segment_stats import SegmentStats
from holdfast.shipping.refill.store_loss import StoreRebuildReport

EXECUTIONS = "_executions"
"""Stands for executions where rights name topics."""


class About(NamedTuple):
    """One thing that a request is about."""

    topic: str | None
    """None: the whole log."""
    consumer: str | None = None


class Right(NamedTuple):
    """Who may ask, beside members."""

    scopes: tuple[str, ...] | Callable[[Any], tuple[str, ...]]
    """One of these scopes is needed, perhaps another one for each request …"""
    about: Callable[[Any], Iterable[About]]
    """… of each of these; of nothing at all, any token will do."""
    changes: bool = False
    """Whether it changes its topics: those that are holdfast's own nobody changes."""
    bind: Callable[[Rights, Any], Any] = lambda rights, request: request
    """Makes ids that a client chose its own: the same bytes from another client are another id."""
    show: Callable[[Rights, Any], Any] = lambda rights, result: result
    """Leaves out of an answer what the caller may not know of."""

    def check(self, rights: Rights, request: object) -> None:
        """Raise Denied unless a caller with these rights may ask for this."""
        scopes = self.scopes(request) if callable(self.scopes) else self.scopes
        for topic, consumer in self.about(request):
            if topic is None:
                rights.require(scopes, None)
            else:
                rights.require_topic(scopes, topic, consumer)
                if self.changes:
                    check_users(topic)


class Handler(Protocol):
    """Does what a verb says."""

    def __call__(self, owner: LogOwner, peer: Peer, request: Any, /) -> msgspec.Struct: ...  # noqa: D102


class Verb(NamedTuple):
    """One verb."""

    name: str
    request: type[msgspec.Struct]
    result: type[msgspec.Struct]
    right: Right | None
    """None: it is for members alone."""
    handler: Handler
    repeatable: bool = True
    """Whether asking twice is asking once: it is asked again of the next owner when one dies."""

    is_long: bool = False
    """Whether it may take minutes."""
    route: str | None = None
    """The method and path under which people ask for it with JSON; clients ask by `POST /v1/calls/{name}`."""
    has_events: bool = False
    """Whether events about it follow later."""
    among_members: bool = False
    """Whether only processes that share the log may ask, and not every process of the same user with its keys."""

    def decoded(self, body: bytes) -> msgspec.Struct:
        """A request; Invalid where these bytes are none."""
        try:
            found: msgspec.Struct = _DECODERS[self.name](body)
            return found
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Invalid("a call does not decode", hint="run the same version of holdfast everywhere") from error

    def check(self, rights: Rights, request: msgspec.Struct) -> Right:
        """Raise Denied unless a caller with these rights may ask for this."""
        if self.right is None:
            raise Denied(
                f"only processes beside the owner may ask for {self.name!r}", hint="see docs/reference/rights.md"
            )
        self.right.check(rights, request)
        return self.right

    def done(self, owner: LogOwner, peer: Peer, request: msgspec.Struct) -> msgspec.Struct:
        """What comes of it, if the caller may ask."""
        rights = peer.rights
        if rights is None:
            if self.among_members and not peer.is_member:
                raise Denied(
                    f"only processes that share the log may ask for {self.name!r}: its owner keeps it",
                    hint="do this in the process that owns the log, or open it with share=True in all of them",
                )
            return self.handler(owner, peer, request)
        right = self.check(rights, request)
        found: msgspec.Struct = right.show(rights, self.handler(owner, peer, right.bind(rights, request)))
        return found


def _whole_log(_: object) -> tuple[About, ...]:
    """The whole log."""
    return (About(None),)


def _anything(_: object) -> tuple[About, ...]:
    """What the token reaches."""
    return ()


def _topic(request: Any) -> tuple[About, ...]:
    """The topic."""
    return (About(request.topic),)


def _topics(request: Any) -> tuple[About, ...]:
    """The topics, or the whole log."""
    named = request.topic
    return (About(None),) if named is None else tuple(map(About, (named,) if isinstance(named, str) else named))


def _watched(request: WatchMarks) -> tuple[About, ...]:
    """Each topic."""
    return tuple(map(About, request.topics))


def _consumer(request: Any) -> tuple[About, ...]:
    """The topic; a consumer of that name."""
    return (About(request.topic, request.name),)


def _executions(_: object) -> tuple[About, ...]:
    """`_executions`."""
    return (About(EXECUTIONS),)


def _own_member(rights: Rights, request: Any) -> Any:
    gone = {"gone": tuple(map(rights.own, request.gone))} if isinstance(request, SyncMember) else {}
    return replace(request, token=rights.own(request.token), **gone)


def _own_request(rights: Rights, asked: AskExecutions) -> AskExecutions:
    return AskExecutions(replace(asked.request, id=rights.own(asked.request.id)))


def _own_consumers(rights: Rights, result: ConsumersNow) -> ConsumersNow:
    return ConsumersNow(tuple(one for one in result.consumers if rights.sees_consumer(one.consumer, one.topic)))


def _shown(_: Rights, result: Any) -> Any:
    """A path of the owner's machine is nobody else's business."""
    return without_places_in(replace(result, root="") if isinstance(result, CompactionReport) else result)


_SEE = ("read", "append", "consume")
_READ_LOG, _ADMIN_LOG = Right(("read",), _whole_log, show=_shown), Right(("admin",), _whole_log, show=_shown)
_ADMIN_TOPICS = Right(("admin",), _topics, show=_shown)
_ASK_EXECUTIONS = Right(scope_of, _executions, bind=_own_request, show=_shown)
_CONSUME = Right(("consume",), _consumer, bind=_own_member)

TABLE: tuple[Verb, ...] = (
    # topics: over HTTP they are made by PUT /v1/topics/{topic}, which proves what a schema says
    Verb("create_topic", CreateTopicCall, DoneAnswer, None, LogOwner.create_topic),
    Verb("add_schema", AddSchemaCall, DoneAnswer, None, LogOwner.add_schema),
    Verb("set_policy", SetPolicyCall, DoneAnswer, None, LogOwner.set_policy),
    Verb("set_retention", SetRetention, Nothing, Right(("admin",), _topic, changes=True), LogOwner.set_retention),
    Verb("require_free", RequireFree, Nothing, None, LogOwner.require_free),
    Verb("watch", WatchMarks, Nothing, Right(_SEE, _watched), LogOwner.watch, has_events=True),
    Verb("marks", AskMarks, Shipments, Right(_SEE, _topic), LogOwner.marks),
    # segments
    Verb("seal", SealTopics, Nothing, _ADMIN_TOPICS, LogOwner.seal, is_long=True, route="POST /v1/seal"),
    Verb("compact", Compact, CompactionReport, _ADMIN_TOPICS, LogOwner.compact, is_long=True, route="POST /v1/compact"),
    Verb("retain", Retain, RetentionReport, _ADMIN_LOG, LogOwner.retain, is_long=True, route="POST /v1/retain"),
    Verb(
        "reconcile",
        Reconcile,
        ReconcileReport,
        _ADMIN_LOG,
        LogOwner.reconcile,
        is_long=True,
        route="POST /v1/reconcile",
    ),
    Verb("last_reconcile", Nothing, LastReport, _ADMIN_LOG, LogOwner.last_reconcile),
    Verb("segment_stats", Nothing, SegmentStats, _READ_LOG, LogOwner.segment_stats),
    Verb("table_stats", Nothing, TableStats, _READ_LOG, LogOwner.table_stats),
    # the store
    Verb("ship", Ship, Nothing, _ADMIN_LOG, LogOwner.ship, is_long=True, route="POST /v1/ship"),
    Verb("unshipped", Nothing, UnshippedNow, _ADMIN_LOG, LogOwner.unshipped, route="GET /v1/unshipped"),
    Verb(
        "rebuild_store",
        RebuildStore,
        StoreRebuildReport,
        _ADMIN_LOG,
        LogOwner.rebuild_store,
        is_long=True,
        route="POST /v1/rebuild-store",
    ),
    Verb("shipping_stats", Nothing, ShippingNow, _READ_LOG, LogOwner.shipping_stats),
    Verb("subscribe", Nothing, Nothing, _READ_LOG, LogOwner.subscribe, has_events=True),
    # producers, consumers, executions
    Verb(
        "forget_producers",
        ForgetProducersCall,
        ForgottenProducers,
        _ADMIN_LOG,
        LogOwner.forget_producers,
        repeatable=False,
    ),
    Verb("join_consumer", JoinConsumer, Assignment, _CONSUME, LogOwner.join_consumer, has_events=True),
    Verb("sync_member", SyncMember, Assignment, _CONSUME, LogOwner.sync_member, has_events=True),
    Verb("leave_consumer", LeaveConsumer, Ok, _CONSUME, LogOwner.leave_consumer, has_events=True),
    Verb("consumers", AskConsumers, ConsumersNow, Right((), _anything, show=_own_consumers), LogOwner.consumers_now),
    Verb(
        "forget_consumer", ForgetConsumer, Ok, Right(("admin",), _consumer), LogOwner.forget_consumer, repeatable=False
    ),
    Verb("ask_executions", AskExecutions, ExecutionAnswer, _ASK_EXECUTIONS, LogOwner.ask_executions),
    Verb("make_salt", Nothing, Nothing, None, LogOwner.make_salt),
    # among members
    Verb("own", Nothing, Nothing, None, LogOwner.own, among_members=True),
    Verb("rotate_key", EncryptedKeys, Nothing, None, LogOwner.rotate_key, repeatable=False, among_members=True),
    Verb("took_keys", TookKeys, Nothing, None, LogOwner.took_keys, among_members=True),
)

VERBS = {verb.name: verb for verb in TABLE}
_DECODERS: dict[str, Callable[[bytes], Any]] = {
    verb.name: msgspec.msgpack.Decoder(verb.request).decode for verb in TABLE
}


def answered(owner: LogOwner, peer: Peer, verb: Verb, body: bytes) -> bytes:
    """The answer to a call, as bytes."""
    return msgspec.msgpack.encode(verb.done(owner, peer, verb.decoded(body)))
