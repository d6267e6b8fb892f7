"""What tests of both wire formats share: recorded vectors, generated messages, limits, google's protobuf."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import msgspec
from hypothesis import settings
from hypothesis import strategies as st

from holdfast.channels.wire.message import (
    BLOOM_BYTES_MAX,
    CONTENT_BYTES_MAX,
    ENTRIES_MAX,
    HINT_BYTES_MAX,
    ID_BYTES_MAX,
    HistoryEntry,
    SdsMessage,
    text,
)

DATA = Path(__file__).parent / "data"
NIM_VECTORS = json.loads((DATA / "nim_vectors.json").read_text())
WAKU_VECTORS = json.loads((DATA / "waku_vectors.json").read_text())

modest = settings(max_examples=50, deadline=None)

# Ids as they come from the wire: mostly text, sometimes bytes that are none.
ids = st.one_of(st.text(max_size=12), st.binary(max_size=12).map(text)).map(lambda value: text(_bytes(value)))
entries = st.builds(HistoryEntry, ids, st.binary(max_size=12), ids)
histories = st.lists(entries, max_size=4).map(tuple)
lamports = st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1))


def _bytes(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")


def messages(lamport: st.SearchStrategy[int | None] = lamports) -> st.SearchStrategy[SdsMessage]:
    """Messages of all kinds; an ephemeral one has content."""
    whole = st.builds(
        SdsMessage, ids, ids, lamport, st.binary(max_size=200), ids, histories, st.binary(max_size=60), histories
    )
    return whole.filter(lambda message: message.lamport is not None or message.content)


def vector_entry(entry: dict) -> HistoryEntry:
    """An entry of a recorded message."""
    return HistoryEntry(entry["messageId"], bytes.fromhex(entry.get("retrievalHint", "")), entry.get("senderId", ""))


def vector_message(msg: dict, bloom: bytes | None = None) -> SdsMessage:
    """A recorded message."""
    return SdsMessage(
        message_id=msg["messageId"],
        channel_id=msg["channelId"],
        lamport=int(msg["lamport"]) if "lamport" in msg else None,
        content=bytes.fromhex(msg.get("content", "")),
        sender_id=msg.get("senderId", ""),
        causal_history=tuple(map(vector_entry, msg.get("causalHistory", []))),
        bloom_filter=bytes.fromhex(msg.get("bloom", "")) if bloom is None else bloom,
        repair_request=tuple(map(vector_entry, msg.get("repairRequest", []))),
    )


def vector_items(items: str | list[str]) -> list[str]:
    """The items of a recorded filter; `"m0..m9"` is short for ten of them."""
    return [f"m{number}" for number in range(int(items[5:]) + 1)] if isinstance(items, str) else items


# -- limits ---------------------------------------------------------------------------------------------------


def plain(**values: object) -> SdsMessage:
    """A plain message, but for some values."""
    return msgspec.structs.replace(SdsMessage("m", "c", 1, b"x"), **values)


AT_LIMIT = {
    "message id": plain(message_id="i" * ID_BYTES_MAX),
    "channel id": plain(channel_id="i" * ID_BYTES_MAX),
    "sender id": plain(sender_id="i" * ID_BYTES_MAX),
    "id in bytes": plain(message_id="é" * (ID_BYTES_MAX // 2)),
    "id of an entry": plain(causal_history=(HistoryEntry("i" * ID_BYTES_MAX),)),
    "sender of an entry": plain(causal_history=(HistoryEntry("m", b"", "i" * ID_BYTES_MAX),)),
    "id of a request": plain(repair_request=(HistoryEntry("i" * ID_BYTES_MAX),)),
    "hint": plain(causal_history=(HistoryEntry("m", b"h" * HINT_BYTES_MAX),)),
    "causal history": plain(causal_history=(HistoryEntry("m"),) * ENTRIES_MAX),
    "repair requests": plain(repair_request=(HistoryEntry("m"),) * ENTRIES_MAX),
    "both": plain(causal_history=(HistoryEntry("m"),) * ENTRIES_MAX, repair_request=(HistoryEntry("m"),) * ENTRIES_MAX),
    "content": plain(content=bytes(CONTENT_BYTES_MAX)),
    "filter": plain(bloom_filter=bytes(BLOOM_BYTES_MAX)),
}

OVER_LIMIT = {
    "message id": (plain(message_id="i" * (ID_BYTES_MAX + 1)), 1024),
    "channel id": (plain(channel_id="i" * (ID_BYTES_MAX + 1)), 1024),
    "sender id": (plain(sender_id="i" * (ID_BYTES_MAX + 1)), 1024),
    "id in bytes": (plain(message_id="é" * (ID_BYTES_MAX // 2) + "x"), 1024),
    "id of an entry": (plain(causal_history=(HistoryEntry("i" * (ID_BYTES_MAX + 1)),)), 1024),
    "sender of an entry": (plain(causal_history=(HistoryEntry("m", b"", "i" * (ID_BYTES_MAX + 1)),)), 1024),
    "id of a request": (plain(repair_request=(HistoryEntry("i" * (ID_BYTES_MAX + 1)),)), 1024),
    "hint": (plain(causal_history=(HistoryEntry("m", b"h" * (HINT_BYTES_MAX + 1)),)), 4096),
    "causal history": (plain(causal_history=(HistoryEntry("m"),) * (ENTRIES_MAX + 1)), 1000),
    "repair requests": (plain(repair_request=(HistoryEntry("m"),) * (ENTRIES_MAX + 1)), 1000),
    "content": (plain(content=bytes(CONTENT_BYTES_MAX + 1)), 1_048_576),
    "filter": (plain(bloom_filter=bytes(BLOOM_BYTES_MAX + 1)), 4_194_304),
}


# -- a third party --------------------------------------------------------------------------------------------

NIM_NUMBERS = {
    "message_id": 1, "lamport": 2, "causal_history": 3, "channel_id": 4, "content": 5, "bloom_filter": 6,
    "sender_id": 7, "repair_request": 13,
}  # fmt: skip
RFC_NUMBERS = {
    "sender_id": 1, "message_id": 2, "channel_id": 3, "lamport": 10, "causal_history": 11, "bloom_filter": 12,
    "repair_request": 13, "content": 20,
}  # fmt: skip


@cache
def google_message(dialect: str) -> type:
    """The message type as google's protobuf knows it; ids are bytes, which are the same on the wire."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name=f"{dialect}.proto", package=dialect, syntax="proto2")
    field = descriptor_pb2.FieldDescriptorProto
    entry = file.message_type.add(name="HistoryEntry")
    for number, name in enumerate(("message_id", "retrieval_hint", "sender_id"), 1):
        entry.field.add(name=name, number=number, label=field.LABEL_OPTIONAL, type=field.TYPE_BYTES)
    message = file.message_type.add(name="SdsMessage")
    for name, number in (NIM_NUMBERS if dialect == "nim" else RFC_NUMBERS).items():
        if name in ("causal_history", "repair_request"):
            type_name = f".{dialect}.HistoryEntry"
            message.field.add(
                name=name, number=number, label=field.LABEL_REPEATED, type=field.TYPE_MESSAGE, type_name=type_name
            )
        else:
            kind = field.TYPE_UINT64 if name == "lamport" else field.TYPE_BYTES
            message.field.add(name=name, number=number, label=field.LABEL_OPTIONAL, type=kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{dialect}.SdsMessage"))


def google_encode(dialect: str, message: SdsMessage) -> bytes:
    """The message's bytes by google; everything that is not None is written, empty or not."""
    twin = google_message(dialect)()
    for name in ("message_id", "channel_id", "sender_id"):
        setattr(twin, name, _bytes(getattr(message, name)))
    if message.lamport is not None:
        twin.lamport = message.lamport
    twin.content, twin.bloom_filter = message.content, message.bloom_filter
    for name in ("causal_history", "repair_request"):
        for entry in getattr(message, name):
            getattr(twin, name).add(
                message_id=_bytes(entry.message_id),
                retrieval_hint=entry.retrieval_hint,
                sender_id=_bytes(entry.sender_id),
            )
    return twin.SerializeToString()


def google_decode(dialect: str, data: bytes) -> SdsMessage:
    """The message in these bytes by google."""
    twin = google_message(dialect).FromString(data)

    def history(name: str) -> tuple[HistoryEntry, ...]:
        return tuple(
            HistoryEntry(text(entry.message_id), entry.retrieval_hint, text(entry.sender_id))
            for entry in getattr(twin, name)
        )

    return SdsMessage(
        text(twin.message_id),
        text(twin.channel_id),
        twin.lamport if twin.HasField("lamport") else None,
        twin.content,
        text(twin.sender_id),
        history("causal_history"),
        twin.bloom_filter,
        history("repair_request"),
    )


def damaged(data: bytes, draw: st.DataObject) -> bytes:
    """The bytes with a few of them changed, lost, doubled or put in."""
    for _ in range(draw.draw(st.integers(1, 4))):
        at = draw.draw(st.integers(0, len(data)))
        end = draw.draw(st.integers(at, min(len(data), at + 8)))
        data = data[:at] + draw.draw(st.sampled_from([b"", data[at:end] * 2]) | st.binary(max_size=8)) + data[end:]
    return data
