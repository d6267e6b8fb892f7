"""What clients ask the owner for, beside commits: each call's handler, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast.errors import Invalid
from holdfast.journal.commit.owner_calls import (
    AddSchemaCall,
    CreateTopicCall,
    DoneAnswer,
    ForgetProducersCall,
    ForgottenProducers,
    SetPolicyCall,
)
from holdfast.model.topic_name import MEMBERS_WRITE, check_users
from holdfast.owner.peer import Peer

if TYPE_CHECKING:
    from holdfast.journal.journal import Journal

Asks = TypeVar("Asks", bound=msgspec.Struct)
CallHandler = Callable[[Peer, bytes], bytes]
"""Takes a request as bytes; may block, and raises what the peer is to get."""


def handler(request: type[Asks], handle: Callable[[Peer, Asks], msgspec.Struct]) -> CallHandler:
    """A handler of a call that takes and gives values."""
    decode: Callable[[bytes], Any] = msgspec.msgpack.Decoder(request).decode

    def call(caller: Peer, body: bytes) -> bytes:
        try:
            asked = decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Invalid("a call does not decode", hint="run the same version of holdfast everywhere") from error
        return msgspec.msgpack.encode(handle(caller, asked))

    return call


def journal_handlers(journal: Journal) -> dict[str, CallHandler]:
    """What a journal itself asks of its owner, by the names of the calls."""
    return {
        "create_topic": handler(CreateTopicCall, lambda _, asked: _create_topic(journal, asked)),
        "add_schema": handler(AddSchemaCall, lambda _, asked: _add_schema(journal, asked)),
        "set_policy": handler(SetPolicyCall, lambda _, asked: _set_policy(journal, asked)),
        "forget_producers": handler(ForgetProducersCall, lambda _, asked: _forget_producers(journal, asked)),
    }


def _create_topic(journal: Journal, asked: CreateTopicCall) -> DoneAnswer:
    if asked.name not in MEMBERS_WRITE:  # the others are made where they are written
        check_users(asked.name)
    if asked.name not in journal.topics:
        journal.create_topic(asked.name, asked.partitions, asked.first, asked.fingerprint, asked.definition)
    return DoneAnswer()


def _add_schema(journal: Journal, asked: AddSchemaCall) -> DoneAnswer:
    check_users(asked.topic)
    known = journal.schemas.get(asked.topic, ())
    if any(row.fingerprint == asked.fingerprint for row in known):
        return DoneAnswer()  # it was asked for before, of an owner that is no more
    if not known or asked.version != len(known) + 1:
        raise Invalid("this is not the next version of a typed topic's schema", hint="get the topic again")
    journal.add_schema(asked.topic, asked.version, asked.fingerprint, asked.definition)
    return DoneAnswer()


def _set_policy(journal: Journal, asked: SetPolicyCall) -> DoneAnswer:
    check_users(asked.topic)
    journal.set_policy(asked.topic, asked.bytes_max, asked.age_max_us, asked.records_max)
    return DoneAnswer()


def _forget_producers(journal: Journal, asked: ForgetProducersCall) -> ForgottenProducers:
    return ForgottenProducers(tuple(journal.forget_producers(asked.names)))
