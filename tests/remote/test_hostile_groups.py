"""Groups from clients that mean harm: each is refused with a reason, nothing malformed is written, all goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from itertools import count
from random import Random

import msgspec
import pyarrow as pa
import pytest

from holdfast import Log
from holdfast.model import frame
from holdfast.model.record_columns import Columns
from holdfast.remote.wire.group_message import (
    GroupMessage,
    Item,
    RecordsRun,
    RowsRun,
    SpaceChange,
    Unit,
    decode_outcome,
    encode_group,
)
from tests.remote.cutting_proxy import CuttingProxy
from tests.remote.served import ServedLog

pytestmark = pytest.mark.disk

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])
_sessions = count(1)


class Sender:
    """Sends what it likes."""

    def __init__(self, served: ServedLog) -> None:
        self._connection = HTTPConnection(*served.upstream)

    def send(self, body: bytes, **headers: str) -> tuple[int, dict[str, str], bytes]:
        fields = {
            "Content-Type": "application/msgpack",
            "Holdfast-Session": f"{next(_sessions):032x}",
            "Holdfast-Sequence": "1",
            "Holdfast-Floor": "1",
        }
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


def records(*payloads: bytes, topic: str, partition: int = 0, **more: object) -> RecordsRun:
    return RecordsRun(topic, partition, frame.encode(Columns(list(payloads), [1] * len(payloads))), **more)  # type: ignore[arg-type]


def group(*items: Item) -> bytes:
    return encode_group(items)


def test_what_does_not_fit_is_refused_with_its_number_and_takes_everything_with_it(
    remote: Log, sender: Sender, name: str
) -> None:
    topic = remote.topic(name, partitions=2)
    remote.topic(f"{name}-typed", schema=SCHEMA)
    good = records(b"good", topic=name)
    extra = Columns([b"x"], [1], {0: (b"k" * 5_000, None, None)})
    bad: dict[str, Item] = {
        "there is no topic": records(b"x", topic="not-there"),
        "names": records(b"x", topic="../etc"),
        "has no partition": records(b"x", topic=name, partition=2),
        "has no partition -1": records(b"x", topic=name, partition=-1),
        "is typed": records(b"x", topic=f"{name}-typed"),
        "holds raw": Unit([RowsRun(name, 0, b"", b"")], True),
        "too large": records(b"x" * (2**20 + 1), topic=name),
        "malformed": RecordsRun(name, 0, frame.encode(Columns([b"x"], [1]))[:-1]),
        "1 to": RecordsRun(name, 0, frame.HEAD.pack(1, 0, 0, 0)),
        "key is empty": records(b"x", topic=name, keys=[b""]),
        "the key is too large": records(b"x", topic=name, keys=[b"k" * 5_000]),
        "holdfast alone": records(b"x", topic="_consumers"),
        "a key or none": records(b"x", topic=name, keys=[None, None]),
        "key is too large": RecordsRun(name, 0, frame.encode(extra)),
        "kind or headers": RecordsRun(name, 0, frame.encode(Columns([b"x"], [1], {0: (None, b"\xff", None)}))),
        "or headers are": RecordsRun(name, 0, frame.encode(Columns([b"x"], [1], {0: (None, None, b"\xc1")}))),
        "unit is empty": Unit([], True),
        "no such version": Unit([RowsRun(f"{name}-typed", 0, b"", b"x" * 32)], True),
        "space": Unit([SpaceChange("../x", [(b"k", b"v")], [])], False),
        "a key is up to": Unit([SpaceChange("s", [(b"k" * 70_000, b"v")], [])], False),
        "twice": Unit([SpaceChange("s", [(b"k", b"1"), (b"k", b"2")], [])], False),
    }
    for words, item in bad.items():
        status, headers, content = sender.send(group(good, item, good))
        message = json.loads(content)["message"]
        assert (400 <= status < 500, headers.get("holdfast-item")) == (True, "1"), (words, message)
        assert words.split(" -")[0] in message or words in ("names", "space"), message
    assert list(topic.read()) == []
    assert topic.append(b"still here").offset == 0


def test_rows_that_are_no_valid_arrow_are_refused(
    served: ServedLog, sender: Sender, proxy: CuttingProxy, name: str, seed: int
) -> None:
    random = Random(seed)
    with served.connect(proxy.url) as log:
        topic = log.topic(name, schema=SCHEMA)
        topic.append([{"id": number, "name": "n" * number} for number in range(20)])
        sent = next(seen.body for seen in proxy.seen if seen.path == "/v1/groups")
        unit = msgspec.msgpack.decode(sent, type=GroupMessage).items[0]
        assert isinstance(unit, Unit)
        run = unit.operations[0]
        assert isinstance(run, RowsRun)
        for _ in range(120):
            body = bytearray(run.body)
            for _ in range(random.randrange(1, 4)):
                body[random.randrange(len(body))] = random.randrange(256)
            cut = bytes(body[: random.randrange(len(body))]) if random.random() < 0.3 else bytes(body)
            status, _, content = sender.send(group(Unit([msgspec.structs.replace(run, body=cut)], True)))
            assert status in (200, 400), content
        table = topic.read().to_arrow()
        table.validate(full=True)
        assert table.column("id").null_count == 0


def test_bytes_that_are_no_group_are_refused(remote: Log, sender: Sender, name: str, seed: int) -> None:
    random, topic = Random(seed), remote.topic(name)
    valid = group(records(b"a", b"bb", topic=name), Unit([records(b"c", topic=name)], True))
    written = 0
    for body in (b"", b"\xc1", b"\x92\x01\x90", b"\x92\x02\x90", b"\xdd\xff\xff\xff\xff", b"\x91" * 5_000, b"{}"):
        assert sender.refused(body)
    for _ in range(150):
        body = bytearray(valid)
        for _ in range(random.randrange(1, 4)):
            body[random.randrange(len(body))] = random.randrange(256)
        status, _, content = sender.send(bytes(body[: random.randrange(1, len(body) + 1)]))
        assert status in (200, 400, 404), content
        if status == 200:
            written += sum(item.error is None for item in decode_outcome(content).items)
    found = sum(1 for _ in topic.read())
    assert bool(found) == bool(written)
    topic.append(b"still here")


def test_sessions_and_numbers_are_checked(remote: Log, sender: Sender, name: str) -> None:
    topic = remote.topic(name)
    body = group(records(b"once", topic=name))
    for headers in (
        {"holdfast_session": "zz"},
        {"holdfast_session": "Z" * 32},
        {"holdfast_sequence": "-1"},
        {"holdfast_sequence": "1e3"},
        {"holdfast_sequence": "9" * 30},
        {"holdfast_floor": "0"},
        {"holdfast_floor": "2"},
        {"content_type": "text/plain"},
        {"holdfast_sequence": "3"},
    ):
        assert sender.refused(body, **headers)
    assert list(topic.read()) == []
    session = {"holdfast_session": "ab" * 16}
    first = sender.send(body, **session)
    again = sender.send(body, **session)
    other = sender.send(group(records(b"something else", topic=name)), **session)
    assert first[0] == 200
    assert first[2] == again[2] == other[2]
    assert sender.send(body, **session, holdfast_sequence="2", holdfast_floor="2")[0] == 200
    assert sender.send(body, **session)[0] in (409, 504)  # forgotten: never written again
    assert [record.payload for record in topic.read()] == [b"once", b"once"]
