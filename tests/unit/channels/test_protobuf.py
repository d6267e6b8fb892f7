"""The protobuf walker: what is written is found, and what is no protobuf is refused as such."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.channels.wire_data import NIM_VECTORS, modest

from holdfast.channels.wire.nim import NIM
from holdfast.channels.wire.protobuf import UINT64_MAX, delimited, fields, read_varint, varint
from holdfast.errors import Invalid

pytestmark = pytest.mark.unit

numbers = st.integers(1, 2**29 - 1)
uint64 = st.one_of(st.integers(0, 300), st.integers(0, UINT64_MAX))
field = st.one_of(
    st.tuples(numbers.map(lambda n: n << 3), uint64),
    st.tuples(numbers.map(lambda n: n << 3 | 2), st.binary(max_size=300)),
    st.tuples(numbers.map(lambda n: n << 3 | 1), st.binary(min_size=8, max_size=8)),
    st.tuples(numbers.map(lambda n: n << 3 | 5), st.binary(min_size=4, max_size=4)),
)


def written(tag: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(tag) + varint(value)
    return delimited(varint(tag), value) if tag & 7 == 2 else varint(tag) + value


def found(data: bytes, at: int = 0, end: int | None = None) -> list[tuple[int, int | bytes]]:
    walk = fields(data, at, len(data) if end is None else end)
    return [(tag, data[start:stop] if tag & 7 else start) for tag, start, stop in walk]


@modest
@given(st.lists(field, max_size=8))
def test_what_is_written_is_found(values):
    """Every field comes back in order, with its tag and value, and where it ends."""
    assert found(b"".join(written(*value) for value in values)) == values


@modest
@given(st.lists(field, max_size=4), st.lists(field, min_size=1, max_size=4), st.lists(field, max_size=4))
def test_a_walk_keeps_to_its_part_of_the_data(before, inside, after):
    """Fields before and behind the part are not seen."""
    head, body, tail = (b"".join(written(*value) for value in part) for part in (before, inside, after))
    assert found(head + body + tail, len(head), len(head) + len(body)) == inside


@modest
@given(field, st.data())
def test_a_field_that_is_cut_off_is_refused(value, data):
    """Also when the missing bytes are there, but belong to somebody else."""
    whole = written(*value)
    cut = data.draw(st.integers(1, len(whole) - 1))
    for bytes_, end in ((whole[:cut], cut), (whole, cut)):
        with pytest.raises(Invalid, match="cut off"):
            found(bytes_, 0, end)


@modest
@given(uint64)
def test_a_varint_is_read_as_it_was_written(value):
    """From 0 to 2⁶⁴−1, and with bytes that it does not need."""
    assert read_varint(varint(value), 0, len(varint(value))) == (value, len(varint(value)))
    padded = varint(value)[:-1] + bytes((varint(value)[-1] | 0x80, 0))
    if len(padded) <= 10:
        assert read_varint(padded, 0, len(padded)) == (value, len(padded))


@pytest.mark.parametrize(
    ("name", "data", "what"),
    [
        ("number 0", "0000", "number"),
        ("number 0 with bytes", "020161", "number"),
        ("number beyond 2²⁹", "808080808001" + "00", "number"),
        ("group", "0b0c", "wire type"),
        ("end of a group", "0c", "wire type"),
        ("wire type 6", "0e00", "wire type"),
        ("wire type 7", "0f00", "wire type"),
        ("varint of eleven bytes", "08" + "80" * 10 + "01", "64 bits"),
        ("varint of 65 bits", "08" + "ff" * 9 + "02", "64 bits"),
        ("tag of eleven bytes", "88" + "80" * 10 + "01", "64 bits"),
        ("length beyond the end", "0a0561", "cut off"),
        ("length of 2⁶⁴−1", "0a" + "ff" * 9 + "01", "cut off"),
        ("tag alone", "0a", "cut off"),
        ("half a tag", "8a", "cut off"),
        ("half a number", "0880", "cut off"),
        ("short fixed64", "0901020304050607", "cut off"),
        ("short fixed32", "0d010203", "cut off"),
    ],
)
def test_what_is_no_protobuf_is_refused(name, data, what):
    """With the reason in the message, and a hint."""
    with pytest.raises(Invalid, match=what) as caught:
        found(bytes.fromhex(data))
    assert caught.value.hint


@modest
@given(st.binary(max_size=200))
def test_noise_gives_fields_or_invalid(noise):
    """Never another exception."""
    try:
        found(noise)
    except Invalid:
        pass


def test_skipping_takes_no_memory():
    """Many fields that nobody asks for, and lengths that nobody has, cost nothing."""
    many = b"\x08\x00" * 20_000
    huge = b"\x0a" + varint(2**40)
    tracemalloc.start()
    for _ in fields(many, 0, len(many)):
        pass
    with pytest.raises(Invalid):
        found(huge)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000


def test_a_recorded_snapshot_is_walked_and_written_again():
    """Snapshots of nim-sds hold nested messages: all are found, decode, and give the same bytes again."""
    data = bytes.fromhex(NIM_VECTORS["channel_meta"]["hex"])
    tree = found(data)
    assert [tag >> 3 for tag, _ in tree] == [1, 2, 3, 4, 5, 6]
    assert b"".join(written(*value) for value in tree) == data
    stored = [dict(found(body))[0x0A] for tag, body in tree if tag in (0x1A, 0x22)]
    assert [NIM.decode(body).message_id for body in stored] == ["a1", "b2"]
    assert [NIM.encode(NIM.decode(body)) for body in stored] == stored
