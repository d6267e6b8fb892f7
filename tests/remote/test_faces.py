"""A client has the face of a log: the same names, the same arguments; what it has not is in one list, with reasons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from holdfast import Invalid, Log
from holdfast.execution.work.executions import Executions
from holdfast.log.topics.following import Follower
from holdfast.log.topics.watching import Watch
from holdfast.remote.refused_verbs import REFUSED, REFUSED_EXECUTIONS
from tests.remote.served import ServedLog

pytestmark = pytest.mark.disk


def test_what_is_missing_says_so_and_where_to_do_it(remote: Log) -> None:
    calls: dict[str, tuple[Any, ...]] = {
        "channels": ("p",),
        "kept_channel": ("p", "c"),
        "execution": ("k",),
        "worker": ([],),
        "rotate_key": (None,),
    }
    for verb in REFUSED:
        with pytest.raises(Invalid, match=f"{verb} does not work over HTTP") as caught:
            value = getattr(remote, verb)
            value(*calls.get(verb, ()))
        assert caught.value.hint == REFUSED[verb]
    some: dict[str, tuple[Any, ...]] = {"schedule": ("n", "@hourly", "k"), "unschedule": ("n",)}
    keywords: dict[str, dict[str, Any]] = {
        "prune": {"dry_run": True},
        "settle_encoded": {"execution": "x", "path": "p", "payload": b"", "is_error": False},
        "start_encoded": dict.fromkeys(("id", "kind", "queue", "input", "priority", "due_us")),
    }
    for verb in REFUSED_EXECUTIONS:
        with pytest.raises(Invalid, match=f"{verb} does not work over HTTP"):
            getattr(remote.executions, verb)(*some.get(verb, ()), **keywords.get(verb, {}))


def test_a_log_is_one_class_at_every_distance(remote: Log, name: str, tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64())])
    with holdfast.open(tmp_path) as here, holdfast.open(tmp_path / "shared", share=True) as shared:
        for log in (here, shared, remote):
            assert type(log) is Log
            assert type(log.executions) is Executions
            assert type(log.topic(name)) is holdfast.Topic
            assert type(log.topic(name + "-rows", schema=schema)) is holdfast.TypedTopic
            assert type(log.topic(name).follow()) is Follower
            assert type(log.topic(name).watch()) is Watch
        assert repr(remote) == f"Log({remote.url!r}, open)"
        assert repr(here) == f"Log({str(tmp_path)!r}, open)"
        with pytest.raises(Invalid, match="no address"):
            here.url  # noqa: B018


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
