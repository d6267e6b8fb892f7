"""Groups from clients that mean harm: each is refused with a reason, nothing malformed is written, all goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from itertools import count
from random import Random

import pyarrow as pa
import pytest

from holdfast import Log
from holdfast.journal.journal import Run
from holdfast.journal.queue.forwarded import ForwardedProduced, Item
from holdfast.journal.state.operations import ChangeSpace
from holdfast.model.record_columns import EncodedRows
from tests.remote.groups import NOWHERE, outcomes, packed, partition, rows, space, typed, unit
from tests.remote.served import ServedLog

pytestmark = pytest.mark.disk

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])
_sessions = count(1)


class Sender:
    """Sends what it likes."""

    def __init__(self, served: ServedLog) -> None:
        self._connection = HTTPConnection(*served.upstream)

    def send(self, body: bytes, **headers: str) -> tuple[int, dict[str, str], bytes]:
        fields = {"Content-Type": "application/msgpack", "Holdfast-Session": f"{next(_sessions):032x}"}
        fields |= {name.replace("_", "-").title(): value for name, value in headers.items()}
        self._connection.request("POST", "/v1/groups", body, fields)
        answer = self._connection.getresponse()
        content = answer.read()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, content

    def close(self) -> None:
        self._connection.close()

    def refused(self, body: bytes, **headers: str) -> str:
        """Send it, and see it refused; the message."""
        status, _, content = self.send(body, **headers)
        assert 400 <= status < 500, (status, content)
        return str(json.loads(content)["message"])


@pytest.fixture
def sender(served: ServedLog) -> Iterator[Sender]:
    one = Sender(served)
    yield one
    one.close()


def ids(log: Log, topic: str) -> list[int]:
    """The ids of a topic's partitions."""
    log.topic(topic, schema=SCHEMA if "typed" in topic else None)  # type: ignore[call-overload]
    return [part.id for part in log._journal.topics[topic]]


def test_what_does_not_fit_is_refused_alone(remote: Log, sender: Sender, name: str) -> None:
    topic = remote.topic(name, partitions=2)
    remote.topic(f"{name}-typed", schema=SCHEMA)
    (here, _), (there,) = ids(remote, name), ids(remote, f"{name}-typed")
    keyed = Run.unplaced(partition(here))
    keyed.rows, keyed.extras = [(b"x", 1, (None, b"\xff", None), None)], True
    bad: dict[str, Item] = {
        "or there is none": rows(NOWHERE, b"x"),
        "is typed": rows(there, b"x"),
        "holds raw": unit(typed(here, EncodedRows(1, 0, 0, b"", b""))),
        "too large": rows(here, b"x" * (2**20 + 1)),
        "key is empty": rows(here, b"x", keys=[b""]),
        "the key is too large": rows(here, b"x", keys=[b"k" * 5_000]),
        "a key is too large": rows(here)._replace(rows=[(b"x", 1, (b"k" * 5_000, None, None), None)]),
        "a kind is not text": unit(keyed),
        "a kind is text of 1 to 255": rows(here)._replace(rows=[(b"x", 1, (None, b"k" * 256, None), None)]),
        "headers": rows(here)._replace(rows=[(b"x", 1, (None, None, b"\xc1"), None)]),
        "without rows": rows(here),
        "without operations": unit(),
        "no such version": unit(typed(there, EncodedRows(1, 0, 0, b"", b"x" * 32))),
        "space": unit(space("../x", b"k", b"v")),
        "its types are others": unit(space("s", b"k" * 70_000, b"v")),
        "twice": unit(ChangeSpace(b"space/s", ((b"k", 0, b"1"), (b"k", 0, b"2")))),
        "members do not write": unit(ChangeSpace(b"executions", ((b"k", 0, b"1"),))),
        "printable": ForwardedProduced(b"\xff", 1, 1, rows(here, b"x")),
    }
    for at, (words, item) in enumerate(bad.items()):
        status, _, content = sender.send(packed(rows(here, b"good"), item, rows(here, b"good")))
        assert status == 200, (words, content)
        first, refused, last = outcomes(content)
        assert (first.error, last.error) == (None, None), words
        assert refused.error is not None, words
        assert words in refused.error.message, refused.error.message
        assert len(list(topic.read())) == 2 * (at + 1)
        status, _, content = sender.send(packed(item))
        (refused,) = outcomes(content)
        assert refused.error is not None, words
    assert "s" not in remote.spaces()


def test_rows_that_are_no_valid_arrow_are_refused(remote: Log, sender: Sender, name: str, seed: int) -> None:
    random = Random(seed)
    topic = remote.topic(name, schema=SCHEMA)
    sample = [{"id": number, "name": "n" * number} for number in range(20)]
    topic.append(sample)
    (_, encoded), *_ = topic._prepared(sample, None, 0, None).parts
    place = remote._journal.topics[name][0].id
    for _ in range(120):
        body = bytearray(encoded.body)
        for _ in range(random.randrange(1, 4)):
            body[random.randrange(len(body))] = random.randrange(256)
        cut = bytes(body[: random.randrange(len(body))]) if random.random() < 0.3 else bytes(body)
        status, _, content = sender.send(packed(unit(typed(place, EncodedRows(20, 0, 0, cut, encoded.schema)))))
        assert status == 200, content
    table = topic.read().to_arrow()
    table.validate(full=True)
    assert table.column("id").null_count == 0


def test_bytes_that_are_no_group_are_refused(remote: Log, sender: Sender, name: str, seed: int) -> None:
    random, topic = Random(seed), remote.topic(name)
    place = ids(remote, name)[0]
    valid = packed(rows(place, b"a", b"bb"), unit(space("s", b"k", b"v"), alone=True))
    written = 0
    for body in (b"", b"\xc1", b"\x92\x01\x90", valid[:-1], valid + b"x", valid[:16], b"\x91" * 5_000, b"{}"):
        assert sender.refused(body)
    for _ in range(150):
        body = bytearray(valid)
        for _ in range(random.randrange(1, 4)):
            body[random.randrange(len(body))] = random.randrange(256)
        status, _, content = sender.send(bytes(body[: random.randrange(1, len(body) + 1)]))
        assert status in (200, 400, 404), content
        if status == 200:
            written += sum(len(one.runs) for one in outcomes(content) if one.error is None)
    found = sum(1 for _ in topic.read())
    assert bool(found) == bool(written)
    topic.append(b"still here")


def test_sessions_and_numbers_are_checked(remote: Log, sender: Sender, name: str) -> None:
    topic = remote.topic(name)
    once = rows(ids(remote, name)[0], b"once")
    body = packed(once)
    for refused, headers in (
        (body, {"holdfast_session": "zz"}),
        (body, {"holdfast_session": "Z" * 32}),
        (body, {"holdfast_stored": "-1"}),
        (body, {"holdfast_stored": "1e3"}),
        (body, {"holdfast_stored": "7"}),
        (body, {"content_type": "text/plain"}),
        (packed(once, floor=0), {}),
        (packed(once, floor=2), {}),
        (packed(once, sequence=3, floor=1), {}),
        (packed(once, sequence=2**62, floor=1), {}),
    ):
        assert sender.refused(refused, **headers)
    assert list(topic.read()) == []
    session = {"holdfast_session": "ab" * 16}
    first = sender.send(body, **session)
    again = sender.send(body, **session)
    other = sender.send(packed(rows(ids(remote, name)[0], b"something else")), **session)
    assert first[0] == 200
    assert first[2] == again[2] == other[2]
    assert sender.send(packed(once, sequence=2), **session)[0] == 200
    assert sender.send(body, **session)[0] in (409, 504)  # forgotten: never written again
    assert [record.payload for record in topic.read()] == [b"once", b"once"]


def test_a_repeat_is_answered_as_it_was_whatever_it_says_now(remote: Log, sender: Sender, name: str) -> None:
    """What was refused alone, and what was stored: sent again as something else, it is neither written nor changed."""
    remote.topic(name)
    good, bad = rows(ids(remote, name)[0], b"good"), rows(NOWHERE, b"bad")
    session = {"holdfast_session": "cd" * 16}
    first = sender.send(packed(good, bad), **session)
    assert sender.send(packed(bad, bad), **session)[2] == first[2]
    assert len(list(remote.topic(name).read())) == 1
