"""A lost or damaged database is made anew from the segments; what was only in the tail is reported, exactly."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import apsw
import pyarrow as pa
import pytest

import holdfast
from holdfast import Corrupt, Invalid, Keyring, Log, NotFound, Unavailable
from holdfast.model.segment import NO_CHAIN, NO_SCHEMA, Segment, SegmentFacts, SegmentHead
from holdfast.recovery.rebuild_plan import SegmentFound, choose, plan

pytestmark = pytest.mark.disk

SCHEMA = pa.schema([pa.field("a", pa.int64()), pa.field("b", pa.dictionary(pa.int32(), pa.string()))])
Opener = Callable[..., Log]


@pytest.fixture(params=["plain", "sealed"])
def keys(request: pytest.FixtureRequest, keyring: Keyring) -> dict[str, Keyring]:
    return {"keyring": keyring} if request.param == "sealed" else {}


@pytest.fixture
def filled(open_log: Opener, keys: dict[str, Keyring], tmp_path: Path) -> Path:
    """Four segments in each of two partitions, a typed topic, and a tail: 20 + 1 + 1 records."""
    with open_log(**keys) as log:
        orders = log.topic("orders", partitions=2)
        for turn in range(4):
            for number in range(50):
                orders.submit(b"%d-%d" % (turn, number), partition=number % 2)
            log.flush()
            log.seal()
        typed = log.topic("typed", schema=SCHEMA)
        typed.append([{"a": 1, "b": "x"}])
        log.seal("typed")
        typed.append([{"a": 2, "b": "y"}])
        for number in range(20):
            orders.append(b"tail %d" % number, partition=0)
        log.topic("only-tail").append(b"x")
        log.set_retention("orders", records_max=1_000_000)
    return tmp_path / "log"


def payloads(log: Log, partition: int, **options: object) -> list[bytes]:
    return [record.payload for record in log.topic("orders").read(partition=partition, **options)]


def sealed_payloads(partition: int) -> list[bytes]:
    return [b"%d-%d" % (turn, number) for turn in range(4) for number in range(50) if number % 2 == partition]


TAIL = [b"tail %d" % number for number in range(20)]


def test_without_a_database_everything_sealed_comes_back(filled, open_log, keys):
    (filled / "durable.db").unlink()
    report = holdfast.rebuild(filled, **keys)
    assert (report.topics, report.segments, report.records) == (2, 9, 201)
    unknown = {(lost.topic, lost.partition): (lost.first, lost.records) for lost in report.lost}
    assert unknown == {("orders", 0): (100, None), ("orders", 1): (100, None), ("typed", 0): (1, None)}
    with open_log(**keys) as log:
        assert [payloads(log, 0), payloads(log, 1)] == [sealed_payloads(0), sealed_payloads(1)]
        assert log.reconcile(deep=True).clean
        assert log.topic("orders").append(b"on it goes", partition=1).offset == 100


@pytest.mark.parametrize("is_compacted", [False, True])
def test_segments_say_what_the_codec_of_their_topic_is(open_log, keys, tmp_path, is_compacted):
    """A topic of JSON is one without its database, too, also where its segments were joined."""
    with open_log(**keys) as log:
        values = log.topic("values", codec="json")
        for number in range(4):
            values.append({"id": number})
            log.seal()
        if is_compacted:
            assert log.compact().files_after == 1
    (tmp_path / "log" / "durable.db").unlink()
    report = holdfast.rebuild(tmp_path / "log", **keys)
    assert [lost.first for lost in report.lost] == [4]  # what was not sealed is unknown, and nothing else
    with open_log(**keys) as log:
        assert [record.value["id"] for record in log.topic("values", codec="json").read()] == [0, 1, 2, 3]


def test_a_readable_tail_is_saved_whole(filled, open_log, keys):
    report = holdfast.rebuild(filled, **keys)
    assert (report.salvaged, report.lost) == (22, ())
    with open_log(**keys) as log:
        assert log.topics() == ["only-tail", "orders", "typed"]
        assert payloads(log, 0) == sealed_payloads(0) + TAIL
        rows = log.topic("typed", schema=SCHEMA).read().to_arrow()
        assert rows.column("b").to_pylist() == ["x", "y"]
        assert rows.schema.field("b").type == SCHEMA.field("b").type
        assert log.reconcile(deep=True).clean


def test_what_is_lost_of_a_damaged_tail_is_reported_exactly_and_never_given_away_again(filled, open_log, keys):
    connection = apsw.Connection(str(filled / "durable.db"))
    connection.execute("UPDATE entries SET body = zeroblob(10) WHERE partition_id = 1 AND first_offset = 115")
    connection.close()
    report = holdfast.rebuild(filled, **keys)
    assert [(lost.topic, lost.partition, lost.first, lost.records) for lost in report.lost] == [("orders", 0, 115, 5)]
    with open_log(**keys) as log:
        orders = log.topic("orders")
        assert payloads(log, 0, end=115) == sealed_payloads(0) + TAIL[:15]
        with pytest.raises(Corrupt, match=r"lost offsets=115\.\.119"):
            payloads(log, 0)
        assert orders.append(b"new", partition=0).offset == 120
        assert payloads(log, 0, start=120) == [b"new"]
        with pytest.raises(Corrupt, match="lost"):
            payloads(log, 0, since=0)  # a read by time does not step over it in silence
        assert log.reconcile(deep=True).clean


def test_a_missing_segment_is_a_hole_that_reads_name(filled, open_log, keys):
    (filled / "durable.db").unlink()
    gone = sorted((filled / "segments/topics/orders/0/segments").iterdir())[1]
    gone.unlink()
    report = holdfast.rebuild(filled, **keys)
    assert ("orders", 0, 25, 25) in [(lost.topic, lost.partition, lost.first, lost.records) for lost in report.lost]
    with open_log(**keys) as log:
        assert (
            payloads(log, 0, end=25) + payloads(log, 0, start=50) == sealed_payloads(0)[:25] + sealed_payloads(0)[50:]
        )
        with pytest.raises(Corrupt, match="start=50"):
            payloads(log, 0, start=10, end=60)


def test_a_damaged_segment_is_lost_and_left_where_it_is(filled, open_log, keys):
    (filled / "durable.db").unlink()
    victim = sorted((filled / "segments/topics/orders/0/segments").iterdir())[2]
    content = bytearray(victim.read_bytes())
    content[len(content) // 3] ^= 1
    victim.write_bytes(content)
    report = holdfast.rebuild(filled, **keys)
    assert ("orders", 0, 50, 25) in [(lost.topic, lost.partition, lost.first, lost.records) for lost in report.lost]
    assert victim.read_bytes() == content
    with open_log(**keys) as log:
        found = log.reconcile().findings
        assert [(finding.kind, finding.name, finding.garbage) for finding in found] == [
            ("untracked", victim.name, False)
        ]


@pytest.mark.parametrize("content", [b"", b"garbage", os.urandom(40_000)])
def test_a_database_of_garbage_is_set_aside(filled, open_log, keys, content):
    (filled / "durable.db").write_bytes(content)
    report = holdfast.rebuild(filled, **keys)
    assert report.set_aside is not None
    assert Path(report.set_aside).read_bytes() == content
    with open_log(**keys) as log:
        assert payloads(log, 1) == sealed_payloads(1)


def test_rebuilding_again_changes_nothing(filled, open_log, keys):
    first = holdfast.rebuild(filled, **keys)
    again = holdfast.rebuild(filled, **keys)
    assert (again.records, again.segments, again.lost) == (first.records, first.segments, ())
    with open_log(**keys) as log:
        assert payloads(log, 0) == sealed_payloads(0) + TAIL
        assert log.reconcile(deep=True).clean


def test_expired_segments_stay_expired(filled, open_log, keys):
    with open_log(**keys) as log:
        log.set_retention("orders", records_max=30)
        log.retain()
        first = log.topic("orders").read(partition=1)
        kept = [record.offset for record in first]
    (filled / "durable.db").unlink()
    holdfast.rebuild(filled, **keys)
    with open_log(**keys) as log:
        assert [record.offset for record in log.topic("orders").read(partition=1)] == kept
        with pytest.raises(NotFound, match="expired"):
            list(log.topic("orders").read(0, partition=1))
        assert log.reconcile(deep=True).clean
        log.topic("orders").append(b"more", partition=1)
        log.seal()
        times = [record.offset for record in log.topic("orders").read(partition=1, since=0)]
        assert times == [*kept, 100]


def test_an_encrypted_log_is_not_rebuilt_without_its_key(open_log, keyring, tmp_path):
    with open_log(keyring=keyring) as log:
        log.topic("orders").append(b"x")
        log.seal()
    (tmp_path / "log" / "durable.db").unlink()
    with pytest.raises(Invalid, match="encrypted"):
        holdfast.rebuild(tmp_path / "log")
    with pytest.raises(Invalid):
        holdfast.rebuild(tmp_path / "log", keyring=Keyring.generate())
    assert not (tmp_path / "log" / "durable.db").exists()


def test_a_log_that_is_open_is_not_rebuilt(filled, open_log, keys):
    with open_log(**keys), pytest.raises(Unavailable, match="open in"):
        holdfast.rebuild(filled, **keys)


def test_a_lost_format_file_is_written_again(filled, open_log, keys):
    log_id = (filled / "FORMAT").read_text()
    (filled / "FORMAT").unlink()
    (filled / "durable.db").unlink()
    holdfast.rebuild(filled, **keys)
    assert (filled / "FORMAT").read_text() == log_id


# The plan itself.


def file(number: int, first: int, rows: int, previous: bytes, salt: bytes = b"a") -> SegmentFound:
    head = SegmentHead(
        log_id=b"l" * 16,
        topic="t",
        partition=0,
        number=number,
        first=first,
        epoch=1,
        schema=NO_SCHEMA,
        previous=previous,
    )
    facts = SegmentFacts(
        rows=rows, size=100, time_min=0, time_max=1, sha256=salt * 32, content=salt * 32, footer=b"f" * 16, key_id=""
    )
    return SegmentFound(Segment(head=head, facts=facts), 0)


def test_of_two_files_with_one_number_the_one_that_its_successor_names_is_right():
    right, wrong = file(0, 0, 5, NO_CHAIN), file(0, 0, 9, NO_CHAIN, b"b")
    after = file(1, 5, 5, right.segment.chain)
    assert choose([wrong, after, right]) == ([right, after], [wrong])


def test_of_two_newest_files_the_longer_one_is_taken():
    short, long = file(0, 0, 5, NO_CHAIN), file(0, 0, 9, NO_CHAIN, b"b")
    assert choose([short, long]) == ([long], [short])


def test_rows_cover_every_offset_and_every_number():
    first = file(3, 30, 10, b"p" * 32)
    later = file(6, 70, 10, b"q" * 32)
    planned = plan(1, [later, first], durable=90)
    assert [row.number for row in planned.rows] == list(range(8))
    ends = [0, *(row.end for row in planned.rows)]
    assert [row.first_offset for row in planned.rows] == ends[:-1]
    assert planned.lost == [(40, 30), (80, 10)]
