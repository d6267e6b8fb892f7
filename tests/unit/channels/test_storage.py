"""How channels are stored: by their golden bytes; what nim-sds has stored is read, damage refused."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.channels.wire_data import NIM_VECTORS, damaged, entries, google_decode, ids, messages

from holdfast.channels.keeping.snapshot import (
    BufferedMessage,
    ChannelData,
    ChannelMeta,
    HistoryUpdate,
    KnownMessage,
    RepairRequest,
    RepairResponse,
    UnacknowledgedMessage,
)
from holdfast.channels.keeping.storage import (
    decode_data,
    decode_known,
    decode_meta,
    decode_newest,
    decode_update,
    encode_data,
    encode_known,
    encode_meta,
    encode_update,
    store_message,
    stored_message,
)
from holdfast.channels.wire.message import HistoryEntry, SdsMessage, raw, text
from holdfast.channels.wire.nim import NIM
from holdfast.channels.wire.protobuf import delimited, varint
from holdfast.errors import Corrupt, Invalid
from holdfast.testing.channel_samples import sample_message, sample_meta

pytestmark = pytest.mark.unit

GOLDEN = Path(__file__).parent / "data" / "storage.json"
VECTOR = NIM_VECTORS["channel_meta"]

frugal = settings(max_examples=25, deadline=None)
times = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
bare = messages().map(SdsMessage.without_bloom)


@st.composite
def buffered(draw: st.DrawFn) -> BufferedMessage:
    """A message that waits for some of its causes."""
    message = draw(bare)
    causes = list(dict.fromkeys(entry.message_id for entry in message.causal_history))
    return BufferedMessage(message, tuple(cause for cause in causes if draw(st.booleans())), draw(times))


@st.composite
def metas(draw: st.DrawFn) -> ChannelMeta:
    """Snapshots."""
    unique = {"max_size": 3, "unique_by": lambda one: one.entry.message_id}
    return ChannelMeta(
        draw(times),
        tuple(
            draw(
                st.lists(
                    st.builds(UnacknowledgedMessage, bare, times, st.integers(0, 9), st.integers(0, 3)), max_size=2
                )
            )
        ),
        tuple(draw(st.lists(buffered(), max_size=2))),
        tuple(draw(st.lists(st.builds(RepairRequest, entries, times), **unique))),
        tuple(draw(st.lists(st.builds(RepairResponse, entries, times, st.binary(max_size=40)), **unique))),
        tuple(draw(st.lists(ids, max_size=2))),
        draw(st.sampled_from(["", "nim", "rfc"])),
        draw(st.booleans()),
        tuple(draw(st.lists(ids, max_size=2))),
        draw(times),
        draw(st.booleans()),
    )


# -- what nim-sds has stored ----------------------------------------------------------------------------------


def test_the_recorded_snapshot_is_read():
    """What nim-sds has stored, and what it said its state was; ours of it says the same, without filters."""
    blob, state = bytes.fromhex(VECTOR["hex"]), VECTOR["state"]
    meta = decode_meta(blob)
    bare = [msgspec.structs.replace(entry, message=entry.message.without_bloom()) for entry in meta.outgoing]
    waiting = [msgspec.structs.replace(entry, message=entry.message.without_bloom()) for entry in meta.incoming]
    assert decode_meta(encode_meta(meta)) == msgspec.structs.replace(
        meta, outgoing=tuple(bare), incoming=tuple(waiting)
    )
    assert meta.lamport == state["lamport"]
    found = [{"id": e.message.message_id, "attempts": e.attempts, "t": e.sent_ms} for e in meta.outgoing]
    assert found == state["outgoing"]
    assert {one.message.message_id: list(one.missing) for one in meta.incoming} == state["incoming"]
    assert {r.entry.message_id: r.due_ms for r in meta.requests} == {
        name: one["t"] for name, one in state["outRepair"].items()
    }
    assert meta.requests[0].entry == HistoryEntry("b1", b"", "zed")
    assert {r.entry.message_id: (r.due_ms, len(r.data)) for r in meta.responses} == {
        name: (one["t"], one["cached"]) for name, one in state["inRepair"].items()
    }
    assert meta.outgoing[0].message.bloom_filter, "it keeps filters"
    assert meta.dialect == "", "it does not say"


@pytest.mark.parametrize("case", NIM_VECTORS["channel_meta_decode"], ids=lambda case: case["name"])
def test_what_nim_sds_accepts_is_accepted_and_the_rest_refused(case):
    """Each case by name; that there is no version is reported as such."""
    blob, result = bytes.fromhex(case["hex"]), case["result"]
    if "err" in result:
        with pytest.raises(Corrupt) as caught:
            decode_meta(blob)
        assert caught.value.hint
        assert ("version" in caught.value.message) == ("schemaVersion" in result["err"])
        return
    meta = decode_meta(blob)
    counts = [len(part) for part in (meta.outgoing, meta.incoming, meta.requests, meta.responses)]
    assert [meta.lamport, *counts] == [result[name] for name in ("lamport", "out", "inc", "orp", "irp")]


# -- golden bytes ---------------------------------------------------------------------------------------------

REMEMBERED = (
    KnownMessage("k1", 1_700_000_000_123, "bob"),
    KnownMessage("\udcff", 0, ""),
    KnownMessage("k" * 300, 5, "\udcfe"),
)


def golden() -> dict[str, bytes]:
    """What the golden file is made of; a change breaks snapshots that are on disk."""
    meta = sample_meta(5)
    history = (sample_message("h1"), sample_message("h2", b"", "h1"), sample_message("\udcff", b"\0"))
    known = b"".join(map(encode_known, REMEMBERED))
    return {
        "meta": encode_meta(meta),
        "named": encode_meta(meta, elsewhere={"o1", "i1"}),
        "encrypted": encode_meta(msgspec.structs.replace(meta, encrypted=True)),
        "empty": encode_meta(ChannelMeta()),
        "data": encode_data(ChannelData(meta, history)),
        "update": encode_update(HistoryUpdate(history, ("gone", "\udcfe"))),
        "message": store_message(msgspec.structs.replace(history[1], bloom_filter=b"not kept")),
        "newest": encode_meta(meta, newest=known),
        "known": known,
        "remembered": encode_data(ChannelData(meta, known=REMEMBERED)),
        "remembering": encode_update(HistoryUpdate(known=REMEMBERED, remembered=7)),
    }


def test_snapshots_are_written_as_they_always_were():
    """Byte for byte."""
    recorded = json.loads(GOLDEN.read_text())
    assert {name: data.hex() for name, data in golden().items()} == recorded["bytes"]


def test_snapshots_are_read_as_they_always_were():
    """From the recorded bytes to the values that they were made of."""
    recorded = {name: bytes.fromhex(data) for name, data in json.loads(GOLDEN.read_text())["bytes"].items()}
    meta = sample_meta(5)
    named = {entry.message.message_id: entry.message for entry in (*meta.outgoing, *meta.incoming)}
    assert decode_meta(recorded["meta"]) == decode_meta(recorded["newest"]) == meta
    assert decode_meta(recorded["named"], elsewhere=named) == meta
    assert decode_meta(recorded["encrypted"]).encrypted
    assert decode_meta(recorded["empty"]) == ChannelMeta()
    assert [one.message_id for one in decode_data(recorded["data"]).history] == ["h1", "h2", "\udcff"]
    assert decode_update(recorded["update"]).evict == ("gone", "\udcfe")
    assert stored_message(recorded["message"]) == sample_message("h2", b"", "h1")
    assert decode_newest(recorded["meta"]) == []
    assert decode_newest(recorded["newest"]) == decode_known(recorded["known"]) == list(REMEMBERED)
    assert decode_data(recorded["remembered"]) == ChannelData(meta, known=REMEMBERED)
    assert decode_update(recorded["remembering"]) == HistoryUpdate(known=REMEMBERED, remembered=7)


@pytest.mark.parametrize("damaged", [b"\x0a", b"\x0a\x05\x0a\x01", b"\x0a\x02\x10\x05", b"\x0a\x00"])
def test_ids_that_do_not_decode_are_damage(damaged):
    """As everything that we stored ourselves."""
    with pytest.raises(Corrupt):
        decode_known(damaged)
    with pytest.raises(Corrupt):
        decode_newest(encode_meta(ChannelMeta(), newest=damaged))


# -- the twelve of nim-sds ------------------------------------------------------------------------------------


def test_an_empty_snapshot_comes_back():
    """All that is empty is left out, but for what always stands there."""
    assert decode_meta(encode_meta(ChannelMeta())) == ChannelMeta()
    assert encode_meta(ChannelMeta()).hex() == "08011000420048005000"


def test_a_snapshot_with_one_unacknowledged_message_comes_back():
    """With its attempts, its time to the millisecond, and its content."""
    entry = UnacknowledgedMessage(sample_message("o", b"\0content\xff"), 1_700_000_000_123, 2)
    [found] = decode_meta(encode_meta(ChannelMeta(9, (entry,)))).outgoing
    assert found == entry


def test_a_buffered_message_comes_back_with_what_it_waits_for():
    """And with nothing else that it names."""
    entry = BufferedMessage(sample_message("i", b"i", "x", "y", "z"), ("x", "z"), 77)
    [found] = decode_meta(encode_meta(ChannelMeta(incoming=(entry,)))).incoming
    assert found == entry


def test_both_repair_buffers_come_back():
    """Ids, hints, senders, times and bytes."""
    meta = ChannelMeta(
        requests=(RepairRequest(HistoryEntry("a", b"\xff", "zed"), 5), RepairRequest(HistoryEntry("b"), 2**40)),
        responses=(RepairResponse(HistoryEntry("c", b"", "zed"), 0, b"\0cached\xff"),),
    )
    assert decode_meta(encode_meta(meta)) == meta


def test_a_full_snapshot_comes_back_in_order():
    """Five, three, four and two entries."""
    meta = ChannelMeta(
        2**62,
        tuple(UnacknowledgedMessage(sample_message(f"o{n}"), n, n) for n in range(5)),
        tuple(BufferedMessage(sample_message(f"i{n}", b"i", "x"), ("x",), 3) for n in range(3)),
        tuple(RepairRequest(HistoryEntry(f"q{n}"), n) for n in range(4)),
        tuple(RepairResponse(HistoryEntry(f"r{n}"), n, b"data") for n in range(2)),
        ("m1", "m2"),
        "nim",
    )
    assert decode_meta(encode_meta(meta)) == meta


@pytest.mark.parametrize("version", [0, 2, 999, 2**32 + 1, 2**64 - 1])
def test_an_unknown_version_is_refused_by_name(version):
    """Loudly, with the number and the way out."""
    with pytest.raises(Corrupt, match=f"version={version} ") as caught:
        decode_meta(b"\x08" + varint(version) + b"\x10\x05")
    assert "migration" in caught.value.hint


def test_an_empty_channel_comes_back():
    """A snapshot without history."""
    assert decode_data(encode_data(ChannelData())) == ChannelData()


def test_a_channel_comes_back_with_its_history_in_order():
    """As it was appended."""
    history = tuple(sample_message(name) for name in ("h3", "h1", "h2"))
    meta = ChannelMeta(3)
    assert decode_data(encode_data(ChannelData(meta, history))) == ChannelData(meta, history)


def test_hints_come_back_with_the_channel():
    """Of messages in history: a channel that is kept elsewhere does not lose where their causes can be had."""
    data = ChannelData(ChannelMeta(3), (sample_message("h1"),), {"h1": b"at s3://x", "\udcff": b""})
    assert decode_data(encode_data(data)) == data


def test_an_empty_change_says_so_and_is_not_stored():
    """A program that asks first makes no call."""
    assert HistoryUpdate().is_empty
    with pytest.raises(Invalid):
        encode_update(HistoryUpdate())


@pytest.mark.parametrize(
    "update",
    [
        HistoryUpdate((sample_message("a"), sample_message("b"))),
        HistoryUpdate((), ("x", "y")),
        HistoryUpdate((sample_message("a"),), ("x", "\udcff")),
    ],
    ids=["append", "evict", "both"],
)
def test_a_change_of_history_comes_back(update):
    """Appended messages, evicted ids, and both."""
    assert not update.is_empty
    assert decode_update(encode_update(update)) == update


# -- round trips ----------------------------------------------------------------------------------------------


@frugal
@given(st.data())
def test_every_snapshot_comes_back(data):
    """Whatever can be in it."""
    meta = data.draw(metas())
    assert decode_meta(encode_meta(meta)) == meta


@frugal
@given(st.data())
def test_every_channel_and_every_change_come_back(data):
    """With its history, without filters."""
    history = tuple(data.draw(st.lists(bare, max_size=2)))
    whole = ChannelData(data.draw(metas()), history)
    assert decode_data(encode_data(whole)) == whole
    update = HistoryUpdate(history, tuple(data.draw(st.lists(ids, min_size=1, max_size=2))))
    assert decode_update(encode_update(update)) == update


@frugal
@given(messages())
def test_filters_are_not_stored(message):
    """A filter is 19 KB of what somebody knew then."""
    assert stored_message(store_message(message)) == message.without_bloom()
    meta = ChannelMeta(outgoing=(UnacknowledgedMessage(message, 1),))
    assert decode_meta(encode_meta(meta)).outgoing[0].message == message.without_bloom()


def test_a_message_that_is_elsewhere_is_named():
    """It is taken from there, and a snapshot that names what is nowhere is damage."""
    meta = sample_meta()
    everything = {entry.message.message_id: entry.message for entry in (*meta.outgoing, *meta.incoming)}
    short = encode_meta(meta, elsewhere=everything)
    assert len(short) < len(encode_meta(meta)) / 2
    assert decode_meta(short, elsewhere=everything) == meta
    for lacking in everything:
        with pytest.raises(Corrupt, match="not there"):
            decode_meta(short, elsewhere={name: one for name, one in everything.items() if name != lacking})


def test_a_snapshot_stays_small():
    """With 50 unacknowledged messages of 100 bytes and ten causes, below a twentieth of nim-sds' 982 033."""
    known = [f"{number:032x}" for number in range(60)]
    meta = ChannelMeta(
        1_700_000_000,
        tuple(
            UnacknowledgedMessage(
                SdsMessage(
                    known[number + 10],
                    "a room",
                    1_700_000_000 + number,
                    bytes(100),
                    "alice",
                    tuple(HistoryEntry(known[number + cause], b"", "alice") for cause in range(10)),
                    bytes(18_768),
                ),
                1_700_000_000_000,
            )
            for number in range(50)
        ),
    )
    assert len(encode_meta(meta)) < 982_033 / 20
    assert len(encode_meta(meta, elsewhere=known)) < 3_000


# -- versions -------------------------------------------------------------------------------------------------


def test_a_migration_makes_an_unknown_version_known():
    """Also over several versions."""
    steps = {7: lambda data: b"\x08\x08" + data[2:], 8: lambda data: b"\x08\x01" + data[2:]}
    assert decode_meta(b"\x08\x07\x10\x2a", steps) == ChannelMeta(42)


def test_a_known_version_needs_no_migration():
    """A hook for it is not asked."""
    assert decode_meta(b"\x08\x01\x10\x2a", {1: lambda data: b"nonsense"}) == ChannelMeta(42)


def test_migrations_that_lead_nowhere_end():
    """In a circle, to an unknown version, or to nonsense: Corrupt."""
    circle = {7: lambda data: b"\x08\x08" + data[2:], 8: lambda data: b"\x08\x07" + data[2:]}
    for steps in (circle, {7: lambda data: data}, {7: lambda data: b"\xff"}, {7: lambda data: b""}):
        with pytest.raises(Corrupt):
            decode_meta(b"\x08\x07\x10\x2a", steps)


def test_unknown_fields_are_passed_over():
    """A later minor addition does not lock anybody out; as nim-sds does."""
    blob = encode_meta(sample_meta())
    more = delimited(varint(99 << 3 | 2), b"later") + varint(100 << 3) + varint(7) + varint(101 << 3 | 5) + bytes(4)
    assert decode_meta(blob + more) == decode_meta(blob)


@pytest.mark.parametrize("field", [3, 4, 5, 6])
@pytest.mark.parametrize("body", [b"", b"\x0a\x00", b"\x0a\x01x", b"\xff"], ids=["empty", "hollow", "junk", "no field"])
def test_a_bad_entry_fails_the_whole_snapshot(field, body):
    """Half a state is worse than none."""
    with pytest.raises(Corrupt):
        decode_meta(b"\x08\x01\x10\x05" + delimited(varint(field << 3 | 2), body))


def test_a_channel_without_a_snapshot_is_refused():
    """It is required."""
    with pytest.raises(Corrupt, match="no snapshot"):
        decode_data(delimited(b"\x12", store_message(sample_message("h"))))


def test_an_unknown_dialect_is_refused():
    """Nobody guesses."""
    with pytest.raises(Corrupt, match="dialect"):
        decode_meta(b"\x08\x01\x10\x05" + delimited(b"\x42", b"klingon"))


def test_an_error_says_nothing_of_what_was_stored():
    """Contents are not for logs."""
    meta = ChannelMeta(outgoing=(UnacknowledgedMessage(sample_message("o", b"a secret"), 1),))
    blob = encode_meta(meta)
    for cut in range(len(blob)):
        try:
            decode_meta(blob[:cut])
        except Corrupt as error:
            assert "secret" not in str(error)


# -- damage ---------------------------------------------------------------------------------------------------


def blobs() -> dict[str, bytes]:
    return {"nim": bytes.fromhex(VECTOR["hex"]), "ours": encode_meta(sample_meta()), **golden()}


@pytest.mark.parametrize("name", ["nim", "ours", "data", "update", "message"])
def test_every_truncation_and_bit_flip_is_corrupt_or_valid(name):
    """Nothing else is ever raised, and what is read can be written again."""
    read, write = {
        "data": (decode_data, encode_data),
        "update": (decode_update, encode_update),
        "message": (stored_message, store_message),
    }.get(name, (decode_meta, encode_meta))
    blob = blobs()[name]
    variants = [blob[:cut] for cut in range(len(blob))]
    variants += [blob[: n // 8] + bytes([blob[n // 8] ^ 1 << n % 8]) + blob[n // 8 + 1 :] for n in range(8 * len(blob))]
    refused = 0
    for variant in variants:
        try:
            value = read(variant)
        except Corrupt as error:
            assert error.hint
            refused += 1
        else:
            if value != HistoryUpdate():
                write(value)
    assert refused > len(variants) / 4


@frugal
@given(st.data())
def test_damaged_snapshots_are_corrupt_or_what_google_reads(data):
    """Whatever is accepted means the same to Google's protobuf."""
    blob = damaged(encode_meta(data.draw(metas())), data)
    try:
        meta = decode_meta(blob)
    except Corrupt:
        return
    assert google_meta(blob) == meta


@frugal
@given(st.data())
def test_google_reads_what_we_write_and_writes_what_we_read(data):
    """The same values, both ways."""
    meta = data.draw(metas())
    assert google_meta(encode_meta(meta)) == meta
    assert decode_meta(google_written(meta)) == meta


@frugal
@given(st.binary(max_size=60))
def test_any_bytes_are_corrupt_or_a_snapshot(blob):
    """Also behind a proper beginning."""
    for data in (blob, b"\x08\x01\x10\x05" + blob):
        try:
            assert isinstance(decode_meta(data), ChannelMeta)
        except Corrupt:
            pass


# -- google's protobuf ----------------------------------------------------------------------------------------

# Everything nested is bytes: of a field that is there twice the last one counts, where google would merge.
TYPES = {
    "Meta": {
        1: "number",
        2: "number",
        3: "many",
        4: "many",
        5: "many",
        6: "many",
        7: "many",
        8: "bytes",
        9: "number",
        10: "number",
        11: "many",
        12: "many",
        15: "number",
    },
    "Unacked": {1: "bytes", 2: "number", 3: "number", 4: "number", 5: "bytes"},
    "Incoming": {1: "bytes", 2: "many", 3: "number", 5: "bytes", 6: "bytes"},
    "KeyValue": {1: "bytes", 2: "bytes"},
    "OutRepair": {1: "bytes", 2: "number"},
    "InRepair": {1: "bytes", 2: "bytes", 3: "number"},
    "Entry": {1: "bytes", 2: "bytes", 3: "bytes"},
}


@cache
def google() -> SimpleNamespace:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="stored.proto", package="stored", syntax="proto2")
    kind = descriptor_pb2.FieldDescriptorProto
    for name, numbers in TYPES.items():
        message = file.message_type.add(name=name)
        for number, what in numbers.items():
            message.field.add(
                name=f"f{number}",
                number=number,
                label=kind.LABEL_REPEATED if what == "many" else kind.LABEL_OPTIONAL,
                type=kind.TYPE_UINT64 if what == "number" else kind.TYPE_BYTES,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return SimpleNamespace(
        **{name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"stored.{name}")) for name in TYPES}
    )


def google_meta(blob: bytes) -> ChannelMeta:
    """The snapshot in these bytes by google; no message of it is elsewhere."""
    types = google()
    meta = types.Meta.FromString(blob)

    def entry(data: bytes) -> HistoryEntry:
        found = types.Entry.FromString(data)
        return HistoryEntry(text(found.f1), found.f2, text(found.f3))

    def message(data: bytes) -> SdsMessage:
        return google_decode("nim", data)

    def waiting(data: bytes) -> BufferedMessage:
        found = types.Incoming.FromString(data)
        about = message(found.f1)
        bits = int.from_bytes(found.f6, "little")
        missing = [*map(text, found.f2), *(c.message_id for n, c in enumerate(about.causal_history) if bits >> n & 1)]
        return BufferedMessage(about, tuple(dict.fromkeys(missing)), found.f3)

    def keyed(pairs: list[bytes]) -> list[bytes]:
        parsed = [types.KeyValue.FromString(pair) for pair in pairs]
        return list({pair.f1: pair.f2 for pair in parsed}.values())

    unacked = [types.Unacked.FromString(data) for data in meta.f3]
    out = [types.OutRepair.FromString(data) for data in keyed(meta.f5)]
    back = [types.InRepair.FromString(data) for data in keyed(meta.f6)]
    return ChannelMeta(
        meta.f2,
        tuple(UnacknowledgedMessage(message(one.f1), one.f2, one.f3, one.f4) for one in unacked),
        tuple(map(waiting, meta.f4)),
        tuple(RepairRequest(entry(one.f1), one.f2) for one in out),
        tuple(RepairResponse(entry(one.f1), one.f3, one.f2) for one in back),
        tuple(map(text, meta.f7)),
        meta.f8.decode(),
        bool(meta.f15),
        tuple(map(text, meta.f11)),
        meta.f9,
        bool(meta.f10),
    )


def google_written(meta: ChannelMeta) -> bytes:
    """The snapshot's bytes by google, ids of what is missing in full."""
    types = google()

    def entry(one: HistoryEntry) -> bytes:
        return types.Entry(f1=raw(one.message_id), f2=one.retrieval_hint, f3=raw(one.sender_id)).SerializeToString()

    written = types.Meta(f1=1, f2=meta.lamport)
    for one in meta.outgoing:
        unacked = types.Unacked(f1=NIM.encode(one.message), f2=one.sent_ms, f3=one.attempts, f4=one.possible_acks)
        written.f3.append(unacked.SerializeToString())
    for one in meta.incoming:
        waiting = types.Incoming(f1=NIM.encode(one.message), f2=map(raw, one.missing), f3=one.received_ms)
        written.f4.append(waiting.SerializeToString())
    for one in meta.requests:
        body = types.OutRepair(f1=entry(one.entry), f2=one.due_ms).SerializeToString()
        written.f5.append(types.KeyValue(f1=raw(one.entry.message_id), f2=body).SerializeToString())
    for one in meta.responses:
        body = types.InRepair(f1=entry(one.entry), f2=one.data, f3=one.due_ms).SerializeToString()
        written.f6.append(types.KeyValue(f1=raw(one.entry.message_id), f2=body).SerializeToString())
    written.f7.extend(map(raw, meta.met))
    written.f8 = meta.dialect.encode()
    written.f15 = int(meta.encrypted)
    written.f9, written.f10 = meta.filter_ids, int(meta.filter_rolled)
    written.f11.extend(map(raw, meta.lost))
    return written.SerializeToString()
