"""The batches of a sink's topic, as readers and writers find them: the newest one says how far the topic goes.

A batch is one object (`SinkBatchDocument`), created once, and the topic is what its newest batch says: where each
partition ends, which batches of which writer are part of it, and which segments came last. Manifest objects follow
later, so a reader takes the marks from here, and adds the segments of the newest batch where manifest objects are not
there yet (`beyond`). A batch is visible as a whole, in all partitions, or not at all.

Everything is hostile until it is proved: a document must be that of its place, its segments must be sound and in one
chain, end where it says that partitions end, and follow from the batch before if that one is known. What does not is
Corrupt, with the object's key. Only reads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby, islice
from operator import attrgetter

from holdfast.errors import Corrupt
from holdfast.model.segment import NO_CHAIN
from holdfast.root.objects import documents
from holdfast.root.objects.documents import ManifestDocument, PartitionEnd, SegmentDocument, SinkBatchDocument
from holdfast.root.objects.manifest_chain import ChainLink, are_numbers, prove, prove_following
from holdfast.store import layout
from holdfast.store.port import Store

NOTHING = PartitionEnd(0, 0, 0, NO_CHAIN.hex())
"""The end of a partition that has no rows yet."""
PARTITIONS_MAX = 65_536
WRITER_CHARS_MAX = 256
_PAGE = 1000
"""Keys that are listed at once; of longer lists the end is looked for by halves."""
_PARTITION = re.compile(r"0|[1-9][0-9]{0,4}")
_CHAIN = re.compile(r"[0-9a-f]{64}\Z")
_NONCE = re.compile(r"[0-9a-f]{32}\Z")
_partition = attrgetter("partition")


def newest_batch(
    store: Store, log: str, topic: str, known: SinkBatchDocument | None = None
) -> SinkBatchDocument | None:
    """The newest batch of a topic, proved; None where there is none. One request if `known` still is the newest."""
    if known is not None and store.head(layout.sink_key(topic, known.number + 1)) is None:
        return known
    number = newest_number(store, topic, -1 if known is None else known.number)
    if number < 0:
        return None
    return read_batch(store, log, topic, number, known)


def newest_number(store: Store, topic: str, known: int = -1) -> int:
    """The number of the newest batch; -1 where there is none. `known` is one that is there."""
    while True:
        page = _listed(store, topic, known)
        if len(page) < _PAGE:
            return page[-1] if page else known
        known = _leap(store, topic, page[-1])


def _leap(store: Store, topic: str, known: int) -> int:
    """A number behind which there are few others. Listing all of them would cost more with every batch."""
    step = _PAGE
    while _listed(store, topic, known + step, 1):
        known, step = known + step, 2 * step
    while step > _PAGE:
        step //= 2
        if _listed(store, topic, known + step, 1):
            known += step
    return known


def _listed(store: Store, topic: str, known: int, count: int = _PAGE) -> list[int]:
    after = layout.sink_key(topic, known) if known >= 0 else None
    numbers = (layout.parse_number(info.key) for info in store.list(layout.sink_folder(topic), after))
    return list(islice((number for number in numbers if number is not None), count))


def read_batch(
    store: Store, log: str, topic: str, number: int, before: SinkBatchDocument | None = None
) -> SinkBatchDocument:
    """One batch, proved; also against the one before it, or an older one, if that is known. Raises NotFound."""
    key = layout.sink_key(topic, number)
    return decode_batch(store.get(key), key, log, topic, number, before)


def decode_batch(
    data: bytes, key: str, log: str, topic: str, number: int, before: SinkBatchDocument | None = None
) -> SinkBatchDocument:
    """What was read from the place of a batch; raises Corrupt."""
    document = documents.decode(data, key, SinkBatchDocument)
    if (document.log, document.topic, document.number) != (log, topic, number):
        raise Corrupt("a batch of a sink belongs elsewhere", path=key, topic=topic)
    if not _is_sound(document):
        raise Corrupt("a batch of a sink says what cannot be", path=key, topic=topic)
    _prove_segments(document, key)
    if before is not None and not _follows(document, before):
        raise Corrupt("a batch of a sink does not follow from one before it", path=key, topic=topic)
    return document


def end_of(batch: SinkBatchDocument | None, partition: int) -> PartitionEnd:
    """How far a partition goes."""
    return NOTHING if batch is None else batch.ends.get(str(partition), NOTHING)


def partitions_in(batch: SinkBatchDocument | None) -> int:
    """How many partitions a topic must have for this batch."""
    return 0 if batch is None else 1 + max(map(int, batch.ends), default=-1)


def segments_in(batch: SinkBatchDocument | None, partition: int) -> list[SegmentDocument]:
    """The segments of a batch in one partition."""
    return [] if batch is None else [segment for segment in batch.segments if segment.partition == partition]


def beyond(
    batch: SinkBatchDocument | None, known: Sequence[ManifestDocument], log: str, topic: str, partition: int
) -> list[SegmentDocument]:
    """The segments of a batch whose manifest objects are not among those that are known, proved to follow them."""
    more = [segment for segment in segments_in(batch, partition) if segment.slot >= len(known)]
    if more:
        prove([*known, *more], log, topic, partition, len(known))
    return more


# -- proving ------------------------------------------------------------------------------------------------


def _is_sound(document: SinkBatchDocument) -> bool:
    is_marked = bool(document.writer)
    return (
        are_numbers(document.number, document.committed_us)
        and _NONCE.match(document.nonce) is not None
        and (document.batch >= 0 if is_marked else document.batch == -1)
        and document.marks.get(document.writer, -1) == document.batch
        and all(_is_writer(name) and are_numbers(batch) for name, batch in document.marks.items())
        and all(_is_end(name, end) for name, end in document.ends.items())
    )


def _is_writer(name: str) -> bool:
    return 1 <= len(name) <= WRITER_CHARS_MAX


def _is_end(partition: str, end: PartitionEnd) -> bool:
    return (
        _PARTITION.fullmatch(partition) is not None
        and int(partition) < PARTITIONS_MAX
        and are_numbers(end.slots, end.number, end.first)
        and _CHAIN.match(end.chain) is not None
    )


def _prove_segments(document: SinkBatchDocument, key: str) -> None:
    """Check that the segments of each partition are one chain, which ends where the document says."""
    last = -1
    for partition, group in groupby(document.segments, _partition):
        found, end = list(group), document.ends.get(str(partition))
        if partition <= last or end is None:
            raise Corrupt("the segments of a sink's batch are out of order", path=key, topic=document.topic)
        first, last = found[0], partition
        link = ChainLink(first.number, first.first, first.previous)
        prove_following(found, document.log, document.topic, partition, first.slot, link)
        if end != end_behind(found[-1]):
            raise Corrupt("a batch of a sink ends elsewhere than its segments", path=key, topic=document.topic)


def end_behind(segment: SegmentDocument) -> PartitionEnd:
    """The end of a partition whose last segment this is."""
    return PartitionEnd(segment.slot + 1, segment.number + 1, segment.end, segment.chain)


def _follows(document: SinkBatchDocument, before: SinkBatchDocument) -> bool:
    """Whether nothing went back; right behind it, also that each partition goes on where it ended."""
    if any(document.marks.get(name, -1) < batch for name, batch in before.marks.items()):
        return False
    ends = [(end, document.ends.get(name)) for name, end in before.ends.items()]
    if any(now is None or now.slots < end.slots or now.first < end.first for end, now in ends):
        return False
    return document.number != before.number + 1 or _goes_on(document, before)


def _goes_on(document: SinkBatchDocument, before: SinkBatchDocument) -> bool:
    starts = dict(document.ends)
    for segment in reversed(document.segments):
        starts[str(segment.partition)] = PartitionEnd(segment.slot, segment.number, segment.first, segment.previous)
    return all(start == before.ends.get(name, NOTHING) for name, start in starts.items())
