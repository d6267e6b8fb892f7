"""Values and their payloads: what goes in comes out, and what would not is refused."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Invalid
from holdfast.model.record import Record
from holdfast.model.value_codec import ValueCodec, ValueRecord, codec_of

pytestmark = pytest.mark.unit

Pydantic = pytest.importorskip("pydantic").BaseModel
JSON, MSGPACK = ValueCodec("json"), ValueCodec("msgpack")
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text() | st.binary(max_size=4),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(-2, 2), inner),
    max_leaves=12,
)


class Model(Pydantic):  # type: ignore[misc,valid-type]
    id: int
    note: float | None = None


class Struct(msgspec.Struct):
    id: int
    note: float | None = None


@dataclass
class Data:
    id: int
    note: float | None = None


def back(codec: ValueCodec, value: object) -> Any:
    return codec.value_of(Record(codec.encode(value)))


@given(plain)
def test_json_comes_back_equal_or_is_refused(value: object) -> None:
    try:
        found = back(JSON, value)
    except Invalid as refused:
        assert refused.hint
    else:
        assert found == value


@given(plain, st.binary(max_size=60))
def test_anything_that_is_taken_can_be_read(value: object, payload: bytes) -> None:
    for codec in (JSON, MSGPACK, ValueCodec("text"), ValueCodec("json", Struct)):
        for one in (value, payload):
            try:
                taken = codec.encode(one)
            except Invalid:
                continue
            codec.value_of(Record(taken))
            codec.as_json(taken)


@pytest.mark.parametrize("kind", [Model, Struct, Data])
def test_types_come_back_and_say_what_does_not_fit(kind: Any) -> None:
    codec = codec_of(kind)
    assert codec is not None
    assert back(codec, kind(id=1, note=2.5)) == kind(id=1, note=2.5)
    assert back(codec, {"id": 1}) == kind(id=1)
    assert back(codec, b'{"id": 1, "id": 2}') == kind(id=2)
    assert codec.name == "json"
    assert pickle.loads(pickle.dumps(codec)) == codec == codec_of(codec)
    for wrong in (kind(id=1, note=math.nan), {"id": "x"}, {}, None, b"", {"id": 1, "note": math.inf}):
        with pytest.raises(Invalid, match=f"JSON of {kind.__name__}"):
            codec.encode(wrong)


def test_what_json_has_no_word_for_is_text_or_refused() -> None:
    when, who = datetime(2026, 1, 1, tzinfo=UTC), UUID(int=7)
    assert back(JSON, {"at": when, "by": who, "pair": (1, 2)}) == {
        "at": "2026-01-01T00:00:00Z",
        "by": str(who),
        "pair": [1, 2],
    }
    assert back(JSON, 10**40) == 10**40
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for wrong, why in (
        (Record(b"1"), "a record is not a value"),
        (Struct(1, math.nan), "no NaN"),
        ({"a": [Data(1, math.inf)]}, "no NaN"),
        ([(1, b"x")], "no bytes"),
        ({"a": {1: 2, "1": 3}}, "names are text"),
        (deep, "too deep"),
        ("\ud800", "lone surrogates"),
        (b"[" * 100_000, "not JSON"),
        (b'"\xff"', "not JSON"),
    ):
        with pytest.raises(Invalid, match=why):
            JSON.encode(wrong)
    while deep:
        deep = deep.pop()  # or its end would be as deep


def test_a_value_is_printed_in_one_line_of_json() -> None:
    record = ValueRecord.of(Record(b'{"a":\n "\\n"}', offset=3), JSON)
    assert JSON.as_json(record.payload) == msgspec.Raw(b'{"a":"\\n"}')
    assert JSON.as_json(b"{") is MSGPACK.as_json(b"\xc1") is msgspec.UNSET
    assert MSGPACK.from_json(b'{"id": 1}') == b"\x81\xa2id\x01"
    assert record == Record(b'{"a":\n "\\n"}', offset=3)
    assert pickle.loads(pickle.dumps(record)).value == {"a": "\n"}
