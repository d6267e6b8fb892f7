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
from holdfast.owner.log_owner import LogOwner
from holdfast.owner.mark_events import AskMarks, WatchMarks
from holdfast.owner.peer import Peer
from holdfast.owner.segment_verbs import Compact, SealTopics, SetRetention
from holdfast.owner.store_verbs import RequireFree
from holdfast.owner.verbs import VERBS

pytestmark = pytest.mark.disk

TOPICS = ("orders", "_consumers", "_tokens", "_executions", "_new")
NONE = (None, None, None)
TABLE: dict[str, tuple[str, Callable[[str], Any]]] = {
    # call              orders   _cons…   _tokens  _exec…   _new
    "create_topic":    ("fine     fine     fine     Denied   Denied", lambda t: CreateTopicCall(t, 1, 0, b"", b"")),
    "add_schema":      ("Invalid  Denied   Denied   Denied   Denied", lambda t: AddSchemaCall(t, 1, b"f", b"d")),
    "set_policy":      ("fine     Denied   Denied   Denied   Denied", lambda t: SetPolicyCall(t, 0, 0, 9)),
    "set_retention":   ("fine     Denied   Denied   Denied   Denied", lambda t: SetRetention(t, NONE, (), NONE)),
    "seal":            ("fine     fine     fine     fine     NotFound", lambda t: SealTopics((t,), 9.0)),
    "compact":         ("fine     fine     fine     fine     NotFound", lambda t: Compact((t,), 2**20, True)),
    "require_free":    ("fine     fine     fine     fine     fine", RequireFree),
    "watch":           ("fine     fine     fine     fine     fine", lambda t: WatchMarks((t,), False)),
    "marks":           ("fine     fine     fine     fine     fine", AskMarks),
    "join_consumer":   ("fine     Invalid  fine     fine     NotFound",
                        lambda t: JoinConsumer("c", t, bytes(16), None, 0.0, {})),
    "consumers":       ("fine     fine     fine     fine     fine", AskConsumers),
    "forget_consumer": ("NotFound NotFound NotFound NotFound NotFound", lambda t: ForgetConsumer("d", t)),
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
        for name, (expected, request) in TABLE.items():
            found = [_answer(owner, name, caller, request(topic)) for topic in TOPICS]
            assert found == expected.split(), name
            if VERBS[name].repeatable:
                assert found == [_answer(owner, name, caller, request(topic)) for topic in TOPICS], name
        caller.end()
        owner.stop()
        assert "_new" not in log.topics()


def _answer(owner: LogOwner, name: str, caller: Peer, request: Any) -> str:
    try:
        VERBS[name].answered(owner, caller, msgspec.msgpack.encode(request))
    except HoldfastError as error:
        kinds = (kind.__name__ for kind in type(error).__mro__ if kind.__module__ == HoldfastError.__module__)
        return next(kinds)
    return "fine"
