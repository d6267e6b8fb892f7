"""The wire format of LIP-109: the recorded bytes of `@waku/sds`, what it accepts and refuses, and limits."""

from __future__ import annotations

import base64
import hashlib
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.channels.wire_data import (
    AT_LIMIT,
    NIM_VECTORS,
    OVER_LIMIT,
    WAKU_VECTORS,
    damaged,
    entries,
    google_decode,
    google_encode,
    messages,
    modest,
    plain,
    vector_message,
)

from holdfast.channels.wire import wire_fields
from holdfast.channels.wire.message import HistoryEntry, SdsMessage, text
from holdfast.channels.wire.protobuf import delimited
from holdfast.channels.wire.rfc import RFC
from holdfast.errors import Invalid

pytestmark = pytest.mark.unit

uint64 = st.one_of(st.none(), st.integers(0, 300), st.integers(0, 2**64 - 1))

# What the other implementation accepts by mistake: it reads behind the end, or does not look.
STRICTER = {"group", "field_zero", "entry_overruns_its_end", "truncated_lamport"}


# -- recorded -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", WAKU_VECTORS["messages"], ids=lambda case: case["name"])
def test_messages_are_those_of_waku(case):
    """Byte for byte, and back."""
    message = vector_message(case["msg"])
    assert RFC.encode(message).hex() == case["hex"]
    assert RFC.decode(bytes.fromhex(case["hex"])) == message


@pytest.mark.parametrize("case", WAKU_VECTORS["decode"], ids=lambda case: case["name"])
def test_what_waku_accepts_is_accepted_and_the_rest_refused(case):
    """But for what it accepts by mistake; every message of nim-sds is among what is refused."""
    data, result = bytes.fromhex(case["hex"]), case["result"]
    if result is None or case["name"] in STRICTER:
        with pytest.raises(Invalid) as caught:
            RFC.decode(data)
        assert caught.value.hint
        return
    message = RFC.decode(data)
    assert message.kind == result["kind"]
    assert len(message.bloom_filter) == result.get("bloomLen", 0)
    if case["name"] != "invalid_utf8":  # read as other text, see the odd ids
        assert message == vector_message(result, message.bloom_filter)


@pytest.mark.parametrize("case", NIM_VECTORS["messages"], ids=lambda case: case["msg"]["messageId"] or "empty")
def test_messages_of_nim_sds_are_refused(case):
    """As the other implementation refuses them."""
    with pytest.raises(Invalid):
        RFC.decode(bytes.fromhex(case["hex"]))


def sent_bytes(part):
    return zlib.decompress(base64.b64decode(part["deflated"]))


def test_a_recorded_conversation_is_read_and_written_again():
    """Every message of it, and the same bytes from its fields and from a filter that we filled ourselves."""
    conversation = WAKU_VECTORS["conversation"]
    filters = {who: RFC.new_filter(10_000, 0.001) for who in conversation["participants"]}
    seen = {}
    for step in conversation["steps"]:
        own = filters[step["who"]]
        if "message" in step:
            bloom = own.to_bytes() if "bloomLen" in step["message"] else b""
            message = vector_message(step["message"], bloom)
            data = RFC.encode(message)
            assert data == sent_bytes(step)
            assert RFC.decode(data) == message
            seen[hashlib.sha256(data).hexdigest()] = message
            if step["op"] == "send":
                own.add(message.message_id)
        for response in step.get("responses", ()):
            assert RFC.encode(RFC.decode(sent_bytes(response))) == sent_bytes(response)
        if step["op"] == "receive":
            message = seen[step["sha256"]]
            if message.kind == "content" and message.sender_id != step["who"]:
                own.add(message.message_id)
    assert {message.kind for message in seen.values()} == {"content", "sync", "ephemeral"}


# -- both ways ------------------------------------------------------------------------------------------------


@modest
@given(messages(uint64))
def test_a_message_survives_the_rfc_wire(message):
    """What is encoded is decoded: all kinds, all ids, times of 64 bits."""
    assert RFC.decode(RFC.encode(message)) == message


@modest
@given(messages(uint64))
def test_google_reads_what_we_write(message):
    """To the same fields."""
    pytest.importorskip("google.protobuf")
    assert google_decode("rfc", RFC.encode(message)) == message


@modest
@given(messages(uint64))
def test_we_read_what_google_writes(message):
    """Which writes fields that we leave out."""
    pytest.importorskip("google.protobuf")
    assert RFC.decode(google_encode("rfc", message)) == message


@modest
@given(entries, st.data())
def test_the_short_way_to_read_an_entry_is_the_long_way(entry, draw):
    """Written out for speed, it never differs where it answers; and it does answer for what we write."""
    whole = wire_fields.write_entry(entry)
    assert wire_fields._usual_entry(whole) == entry
    odd = damaged(whole, draw)
    usual = wire_fields._usual_entry(odd)
    if usual is not None:
        assert (
            usual
            == wire_fields._any_entry(odd, 0, len(odd), strict=True)
            == wire_fields._any_entry(odd, 0, len(odd), strict=False)
        )


def test_a_length_of_two_bytes_is_no_short_one():
    """An empty id with a padded length, and a hint; read by the first byte alone it would be one long id."""
    odd = b"\x0a\x80\x00" + delimited(b"\x12", bytes(125))
    assert len(odd) == 2 + 0x80
    assert wire_fields.read_entry(odd, 0, len(odd)) == HistoryEntry("", bytes(125))


# -- leniency and strictness ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "lamport", "content"),
    [("content", 1, b"x"), ("sync", 1, b""), ("ephemeral", None, b"x"), ("content", 0, b"x"), ("sync", 0, b"")],
)
def test_all_kinds_are_carried(kind, lamport, content):
    """A time of 0 is a time."""
    message = SdsMessage("m", "c", lamport, content)
    assert message.kind == RFC.decode(RFC.encode(message)).kind == kind


def test_a_message_of_nothing_is_not_sent():
    """Neither content nor time: the other implementation throws, too."""
    with pytest.raises(Invalid, match="content"):
        RFC.encode(SdsMessage("m", "c", None))


@pytest.mark.parametrize("lamport", [-1, 2**64])
def test_times_out_of_range_are_not_sent(lamport):
    """There is no sign, and no 65th bit."""
    with pytest.raises(Invalid, match="Lamport"):
        RFC.encode(plain(lamport=lamport))


@pytest.mark.parametrize("number", [1, 2, 3, 10, 11, 12, 13, 20])
@pytest.mark.parametrize("wire_type", [0, 1, 2, 5])
def test_a_known_field_of_another_type_is_refused(number, wire_type):
    """The reference implementation would read something else into it."""
    right = 0 if number == 10 else 2
    value = {0: b"\x00", 1: bytes(8), 2: b"\x00", 5: bytes(4)}[wire_type]
    tag = number << 3 | wire_type
    data = RFC.encode(plain()) + (bytes((tag,)) if tag < 0x80 else bytes((tag & 0x7F | 0x80, tag >> 7))) + value
    if wire_type == right:
        RFC.decode(data)
    else:
        with pytest.raises(Invalid, match="type"):
            RFC.decode(data)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_field_of_an_entry_of_another_type_is_refused(number):
    """In there, too."""
    with pytest.raises(Invalid, match="type"):
        RFC.decode(RFC.encode(plain()) + delimited(b"\x5a", bytes((number << 3, 1))))


def test_ids_are_any_bytes():
    """Also those that are no text: they come back as they were."""
    odd = text(bytes(range(256)))
    message = SdsMessage(odd, odd, 1, b"", odd, (HistoryEntry(odd, b"", odd),))
    assert RFC.decode(RFC.encode(message)) == message


# -- limits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", AT_LIMIT)
def test_what_is_at_a_limit_is_carried(name):
    """Exactly as much is allowed."""
    assert RFC.decode(RFC.encode(AT_LIMIT[name])) == AT_LIMIT[name]


@pytest.mark.parametrize("name", OVER_LIMIT)
def test_what_is_over_a_limit_is_refused_on_receipt(name):
    """One more is not, and the message says how much would be."""
    pytest.importorskip("google.protobuf")
    message, limit = OVER_LIMIT[name]
    with pytest.raises(Invalid, match=f"limit={limit}"):
        RFC.decode(google_encode("rfc", message))


@pytest.mark.parametrize("name", OVER_LIMIT)
def test_what_is_over_a_limit_is_not_sent(name):
    """Nobody here would read it."""
    message, limit = OVER_LIMIT[name]
    with pytest.raises(Invalid, match=f"limit={limit}"):
        RFC.encode(message)


# -- noise ----------------------------------------------------------------------------------------------------


@modest
@given(st.binary(max_size=120))
def test_noise_is_a_message_or_invalid(noise):
    """Never another exception; behind a good message, too."""
    good = RFC.encode(plain())
    for data in (noise, good + noise, good + delimited(b"\x5a", noise), good + delimited(b"\x6a", noise)):
        try:
            RFC.decode(data)
        except Invalid:
            pass


@modest
@given(messages(uint64), st.data())
def test_a_damaged_message_is_a_message_or_invalid(message, draw):
    """And what is still one can be sent again, and means the same."""
    try:
        received = RFC.decode(damaged(RFC.encode(message), draw))
    except Invalid:
        return
    assert RFC.decode(RFC.encode(received)) == received
