"""What members of a shared log may ask of its owner, call by call, about users' topics and about holdfast's own.

Members are processes of the same user with the same keys. They ask for what a log of their own would do; what holdfast
keeps for itself they do not write, but for positions of consumers. A call that is not in the table fails.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.errors import HoldfastError
from holdfast.journal.commit.owner_calls import AddSchemaCall, CreateTopicCall, SetPolicyCall
from holdfast.log.consumers.member_messages import AskConsumers, ForgetConsumer, JoinConsumer
from holdfast.owner.call_handlers import journal_handlers
from holdfast.owner.call_messages import AskMarks, Compact, RequireFree, SealTopics, SetRetention, Watch
from holdfast.owner.peer import Peer
from holdfast.sharing.shared_log import answer_members

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

WITHOUT_TOPIC = {
    "ask_executions", "forget_producers", "last_reconcile", "leave_consumer", "make_salt", "own", "rebuild_store",
    "reconcile", "retain", "rotate_key", "segment_stats", "ship", "shipping_stats", "subscribe", "sync_member",
    "table_stats", "took_keys", "unshipped",
}  # fmt: skip


def test_every_call_about_every_kind_of_topic(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "log") as log:
        log.topic("orders").consumer("before").close()
        log.executions.start("k")
        host: Any = SimpleNamespace(calls={}, publish=None, guard=None)
        host.calls.update(journal_handlers(log._journal))
        stop = answer_members(host, log, lambda: None, lambda: b"")
        assert set(host.calls) == set(TABLE) | WITHOUT_TOPIC
        caller = Peer(bytes(16), 1, lambda name, body: None)
        for name, (request, expected) in TABLE.items():
            found = [_answer(host.calls[name], caller, request(topic)) for topic in TOPICS]
            assert found == expected.split(), name
        caller.end()
        stop()
        assert "_new" not in log.topics()


def _answer(call: Callable[[Peer, bytes], bytes], caller: Peer, request: Any) -> str:
    try:
        call(caller, msgspec.msgpack.encode(request))
    except HoldfastError as error:
        kinds = (kind.__name__ for kind in type(error).__mro__ if kind.__module__ == HoldfastError.__module__)
        return next(kinds)
    return "fine"
