"""Rows that are appended: taken from anything that holds some, and nothing is changed silently."""

from __future__ import annotations

import ctypes
import time
import traceback

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from tests.schema_data import TWO, back, batches_of, encode_rows, filled, one, refused, topic_of

from holdfast.errors import Corrupt, Invalid
from holdfast.model.arrow import arrow_types as kinds
from holdfast.model.schema import declare
from holdfast.segments.typed.array_encoding import labelled
from holdfast.segments.typed.conform import conform
from holdfast.segments.typed.declared_rows import restore
from holdfast.segments.typed.row_message import decode_rows

pytestmark = pytest.mark.unit


@given(filled(encoded=True))
def test_the_encoding_of_given_data_does_not_matter(case):
    """Dictionaries or values, large or plain or views, children of structs in any order: the same rows are stored."""
    declared, values, batch = case
    topic = declare(declared)
    assert back(topic, one(topic, batch)).to_pydict() == values


@given(filled())
def test_exact_data_is_not_copied(case):
    """Data that already has the stored schema goes through in its own memory."""
    declared, _, batch = case
    topic = declare(declared)
    stored = one(topic, batch)
    (again,) = batches_of(topic, stored)
    assert [b and b.address for c in again.columns for b in c.buffers()] == [
        b and b.address for c in stored.columns for b in c.buffers()
    ]


def test_columns_are_matched_by_name():
    """Any order will do, and a missing nullable column is null."""
    assert one(TWO, pa.table({"b": ["x"], "a": [1]})).to_pylist() == [{"a": 1, "b": "x"}]
    assert one(TWO, pa.table({"a": [1]})).to_pylist() == [{"a": 1, "b": None}]
    assert one(TWO, {"a": 1}).to_pylist() == [{"a": 1, "b": None}]


@pytest.mark.parametrize(
    "frame",
    [
        lambda d: pa.record_batch(d),
        lambda d: pa.table(d),
        lambda d: pa.table(d).to_reader(),
        lambda d: pa.array([dict(zip(d, row, strict=True)) for row in zip(*d.values(), strict=True)]),
        lambda d: pl.DataFrame(d),
        lambda d: pd.DataFrame(d),
        lambda d: duckdb.from_arrow(pa.table(d)),
        lambda d: [dict(zip(d, row, strict=True)) for row in zip(*d.values(), strict=True)],
        lambda d: (dict(zip(d, row, strict=True)) for row in zip(*d.values(), strict=True)),
    ],
    ids=["batch", "table", "reader", "struct", "polars", "pandas", "duckdb", "list", "generator"],
)
def test_rows_are_taken_from_anything_that_holds_some(frame):
    """Arrow, polars, pandas, DuckDB and Python give the same stored rows."""
    data = {"a": [1, 2, 3], "b": ["x", None, "z"]}
    assert one(TWO, frame(data)).to_pydict() == data


def test_categories_of_polars_and_pandas_are_text():
    """Categories go into columns of dictionaries and of strings alike, also inside lists, ordered or not."""
    words = ["x", "y", None, "x"]
    frames = [
        pl.DataFrame({"c": pl.Series(words, dtype=pl.Categorical)}),
        pl.DataFrame({"c": pl.Series(words, dtype=pl.Enum(["y", "x"]))}),
        pd.DataFrame({"c": pd.Categorical(words, ordered=True)}),
        duckdb.sql("select unnest(['x','y',NULL,'x'])::ENUM('x','y') c"),
    ]
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())):
        for frame in frames:
            assert back(topic_of(kind), one(topic_of(kind), frame)).to_pydict() == {"c": words}
    nested_frame = pl.DataFrame({"c": pl.Series([["x"], None, ["y", None]], dtype=pl.List(pl.Categorical))})
    assert one(topic_of(pa.list_(pa.string())), nested_frame).to_pydict() == {"c": [["x"], None, ["y", None]]}


def test_a_null_inside_a_dictionary_is_a_null():
    """An index that is there and points to a null is a null like any other, and refused where one is."""
    hidden = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["x", None]))
    assert one(topic_of(pa.string()), pa.table({"c": hidden})).to_pydict() == {"c": ["x", None]}
    refused(topic_of(pa.string(), nullable=False), pa.table({"c": hidden}), "'c'", "row=1")


def test_no_rows_are_refused():
    """Nothing is appended by an empty batch."""
    for nothing in ([], iter([]), pa.table({"a": pa.array([], pa.int64())}), pl.DataFrame({"a": []}, {"a": pl.Int64})):
        assert refused(TWO, nothing).message == "the batch is empty"


def test_unknown_missing_and_repeated_columns_are_named():
    """What does not match the schema is refused by name."""
    refused(TWO, pa.table({"a": [1], "typo": [1]}), "unknown", "typo")
    refused(TWO, [{"a": 1}, {"a": 1, "typo": 1}], "unknown", "typo", "row=1")
    refused(TWO, pa.table({"b": ["x"]}), "missing", "'a'")
    refused(TWO, [{"a": 1}, {"b": "x"}], "missing", "'a'", "row=1")
    refused(TWO, pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), "twice")
    refused(TWO, pd.DataFrame({"a": [1]}, index=["q"]), "unknown", "__index_level_0__")


@pytest.mark.parametrize(
    "wrong",
    [None, 5, "text", b"bytes", [1], [{"a": 1}, None], pa.array([1]), pa.scalar(1)],
    ids=lambda wrong: type(wrong).__name__,
)
def test_what_holds_no_rows_is_refused(wrong):
    """Anything else is refused with its type."""
    refused(TWO, wrong)


def test_rows_max_must_be_above_zero():
    """No batch has no rows."""
    with pytest.raises(Invalid):
        conform(TWO, {"a": 1}, rows_max=0)


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        (pa.int64(), pa.int32()),
        (pa.int64(), pa.float64()),
        (pa.float64(), pa.int64()),
        (pa.float64(), pa.float32()),
        (pa.string(), pa.binary()),
        (pa.binary(), pa.string()),
        (pa.binary(2), pa.binary()),
        (pa.timestamp("us"), pa.timestamp("ms")),
        (pa.timestamp("s"), pa.timestamp("us")),
        (pa.timestamp("us", "UTC"), pa.timestamp("us")),
        (pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Berlin")),
        (pa.date32(), pa.date64()),
        (pa.decimal128(5, 1), pa.decimal128(5, 2)),
        (pa.binary(16), pa.uuid()),
        (pa.string(), pa.dictionary(pa.int8(), pa.int64())),
        (pa.list_(pa.int64()), pa.list_(pa.int32())),
        (pa.list_(pa.int64()), pa.list_(pa.int64(), 2)),
        (pa.list_(pa.int64(), 2), pa.list_(pa.int64(), 3)),
        (pa.struct([("x", pa.int64())]), pa.struct([("y", pa.int64())])),
        (pa.struct([("x", pa.int64())]), pa.struct([("x", pa.int64()), ("y", pa.int64())])),
        (pa.struct([("x", pa.int64())]), pa.struct([("x", pa.int64()), ("x", pa.int64())])),
        (pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int8())),
        (pa.map_(pa.string(), pa.int64()), pa.list_(pa.int64())),
        (pa.int64(), pa.null()),
        (pa.list_(pa.int64()), pa.list_view(pa.int64())),
    ],
    ids=str,
)
def test_arrow_data_of_another_type_is_refused(kind, other):
    """Nothing is cast silently: the message names the column and both types."""
    data = pa.table([pa.nulls(1, other)], names=["c"])
    refused(topic_of(kind), data, "'c'", f"expected={kind}", f"found={other}")


@pytest.mark.parametrize(
    ("kind", "declared"),
    [
        (pa.timestamp("s"), pa.timestamp("ms")),
        (pa.time32("s"), pa.time32("ms")),
        (pa.list_(pa.timestamp("s")), pa.list_(pa.timestamp("ms"))),
    ],
)
def test_seconds_are_whole(kind, declared):
    """Milliseconds go into a column of seconds only if they are whole seconds: else they would not come back."""
    topic = topic_of(kind)
    wrap = (lambda v: [v]) if pa.types.is_list(kind) else (lambda v: v)
    whole, part = (pa.table({"c": pa.array([wrap(n)], declared)}) for n in (5000, 5001))
    assert one(topic, whole).column(0).type == declared
    refused(topic, part, "'c'", "seconds")
    refused(topic, pa.table([part.column(0)], schema=topic.stored), "'c'", "seconds")


def test_values_out_of_range_are_refused():
    """Seconds that milliseconds cannot hold, and a date64 that is no date, are refused without the value."""
    seconds = pa.array([2**60], pa.int64()).view(pa.timestamp("s"))
    error = refused(topic_of(pa.timestamp("s")), pa.table({"c": seconds}), "'c'")
    assert str(2**60) not in str(error)
    refused(topic_of(pa.date64()), pa.table({"c": pa.array([1], pa.int64()).view(pa.date64())}), "c")


REQUIRED = {
    "struct": (pa.struct([pa.field("x", pa.int64(), False)]), {"x": None}, {"x": 1}),
    "list": (pa.list_(pa.field("item", pa.int64(), False)), [None], [1]),
    "fixed": (pa.list_(pa.field("item", pa.int64(), False), 1), [None], [1]),
    "map": (pa.map_(pa.string(), pa.field("value", pa.int64(), False)), [("k", None)], [("k", 1)]),
    "deep": (pa.list_(pa.struct([pa.field("x", pa.int64(), False)])), [{"x": None}], [None, {"x": 1}]),
}


@pytest.mark.parametrize("case", REQUIRED)
def test_nulls_in_required_fields_are_refused(case):
    """Also inside structs, lists and maps; a null above is fine, whatever lies under it."""
    kind, bad, good = REQUIRED[case]
    topic = topic_of(kind)
    loose = kinds.loose(kind)
    assert one(topic, pa.table({"c": pa.array([good, None], loose)})).to_pydict() == {"c": [good, None]}
    refused(topic, pa.table({"c": pa.array([good, None, bad], loose)}), "null", "'c.")
    refused(topic, [{"c": good}, {"c": bad}], "null", "'c.")
    mislabelled = labelled([pa.array([bad], loose)], topic.stored)
    refused(topic, mislabelled, "null")
    with pytest.raises(Corrupt, match="null"):
        restore(decode_rows(encode_rows(mislabelled), topic.stored), topic, topic)


def test_a_null_in_a_required_column_is_found():
    """The row is named, counted over all batches of a table."""
    first, second = pa.record_batch({"a": [1, 2]}), pa.record_batch({"a": [3, None]})
    refused(TWO, pa.Table.from_batches([first, second]), "'a'", "row=3")
    refused(TWO, second, "'a'", "row=1")


def test_data_with_bad_text_or_bad_offsets_is_refused():
    """Data is validated in full before anything is done with it."""
    bad = pa.array([b"ok", b"\xff\xfe"]).view(pa.string())
    refused(TWO, pa.table({"a": [1, 2], "b": bad}), "valid", "'b'")
    view = pa.Array.from_buffers(pa.string_view(), 1, pa.array([b"\xff"], pa.binary_view()).buffers())
    refused(TWO, pa.table({"a": [1], "b": view}), "valid")
    offsets = pa.array([0, 3, 1], pa.int32()).buffers()[1]
    backwards = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"x")])
    refused(TWO, pa.table({"a": [1, 2], "b": backwards}), "valid")
    wild = pa.DictionaryArray.from_arrays(pa.array([7], pa.int8()), pa.array(["x"]), safe=False)
    refused(TWO, pa.table({"a": [1], "b": wild}), "valid")


class Foreign:
    """A library that gives out lists of entries under the name of maps, as one array."""

    def __init__(self, batch, schema):
        self.batch, self.schema = batch, schema

    def __arrow_c_array__(self, requested_schema=None):
        return self.schema.__arrow_c_schema__(), self.batch.__arrow_c_array__()[1]


class ForeignStream(Foreign):
    """The same as a stream: the function that tells its schema is another one."""

    __arrow_c_array__ = None

    def __arrow_c_stream__(self, requested_schema=None):
        capsule = pa.RecordBatchReader.from_batches(self.batch.schema, [self.batch]).__arrow_c_stream__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        self.tell = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(self.get_schema)
        stream = ctypes.cast(pointer(capsule, b"arrow_array_stream"), ctypes.POINTER(ctypes.c_void_p))
        stream[0] = ctypes.cast(self.tell, ctypes.c_void_p).value
        return capsule

    def get_schema(self, _, out):
        self.schema._export_to_c(out)
        return 0


ENTRIES = pa.list_(pa.struct([("key", pa.string()), ("value", pa.int64())]))
MAP = pa.map_(pa.string(), pa.int64())


@pytest.mark.parametrize(
    "door",
    [
        Foreign,
        ForeignStream,
        lambda *given: pa.record_batch(Foreign(*given)),
        lambda *given: pa.RecordBatchReader.from_stream(ForeignStream(*given)),
    ],
    ids=["array", "stream", "batch", "reader"],
)
@pytest.mark.parametrize(
    ("wrap", "inside"),
    [(lambda kind: kind, lambda value: value), (lambda kind: pa.struct([("x", pa.list_(kind))]), lambda v: {"x": [v]})],
    ids=["map", "in"],
)
def test_maps_with_null_keys_are_refused(door, wrap, inside):
    """A map of another library with a null key or entry is refused, whichever way it comes: Arrow would end us."""
    topic = topic_of(wrap(MAP))
    label, layout = pa.schema([("c", wrap(MAP))]), pa.schema([("c", wrap(ENTRIES))])
    for entry in (None, {"key": None, "value": 1}):
        batch = pa.RecordBatch.from_pylist([{"c": inside([entry])}], schema=layout)
        refused(topic, door(batch, label), "valid", "'c'")
    good = pa.RecordBatch.from_pylist([{"c": inside([{"key": "k", "value": 1}])}], schema=layout)
    assert one(topic, door(good, label)).to_pylist() == [{"c": inside([("k", 1)])}]


def test_tables_become_as_few_batches_as_possible():
    """Many small chunks become one batch; a long table is cut at rows_max only."""
    table = pa.concat_tables([pa.table({"a": [n]}) for n in range(10)])
    assert [batch.num_rows for batch in batches_of(TWO, table)] == [10]
    cut = batches_of(TWO, table, rows_max=4)
    assert [batch.num_rows for batch in cut] == [4, 4, 2]
    assert [n for batch in cut for n in batch.column("a").to_pylist()] == list(range(10))
    assert all(batch.schema.equals(TWO.stored, check_metadata=True) for batch in cut)
    assert [b.num_rows for b in batches_of(TWO, ({"a": n} for n in range(10)), rows_max=4)] == [4, 4, 2]
    assert [b.num_rows for b in batches_of(TWO, pa.record_batch({"a": list(range(5))}), rows_max=4)] == [4, 1]


def test_a_slice_of_lists_costs_what_it_holds():
    """Recoding a few rows out of a large array of lists does not touch the rest of it."""
    large = pa.array([["abc"]] * 10_000, pa.large_list(pa.string_view()))
    stored = one(topic_of(pa.list_(pa.string())), pa.table({"c": large[5000:5002]}))
    assert stored.to_pydict() == {"c": [["abc"]] * 2}
    assert stored.get_total_buffer_size() < 1000


def test_errors_never_show_values():
    """Neither the message nor the traceback of a refusal holds what was refused."""
    secret = "correct horse"
    cases = [
        (topic_of(pa.int64()), [{"c": secret}]),
        (topic_of(pa.timestamp("us")), [{"c": secret}]),
        (topic_of(pa.list_(pa.int64())), [{"c": [secret]}]),
        (topic_of(pa.binary(2)), [{"c": secret.encode()}]),
        (topic_of(pa.string()), pa.table({"c": pa.array([secret.encode() + b"\xff"]).view(pa.string())})),
        (topic_of(pa.int64()), pd.DataFrame({"c": [1, secret]})),
    ]
    for topic, data in cases:
        with pytest.raises(Invalid) as caught:
            batches_of(topic, data)
        assert secret not in str(caught.value)
        assert secret not in "".join(traceback.format_exception(caught.value))
        assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_exact_data_costs_little_beyond_its_validation():
    """Ten thousand rows that need no change cost less than 100 µs beyond Arrow's own validation of them."""
    kinds = (
        {f"i{n}": pa.int64() for n in range(4)} | {f"s{n}": pa.string() for n in range(4)} | {"t": pa.timestamp("us")}
    )
    topic = declare(pa.schema([pa.field(name, kind, name != "i0") for name, kind in kinds.items()]))
    columns = [pa.array(range(10_000)).cast(kind) for kind in kinds.values()]
    batch = pa.RecordBatch.from_arrays(columns, schema=topic.stored)

    def cost(call):
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    pairs = [(cost(lambda: batch.validate(full=True)), cost(lambda: batches_of(topic, batch))) for _ in range(50)]
    assert min(both for _, both in pairs) - min(bare for bare, _ in pairs) < 1e-4
