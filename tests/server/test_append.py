"""Appending over HTTP: what is answered with 200 is durable, in whatever form; what is wrong writes nothing."""

from __future__ import annotations

import base64
import io
import json
import random
from urllib.parse import quote

import pyarrow as pa
import pytest

from tests.hostile.mutations import flipped
from tests.server.conftest import Server

pytestmark = pytest.mark.disk

JSON = {"content-type": "application/json"}
NDJSON = {"content-type": "application/x-ndjson"}
ARROW = {"content-type": "application/vnd.apache.arrow.stream"}
BYTES = {"content-type": "application/octet-stream"}
SCHEMA = pa.schema(
    [pa.field("customer", pa.string()), pa.field("cents", pa.int64()), pa.field("at", pa.timestamp("us", "UTC"))]
)


def stream(table: pa.Table, **options: object) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, **options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def make_typed(server: Server, name: str, key: str | None = None, partitions: int = 1) -> None:
    schema = base64.b64encode(SCHEMA.serialize().to_pybytes()).decode()
    reply = server.ask("PUT", f"/v1/topics/{name}", {"schema": schema, "key": key, "partitions": partitions})
    assert reply.status == 201, reply


def test_one_record_as_json(server):
    """Every field comes back as it was given."""
    record = {
        "payload": "two chairs",
        "key": "c-42",
        "kind": "order",
        "headers": {"trace": "1"},
        "time_us": 1_700_000_000_000_000,
    }
    reply = server.post("/v1/topics/json/records", record)
    assert (reply.status, reply.json["offset"], reply.json["repeated"]) == (200, 0, False)
    found = server.get("/v1/topics/json/records").json["records"][0]
    assert record.items() <= found.items()


def test_bytes_travel_as_base64_and_what_is_read_can_be_appended_as_it_is(server):
    raw = b"\xff\x00\x01"
    given = {
        "payload": base64.b64encode(raw).decode(),
        "payload_encoding": "base64",
        "key": "AP8=",
        "key_encoding": "base64",
    }
    server.post("/v1/topics/base64/records", given)
    found = server.get("/v1/topics/base64/records").json["records"][0]
    assert given.items() <= found.items()
    (run,) = server.post("/v1/topics/base64/records", [found, found]).json["runs"]
    assert (run["partition"], run["offset"], run["count"]) == (0, 1, 2)
    again = server.get("/v1/topics/base64/records/0/2")
    assert (again.body, again.headers["holdfast-key"]) == (raw, "%00%FF")


def test_lines_are_one_unit(server):
    """A line that is wrong refuses all of them."""
    assert server.append("lines", "a", "b", "c").json["count"] == 3
    bad = server.ask("POST", "/v1/topics/lines/records", '{"payload": "d"}\n{"payload": 5}\n', NDJSON)
    assert (bad.status, bad.kind) == (400, "Invalid")
    assert server.payloads("lines") == ["a", "b", "c"]


def test_keys_choose_partitions_and_the_answer_says_where_each_record_is(server):
    server.ask("PUT", "/v1/topics/parted", {"partitions": 3})
    records = [{"payload": str(n), "key": f"k{n % 5}"} for n in range(50)]
    runs = server.post("/v1/topics/parted/records", records).json["runs"]
    places = [(run["partition"], run["offset"] + n) for run in runs for n in range(run["count"])]
    assert len(places) == 50
    for record, (partition, offset) in zip(records, places, strict=True):
        assert server.get(f"/v1/topics/parted/records/{partition}/{offset}").body.decode() == record["payload"]


def test_bytes_with_headers(server):
    headers = {
        **BYTES,
        "holdfast-key": "%00k",
        "holdfast-kind": "blob",
        "holdfast-header-Trace": "a%20b",
        "holdfast-time": "2026-01-31T12:00:00Z",
    }
    assert server.ask("POST", "/v1/topics/bytes/records", b"\x00\xff", headers).status == 200
    found = server.get("/v1/topics/bytes/records/0/0")
    assert found.body == b"\x00\xff"
    assert found.headers["holdfast-key"] == "%00k"
    assert found.headers["holdfast-header-trace"] == "a%20b"
    assert found.headers["holdfast-time"] == "2026-01-31T12:00:00.000000Z"
    assert found.headers["x-content-type-options"] == "nosniff"


def test_rows_of_typed_topics_in_every_form(server):
    make_typed(server, "rows")
    row = {"customer": "c-1", "cents": 995, "at": "2026-01-31T12:00:00Z"}
    assert server.post("/v1/topics/rows/records", row).json["offset"] == 0
    assert server.post("/v1/topics/rows/records", [row, {"cents": 1}]).json["count"] == 2
    lines = json.dumps(row) + "\n" + json.dumps(row)
    assert server.ask("POST", "/v1/topics/rows/records", lines, NDJSON).json["count"] == 2
    table = pa.table({"customer": ["x"] * 100, "cents": range(100)}, pa.schema([SCHEMA.field(0), SCHEMA.field(1)]))
    assert server.ask("POST", "/v1/topics/rows/records", stream(table), ARROW).json["runs"][0]["count"] == 100
    read = server.get("/v1/topics/rows/records", headers={"accept": ARROW["content-type"]})
    found = pa.ipc.open_stream(read.body).read_all()
    assert found.num_rows == 105
    assert found.column("cents").to_pylist() == [995, 995, 1, 995, 995, *range(100)]
    assert server.get("/v1/topics/rows/records?limit=1").json["records"][0]["row"] == {**row}


def test_raw_records_as_arrow(server):
    table = pa.table(
        {"payload": [b"a", b"b"], "key": [b"k", None], "time": pa.array([1, 2], pa.timestamp("us", "UTC"))}
    )
    assert server.ask("POST", "/v1/topics/rawarrow/records", stream(table), ARROW).json["count"] == 2
    read = server.get("/v1/topics/rawarrow/records", headers={"accept": ARROW["content-type"]})
    found = pa.ipc.open_stream(read.body).read_all()
    assert found.column("payload").to_pylist() == [b"a", b"b"]
    assert server.ask("POST", "/v1/topics/rawarrow/records", read.body, ARROW).json["count"] == 2
    assert [r["key"] for r in server.get("/v1/topics/rawarrow/records").json["records"]] == ["k", None] * 2


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not arrow",
        stream(pa.table({"payload": [b"x"]}))[:-20],
        stream(pa.table({"other": [1]})),
        stream(pa.table({"payload": pa.array(["a"]).dictionary_encode()})),
        stream(pa.table({"payload": [b"x" * 1000] * 100}), options=pa.ipc.IpcWriteOptions(compression="zstd")),
        pa.schema([]).serialize().to_pybytes(),
        stream(pa.table({"payload": pa.ListArray.from_arrays([0, 2**30], pa.nulls(2**30))})),
        stream(pa.table({"payload": [b"x"], "headers": pa.FixedSizeListArray.from_arrays(pa.nulls(2**30), 2**30)})),
        stream(pa.table({"payload": [b"x"], "headers": [[True] * 50]})),
        stream(pa.table({"payload": [b"x"], "headers": [[{"a": True}]]})),
    ],
    ids=[
        "empty",
        "text",
        "cut off",
        "other column",
        "dictionary",
        "compressed",
        "no columns",
        "endless payload",
        "endless headers",
        "headers of flags",
        "headers of other fields",
    ],
)
def test_bad_arrow_is_refused(server, body):
    reply = server.ask("POST", "/v1/topics/badarrow/records", body, ARROW)
    assert (reply.status, reply.kind) == (400, "Invalid"), reply


def test_a_batch_without_columns_cannot_stand_for_endless_rows(server):
    make_typed(server, "endless")
    whole = stream(pa.table({"cents": pa.array([1], pa.int64())}))
    at = whole.rindex((1).to_bytes(8, "little") + (0).to_bytes(8, "little"))
    forged = whole[:at] + (2**40).to_bytes(8, "little") + whole[at + 8 :]
    assert server.ask("POST", "/v1/topics/endless/records", forged, ARROW).status in (200, 400)
    assert server.get("/readyz").status == 200


def test_an_idempotency_key_writes_once(server):
    """For one record, for several, and for rows; another body under the same key is refused."""
    for topic, body, other in (
        ("once", {"payload": "a"}, {"payload": "b"}),
        ("several", [{"payload": "a"}, {"payload": "b"}], [{"payload": "a"}, {"payload": "c"}]),
    ):
        first = server.post(f"/v1/topics/{topic}/records", body, headers={"idempotency-key": "k1"})
        again = server.post(f"/v1/topics/{topic}/records", body, headers={"idempotency-key": "k1"})
        assert again.json["repeated"] is True
        assert again.json.get("offset") == first.json.get("offset")
        refused = server.post(f"/v1/topics/{topic}/records", other, headers={"idempotency-key": "k1"})
        assert refused.status == 400
    assert server.payloads("once") == ["a"]
    assert server.payloads("several") == ["a", "b"]


def test_a_producers_body_is_written_once(server):
    headers = {"holdfast-producer": "device-7", "holdfast-sequence": "1"}
    first = server.post("/v1/topics/produced/records", [{"payload": "a"}, {"payload": "b"}], headers=headers)
    again = server.post("/v1/topics/produced/records", [{"payload": "a"}, {"payload": "b"}], headers=headers)
    assert (first.json["repeated"], again.json["repeated"]) == (False, True)
    assert again.json["runs"][0]["offset"] == first.json["runs"][0]["offset"]
    assert server.payloads("produced") == ["a", "b"]
    assert server.get("/v1/producers/device-7").json == {"producer": "device-7", "last": 1}
    assert server.get("/v1/producers/nobody").json["last"] is None
    one = {**headers, "holdfast-sequence": "2"}
    assert [server.post("/v1/topics/produced/records", {"payload": "c"}, headers=one).json["offset"] for _ in "12"] == [
        2,
        2,
    ]
    gap = server.post("/v1/topics/produced/records", {"payload": "e"}, headers={**headers, "holdfast-sequence": "4"})
    assert (gap.status, gap.kind, gap.json["fields"]) == (409, "Invalid", {"expected": 3})
    make_typed(server, "producedrows")
    rows = {**headers, "holdfast-sequence": "3"}
    twice = [server.post("/v1/topics/producedrows/records", [{"cents": 1}], headers=rows) for _ in range(2)]
    assert [reply.json["repeated"] for reply in twice] == [False, True]
    for wrong in ({"holdfast-producer": "p"}, {"holdfast-sequence": "1"}, {**headers, "holdfast-sequence": "x"}):
        assert server.post("/v1/topics/produced/records", {"payload": "c"}, headers=wrong).status == 400


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ("{}", {"content-type": "text/plain"}, 415),
        ("payload=x", {"content-type": "application/x-www-form-urlencoded"}, 415),
        ('{"payload": "x"}', {"content-type": "application/json", "content-encoding": "gzip"}, 415),
        ("[]", {"content-type": "application/json"}, 400),
        ("", {"content-type": "application/x-ndjson"}, 400),
        ("{", {"content-type": "application/json"}, 400),
        ("[" * 5000, {"content-type": "application/json"}, 400),
        ('{"payload": "x", "payload_encoding": "rot13"}', {"content-type": "application/json"}, 400),
        ('{"payload": "=", "payload_encoding": "base64"}', {"content-type": "application/json"}, 400),
        ('{"payload": "x", "partition": 7}', {"content-type": "application/json"}, 400),
        ('[{"payload": "x", "partition": 0}, {"payload": "y"}]', {"content-type": "application/json"}, 400),
        ('{"payload": "x", "time": "yesterday"}', {"content-type": "application/json"}, 400),
        ('{"payload": "x", "time_us": 99999999999999999999}', {"content-type": "application/json"}, 400),
        ('{"payload": "\\ud800"}', {"content-type": "application/json"}, 400),
    ],
)
def test_what_is_wrong_with_a_body_is_said(server, body, headers, status):
    """With a kind, a message and a hint, and nothing is written."""
    reply = server.ask("POST", "/v1/topics/wrong/records", body, headers)
    assert (reply.status, reply.kind) == (status, "Invalid"), reply
    assert reply.json["message"]
    assert reply.json["hint"]
    if server.get("/v1/topics/wrong").status == 200:
        assert server.payloads("wrong") == []


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
@pytest.mark.parametrize("number", ["1e400", "-1e400", "1e99999999999999999999", "1e999999999"])
def test_numbers_that_no_column_can_hold_are_refused(server, number, kind):
    """They neither become infinite nor fail the server."""
    schema = pa.schema([pa.field("share", pa.float64()), pa.field("cents", pa.int64())])
    body = {"schema": base64.b64encode(schema.serialize()).decode()}
    assert server.ask("PUT", "/v1/topics/largenumbers", body).status in (200, 201)
    for column in schema.names:
        line = f'{{"{column}": {number}}}'
        reply = server.ask("POST", "/v1/topics/largenumbers/records", line, {"content-type": kind})
        assert (reply.status, reply.kind) == (400, "Invalid"), reply


def test_names_in_paths_hold_any_character(server):
    for name in ("plant/7", "..", "a?b", "%2F", "gerät"):
        headers = {"holdfast-producer": name.encode(), "holdfast-sequence": "1"}
        assert server.post("/v1/topics/named/records", {"payload": "a"}, headers=headers).status == 200
        assert server.get(f"/v1/producers/{quote(name, safe='')}").json == {"producer": name, "last": 1}
    assert server.get("/v1/topics/named%2Frecords").status == 400  # no topic has such a name
    latin = {"holdfast-producer": b"ger\xe4t", "holdfast-sequence": "1"}
    assert server.post("/v1/topics/named/records", {"payload": "a"}, headers=latin).status == 400


def test_a_body_that_is_too_large_is_refused_before_it_is_read(server):
    with server.socket() as client:
        client.sendall(
            b"POST /v1/topics/large/records HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: 99999999999\r\n\r\n"
        )
        answer = client.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"holdfast-body-max: 1000000" in answer
    assert b"connection: close" in answer


def test_a_chunked_body_is_counted_while_it_comes(server):
    with server.socket() as client:
        client.sendall(
            b"POST /v1/topics/chunked/records HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/octet-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        answer = b""
        try:
            for _ in range(40):
                client.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            answer = client.recv(65536)
        except ConnectionError:  # it was closed while we were still sending
            pass
    assert answer == b"" or answer.startswith(b"HTTP/1.1 413 ")
    assert server.get("/v1/topics/chunked/records").json["records"] == []


def test_a_chunked_body_is_appended(server):
    with server.socket() as client:
        client.sendall(
            b"POST /v1/topics/chunks/records HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/octet-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n"
        )
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
    assert server.payloads("chunks") == ["abcdef"]


def test_of_a_mutated_body_exactly_what_is_acknowledged_is_written(server, seed, is_sampled):
    """Valid bodies of every form with bytes changed, cut and repeated: 2xx or 4xx, and a log that says the same."""
    make_typed(server, "mutated-rows")
    row = {"customer": "c-1", "cents": 995, "at": "2026-01-31T12:00:00Z"}
    record = {"payload": "x", "key": "k", "kind": "t", "headers": {"h": "v"}, "time_us": 1768471200000000}
    table = pa.table({"payload": [b"a", b"b"], "key": [b"k", None], "headers": [[("h", b"v")], []]})
    rows = pa.table({"customer": ["x"] * 9, "cents": range(9)}, pa.schema([SCHEMA.field(0), SCHEMA.field(1)]))
    operation = {"append": "mutated", "record": record}
    corpus = [
        ("/v1/topics/mutated/records", JSON, json.dumps([record, record]).encode()),
        ("/v1/topics/mutated/records", NDJSON, (json.dumps(record) + "\n").encode() * 3),
        ("/v1/topics/mutated/records", ARROW, stream(table)),
        ("/v1/topics/mutated-rows/records", NDJSON, (json.dumps(row) + "\n").encode() * 3),
        ("/v1/topics/mutated-rows/records", ARROW, stream(rows)),
        ("/v1/transactions", JSON, json.dumps({"operations": [operation, operation]}).encode()),
    ]
    chance = random.Random(seed)
    before = records_of(server)
    acknowledged = 0
    for _ in range(200 if is_sampled else 2_000):
        path, headers, body = chance.choice(corpus)
        body = flipped(chance, body)
        reply = server.ask("POST", path, body, headers)
        assert reply.status == 200 or 400 <= reply.status < 500, (reply, body)
        if reply.status == 200:
            acknowledged += reply.json["count"] if "count" in reply.json else len(reply.json["receipts"])
    assert acknowledged
    assert records_of(server) == before + acknowledged


def records_of(server):
    """How many records can be read, in all topics (a mutated transaction may name a new one)."""
    total = 0
    for topic in server.get("/v1/topics").json["topics"]:
        path = f"/v1/topics/{quote(topic['name'], safe='')}/records?limit=100000"
        read = server.get(path, headers={"accept": ARROW["content-type"]})
        found = pa.ipc.open_stream(read.body).read_all()
        found.validate(full=True)
        total += found.num_rows
    return total


def test_a_transaction_is_all_or_nothing(server):
    server.append("orders", "first")
    operations = [
        {"append": "orders", "record": {"payload": "second", "key": "k"}},
        {"put": "stock", "key": "chairs", "body": "12"},
    ]
    done = server.post("/v1/transactions", {"operations": operations})
    assert [receipt["offset"] for receipt in done.json["receipts"]] == [1]
    assert server.get("/v1/spaces/stock/item?key=chairs").json == {"key": "chairs", "body": "12"}
    bad = [*operations, {"append": "orders", "record": {"payload": "x" * 2**20 + "x"}}]
    assert server.post("/v1/transactions", {"operations": bad}).status in (400, 413)
    assert server.post("/v1/transactions", {"operations": [{"append": "orders"}]}).status == 400
    assert server.post("/v1/transactions", {"operations": []}).status == 400
    assert server.payloads("orders") == ["first", "second"]
    assert server.get("/v1/spaces").json == {"spaces": ["stock"]}
    assert server.get("/v1/spaces/stock").json["items"] == [{"key": "chairs", "body": "12"}]
    assert server.get("/v1/spaces/stock/item?key=tables").status == 404


def test_a_topic_with_a_codec_takes_what_it_can_read_and_shows_values(server):
    """Values go in as JSON or as payloads, which are checked; what is read has both, and can be appended as it is."""
    assert server.ask("PUT", "/v1/topics/values", {"codec": "json"}).json["codec"] == "json"
    assert server.ask("PUT", "/v1/topics/values", {"codec": "text"}).status == 409
    assert server.ask("PUT", "/v1/topics/other", {"codec": "yaml"}).status == 400
    lines = b'{"payload": "{\\"id\\":\\n 1}"}\n{"value": {"id": 2}, "key": "k"}\n'
    assert server.ask("POST", "/v1/topics/values/records", lines, NDJSON).json["count"] == 2
    assert server.post("/v1/topics/values/records", b'{"id": 3}', headers=BYTES).status == 200
    wrong = ((b'{"payload": "{"}', JSON), (b'{"value": {"id": 4}}\n{"payload": ""}', NDJSON), (b"{", BYTES))
    for body, headers in wrong:
        refused = server.ask("POST", "/v1/topics/values/records", body, headers)
        assert (refused.status, refused.kind) == (400, "Invalid"), refused
    found = server.ask("GET", "/v1/topics/values/records", headers={"accept": NDJSON["content-type"]}).body
    records = list(map(json.loads, found.splitlines()))
    assert [record["value"]["id"] for record in records] == [1, 2, 3]
    assert server.post("/v1/topics/values/records", records).status == 200
    server.ask("PUT", "/v1/topics/packed", {"codec": "msgpack"})
    unit = {"operations": [{"append": "packed", "record": {"value": [1, "two"]}}]}
    assert server.post("/v1/transactions", unit).status == 200
    assert server.get("/v1/topics/packed/records").json["records"][0]["value"] == [1, "two"]
    assert server.post("/v1/topics/json/records", {"value": 1}).kind == "Invalid"
    assert {"values": "json", "packed": "msgpack", "json": None}.items() <= {
        topic["name"]: topic["codec"] for topic in server.get("/v1/topics").json["topics"]
    }.items()
