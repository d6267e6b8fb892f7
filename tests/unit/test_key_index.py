"""The index of a segment's keys: it never misses a row, hardly ever names a wrong one, and bears any bytes."""

from __future__ import annotations

import random
import sys
from itertools import pairwise

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.segments.keys import key_index
from holdfast.segments.keys.key_hash import hash_key, hash_keys
from holdfast.segments.keys.key_index import BadIndex, KeyIndex, KeyIndexBuilder

pytestmark = pytest.mark.unit

KEYS = st.one_of(st.binary(max_size=40), st.sampled_from([b"", b"a", b"a\0", b"a" * 32, b"a" * 33, b"\xff" * 40]))


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of four rows, so that few keys fill many of them."""
    monkeypatch.setattr(key_index, "UNIT_ROWS", 4)


def stored(keys: list[bytes | None], cut: int = 5) -> bytes:
    builder = KeyIndexBuilder()
    for at in range(0, len(keys), cut):
        builder.add(pa.array(keys[at : at + cut], pa.binary()))
    made = builder.result()
    assert made is not None
    return made


def rows_of(index: KeyIndex, key: bytes, count: int) -> set[int]:
    return {row for start, end in index.spans(key, hash_key(key)) for row in range(start, min(end, count))}


@given(st.lists(KEYS, max_size=200))
def test_one_key_hashes_as_a_column_of_them_does(keys: list[bytes]) -> None:
    """Also in slices, with empty keys and with keys of one length."""
    array = pa.array([b"before", *keys], pa.binary()).slice(1)
    assert hash_keys(array).to_pylist() == [hash_key(key) for key in keys]


def test_hashes_are_those_of_the_format() -> None:
    """0004: what was written once must be found forever."""
    assert [f"{hash_key(key):016x}" for key in (b"", b"c-42", b"a-rather-long-key")] == [
        "0000000000000000",
        "ba8d73d537ae9dcf",
        "b2e801ca096a2acf",
    ]


@pytest.mark.usefixtures("small_units")
@settings(max_examples=60, deadline=None)
@given(st.lists(st.none() | KEYS, max_size=60), st.integers(1, 70))
def test_no_row_with_a_key_is_ever_missed(keys: list[bytes | None], cut: int) -> None:
    """Whatever the keys are and however they come: every row of a key is in a span of it, and spans are in order."""
    index = KeyIndex.parse(stored(keys, cut), len(keys))
    for key in {key for key in keys if key is not None}:
        spans = index.spans(key, hash_key(key))
        assert spans == sorted(spans)
        assert all(end < start for (_, end), (start, _) in pairwise(spans))
        assert {row for row, one in enumerate(keys) if one == key} <= rows_of(index, key, len(keys))
    if keys:
        assert index.covers(pa.array(keys, pa.binary()), 0)


def test_rows_of_other_keys_are_hardly_ever_named() -> None:
    """One absent key in two thousand costs a look; keys outside of the range cost nothing."""
    chance = random.Random(3)
    keys = [b"customer-%09d" % chance.randrange(10**9) for _ in range(20_000)]
    index = KeyIndex.parse(stored(keys, 9_000), len(keys))
    absent = [b"customer-%09d" % chance.randrange(10**9) for _ in range(20_000)]
    wrong = sum(bool(index.spans(key, hash_key(key))) for key in absent)
    assert wrong < 40  # ten are expected
    assert not index.spans(b"zzz", hash_key(b"zzz"))
    assert not index.spans(b"", hash_key(b""))


def test_its_size_is_two_bytes_for_a_key_and_little_for_a_repeated_one() -> None:
    chance = random.Random(4)
    different = [chance.randbytes(16) for _ in range(20_000)]
    assert len(stored(different, 9_000)) < 2.2 * len(different)
    repeated = [b"customer-%d" % (i % 50) for i in range(20_000)]
    assert len(stored(repeated, 9_000)) < 1_000
    assert len(stored([None] * 20_000, 9_000)) < 30


def test_it_is_the_same_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which need not be installed."""
    keys = [b"k-%d" % (i * 7919 % 1_000) for i in range(3_000)]
    made = stored(keys)
    monkeypatch.delitem(sys.modules, "numpy", raising=False)
    assert stored(keys) == made


def test_very_long_segments_have_longer_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit's number has two bytes."""
    monkeypatch.setattr(key_index, "UNIT_ROWS", 1)
    keys = [b"k-%d" % i if i % 5_000 == 3 else None for i in range(100_000)]
    index = KeyIndex.parse(stored(keys, 100_000), len(keys))
    assert index.spans(b"k-95003", hash_key(b"k-95003")) == [(95_002, 95_004)]


def test_more_keys_than_it_takes_make_no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a segment is read instead; memory stays bounded."""
    monkeypatch.setattr(key_index, "ENTRIES_MAX", 100)
    builder = KeyIndexBuilder()
    builder.add(pa.array([b"%d" % i for i in range(101)], pa.binary()))
    assert builder.result() is None


def test_an_index_that_does_not_know_a_key_is_found_by_comparing_it_with_the_rows() -> None:
    """A deep check does that: an index must never hide a record."""
    keys = [b"k-%d" % i for i in range(100)]
    index = KeyIndex.parse(stored([*keys[:60], None, *keys[61:]]), 100)
    assert index.covers(pa.array([*keys[:60], None, *keys[61:]], pa.binary()), 0)
    assert not index.covers(pa.array(keys, pa.binary()), 0)
    assert not index.covers(pa.array([b"a-smaller-one"], pa.binary()), 0)
    far = pa.array([*[None] * key_index.UNIT_ROWS, b"k-1"], pa.binary())
    assert not index.covers(far, 0)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_bytes_are_an_index_or_are_refused(data: st.DataObject) -> None:
    """Cut, changed and invented ones: BadIndex, or an index that points into its rows."""
    good = stored([b"k-%d" % i for i in range(300)])
    kind = data.draw(st.sampled_from(["cut", "flipped", "invented", "random"]))
    if kind == "cut":
        content = good[: data.draw(st.integers(0, len(good) - 1))]
    elif kind == "flipped":
        at = data.draw(st.integers(0, len(good) - 1))
        content = good[:at] + bytes([good[at] ^ data.draw(st.integers(1, 255))]) + good[at + 1 :]
    elif kind == "invented":
        number = st.integers(-1, 2**65) | st.integers(0, 400)
        fields = [1, b"", b"z", *(data.draw(number.filter(lambda n: n < 2**64)) for _ in range(3)), good[-200:]]
        content = msgspec.msgpack.encode(fields)
    else:
        content = data.draw(st.binary(max_size=300))
    try:
        index = KeyIndex.parse(content, 300)
    except BadIndex:
        return
    for key in (b"k-1", b"", b"k-77"):
        assert all(start < 300 for start, _ in index.spans(key, hash_key(key)))


@pytest.mark.parametrize(
    ("place", "value"), [(0, 2), (3, 0), (4, 2**33), (5, 2**23 + 1), (5, 301), (6, b"nothing"), (1, b"x" * 33)]
)
def test_impossible_values_are_refused(place: int, value: object) -> None:
    """Another version, a unit without rows, more entries than rows, and what is no zstd."""
    fields = msgspec.msgpack.decode(stored([b"k-%d" % i for i in range(300)]))
    fields[place] = value
    with pytest.raises(BadIndex):
        KeyIndex.parse(msgspec.msgpack.encode(fields), 300)


def test_an_index_of_more_rows_than_the_segment_has_is_refused() -> None:
    """It points behind the last row: it is another segment's."""
    with pytest.raises(BadIndex):
        KeyIndex.parse(stored([b"k-%d" % (i % 7) for i in range(9_000)], 9_000), 5_000)
