"""Typed rows read back from segments: the same rows as plain pyarrow finds in the files, by whatever way they are read.

Row groups are decoded whole for a reader to the end, and in steps for one that may stop early. Neither may change
a row, and both must refuse damage.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from itertools import product

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast
from holdfast import Corrupt
from holdfast.segments.file import group_decoding, segment_reader
from tests.segments.test_roller import sealing

pytestmark = pytest.mark.disk

START = datetime(2024, 5, 6, tzinfo=UTC)
GROUP, COUNT = 10, 47
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("small", pa.int8()),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("rate", pa.float32()),
        pa.field("paid", pa.bool_(), nullable=False),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("ns", tz="UTC")),
        pa.field("text", pa.large_string()),
        pa.field("blob", pa.binary(4)),
        pa.field("colour", pa.dictionary(pa.int8(), pa.string())),
        pa.field("view", pa.string_view()),
        pa.field("moment", pa.timestamp("s", tz="UTC")),
        pa.field("midnight", pa.date64()),
        pa.field("clock", pa.time32("s")),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("pair", pa.list_(pa.int32(), 2)),
        pa.field("address", pa.struct([("street", pa.string()), ("numbers", pa.list_(pa.int32()))])),
        pa.field("extra", pa.map_(pa.string(), pa.float64())),
    ]
)
WIDER = SCHEMA.append(pa.field("note", pa.string()))


def row(i):
    """A row with a value or a null in every column, by turns."""
    given = {
        "small": i % 100,
        "price": Decimal(i) / 4,
        "rate": i / 2,
        "day": (START + timedelta(days=i)).date(),
        "at": START + timedelta(seconds=i),
        "text": f"text {i}" * (i % 4),
        "blob": i.to_bytes(4, "little"),
        "colour": ("red", "green", "blue")[i % 3],
        "view": "long enough to be no inline view " * (i % 2) + str(i),
        "moment": START + timedelta(hours=i),
        "midnight": (START + timedelta(days=i)).date(),
        "clock": time(i % 24, i, 0),
        "tags": [str(i), None, ""][: i % 4],
        "pair": [i, -i],
        "address": {"street": f"s{i}", "numbers": list(range(i % 3))},
        "extra": [(str(i), float(i)), ("x", None)],
    }
    kept = {name: value for at, (name, value) in enumerate(given.items()) if (i + at) % 5}
    return {"id": i, "paid": i % 2 == 0, **kept}


def filled(log):
    """A typed topic with three segments of several row groups each, the last one in a wider schema, and a tail."""
    topic = log.topic("t", schema=SCHEMA)
    rows = [row(i) for i in range(COUNT)]
    for first in (0, COUNT):
        topic.append(pa.Table.from_pylist([{**r, "id": first + r["id"]} for r in rows], SCHEMA), time=START)
        log.seal("t")
    topic = log.topic("t", schema=WIDER)
    later = START + timedelta(days=1)
    noted = [{**r, "id": 2 * COUNT + r["id"], "note": f"n{r['id']}" if r["id"] % 3 else None} for r in rows]
    topic.append(pa.Table.from_pylist(noted, WIDER), time=later)
    log.seal("t")
    topic.append(pa.Table.from_pylist([{**r, "id": COUNT + r["id"]} for r in noted[:5]], WIDER), time=later)
    return topic


@pytest.fixture(params=["whole", "steps"])
def way(request, monkeypatch):
    """Row groups decoded at once, or in steps although they are read to the end, as large ones are."""
    if request.param == "steps":
        monkeypatch.setattr(segment_reader, "TYPED_STEP_ROWS", 4)
    return request.param


@pytest.fixture
def log(open_log):
    return open_log(segments=sealing(row_group_rows=GROUP))


def decodings(monkeypatch):
    """Which of pyarrow's two ways are taken from now on."""
    taken = []

    class Watched(pq.ParquetFile):
        def read_row_group(self, *given, **named):
            taken.append("whole")
            return super().read_row_group(*given, **named)

        def iter_batches(self, *given, **named):
            taken.append("steps")
            return super().iter_batches(*given, **named)

    monkeypatch.setattr(group_decoding.pq, "ParquetFile", Watched)
    return taken


def by_pyarrow(tmp_path):
    """What plain pyarrow reads from all segment files, in order, as Python's values."""
    files = sorted(tmp_path.glob("**/segments/*.parquet"))
    assert len(files) == 3
    return [found for file in files for found in pq.ParquetFile(file).read().to_pylist()]


def test_rows_are_those_that_pyarrow_reads(log, way, tmp_path):
    """All types, nulls, row groups and versions of the schema: as plain pyarrow reads the same files."""
    topic = filled(log)
    got = topic.read(0, 3 * COUNT).to_arrow()
    expected = by_pyarrow(tmp_path)
    assert got.schema == topic.read().schema
    assert got.drop_columns(["_partition"]).to_pylist() == [{"note": None, **found} for found in expected]
    assert got.column("_partition").to_pylist() == [0] * len(expected)
    got.validate(full=True)


SPANS = ((0, 3 * COUNT + 5), (3, 7), (GROUP - 1, COUNT + 2), (2 * COUNT + 9, 3 * COUNT + 3))
COLUMNS = (None, ["note", "id"], ["address"], [])
TIMES = ({}, {"since": START + timedelta(hours=1)}, {"until": START})


def test_every_choice_of_rows_is_a_part_of_all(log, way):
    """Spans, times, columns and directions: what is left of all rows when the others are dropped."""
    topic = filled(log)
    everything = topic.read().to_arrow().to_pylist()
    assert [found["id"] for found in everything] == list(range(3 * COUNT + 5))
    for (start, end), columns, times, reverse in product(SPANS, COLUMNS, TIMES, (False, True)):
        names = ["_partition", "_offset", "_time", *(c for c in WIDER.names if columns is None or c in columns)]
        expected = [
            {name: found[name] for name in names}
            for found in everything[start:end]
            if times.get("since", START) <= found["_time"] <= times.get("until", found["_time"])
        ]
        got = topic.read(start, end, columns=columns, reverse=reverse, **times).to_arrow()
        assert got.to_pylist() == (expected[::-1] if reverse else expected)


def test_who_reads_to_the_end_decodes_whole_row_groups_and_others_do_not(open_log, monkeypatch):
    """A limit means steps, so that a few rows do not cost many; and so do raw records, which are slower whole."""
    monkeypatch.setattr(segment_reader, "STEP_ROWS", 4)
    log = open_log(segments=sealing(row_group_rows=GROUP))
    topic = filled(log)
    raw = log.topic("raw")
    raw.append_batch([b"x"] * COUNT)
    log.seal("raw")
    taken = decodings(monkeypatch)
    for reading, expected in (
        (topic.read(), {"whole"}),
        (topic.read(limit=COUNT), {"steps"}),
        (topic.read(bytes_max=1), {"steps"}),
        (raw.read(), {"steps"}),
    ):
        taken.clear()
        list(reading.batches())
        assert set(taken) == expected
    taken.clear()
    next(iter(topic.read()))
    assert taken == ["steps"]


def test_a_few_rows_do_not_cost_a_whole_batch(log, monkeypatch):
    """Rows become dicts some at a time; a reader that stops after the first has not paid for thousands."""
    from holdfast.model.arrow import plain_arrays

    topic = log.topic("many", schema=pa.schema([("id", pa.int64())]))
    topic.append(pa.table({"id": range(5000)}))
    made, rows = [], plain_arrays.rows
    monkeypatch.setattr(plain_arrays, "rows", lambda batch: made.append(batch.num_rows) or rows(batch))
    assert [found["id"] for found in topic.read(limit=3)] == [0, 1, 2]
    assert sum(made) < 2000
    assert [found["id"] for found in topic.read()] == list(range(5000))
    assert [found["id"] for found in topic.read(reverse=True)] == list(range(5000))[::-1]


def test_batches_outlive_their_reading_and_their_log(open_log, tmp_path):
    """Memory of rows is Arrow's own: closing files and the log takes nothing away from it."""
    log = open_log(segments=sealing(row_group_rows=GROUP))
    topic = filled(log)
    batches = list(topic.read(0, 3 * COUNT).batches())
    table = pa.Table.from_batches(batches)
    log.close()
    del log, topic
    for file in tmp_path.glob("**/segments/*.parquet"):
        file.unlink()
    [pa.allocate_buffer(size) for size in (100, 1000, 10_000, 100_000) for _ in range(20)]
    assert table.column("id").to_pylist() == list(range(3 * COUNT))
    for batch in batches:
        batch.validate(full=True)


# -- damage --------------------------------------------------------------------------------------------------


def some_file(tmp_path, number):
    return sorted(tmp_path.glob("**/segments/*.parquet"))[number]


def test_a_flipped_byte_is_corrupt_and_what_came_before_is_given(log, way, tmp_path):
    """A block is compared with its hash before Arrow sees any of it; rows of sound segments are given first."""
    topic = filled(log)
    path = some_file(tmp_path, 1)
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    os.chmod(path, 0o600)
    path.write_bytes(content)
    batches = topic.read().batches()
    got = []
    with pytest.raises(Corrupt, match="block does not match its hash") as caught:
        got.extend(batch.num_rows for batch in batches)
    assert caught.value.hint
    assert caught.value.offset == COUNT
    assert "end=47" in caught.value.hint


def test_a_disk_that_fails_between_row_groups_is_a_typed_error(open_log, monkeypatch):
    """Input/output errors in the middle of a typed reading: Corrupt with a hint, after the rows that were good."""
    log = open_log(segments=sealing(row_group_rows=30_000))
    topic = log.topic("t", schema=pa.schema([("id", pa.int64()), ("noise", pa.binary())]))
    count = 90_000
    topic.append(pa.table({"id": range(count), "noise": [os.urandom(16) for _ in range(count)]}))
    log.seal("t")
    real, failed = os.preadv, []
    got = []

    def failing(descriptor, buffers, at):
        if got:
            failed.append(at)
            raise OSError(5, "Input/output error")
        return real(descriptor, buffers, at)

    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(Corrupt, match="cannot be read: Input/output error") as caught:
        for batch in topic.read().batches():
            got.append(batch.num_rows)
    assert got == [30_000]
    assert len(failed) == 1
    assert caught.value.offset == 30_000
    assert caught.value.hint
    monkeypatch.undo()
    assert topic.read().to_arrow().num_rows == count


def test_a_file_that_is_cut_in_the_middle_of_a_reading_is_corrupt(open_log, tmp_path):
    """Somebody truncates a segment's file while it is read: an error, never rows of memory that was not filled."""
    log = open_log(segments=sealing(row_group_rows=30_000))
    topic = log.topic("t", schema=pa.schema([("id", pa.int64()), ("noise", pa.binary())]))
    count = 90_000
    topic.append(pa.table({"id": range(count), "noise": [os.urandom(16) for _ in range(count)]}))
    log.seal("t")
    batches = topic.read().batches()
    assert next(batches).column("id").to_pylist() == list(range(30_000))
    path = some_file(tmp_path, 0)
    os.chmod(path, 0o600)
    os.truncate(path, 30_000 * 16)
    with pytest.raises(Corrupt, match="ends too early"):
        list(batches)


def test_a_new_handle_reads_what_an_old_one_wrote(open_log, tmp_path):
    """Nothing of how rows are read is kept anywhere: a reader that only looks finds the same."""
    log = open_log(segments=sealing(row_group_rows=GROUP))
    expected = filled(log).read().to_arrow()
    log.close()
    with holdfast.open(log.path, read_only=True) as again:
        assert again.topic("t", schema="latest").read().to_arrow().equals(expected)
