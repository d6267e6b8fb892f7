"""Typed topics with a key column: rows of one key are in one partition, in order, the same one for every process."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from zlib import crc32

import polars
import pyarrow as pa
import pytest

import holdfast
from holdfast import Invalid, Settings

pytestmark = pytest.mark.disk

SCHEMA = pa.schema([("customer", pa.string()), ("n", pa.int64())])
PARTITIONS = 4


def rows_of(count: int, customers: int = 20, nulls: bool = True) -> list[dict[str, object]]:
    rng = random.Random(7)
    return [
        {"customer": None if nulls and rng.random() < 0.1 else f"größe-{rng.randrange(customers)}", "n": n}
        for n in range(count)
    ]


def by_partition(topic) -> dict[int, list[dict[str, object]]]:
    return {number: list(topic.read(partition=number)) for number in range(topic.partitions)}


def test_rows_go_where_raw_records_of_their_key_go(open_log):
    """Whatever they are given as; each row has its receipt, in the order in which rows were given."""
    log = open_log()
    topic = log.topic("rows", schema=SCHEMA, partitions=PARTITIONS, key="customer")
    raw = log.topic("raw", partitions=PARTITIONS)
    rows = rows_of(500)
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    for given in (rows, table, table.to_batches()[0], polars.from_arrow(table), table.slice(100, 300)):
        receipts = topic.append(given)
        wanted = given.to_pylist() if isinstance(given, pa.Table) else rows
        assert len(receipts) == len(wanted)
        stored = {(row["_partition"], row["_offset"]): row for row in topic.read()}
        for receipt, row in zip(receipts, wanted, strict=True):
            found = stored[receipt.partition, receipt.offset]
            assert (found["customer"], found["n"]) == (row["customer"], row["n"])
            if row["customer"] is not None:
                assert receipt.partition == crc32(row["customer"].encode()) % PARTITIONS
        assert (
            len({receipt.partition for receipt, row in zip(receipts, wanted, strict=True) if row["customer"] is None})
            == 1
        )
        assert receipts[-1] == list(receipts)[-1]
        assert receipts[:3] == list(receipts)[:3]
    for customer in {row["customer"] for row in rows} - {None}:
        partition = raw.append(b"", key=customer).partition
        assert {row["_partition"] for row in topic.read() if row["customer"] == customer} == {partition}
    for found in by_partition(topic).values():
        assert [row["_offset"] for row in found] == list(range(len(found)))


def test_rows_of_one_key_stay_in_order(open_log):
    """Within a batch and from batch to batch."""
    topic = open_log().topic("rows", schema=SCHEMA, partitions=PARTITIONS, key="customer")
    rows = rows_of(900, nulls=False)
    for start in range(0, 900, 300):
        topic.append(rows[start : start + 300])
    for customer in {row["customer"] for row in rows}:
        assert [row["n"] for row in topic.read() if row["customer"] == customer] == [
            row["n"] for row in rows if row["customer"] == customer
        ]


KINDS = {
    pa.int64(): [0, -1, 2**62, 42],
    pa.uint8(): [0, 255, 7, 8],
    pa.binary(): [b"", b"\xff\xfe", b"a", b"b"],
    pa.binary(3): [b"abc", b"\0\0\0", b"xyz", b"zzz"],
    pa.large_string(): ["", "ü", "b", "c"],
    pa.dictionary(pa.int32(), pa.string()): ["x", "y", "z", "x"],
}


@pytest.mark.parametrize("kind", list(KINDS), ids=str)
def test_the_bytes_of_a_key_are_defined(open_log, kind):
    """Text in UTF-8, bytes as they are, integers as decimal text."""
    topic = open_log().topic("rows", schema=pa.schema([("k", kind), ("n", pa.int64())]), partitions=7, key="k")
    receipts = topic.append([{"k": value, "n": 0} for value in KINDS[kind]])
    keys = [value if isinstance(value, bytes) else str(value).encode() for value in KINDS[kind]]
    assert [receipt.partition for receipt in receipts] == [crc32(key) % 7 for key in keys]


def test_every_process_agrees(tmp_path):
    """The key column is kept with the topic: nobody has to name it again, and nobody can name another."""
    with holdfast.open(tmp_path / "log") as log:
        log.topic("rows", schema=SCHEMA, partitions=PARTITIONS, key="customer").append({"customer": "a", "n": 1})
    code = """
import sys, json, holdfast
with holdfast.open(sys.argv[1]) as log:
    topic = log.topic("rows", schema="latest")
    receipts = topic.append([{"customer": name, "n": 2} for name in "abcdefgh"])
    print(json.dumps([topic.key, topic.schema.metadata is None, [receipt.partition for receipt in receipts]]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "log")], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == ["customer", True, [crc32(name.encode()) % PARTITIONS for name in "abcdefgh"]]
    with holdfast.open(tmp_path / "log") as log:
        grown = SCHEMA.append(pa.field("note", pa.string()))
        with pytest.raises(Invalid, match="has the key column 'customer', not 'note'"):
            log.topic("rows", schema=grown, key="note")
        assert log.topic("rows", schema="latest").schema == SCHEMA  # what is refused starts no version
        assert log.topic("rows", schema=grown, key="customer").key == "customer"


def test_what_cannot_be_a_key_column_is_refused(open_log):
    """Before the topic is there."""
    log = open_log()
    schema = pa.schema(
        [("x", pa.float64()), ("t", pa.timestamp("us")), ("l", pa.list_(pa.string())), ("b", pa.bool_())]
    )
    for column in schema.names:
        with pytest.raises(Invalid, match="cannot be the key"):
            log.topic("rows", schema=schema, partitions=2, key=column)
    with pytest.raises(Invalid, match="no column 'y'"):
        log.topic("rows", schema=schema, key="y")
    with pytest.raises(Invalid, match="raw topic has no key column"):
        log.topic("raw", key="x")
    assert log.topics() == []
    log.topic("plain", schema=SCHEMA)
    with pytest.raises(Invalid, match="no key column, not 'n'"):
        log.topic("plain", schema=SCHEMA, key="n")


def test_a_named_partition_is_where_rows_go(open_log):
    """As with raw records, the caller may know better."""
    topic = open_log().topic("rows", schema=SCHEMA, partitions=PARTITIONS, key="customer")
    assert {receipt.partition for receipt in topic.append(rows_of(50), partition=3)} == {3}


@pytest.mark.parametrize("encrypted", [False, True])
def test_an_idempotency_key_stands_for_all_parts(open_log, keyring, encrypted):
    """A repeat returns all receipts and writes nothing; other rows are refused whole, also those of new partitions."""
    log = open_log(keyring=keyring if encrypted else None)
    topic = log.topic("rows", schema=SCHEMA, partitions=PARTITIONS, key="customer")
    rows = rows_of(40)
    first = list(topic.append(rows, idempotency_key="b"))
    topic.append(rows_of(3))
    log.close()
    log = open_log(keyring=keyring if encrypted else None)
    topic = log.topic("rows", schema="latest")
    for _ in range(PARTITIONS):  # rows without a key, too, whosever turn it is
        again = topic.append(rows, idempotency_key="b")
        assert list(again) == first
        assert all(receipt.repeated for receipt in again)
    singles = {crc32(b"%d" % n) % PARTITIONS: {"customer": str(n), "n": n} for n in range(50)}
    for other in (rows[:-1], *singles.values()):
        with pytest.raises(Invalid, match="already in use for other content"):
            topic.append(other, idempotency_key="b")
    one, *others = singles.values()
    topic.append(one, idempotency_key="s")
    for other in others:  # in partitions where nothing is known of the key
        with pytest.raises(Invalid, match="already in use for other content"):
            topic.append(other, idempotency_key="s")
    assert topic.read().to_arrow().num_rows == 44


def test_parts_commit_together_or_not_at_all(open_log):
    """A batch whose key is half forgotten writes nothing, rather than half of it twice."""
    log = open_log(journal={"idempotency_keys_max": 3})
    topic = log.topic("rows", schema=SCHEMA, partitions=PARTITIONS, key="customer")
    rows = rows_of(40, nulls=False)
    topic.append(rows, idempotency_key="b")  # a key for each of four parts, and only three are kept
    log.topic("rows", schema="latest").append({"customer": "x", "n": 1}, idempotency_key="c")
    with pytest.raises(Invalid, match="of a part of this batch only"):
        topic.append(rows, idempotency_key="b")
    assert topic.read().to_arrow().num_rows == 41


def test_sealing_restore_and_reconciliation_know_nothing_of_it(open_log, tmp_path):
    """Rows come back from the store as they were, and so does the key column."""
    root = tmp_path / "store"
    settings = Settings.from_mapping({"store": {"url": root.as_uri()}})
    with holdfast.open(tmp_path / "log", settings=settings) as log:
        topic = log.topic("rows", schema=SCHEMA, partitions=PARTITIONS, key="customer")
        topic.append(rows_of(200), durability="shipped")
        log.seal()
        log.ship()
        topic.append(rows_of(20), durability="shipped")
        before = by_partition(topic)
        assert log.reconcile(deep=True).clean
        assert log.reconcile(remote=True, deep=True).clean
    assert holdfast.read(root, topic="rows").count() == 220
    holdfast.restore(root.as_uri(), tmp_path / "back")
    with holdfast.open(tmp_path / "back", settings=settings) as back:
        topic = back.topic("rows", schema=SCHEMA, key="customer")
        assert by_partition(topic) == before
        assert topic.append({"customer": "a", "n": 0})[0].partition == crc32(b"a") % PARTITIONS


@pytest.mark.parametrize("at", [1, 2], ids=["in the middle", "at the end"])
def test_polars_reads_segments_of_two_versions_as_the_docs_say(open_log, at):
    """With the widest schema among the files, whatever partition has it, missing columns become null."""
    log = open_log()
    topic = log.topic("rows", schema=SCHEMA, partitions=2)
    for partition in (0, 1):
        topic.append({"customer": "old", "n": partition}, partition=partition)
    log.seal()
    topic = log.topic("rows", schema=SCHEMA.insert(at, pa.field("tags", pa.list_(pa.string()))))
    topic.append({"customer": "new", "n": 2, "tags": ["x"]}, partition=1)
    log.seal()
    files = sorted((log.path / "segments").glob("topics/rows/*/segments/*.parquet"))
    widest = max((polars.read_parquet_schema(file) for file in files), key=len)
    frame = polars.scan_parquet(files, schema=widest, missing_columns="insert").sort("n").collect()
    assert frame.select("customer", "tags", "n").rows() == [("old", None, 0), ("old", None, 1), ("new", ["x"], 2)]
