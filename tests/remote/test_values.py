"""Topics with a codec are the same at every distance: values go in and come out, and payloads are bytes in between."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import Invalid, Log, Record
from holdfast.errors import Undecodable
from holdfast.remote.writing.client_journal import ClientJournal
from tests.remote.served import ServedLog

pytestmark = pytest.mark.disk


@dataclass
class Order:
    id: int
    note: float | None = None


@pytest.fixture(params=["owner", "member", "client"])
def log(request: pytest.FixtureRequest, served: ServedLog, tmp_path: Path) -> Iterator[Log]:
    opened = {
        "owner": lambda: holdfast.open(tmp_path),
        "member": lambda: holdfast.open(served.directory, share=True),
        "client": served.connect,
    }
    with opened[request.param]() as log:
        assert log.is_owner == (request.param == "owner")
        yield log


def numbers(items: Any) -> list[int]:
    return [item.value["id"] for item in items]


def test_values_go_in_and_come_out_by_every_verb(log: Log, name: str) -> None:
    topic = log.topic(name, codec="json")
    first = topic.append({"id": 0}, idempotency_key="k")
    again = topic.append({"id": 0}, idempotency_key="k")
    assert (again, again.repeated) == (first, True)
    topic.submit({"id": 1}).result()
    assert topic.offer({"id": 2})
    topic.flush()
    asyncio.run(topic.append_async({"id": 3}))
    topic.append_batch([{"id": 4}, Record({"id": 5}, key="c-42"), b'{"id": 6}'])  # type: ignore[arg-type]
    asyncio.run(topic.append_batch_async([{"id": 7}]))
    with log.transaction() as tx:
        tx.append(name, {"id": 8}, key="c-42")
        tx.append_batch(topic, [{"id": 9}])
    log.producer(name).append(name, {"id": 10}, sequence=1)
    log.producer(name).append_batch(name, [{"id": 11}], sequence=2)
    every = list(range(12))
    assert numbers(topic.read()) == numbers(log.topic(name).read()) == every  # it is recorded: nobody needs to name it
    assert numbers(islice(topic.follow(0), 12)) == numbers(islice(topic.consumer("c"), 12)) == every
    newest = topic.latest("c-42")
    assert newest is not None
    assert (newest.value, newest.payload) == ({"id": 8}, b'{"id":8}')
    assert topic.read(limit=1).to_arrow()["payload"].to_pylist() == [b'{"id":0}']


def test_a_type_is_its_readers_own(log: Log, name: str) -> None:
    """It is JSON for everybody else; what another type makes of a payload, or a payload is, never hides the payload."""
    topic = log.topic(name, codec=Order)
    topic.append(Order(1))
    topic.append({"id": 2})
    assert log.topic(name, codec=Order) is topic
    assert [record.value for record in topic.read()] == [Order(1), Order(2)]
    plain = log.topic(name, codec="json")
    assert [record.value for record in plain.read()] == [{"id": 1, "note": None}, {"id": 2}]
    plain.append({"id": "three"})
    record = next(topic.read(reverse=True))
    assert record.payload == b'{"id":"three"}'
    with pytest.raises(Undecodable, match=f"JSON of Order topic={name} partition=0 offset=2") as refused:
        record.value  # noqa: B018
    assert (refused.value.topic, refused.value.partition, refused.value.offset) == (name, 0, 2)


@pytest.mark.parametrize("value", [math.nan, {1: 2}, {"a": b"x"}, "\ud800", object(), b"{", msgspec.Raw(b"{")])
def test_what_would_not_come_back_is_refused_before_anything_is_written(log: Log, name: str, value: Any) -> None:
    topic = log.topic(name, codec="json")
    calls = (
        lambda: topic.append(value),
        lambda: topic.offer(value),
        lambda: topic.append_batch([1, value]),
        lambda: asyncio.run(topic.append_async(value)),
        lambda: log.producer(name).append(name, value, sequence=1),
    )
    for call in calls:
        with pytest.raises(Invalid, match="not JSON"):
            call()
    with pytest.raises(Invalid, match="not JSON"), log.transaction() as tx:
        tx.append(name, 1)
        tx.append(name, value)
    assert list(topic.read()) == []


def test_a_codec_is_fixed_when_its_topic_is_created(log: Log, name: str) -> None:
    assert log.topic(name, codec="text").append("ä").offset == 0
    log.topic(f"{name}-bytes").append(b"x")
    assert next(log.topic(name).read()).value == "ä"
    assert next(log.topic(f"{name}-bytes").read()).value == b"x"
    for given, message in (
        ((name, "json"), "holds text, not json"),
        ((name, Order), "holds text, not json"),
        ((f"{name}-bytes", "json"), "holds bytes, not json"),
        ((f"{name}-new", "yaml"), "unknown codec"),
        ((f"{name}-new", bytes), "no types of JSON"),
    ):
        with pytest.raises(Invalid, match=message) as refused:
            log.topic(given[0], codec=given[1])
        assert refused.value.hint
    with pytest.raises(Invalid, match="bytes, not dict") as refused:
        log.topic(f"{name}-bytes").append({"id": 1})  # type: ignore[arg-type]
    assert "codec='json'" in refused.value.hint
    assert f"{name}-new" not in log.topics()


def test_records_that_were_read_can_be_appended(log: Log, name: str) -> None:
    """Also where they are not what the codec says, to a topic of bytes: none is stuck where it is.

    Such bytes come from this machine: what comes over HTTP is looked at there.
    """
    source = log.topic(name, codec="msgpack")
    source.append({"at": b"\x00", 1: math.nan})
    if isinstance(log._journal, ClientJournal):
        for call in (source._bytes.append, lambda payload: source._bytes.append_batch([b"\x01", payload])):
            with pytest.raises(Invalid, match="not MessagePack"):
                call(b"\xc1")
        assert len(list(source.read())) == 1
        return
    source._bytes.append(b"\xc1")
    good, bad = source.read()
    assert good.value["at"] == b"\x00"
    assert log.topic(f"{name}-copy", codec="msgpack").append_batch([good])
    assert log.topic(f"{name}-dead").append_batch([bad])
    with pytest.raises(Invalid, match="not MessagePack"):
        source.append_batch([bad])
