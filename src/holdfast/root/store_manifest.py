"""The manifest of one partition as a store has it: read through checkpoints, and proved link by link.

Manifest objects fill slots 0, 1, 2 … without a hole; what is settled is what they say. A segment's object names the
chain value before it and its own, which covers its place, span and content: an object that was changed, moved, left out
or put back does not fit its neighbours. A checkpoint says nothing else: a damaged one is passed over, with a line in
the log, and the objects are read instead. Knows no journal; Spark's planning reads the same.

Values are bounded here, too: whoever reads a manifest may take its numbers and hashes for what they are. What is not as
it should be is `Corrupt` with the object's key.
"""

from __future__ import annotations

import logging
import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from typing import NamedTuple, TypeVar

from holdfast.errors import Corrupt, NotFound
from holdfast.model.segment import NO_CHAIN, SegmentFacts, SegmentHead, chain_value
from holdfast.root.numbered_objects import newest, numbered
from holdfast.root.objects import checkpoint, documents
from holdfast.root.objects.documents import (
    ExpiredDocument,
    ManifestDocument,
    SegmentDocument,
    StartDocument,
    TopicDocument,
)
from holdfast.store import layout
from holdfast.store.port import Store

_AT_ONCE = 8
_WINDOW = 32
"""Slots that are asked for together, once the first of them turned out to be taken."""
_NUMBER_MAX = 2**62
_TIME_MIN, _TIME_MAX = -(2**63), 2**63 - 1
_PARTITIONS_MAX = 65_536
_HASH_BYTES = {"sha256": 32, "content": 32, "footer": 16, "previous": 32, "chain": 32, "schema": 16}
_NO_CONTENT = bytes(32).hex()
_hashes_of = attrgetter(*_HASH_BYTES)
_HASH_DIGITS = tuple(2 * size for size in _HASH_BYTES.values())
_DIGITS = re.compile("[0-9a-f]*")

Item = TypeVar("Item")
Result = TypeVar("Result")

logger = logging.getLogger("holdfast")


class StoreManifest(NamedTuple):
    """What a store knows about one partition."""

    topic: str
    partition: int
    documents: tuple[ManifestDocument, ...]
    """By slot, from 0 on."""
    expired: ExpiredDocument | None
    """What is retired; None when nothing is."""

    @property
    def segments(self) -> list[SegmentDocument]:
        """The segments, by number, retired ones included."""
        return [document for document in self.documents if isinstance(document, SegmentDocument)]

    @property
    def settled(self) -> int | None:
        """Everything below lies in segments; None before the first."""
        segments = self.segments
        return segments[-1].first + segments[-1].rows if segments else None


def read_manifest(
    store: Store, log: str, topic: str, partition: int, known: Sequence[ManifestDocument] = ()
) -> StoreManifest:
    """Read and prove the manifest of a partition; raises Corrupt. What is known already is not read again."""
    found = list(known) or _from_checkpoint(store, log, topic, partition)
    proved = len(found)
    after = layout.manifest_key(topic, partition, len(found) - 1) if found else None
    keys = numbered(store, layout.manifest_folder(topic, partition), after)
    found += in_parallel(lambda key: documents.decode_manifest(store.get(key), key), keys)
    prove(found, log, topic, partition, proved)
    manifest = StoreManifest(topic, partition, tuple(found), read_expired(store, log, topic, partition))
    _prove_expired(manifest)
    return manifest


def read_topic(store: Store, log: str, topic: str) -> TopicDocument:
    """Read and prove the newest document of a topic; raises Corrupt, also where there is none."""
    document = newest_topic(store, log, topic)
    if document is None:
        raise Corrupt("the documents of a topic are missing", path=layout.topic_folder(topic), topic=topic)
    return document


def newest_topic(store: Store, log: str, topic: str) -> TopicDocument | None:
    """The newest document of a topic, proved; None where there is none. Raises Corrupt."""
    key = newest(store, layout.topic_folder(topic))
    if key is None:
        return None
    document = documents.decode(store.get(key), key, TopicDocument)
    if (document.log, document.topic, document.version) != (log, topic, layout.parse_number(key)):
        raise Corrupt("the document of a topic belongs elsewhere", path=key, topic=topic)
    if not _is_sound_topic(document):
        raise Corrupt("the document of a topic says what cannot be", path=key, topic=topic)
    return document


def follow(store: Store, log: str, topic: str, partition: int, known: list[ManifestDocument]) -> None:
    """Add what came behind these since they were read, proved; one request when nothing did, however many they are."""
    proved, window = len(known), 1
    while True:
        slots = range(len(known), len(known) + window)
        found = in_parallel(lambda slot: _at_slot(store, topic, partition, slot), slots)
        known += [document for document in found[: found.index(None) if None in found else window] if document]
        if None in found:
            break
        window = _WINDOW
    try:
        prove(known, log, topic, partition, proved)
    except Corrupt:
        del known[proved:]
        raise


def _at_slot(store: Store, topic: str, partition: int, slot: int) -> ManifestDocument | None:
    key = layout.manifest_key(topic, partition, slot)
    try:
        return documents.decode_manifest(store.get(key), key)
    except NotFound:
        return None


def prove(found: Sequence[ManifestDocument], log: str, topic: str, partition: int, proved: int = 0) -> None:
    """Check that manifest objects are one partition's, whole, and in one chain; the first `proved` are known to be."""
    number, end, chain = _behind(found, proved)
    for slot in range(proved, len(found)):
        document = found[slot]
        key = layout.manifest_key(topic, partition, slot)
        if document.slot != slot:
            raise Corrupt("a manifest object is missing", path=key, topic=topic, partition=partition, offset=end)
        if (document.log, document.topic, document.partition) != (log, topic, partition):
            raise Corrupt("a manifest object belongs elsewhere", path=key, topic=topic, partition=partition)
        if document.number != number or (end is not None and document.first != end) or not _is_sound(document):
            raise Corrupt("a manifest object is out of place", path=key, topic=topic, partition=partition, offset=end)
        if isinstance(document, StartDocument):
            continue
        if document.previous != chain or not (is_filler(document) or _is_linked(document)):
            raise Corrupt(
                "a manifest object does not follow the one before it", path=key, topic=topic, partition=partition,
                offset=document.first,
            )  # fmt: skip
        number, end, chain = number + 1, document.first + document.rows, document.chain


def _behind(found: Sequence[ManifestDocument], proved: int) -> tuple[int, int | None, str]:
    """What must follow the first of these: a segment's number, its first offset, the chain value before it."""
    for slot in range(proved - 1, -1, -1):
        last = found[slot]
        if isinstance(last, SegmentDocument):
            return last.number + 1, last.first + last.rows, last.chain
    return 0, None, NO_CHAIN.hex()


def is_filler(document: SegmentDocument) -> bool:
    """Whether a segment never had a file here: a rebuild wrote its row where files had expired or were lost."""
    return document.size == 0 and document.content == _NO_CONTENT


def head_of(document: SegmentDocument) -> SegmentHead:
    """What the file of a segment must say about itself."""
    return SegmentHead(
        bytes.fromhex(document.log), document.topic, document.partition, document.number, document.first,
        document.epoch, bytes.fromhex(document.schema), bytes.fromhex(document.previous),
    )  # fmt: skip


def facts_of(document: SegmentDocument) -> SegmentFacts:
    """What the manifest object says about a segment's file."""
    return SegmentFacts(
        document.rows, document.size, document.time_min, document.time_max, bytes.fromhex(document.sha256),
        bytes.fromhex(document.content), bytes.fromhex(document.footer), document.key_id,
    )  # fmt: skip


def in_parallel(call: Callable[[Item], Result], items: Iterable[Item], at_once: int = _AT_ONCE) -> list[Result]:
    """Ask a store many things, a few at a time; answers in order."""
    items = list(items)
    if len(items) == 1:
        return [call(items[0])]
    with ThreadPoolExecutor(at_once, thread_name_prefix="holdfast-store") as threads:
        return list(threads.map(call, items))


# -- reading ------------------------------------------------------------------------------------------------


def _from_checkpoint(store: Store, log: str, topic: str, partition: int) -> list[ManifestDocument]:
    """What the newest checkpoint says; nothing where there is none, or none that is whole."""
    key = newest(store, layout.checkpoints_folder(topic, partition))
    if key is None:
        return []
    try:
        found = checkpoint.decode(store.get(key), key)
        prove(found, log, topic, partition)
    except Corrupt as damage:
        logger.error("a checkpoint is damaged: %s", damage.message, extra={"action": "checkpoint_damaged"})
        return []
    return found


def read_expired(store: Store, log: str, topic: str, partition: int) -> ExpiredDocument | None:
    """What is retired of a partition; raises Corrupt where that is not what its key says."""
    key = newest(store, layout.expired_folder(topic, partition))
    if key is None:
        return None
    document = documents.decode(store.get(key), key, ExpiredDocument)
    place = (document.log, document.topic, document.partition, document.upto)
    if place != (log, topic, partition, layout.parse_number(key)):
        raise Corrupt("an expiry belongs elsewhere", path=key, topic=topic, partition=partition)
    return document


# -- proving ------------------------------------------------------------------------------------------------


def _prove_expired(manifest: StoreManifest) -> None:
    """An expiry ends where the segment before it does, if that one is on the store already."""
    expired, segments = manifest.expired, manifest.segments
    if expired is None or not 0 < expired.upto <= len(segments):
        return
    last = segments[expired.upto - 1]
    if expired.first != last.first + last.rows:
        key = layout.expired_key(manifest.topic, manifest.partition, expired.upto)
        raise Corrupt("an expiry is out of place", path=key, topic=manifest.topic, partition=manifest.partition)


def _is_sound(document: ManifestDocument) -> bool:
    """Whether every value of a manifest object is one that we would write."""
    numbers = [document.partition, document.number, document.first, document.epoch]
    if isinstance(document, StartDocument):
        return _are_numbers(*numbers, document.adopted_seq)
    times = (document.time_min, document.time_max, document.sealed_us)
    return (
        _are_numbers(*numbers, document.size, document.first + document.rows)
        and document.rows >= 1
        and all(_TIME_MIN <= time <= _TIME_MAX for time in times)
        and _are_hashes(document)
    )


def _is_sound_topic(document: TopicDocument) -> bool:
    limits = document.retention
    policy = () if limits is None else (limits.bytes_max, limits.age_max_us, limits.records_max)
    return (
        1 <= document.partitions <= _PARTITIONS_MAX
        and _are_numbers(document.first_offset)
        and all(0 <= limit <= _TIME_MAX for limit in policy)
        and all(_is_hash(schema.fingerprint, 16) and _is_base64(schema.definition) for schema in document.schemas)
    )


def _are_numbers(*values: int) -> bool:
    return all(0 <= value < _NUMBER_MAX for value in values)


def _are_hashes(document: SegmentDocument) -> bool:
    """All hashes of a segment, looked at together: there are many segments."""
    values = _hashes_of(document)
    return tuple(map(len, values)) == _HASH_DIGITS and _DIGITS.fullmatch("".join(values)) is not None


def _is_hash(value: str, size: int) -> bool:
    try:
        return len(value) == 2 * size and bytes.fromhex(value).hex() == value
    except ValueError:
        return False


def _is_base64(value: str) -> bool:
    try:
        return bool(b64decode(value, validate=True))
    except ValueError:
        return False


def _is_linked(document: SegmentDocument) -> bool:
    return chain_value(head_of(document), document.rows, bytes.fromhex(document.content)).hex() == document.chain
