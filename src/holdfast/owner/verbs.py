"""The table of verbs: all that others ask the owner of a log for, beside groups and events.

Each verb has a name, what is asked and answered, who may ask it over HTTP and about what, whether it may be asked
twice, and what does it (`verb.py`). The owner of a shared log answers its members through this table, and a server its
clients; both check requests by their types, and peers with rights (`Peer.rights`) by the right that stands here. Rights
are decided nowhere else. Over the socket comes a process of the same user that proved to have the log's keys: it has
all of them; what is among members asks for a process that shares the log. What nobody may ask over HTTP has no right.

A verb may block: the host calls it in a thread of its own. What it raises is raised at the other end.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import astuple, replace

from holdfast.errors import Invalid
from holdfast.execution.work.execution_request import ExecutionAnswer
from holdfast.journal.commit.owner_calls import (
    AddSchemaCall,
    CreateTopicCall,
    ForgetProducersCall,
    ForgottenProducers,
    Nothing,
    SetPolicyCall,
)
from holdfast.log.consumers.member_messages import (
    AskConsumers,
    Assignment,
    ConsumersNow,
    ForgetConsumer,
    JoinConsumer,
    LeaveConsumer,
    SyncMember,
)
from holdfast.log.log_executions import AskExecutions
from holdfast.log.upkeep.published_tables import TableStats
from holdfast.model.topic_name import MEMBERS_WRITE, check_users
from holdfast.owner.execution_actions import check_fields, scope_of
from holdfast.owner.log_owner import EncryptedKeys, LogOwner, TookKeys
from holdfast.owner.mark_events import MARKS, WATCH
from holdfast.owner.peer import Peer, Rights
from holdfast.owner.segment_verbs import SEGMENT_VERBS
from holdfast.owner.store_verbs import STORE_VERBS
from holdfast.owner.verb import ADMIN_LOG, DONE, READ_LOG, About, Asks, Right, Verb, without_paths

EXECUTIONS = "_executions"
"""Stands for executions where rights name topics."""


# -- topics -----------------------------------------------------------------------------------------------


def _create_topic(owner: LogOwner, _: Peer, request: CreateTopicCall) -> Nothing:
    if request.name not in MEMBERS_WRITE:  # the others are made where they are written
        check_users(request.name)
    if request.name not in owner.journal.topics:
        owner.journal.create_topic(*astuple(request))
    return Nothing()


def _add_schema(owner: LogOwner, _: Peer, request: AddSchemaCall) -> Nothing:
    check_users(request.topic)
    known = owner.journal.schemas.get(request.topic, ())
    if any(row.fingerprint == request.fingerprint for row in known):
        return Nothing()  # it was asked for before, of an owner that is no more
    if not known or request.version != len(known) + 1:
        raise Invalid("this is not the next version of a typed topic's schema", hint="ask for the topic again")
    owner.journal.add_schema(request.topic, request.version, request.fingerprint, request.definition)
    return Nothing()


def _set_policy(owner: LogOwner, _: Peer, request: SetPolicyCall) -> Nothing:
    check_users(request.topic)
    owner.journal.set_policy(request.topic, request.bytes_max, request.age_max_us, request.records_max)
    return Nothing()


TOPIC_VERBS = (
    # over HTTP they are made by PUT /v1/topics/{topic}, which proves what a schema says
    Verb("create_topic", CreateTopicCall, Nothing, None, _create_topic),
    Verb("add_schema", AddSchemaCall, Nothing, None, _add_schema),
    Verb("set_policy", SetPolicyCall, Nothing, None, _set_policy),
    WATCH,
    MARKS,
)


# -- published tables -------------------------------------------------------------------------------------


def _table_stats(owner: LogOwner, _: Peer, __: Nothing) -> TableStats:
    return owner.parts.tables.stats()


TABLE_STATS = Verb("table_stats", Nothing, TableStats, READ_LOG, _table_stats)


class TablesProxy:
    """The published tables of a log that another process owns."""

    def __init__(self, owner: Asks, timeout: float) -> None:
        self._owner = owner
        self._timeout = timeout

    def stats(self) -> TableStats:
        """Published tables in the owner's process at this moment."""
        return TABLE_STATS.ask(self._owner, DONE, self._timeout)

    def stop(self) -> None:
        """The owner keeps them."""

    def forget(self) -> None:
        """In a forked child: nothing here is the parent's."""


# -- producers, consumers, executions ---------------------------------------------------------------------


def _forget_producers(owner: LogOwner, _: Peer, request: ForgetProducersCall) -> ForgottenProducers:
    return ForgottenProducers(tuple(owner.journal.forget_producers(request.names)))


def _join_consumer(owner: LogOwner, peer: Peer, request: JoinConsumer) -> Assignment:
    return owner.consumers.join(peer, request)


def _sync_member(owner: LogOwner, peer: Peer, request: SyncMember) -> Assignment:
    return owner.consumers.sync(peer, request)


def _leave_consumer(owner: LogOwner, _: Peer, request: LeaveConsumer) -> Nothing:
    return owner.consumers.leave(request)


def _consumers(owner: LogOwner, _: Peer, request: AskConsumers) -> ConsumersNow:
    return ConsumersNow(tuple(owner.parts.consumers.status(request.topic)))


def _forget_consumer(owner: LogOwner, _: Peer, request: ForgetConsumer) -> Nothing:
    owner.parts.consumers.forget_consumer(request.name, request.topic)
    return Nothing()


def _ask_executions(owner: LogOwner, _: Peer, request: AskExecutions) -> ExecutionAnswer:
    check_fields(request)
    return owner.parts.executions.apply(request.request)


def _anything(_: object) -> tuple[About, ...]:
    """What the token reaches."""
    return ()


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


_CONSUME = Right(("consume",), _consumer, bind=_own_member)
_SEE_OWN = Right((), _anything, show=_own_consumers)
_CHANGE_EXECUTIONS = Right(scope_of, _executions, bind=_own_request, show=without_paths)

PROGRAM_VERBS = (
    Verb("forget_producers", ForgetProducersCall, ForgottenProducers, ADMIN_LOG, _forget_producers, repeatable=False),
    Verb("join_consumer", JoinConsumer, Assignment, _CONSUME, _join_consumer, has_events=True),
    Verb("sync_member", SyncMember, Assignment, _CONSUME, _sync_member, has_events=True),
    Verb("leave_consumer", LeaveConsumer, Nothing, _CONSUME, _leave_consumer, has_events=True),
    Verb("consumers", AskConsumers, ConsumersNow, _SEE_OWN, _consumers),
    Verb("forget_consumer", ForgetConsumer, Nothing, Right(("admin",), _consumer), _forget_consumer, repeatable=False),
    Verb("ask_executions", AskExecutions, ExecutionAnswer, _CHANGE_EXECUTIONS, _ask_executions),
)


# -- among members ----------------------------------------------------------------------------------------


def _make_salt(owner: LogOwner, _: Peer, __: Nothing) -> Nothing:
    """Draw the salt that hides keys of items."""
    owner.parts.hidden_keys.make()
    return DONE


def _own(owner: LogOwner, peer: Peer, _: Nothing) -> Nothing:
    """Leave the log to a member."""
    owner.members.own(peer)
    return DONE


def _rotate_key(owner: LogOwner, peer: Peer, request: EncryptedKeys) -> Nothing:
    return owner.members.rotate(peer, request)


def _took_keys(owner: LogOwner, peer: Peer, request: TookKeys) -> Nothing:
    return owner.members.took(peer, request)


MEMBER_VERBS = (
    Verb("make_salt", Nothing, Nothing, None, _make_salt),
    Verb("own", Nothing, Nothing, None, _own, among_members=True),
    Verb("rotate_key", EncryptedKeys, Nothing, None, _rotate_key, repeatable=False, among_members=True),
    Verb("took_keys", TookKeys, Nothing, None, _took_keys, among_members=True),
)

TABLE: tuple[Verb[Any, Any], ...] = (
    *TOPIC_VERBS,
    *SEGMENT_VERBS,
    TABLE_STATS,
    *STORE_VERBS,
    *PROGRAM_VERBS,
    *MEMBER_VERBS,
)
VERBS = {verb.name: verb for verb in TABLE}
