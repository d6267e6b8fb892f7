"""What the contract of channels' backends keeps and finds again: messages, snapshots and ids, also odd ones."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.channels.keeping.persistence import Commit
from holdfast.channels.keeping.snapshot import (
    BufferedMessage,
    ChannelMeta,
    KnownMessage,
    RepairRequest,
    RepairResponse,
    UnacknowledgedMessage,
)
from holdfast.channels.wire.message import ID_BYTES_MAX, HistoryEntry, SdsMessage

ROOM = "room"

ODD_IDS = (
    "a", "A", "a/b", "a/", "/a", "a%2Fb", "a b", "a\n", "a\0b", ".", "..", "ä", "a\u0308", "\N{OCTOPUS}", "a'; --",
    "\udcff\udc80", "x" * ID_BYTES_MAX, "x" * (ID_BYTES_MAX - 1),
)  # fmt: skip
"""Ids that can be received: any text, and bytes that are none as surrogate escapes."""


def sample_message(message_id: str, content: bytes = b"content", *causes: str) -> SdsMessage:
    """A message as `Channels` hands it over: without its filter."""
    named = tuple(
        HistoryEntry(cause, b"hint of " + cause.encode("utf-8", "surrogateescape"), "zed") for cause in causes
    )
    return SdsMessage(message_id, ROOM, 7, content, "bob", named)


def sample_meta(lamport: int = 1, prefix: str = "") -> ChannelMeta:
    """A snapshot that has something of everything."""
    return ChannelMeta(
        lamport=lamport,
        outgoing=(
            UnacknowledgedMessage(sample_message(prefix + "o1"), 1_700_000_000_123),
            UnacknowledgedMessage(
                sample_message(prefix + "o2", bytes(range(256)), prefix + "o1"), 1_700_000_000_456, 3, 1
            ),
        ),
        incoming=(
            BufferedMessage(sample_message(prefix + "i1", b"i", "x", "y"), ("x", "y"), 1_700_000_000_789),
            BufferedMessage(sample_message(prefix + "i2", b"i", "x", prefix + "i1"), (prefix + "i1",), 5),
        ),
        requests=(RepairRequest(HistoryEntry("x", b"\0\xff", "zed"), 1_700_000_001_000),),
        responses=(RepairResponse(HistoryEntry(prefix + "r1", b"", "zed"), 1_700_000_002_000, b"\0bytes\xff"),),
        met=("seen elsewhere", "\udcfe"),
        dialect="rfc",
        encrypted=True,
        lost=("\udcfe",),
        filter_ids=300,
        filter_rolled=True,
    )


def remembered(count: int) -> list[KnownMessage]:
    """Ids to remember, of all kinds."""
    return [
        KnownMessage(
            f"k{number}" if number % 7 else f"\udcff{number}" * 20, 1_700_000_000_000 + number, "bob" * (number % 3)
        )
        for number in range(count)
    ]


def unique(known: Iterable[KnownMessage]) -> list[KnownMessage]:
    """Each id once: a backend may have what came again twice."""
    found: dict[str, KnownMessage] = {}
    for one in known:
        found.setdefault(one.message_id, one)
    return list(found.values())


def some(*message_ids: str) -> tuple[SdsMessage, ...]:
    """Messages with these ids."""
    return tuple(sample_message(message_id) for message_id in message_ids)


def settle(commits: Iterable[Commit | None]) -> None:
    """Wait until they are durable."""
    for commit in commits:
        if commit is not None:
            commit.result(30)
