"""Batches that somebody else wrote: nothing is believed that does not fit its place, its segments, and the past."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.errors import Corrupt, HoldfastError
from holdfast.reader.open_root import SettledRoot
from holdfast.reader.read_options import ReadOptions
from holdfast.root.objects import documents
from holdfast.root.objects.documents import PartitionEnd, SinkBatchDocument
from holdfast.store import layout
from holdfast.store.port import Body
from tests.sink.sinks import Place, write

pytestmark = pytest.mark.unit

KEY = layout.sink_key("t", 1)
_new = msgspec.structs.replace
Change = Callable[[SinkBatchDocument], SinkBatchDocument]


def end(batch: SinkBatchDocument, partition: str, **values: Any) -> dict[str, PartitionEnd]:
    return {**batch.ends, partition: _new(batch.ends[partition], **values)}


def segment(batch: SinkBatchDocument, at: int, **values: Any) -> tuple[Any, ...]:
    changed = list(batch.segments)
    changed[at] = _new(changed[at], **values)
    return tuple(changed)


CHANGES: dict[str, Change] = {
    "another log": lambda batch: _new(batch, log="cd" * 16),
    "another topic": lambda batch: _new(batch, topic="u"),
    "another number": lambda batch: _new(batch, number=7),
    "a nonce that is none": lambda batch: _new(batch, nonce="x"),
    "a batch without a writer": lambda batch: _new(batch, writer=""),
    "a writer without a mark": lambda batch: _new(batch, marks={}),
    "a mark below zero": lambda batch: _new(batch, marks={**batch.marks, "z": -5}),
    "a writer without a name": lambda batch: _new(batch, marks={**batch.marks, "": 5}),
    "a writer with a long name": lambda batch: _new(batch, marks={**batch.marks, "x" * 300: 5}),
    "an end that is no partition": lambda batch: _new(batch, ends={**batch.ends, "01": batch.ends["0"]}),
    "an end beyond all partitions": lambda batch: _new(batch, ends={**batch.ends, "99999": batch.ends["0"]}),
    "an end below zero": lambda batch: _new(batch, ends=end(batch, "0", first=-1)),
    "an end beyond the segments": lambda batch: _new(batch, ends=end(batch, "0", first=99)),
    "a chain that is none": lambda batch: _new(batch, ends=end(batch, "0", chain="zz")),
    "a segment without an end": lambda batch: _new(batch, ends={"0": batch.ends["0"]}),
    "segments in another order": lambda batch: _new(batch, segments=batch.segments[::-1]),
    "a segment twice": lambda batch: _new(batch, segments=(batch.segments[0], *batch.segments)),
    "a segment of another topic": lambda batch: _new(batch, segments=segment(batch, 0, topic="u")),
    "a segment with other rows": lambda batch: _new(batch, segments=segment(batch, 0, rows=2)),
    "a segment with another content": lambda batch: _new(batch, segments=segment(batch, 0, content="0" * 64)),
    "a segment with a hash that is none": lambda batch: _new(batch, segments=segment(batch, 0, sha256="..")),
    "a segment elsewhere": lambda batch: _new(batch, segments=segment(batch, 0, partition=-1)),
}
"""What cannot be, seen in the batch itself."""

BACKWARDS: dict[str, Change] = {
    "a mark that went back": lambda batch: _new(batch, marks={"r": batch.marks["r"]}),
    "a partition that went back": lambda batch: _new(batch, segments=(), ends={}),
    "an end without segments": lambda batch: _new(
        batch, ends={**batch.ends, "7": PartitionEnd(1, 1, 1, batch.ends["0"].chain)}
    ),
    "segments left out": lambda batch: _new(batch, segments=batch.segments[1:]),
}
"""What does not follow from the batch before."""


@pytest.fixture
def root(place: Place) -> Place:
    write(place.target(), "q", 0)
    write(place.target(), "r", 0)
    return place


def reader(place: Place) -> SettledRoot:
    return SettledRoot.open(place.url, ReadOptions(topics=("t",)))


@pytest.mark.sampled(30)
@pytest.mark.parametrize("name", CHANGES)
def test_what_cannot_be_is_corrupt(root: Place, name: str) -> None:
    """For readers, and for the writer of the next batch."""
    there = documents.decode(root.store.get(KEY), KEY, SinkBatchDocument)
    root.replace(KEY, documents.encode(CHANGES[name](there)))
    with pytest.raises(Corrupt) as raised:
        root.rows()
    assert raised.value.path
    with pytest.raises(Corrupt):
        write(root.target(), "q", 1)


@pytest.mark.parametrize("name", BACKWARDS)
def test_what_does_not_follow_is_corrupt(root: Place, name: str) -> None:
    """For a reader that saw the batch before."""
    good = root.store.get(KEY)
    root.store.delete([KEY])
    opened = reader(root)
    opened.topic("t")
    there = documents.decode(good, KEY, SinkBatchDocument)
    root.replace(KEY, documents.encode(BACKWARDS[name](there)))
    with pytest.raises(Corrupt, match="follow"):
        opened.topic("t")
    root.replace(KEY, good)
    opened.topic("t")


def test_ends_that_no_manifest_reaches_are_corrupt(root: Place) -> None:
    """A batch that promises more than there is: no shorter answer."""
    there = documents.decode(root.store.get(KEY), KEY, SinkBatchDocument)
    promised = {**there.ends, "0": PartitionEnd(9, 9, 99, "0" * 64)}
    kept = tuple(one for one in there.segments if one.partition)
    root.replace(KEY, documents.encode(_new(there, ends=promised, segments=kept)))
    with pytest.raises(Corrupt, match="ends before"):
        root.rows()


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\0" * 100, b'{"type":"sink_batch"}', b"[" * 100_000])
def test_bytes_that_are_no_batch_are_corrupt(root: Place, data: bytes) -> None:
    """And nothing worse."""
    root.replace(KEY, data)
    with pytest.raises(Corrupt):
        root.rows()


def test_a_document_of_another_kind_is_corrupt(root: Place) -> None:
    """Also if it is a good one of this log."""
    root.replace(KEY, root.store.get(layout.topic_key("t", 1)))
    with pytest.raises(Corrupt, match="another kind"):
        root.rows()


def test_a_huge_object_is_not_read(root: Place) -> None:
    """It is refused by its size."""
    root.replace(KEY, b" " * (33 * 2**20))
    with pytest.raises(Corrupt, match="larger than it can be"):
        root.rows()


def test_flipped_bytes_are_found(root: Place, seed: int) -> None:
    """Wherever they are."""
    good = root.store.get(KEY)
    for at in range(seed % 7, len(good), max(1, len(good) // 60)):
        root.replace(KEY, good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(HoldfastError):
            root.rows()


def test_foreign_names_in_the_folder_are_left_alone(root: Place) -> None:
    """They are not ours."""
    root.store.create("topics/t/_sink/notes.txt", Body.of(b"x"))
    root.store.create("topics/t/_sink/1.json", Body.of(b"x"))
    assert root.rows().num_rows == 10
    assert write(root.target(), "q", 1).is_new


def test_a_manifest_object_in_the_place_of_the_sinks_stops_it(root: Place) -> None:
    """No batch is committed over a manifest that says something else, and nobody reads it."""
    before = root.newest().number
    for partition in (0, 2):
        root.store.delete([layout.manifest_key("t", partition, 1)])
    other = root.store.get(layout.manifest_key("t", 0, 0))
    root.store.create(layout.manifest_key("t", 0, 1), Body.of(other))
    with pytest.raises(Corrupt):
        root.rows()
    with pytest.raises(Corrupt, match="another manifest object"):
        write(root.target(), "q", 1)
    assert root.newest().number == before
