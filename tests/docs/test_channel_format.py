"""The worked examples of the channels' format are what the code writes, and what it reads."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from holdfast import Keyring
from holdfast.channels import ChannelMeta, HistoryEntry, SdsMessage
from holdfast.channels.keeping.snapshot import BufferedMessage, KnownMessage, RepairRequest, UnacknowledgedMessage
from holdfast.channels.keeping.storage import decode_known, decode_meta, encode_known, encode_meta
from holdfast.channels.wire.derived_ids import check_derived_id, with_derived_id
from holdfast.channels.wire.detect import dialect
from holdfast.channels.wire.encrypted_messages import ChannelCipher

pytestmark = pytest.mark.unit

PAGE = (Path(__file__).parents[2] / "docs/formats/0007-channels.md").read_text()

M1 = SdsMessage("m1", "ch", 5, b"\x01\x02\x03", "alice")
M4 = SdsMessage("m4", "ch", 9, b"x", "bob", (HistoryEntry("m3", b"", "bob"),))
META = ChannelMeta(
    lamport=6,
    outgoing=(UnacknowledgedMessage(M1, 1_700_000_000_123, 1),),
    incoming=(BufferedMessage(M4, ("m3",), 1_700_000_001_000),),
    requests=(RepairRequest(HistoryEntry("m3", b"", "bob"), 1_700_000_090_000),),
    met=("m0",),
    dialect="nim",
)


def examples() -> dict[str, bytes]:
    """Lines `name = hex` between ```hex and ```; a line that begins with spaces goes on."""
    blocks = re.findall(r"```hex\n(.*?)```", PAGE, flags=re.DOTALL)
    lines = [line for block in blocks for line in re.sub(r"\n +", " ", block).splitlines()]
    return {name.strip(): bytes.fromhex(value) for name, _, value in (line.partition("=") for line in lines)}


def test_the_examples_of_snapshots_are_what_is_written_and_read():
    """Empty, with its messages, and with their names."""
    shown = examples()
    assert shown["empty"] == encode_meta(ChannelMeta(dialect="nim"))
    assert shown["snapshot"] == encode_meta(META)
    assert shown["named"] == encode_meta(META, elsewhere={"m1", "m4"})
    assert decode_meta(shown["snapshot"]) == META
    assert decode_meta(shown["named"], elsewhere={"m1": M1, "m4": M4}) == META


def test_the_example_of_an_id_is_what_is_written_and_read():
    """With its time and its sender."""
    known = KnownMessage("k1", 1_700_000_000_123, "bob")
    assert examples()["k1 of bob"] == encode_known(known)
    assert decode_known(examples()["k1 of bob"]) == [known]


def test_the_example_of_an_encrypted_packet_is_read_and_that_of_a_derived_id_is_what_is_made():
    shown = examples()
    cipher = ChannelCipher("ch", Keyring({"k1": b"\x01" * 32}))
    assert cipher.decrypt(shown["sealed"]) == shown["nim m1"]
    assert cipher.encrypt(b"")[:10] == shown["sealed"][:10]
    salted = msgspec.structs.replace(M1, message_id="0123456789abcdef")
    assert with_derived_id(salted).message_id.encode() == shown["derived m1"]
    check_derived_id(msgspec.structs.replace(M1, message_id=shown["derived m1"].decode()))


@pytest.mark.parametrize("name", ["nim", "rfc"])
def test_the_examples_of_messages_are_what_is_sent_and_received(name):
    """In both formats."""
    data = examples()[f"{name} m1"]
    assert data == dialect(name).encode(M1)
    assert dialect(name).decode(data) == M1
