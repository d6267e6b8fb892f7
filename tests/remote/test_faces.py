"""A client has the face of a log: the same names, the same arguments; what it has not is in one list, with reasons."""

from __future__ import annotations

import inspect
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from holdfast import Invalid, Log, Topic, TypedTopic
from holdfast.execution.work.executions import Executions
from holdfast.log.topics.following import Follower
from holdfast.log.topics.watching import Watch
from holdfast.remote.reading.remote_following import RemoteFollower, RemoteWatch
from holdfast.remote.reading.remote_topic import RemoteTopic, RemoteTypedTopic
from holdfast.remote.refused_verbs import REFUSED, REFUSED_EXECUTIONS
from holdfast.remote.remote_executions import RemoteExecutions
from holdfast.remote.remote_log import RemoteLog
from tests.remote.served import ServedLog

pytestmark = pytest.mark.disk

PAIRS: list[tuple[type, type]] = [
    (Log, RemoteLog),
    (Topic, RemoteTopic),
    (TypedTopic, RemoteTypedTopic),
    (Executions, RemoteExecutions),
    (Follower, RemoteFollower),
    (Watch, RemoteWatch),
]
INTERNAL = {"begin_again", "consumed_at", "is_dead", "is_idle", "take", "lose", "open_consumer"}
"""What members of one process ask each other, and what sharing asks of a log; nobody else calls them."""


def public(kind: type) -> dict[str, Any]:
    found = {name: inspect.getattr_static(kind, name) for name in dir(kind) if not name.startswith("_")}
    return {name: value for name, value in found.items() if name not in INTERNAL}


def arguments(value: Any) -> list[tuple[str, Any, Any]]:
    return [(one.name, one.kind, one.default) for one in inspect.signature(value).parameters.values()]


@pytest.mark.parametrize(("local", "remote"), PAIRS, ids=lambda kind: kind.__name__)
def test_every_verb_takes_the_same_arguments(local: type, remote: type) -> None:
    for name, value in public(local).items():
        ours = inspect.getattr_static(remote, name, None)
        assert ours is not None, f"{remote.__name__} lacks {name}"
        assert isinstance(value, property) == isinstance(ours, property) or name == "partitions", name
        if callable(value):
            assert arguments(ours) == arguments(value), name
            assert inspect.iscoroutinefunction(ours) == inspect.iscoroutinefunction(value), name


def test_verbs_that_work_on_parts_of_an_open_log_are_all_replaced() -> None:
    inherited = [name for name, value in public(Log).items() if inspect.getattr_static(RemoteLog, name) is value]
    assert inherited == ["close_async", "flush_async", "seal_async", "ship_async"]  # these only call other verbs
    inherited = {
        name for name, value in public(Executions).items() if inspect.getattr_static(RemoteExecutions, name) is value
    }
    assert inherited == {"start", "cancel", "resume", "fork", "rewind", "settle", "resolve", "reject", "signal"}


def test_what_is_missing_says_so_and_where_to_do_it(remote: RemoteLog) -> None:
    calls: dict[str, tuple[Any, ...]] = {
        "channels": ("p",),
        "kept_channel": ("p", "c"),
        "execution": ("k",),
        "worker": ([],),
        "rotate_key": (None,),
    }
    for verb in REFUSED:
        with pytest.raises(Invalid, match=f"{verb} does not work over HTTP") as told:
            value = getattr(remote, verb)
            value(*calls.get(verb, ()))
        assert told.value.hint == REFUSED[verb]
    some: dict[str, tuple[Any, ...]] = {"schedule": ("n", "@hourly", "k"), "unschedule": ("n",)}
    keywords: dict[str, dict[str, Any]] = {
        "prune": {"dry_run": True},
        "settle_encoded": {"execution": "x", "path": "p", "payload": b"", "is_error": False},
        "start_encoded": dict.fromkeys(("id", "kind", "queue", "input", "priority", "due_us")),
    }
    for verb in REFUSED_EXECUTIONS:
        with pytest.raises(Invalid, match=f"{verb} does not work over HTTP"):
            getattr(remote.executions, verb)(*some.get(verb, ()), **keywords.get(verb, {}))


def test_a_client_is_a_log_for_type_checkers_and_isinstance(remote: RemoteLog, name: str) -> None:
    assert isinstance(remote, holdfast.Log)
    assert isinstance(remote.topic(name), holdfast.Topic)


def test_what_a_client_gives_keeps_it_connected(served: ServedLog, name: str) -> None:
    """Each verb works on a client that nobody holds; it ends, without the collector, when what it gave is gone."""

    def change() -> None:
        with served.connect().transaction() as tx:
            tx.append(name, b"x")

    def put() -> None:
        space = served.connect().space(name)
        space.put(b"k", b"v")

    def consume() -> None:
        with served.connect().topic(name).consumer(name) as consumer:
            assert consumer.poll(1)

    def append_typed() -> None:
        rows = served.connect().topic(name + "-rows", schema=pa.schema([("n", pa.int64())]))
        rows.append({"n": 1})
        assert rows.read().to_arrow().num_rows == 1

    for verb in (
        change,
        put,
        consume,
        append_typed,
        lambda: served.connect().topic(name).append(b"x"),
        lambda: list(served.connect().topic(name).read()),
        lambda: served.connect().executions.list(),
        lambda: served.connect().producer(name).append(name, b"x", sequence=1),
    ):
        with pytest.warns(ResourceWarning, match="unclosed connection"):
            verb()
