"""The other routes: topics, the log's verbs, consumers, executions, health, and the document that names them all."""

from __future__ import annotations

import base64
import http.client
import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast
from holdfast.server.route_table import ROUTES
from tests.server.conftest import PATIENCE, Server

pytestmark = pytest.mark.disk

PAGE = (Path(__file__).parents[2] / "docs/reference/http.md").read_text(encoding="utf-8")


def test_topics_are_created_once_as_they_are_asked_for(server):
    assert server.ask("PUT", "/v1/topics/made", {"partitions": 3}).status == 201
    assert server.ask("PUT", "/v1/topics/made", {"partitions": 3}).status == 200
    other = server.ask("PUT", "/v1/topics/made", {"partitions": 2})
    assert (other.status, other.kind) == (409, "Invalid")
    assert server.ask("PUT", "/v1/topics/made", {"schema": "AAAA"}).status == 400
    assert server.ask("PUT", "/v1/topics/made", {"schema": "?"}).status == 400
    assert server.ask("PUT", "/v1/topics/made", {"partitons": 2}).status == 400
    assert server.ask("PUT", "/v1/topics/..%2Fmade", {}).status == 400
    assert server.ask("PUT", "/v1/topics/a..b", {}).status == 400
    assert {"name": "made", "partitions": 3, "typed": False, "codec": None, "key": None} in server.get(
        "/v1/topics"
    ).json["topics"]
    assert len(server.get("/v1/topics/made/marks").json["marks"]) == 3
    assert server.get("/v1/topics/missing").kind == "NotFound"
    assert server.get("/v1/topics/made/schema").status == 404


def test_the_logs_verbs(server):
    server.append("verbs", "a", "b")
    assert server.post("/v1/flush").json == {}
    assert server.post("/v1/seal", {"topic": "verbs"}).json == {}
    assert server.get("/v1/topics/verbs/marks").json["marks"][0]["sealed"] == 2
    assert server.get("/v1/topics/verbs/watermark/0?offset=2&timeout=5").json == {"index": 0, "offset": 2}
    late = server.get("/v1/topics/verbs/watermark/0?offset=3&timeout=0.01")
    assert (late.status, late.kind, late.headers["retry-after"]) == (503, "Unavailable", "1")
    assert server.post("/v1/reconcile", {"deep": True}).json["findings"] == []
    assert server.post("/v1/retain", {"dry_run": True}).json["dry_run"] is True
    assert server.post("/v1/compact", {"dry_run": True}).json["root"] == ""
    assert server.post("/v1/ship", {"timeout": 1}).status == 400  # it has no store
    assert server.get("/v1/stats").json["journal"]["records_total"] >= 2
    assert server.get("/v1").json["log"] == server.started["log"]
    assert server.post("/v1/seal", {"topic": "missing"}).status == 404
    assert server.post("/v1/seal", {"tpoic": "verbs"}).status == 400


def test_metrics_and_health(server):
    metrics = server.get("/metrics")
    assert metrics.headers["content-type"].startswith(("text/plain", "application/openmetrics-text"))
    assert b"holdfast" in metrics.body
    assert server.get("/healthz").json == {"status": "alive"}
    assert server.get("/readyz").json == {"status": "ready"}


def test_unknown_routes_and_methods(server):
    assert server.get("/nothing").kind == "NotFound"
    assert server.get("/v2/topics").kind == "NotFound"
    wrong = server.ask("DELETE", "/v1/topics")
    assert (wrong.status, wrong.headers["allow"]) == (405, "GET, HEAD")
    assert server.ask("HEAD", "/v1/topics").status == 200


def test_what_is_committed_over_http_is_consumed(server):
    """What is committed is consumed, also when an answer was lost on its way; members share partitions and go."""
    server.post("/v1/topics/consumed/records", [{"payload": str(n), "key": str(n)} for n in range(20)])
    place = "/v1/topics/consumed/consumers/billing"
    made = server.post(f"{place}/members")
    assert (made.status, made.json["partitions"], made.json["lag"]) == (201, [0], 20)
    member = f"{place}/members/{made.json['member']}"
    first = server.post(f"{member}/poll", {"limit": 5})
    lost = server.post(f"{member}/poll", {"limit": 5})  # imagine that nobody got this answer
    again = server.post(f"{member}/poll", {"limit": 5, "position": first.json["position"]})
    assert [r["payload"] for r in again.json["records"]] == [r["payload"] for r in lost.json["records"]]
    server.post(f"{member}/poll", {"limit": 5})  # nor this one
    assert (
        server.post(f"{member}/commit", {"position": again.json["position"]}).json["committed"]
        == again.json["position"]
    )
    assert server.get(place).json["lag"] == 20 - len(first.json["records"]) - len(again.json["records"])
    assert server.get("/v1/consumers?topic=consumed").json["consumers"][0]["consumer"] == "billing"
    assert server.post(f"{member}/seek", {"to": "first"}).json["position"] == '{"0":0}'
    assert server.get(member).json["position"] == '{"0":0}'
    assert server.post(f"{member}/commit").status == 400
    assert server.post(f"{member}/commit", {"position": "x"}).status == 400
    assert server.ask("DELETE", member).status == 204
    assert server.post(f"{member}/poll").kind == "NotFound"
    assert server.ask("DELETE", place).status == 204
    assert server.get(place).status == 404


def test_a_member_that_nobody_uses_goes(server):
    """Its partitions go to the next one, which gets what was not committed."""
    server.append("abandoned", "a", "b")
    place = "/v1/topics/abandoned/consumers/c"
    one = server.post(f"{place}/members", {"patience": 60}).json["member"]
    assert len(server.post(f"{place}/members/{one}/poll").json["records"]) == 2
    two = server.post(f"{place}/members", {"patience": 60}).json["member"]
    found = server.post(f"{place}/members/{two}/poll", {"timeout": 30}).json["records"]
    assert [record["payload"] for record in found] == ["a", "b"]
    assert server.post(f"{place}/members/{one}/poll").status == 404


def test_executions_are_steered_over_http(server):
    """Started, listed, shown, signalled, canceled; payloads only where they are asked for."""
    started = server.post("/v1/executions", {"kind": "import", "args": ["secret-argument"]})
    number = started.json["id"]
    assert started.status == 201
    assert [one["id"] for one in server.get("/v1/executions?status=queued").json["executions"]] == [number]
    assert b"secret-argument" not in server.get(f"/v1/executions/{number}").body
    assert b"secret-argument" in server.get(f"/v1/executions/{number}?reveal=true").body
    assert server.post(f"/v1/executions/{number}/signal", {"name": "go", "value": 1}).json == {"sent": True}
    late = server.get(f"/v1/executions/{number}/result?timeout=0.01")
    assert (late.status, late.kind) == (503, "Unavailable")
    assert server.post(f"/v1/executions/{number}/cancel", {"reason": "test"}).json == {"status": "canceled"}
    ended = server.get(f"/v1/executions/{number}/result")
    assert (ended.status, ended.kind) == (409, "ExecutionCanceled")
    assert server.post(f"/v1/executions/{number}/resume").status in (400, 409)
    assert server.get("/v1/executions/00000000-0000-0000-0000-000000000000").status == 404
    assert server.get("/v1/executions/xyz").status == 400
    assert server.post("/v1/promises/resolve", {"token": "hfp1_wrong", "value": 1}).status == 400
    assert server.post("/v1/promises/reject", {"token": "hfp1_wrong"}).status == 400


def test_a_promise_is_resolved_from_outside(serve, tmp_path):
    """A program that waits in another process's past gets the value when it runs again."""
    import contextlib

    class Stop(Exception):
        pass

    number = holdfast.execution_id("t", "1")
    with holdfast.open(tmp_path / "log") as log, contextlib.suppress(Stop), log.execution("wait", id=number) as ctx:
        promise = ctx.promise("answer")
        token = promise.token()
        raise Stop
    server = serve(tmp_path / "log")
    assert server.post("/v1/promises/resolve", {"token": token, "value": {"n": 42}}).json == {"settled": True}
    assert server.post("/v1/promises/resolve", {"token": token, "value": 1}).json == {"settled": False}
    forged = token[:-4] + ("AAAA" if token[-4:] != "AAAA" else "BBBB")
    assert server.post("/v1/promises/resolve", {"token": forged, "value": 1}).kind == "PromiseRejected"
    server.stop()


def test_the_document_has_every_route_and_the_page_too():
    """OpenAPI, docs/reference/http.md and the table of routes know the same."""
    from holdfast.server.openapi import openapi

    document = openapi()
    known = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert known == {(route.method, route.path) for route in ROUTES}
    operations = [one["operationId"] for methods in document["paths"].values() for one in methods.values()]
    assert len(set(operations)) == len(operations)
    for reference in re.findall(r"'\$ref': '#/components/schemas/(\w+)'", str(document)):
        assert reference in document["components"]["schemas"]
    missing = [(r.method, r.path) for r in ROUTES if not re.search(rf"`{r.method} {re.escape(r.path)}[?`]", PAGE)]
    assert missing == []
    for route in ROUTES:
        for name in route.query:
            assert f"`{name}`" in PAGE or f"{name}=" in PAGE, (route.path, name)


class Loads(HTMLParser):
    """What a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []

    def handle_starttag(self, tag, attrs):
        self.found += [(tag, value or "") for name, value in attrs if name in ("src", "href", "action", "data")]
        assert tag not in ("script", "link", "iframe", "object", "img")


def test_the_page_needs_nothing_from_elsewhere(server: Server):
    page = server.get("/docs")
    loads = Loads()
    loads.feed(page.body.decode())
    assert all(value.startswith(("#", "/openapi.json")) for _, value in loads.found)
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert b"/v1/topics/{topic}/records" in page.body
    assert server.get("/openapi.json").json["openapi"].startswith("3.1")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/topics/raw/records?start=--5", None),
        ("GET", "/v1/topics/raw/records?since=--5", None),
        ("GET", "/v1/topics/raw/follow?start=--5", None),
        ("GET", "/v1/topics/typed/latest?key=--5", None),
        ("POST", "/v1/topics/raw/records", {"payload": "x", "time": "--5"}),
        ("PUT", "/v1/topics/raw/retention", {"age_max_s": 1e308}),
        ("PUT", "/v1/topics/raw/retention", {"wait_for": ["c"], "wait_limit_s": -1e300}),
        ("POST", "/v1/topics/raw/consumers/c/members", {"start": "999999999999999999"}),
        ("POST", "/v1/topics/typed/records", '{"amount": 1e-999999999}'),
        ("POST", "/v1/topics/typed/records", '{"amount": "1e-99999999"}'),
        ("POST", "/v1/topics/typed/records", '{"amount": "NaN"}'),
        ("POST", "/v1/topics/typed/records", '{"amount": 0.' + "0" * 100_000 + "1}"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_numbers_that_are_none_are_refused(server, method, path, body):
    """With 400, and the server goes on: none of them is a defect, or ends the process."""
    if "typed" in path:
        schema = pa.schema([("id", pa.int64()), ("amount", pa.decimal128(10, 2))])
        made = base64.b64encode(bytes(schema.serialize())).decode()
        assert server.ask("PUT", "/v1/topics/typed", {"schema": made, "key": "id"}).status in (200, 201)
    else:
        server.append("raw", "one")
    refused = server.ask(method, path, body)
    assert (refused.status, refused.kind) == (400, "Invalid")
    assert server.get("/healthz").status == 200


def test_what_waits_ends_when_its_client_goes(serve, tmp_path):
    """Else few clients, who ask and go, would keep all places among the requests for a minute."""
    server = serve(tmp_path / "log", requests_max=2)
    server.append("t", "one")
    server.post("/v1/topics/t/consumers/c/members", {"start": "next"})
    waits = [
        b"GET /v1/topics/t/records?start=1&wait=60 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /v1/topics/t/watermark/0?offset=9&timeout=60 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ]
    for request in waits * 4:
        with server.socket() as client:
            client.sendall(request)
            deadline = time.monotonic() + PATIENCE
            while server.get("/v1/topics/t/marks").status == 429:  # both places are taken by those who are gone
                assert time.monotonic() < deadline
    assert server.get("/v1/topics/t/marks").status == 200


def test_what_waits_ends_when_the_server_does(serve, tmp_path):
    """As if its time were over: a reader, a member of a consumer, a caller of seal."""
    server = serve(tmp_path / "log", shutdown_timeout_ms=600_000)
    server.append("t", "one")
    member = server.post("/v1/topics/t/consumers/c/members", {"start": "next"}).json["member"]
    poll = json.dumps({"timeout": 60})
    clients = [
        ("GET", "/v1/topics/t/records?start=1&wait=60", None),
        ("GET", "/v1/topics/t/watermark/0?offset=9&timeout=60", None),
        ("POST", f"/v1/topics/t/consumers/c/members/{member}/poll", poll),
    ]
    waiting = []
    for method, path, body in clients:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        connection.request(method, path, body, {"content-type": "application/json"})
        waiting.append(connection)
    server.get("/v1/topics/t/marks")
    code, said = server.stop()
    assert code == 0, said
    assert [connection.getresponse().status for connection in waiting] == [200, 503, 200]
    for connection in waiting:
        connection.close()
