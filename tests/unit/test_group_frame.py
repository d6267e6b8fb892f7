"""The bytes of a group: what was written comes back, and nothing else does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.crypto import digests
from holdfast.journal.groups.group_frame import (
    HEAD_BYTES,
    SECTOR_BYTES,
    FramedEntry,
    are_whole,
    control_of,
    encoded,
    head_of,
    proof_of,
    starts,
)
from holdfast.model.entry import Place, header

pytestmark = pytest.mark.unit

LOG_ID, SALT = bytes(range(16)), b"s" * 16
GROUP, FOLLOWS = 7, (0, b"proof of the frame before", b"stamp of a row")


def framed(seq: int, body: bytes) -> FramedEntry:
    columns = (seq, seq, 1, 7, 1, 0, 0, 5, 5, bytes(digests.DIGEST_BYTES))
    digest = digests.digest(header(Place(LOG_ID, "t", 0), *columns), body)
    return FramedEntry(seq, 1, *columns[1:], digest, b"", "t", 0, len(body))


def frame(bodies: list[bytes]) -> bytes:
    entries = [framed(seq, body) for seq, body in enumerate(bodies)]
    encoded_frame = encoded(SALT, GROUP, FOLLOWS, entries, bodies, lambda digest: digest[::-1])
    data = b"".join(encoded_frame.buffers)
    assert len(data) == encoded_frame.length
    assert data[encoded_frame.start :] == b"".join(bodies)
    return data


def is_taken(data: bytes) -> bool:
    """Whether a scan would take these bytes for a group."""
    head = head_of(data, SALT)
    control = head and control_of(head, data[HEAD_BYTES : HEAD_BYTES + head.control_bytes])
    if head is None or control is None:
        return False
    rest = data[HEAD_BYTES + head.control_bytes :]
    is_all = sum(entry.size for entry in control.entries) == head.body_bytes
    return is_all and are_whole(control, LOG_ID, lambda at, size: rest[at : at + size])


bodies = st.lists(st.binary(max_size=600), min_size=1, max_size=4)


@given(bodies)
def test_a_group_comes_back_as_it_was(bodies):
    """What it follows, what proves it, entries and bodies."""
    data = frame(bodies)
    head = head_of(data, SALT)
    assert head is not None
    control = control_of(head, data[HEAD_BYTES : HEAD_BYTES + head.control_bytes])
    assert control is not None
    assert control[:3] == FOLLOWS
    assert proof_of(head, control) == (GROUP, *FOLLOWS, head.digest, head.digest[::-1])
    assert control.entries == [framed(seq, body) for seq, body in enumerate(bodies)]
    assert is_taken(data)


@given(bodies, st.data())
def test_a_group_with_any_other_byte_is_none(bodies, data):
    """Whatever byte it is."""
    whole = bytearray(frame(bodies))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    assert not is_taken(bytes(whole))


@given(bodies, st.data())
def test_a_group_without_its_end_is_none(bodies, data):
    """Cut anywhere, with zeros behind it or with nothing."""
    whole = frame([*bodies, b"end"])
    kept = whole[: data.draw(st.integers(0, len(whole) - 1))]
    assert not is_taken(kept)
    assert not is_taken(kept.ljust(len(whole), b"\0"))


@given(st.binary(max_size=3 * SECTOR_BYTES))
def test_bytes_of_anybody_are_no_group(data):
    """Nor do they raise anything; with the right salt at the right place neither."""
    assert not is_taken(data)
    for magic in (b"hfg1", b"hfg2"):
        head = magic + data[:4].ljust(4, b"\1") + bytes(16) + SALT
        assert not is_taken(head + data)


@given(st.lists(st.booleans(), max_size=8), st.binary(max_size=40))
def test_heads_are_found_at_the_edges_of_sectors_alone(places, noise):
    """Those with the salt, and no others."""
    sector = frame([b"x"])[:HEAD_BYTES].ljust(SECTOR_BYTES, b"\0")
    shifted = (noise + b"-" + sector)[:SECTOR_BYTES]
    data = b"".join(sector if is_head else shifted for is_head in places)
    assert starts(data, SALT) == [i * SECTOR_BYTES for i, is_head in enumerate(places) if is_head]
    assert starts(data, b"other salt......") == []
