"""Filters: the recorded bytes, what rolls and what is forgotten, and hostile filters that are none."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.channels.wire_data import NIM_VECTORS, WAKU_VECTORS, damaged, ids, modest, vector_items

from holdfast.channels.wire import hashing
from holdfast.channels.wire.message import BLOOM_BYTES_MAX, raw, text
from holdfast.channels.wire.nim import NIM
from holdfast.channels.wire.protobuf import delimited, varint
from holdfast.channels.wire.rfc import RFC
from holdfast.errors import Invalid

pytestmark = pytest.mark.unit

both = pytest.mark.parametrize("dialect", [NIM, RFC], ids=["nim", "rfc"])


def filled(dialect, capacity, error_rate, items):
    """A filter after these."""
    made = dialect.new_filter(capacity, error_rate)
    for item in items:
        made.add(item)
    return made


def assert_recorded(data, recorded):
    """As recorded, whole or by its hash."""
    if "bytes" in recorded:
        assert data.hex() == recorded["bytes"]
    else:
        assert (len(data), hashlib.sha256(data).hexdigest()) == (recorded["len"], recorded["sha256"])


def nim_bytes(words, k, bits, capacity=10, rate=10_000):
    """A filter of nim-sds, of whatever parts."""
    parts = [delimited(b"\x0a", words)]
    parts += [bytes((tag,)) + varint(n) for tag, n in ((0x10, capacity), (0x18, rate), (0x20, k), (0x28, bits))]
    return b"".join(parts)


# -- recorded -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", NIM_VECTORS["rolling_bloom"], ids=lambda c: f"{c['capacity']}-{str(c['items'])[:12]}")
def test_filters_are_those_of_nim_sds(case):
    """Byte for byte, before and after rolling; and the same ids are left."""
    made = filled(NIM, case["capacity"], case["errorRate"], vector_items(case["items"]))
    result = case["result"]
    assert_recorded(made.to_bytes(), result)
    if "messages" in result:
        assert made.ids == result["messages"]
    if "kept" in result:
        assert (len(made.ids), made.ids[0], made.ids[-1]) == (result["kept"], result["first"], result["last"])


@pytest.mark.parametrize("case", WAKU_VECTORS["filters"], ids=lambda c: f"{c['capacity']}-{str(c['items'])[:12]}")
def test_filters_are_those_of_waku(case):
    """Byte for byte, also with ids that are not ASCII."""
    assert_recorded(filled(RFC, case["capacity"], case["errorRate"], vector_items(case["items"])).to_bytes(), case)


@pytest.mark.parametrize("case", WAKU_VECTORS["odd_ids"], ids=lambda case: case["hex"])
def test_ids_that_are_no_utf8_are_where_waku_puts_them(case):
    """What cannot be read as text has its bits all the same."""
    assert filled(RFC, 10, 0.01, [text(bytes.fromhex(case["hex"]))]).to_bytes().hex() == case["bloom"]


def test_lookups_in_filters_of_nim_sds_are_as_recorded():
    """Hits and misses."""
    for case in NIM_VECTORS["bloom_lookup"]:
        received = NIM.read_filter(bytes.fromhex(case["bytes"]), 10_000, 0.001)
        assert [item in received for item in case["items"]] == case["hits"]


def wire_text(value: str) -> str:
    """A string of JavaScript as an id that was received: half a pair is three bytes there."""
    return text(value.encode("utf-8", "surrogatepass"))


def test_lookups_in_filters_of_waku_are_as_recorded():
    """Hits and misses, also of ids that share their first code unit, which is all that counts."""
    for case in WAKU_VECTORS["lookups"]:
        received = RFC.read_filter(bytes.fromhex(case["bytes"]), case["capacity"], case["errorRate"])
        assert [wire_text(item) in received for item in case["items"]] == case["hits"]


@pytest.mark.parametrize("case", WAKU_VECTORS["received"], ids=lambda case: case["name"])
def test_filters_of_another_size_are_taken_as_waku_takes_them(case):
    """Longer ones are cut to our own size, shorter ones are none."""
    received = RFC.read_filter(bytes.fromhex(case["bytes"]), case["capacity"], case["errorRate"])
    assert (received and [item in received for item in "abcd"]) == case["hits"]


# -- promises -------------------------------------------------------------------------------------------------


class PlainFilter:
    """The same in the plainest way: a list of ids, and a set of bits when they are asked for."""

    def __init__(self, name, capacity):
        self.name, self.capacity, self.size = name, capacity, capacity
        self.ids = []

    def add(self, item):
        self.ids.append(item)
        if len(self.ids) > int(1.2 * self.capacity):
            keep = int(0.8 * self.capacity)
            self.ids = self.ids[-keep:] if keep else []
            self.size = int(1.2 * self.capacity) if self.name == "nim" else self.capacity

    def hashes(self, item):
        if self.name == "rfc":
            units = hashing.javascript_units(item)
            return [abs(hashing.murmur3_32_units(part)) for part in (units, [*units, 32, 98])]
        numbers = [hashing.farmhash64(raw(item) + end) for end in (b"", b" b")]
        return [abs(number - 2**64 if number >= 2**63 else number) for number in numbers]

    def words(self):
        bits = self.size * 10
        words = [0] * (1 + bits // 64)
        for first, second in map(self.hashes, self.ids):
            for n in range(7):
                at = (first % bits + n * (second % bits)) % bits
                words[at // 64] |= 1 << at % 64
        return b"".join(word.to_bytes(8, "little" if self.name == "nim" else "big") for word in words)


@both
@modest
@given(capacity=st.integers(1, 12), items=st.lists(ids, max_size=40))
def test_a_filter_is_the_plain_one(dialect, capacity, items):
    """Whatever is added and however often it rolls: the same ids, the same bits."""
    made, plain = dialect.new_filter(capacity, 0.01), PlainFilter(dialect.name, capacity)
    for item in items:
        made.add(item)
        plain.add(item)
    sent = made.to_bytes()
    assert made.ids == plain.ids
    assert sent == (plain.words() if dialect is RFC else nim_bytes(plain.words(), 7, plain.size * 10, plain.size))
    assert all(made.knows(item) and item in made for item in plain.ids)
    assert not any(made.knows(item) for item in set(items) - set(plain.ids))


@both
@modest
@given(items=st.lists(ids, max_size=20), others=st.lists(ids, max_size=20))
def test_what_is_sent_is_what_is_received(dialect, items, others):
    """The receiver gets the answers that the sender would get, without fail for what is in there."""
    made = filled(dialect, 50, 0.01, items)
    received = dialect.read_filter(made.to_bytes(), 50, 0.01)
    assert all(item in received for item in items)
    assert [other in received for other in others] == [other in made for other in others]


@both
def test_filters_err_as_seldom_as_they_should(dialect):
    """At capacity, about one id in a thousand that was never added seems to be there."""
    made = filled(dialect, 2000, 0.001, (f"in {number}" for number in range(2000)))
    assert sum(f"out {number}" in made for number in range(10_000)) < 30


@both
def test_knowing_is_exact(dialect):
    """Where a crowded filter says yes to what it never saw, `knows` says no."""
    made = filled(dialect, 10, 0.5, (f"in {number}" for number in range(10)))
    wrong = [f"out {number}" for number in range(100) if f"out {number}" in made]
    assert wrong
    assert not any(map(made.knows, wrong))


@both
def test_an_id_added_twice_is_there_until_both_are_forgotten(dialect):
    """It counts twice, and is known as long as one is left."""
    made = filled(dialect, 5, 0.01, ["a", "b", "c", "d", "e", "a"])
    assert made.ids == ["a", "b", "c", "d", "e", "a"]
    made.add("f")
    assert made.ids == ["d", "e", "a", "f"]
    assert made.knows("a")
    assert not made.knows("b")


@both
def test_cleaning_changes_nothing_while_there_is_room(dialect):
    """The sweep may call it as often as it likes."""
    made = filled(dialect, 10, 0.01, map(str, range(12)))
    before = made.to_bytes()
    made.clean()
    assert (made.to_bytes(), made.ids) == (before, list(map(str, range(12))))


@both
def test_the_list_of_ids_is_the_callers_own(dialect):
    """Changing it changes no filter."""
    made = filled(dialect, 10, 0.01, ["a"])
    made.ids.clear()
    assert made.ids == ["a"]


def test_only_filters_of_nim_sds_grow():
    """Where the size is said with the filter it may change; where it is not, it must stay."""
    for dialect, grown in ((NIM, True), (RFC, False)):
        before = len(dialect.new_filter(100, 0.01).to_bytes())
        assert (len(filled(dialect, 100, 0.01, map(str, range(121))).to_bytes()) > before) is grown


def test_the_default_filter_has_the_size_of_the_reference_implementations():
    """18 768 and 18 752 bytes."""
    assert [len(dialect.new_filter(10_000, 0.001).to_bytes()) for dialect in (NIM, RFC)] == [18_768, 18_752]


@both
@pytest.mark.parametrize(
    ("capacity", "rate"), [(0, 0.1), (-1, 0.1), (10, 0.0), (10, 1.0), (10, -0.1), (10, float("nan")), (10, 1e-30)]
)
def test_impossible_filters_are_refused(dialect, capacity, rate):
    """No ids, no rate, more hashes than anybody reads."""
    with pytest.raises(Invalid):
        dialect.new_filter(capacity, rate)


@both
def test_filters_too_large_to_send_are_refused(dialect):
    """At once, and not when they roll into a larger one."""
    for capacity in (3_400_000, 10**12) + ((3_000_000,) if dialect is NIM else ()):
        with pytest.raises(Invalid, match="too large"):
            dialect.new_filter(capacity, 0.01)
    largest = dialect.new_filter(2_790_000 if dialect is NIM else 3_350_000, 0.01).to_bytes()
    assert len(largest) <= BLOOM_BYTES_MAX
    assert dialect.read_filter(largest, 3_350_000, 0.01) is not None


@both
def test_an_id_that_cannot_be_sent_is_refused_and_not_remembered(dialect):
    """Half a surrogate pair is no id."""
    made = dialect.new_filter(10, 0.01)
    before = made.to_bytes()
    with pytest.raises(Invalid):
        made.add("\ud83d")
    assert (made.ids, made.to_bytes()) == ([], before)


# -- hostile filters ------------------------------------------------------------------------------------------

GOOD = bytes(8)

HOSTILE_NIM = {
    "no bits": nim_bytes(GOOD, 7, 0),
    "more bits than words": nim_bytes(GOOD, 7, 65),
    "far more bits than words": nim_bytes(GOOD, 7, 2**63),
    "no words": nim_bytes(b"", 7, 64),
    "no words and no bits": nim_bytes(b"", 7, 0),
    "half a word": nim_bytes(bytes(7), 7, 56),
    "a word and a half": nim_bytes(bytes(12), 7, 65),
    "no hashes": nim_bytes(GOOD, 0, 64),
    "65 hashes": nim_bytes(GOOD, 65, 64),
    "2⁶³ hashes": nim_bytes(GOOD, 2**63, 64),
    "2⁶⁴−1 hashes": nim_bytes(GOOD, 2**64 - 1, 64),
    "all ones": nim_bytes(b"\xff" * 8, 7, 64),
    "more than three quarters": nim_bytes(b"\xff" * 6 + b"\x01\x00", 7, 64),
    "one hash and half full": nim_bytes(b"\x0f" * 8, 1, 64),
    "two hashes and half full": nim_bytes(b"\x0f" * 8, 2, 64),
    "all of the few bits that count": nim_bytes(b"\x0f" + bytes(7), 7, 4),
    "larger than 4 MiB": nim_bytes(bytes(BLOOM_BYTES_MAX), 7, 64),
    "empty": b"",
    "words alone": delimited(b"\x0a", GOOD),
    "words as a number": b"\x08\x01\x10\x0a\x18\x0a\x20\x07\x28\x40",
    "hashes as bytes": delimited(b"\x0a", GOOD) + b"\x10\x0a\x18\x0a\x22\x01\x07\x28\x40",
    "cut off": nim_bytes(GOOD, 7, 64)[:-1],
    "of waku": bytes.fromhex("20040002220000030000000200000822"),
}


@pytest.mark.parametrize("name", HOSTILE_NIM)
def test_hostile_filters_of_nim_sds_are_none(name):
    """What ends the process there, or says yes to everything, is no filter here."""
    assert NIM.read_filter(HOSTILE_NIM[name], 10_000, 0.001) is None


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("as many bits as the words have", nim_bytes(GOOD, 7, 64)),
        ("64 hashes", nim_bytes(GOOD, 64, 64)),
        ("just three quarters", nim_bytes(b"\xff" * 6 + bytes(2), 7, 64)),
        ("three hashes and half full", nim_bytes(b"\x0f" * 8, 3, 64)),
        ("ones where nobody looks", nim_bytes(b"\x01" + b"\xff" * 15, 7, 4)),
        ("one bit", nim_bytes(GOOD, 1, 1)),
        ("bytes behind the last word", nim_bytes(bytes(13), 7, 64)),
        ("absurd capacity and rate", nim_bytes(GOOD, 7, 64, 2**64 - 1, 2**64 - 1)),
        ("unknown fields", nim_bytes(GOOD, 7, 64) + b"\x30\x01"),
    ],
)
def test_filters_that_only_look_odd_are_read(name, data):
    """The bounds are where they should be: these are filters, and empty ones have nobody."""
    received = NIM.read_filter(data, 10_000, 0.001)
    assert received is not None
    if name != "just three quarters":
        assert sum(f"m{number}" in received for number in range(100)) < 50


@pytest.mark.parametrize("size", [0, 1, 8, 18_744, 18_751, BLOOM_BYTES_MAX + 1])
def test_filters_of_waku_of_a_wrong_size_are_none(size):
    """Too short for our own parameters, or absurdly long."""
    assert RFC.read_filter(bytes(size), 10_000, 0.001) is None


@both
def test_flooded_filters_are_none(dialect):
    """More than three quarters of the bits: nobody honest sends it. What does not count is not counted."""
    capacity, rate, bits, order = 64, 0.01, 640, "little" if dialect is NIM else "big"

    def sent(ones, beyond=0):
        number = (1 << ones) - 1 | beyond << bits
        words = [(number >> at & 2**64 - 1).to_bytes(8, order) for at in range(0, bits + 1, 64)]
        return nim_bytes(b"".join(words), 7, bits) if dialect is NIM else b"".join(words)

    assert dialect.read_filter(sent(bits * 3 // 4), capacity, rate) is not None
    assert dialect.read_filter(sent(0, beyond=2**64 - 1), capacity, rate) is not None
    assert dialect.read_filter(sent(bits * 3 // 4 + 1), capacity, rate) is None
    assert dialect.read_filter(sent(bits), capacity, rate) is None


@both
@modest
@given(draw=st.data())
def test_damaged_filters_are_filters_or_none(dialect, draw):
    """Whatever is sent: no exception, also when it is asked."""
    data = damaged(filled(dialect, 10, 0.01, ["a", "b"]).to_bytes(), draw)
    received = dialect.read_filter(data, 10, 0.01)
    assert received is None or ("a" in received) in (True, False)


@modest
@given(st.binary(max_size=64), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_any_parameters_are_filters_or_none(words, k, bits):
    """Including those that are just in bounds."""
    for hashes, size in ((k, bits), (k % 70, bits % 520)):
        received = NIM.read_filter(nim_bytes(words, hashes, size), 10, 0.01)
        assert received is None or ("a" in received) in (True, False)
