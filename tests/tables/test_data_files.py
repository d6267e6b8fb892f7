"""Data files: what is written is what is read, by us and by others; bounds are bounds; damage is found."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.clock import SystemClock
from holdfast.errors import Corrupt, Invalid, NotFound
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Body
from holdfast.tables import table_schema, untrusted_parquet
from holdfast.tables.data_file import DataFile, FileWriter, read_file
from holdfast.tables.table_layout import DELETED, parse_file
from tests.hostile.mutations import flipped
from tests.tables.table_worlds import NAME, FaultyStore, World

CLOCK = SystemClock()
EARLY, LATE = dt.datetime(1960, 1, 1, tzinfo=dt.UTC), dt.datetime(2030, 1, 1, 0, 0, 0, 1, dt.UTC)
STRUCT = pa.struct({"a": pa.string(), "b": pa.list_(pa.float64())})
TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, None, False]),
    "byte": (pa.int8(), [-128, None, 127]),
    "short": (pa.int16(), [-(2**15), None, 2**15 - 1]),
    "int": (pa.int32(), [-(2**31), None, 2**31 - 1]),
    "long": (pa.int64(), [-(2**63), None, 2**63 - 1]),
    "float": (pa.float32(), [-1.5, None, 3.25]),
    "double": (pa.float64(), [-math.pi, None, 1e300]),
    "text": (pa.string(), ["ä", None, "z" * 60]),
    "bytes": (pa.binary(), [b"\0", None, b"\xff"]),
    "date": (pa.date32(), [dt.date(1, 1, 1), None, dt.date(9999, 12, 31)]),
    "at": (pa.timestamp("us", "UTC"), [EARLY, None, LATE]),
    "local": (pa.timestamp("us"), [EARLY.replace(tzinfo=None), None, LATE.replace(tzinfo=None)]),
    "price": (pa.decimal128(12, 2), [Decimal("-0.05"), None, Decimal("1234567890.12")]),
    "large": (pa.decimal128(38, 0), [Decimal(-(10**37)), None, Decimal(10**37)]),
    "list": (pa.list_(pa.int32()), [[1, None], None, []]),
    "struct": (STRUCT, [{"a": None, "b": [1.0]}, None, {"a": "x", "b": None}]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], None, []]),
}  # fmt: skip


def everything() -> pa.Table:
    return pa.table({name: pa.array(values, kind) for name, (kind, values) in TYPES.items()})


def store() -> MemoryStore:
    return MemoryStore("files", CLOCK)


def written(place: Any, table: pa.Table, **options: Any) -> list[DataFile]:
    with FileWriter(place, NAME, table.schema, 1, "ab", **options) as writer:
        for batch in table.to_batches(max_chunksize=options.get("rows_max")):
            writer.write(batch)
        return writer.finish()


def read(place: Any, files: list[DataFile], *arguments: Any, **options: Any) -> pa.Table:
    return pa.Table.from_batches(
        [batch for file in files for batch in read_file(place, NAME, file, *arguments, **options)]
    )


# -- what is written is what is read ----------------------------------------------------------------------------------


@pytest.mark.disk
def test_every_type_is_read_as_it_was_by_us_and_by_others(tmp_path: Path):
    world, rows = World(tmp_path), everything()
    after = world.run(rows.to_pylist(), rows.schema)
    assert after.schema == table_schema.normal(rows.schema)
    found = read(world.store, list(after.files), schema=after.schema)
    assert found.to_pylist() == rows.to_pylist()
    assert found.schema == after.schema
    others = world.delta().to_pyarrow_table()
    assert others.select(["map"]).to_pylist() == rows.select(["map"]).to_pylist()
    assert others.to_pylist() == rows.to_pylist()
    assert table_schema.from_delta(world.delta().schema().to_json(), "x") == after.schema


@pytest.mark.unit
def test_encodings_become_plain():
    given_types = {
        "dictionary": (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
        "view": (pa.string_view(), pa.string()),
        "fixed": (pa.binary(4), pa.binary()),
        "seconds": (pa.timestamp("s", "Europe/Berlin"), pa.timestamp("us", "UTC")),
        "date64": (pa.date64(), pa.date32()),
        "decimal256": (pa.decimal256(20, 2), pa.decimal128(20, 2)),
        "small": (pa.decimal32(5, 2), pa.decimal128(5, 2)),
        "large list": (pa.large_list(pa.large_binary()), pa.list_(pa.field("element", pa.binary()))),
        "fixed list": (pa.list_(pa.int8(), 3), pa.list_(pa.field("element", pa.int8()))),
    }
    for what, (given_type, expected) in given_types.items():
        made = table_schema.normal(pa.schema([pa.field("x", given_type, nullable=False, metadata={"a": "b"})]))
        assert made == pa.schema([pa.field("x", expected)]), what
        assert made.field(0).metadata is None
        assert table_schema.from_delta(table_schema.delta_text(made), "x") == made
    place = store()
    words = pa.table({"word": pa.array(["a", "b", "a"]).dictionary_encode()})
    assert read(place, written(place, words)).to_pylist() == words.to_pylist()


@pytest.mark.unit
@pytest.mark.parametrize(
    "wrong",
    [
        pa.uint8(),
        pa.uint64(),
        pa.time64("us"),
        pa.duration("us"),
        pa.null(),
        pa.timestamp("ns"),
        pa.decimal256(50, 2),
        pa.struct([]),
        pa.month_day_nano_interval(),
        pa.float16(),
    ],
    ids=str,
)
def test_what_delta_has_no_word_for_is_refused_with_its_name(wrong: pa.DataType):
    for kind, name in ((wrong, "'x'"), (pa.list_(wrong), "x.element"), (pa.struct({"in": wrong}), "x.in")):
        with pytest.raises(Invalid, match=name) as refused:
            table_schema.normal(pa.schema({"x": kind}))
        assert "cast" in refused.value.hint


@pytest.mark.unit
def test_odd_columns_are_refused():
    two = pa.schema([pa.field("a", pa.int8()), pa.field("a", pa.int8())])
    deep: pa.DataType = pa.int8()
    for _ in range(30):
        deep = pa.list_(deep)
    odd = [
        pa.schema([]), two, pa.schema({"": pa.int8()}), pa.schema({"a b": pa.int8()}), pa.schema({"a": deep}),
        pa.schema({"a": pa.int8(), "A": pa.int8()}), pa.schema({"x" * 300: pa.int8()}),
        pa.schema({f"c{n}": pa.int8() for n in range(3_000)}),
    ]  # fmt: skip
    for schema in odd:
        with pytest.raises(Invalid) as refused:
            table_schema.normal(schema)
        assert refused.value.hint


@pytest.mark.unit
def test_rows_are_cut_into_files_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("holdfast.tables.data_file.GROUP_ROWS", 100)
    place = store()
    rows = pa.table({"id": range(1_050), "text": [f"row {n}" for n in range(1_050)]})
    files = written(place, rows, rows_max=200)
    assert [file.rows for file in files] == [200] * 5 + [50]
    assert len({file.path for file in files}) == 6
    assert read(place, files).to_pylist() == rows.to_pylist()
    small = written(place, rows, bytes_max=1)
    assert [file.rows for file in small] == [100] * 10 + [50]
    assert written(place, rows.slice(0, 0)) == []


@pytest.mark.unit
def test_no_two_writers_have_the_same_name():
    """Two tasks with one nonce, as attempts of one task have it."""
    place = store()
    rows = pa.table({"id": [1]})
    paths = {file.path for _ in range(20) for file in written(place, rows)}
    assert len(paths) == 20
    with FileWriter(place, NAME, rows.schema, 7, "ab", "3", folder=DELETED) as writer:
        writer.write(rows.to_batches()[0])
        (file,) = writer.finish()
    assert (file.run, file.bucket, file.path.startswith("_deleted/")) == (7, "3", True)
    assert parse_file(file.path).run == 7
    for nonce, run in (("../x", 1), ("", 1), ("a", -1), ("A", 1), ("a/b", 1)):
        with pytest.raises(Invalid):
            FileWriter(place, NAME, rows.schema, run, nonce)
    with pytest.raises(Invalid):
        FileWriter(place, "../etc", rows.schema, 1, "a").write(rows.to_batches()[0])


@pytest.mark.unit
def test_columns_are_taken_by_name_and_missing_ones_are_null():
    place = store()
    old = pa.table({"id": [1, 2], "text": ["a", None]})
    (file,) = written(place, old)
    schema = pa.schema([*old.schema, pa.field("more", pa.list_(pa.field("element", pa.int8())))])
    assert read(place, [file], schema=schema).to_pylist() == [{**row, "more": None} for row in old.to_pylist()]
    assert read(place, [file], ["more", "id"], schema=schema).column_names == ["more", "id"]
    assert read(place, [file], pa.schema({"more": pa.int8()})).to_pylist() == [{"more": None}] * 2
    assert read(place, [file], ["text"]).to_pylist() == old.select(["text"]).to_pylist()
    with pytest.raises(Invalid, match="no such column"):
        read(place, [file], ["other"])
    with pytest.raises(Corrupt, match="another type"):
        read(place, [file], schema=pa.schema({"id": pa.string()}))
    with FileWriter(place, NAME, schema, 1, "ab") as writer:
        writer.write(pa.record_batch({"more": [[1]], "id": [5]}))
        assert read(place, writer.finish()).to_pylist() == [{"id": 5, "text": None, "more": [1]}]
        with pytest.raises(Invalid, match="other"):
            writer.write(pa.record_batch({"other": [1]}))
        with pytest.raises(Invalid, match="'id'"):
            writer.write(pa.record_batch({"id": ["x"]}))


@pytest.mark.unit
@pytest.mark.parametrize("fault", ["before", "after"])
def test_a_file_whose_creation_has_no_answer_is_created_once(fault: str):
    inner = store()
    rows = pa.table({"id": [1]})
    files = written(FaultyStore(inner, fault, 1), rows)
    assert [info.key for info in inner.list("")] == [f"{NAME}/{files[0].path}"]
    assert read(inner, files).to_pylist() == [{"id": 1}]


@pytest.mark.disk
def test_nothing_is_left_in_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rows = pa.table({"id": [1]})
    written(store(), rows)
    with FileWriter(store(), NAME, rows.schema, 1, "ab") as writer:
        writer.write(rows.to_batches()[0])
        writer._write_group()
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


# -- statistics -------------------------------------------------------------------------------------------------------


def stats(table: pa.Table) -> dict[str, Any]:
    (file,) = written(store(), table)
    return json.loads(file.stats)


@pytest.mark.unit
def test_bounds_are_left_out_where_engines_would_skip_rows_by_them():
    table = pa.table(
        {
            "nan": [1.0, math.nan],
            "infinite": [1.0, math.inf],
            "fine": [1.5, -2.5],
            "nulls": pa.nulls(2, pa.int64()),
            "years": pa.array([-(2**62), 2**62], pa.timestamp("us", "UTC")),
            "days": pa.array([-(2**30), 5], pa.date32()),
            "flag": [True, False],
            "bytes": [b"a", b"b"],
            "a.b": [1, 2],
            "list": [[1], [2]],
            "digits": pa.array([Decimal(1), Decimal(2)], pa.decimal128(30, 0)),
            "highest": ["a" * 32 + "\U0010ffff" + "z", "a"],
            "huge": ["x" * 10_000, "y" * 10_000],
        }
    )
    found = stats(table)
    assert set(found["minValues"]) == set(found["maxValues"]) == {"fine"}
    assert found["nullCount"]["nulls"] == 2
    assert found["numRecords"] == 2
    assert (found["minValues"]["fine"], found["maxValues"]["fine"]) == (-2.5, 1.5)


@pytest.mark.unit
def test_only_some_columns_of_a_wide_table_have_bounds():
    found = stats(pa.table({f"c{n:03}": [n] for n in range(50)}))
    assert list(found["minValues"]) == [f"c{n:03}" for n in range(32)]


@pytest.mark.unit
@given(values=st.lists(st.text(max_size=70), min_size=1, max_size=6))
def test_bounds_of_texts_are_bounds(values: list[str]):
    found = stats(pa.table({"x": pa.array(values, pa.string())}))
    least, most = found["minValues"].get("x"), found["maxValues"].get("x")
    if least is not None:
        assert all(least.encode() <= value.encode() <= most.encode() for value in values)
        assert len(most) <= 33


@pytest.mark.unit
@given(values=st.lists(st.one_of(st.none(), st.floats()), min_size=1, max_size=6))
def test_bounds_of_numbers_are_bounds(values: list[float | None]):
    found = stats(pa.table({"x": pa.array(values, pa.float64(), from_pandas=False)}))
    json.dumps(found, allow_nan=False)
    if "x" in found["minValues"]:
        filled = [value for value in values if value is not None]
        assert all(found["minValues"]["x"] <= value <= found["maxValues"]["x"] for value in filled)
    assert found["nullCount"]["x"] == values.count(None)


@pytest.mark.disk
def test_others_skip_files_by_our_bounds_and_lose_no_row(tmp_path: Path):
    """Each value of each type is looked for through deltalake, which skips by statistics."""
    world = World(tmp_path)
    unbounded = {"flag": [True], "float": [math.inf], "double": [math.inf], "text": ["x" * 5_000]}
    rows = everything().drop_columns(["list", "struct", "map"])
    rows = pa.concat_tables([rows, pa.table(unbounded)], promote_options="permissive").cast(rows.schema)
    for row in rows.to_pylist():
        world.run([row], rows.schema)
    table = world.delta()
    for name in rows.column_names:
        for value in rows.column(name).to_pylist():
            if value is not None:
                found = table.to_pyarrow_dataset().to_table(
                    filter=pc.field(name) == pa.scalar(value, rows.field(name).type)
                )
                assert value in found.column(name).to_pylist(), name
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert {action["num_records"] for action in actions} == {1}


# -- damage -----------------------------------------------------------------------------------------------------------


def stored(data: bytes, like: DataFile) -> tuple[MemoryStore, DataFile]:
    place = store()
    place.create(f"{NAME}/{like.path}", Body.of(data))
    return place, DataFile(like.path, len(data), like.rows, like.stats)


@pytest.mark.unit
def test_a_damaged_file_is_corrupt_or_gives_the_same_rows(seed: int, some: Any):
    place, rows = store(), everything()
    rows = pa.concat_tables([rows] * 20)
    (file,) = written(place, rows)
    data, schema = place.get(f"{NAME}/{file.path}"), table_schema.normal(rows.schema)
    expected, refused = rows.to_pylist(), 0
    for case in some(range(3_000), 400):
        spoiled, like = stored(flipped(Random(seed + case), data), file)
        try:
            found = read(spoiled, [like], schema=schema).to_pylist()
        except Corrupt as error:
            refused += 1
            assert error.hint
        else:
            assert found == expected, case
    assert refused > 200


@pytest.mark.unit
def test_a_file_of_another_size_or_name_is_not_read():
    place, rows = store(), pa.table({"id": [1, 2]})
    first, second = written(place, rows) + written(place, rows)
    data = place.get(f"{NAME}/{first.path}")
    for wrong in (data + b"x", data[:-1], b""):
        spoiled, _ = stored(wrong, first)
        with pytest.raises(Corrupt, match="size"):
            read(spoiled, [first])
    swapped, _ = stored(place.get(f"{NAME}/{second.path}"), first)
    with pytest.raises(Corrupt, match="name"):
        read(swapped, [first])
    with pytest.raises(NotFound):
        read(store(), [first])
    with pytest.raises(Corrupt, match="rows"):
        read(place, [DataFile(first.path, first.size, 3, "")])


@pytest.mark.unit
def test_a_file_that_is_not_ours_is_corrupt(tmp_path: Path):
    """Written by others, with other settings, or claiming more than it has: Arrow never sees it."""
    place, rows = store(), pa.table({"id": [1, 2], "text": ["a", "b"]})
    (file,) = written(place, rows)
    for name, options in {
        "snappy": {"compression": "snappy", "compression_level": None},
        "plain": {"compression": "none", "compression_level": None},
        "v2": {"data_page_version": "2.0"},
        "no schema": {"store_schema": False},
        "dictionaries": {"use_dictionary": ["id"], "column_encoding": None},
    }.items():
        settings = {**untrusted_parquet.parquet_settings(rows.schema), **options}
        pq.write_table(rows, tmp_path / name, **settings)
        spoiled, like = stored((tmp_path / name).read_bytes(), file)
        with pytest.raises(Corrupt):
            read(spoiled, [like])


@pytest.mark.unit
def test_a_small_file_that_stands_for_gigabytes_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(untrusted_parquet, "_GROUP_BYTES_MAX", 2**20)
    place = store()
    bomb = pa.table({"text": pa.array(["x" * 3_000_000])})
    (file,) = written(place, bomb)
    assert file.size < 100_000
    with pytest.raises(Corrupt):
        read(place, [file])
