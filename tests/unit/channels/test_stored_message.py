"""What is kept of a message is cut out of its wire form: only where that is the same as encoding it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.channels.network import NOW, ROOM, message
from tests.unit.channels.wire_data import damaged, messages

from holdfast import Keyring
from holdfast.channels.channel_settings import ChannelSettings
from holdfast.channels.keeping.snapshot import BufferedMessage
from holdfast.channels.keeping.storage import store_message
from holdfast.channels.keeping.stored_message import StoredMessage
from holdfast.channels.protocol.machine import step
from holdfast.channels.protocol.state import ChannelState, Rules
from holdfast.channels.protocol.steps import Receive, Send
from holdfast.channels.wire.encrypted_messages import ChannelCipher, EncryptedDialect
from holdfast.channels.wire.message import SdsMessage
from holdfast.channels.wire.nim import NIM
from holdfast.channels.wire.protobuf import delimited, fields
from holdfast.channels.wire.rfc import RFC
from holdfast.channels.wire.wire_fields import entry_fields, read_entry
from holdfast.errors import Invalid

pytestmark = pytest.mark.unit

TIMED = messages()


def causes_of(message: SdsMessage) -> bytes:
    return entry_fields(b"\x1a", message.causal_history, empty_ids=True)


def check(message: SdsMessage, written: StoredMessage) -> None:
    """What is cut out says what the message says."""
    assert NIM.decode(written.stored) == message.without_bloom()
    causes = written.causes()
    named = tuple(read_entry(causes, start, stop) for tag, start, stop in fields(causes, 0, len(causes)) if tag == 0x1A)
    assert named == message.causal_history
    assert len(causes) == written.causes_size


@given(TIMED)
def test_what_is_sent_is_stored_as_if_it_were_encoded_for_that(message):
    """Byte for byte; and so is what it names."""
    data, written = NIM.write(message)
    assert data == NIM.encode(message)
    assert written.stored == store_message(message)
    assert written.causes() == causes_of(message)
    check(message, written)


@given(TIMED)
def test_what_is_received_is_stored_as_it_came_where_that_is_the_same(message):
    """Where it is not, it is encoded."""
    data = NIM.encode(message)
    read, written = NIM.read(data)
    assert read == message == NIM.decode(data)
    if written is not None:
        assert written.stored == store_message(message)
        assert written.causes() == causes_of(message)


def test_usual_messages_are_not_encoded_again():
    """Else all of this would be for nothing."""
    usual = message("b1", "a1", "a2", bloom=b"f" * 500)
    assert NIM.read(NIM.encode(usual))[1] is not None


@given(TIMED, st.data())
def test_no_bytes_are_stored_that_say_something_else(message, draw):
    """Whatever was done to them on the way."""
    data = damaged(NIM.encode(message), draw)
    try:
        read, written = NIM.read(data)
    except Invalid:
        return
    assert read == NIM.decode(data)
    if written is not None:
        check(read, written)


PADDING = delimited(b"\x7a", b"p" * 40)


@pytest.mark.parametrize("name", ["before", "among the causes", "before the filter", "behind", "twice"])
def test_what_a_stranger_adds_is_not_stored(name):
    """Fields that mean nothing, and those that stand there twice, would fill our disk."""
    usual = message("b1", "a1", "a2", bloom=b"f" * 50)
    data, written = NIM.write(usual)
    at = {
        "before": 0,
        "among the causes": written.causes_at,
        "before the filter": data.index(b"\x32\x32ff"),
        "behind": len(data),
        "twice": 0,
    }[name]
    added = delimited(b"\x0a", b"b1") if name == "twice" else PADDING
    read, found = NIM.read(data[:at] + added + data[at:])
    assert read == usual
    assert found is None


def test_an_encrypted_packet_is_stored_as_it_is_inside_and_another_format_is_encoded():
    """Nothing of a packet's cipher is kept, and `nim` is the only format that is."""
    usual = message("b1", "a1")
    encrypted = EncryptedDialect(NIM, ChannelCipher(ROOM, Keyring.generate()))
    packet, written = encrypted.write(usual)
    assert written is not None
    assert written.stored == store_message(usual)
    assert encrypted.read(packet) == (usual, NIM.read(NIM.encode(usual))[1])
    assert RFC.write(usual) == (RFC.encode(usual), None)
    assert RFC.read(RFC.encode(usual)) == (usual, None)


def test_a_step_tells_the_bytes_of_the_message_that_it_sent_or_delivered():
    """By its id, and of no other."""
    state = ChannelState(Rules(ROOM, "alice", NIM, ChannelSettings()))
    _, sent = step(state, Send(b"x", "a1"), NOW)
    assert sent.written == {"a1": NIM.read(sent.data)[1]}
    given, written = NIM.read(NIM.encode(message("b1", "a1")))
    assert step(state, Receive(given, written), NOW)[1].written == {"b1": written}
    assert not step(state, Receive(given, written), NOW)[1].written  # again
    later, bytes_of = NIM.read(NIM.encode(message("b3", "b2")))
    assert not step(state, Receive(later, bytes_of), NOW)[1].written  # it waits


def test_of_a_message_that_waited_the_first_one_counts_and_not_the_bytes_of_another_with_its_id():
    """Else what is kept would not be what was delivered."""
    state = ChannelState(Rules(ROOM, "alice", NIM, ChannelSettings()))
    first = message("b2", "b1")
    state.buffer(BufferedMessage(first, ("b1",), NOW))
    state.mark(state.met, "b1")
    forged, written = NIM.read(NIM.encode(SdsMessage("b2", ROOM, 1, b"forged", "eve")))
    assert written is not None
    _, effects = step(state, Receive(forged, written), NOW)
    assert effects.appended == ["b2"]
    assert state.history.get("b2") == first
    assert not effects.written
