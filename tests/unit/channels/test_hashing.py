"""Hashes: the recorded numbers."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.channels.wire_data import NIM_VECTORS, WAKU_VECTORS

from holdfast import Invalid
from holdfast.channels.wire import hashing
from holdfast.channels.wire.message import raw, text

pytestmark = pytest.mark.unit


def signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def bits_of(first: int, second: int, k: int, size: int) -> list[int]:
    return [(abs(first) % size + n * (abs(second) % size)) % size for n in range(k)]


def test_farmhash_gives_the_recorded_numbers():
    """For a string of every length class."""
    for case in NIM_VECTORS["string_hash_int64"]:
        assert signed(hashing.farmhash64(case["s"].encode())) == int(case["hash"]), case["s"]


def test_the_bits_of_an_id_are_those_of_nim_sds():
    """Double hashing with " b", as recorded."""
    for case in NIM_VECTORS["hashN"]:
        first, second = (signed(hashing.farmhash64((case["s"] + end).encode())) for end in ("", " b"))
        assert bits_of(first, second, case["k"], case["mBits"]) == case["idx"]


def test_the_bits_of_an_id_are_those_of_waku():
    """The same over ASCII bytes, as recorded."""
    cases = [case for case in WAKU_VECTORS["hashN"] if case["s"].isascii()]
    assert cases
    for case in cases:
        first, second = (hashing.murmur3_32((case["s"] + end).encode()) for end in ("", " b"))
        assert bits_of(first, second, case["k"], case["mBits"]) == case["idx"]


def test_the_bits_of_any_id_are_those_of_waku():
    """And over code units, which need not fit into bytes."""
    assert any(not case["s"].isascii() for case in WAKU_VECTORS["hashN"])
    for case in WAKU_VECTORS["hashN"]:
        units = hashing.javascript_units(case["s"])
        first, second = hashing.murmur3_32_units(units), hashing.murmur3_32_units([*units, 32, 98])
        assert bits_of(first, second, case["k"], case["mBits"]) == case["idx"], case["s"]


@given(st.binary(max_size=80))
def test_units_that_are_bytes_hash_like_bytes(data):
    """The wide form is the plain one where both apply."""
    assert hashing.murmur3_32_units(list(data)) == hashing.murmur3_32(data)


@pytest.mark.parametrize("missing", ["farmhash", "mmh3"])
def test_without_the_packages_the_extra_is_named(missing, monkeypatch):
    """No channel is opened that computes other numbers than the others."""
    monkeypatch.setitem(sys.modules, missing, None)
    spec = importlib.util.find_spec("holdfast.channels.wire.hashing")
    with pytest.raises(Invalid, match="extra") as caught:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert "holdfast-log[channels]" in caught.value.hint


@pytest.mark.parametrize("case", WAKU_VECTORS["odd_ids"], ids=lambda case: case["hex"])
def test_an_id_is_read_as_javascript_reads_it(case):
    """Bytes that are no UTF-8 become the code units that the package makes of them; low halves of pairs are dropped."""
    units = case["units"]
    pairs = zip([0, *units], units, strict=False)
    kept = [unit for before, unit in pairs if not (0xD800 <= before < 0xDC00 <= unit < 0xE000)]
    assert hashing.javascript_units(text(bytes.fromhex(case["hex"]))) == kept


@given(st.text(max_size=20), st.text(max_size=20))
def test_good_text_is_encoded_as_utf8(first, second):
    """Only what is no UTF-8 on the wire is treated in an odd way."""
    first, second = (value.encode("utf-8", "replace").decode() for value in (first, second))
    assert hashing.javascript_bytes(first, second) == raw(first + second)


def test_halves_of_a_pair_join_and_lone_ones_are_replaced():
    """As strings do in JavaScript, where ids are put together before they are encoded."""
    high, low = text(b"\xed\xa0\xbd"), text(b"\xed\xb8\x80")
    assert hashing.javascript_bytes(high, low) == "\U0001f600".encode()
    assert hashing.javascript_bytes(low, high) == "\ufffd\ufffd".encode()
