"""Typed topics end to end: what they take, what they refuse before anything is written, and how schemas grow."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import holdfast
from holdfast import Invalid, NotFound
from tests.segments.test_roller import eventually, sealing, tail_entries

pytestmark = pytest.mark.disk

ORDERS = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string()), pa.field("price", pa.float64())]
)
WIDER = ORDERS.append(pa.field("note", pa.string()))
RICH = pa.schema(
    [
        pa.field("colour", pa.dictionary(pa.int8(), pa.string())),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("address", pa.struct([("street", pa.string()), ("numbers", pa.list_(pa.int32()))])),
        pa.field("extra", pa.map_(pa.string(), pa.float64())),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("at", pa.timestamp("us", tz="UTC")),
    ]
)
ROWS = [
    {"id": 1, "name": "a", "price": 1.5},
    {"id": 2, "name": None, "price": None},
    {"id": 3, "name": "", "price": 0.0},
]


@pytest.fixture(params=["plain", "encrypted"])
def log(request, open_log, keyring):
    return open_log(segments=sealing(), keyring=keyring if request.param == "encrypted" else None)


def rows(topic, **options):
    """The rows of a topic without what the log adds."""
    return [{k: v for k, v in row.items() if not k.startswith("_")} for row in topic.read(**options)]


def unchanged_by(topic, call):
    """The error that a call raises; nothing may be appended by it, nor wait to be."""
    before = topic.marks()
    with pytest.raises(Invalid) as caught:
        call()
    topic.flush()
    assert topic.marks() == before
    assert caught.value.hint
    return caught.value


# -- what goes in ------------------------------------------------------------------------------------------

FORMS = {
    "batch": pa.RecordBatch.from_pylist(ROWS, schema=ORDERS),
    "table": pa.Table.from_pylist(ROWS, schema=ORDERS),
    "chunks": pa.concat_tables(pa.Table.from_pylist([row], schema=ORDERS) for row in ROWS),
    "dicts": ROWS,
    "generator": None,
    "polars": pl.DataFrame(pa.Table.from_pylist(ROWS, schema=ORDERS)),
    "pandas": pd.DataFrame({"id": [1, 2, 3], "name": ["a", None, ""], "price": [1.5, None, 0.0]}),
    "other order": pa.Table.from_pylist(ROWS, schema=ORDERS).select(["price", "id", "name"]),
}


@pytest.mark.parametrize("form", FORMS)
def test_rows_come_in_many_forms_and_out_as_they_were(log, form):
    topic = log.topic("t", schema=ORDERS)
    given = iter(ROWS) if form == "generator" else FORMS[form]
    receipts = topic.append(given)
    assert [receipt.offset for receipt in receipts] == [0, 1, 2]
    assert rows(topic) == ROWS
    log.seal("t")
    eventually(lambda: tail_entries(log) == 0)
    assert rows(topic) == ROWS
    assert rows(topic, reverse=True) == ROWS[::-1]


def test_one_dict_is_one_row(log):
    topic = log.topic("t", schema=ORDERS)
    assert topic.append({"id": 7}).__len__() == 1
    assert rows(topic) == [{"id": 7, "name": None, "price": None}]


def test_a_batch_is_one_entry(log):
    topic = log.topic("t", schema=ORDERS)
    receipts = topic.append([{"id": i} for i in range(1000)])
    assert {receipt.seq for receipt in receipts} == {receipts[0].seq}
    assert tail_entries(log) == 1


def test_nested_and_dictionary_types_come_back_equal(log):
    at = datetime(2024, 5, 6, 7, 8, 9, 10, tzinfo=UTC)
    data = pa.Table.from_pylist(
        [
            {
                "colour": "red",
                "tags": ["a", None, ""],
                "address": {"street": "x", "numbers": [1, 2]},
                "extra": [("k", 1.0), ("l", None)],
                "price": Decimal("12.34"),
                "at": at,
            },
            {"colour": None, "tags": [], "address": None, "extra": [], "price": None, "at": None},
            {"colour": "blue", "tags": None, "address": {"street": None, "numbers": None}, "extra": None},
        ],
        schema=RICH,
    )
    topic = log.topic("t", schema=RICH)
    topic.append(data)
    log.seal("t")
    topic.append(data)
    got = topic.read().to_arrow()
    assert got.select(RICH.names).to_pylist() == data.to_pylist() * 2
    assert got.schema.field("colour").type.value_type == pa.string()


def test_columns_that_are_all_null_are_kept(log):
    topic = log.topic("t", schema=ORDERS)
    topic.append([{"id": i} for i in range(5)])
    log.seal("t")
    assert topic.read().to_arrow().column("name").null_count == 5


def test_tickets_of_rows_can_be_awaited(log):
    topic = log.topic("t", schema=ORDERS)
    tickets = [topic.submit({"id": i}) for i in range(5)]
    assert [ticket.result()[0].offset for ticket in tickets] == list(range(5))
    assert topic.offer({"id": 5})
    topic.flush()
    assert [row["id"] for row in topic.read()] == list(range(6))


def test_an_idempotency_key_writes_rows_once(log):
    topic = log.topic("t", schema=ORDERS)
    first = topic.append(ROWS, idempotency_key="a")
    again = topic.append(ROWS, idempotency_key="a")
    assert list(first) == list(again)
    log.seal("t")
    assert list(topic.append(ROWS, idempotency_key="a")) == list(first)
    assert topic.marks()[0].durable == 3


def test_rows_go_to_the_partition_that_is_named(log):
    topic = log.topic("t", schema=ORDERS, partitions=3)
    for partition in range(3):
        topic.append([{"id": partition}] * (partition + 1), partition=partition)
    log.seal("t")
    assert [mark.sealed for mark in topic.marks()] == [1, 2, 3]
    assert [row["id"] for row in topic.read(partition=2)] == [2, 2, 2]
    assert sorted(topic.read().to_arrow().column("_partition").to_pylist()) == [0, 1, 1, 2, 2, 2]


# -- times -------------------------------------------------------------------------------------------------

EVENTS = pa.schema([pa.field("at", pa.timestamp("ms", tz="UTC")), pa.field("n", pa.int32())])


def test_a_column_may_hold_the_times(log):
    topic = log.topic("t", schema=EVENTS)
    topic.append(pa.table({"at": [3000, 1000, 2000], "n": [0, 1, 2]}, schema=EVENTS), time="at")
    log.seal("t")
    topic.append(pa.table({"at": [1500, 9000], "n": [3, 4]}, schema=EVENTS), time="at")
    assert [row["n"] for row in topic.read(since=1_500_000, until=3_000_000)] == [0, 2, 3]
    assert [row["n"] for row in topic.read(since=1_500_000, until=3_000_000, reverse=True)] == [3, 2, 0]
    assert topic.read(until=1_499_999).to_arrow().column("n").to_pylist() == [1]


def test_one_time_may_hold_for_all_rows(log):
    topic = log.topic("t", schema=ORDERS)
    topic.append(ROWS, time=5)
    topic.append(ROWS, time=datetime(1970, 1, 1, tzinfo=UTC))
    log.seal("t")
    assert [row["_offset"] for row in topic.read(since=5)] == [0, 1, 2]


def test_a_time_that_is_no_column_or_null_is_refused(log):
    topic = log.topic("t", schema=EVENTS)
    unchanged_by(topic, lambda: topic.append({"at": datetime.now(UTC), "n": 1}, time="n"))
    unchanged_by(topic, lambda: topic.append({"at": datetime.now(UTC), "n": 1}, time="nothing"))
    unchanged_by(topic, lambda: topic.append({"at": None, "n": 1}, time="at"))


def test_times_that_no_datetime_can_hold_are_read_as_arrow(log):
    topic = log.topic("t", schema=ORDERS)
    topic.append({"id": 1}, time=2**62)
    log.seal("t")
    topic.append({"id": 2}, time=-(2**62))
    with pytest.raises(Invalid, match="no datetime") as caught:
        list(topic.read())
    assert "to_arrow" in caught.value.hint
    assert topic.read().to_arrow().column("_time").cast(pa.int64()).to_pylist() == [2**62, -(2**62)]
    assert topic.read(since=2**62).to_arrow().column("id").to_pylist() == [1]


def test_times_of_a_slice_are_those_of_the_slice(log):
    topic = log.topic("t", schema=EVENTS)
    whole = pa.record_batch({"at": [i * 1000 for i in range(10)], "n": list(range(10))}, schema=EVENTS)
    topic.append(whole.slice(4, 3), time="at")
    assert [row["n"] for row in topic.read(since=5_000_000, until=5_000_000)] == [5]


# -- what is refused ---------------------------------------------------------------------------------------

WRONG = {
    "a null in a required column": [{"id": 1}, {"id": None}],
    "a missing required column": [{"name": "x"}],
    "a column that is not there": [{"id": 1, "colour": "red"}],
    "a text for a number": [{"id": "1"}],
    "a float for an int": [{"id": 1.5}],
    "a number that is too large": [{"id": 2**63}],
    "a table of another type": pa.table({"id": pa.array([1], pa.int32()), "name": ["x"], "price": [1.0]}),
    "a table with another column": pa.table({"id": [1], "colour": ["red"]}),
    "a table with a null in a required column": pa.table({"id": pa.array([1, None], pa.int64())}),
    "the last of many": [*({"id": i} for i in range(500)), {"id": None}],
    "an empty list": [],
    "an empty table": ORDERS.empty_table(),
    "an empty batch": pa.RecordBatch.from_pylist([], schema=ORDERS),
    "no rows at all": b"bytes",
    "numbers": [1, 2],
    "nothing": None,
}


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_is_refused_before_anything_is_written(open_log, what):
    topic = open_log(segments=sealing()).topic("t", schema=ORDERS)
    topic.append(ROWS)
    for call in (topic.append, topic.submit, topic.offer):
        unchanged_by(topic, lambda call=call: call(WRONG[what]))


def test_too_many_rows_are_refused(open_log):
    topic = open_log(segments=sealing(), journal={"batch_records_max": 10}).topic("t", schema=ORDERS)
    unchanged_by(topic, lambda: topic.append([{"id": i} for i in range(11)]))
    topic.append([{"id": i} for i in range(10)])


def test_too_many_bytes_are_refused(open_log):
    topic = open_log(segments=sealing(), journal={"batch_bytes_max": 10_000}).topic("t", schema=ORDERS)
    unchanged_by(topic, lambda: topic.append([{"id": 1, "name": "x" * 20_000}]))


def test_values_are_not_shown_in_errors(open_log):
    topic = open_log(segments=sealing()).topic("t", schema=ORDERS)
    error = unchanged_by(topic, lambda: topic.append([{"id": "secret-value"}]))
    assert "secret-value" not in str(error)


def test_a_topic_is_raw_or_typed_for_ever(open_log):
    log = open_log(segments=sealing())
    log.topic("raw")
    log.topic("typed", schema=ORDERS)
    for wrong in (lambda: log.topic("raw", schema=ORDERS), lambda: log.topic("typed")):
        with pytest.raises(Invalid):
            wrong()
    log.close()
    log = open_log(segments=sealing())
    for wrong in (lambda: log.topic("raw", schema=ORDERS), lambda: log.topic("typed")):
        with pytest.raises(Invalid):
            wrong()


# -- versions ----------------------------------------------------------------------------------------------


def test_a_schema_grows_by_a_nullable_column_and_old_rows_have_nulls(log):
    topic = log.topic("t", schema=ORDERS)
    topic.append({"id": 1, "name": "sealed"})
    log.seal("t")
    topic.append({"id": 2, "name": "tail"})
    log.topic("t", schema=WIDER)
    topic.append({"id": 3, "note": "new"})
    wanted = [
        {"id": 1, "name": "sealed", "price": None, "note": None},
        {"id": 2, "name": "tail", "price": None, "note": None},
        {"id": 3, "name": None, "price": None, "note": "new"},
    ]
    assert rows(topic) == wanted
    log.seal("t")
    assert rows(topic) == wanted
    assert topic.read().to_arrow().schema.names == ["_partition", "_offset", "_time", *WIDER.names]
    assert topic.schema.names == WIDER.names


REFUSED = {
    "a required column": ORDERS.append(pa.field("must", pa.int64(), nullable=False)),
    "another type": ORDERS.set(2, pa.field("price", pa.float32())),
    "a required one becomes nullable": ORDERS.set(0, pa.field("id", pa.int64())),
    "a nullable one becomes required": ORDERS.set(1, pa.field("name", pa.string(), nullable=False)),
    "a name gone": pa.schema([ORDERS.field("id"), pa.field("label", pa.string()), ORDERS.field("price")]),
}


@pytest.mark.parametrize("change", REFUSED)
def test_any_other_change_is_refused_and_changes_nothing(log, change):
    topic = log.topic("t", schema=ORDERS)
    topic.append(ROWS)
    with pytest.raises(Invalid):
        log.topic("t", schema=REFUSED[change])
    assert topic.schema.equals(ORDERS)
    assert rows(topic) == ROWS


def test_a_service_with_an_older_version_can_still_open_and_append(open_log):
    log = open_log(segments=sealing())
    log.topic("t", schema=ORDERS).append({"id": 1})
    log.topic("t", schema=WIDER).append({"id": 2, "note": "x"})
    log.close()
    log = open_log(segments=sealing())
    old = log.topic("t", schema=ORDERS)
    old.append({"id": 3})
    assert old.schema.names == WIDER.names
    assert [(row["id"], row["note"]) for row in old.read()] == [(1, None), (2, "x"), (3, None)]


def test_the_latest_schema_is_taken_as_it_is(open_log):
    log = open_log(segments=sealing())
    with pytest.raises(NotFound):
        log.topic("t", schema="latest")
    log.topic("t", schema=ORDERS)
    log.topic("t", schema=WIDER)
    log.close()
    topic = open_log(segments=sealing()).topic("t", schema="latest")
    assert topic.schema.names == WIDER.names
    topic.append({"id": 1, "note": "x"})


def test_asking_again_with_the_same_schema_starts_no_version(open_log):
    log = open_log(segments=sealing())
    for _ in range(3):
        log.topic("t", schema=ORDERS)
    log.topic("t", schema=ORDERS.with_metadata({"owner": "me"}))
    assert len(log._journal.schemas["t"]) == 1


def test_many_versions_are_read_as_the_newest(log):
    schema = pa.schema([pa.field("c0", pa.int64())])
    topic = log.topic("t", schema=schema)
    topic.append({"c0": 0})
    for i in range(1, 8):
        schema = schema.append(pa.field(f"c{i}", pa.int64()))
        log.topic("t", schema=schema)
        topic.append({f"c{i}": i})
        if i % 3 == 0:
            log.seal("t")
    wanted = [{f"c{k}": (i if k == i else None) for k in range(8)} for i in range(8)]
    assert rows(topic) == wanted
    assert rows(topic, reverse=True) == wanted[::-1]
    assert topic.read(columns=["c7", "c2"]).to_arrow().select(["c2", "c7"]).to_pylist() == [
        {"c2": 2 if i == 2 else None, "c7": 7 if i == 7 else None} for i in range(8)
    ]


def test_a_reading_that_began_before_a_new_version_goes_on_in_its_own(log):
    topic = log.topic("t", schema=ORDERS)
    for i in range(10):
        topic.append({"id": i})
    reading = topic.read()
    got = [next(reading)["id"]]
    log.topic("t", schema=WIDER)
    topic.append({"id": 10, "note": "x"})
    log.seal("t")
    eventually(lambda: tail_entries(log) == 0)
    rest = list(reading)
    assert got + [row["id"] for row in rest] == list(range(10))
    assert all("note" not in row for row in rest)


def test_another_process_sees_a_new_version_and_its_rows(open_log):
    log = open_log(segments=sealing())
    topic = log.topic("t", schema=ORDERS)
    topic.append({"id": 1})
    with holdfast.open(log.path, read_only=True) as other:
        looking = other.topic("t", schema="latest")
        assert rows(looking) == [{"id": 1, "name": None, "price": None}]
        log.topic("t", schema=WIDER)
        topic.append({"id": 2, "note": "x"})
        assert [row["note"] for row in looking.read()] == [None, "x"]
        assert looking.read().to_arrow().column("note").to_pylist() == [None, "x"]


def test_a_handle_that_only_looks_starts_no_version(open_log):
    log = open_log(segments=sealing())
    log.topic("t", schema=ORDERS).append(ROWS)
    with holdfast.open(log.path, read_only=True) as other:
        assert rows(other.topic("t", schema=ORDERS)) == ROWS
        with pytest.raises(Invalid, match="reading only"):
            other.topic("t", schema=WIDER)


# -- what comes out ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [["name"], ["price", "id"], []])
def test_some_columns_may_be_read_alone(log, columns):
    topic = log.topic("t", schema=ORDERS)
    topic.append(ROWS)
    log.seal("t")
    topic.append(ROWS)
    table = topic.read(columns=columns).to_arrow()
    assert set(table.schema.names) == {"_partition", "_offset", "_time", *columns}
    assert table.num_rows == 6
    for column in columns:
        assert table.column(column).to_pylist() == [row[column] for row in ROWS] * 2
    got = topic.read(4, columns=columns, limit=1)
    assert [row["_offset"] for row in got] == [4]


def test_a_column_that_is_not_there_is_refused(log):
    topic = log.topic("t", schema=ORDERS)
    with pytest.raises(Invalid, match="colour"):
        topic.read(columns=["colour"])


def test_pages_of_rows_meet_every_row_once(log):
    topic = log.topic("t", schema=ORDERS, partitions=2)
    for i in range(20):
        topic.append({"id": i}, partition=i % 2)
        if i == 9:
            log.seal("t")
    got, position = [], None
    while True:
        page = topic.read(position, limit=3)
        got += [row["id"] for row in page]
        position = page.position
        if page.exhausted:
            break
    assert sorted(got) == list(range(20))


def test_rows_are_limited_in_bytes_and_the_first_is_always_given(log):
    topic = log.topic("t", schema=ORDERS)
    topic.append([{"id": i, "name": "x" * 1000} for i in range(5)])
    log.seal("t")
    assert [row["id"] for row in topic.read(bytes_max=1)] == [0]
    assert [row["id"] for row in topic.read(bytes_max=2500)] == [0, 1]


def test_frames_come_out(log):
    topic = log.topic("t", schema=ORDERS)
    topic.append(ROWS)
    log.seal("t")
    topic.append(ROWS)
    assert topic.read().to_polars()["id"].to_list() == [1, 2, 3] * 2
    assert topic.read().to_pandas()["id"].tolist() == [1, 2, 3] * 2
    assert pa.table(topic.read(columns=["id"])).column("id").to_pylist() == [1, 2, 3] * 2


def test_nothing_of_an_encrypted_row_is_in_the_clear(open_log, keyring, tmp_path):
    log = open_log(segments={"seal_on_close": True}, keyring=keyring)
    topic = log.topic("t", schema=ORDERS)
    topic.append({"id": 1, "name": "a-very-secret-name"})
    log.seal("t")
    topic.append({"id": 2, "name": "a-very-secret-name"})
    log.close()
    content = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"very-secret" not in content
    reopened = open_log(segments=sealing(), keyring=keyring).topic("t", schema="latest")
    assert [row["name"] for row in reopened.read()] == ["a-very-secret-name"] * 2
