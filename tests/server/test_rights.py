"""Who may do what over HTTP: the whole table, and what a table of answers does not show."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from http.client import HTTPConnection
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest

import holdfast
from holdfast import Log
from holdfast.clock import SystemClock
from holdfast.errors import Denied
from holdfast.journal.commit.owner_calls import Nothing
from holdfast.journal.queue.forwarded import ForwardedUnit
from holdfast.journal.sessions.outcomes import Outcomes
from holdfast.journal.state.operations import ChangeSpace
from holdfast.log.consumers.member_messages import Assignment, JoinConsumer, LeaveConsumer, SyncMember, scope_of
from holdfast.log.consumers.stored_positions import StoredPosition, position_items
from holdfast.log.topics.topic import Topic
from holdfast.log.upkeep.maintenance import Maintenance
from holdfast.owner.mark_events import WatchMarks
from holdfast.remote.http.server_link import ServerLink
from holdfast.server.audit import Audit
from holdfast.server.request_caller import Caller
from holdfast.server.route_table import ROUTES
from holdfast.server.routes import reading_records, space_routes
from holdfast.server.serving import HttpServer
from holdfast.server.tokens import make
from tests.remote import groups
from tests.server.rights_matrix import TABLE, matrix, running, tokens_for

pytestmark = pytest.mark.disk

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
GIVEN = (
    ("all", ("admin", "audit"), ("*", "_*")),
    ("star", ("admin",), ("*",)),
    ("web", ("append", "read"), ("orders",)),
    ("shop", ("append", "read", "produce:device-*", "consume:billing"), ("orders",)),
    ("looker", ("read",), ("*", "_executions")),
    ("boss", ("admin",), ("orders",)),
    ("eater", ("consume:billing",), ("orders",)),
)


class Client:
    """One connection with a token."""

    def __init__(self, server: HttpServer, token: str) -> None:
        self.server = server
        self.token = token
        self.connection = HTTPConnection("127.0.0.1", server.address.port, timeout=30)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None and not isinstance(body, bytes):
            body, sent["content-type"] = json.dumps(body), "application/json"
        self.connection.request(method, path, body, {"authorization": f"Bearer {self.token}", **sent})
        answer = self.connection.getresponse()
        return answer.status, answer.read()

    def group(self, *items: Any, session: str = "a" * 32, sequence: int = 1) -> tuple[int, bytes]:
        return self.ask(
            "POST",
            "/v1/groups",
            groups.packed(*items, sequence=sequence, floor=1),
            content_type="application/msgpack",
            holdfast_session=session,
        )


class Place:
    """A served log, and a client for each token."""

    def __init__(self, log: Log, server: HttpServer, tokens: dict[str, str]) -> None:
        self.log = log
        self.server = server
        self._tokens = tokens
        self._clients: list[Client] = []

    def client(self, name: str) -> Client:
        self._clients.append(Client(self.server, self._tokens[name]))
        return self._clients[-1]

    def records(self, topic: str, *payloads: bytes, keys: list[bytes | None] | None = None) -> Any:
        return groups.rows(self.log._journal.topics[topic][0].id, *payloads, keys=keys)

    def close(self) -> None:
        for client in self._clients:
            client.connection.close()

    def connect(self, name: str) -> Any:
        return holdfast.connect(self.server.url, token=lambda: self._tokens[name])


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    yield from _placed(tmp_path)


def _placed(directory: Path, settings: dict[str, Any] | None = None, **limits: Any) -> Iterator[Place]:
    with holdfast.open(directory / "log", settings=settings or {}) as log:
        for name in ("orders", "secret"):
            log.topic(name)
        tokens = tokens_for(log, *GIVEN)
        with running(log, **limits) as server:
            place = Place(log, server, tokens)
            yield place
            place.close()


@pytest.mark.core
def test_every_route_with_every_right_about_every_kind_of_topic(tmp_path: Path) -> None:
    """A route that is not in the table, or is answered otherwise, shows as a difference."""
    found, expected = matrix(tmp_path).split("\n"), TABLE.read_text().split("\n")
    assert found == expected, "read what differs; then: python -m tests.server.rights_matrix"


# -- idempotency ------------------------------------------------------------------------------------------


def test_a_key_of_one_topic_is_none_of_another(place: Place) -> None:
    """What a client says under a key in `orders` cannot make an append to `secret` known, whatever bytes it sends."""
    secret, orders = place.log.topic("secret"), place.log.topic("orders")
    _, victim = secret._checks.unique_record(b"pay-1", b"42 EUR", None)
    status, _ = place.client("web").group(place.records("orders", b"42 EUR", keys=[victim[:32]]))
    assert status == 200
    assert place.client("web").group(place.records("orders", b"42 EUR", keys=[b"pay-1"]), sequence=2)[0] == 200
    assert secret.append(b"42 EUR", idempotency_key=b"pay-1").repeated is False
    assert [record.payload for record in secret.read()] == [b"42 EUR"]
    assert orders.append(b"42 EUR", idempotency_key=b"pay-1").repeated is True


def test_a_key_is_one_key_at_every_door(place: Place) -> None:
    """Embedded, JSON, a client of `connect`, a transaction: a repeat at any of them is a repeat."""
    orders, client = place.log.topic("orders"), place.client("all")
    assert orders.append(b"x", idempotency_key="once").repeated is False
    answer = client.ask("POST", "/v1/topics/orders/records", {"payload": "x"}, idempotency_key="once")
    assert json.loads(answer[1])["repeated"] is True
    with place.connect("all") as log:
        assert log.topic("orders").append(b"x", idempotency_key="once").repeated is True
        with log.transaction() as tx:
            pending = tx.append("orders", b"x", idempotency_key="once")
        assert pending.receipt.repeated is True
    assert len(list(orders.read())) == 1


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_batch_of_rows_is_one_batch_at_every_door(place: Place, partitions: int) -> None:
    topic = place.log.topic("rows", schema=SCHEMA, key="name", partitions=partitions)
    rows = [{"id": number, "name": f"n{number}" if number % 3 else None} for number in range(9)]
    with place.connect("all") as log:
        remote = log.topic("rows", schema="latest")
        first = remote.append(rows, idempotency_key="b-1")
        assert not any(receipt.repeated for receipt in first)
        with pytest.raises(holdfast.Invalid, match="already in use for other content"):
            remote.append(rows[:8], idempotency_key="b-1")
        with log.transaction() as tx:
            tx.append(remote, rows, idempotency_key="b-1")
            other = tx.append(remote, rows, idempotency_key="b-2")
        assert not any(receipt.repeated for receipt in other.receipts)
    again = topic.append(rows, idempotency_key="b-1")
    assert [one.offset for one in again] == [one.offset for one in first]
    assert all(receipt.repeated for receipt in again)


def test_what_a_key_stands_for_is_what_the_server_sees(place: Place) -> None:
    """Parts that claim to be of one batch, or of another one, cannot make different rows a repeat."""
    place.log.topic("orders2", schema=SCHEMA, partitions=2)
    with place.connect("all") as log:
        topic = log.topic("orders2", schema="latest")
        encoded = topic._prepared([{"id": 1, "name": "a"}], None, 0, None).parts[0][1]
        other = topic._prepared([{"id": 2, "name": "b"}], None, 1, None).parts[0][1]
    ids, batch = [part.id for part in place.log._journal.topics["orders2"]], b"any"
    one, two = groups.typed(ids[0], encoded, b"k", batch), groups.typed(ids[1], other, b"k", batch)
    client = place.client("all")
    assert _outcome(client.group(groups.unit(one, two)))[0].error is None
    alone = _outcome(client.group(groups.unit(one), sequence=2))[0].error
    assert alone is not None
    assert "other content" in alone.message


def _outcome(answer: tuple[int, bytes]) -> Outcomes:
    assert answer[0] == 200, answer
    return groups.outcomes(answer[1])


def test_a_session_belongs_to_the_token_that_chose_it(place: Place) -> None:
    """Somebody else's session and number give no answer of theirs, and make nothing of theirs known."""
    assert place.client("all").group(place.records("secret", b"mine"))[0] == 200
    outcome = _outcome(place.client("web").group(place.records("orders", b"other")))
    assert outcome[0].runs[0].partition_id == place.log._journal.topics["orders"][0].id
    assert [record.payload for record in place.log.topic("orders").read()] == [b"other"]


# -- holdfast's own topics --------------------------------------------------------------------------------


def test_holdfast_alone_writes_its_own_topics(place: Place) -> None:
    """Embedded, in a transaction, by a producer, over HTTP: neither those that are there nor new ones."""
    log = place.log
    log.executions.start("k")
    for name in ("_executions", "_new"):
        with pytest.raises(Denied), log.transaction() as tx:
            tx.append(name, b"x")
        with pytest.raises(Denied):
            log.producer("p").append(name, b"x", sequence=1)
        with pytest.raises(Denied):
            log.channels("p", topic=name)
        status, _ = place.client("all").ask("POST", f"/v1/topics/{name}/records", {"payload": "x"})
        assert status == 403
    own = log.topic("_executions")
    before = [record.payload for record in own.read()]
    for append in (
        own.append,
        own.submit,
        own.offer,
        lambda payload: own.append_batch([payload]),
        lambda payload: asyncio.run(own.append_async(payload)),
    ):
        with pytest.raises(Denied, match="holdfast alone"):
            append(b"forged")
    with place.connect("all") as remote:
        topic = remote.topic("_executions")
        for append in (topic.append, topic.offer):
            with pytest.raises(Denied, match="holdfast alone"):
                append(b"forged")
        with pytest.raises(Denied), remote.transaction() as tx:
            tx.append("_executions", b"forged")
        with pytest.raises(Denied):
            remote.topic("_new")
    assert [record.payload for record in own.read()] == before
    assert "_new" not in log.topics()


def test_arguments_of_executions_take_the_right_that_reveal_takes(place: Place) -> None:
    """At every way to read the topic: pages, Arrow, lines, one record, a key, following, members, `connect`."""
    place.log.executions.start("k", "a secret argument")
    client = place.client("looker")
    assert client.ask("GET", "/v1/executions")[0] == 200
    base = "/v1/topics/_executions"
    for path in ("/records", "/records/0/0", "/latest?key=k", "/follow", "", "/marks"):
        for form in ("application/json", "application/vnd.apache.arrow.stream", "application/x-ndjson"):
            assert client.ask("GET", base + path, accept=form)[0] == 403, path
    assert client.ask("POST", f"{base}/consumers/billing/members", {})[0] == 403
    assert "_executions" not in client.ask("GET", "/v1/topics")[1].decode()
    with place.connect("looker") as log, pytest.raises(Denied):
        log.topic("_executions")
    assert place.client("all").ask("GET", base + "/records")[0] == 200


# -- names ------------------------------------------------------------------------------------------------


def test_a_name_is_used_by_those_to_whom_it_belongs(place: Place) -> None:
    """A producer's name: the token of that name, or one with a scope for it. A consumer's: a scope for it."""
    path = "/v1/topics/orders/records"
    for token, name, expected in (
        ("shop", "device-7", 200),
        ("web", "device-7", 403),
        ("web", "web", 200),
        ("shop", "web", 403),
        ("boss", "web", 200),
    ):
        sequence = "2" if token == "boss" else "1"
        client = place.client(token)
        status, _ = client.ask("POST", path, {"payload": "x"}, holdfast_producer=name, holdfast_sequence=sequence)
        assert status == expected, (token, name)
        if expected == 403:
            assert client.ask("GET", f"/v1/producers/{name}")[0] == 403
    for token, name, expected in (("shop", "billing", 201), ("shop", "other", 403), ("web", "billing", 403)):
        assert place.client(token).ask("POST", f"/v1/topics/orders/consumers/{name}/members", {})[0] == expected


def test_what_a_token_does_not_reach_is_not_named(place: Place) -> None:
    """Not in lists, not in hints for a name that was mistyped, not in errors."""
    place.log.topic("secret").append(b"x")
    place.log.topic("orderly")
    place.log.topic("secret").consumer("hidden").close()
    with place.log.transaction() as tx:
        tx.consumed(consumer := place.log.topic("secret").consumer("hidden"))
    consumer.close()
    client = place.client("boss")
    for method, path, body in (
        ("GET", "/v1/topics", None),
        ("GET", "/v1/consumers", None),
        ("GET", "/v1/consumers?topic=secret", None),
        ("GET", "/v1/topics/secret", None),
        ("GET", "/v1", None),
        ("GET", "/v1/stats", None),
        ("GET", "/metrics", None),
        ("POST", "/v1/seal", {"topic": "secre"}),
        ("POST", "/v1/compact", {"topic": "orders", "dry_run": True}),
        ("PUT", "/v1/topics/orders", {"partitions": 7}),
        ("GET", "/v1/topics/orders/consumers/nobody", None),
        ("DELETE", "/v1/topics/orders/consumers/nobody", None),
        ("GET", "/readyz", None),
    ):
        _, content = client.ask(method, path, body)
        asked = path.encode().replace(b"/v1/topics/", b"") if "secret" in path else b""
        shown = content.replace(b"'secret'", b"") if asked else content
        for name in (b"secret", b"hidden", b"orderly", str(place.log.path).encode()):
            assert name not in shown, (path, content)
    wide = place.client("star")
    assert b"orderly" in wide.ask("GET", "/v1/topics/orderl/records")[1]  # one that may see it is helped


def test_no_path_of_this_machine_is_shown() -> None:
    from holdfast.errors import Corrupt
    from holdfast.server.http_errors import body_of

    error = Corrupt("the tokens are damaged", path="/home/a b/log/TOKENS", hint="chmod 600 /home/a b/log/TOKENS")
    reported = body_of(error, "1")
    assert "/home" not in reported.message + reported.hint
    hint = body_of(holdfast.Invalid("x", hint="PUT /v1/topics/NAME, or see /docs"), "1").hint
    assert hint == "PUT /v1/topics/NAME, or see /docs"


def test_no_answer_names_a_path_of_this_machine(tmp_path: Path) -> None:
    """Not where the error of an item, of an execution or of the last attempt stands in an answer that is fine."""
    settings = {"store": {"url": (tmp_path / "root").as_uri()}, "disk": {"free_bytes_min": "1000TiB"}}
    for place in _placed(tmp_path, settings):
        shutil.rmtree(tmp_path / "log" / "segments", ignore_errors=True)
        started = {
            "id": str(UUID(int=1)),
            "kind": "k",
            "queue": "q",
            "priority": 0,
            "due_us": 0,
            "input": b"\x92\x90\x80",
        }
        asked = msgspec.msgpack.encode([bytes(16), "start", started])
        every = place.client("all")
        reported = [
            every.group(place.records("orders", b"x")),
            every.ask("POST", "/v1/client/executions", asked, content_type="application/msgpack"),
            *(every.ask("POST", f"/v1/{verb}", {}) for verb in ("compact", "reconcile", "seal")),
            every.ask("GET", "/v1/stats"),
        ]
        assert b"nearly full" in reported[0][1]
        assert [answer for answer in reported if str(tmp_path).encode() in answer[1]] == []


def test_a_trailer_is_no_header(place: Place) -> None:
    """What comes behind the body names nobody and no key."""
    token, body = place.client("all").token, b'{"payload":"x"}'
    bearer = f"authorization: Bearer {token}\r\n".encode()
    for head, trailer, expected in ((b"", bearer, b"401"), (bearer, b"idempotency-key: forged\r\n", b"200")):
        with socket.create_connection(("127.0.0.1", place.server.address.port), timeout=30) as connection:
            connection.sendall(
                b"POST /v1/topics/orders/records HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                b"transfer-encoding: chunked\r\n%b\r\n%x\r\n%b\r\n0\r\n%b\r\n" % (head, len(body), body, trailer)
            )
            assert connection.recv(65536).split(b" ")[1] == expected
    assert place.log.topic("orders").append(b"x", idempotency_key="forged").repeated is False


@pytest.mark.parametrize("name", ["host", "authorization", "idempotency-key", "holdfast-producer"])
def test_a_header_that_decides_stands_once(place: Place, name: str) -> None:
    """Of two, a proxy before us may have looked at the other one."""
    sent = {"host": "localhost", "authorization": f"Bearer {place.client('all').token}"}
    lines = "".join(f"{one}: {value}\r\n" for one, value in [*sent.items(), (name, "x"), (name, sent.get(name, "x"))])
    with socket.create_connection(("127.0.0.1", place.server.address.port), timeout=30) as connection:
        connection.sendall(f"GET /v1 HTTP/1.1\r\n{lines}\r\n".encode())
        assert connection.recv(65536).split(b" ")[1] == b"400"


def test_a_member_of_a_client_belongs_to_its_token(place: Place) -> None:
    """The same bytes from another token are another member, in another session: nothing of the first one changes."""
    token = b"m" * 16
    with place.connect("shop") as mine, place.connect("all") as theirs:
        links = [ServerLink(one._journal._exchange, SystemClock()) for one in (mine, theirs)]
        join = JoinConsumer("billing", "orders", token, None, 0.0, {})
        assert links[0].call("join_consumer", join, Assignment, 10.0).held.keys() == {0}
        assert links[1].call("leave_consumer", LeaveConsumer("billing", "orders", token), Nothing, 10.0) == Nothing()
        assert links[1].call("join_consumer", join, Assignment, 10.0).held == {}
        gone = SyncMember("billing", "orders", b"n" * 16, (), (token,))
        assert not links[1].call("sync_member", gone, Assignment, 10.0).is_member
        sync = SyncMember("billing", "orders", token, ())
        assert links[0].call("sync_member", sync, Assignment, 10.0).held.keys() == {0}
        for link in links:
            link.close()


def test_the_scope_of_a_consumer_is_all_that_consuming_takes(place: Place) -> None:
    """It joins, reads and commits as that consumer; it appends nothing, and is no other consumer."""
    place.log.topic("orders").append_batch([b"a", b"b"])
    with place.connect("eater") as log:
        topic = log.topic("orders")
        with topic.consumer("billing") as consumer:
            assert [record.payload for record in consumer.poll(2, 20)] == [b"a", b"b"]
            consumer.commit()
            assert consumer.committed == '{"0":2}'
            with pytest.raises(Denied), log.transaction() as tx:
                tx.append("orders", b"c")
                tx.consumed(consumer)
        with pytest.raises(Denied):
            topic.consumer("other")
        with pytest.raises(Denied):
            topic.append(b"c")
    assert len(list(place.log.topic("orders").read())) == 2


def test_a_position_takes_the_consumers_scope_and_the_tokens_own_member(place: Place) -> None:
    """A client that knows a member's token, and may append, commits nothing for it."""
    place.log.topic("orders").append(b"x")
    with place.connect("shop") as mine:
        link = ServerLink(mine._journal._exchange, SystemClock())
        token = b"m" * 16
        begun = link.call("join_consumer", JoinConsumer("billing", "orders", token, None, 0.0, {}), Assignment, 10.0)
        kept = StoredPosition(1, SystemClock().now_us(), after=begun.held[0].kept.at)
        items = tuple(position_items(("billing", "orders"), {0: kept}))
        commit = ForwardedUnit([ChangeSpace(b"consumers", items)], 0, 0, scope_of(token, begun.turn))
        for thief, kind in (("web", "Denied"), ("all", "Invalid")):
            (outcome,) = _outcome(place.client(thief).group(commit))
            assert outcome.error is not None
            assert outcome.error.kind == kind
        assert _outcome(place.client("shop").group(commit))[0].error is None
        link.close()
    assert place.log.consumers()[0].partitions[0].committed == 1


# -- shares -----------------------------------------------------------------------------------------------


def test_one_token_does_not_take_all_places(tmp_path: Path) -> None:
    """Waiting reads, followers, members, connections: half of each, and the others are served meanwhile."""
    limits: dict[str, Any] = {"requests_max": 8, "followers_max": 6, "members_max": 4, "connections_max": 40}
    for place in _placed(tmp_path, **limits):
        place.log.topic("orders").append(b"x")
        greedy = [place.client("shop") for _ in range(30)]
        with ThreadPoolExecutor(30) as pool:
            waits = [pool.submit(one.ask, "GET", "/v1/topics/orders/records?start=1&wait=20") for one in greedy[:4]]
            while place.client("all").ask("GET", "/v1")[0] == 200 and not _is_full(place, "shop"):
                pass
            for other in ("web", "all"):
                assert place.client(other).ask("GET", "/v1/topics/orders/records")[0] == 200
            place.log.topic("orders").append(b"y")
            assert [wait.result()[0] for wait in waits] == [200] * 4
        watch = msgspec.msgpack.encode(WatchMarks(("orders",), False))
        form = "application/msgpack"
        reported = [
            greedy[0].ask("POST", "/v1/calls/watch", watch, content_type=form, holdfast_session=f"{number:032x}")[0]
            for number in range(4)
        ]
        assert reported == [200, 200, 200, 429]
        made = [
            greedy[0].ask("POST", "/v1/topics/orders/consumers/billing/members", {"patience": 0})[0] for _ in range(4)
        ]
        assert made == [201, 201, 429, 429]
        opened = [one.ask("GET", "/v1")[0] for one in greedy]
        assert 429 in opened
        assert opened.count(200) <= 20
        assert place.client("all").ask("GET", "/v1")[0] == 200


def _is_full(place: Place, token: str) -> bool:
    client = place.client(token)
    status, _ = client.ask("GET", "/v1")
    client.connection.close()
    return status == 429


def test_one_tokens_bodies_leave_room_for_others(tmp_path: Path) -> None:
    """Lengths that are announced, and never sent."""
    path = "/v1/topics/orders/records"
    for place in _placed(tmp_path, body_bytes_max=1_000, bodies_bytes_max=4_000, page_bytes_max=4_000):
        for silent in (place.client("shop") for _ in range(4)):
            silent.connection.putrequest("POST", path)
            for name, value in (("authorization", f"Bearer {silent.token}"), ("content-length", "1000")):
                silent.connection.putheader(name, value)
            silent.connection.endheaders()
        while place.client("shop").ask("POST", path, {"payload": "x"})[0] != 429:
            pass
        assert place.client("web").ask("POST", path, b"x" * 900, content_type="application/octet-stream")[0] == 200


def test_one_tokens_long_work_leaves_room_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end = threading.Semaphore(0), threading.Event()

    def seal(*_: Any, **__: Any) -> None:
        begun.release()
        may_end.wait(30)

    monkeypatch.setattr(Maintenance, "seal", seal)
    for place in _placed(tmp_path):
        with ThreadPoolExecutor(6) as pool:
            asked = [pool.submit(place.client("boss").ask, "POST", "/v1/seal", {"topic": "orders"}) for _ in range(5)]
            refused = [one.result()[0] for one in islice(as_completed(asked), 3)]
            assert refused == [429] * 3
            other = pool.submit(place.client("all").ask, "POST", "/v1/seal", {})
            assert all(begun.acquire(timeout=30) for _ in range(3))
            may_end.set()
            assert sorted(one.result()[0] for one in asked) == [200, 200, 429, 429, 429]
            assert other.result()[0] == 200


def test_a_large_transaction_keeps_nobody_waiting(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken apart beside the event loop, which answers others meanwhile."""
    begun, may_go_on = threading.Event(), threading.Event()
    add = space_routes._add

    def adding(*arguments: Any) -> None:
        begun.set()
        assert may_go_on.wait(10)
        add(*arguments)

    monkeypatch.setattr(space_routes, "_add", adding)
    operations = [{"append": "orders", "record": {"payload": "x" * 100}}] * 1_000
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(place.client("web").ask, "POST", "/v1/transactions", {"operations": operations})
        assert begun.wait(10)
        assert place.client("boss").ask("GET", "/v1")[0] == 200
        may_go_on.set()
        status, body = asked.result()
    assert (status, len(json.loads(body)["receipts"])) == (200, 1_000)


def test_one_tokens_large_reads_leave_threads_for_others(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end = threading.Semaphore(0), threading.Event()
    page, under_way = reading_records.page, []

    def reading(topic: Any, *arguments: Any) -> Any:
        if topic.name == "orders":
            under_way.append(not may_end.is_set())
            begun.release()
            assert may_end.wait(10)
        return page(topic, *arguments)

    monkeypatch.setattr(reading_records, "page", reading)
    with ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(place.client("web").ask, "GET", "/v1/topics/orders/records") for _ in range(16)]
        assert all(begun.acquire(timeout=10) for _ in range(4))
        try:
            assert place.client("looker").ask("GET", "/v1/topics/secret/records")[0] == 200
        finally:
            may_end.set()
        assert [one.result()[0] for one in asked] == [200] * 16
    assert sum(under_way) == 4


def test_answers_that_nobody_takes_are_bounded(tmp_path: Path) -> None:
    """Of each token: others get theirs meanwhile, and so does it once nobody is there for its own."""
    for place in _placed(tmp_path, bodies_bytes_max=2**25):
        place.log.topic("orders").append_batch([b"x" * 1_000_000] * 8)
        head = (
            f"GET /v1/topics/orders/records?bytes_max=16000000 HTTP/1.1\r\nauthorization: Bearer {place._tokens['web']}"
        )
        statuses, waiting = [], []
        for _ in range(6):
            waiting.append(socket.socket())
            waiting[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            waiting[-1].connect(("127.0.0.1", place.server.address.port))
            waiting[-1].sendall(head.encode() + b"\r\nhost: localhost\r\n\r\n")
            statuses.append(waiting[-1].recv(12)[-3:])
        assert statuses == [b"200"] * 2 + [b"429"] * 4
        status, body = place.client("all").ask("GET", "/v1/topics/orders/records?bytes_max=16000000")
        assert (status, body.count(b"x" * 1_000_000)) == (200, 8)
        for client in waiting:
            client.close()
        while (found := place.client("web").ask("GET", "/v1/topics/orders/records?bytes_max=16000000"))[0] == 429:
            pass
        assert (found[0], len(found[1])) == (200, len(body))


def test_one_tokens_sessions_do_not_drive_out_anothers_producer(tmp_path: Path) -> None:
    for place in _placed(tmp_path, {"journal": {"sessions_max": 20}}):
        asked = {"holdfast_producer": "device-1", "holdfast_sequence": "1"}
        assert place.client("shop").ask("POST", "/v1/topics/orders/records", {"payload": "x"}, **asked)[0] == 200
        web = place.client("web")
        statuses = [web.group(place.records("orders", b"y"), session=f"{number:032x}")[0] for number in range(60)]
        assert (statuses.count(200), statuses.count(429)) == (10, 50)
        status, body = place.client("shop").ask("POST", "/v1/topics/orders/records", {"payload": "x"}, **asked)
        assert (status, json.loads(body)["repeated"]) == (200, True)


def test_joins_at_once_with_one_id_make_one_member(tmp_path: Path) -> None:
    for place in _placed(tmp_path, members_max=4):
        path = "/v1/topics/orders/consumers/billing/members"
        member = "ab" * 16
        clients = [place.client("shop") for _ in range(8)]
        with ThreadPoolExecutor(8) as pool:
            joins = [pool.submit(one.ask, "POST", path, {"member": member, "patience": 0}) for one in clients]
            answers = [join.result() for join in joins]
        assert {status for status, _ in answers} == {201}
        assert {json.loads(body)["member"] for _, body in answers} == {member}
        assert clients[0].ask("DELETE", f"{path}/{member}")[0] == 204
        again = [clients[0].ask("POST", path, {"patience": 0})[0] for _ in range(2)]
        assert again == [201, 201]


# -- the audit trail --------------------------------------------------------------------------------------


def test_the_audit_trail_says_who_did_what(tmp_path: Path) -> None:
    """By name, route and topic, refusals too; nothing that a client wrote, and reading it takes a right of its own."""
    for place in _placed(tmp_path, audit=True):
        place.client("web").ask("POST", "/v1/topics/orders/records", {"payload": "a secret"}, idempotency_key="mine")
        place.client("web").ask("GET", "/v1/topics/secret/records")
        place.client("web").ask("GET", "/v1/topics/%0aforged%20line/records")
        place.client("star").ask("POST", "/v1/retain", {"dry_run": True})
        nobody = place.client("web")
        nobody.token = "hft1_nobody"
        assert nobody.ask("GET", "/v1")[0] == 401
        assert place.client("star").ask("GET", "/v1/topics/_audit/records")[0] == 403
        place.log.flush()
        status, body = place.client("all").ask("GET", "/v1/topics/_audit/records")
        reported = [json.loads(record["payload"]) for record in json.loads(body)["records"]]
        shown = [(one["token"], one["route"], one["topic"], one["status"]) for one in reported]
        read = "GET /v1/topics/{topic}/records"
        assert (status, shown) == (
            200,
            [
                ("web", "POST /v1/topics/{topic}/records", "orders", 200),
                ("web", read, "secret", 403),
                ("web", read, None, 403),
                ("star", "POST /v1/retain", None, 200),
                ("-", "GET /v1", None, 401),
                ("star", read, "_audit", 403),
            ],
        )
        assert not any(word in body.decode() for word in ("a secret", "mine", "forged", place.client("web").token))


def test_strangers_do_not_push_the_audit_trail_out(place: Place) -> None:
    """Of requests without a known token few are recorded; the others are counted."""
    audit, route = Audit(place.log, is_wanted=True), ROUTES[0]
    for _ in range(500):
        audit.note(None, route, None, 401)
    audit.note(_caller("web"), route, "orders", 200)
    place.log.flush()
    reported = [json.loads(record.payload) for record in place.log.topic("_audit").read()]
    assert len(reported) < 20
    assert reported[-1]["token"] == "web"
    assert len(reported) - 1 + sum(one["dropped"] for one in reported) == 500


def _caller(name: str) -> Caller:
    return Caller(make(name, ("append",), ("orders",), SystemClock())[1], None)


def test_an_audit_trail_without_room_keeps_nobody_waiting(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left out is counted, and the next record says so; without the setting there is no topic."""
    assert "_audit" not in place.log.topics()
    audit = Audit(place.log, is_wanted=True)
    route = next(one for one in ROUTES if one.path == "/v1/stats")
    with monkeypatch.context() as patch:
        patch.setattr(Topic, "offer", lambda *_, **__: False)
        for _ in range(3):
            audit.note(_caller("web"), route, None, 200)
    assert audit.dropped == 3
    audit.note(_caller("web"), route, None, 200)
    place.log.flush()
    assert [json.loads(record.payload)["dropped"] for record in place.log.topic("_audit").read()] == [3]
