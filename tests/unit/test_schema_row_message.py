"""Rows as bytes: what was encoded is decoded, and all else is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.schema_data import TWO, back, encode_rows, filled, one, topic_of

from holdfast.errors import Corrupt
from holdfast.model.schema import declare
from holdfast.segments.typed.array_encoding import labelled
from holdfast.segments.typed.declared_rows import restore
from holdfast.segments.typed.row_message import BadRows, decode_rows

pytestmark = pytest.mark.unit


def test_only_the_rows_of_a_slice_are_encoded():
    """Ten rows out of many take the bytes of ten rows, in every layout."""
    kinds = {
        "i": pa.int64(),
        "b": pa.bool_(),
        "s": pa.string(),
        "l": pa.list_(pa.string()),
        "f": pa.list_(pa.int8(), 3),
        "t": pa.struct([("x", pa.list_(pa.large_binary()))]),
        "m": pa.map_(pa.string(), pa.int64()),
    }
    row = {"i": 1, "b": True, "s": "abc", "l": ["a", None], "f": [1, 2, 3], "t": {"x": [b"q"]}, "m": [("k", 1)]}
    topic = declare(pa.schema(kinds))
    whole = one(topic, [row] * 1000)
    ten = encode_rows(whole.slice(777, 10))
    assert len(ten) < 1.5 * len(encode_rows(one(topic, [row] * 10)))
    assert decode_rows(ten, topic.stored).to_pylist() == [row] * 10


def test_what_arrow_writes_but_cannot_read_is_written_otherwise():
    """An empty piece of a longer text inside a list, come through the C interface, is encoded so that it decodes."""
    topic = topic_of(pa.list_(pa.string()))
    empty_piece = pa.ListArray.from_arrays(pa.array([0, 0], pa.int32()), pa.array(["abc"])[1:])
    batch = labelled([empty_piece], topic.stored)
    assert decode_rows(encode_rows(batch), topic.stored).to_pylist() == [{"c": []}]
    assert back(topic, one(topic, batch)).to_pylist() == [{"c": []}]


def test_decoding_copies_nothing():
    """Decoded columns lie in the bytes that were given."""
    topic = topic_of(pa.int64(), nullable=False)
    data = encode_rows(one(topic, [{"c": n} for n in range(1000)]))
    address = pa.py_buffer(data).address
    assert address <= decode_rows(data, topic.stored).column(0).buffers()[1].address < address + len(data)


@given(filled(), st.data())
def test_damaged_rows_are_refused_or_valid(case, data):
    """Changed bytes are BadRows or other valid rows that can be looked at; cut or lengthened ones are BadRows."""
    topic = declare(case[0])
    whole = encode_rows(one(topic, case[2]))
    cut = data.draw(st.integers(0, len(whole) - 1))
    for wrong in (whole[:cut], whole + b"\0" * 8):
        with pytest.raises(BadRows):
            decode_rows(wrong, topic.stored)
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        batch = decode_rows(bytes(changed), topic.stored)
        restore(batch, topic, topic).validate(full=True)
        encode_rows(batch)
    except (BadRows, Corrupt):
        pass


@given(st.binary(max_size=200))
def test_noise_is_no_rows(noise):
    """Hostile bytes are BadRows."""
    with pytest.raises(BadRows):
        decode_rows(noise, TWO.stored)


@pytest.mark.parametrize(
    "wrap", [lambda kind: kind, lambda kind: pa.struct([("x", pa.list_(kind))])], ids=["map", "in"]
)
def test_maps_with_null_keys_are_bad_rows(wrap):
    """A crafted map with a null key or a null entry is refused: Arrow itself would end the process."""
    entries = pa.struct([("key", pa.string()), ("value", pa.int64())])
    topic = topic_of(wrap(pa.map_(pa.string(), pa.int64())))
    crafted = pa.schema([("c", wrap(pa.list_(entries)))])
    inside = (lambda value: value) if wrap(pa.int8()) == pa.int8() else (lambda value: {"x": [value]})
    for entry in (None, {"key": None, "value": 1}):
        data = encode_rows(pa.RecordBatch.from_pylist([{"c": inside([entry])}], schema=crafted))
        with pytest.raises(BadRows):
            decode_rows(data, topic.stored)
    good = encode_rows(pa.RecordBatch.from_pylist([{"c": inside([{"key": "k", "value": 1}])}], schema=crafted))
    decoded = decode_rows(good, topic.stored)
    assert decoded.schema.equals(topic.stored, check_metadata=True)
    assert decoded.to_pylist() == [{"c": inside([("k", 1)])}]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_rows_are_bad_rows(codec):
    """A short message that would expand in memory is refused before it does; the same rows as they are are not."""
    batch = one(TWO, [{"a": 0, "b": "x" * 100}] * 1000)
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, TWO.stored, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    messages = list(pa.ipc.MessageReader.open_stream(stream.getvalue()))
    forged = messages[1].serialize().to_pybytes()
    assert len(forged) < len(encode_rows(batch)) / 10
    before = pa.total_allocated_bytes()
    with pytest.raises(BadRows, match="compressed"):
        decode_rows(forged, TWO.stored)
    assert pa.total_allocated_bytes() - before < len(forged)
    assert decode_rows(encode_rows(batch), TWO.stored).equals(batch)


def test_nulls_in_required_columns_are_bad_rows():
    """Crafted rows with a null where the schema has none are refused."""
    with pytest.raises(BadRows, match="null"):
        decode_rows(encode_rows(pa.record_batch({"a": pa.array([None], pa.int64()), "b": ["x"]})), TWO.stored)


def test_rows_of_another_schema_are_refused():
    """Rows do not decode under a schema whose layout they do not have."""
    with pytest.raises(BadRows):
        decode_rows(TWO.serialize(), TWO.stored)
    with pytest.raises(BadRows):
        decode_rows(encode_rows(one(TWO, {"a": 1})), topic_of(pa.struct([("x", pa.string())])).stored)
