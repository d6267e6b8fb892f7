"""What members of a shared log may ask of its owner, call by call, about users' topics and about holdfast's own.

Members are processes of the same user with the same keys. They ask for what a log of their own would do; what holdfast
keeps for itself they do not write, but for positions of consumers. A call that is not in the table fails.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.errors import HoldfastError
from holdfast.journal.commit.owner_calls import AddSchemaCall, CreateTopicCall, SetPolicyCall
from holdfast.log.consumers.member_messages import AskConsumers, ForgetConsumer, JoinConsumer
from holdfast.owner.call_messages import AskMarks, Compact, RequireFree, SealTopics, SetRetention, Watch
from holdfast.owner.log_owner import LogOwner
from holdfast.owner.peer import Peer
from holdfast.owner.verbs import VERBS, answered

pytestmark = pytest.mark.disk

TOPICS = ("orders", "_consumers", "_executions", "_new")
NONE = (None, None, None)
TABLE: dict[str, tuple[Callable[[str], Any], str]] = {
    # call              request                                                  orders _consumers _executions _new
    "create_topic":    (lambda topic: CreateTopicCall(topic, 1, 0, b"", b""), "fine   fine       Denied      Denied"),
    "add_schema":      (lambda topic: AddSchemaCall(topic, 1, b"f", b"d"), "Invalid Denied    Denied      Denied"),
    "set_policy":      (lambda topic: SetPolicyCall(topic, 0, 0, 9), "fine   Denied     Denied      Denied"),
    "set_retention":   (lambda topic: SetRetention(topic, NONE, (), NONE), "fine   Denied     Denied      Denied"),
    "seal":            (lambda topic: SealTopics((topic,), 9.0), "fine   fine       fine        NotFound"),
    "compact":         (lambda topic: Compact((topic,), 2**20, True), "fine   fine       fine        NotFound"),
    "require_free":    (RequireFree, "fine   fine       fine        fine"),
    "watch":           (lambda topic: Watch((topic,), False), "fine   fine       fine        fine"),
    "marks":           (AskMarks, "fine   fine       fine        fine"),
    "join_consumer":   (lambda topic: JoinConsumer("c", topic, bytes(16), None, 0.0, {}),
                        "fine   Invalid    fine        NotFound"),
    "consumers":       (AskConsumers, "fine   fine       fine        fine"),
    "forget_consumer": (lambda topic: ForgetConsumer("d", topic), "NotFound NotFound   NotFound    NotFound"),
}  # fmt: skip
"""Calls that name a topic. Seal and compact change no record, so they are let through for all."""


def test_every_call_about_every_kind_of_topic(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "log") as log:
        log.topic("orders").consumer("before").close()
        log.executions.start("k")
        owner = LogOwner(log)
        about = {
            name for name, verb in VERBS.items() if {"topic", "topics", "name"} & {*verb.request.__struct_fields__}
        }
        assert about - {"sync_member", "leave_consumer"} == set(TABLE)
        caller = Peer(bytes(16), 1, lambda name, body: None)
        for name, (request, expected) in TABLE.items():
            found = [_answer(owner, name, caller, request(topic)) for topic in TOPICS]
            assert found == expected.split(), name
            if VERBS[name].repeatable:
                assert found == [_answer(owner, name, caller, request(topic)) for topic in TOPICS], name
        caller.end()
        owner.stop()
        assert "_new" not in log.topics()


def _answer(owner: LogOwner, name: str, caller: Peer, request: Any) -> str:
    try:
        answered(owner, caller, VERBS[name], msgspec.msgpack.encode(request))
    except HoldfastError as error:
        kinds = (kind.__name__ for kind in type(error).__mro__ if kind.__module__ == HoldfastError.__module__)
        return next(kinds)
    return "fine"
