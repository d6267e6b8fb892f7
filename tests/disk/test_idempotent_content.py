"""An idempotency key stands for what was appended under it: a repeat says so, anything else is refused."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime

import apsw
import pyarrow as pa
import pytest
from blake3 import blake3
from tests.stalled import stalled

import holdfast
from holdfast import Corrupt, Invalid, Keyring, Log

pytestmark = pytest.mark.disk

ROWS = pa.schema([("customer", pa.string()), ("cents", pa.int64()), ("tags", pa.list_(pa.string()))])


def append_all(log: Log, payload: bytes = b"42.00 EUR") -> None:
    log.topic("t").append(payload, key="k", kind="paid", headers={"a": b"1", "b": b"2"}, idempotency_key="p-1")


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("reopened", [False, True])
def test_a_key_with_other_content_is_refused(tmp_path, encrypted, reopened):
    """Payload, key, kind and headers count; also after the log was closed, sealed, rotated and opened again."""
    keyring = Keyring.generate("k1") if encrypted else None
    log = holdfast.open(tmp_path / "log", keyring=keyring)
    append_all(log)
    if keyring is not None:
        keyring = keyring.rotated("k2")
        log.rotate_key(keyring)
    if reopened:
        log.close()
        log = holdfast.open(tmp_path / "log", keyring=keyring)
    topic = log.topic("t")
    same = {"key": "k", "kind": "paid", "headers": {"b": b"2", "a": b"1"}, "idempotency_key": "p-1"}
    again = topic.append(b"42.00 EUR", time=datetime(2020, 1, 1, tzinfo=UTC), **same)
    assert (again.offset, again.repeated) == (0, True)
    other = [
        (b"43.00 EUR", same),
        (b"42.00 EUR", same | {"key": "other"}),
        (b"42.00 EUR", same | {"key": None}),
        (b"42.00 EUR", same | {"kind": None}),
        (b"42.00 EUR", same | {"headers": {"a": b"1"}}),
        (b"42.00 EURk", same | {"key": ""}),
    ]
    for payload, fields in other:
        with pytest.raises(Invalid, match="already in use for other content") as caught:
            topic.append(payload, **fields)
        assert "another key" in (caught.value.hint or "")
    assert topic.append(b"43.00 EUR", idempotency_key="p-2").repeated is False
    assert [record.payload for record in topic.read()] == [b"42.00 EUR", b"43.00 EUR"]
    log.close()


def test_a_record_that_is_refused_is_refused_alone(open_log):
    """Of records that wait for one commit only those with a misused key fail; the others keep their order."""
    topic = open_log().topic("t")
    topic.append(b"first", idempotency_key="a")
    tickets = [
        topic.submit(payload, idempotency_key=key)
        for payload, key in [(b"x", None), (b"other", "a"), (b"y", "b"), (b"first", "a"), (b"z", "b"), (b"end", None)]
    ]
    found = []
    for ticket in tickets:
        try:
            receipt = ticket.result()
            found.append((receipt.offset, receipt.repeated))
        except Invalid:
            found.append(None)
    assert found == [(1, False), None, (2, False), (0, True), None, (3, False)]
    assert [record.payload for record in topic.read()] == [b"first", b"x", b"y", b"end"]


def test_an_offered_record_with_a_misused_key_is_reported_by_flush(open_log):
    """Nobody holds a ticket for it."""
    topic = open_log().topic("t")
    topic.append(b"first", idempotency_key="a")
    topic.offer(b"other", idempotency_key="a")
    with pytest.raises(Invalid, match="already in use for other content"):
        topic.flush()


def test_a_member_learns_of_its_offered_record_with_a_misused_key(tmp_path):
    """And not of what somebody with a ticket was refused."""
    with holdfast.open(tmp_path, share=True) as owner, holdfast.open(tmp_path, share=True) as member:
        owner.topic("t").append(b"first", idempotency_key="a")
        topic = member.topic("t")
        topic.offer(b"fine")
        with pytest.raises(Invalid):
            topic.append(b"other", idempotency_key="a")
        member.flush()
        topic.offer(b"other", idempotency_key="a")
        with pytest.raises(Invalid, match="already in use for other content"):
            member.flush()


def test_what_somebody_else_was_refused_is_no_failure_of_offered_records(open_log):
    """The appender has heard of it; `flush` and `close` speak of what was offered."""
    log = open_log()
    topic, other = log.topic("t"), log.topic("other")
    topic.append(b"first", idempotency_key="a")
    with stalled(topic):
        other.offer(b"offered")
        topic.offer(b"offered", idempotency_key="b")
        ticket = topic.submit(b"misused", idempotency_key="a")
    with pytest.raises(Invalid, match="already in use for other content"):
        ticket.result()
    log.flush()


def test_rows_are_compared_by_what_they_say(open_log):
    """However they are given, and when the schema has got a column meanwhile; other rows are refused."""
    log = open_log()
    topic = log.topic("rows", schema=ROWS)
    rows = [{"customer": "a", "cents": 1, "tags": ["x"]}, {"customer": None, "cents": 2, "tags": None}]
    first = topic.append(rows, idempotency_key="b-1")
    table = pa.Table.from_pylist([{"customer": "?", "cents": 0, "tags": []}, *rows], schema=ROWS)
    assert not first[0].repeated
    for given in (table.slice(1), table.slice(1).to_batches()[0], table.slice(1).select(["tags", "cents", "customer"])):
        again = topic.append(given, idempotency_key="b-1")
        assert again == first
        assert all(receipt.repeated for receipt in again)
    topic = log.topic("rows", schema=ROWS.append(pa.field("note", pa.string())))
    assert topic.append(rows, idempotency_key="b-1") == first
    for other in (rows[:1], rows[::-1], [rows[0] | {"cents": 3}, rows[1]], [rows[0] | {"note": "new"}, rows[1]]):
        with pytest.raises(Invalid, match="already in use for other content"):
            topic.append(other, idempotency_key="b-1")
    assert topic.read().to_arrow().num_rows == 2


def test_the_digest_of_a_secret_payload_confirms_no_guess(tmp_path):
    """In a log with keys; in one without, the payload lies beside it."""
    with holdfast.open(tmp_path / "log", keyring=Keyring.generate("k")) as log:
        log.topic("t").append(b"yes", idempotency_key="a")
        log.topic("t").append(b"yes", idempotency_key="b")
    db = apsw.Connection(str(tmp_path / "log" / "durable.db"))
    rows = db.execute("SELECT hash, digest FROM idempotency").fetchall()
    db.close()
    absent = b"\xff" * 8
    for key_hash, digest in rows:
        guess = b"holdfast 1 idempotent content\0" + key_hash + (3).to_bytes(8, "little") + b"yes" + 3 * absent
        assert digest != blake3(guess).digest(length=16)
        assert len(digest) == 16
    assert rows[0][1] != rows[1][1]


def test_a_digest_that_was_taken_away_or_changed_is_found(tmp_path):
    """The row's stamp covers it."""
    for number, change in enumerate(("x''", "zeroblob(16)")):
        path = tmp_path / str(number)
        with holdfast.open(path) as log:
            log.topic("t").append(b"x", idempotency_key="a")
        db = apsw.Connection(str(path / "durable.db"))
        db.execute(f"UPDATE idempotency SET digest={change}")
        db.close()
        with holdfast.open(path) as log, pytest.raises(Corrupt, match="does not match its stamp"):
            log.topic("t").append(b"x", idempotency_key="a")


def test_the_command_line_tells_a_repeat_and_refuses_a_misuse(tmp_path):
    """`--json` has `repeated`; other content ends with exit code 1 and the remedy."""
    run = ["-c", "from holdfast.cli import main; main()", "append", str(tmp_path / "log"), "t"]

    def append(payload: str) -> subprocess.CompletedProcess[str]:
        options = ["--json", "--idempotency-key", "k"]
        return subprocess.run([sys.executable, *run, payload, *options], capture_output=True, text=True, check=False)

    first, again, other = append("x"), append("x"), append("y")
    assert '"repeated":false' in first.stdout.replace(" ", "")
    assert '"repeated":true' in again.stdout.replace(" ", "")
    assert other.returncode == 1
    assert "another key" in other.stderr


TIMES = {
    "seconds": (1_700_000_000, "1_000_000"),
    "milliseconds": (1_700_000_000_000, "1_000"),
    "nanoseconds": (1_700_000_000_000_000_000, "1_000"),
}


@pytest.mark.parametrize("unit", list(TIMES))
def test_a_time_in_another_unit_is_refused_with_the_remedy(open_log, unit):
    """Wherever one is taken; nothing is written."""
    moment, factor = TIMES[unit]
    log = open_log()
    topic, rows = log.topic("t"), log.topic("rows", schema=ROWS)
    refused = [
        lambda: topic.append(b"x", time=moment),
        lambda: topic.submit(b"x", time=moment),
        lambda: topic.offer(b"x", time=moment),
        lambda: topic.append_batch([holdfast.Record(b"x", time=moment)]),
        lambda: rows.append({"cents": 1}, time=moment),
    ]
    bounds = [
        lambda: topic.read(since=moment),
        lambda: topic.read(until=moment),
        lambda: rows.read(since=moment),
        lambda: holdfast.read(log.path / "segments", topic="t", starting_timestamp=moment),
    ]
    if unit != "nanoseconds":  # a bound may be as far away as anybody likes
        refused += bounds
    for call in refused:
        with pytest.raises(Invalid, match=f"can only be {unit}") as caught:
            call()
        assert factor in (caught.value.hint or "")
        assert "datetime" in (caught.value.hint or "")
    assert topic.read().to_arrow().num_rows == rows.read().to_arrow().num_rows == 0


@pytest.mark.parametrize(
    "moment",
    [0, 1, -1, 10**6, 1_700_000_000_000_000, -1_700_000_000, -(2**62), 2**62, datetime(1970, 1, 20, tzinfo=UTC)],
)
def test_a_time_that_may_be_meant_is_taken(open_log, moment):
    """Small numbers, negative ones, far ones, and any moment that is given as a datetime."""
    topic = open_log().topic("t")
    topic.append(b"x", time=moment)
    (record,) = topic.read()
    assert moment in (record.time, record.at if isinstance(moment, datetime) else None)
