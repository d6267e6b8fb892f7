"""Hashes: the recorded numbers, the same with the packages and without."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.channels.wire_data import NIM_VECTORS, WAKU_VECTORS

from holdfast.channels.wire import hashing
from holdfast.channels.wire.message import raw, text

pytestmark = pytest.mark.unit

FARMHASHES = {"ours": hashing.python_farmhash64, "used": hashing.farmhash64}
MURMURS = {"ours": hashing.python_murmur3_32, "used": hashing.murmur3_32}


def signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def bits_of(first: int, second: int, k: int, size: int) -> list[int]:
    return [(abs(first) % size + n * (abs(second) % size)) % size for n in range(k)]


@pytest.mark.parametrize("which", FARMHASHES)
def test_farmhash_gives_the_recorded_numbers(which):
    """For a string of every length class."""
    for case in NIM_VECTORS["string_hash_int64"]:
        assert signed(FARMHASHES[which](case["s"].encode())) == int(case["hash"]), case["s"]


@pytest.mark.parametrize("which", FARMHASHES)
def test_the_bits_of_an_id_are_those_of_nim_sds(which):
    """Double hashing with " b", as recorded."""
    for case in NIM_VECTORS["hashN"]:
        first, second = (signed(FARMHASHES[which]((case["s"] + end).encode())) for end in ("", " b"))
        assert bits_of(first, second, case["k"], case["mBits"]) == case["idx"]


@pytest.mark.parametrize("which", MURMURS)
def test_the_bits_of_an_id_are_those_of_waku(which):
    """The same over ASCII bytes, as recorded."""
    cases = [case for case in WAKU_VECTORS["hashN"] if case["s"].isascii()]
    assert cases
    for case in cases:
        first, second = (MURMURS[which]((case["s"] + end).encode()) for end in ("", " b"))
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
    assert hashing.murmur3_32_units(list(data)) == hashing.python_murmur3_32(data)


def test_our_hashes_are_those_of_the_packages_at_every_length():
    """Each length up to some blocks beyond the last class."""
    farmhash, mmh3 = pytest.importorskip("farmhash"), pytest.importorskip("mmh3")
    noise = b"".join(hashing.farmhash64(bytes((seed,))).to_bytes(8, "little") for seed in range(50))
    for size in range(len(noise) + 1):
        assert hashing.python_farmhash64(noise[:size]) == farmhash.fingerprint64(noise[:size]), size
        assert hashing.python_murmur3_32(noise[:size]) == mmh3.hash(noise[:size]), size


@given(st.binary(max_size=400))
def test_our_hashes_are_those_of_the_packages(data):
    """And for any bytes."""
    farmhash, mmh3 = pytest.importorskip("farmhash"), pytest.importorskip("mmh3")
    assert hashing.python_farmhash64(data) == farmhash.fingerprint64(data)
    assert hashing.python_murmur3_32(data) == mmh3.hash(data)


def loaded_afresh():
    spec = importlib.util.find_spec("holdfast.channels.wire.hashing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_packages_are_used_when_they_are_there():
    """They are what the extra is for."""
    farmhash, mmh3 = pytest.importorskip("farmhash"), pytest.importorskip("mmh3")
    module = loaded_afresh()
    assert (module.farmhash64, module.murmur3_32) == (farmhash.fingerprint64, mmh3.hash)


def test_our_own_are_used_when_they_are_not(monkeypatch):
    """Nothing but speed depends on the extra."""
    monkeypatch.setitem(sys.modules, "farmhash", None)
    monkeypatch.setitem(sys.modules, "mmh3", None)
    module = loaded_afresh()
    assert (module.farmhash64, module.murmur3_32) == (module.python_farmhash64, module.python_murmur3_32)


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
