"""The wire format of nim-sds: the recorded bytes, what it accepts and refuses, and limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.channels.wire_data import (
    AT_LIMIT,
    NIM_VECTORS,
    OVER_LIMIT,
    WAKU_VECTORS,
    damaged,
    google_decode,
    google_encode,
    messages,
    modest,
    plain,
    vector_message,
)

from holdfast.channels.wire.message import HistoryEntry, SdsMessage, text
from holdfast.channels.wire.nim import NIM
from holdfast.channels.wire.protobuf import delimited, varint
from holdfast.errors import Invalid

pytestmark = pytest.mark.unit


def bare(head: bytes, *more: bytes) -> bytes:
    """The three fields that are needed, and others."""
    return b"\x0a\x01m\x10\x01\x22\x01c" + head + b"".join(more)


# -- recorded -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", NIM_VECTORS["messages"], ids=lambda case: case["msg"]["messageId"] or "empty")
def test_messages_are_those_of_nim_sds(case):
    """Byte for byte, and back."""
    message = vector_message(case["msg"])
    assert NIM.encode(message).hex() == case["hex"]
    assert NIM.decode(bytes.fromhex(case["hex"])) == message


@pytest.mark.parametrize("case", NIM_VECTORS["decode"], ids=lambda case: case["name"])
def test_what_nim_sds_accepts_is_accepted_and_the_rest_refused(case):
    """But for one: a message without the field for content is one of version 0.4, with empty content."""
    data = bytes.fromhex(case["hex"])
    if case["name"] == "no_content":
        assert NIM.decode(data) == SdsMessage("x", "c", 1)
    elif "err" in case["result"]:
        with pytest.raises(Invalid):
            NIM.decode(data)
    else:
        assert NIM.decode(data) == vector_message(case["result"]["ok"])


@pytest.mark.parametrize("case", WAKU_VECTORS["messages"], ids=lambda case: case["name"])
def test_messages_of_waku_are_refused(case):
    """As nim-sds refuses them."""
    with pytest.raises(Invalid):
        NIM.decode(bytes.fromhex(case["hex"]))


def test_all_fields_are_written_in_the_order_of_nim_sds():
    """The message that the reference has in both formats."""
    message = SdsMessage(
        "m2",
        "ch",
        300,
        b"\xff",
        "alice",
        (HistoryEntry("m1", b"\xaa\xbb", "zed"),),
        b"\0",
        (HistoryEntry("mx", b"", "bob"),),
    )
    wire = "0a026d3210ac021a0d0a026d311202aabb1a037a6564220263682a01ff3201003a05616c6963656a090a026d781a03626f62"
    assert NIM.encode(message).hex() == wire


# -- both ways ------------------------------------------------------------------------------------------------


@modest
@given(messages())
def test_a_message_survives_the_nim_wire(message):
    """What is encoded is decoded, with every byte of every id."""
    assert NIM.decode(NIM.encode(message)) == message


@modest
@given(messages())
def test_google_reads_what_we_write(message):
    """To the same fields."""
    pytest.importorskip("google.protobuf")
    assert google_decode("nim", NIM.encode(message)) == message


@modest
@given(messages())
def test_we_read_what_google_writes(message):
    """Which writes fields that we leave out."""
    pytest.importorskip("google.protobuf")
    assert NIM.decode(google_encode("nim", message)) == message


# -- leniency and strictness ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("neither content nor filter", bare(b"")),
        ("unknown fields", bare(b"\x40\x05", b"\x4a\x01z", b"\x4d1234", b"\x4912345678")),
        ("fields of other types beside", bare(b"\x08\x07\x12\x01z\x18\x01\x20\x01\x28\x01\x30\x01\x38\x01\x68\x01")),
        ("the last of several", b"\x0a\x01x\x10\x09\x22\x01y" + bare(b"")),
        ("another order", b"\x22\x01c\x10\x01\x0a\x01m"),
        ("a padded number", b"\x0a\x01m\x10\x81\x80\x00\x22\x01c"),
    ],
)
def test_what_is_odd_but_clear_is_read(name, data):
    """Version 0.4 leaves out what is empty, later ones may add fields."""
    assert NIM.decode(data) == SdsMessage("m", "c", 1)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("no id", b"\x10\x01\x22\x01c\x2a\x01x"),
        ("no time", b"\x0a\x01m\x22\x01c\x2a\x01x"),
        ("no channel", b"\x0a\x01m\x10\x01\x2a\x01x"),
        ("id as a number", b"\x08\x01\x10\x01\x22\x01c"),
        ("time as bytes", b"\x0a\x01m\x12\x01\x01\x22\x01c"),
        ("entry without id", bare(b"\x1a\x03\x12\x01h")),
        ("empty entry", bare(b"\x1a\x00")),
        ("request without id", bare(b"\x6a\x00")),
        ("entry with its id as a number", bare(b"\x1a\x02\x08\x01")),
        ("entry that is cut off", bare(b"\x1a\x03\x0a\x05h")),
        ("entry that runs into the next field", bare(b"\x1a\x03\x0a\x02h", b"\x2a\x01x")),
        ("group", bare(b"\x43\x44")),
        ("field 0", bare(b"\x00\x00")),
        ("noise", b"\xff\xff\xff"),
        ("text", b"hello"),
    ],
)
def test_what_is_no_message_is_refused(name, data):
    """With a hint."""
    with pytest.raises(Invalid) as caught:
        NIM.decode(data)
    assert caught.value.hint


@pytest.mark.parametrize("lamport", [2**63 - 1, 2**62, 0])
def test_times_of_63_bits_are_carried(lamport):
    """The largest is one below what ends nim-sds."""
    assert NIM.decode(NIM.encode(plain(lamport=lamport))).lamport == lamport


@pytest.mark.parametrize("lamport", [2**63, 2**64 - 1])
def test_times_that_crash_the_reference_implementation_are_refused(lamport):
    """Received: one is enough to crash nim-sds."""
    with pytest.raises(Invalid, match="Lamport"):
        NIM.decode(b"\x0a\x01m\x10" + varint(lamport) + b"\x22\x01c")


@pytest.mark.parametrize("lamport", [-1, 2**63])
def test_times_out_of_range_are_not_sent(lamport):
    """Sent: neither is there a sign."""
    with pytest.raises(Invalid, match="Lamport"):
        NIM.encode(plain(lamport=lamport))


def test_there_are_no_ephemeral_messages():
    """And the hint says what to do instead."""
    with pytest.raises(Invalid, match="ephemeral") as caught:
        NIM.encode(plain(lamport=None))
    assert "rfc" in caught.value.hint


def test_an_id_that_cannot_be_written_is_refused():
    """Half a surrogate pair has no bytes."""
    for message in (plain(message_id="\ud83d"), plain(causal_history=(HistoryEntry("\udfff"),))):
        with pytest.raises(Invalid, match="surrogate"):
            NIM.encode(message)


def test_ids_are_any_bytes():
    """Also those that are no text: they come back as they were."""
    odd = text(bytes(range(256)))
    message = plain(message_id=odd, channel_id=odd, sender_id=odd, causal_history=(HistoryEntry(odd, b"", odd),))
    assert NIM.decode(NIM.encode(message)) == message
    assert bytes(range(256)) in NIM.encode(message)


# -- limits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", AT_LIMIT)
def test_what_is_at_a_limit_is_carried(name):
    """Exactly as much is allowed."""
    assert NIM.decode(NIM.encode(AT_LIMIT[name])) == AT_LIMIT[name]


@pytest.mark.parametrize("name", OVER_LIMIT)
def test_what_is_over_a_limit_is_refused_on_receipt(name):
    """One more is not, and the message says how much would be."""
    pytest.importorskip("google.protobuf")
    message, limit = OVER_LIMIT[name]
    with pytest.raises(Invalid, match=f"limit={limit}"):
        NIM.decode(google_encode("nim", message))


@pytest.mark.parametrize("name", OVER_LIMIT)
def test_what_is_over_a_limit_is_not_sent(name):
    """Nobody here would read it."""
    message, limit = OVER_LIMIT[name]
    with pytest.raises(Invalid, match=f"limit={limit}"):
        NIM.encode(message)


# -- noise ----------------------------------------------------------------------------------------------------


@modest
@given(st.binary(max_size=120))
def test_noise_is_a_message_or_invalid(noise):
    """Never another exception; behind the three fields that are needed, too."""
    for data in (noise, bare(noise), bare(delimited(b"\x1a", noise)), bare(delimited(b"\x6a", noise))):
        try:
            NIM.decode(data)
        except Invalid:
            pass


@modest
@given(messages(), st.data())
def test_a_damaged_message_is_a_message_or_invalid(message, draw):
    """And what is still one can be sent again, and means the same."""
    try:
        received = NIM.decode(damaged(NIM.encode(message), draw))
    except Invalid:
        return
    assert NIM.decode(NIM.encode(received)) == received


@modest
@given(messages())
def test_no_part_of_a_message_is_taken_for_the_whole(message):
    """Cut anywhere: refused, or at the end of a field and then without what was cut."""
    data = NIM.encode(message)
    for cut in range(len(data)):
        try:
            assert len(NIM.encode(NIM.decode(data[:cut]))) <= len(data)
        except Invalid:
            pass
