"""Which format bytes are in: every recorded message, every generated one, and never both."""

from __future__ import annotations

import base64
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.channels.wire_data import NIM_VECTORS, WAKU_VECTORS, damaged, messages, modest

from holdfast.channels.wire.detect import detect, dialect
from holdfast.channels.wire.nim import NIM
from holdfast.channels.wire.rfc import RFC
from holdfast.errors import Invalid

pytestmark = pytest.mark.unit

uint64 = st.one_of(st.none(), st.integers(0, 2**64 - 1))


def decoders_of(data):
    """Who accepts these bytes."""
    accepting = []
    for each in (NIM, RFC):
        try:
            each.decode(data)
        except Invalid:
            continue
        accepting.append(each.name)
    return accepting


def test_recorded_messages_are_distinguished():
    """Those of both implementations, and of a whole conversation."""
    assert {detect(bytes.fromhex(case["hex"])) for case in NIM_VECTORS["messages"]} == {"nim"}
    assert {detect(bytes.fromhex(case["hex"])) for case in WAKU_VECTORS["messages"]} == {"rfc"}
    steps = [step for step in WAKU_VECTORS["conversation"]["steps"] if "deflated" in step]
    assert {detect(zlib.decompress(base64.b64decode(step["deflated"]))) for step in steps} == {"rfc"}


@pytest.mark.parametrize("case", NIM_VECTORS["decode"] + WAKU_VECTORS["decode"], ids=lambda case: case["name"])
def test_recorded_oddities_are_reported_as_they_are_decoded(case):
    """What a decoder accepts is named; the other one refuses it."""
    data = bytes.fromhex(case["hex"])
    accepting = decoders_of(data)
    assert len(accepting) <= 1
    if accepting:
        assert [detect(data)] == accepting


@modest
@given(messages())
def test_messages_of_nim_sds_are_recognized(message):
    """Whatever they hold."""
    assert detect(NIM.encode(message)) == "nim"


@modest
@given(messages(uint64))
def test_messages_of_waku_are_recognized(message):
    """Whatever they hold, also without an id."""
    assert detect(RFC.encode(message)) == "rfc"


@modest
@given(st.one_of(messages().map(NIM.encode), messages(uint64).map(RFC.encode)), st.data())
def test_no_bytes_are_a_message_in_both_formats(data, draw):
    """Not even damaged ones, or two messages in a row; and what is a message in one is called so."""
    more = draw.draw(st.one_of(st.just(b""), messages().map(NIM.encode), messages(uint64).map(RFC.encode)))
    odd = damaged(data + more, draw) if draw.draw(st.booleans()) else data + more
    accepting = decoders_of(odd)
    assert len(accepting) <= 1
    if accepting:
        assert [detect(odd)] == accepting


@modest
@given(st.binary(max_size=100))
def test_noise_is_recognized_without_an_exception(noise):
    """As one or none."""
    accepting = decoders_of(noise)
    assert detect(noise) in (accepting or ("nim", "rfc", None))


@pytest.mark.parametrize("data", [b"", b"hello", b"\xff" * 20, b"\x0a\x01x", b"\x12\x01x\x1a\x01c"])
def test_what_is_in_neither_format_is_none(data):
    """Text, noise, and protobuf of nobody we know."""
    assert detect(data) is None


def test_dialects_have_names():
    """Those that settings use; others are refused."""
    assert (dialect("nim"), dialect("rfc")) == (NIM, RFC)
    assert (dialect("nim").name, dialect("rfc").name) == ("nim", "rfc")
    with pytest.raises(Invalid, match="js") as caught:
        dialect("js")
    assert "rfc" in caught.value.hint


def test_dialects_differ_as_the_reference_implementations_do():
    """Clock, order, acknowledgement, windows."""

    def traits(each):
        return (
            each.clock_unit_ms,
            each.ticks_on_receipt,
            each.is_sorted,
            each.carries_ephemeral,
            each.acks_needed,
            each.response_window_ms,
        )

    assert traits(NIM) == (1000, True, False, False, 1, 300_000)
    assert traits(RFC) == (1, False, True, True, 2, 120_000)
