"""A few bytes of Arrow that stand for gigabytes are refused before anything is made of them."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest
from tests.schema_data import encode_rows

from holdfast.segments.typed.row_message import BadRows, sent_rows, stream_batches
from holdfast.segments.typed.stated_size import repeats, stated_size

pytestmark = pytest.mark.unit

ROWS_MAX, BYTES_MAX = 100_000, 2**20
MANY = 2**30


def stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def many_views(kind: pa.DataType) -> pa.Array:
    view = struct.pack("<i4sii", 10_000, b"aaaa", 0, 0)
    return pa.Array.from_buffers(kind, 5_000, [None, pa.py_buffer(view * 5_000), pa.py_buffer(b"a" * 10_000)])


def listed(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)


def nothing(kind: pa.DataType, *buffers: pa.Buffer | None, children: list[pa.Array] | None = None) -> pa.Array:
    return pa.Array.from_buffers(kind, MANY, list(buffers) or [None], children=children)


BOMBS = {
    "views": lambda: many_views(pa.binary_view()),
    "views of text": lambda: many_views(pa.string_view()),
    "views in a struct": lambda: pa.StructArray.from_arrays([many_views(pa.binary_view())], ["c"]),
    "nulls in a list": lambda: listed(pa.nulls(MANY)),
    "nulls in a list of a fixed size": lambda: pa.FixedSizeListArray.from_arrays(pa.nulls(MANY), MANY),
    "empty structs": lambda: listed(nothing(pa.struct([]))),
    "structs of nulls": lambda: listed(nothing(pa.struct([("n", pa.null())]), children=[pa.nulls(MANY)])),
    "binaries of no size": lambda: listed(nothing(pa.binary(0), None, pa.py_buffer(b""))),
    "lists of no size": lambda: listed(nothing(pa.list_(pa.int8(), 0), children=[pa.array([], pa.int8())])),
}
REPEATED = {
    "dictionary": lambda: pa.array(["a"]).dictionary_encode(),
    "run": lambda: pa.RunEndEncodedArray.from_arrays(pa.array([90_000], pa.int32()), pa.array([b"x"])),
    "list view": lambda: pa.ListViewArray.from_arrays([0] * 9, [5] * 9, pa.array(np.zeros(5, np.int8))),
    "union": lambda: pa.UnionArray.from_dense(
        pa.array([0] * 9, pa.int8()), pa.array([0] * 9, pa.int32()), [pa.array([b"x"])]
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_stands_for_more_than_may_be_is_refused(name):
    body = stream(pa.record_batch({"c": BOMBS[name]()}))
    assert len(body) < BYTES_MAX
    before = pa.total_allocated_bytes()
    with pytest.raises(BadRows, match="too many bytes"):
        stream_batches(body, ROWS_MAX, BYTES_MAX)
    assert pa.total_allocated_bytes() - before < BYTES_MAX


@pytest.mark.parametrize("inside", [False, True], ids=["column", "inside a list"])
@pytest.mark.parametrize("name", REPEATED)
def test_types_that_repeat_a_value_are_refused(name, inside):
    array = REPEATED[name]()
    kind = pa.list_(array.type) if inside else array.type
    assert repeats(kind)
    body = stream(pa.record_batch([pa.array([], kind) if name == "dictionary" and inside else array], names=["c"]))
    with pytest.raises(BadRows):
        stream_batches(body, ROWS_MAX, BYTES_MAX)


def overlapping(batch: pa.RecordBatch) -> bytes:
    """The message of columns of the same values, all of which lie in the bytes of the first."""
    data, size = encode_rows(batch), batch.num_rows * 8
    whole = size * batch.num_columns
    head, body = data[:-whole], data[-whole:]
    for place in range(1, batch.num_columns):
        for length in (0, size):  # of the bits that say which are null, and of the values
            assert struct.pack("<qq", place * size, length) in head
            head = head.replace(struct.pack("<qq", place * size, length), struct.pack("<qq", 0, length))
    assert head.count(struct.pack("<q", whole)) >= 1
    return head.replace(struct.pack("<q", whole), struct.pack("<q", size), 1) + body[:size]


def test_columns_that_lie_over_one_another_are_refused():
    batch = pa.record_batch({f"c{place}": np.arange(1000) for place in range(20)})
    forged = overlapping(batch)
    assert len(forged) < batch.nbytes / 10
    with pytest.raises(BadRows, match="over one another"):
        sent_rows(forged, batch.schema)
    assert sent_rows(encode_rows(batch), batch.schema).equals(batch)
    whole = stream(batch)
    at = whole.index(encode_rows(batch)[:100])
    with pytest.raises(BadRows, match="too many bytes"):
        stream_batches(whole[:at] + forged, ROWS_MAX, len(forged))


def test_a_stream_that_begins_with_something_else_ends_no_process():
    """Arrow reads whatever comes first as a schema: a message of no known type, which nobody has verified, too."""
    body = bytearray(stream(pa.record_batch({"payload": [b"x"]})))
    size = 8 + int.from_bytes(body[4:8], "little")
    assert body[20:22] == b"\x05\x00"  # where the message's table has its type
    body[20] = 0x15
    body[48:size] = b"\x7f" * (size - 48)
    with pytest.raises(BadRows, match="does not begin with a schema"):
        stream_batches(bytes(body), ROWS_MAX, BYTES_MAX)


def test_plain_data_is_as_large_as_it_is():
    """Whatever is there itself is taken, also when it is larger than what may be stood for."""
    batch = pa.record_batch(
        {
            "text": pa.array(["a" * 30, None, ""] * 100, pa.string_view()),
            "list": pa.array([[True], None, []] * 100),
            "map": pa.array([[("k", b"v")], None, []] * 100, pa.map_(pa.string(), pa.binary())),
            "fixed": pa.array([[1, 2], None, [3, 4]] * 100, pa.list_(pa.int8(), 2)),
            "struct": pa.array([{"a": 1}, None, {"a": None}] * 100),
            "null": pa.nulls(300),
            "uuid": pa.array([b"u" * 16] * 300, pa.uuid()),
        }
    )
    assert stream_batches(stream(batch), ROWS_MAX, 1) == [batch]
    assert stated_size(batch.column("text")) == 300 * 16 + 100 * 30
    assert stated_size(batch.column("null")) == 300
