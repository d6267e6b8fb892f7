"""Reading over HTTP: pages by offset, time, position and key, in every form; following, and coming back."""

from __future__ import annotations

import http.client
import json

import pyarrow as pa
import pytest

from tests.server.conftest import PATIENCE, Server, events
from tests.server.test_append import make_typed

pytestmark = pytest.mark.disk

ARROW = {"accept": "application/vnd.apache.arrow.stream"}
NDJSON = {"accept": "application/x-ndjson"}


@pytest.fixture(scope="module")
def topic(server: Server) -> str:
    """Twenty records in two partitions, their times a second apart, three keys."""
    server.ask("PUT", "/v1/topics/numbers", {"partitions": 2})
    for number in range(20):
        record = {"payload": str(number), "key": f"k{number % 3}", "time_us": number * 10**6, "partition": number % 2}
        assert server.post("/v1/topics/numbers/records", record).status == 200
    return "numbers"


def read(server: Server, topic: str, query: str = "", **options: object) -> list[int]:
    reply = server.get(f"/v1/topics/{topic}/records?{query}", **options)
    assert reply.status == 200, reply
    return [int(record["payload"]) for record in reply.json["records"]]


def test_offsets_times_partitions_and_keys(server, topic):
    assert read(server, topic, "partition=0") == list(range(0, 20, 2))
    assert read(server, topic, "partition=1&start=8") == [17, 19]
    assert read(server, topic, "partition=1&start=-2") == [17, 19]
    assert read(server, topic, "partition=0&start=1&end=3") == [2, 4]
    assert read(server, topic, "partition=0&reverse=true&limit=2") == [18, 16]
    assert read(server, topic, "since=5000000&until=1970-01-01T00:00:07Z&partition=0&partition=1") == [6, 5, 7]
    assert sorted(read(server, topic, "key=k0&partition=0&partition=1")) == [0, 3, 6, 9, 12, 15, 18]
    assert sorted(read(server, topic, "partition=0&partition=1", headers={"holdfast-key": "k0"})) == [
        0,
        3,
        6,
        9,
        12,
        15,
        18,
    ]


def test_pages_follow_one_another_by_position_and_end_where_the_first_said(server, topic):
    """All forms have the same headers, and reading backwards works in the same way."""
    for headers in ({}, NDJSON, ARROW):
        path, seen, pages = f"/v1/topics/{topic}/records?limit=7", 0, 0
        while True:
            page = server.get(path, headers=headers)
            seen += {
                "application/json": lambda p=page: len(p.json["records"]),
                "application/x-ndjson": lambda p=page: len(p.body.splitlines()),
                "application/vnd.apache.arrow.stream": lambda p=page: pa.ipc.open_stream(p.body).read_all().num_rows,
            }[page.headers["content-type"]]()
            pages += 1
            assert page.headers["holdfast-end"] == '{"0":10,"1":10}'
            if page.headers["holdfast-exhausted"] == "true":
                break
            path = f"/v1/topics/{topic}/records?limit=7&start={page.headers['holdfast-position']}".replace('"', "%22")
        assert (seen, pages) == (20, 3)
    back = server.get(f"/v1/topics/{topic}/records?limit=7&reverse=true")
    assert back.headers["holdfast-start"] == '{"0":0,"1":0}'
    position = back.headers["holdfast-position"].replace('"', "%22")
    rest = server.get(f"/v1/topics/{topic}/records?reverse=true&end={position}")
    assert len(rest.json["records"]) == 13


def test_a_page_has_limits(server, topic):
    assert len(read(server, topic, "bytes_max=1&partition=0")) == 1
    assert read(server, topic, "limit=0") == []
    for query in (
        "limit=x",
        "limit=-1",
        "start=%7B",
        "since=now",
        "partition=9",
        "reverse=maybe",
        "start=1e3",
        "columns=a",
        "wait=x",
        "wait=1&reverse=true",
        "limit=" + "9" * 5000,
    ):
        reply = server.get(f"/v1/topics/{topic}/records?{query}")
        assert (reply.status, reply.kind) == (400, "Invalid"), query
    assert server.get(f"/v1/topics/{topic}/records", headers={"accept": "image/png"}).status == 406


def test_single_records_and_the_newest_of_a_key(server, topic):
    assert server.get(f"/v1/topics/{topic}/records/1/9").body == b"19"
    assert server.get(f"/v1/topics/{topic}/records/1/10").kind == "NotFound"
    server.append("single", "x")
    server.post("/v1/topics/single/records", [{"payload": "old", "key": "a"}, {"payload": "new", "key": "a"}])
    assert server.get("/v1/topics/single/latest?key=a").json["payload"] == "new"
    assert server.get("/v1/topics/single/latest?key=b").status == 404
    assert server.get("/v1/topics/single/latest").status == 400


def test_keys_of_typed_topics_are_values_of_their_column(server):
    make_typed(server, "bycents", key="cents", partitions=2)
    server.post("/v1/topics/bycents/records", [{"customer": str(n), "cents": n % 3} for n in range(9)])
    found = server.get("/v1/topics/bycents/records?key=2&columns=customer").json["records"]
    assert [one["row"] for one in found] == [{"customer": "2"}, {"customer": "5"}, {"customer": "8"}]
    assert server.get("/v1/topics/bycents/latest?key=2").json["row"]["customer"] == "8"
    assert server.get("/v1/topics/bycents/records?key=x").status == 400
    place = f"{found[0]['partition']}/{found[0]['offset']}"
    assert server.get(f"/v1/topics/bycents/records/{place}").json["row"]["customer"] == "2"
    columns = server.get("/v1/topics/bycents").json
    assert (columns["key"], columns["columns"][0]) == (
        "cents",
        {"name": "customer", "type": "string", "nullable": True},
    )
    assert pa.ipc.open_stream(server.get("/v1/topics/bycents/schema").body).schema.names == ["customer", "cents", "at"]


def test_a_read_that_waits_gets_what_comes(server):
    server.append("waited", "first")
    assert read(server, "waited", "start=1&wait=0.05") == []
    there = server.get("/v1/topics/waited/records?wait=50", timeout=20)
    assert [record["payload"] for record in there.json["records"]] == ["first"]
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    connection.request("GET", "/v1/topics/waited/records?start=1&wait=50")
    server.append("waited", "second")
    assert [r["payload"] for r in json.loads(connection.getresponse().read())["records"]] == ["second"]
    connection.close()


def test_expired_records_are_gone_with_the_first_that_is_left(serve, tmp_path):
    server = serve(tmp_path / "log")
    for number in range(3):
        server.append("old", f"{number}")
        assert server.post("/v1/seal", {"topic": "old"}).status == 200
    assert server.ask("PUT", "/v1/topics/old/retention", {"records_max": 1}).status == 200
    assert server.post("/v1/retain").status == 200  # the log may have done it by itself already
    gone = server.get("/v1/topics/old/records?start=0")
    assert (gone.status, gone.kind, gone.json["fields"]) == (410, "Expired", {"first": 2})
    assert read(server, "old", "wait=0.05") == [2]
    assert server.get("/v1/topics/old/records/0/0").status == 410
    assert server.get("/v1/topics/old/watermark/0").json["offset"] == 3
    connection, answer = follow(server, "old", "start=0")
    assert [kind for kind, _, _ in events(answer) if kind != ":"] == ["error"]
    connection.close()


def follow(server: Server, topic: str, query: str = "", **headers: str) -> tuple[http.client.HTTPConnection, object]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    connection.request("GET", f"/v1/topics/{topic}/follow?{query}", headers=headers)
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    return connection, answer


def test_a_follower_gets_everything_once_across_reconnects(server):
    """It comes back with the id of the last event that it has seen."""
    server.ask("PUT", "/v1/topics/followed", {"partitions": 2})
    expected = [str(number) for number in range(30)]
    for number in expected:
        server.post("/v1/topics/followed/records", {"payload": number, "partition": int(number) % 2})
    seen: list[str] = []
    last = '{"0":0,"1":0}'
    while len(seen) < len(expected):
        connection, answer = follow(server, "followed", **{"Last-Event-ID": last})
        for kind, position, data in events(answer):
            if kind == "record":
                seen.append(json.loads(data)["payload"])
                last = position
                if len(seen) % 7 == 0 or len(seen) == len(expected):
                    break
        answer.close()
        connection.close()
    assert sorted(seen, key=int) == expected


def test_a_follower_begins_with_the_next_record_and_hears_heartbeats(server):
    server.append("beats", "old")
    connection, answer = follow(server, "beats")
    stream = events(answer)
    assert [next(stream)[0] for _ in range(3)] == [":", ":", ":"]
    server.append("beats", "new")
    assert next(data for kind, _, data in stream if kind == "record").count('"new"') == 1
    answer.close()
    connection.close()


def test_following_as_lines(server):
    server.append("lined", "a", "b")
    connection, answer = follow(server, "lined", "start=0", **NDJSON)
    lines = (json.loads(line) for line in answer if line.strip())
    found = [next(lines), next(lines)]
    assert [(one["position"], one["record"]["payload"]) for one in found] == [('{"0":1}', "a"), ('{"0":2}', "b")]
    answer.close()
    connection.close()


def test_rows_are_followed_too(server):
    make_typed(server, "rowsfollowed")
    server.post("/v1/topics/rowsfollowed/records", {"cents": 5})
    connection, answer = follow(server, "rowsfollowed", "start=0")
    data = next(data for kind, _, data in events(answer) if kind == "record")
    assert json.loads(data)["row"] == {"customer": None, "cents": 5, "at": None}
    answer.close()
    connection.close()


def test_wrong_places_are_refused_before_a_stream_begins(server):
    server.append("placed", "x")
    for query in ("start=x", "partition=5", "start=%7B%22a%22"):
        assert server.get(f"/v1/topics/placed/follow?{query}").status == 400
    assert server.get("/v1/topics/nothere/follow").status == 404
