"""Manifests out of thin air, for tests of what is pure: segments that have a place and a size, and no file."""

from __future__ import annotations

from hypothesis import strategies as st

from holdfast.root.objects.documents import SegmentDocument

LOG = "0f" * 16


def segment(
    first: int,
    rows: int,
    *,
    number: int = 0,
    topic: str = "orders",
    partition: int = 0,
    size: int = 1000,
    times: tuple[int, int] = (0, 0),
    content: str = "c1" * 32,
    schema: str = "00" * 16,
) -> SegmentDocument:
    """A manifest object of one segment."""
    return SegmentDocument(
        log=LOG,
        topic=topic,
        partition=partition,
        slot=number,
        number=number,
        first=first,
        rows=rows,
        size=size,
        time_min=times[0],
        time_max=times[1],
        sha256=f"{number:064x}",
        content=content,
        footer="f0" * 16,
        previous="aa" * 32,
        chain="bb" * 32,
        schema=schema,
        key_id="",
        epoch=1,
        sealed_us=0,
    )


def lost_segment(first: int, rows: int, **values: object) -> SegmentDocument:
    """One whose records are gone: a row without a file."""
    return segment(first, rows, size=0, content="00" * 32, **values)  # type: ignore[arg-type]


_parts = st.tuples(
    st.integers(1, 40), st.integers(1, 300 * 2**20), st.integers(-1000, 1000), st.integers(0, 500)
)  # rows, bytes, earliest time, how much later the latest one is


@st.composite
def manifests(draw: st.DrawFn, *, partition: int = 0, min_size: int = 0) -> list[SegmentDocument]:
    """The segments of one partition, dense, from anywhere on."""
    first = draw(st.sampled_from([0, 7, 2**40]))
    found = []
    for number, (rows, size, time, later) in enumerate(draw(st.lists(_parts, min_size=min_size, max_size=12))):
        found.append(segment(first, rows, number=number, partition=partition, size=size, times=(time, time + later)))
        first += rows
    return found


def end_of(segments: list[SegmentDocument]) -> int:
    """Where the last of these ends."""
    return segments[-1].first + segments[-1].rows
