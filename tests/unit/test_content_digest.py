"""The content digest: the same for the same values however they lie, and different for anything else."""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
from itertools import pairwise

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from holdfast import Invalid
from holdfast.model.content_digest import ContentDigest, describe, stored_type, unsupported
from holdfast.segments.file.segment_columns import RAW_SCHEMA, decoded

pytestmark = pytest.mark.unit


def digest(*batches, schema=None):
    running = ContentDigest(schema or batches[0].schema)
    for batch in batches:
        running.update(batch)
    return running.digest()


def of(values, type, nullable=True):
    schema = pa.schema([pa.field("x", type, nullable)])
    return digest(pa.record_batch([pa.array(values, type)], schema=schema))


# -- random nested columns: a strategy of (type, strategy of values) -----------------------------------------

text = st.text(st.characters(codec="utf-8"), max_size=5)
leaves = st.sampled_from(
    [
        (pa.int8(), st.integers(-128, 127)),
        (pa.uint64(), st.integers(0, 2**64 - 1)),
        (pa.bool_(), st.booleans()),
        (pa.float64(), st.floats(allow_nan=False).map(lambda x: x + 0.0)),  # -0.0 equals 0.0 in Python
        (pa.string(), text),
        (pa.large_string(), text),
        (pa.binary(), st.binary(max_size=5)),
        (pa.large_binary(), st.binary(max_size=5)),
        (pa.binary(3), st.binary(min_size=3, max_size=3)),
        (pa.date32(), st.dates()),
        (pa.timestamp("us", "UTC"), st.integers(-(2**55), 2**55)),
        (pa.decimal128(9, 2), st.decimals(-1000, 1000, places=2)),
        (pa.decimal256(50, 2), st.decimals(-1000, 1000, places=2)),
        (pa.null(), st.none()),
    ]
)
dictionary = st.just((pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["a", "b", ""])))


def nested(inner):
    maybe = inner.map(lambda pair: (pair[0], st.none() | pair[1]))
    lists = maybe.map(lambda p: (pa.list_(p[0]), st.lists(p[1], max_size=3)))
    large = maybe.map(lambda p: (pa.large_list(p[0]), st.lists(p[1], max_size=3)))
    fixed = maybe.map(lambda p: (pa.list_(p[0], 2), st.lists(p[1], min_size=2, max_size=2)))
    maps = maybe.map(lambda p: (pa.map_(pa.string(), p[0]), st.lists(st.tuples(text, p[1]), max_size=3)))
    structs = st.lists(maybe, min_size=1, max_size=3).map(
        lambda ps: (
            pa.struct([(f"f{i}", p[0]) for i, p in enumerate(ps)]),
            st.fixed_dictionaries({f"f{i}": p[1] for i, p in enumerate(ps)}),
        )
    )
    return st.one_of(lists, large, fixed, maps, structs)


columns = st.recursive(leaves, nested, max_leaves=4) | dictionary


@st.composite
def tables(draw, min_rows=0):
    """A batch of one or two columns, some not nullable."""
    rows = draw(st.integers(min_rows, 8))
    fields, arrays = [], []
    for i in range(draw(st.integers(1, 2))):
        kind, values = draw(columns)
        nullable = kind == pa.null() or draw(st.booleans())
        drawn = draw(st.lists(st.none() | values if nullable else values, min_size=rows, max_size=rows))
        fields.append(pa.field(f"c{i}", kind, nullable))
        arrays.append(pa.array(drawn, kind))
    return pa.record_batch(arrays, schema=pa.schema(fields))


modest = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


def stored(batch):
    schema = pa.schema([field.with_type(stored_type(field.type)) for field in batch.schema])
    arrays = [decoded(column, field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.record_batch(arrays, schema=schema)


@modest
@given(tables(), st.lists(st.integers(0, 8), max_size=4), st.integers(0, 3))
def test_cuts_and_slices_do_not_matter(batch, cuts, pad):
    """However rows are cut into batches, and wherever they lie in larger arrays, the digest is the same."""
    edges = sorted({0, batch.num_rows, *(min(cut, batch.num_rows) for cut in cuts)})
    pieces = [batch.slice(a, b - a) for a, b in pairwise(edges)]
    assert digest(*pieces, schema=batch.schema) == digest(batch)
    padding = [batch.slice(0, min(pad, batch.num_rows)), batch]
    larger = pa.concat_batches(padding)
    assert digest(larger.slice(padding[0].num_rows)) == digest(batch)


@modest
@given(tables())
def test_parquet_does_not_matter(batch):
    """A table that went through Parquet, in row groups of two, has the digest that it had before."""
    batch = stored(batch)
    file = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_batches([batch]), file, row_group_size=2, compression="zstd")
    back = pq.read_table(pa.BufferReader(file.getvalue())).to_batches()
    assert digest(*back, schema=batch.schema) == digest(batch)


@modest
@given(tables(min_rows=1))
def test_decoded_dictionaries_have_the_same_digest(batch):
    """A dictionary column and its values are the same content."""
    assert digest(stored(batch)) == digest(batch)


@modest
@given(tables(min_rows=1), st.data())
def test_any_other_value_differs(batch, data):
    """Rows swapped, dropped, doubled or made null give another digest, unless nothing changed."""
    rows = batch.to_pylist()
    i, j = data.draw(st.integers(0, len(rows) - 1)), data.draw(st.integers(0, len(rows) - 1))
    swapped = list(range(len(rows)))
    swapped[i], swapped[j] = swapped[j], swapped[i]
    assert digest(batch.take(pa.array(range(len(rows) - 1), pa.int64()))) != digest(batch)
    assert digest(batch, batch.slice(i, 1)) != digest(batch)
    other = batch.take(pa.array(swapped))
    assert (digest(other) == digest(batch)) == (other.to_pylist() == rows)


@modest
@given(tables(min_rows=1), st.data())
def test_null_is_not_what_lies_beside_it(batch, data):
    """Making one value null changes the digest, also when the value was empty, zero or false."""
    column = data.draw(st.integers(0, batch.num_columns - 1))
    row = data.draw(st.integers(0, batch.num_rows - 1))
    field = batch.schema.field(column)
    assume(field.nullable and batch.column(column)[row].as_py() is not None)
    values = batch.column(column).to_pylist()
    values[row] = None
    arrays = [pa.array(values, field.type) if i == column else a for i, a in enumerate(batch.columns)]
    assert digest(pa.record_batch(arrays, schema=batch.schema)) != digest(batch)


def test_bytes_under_nulls_do_not_matter():
    """What a buffer holds where a value is absent is not content."""
    valid = pa.py_buffer(b"\x05")  # rows 0 and 2
    offsets = pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in (0, 1, 3, 4)))
    dirty = pa.Array.from_buffers(pa.string(), 3, [valid, offsets, pa.py_buffer(b"abbc")])
    assert dirty.to_pylist() == ["a", None, "c"]
    clean = pa.array(["a", None, "c"])
    assert digest(pa.record_batch({"x": dirty})) == digest(pa.record_batch({"x": clean}))
    numbers = pa.Array.from_buffers(pa.int16(), 3, [valid, pa.py_buffer(b"\1\0\7\7\3\0")])
    assert digest(pa.record_batch({"x": numbers})) == of([1, None, 3], pa.int16())
    lists = pa.Array.from_buffers(
        pa.list_(pa.int8()), 3, [valid, offsets], children=[pa.array([1, 2, 2, 3], pa.int8())]
    )
    assert digest(pa.record_batch({"x": lists})) == of([[1], None, [3]], pa.list_(pa.int8()))
    maps = pa.Array.from_buffers(
        pa.map_(pa.int8(), pa.int8()),
        3,
        [valid, offsets],
        children=[
            pa.array(
                [{"key": n, "value": n} for n in (1, 2, 2, 3)],
                pa.struct([pa.field("key", pa.int8(), False), pa.field("value", pa.int8())]),
            )
        ],
    )
    assert digest(pa.record_batch({"x": maps})) == of([[(1, 1)], None, [(3, 3)]], pa.map_(pa.int8(), pa.int8()))
    structs = pa.StructArray.from_arrays([pa.array([1, 9, 3])], ["f"], mask=pa.array([False, True, False]))
    assert digest(pa.record_batch({"x": structs})) == of([{"f": 1}, None, {"f": 3}], pa.struct([("f", pa.int64())]))


def test_values_cannot_slide_into_each_other():
    """Where one value ends and the next begins is content; so is whose child a value is."""
    assert of(["ab", "c"], pa.string()) != of(["a", "bc"], pa.string())
    assert of([["a"], ["b", "c"]], pa.list_(pa.string())) != of([["a", "b"], ["c"]], pa.list_(pa.string()))
    assert of([None, ""], pa.string()) != of(["", None], pa.string())
    assert of([[], None], pa.list_(pa.int8())) != of([None, []], pa.list_(pa.int8()))
    assert of([False], pa.bool_()) != of([True], pa.bool_())
    two = pa.struct([("a", pa.int8()), ("b", pa.int8())])
    assert of([{"a": 1, "b": None}], two) != of([{"a": None, "b": 1}], two)


def test_the_schema_is_part_of_the_content():
    """Names, types and nullability count; metadata and the names of list items do not."""
    seen = {
        of([1], pa.int32()),
        of([1], pa.uint32()),
        of([1], pa.int32(), nullable=False),
        of([1], pa.time32("ms")),
        of(["1"], pa.string()),
        of(["1"], pa.large_string()),
        of([b"1"], pa.binary()),
        digest(pa.record_batch({"y": pa.array([1], pa.int32())})),
    }
    assert len(seen) == 8
    assert of([[1]], pa.list_(pa.field("item", pa.int8()))) == of([[1]], pa.list_(pa.field("element", pa.int8())))
    plain = pa.schema([pa.field("x", pa.int8())])
    assert describe(plain) == describe(pa.schema([pa.field("x", pa.int8(), metadata={"a": "b"})], metadata={"c": "d"}))


def test_extensions_count_as_their_storage():
    """A process that does not know an extension type finds the same digest."""
    storage = pa.array([bytes(16), None], pa.binary(16))
    known = pa.record_batch({"x": pa.ExtensionArray.from_storage(pa.uuid(), storage)})
    assert digest(known) == digest(pa.record_batch({"x": storage}))


def test_the_layout_is_the_documented_one():
    """The digest of one nullable text column, computed by hand."""
    parts = [b"\1\0\1", b"".join(n.to_bytes(8, "little") for n in (2, 0)), b"ab"]
    digests = [hashlib.sha256(part).digest() for part in parts]
    message = msgspec.msgpack.encode(("content", 1, '[["x","string",true]]', 3, *digests))
    assert of(["ab", None, ""], pa.string()) == hashlib.sha256(message).digest()


@pytest.mark.parametrize(
    "type",
    [
        pa.dense_union([pa.field("a", pa.int8())]),
        pa.run_end_encoded(pa.int32(), pa.string()),
        pa.string_view(),
        pa.binary_view(),
        pa.list_view(pa.int8()),
        pa.month_day_nano_interval(),
        pa.struct([]),
        pa.binary(0),
        pa.list_(pa.int8(), 0),
        pa.date64(),
        pa.timestamp("s"),
        pa.time32("s"),
        pa.dictionary(pa.int8(), pa.list_(pa.int8())),
        pa.dictionary(pa.int8(), pa.string_view()),
        pa.list_(pa.string_view()),
        pa.list_(pa.dictionary(pa.int8(), pa.string())),
        pa.struct([("a", pa.list_(pa.date64()))]),
        pa.map_(pa.string(), pa.date64()),
    ],
    ids=str,
)
def test_types_that_cannot_be_stored_are_named_beforehand(type):
    """Whatever Parquet would refuse or change has a reason, also inside of other types."""
    assert unsupported(type)
    with pytest.raises(Invalid, match="column=x"):
        ContentDigest(pa.schema([("x", type)]))


@pytest.mark.parametrize("field", list(RAW_SCHEMA), ids=lambda field: field.name)
def test_raw_columns_are_supported(field):
    """Raw records need nothing that is refused."""
    assert unsupported(field.type) is None


@pytest.mark.parametrize(
    ("type", "value"),
    [
        (pa.float16(), 1.5),
        (pa.float32(), -0.0),
        (pa.time64("ns"), 5),
        (pa.time32("ms"), 5),
        (pa.duration("s"), 2**60),
        (pa.timestamp("ns", "Europe/Berlin"), 2**62),
        (pa.decimal32(5, 2), decimal.Decimal("1.25")),
        (pa.decimal64(12, 2), decimal.Decimal("-1.25")),
        (pa.date32(), dt.date(1, 1, 1)),
        (pa.uint8(), 255),
    ],
    ids=str,
)
def test_other_types_survive_parquet(type, value):
    """Every type that is not refused comes back from Parquet with the same digest."""
    batch = pa.record_batch({"x": pa.array([value, None], type)})
    file = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_batches([batch]), file)
    (back,) = pq.read_table(pa.BufferReader(file.getvalue())).to_batches()
    assert unsupported(type) is None
    assert digest(back) == digest(batch)
