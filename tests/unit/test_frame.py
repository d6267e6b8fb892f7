"""The frame codec: what goes in comes out, and nothing else is accepted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model import frame
from holdfast.model.record_columns import BadRecords, Columns, decode_headers, encode_headers

pytestmark = pytest.mark.unit

maybe = st.none() | st.binary(max_size=40)
row = st.tuples(st.binary(max_size=200), st.integers(-(2**63), 2**63 - 1), st.tuples(maybe, maybe, maybe))


def columns_of(rows):
    extras = {i: extra for i, (_, _, extra) in enumerate(rows) if extra != (None, None, None)}
    return Columns([r[0] for r in rows], [r[1] for r in rows], extras)


@given(st.lists(row, min_size=1, max_size=30))
def test_a_frame_gives_back_what_was_packed(rows):
    """Decoding gives back exactly what was encoded, absent and empty values kept apart."""
    columns = columns_of(rows)
    decoded = frame.decode(frame.encode(columns))
    assert (decoded.payloads, decoded.times, decoded.extras) == (columns.payloads, columns.times, columns.extras)


@given(st.binary(max_size=40), st.integers(-(2**63), 2**63 - 1))
def test_one_record_is_encoded_like_a_run_of_one(payload, time):
    assert frame.encode_one(payload, time) == frame.encode(Columns([payload], [time]))


@given(st.lists(row, min_size=1, max_size=5), st.data())
def test_any_cut_is_refused(rows, data):
    """A frame that lost bytes at its end, or gained some, is not a frame."""
    body = frame.encode(columns_of(rows))
    cut = data.draw(st.integers(0, len(body) - 1))
    for damaged in (body[:cut], body + b"\0" * (1 + cut)):
        with pytest.raises(BadRecords):
            frame.decode(damaged)


@given(st.binary(max_size=200))
def test_noise_never_raises_anything_else(noise):
    """Hostile bytes are decoded or refused, never a crash, never more memory than the body says."""
    for body in (noise, b"\x01" + noise):
        try:
            frame.decode(body)
        except BadRecords:
            pass


def test_a_huge_count_is_refused_before_anything_is_allocated():
    """A count that the body cannot hold is refused by arithmetic alone."""
    with pytest.raises(BadRecords):
        frame.decode(frame.HEAD.pack(1, 0, 0, 2**32 - 1) + b"x" * 100)


def test_unknown_versions_and_flags_are_refused():
    """Nothing is guessed about a frame from the future."""
    body = frame.encode(Columns([b"x"], [0]))
    with pytest.raises(BadRecords, match="version"):
        frame.decode(b"\x02" + body[1:])
    with pytest.raises(BadRecords):
        frame.decode(body[:1] + b"\x10" + body[2:])
    with pytest.raises(BadRecords):
        frame.decode(body[:2] + b"\x01" + body[3:])


def test_an_absent_payload_is_refused():
    """Only keys, kinds and headers may be absent."""
    body = bytearray(frame.encode(Columns([b""], [0])))
    body[-4:] = b"\xff" * 4
    with pytest.raises(BadRecords):
        frame.decode(bytes(body))


def test_times_that_are_all_equal_are_stored_once():
    """A batch with one time costs eight bytes for it, not eight per record."""
    assert len(frame.encode(Columns([b""] * 100, [5] * 100))) < len(
        frame.encode(Columns([b""] * 100, list(range(100))))
    )


def test_times_that_end_as_they_began_are_kept():
    times = [7, 8, 7]
    assert frame.decode(frame.encode(Columns([b"a", b"b", b"c"], times))).times == times


@given(st.dictionaries(st.text(max_size=10), st.binary(max_size=20), max_size=5))
def test_headers_round_trip(headers):
    """Headers of any text and bytes come back."""
    assert decode_headers(encode_headers(headers)) == headers


@given(st.binary(max_size=60))
def test_malformed_headers_are_refused(noise):
    """Headers that are no map of text to bytes are a BadFrame."""
    try:
        decode_headers(noise)
    except BadRecords:
        pass
