"""The manifest of one partition as a store has it. Everybody who needs one reads it here.

Readers, restore, takeover, migration and checkpoints want all of it: it is read through the newest checkpoint, and
proved object by object (`manifest_chain`). A checkpoint says nothing that the objects do not say: a damaged one is
passed over, with a line in the log, and the objects are read instead. A search for damage goes slot by slot. What is
settled is what manifest objects say. Knows no journal; Spark's planning reads the same.
"""

from __future__ import annotations

import logging
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import msgspec

from holdfast.errors import Corrupt, NotFound
from holdfast.model.value_codec import CODECS
from holdfast.root.numbered_objects import newest, numbered
from holdfast.root.objects import documents
from holdfast.root.objects.documents import (
    ExpiredDocument,
    ManifestDocument,
    RewriteDocument,
    SegmentDocument,
    TopicDocument,
)
from holdfast.root.objects.manifest_chain import are_numbers, prove
from holdfast.store import layout
from holdfast.store.port import Store

_AT_ONCE = 16
_WINDOW = 32
"""Slots that are requested together once the first one turned out to be taken."""
_PARTITIONS_MAX = 65_536
_LIMIT_MAX = 2**63 - 1

Item = TypeVar("Item")
Result = TypeVar("Result")

logger = logging.getLogger("holdfast")


class StoreManifest(NamedTuple):
    """What a store knows about one partition."""

    topic: str
    partition: int
    documents: tuple[ManifestDocument, ...]
    """By slot, from 0."""
    expired: ExpiredDocument | None
    """What is retired; None when nothing is."""
    rewrites: tuple[RewriteDocument, ...] = ()
    """What compaction has put in the place of segments, where that was requested."""

    @property
    def segments(self) -> list[SegmentDocument]:
        """The segments, by number, retired ones included."""
        return [document for document in self.documents if isinstance(document, SegmentDocument)]

    @property
    def settled(self) -> int | None:
        """Everything below lies in segments; None before the first."""
        segments = self.segments
        return segments[-1].end if segments else None


def read_manifest(
    store: Store, log: str, topic: str, partition: int, known: Sequence[ManifestDocument] = ()
) -> StoreManifest:
    """Read and prove the manifest of a partition; raises Corrupt. What is known already is not read again."""
    found = list(known) or _from_checkpoint(store, log, topic, partition)
    proved = len(found)
    after = layout.manifest_key(topic, partition, proved - 1) if found else None
    keys = numbered(store, layout.manifest_folder(topic, partition), after)
    found += in_parallel(lambda key: documents.decode_manifest(store.get(key), key), keys)
    prove(found, log, topic, partition, proved)
    manifest = StoreManifest(topic, partition, tuple(found), read_expired(store, log, topic, partition))
    _prove_expired(manifest)
    return manifest


def continued(manifest: StoreManifest, named: Iterable[SegmentDocument], log: str) -> StoreManifest:
    """A manifest with the segments that a commit batch names and that have no objects of their own yet.

    Raises Corrupt where they do not follow those that are there, or say something else than those.
    """
    found, segments = list(manifest.documents), manifest.segments
    proved = len(found)
    for document in named:
        if document.number >= len(segments):
            # A takeover that did not see the batch may have taken its slot.
            segments.append(documents.checked(msgspec.structs.replace(document, slot=len(found))))
            found.append(segments[-1])
        elif (segments[document.number].chain, segments[document.number].sha256) != (document.chain, document.sha256):
            key = layout.manifest_key(manifest.topic, manifest.partition, segments[document.number].slot)
            raise Corrupt("a commit batch names another segment than the manifest has", path=key)
    prove(found, log, manifest.topic, manifest.partition, proved)
    more = manifest._replace(documents=tuple(found))
    _prove_expired(more)
    return more


def all_continued(
    manifests: Mapping[tuple[str, int], StoreManifest], named: Iterable[SegmentDocument], log: str
) -> dict[tuple[str, int], StoreManifest]:
    """The manifests of all partitions with the segments that commit batches name; raises Corrupt."""
    found = dict(manifests)
    for where, segments in by_partition(named).items():
        if where not in found:
            message = "a commit batch names a segment of a partition that the store does not know"
            raise Corrupt(message, path=layout.TAIL, topic=where[0], partition=where[1])
        found[where] = continued(found[where], segments, log)
    return found


def by_partition(named: Iterable[SegmentDocument]) -> dict[tuple[str, int], list[SegmentDocument]]:
    """Segments that commit batches name, by topic and partition, each in the order of the batches."""
    found: dict[tuple[str, int], list[SegmentDocument]] = {}
    for document in named:
        found.setdefault((document.topic, document.partition), []).append(document)
    return found


def read_upto(store: Store, log: str, topic: str, partition: int, slot: int) -> list[ManifestDocument]:
    """The manifest objects up to a slot, to be copied: their order is proved, their other values are not.

    Raises Corrupt, also where one is missing.
    """
    found = _from_checkpoint(store, log, topic, partition, values=False)[: slot + 1]
    proved = len(found)
    slots = range(proved, slot + 1)
    more = in_parallel(lambda at: read_slot(store, log, topic, partition, at), slots)
    found += [document for document in more if document is not None]
    prove(found, log, topic, partition, proved, values=False)
    if len(found) <= slot:
        key = layout.manifest_key(topic, partition, len(found))
        raise Corrupt("a manifest object is missing", path=key, topic=topic, partition=partition)
    return found


def read_slot(store: Store, log: str, topic: str, partition: int, slot: int) -> ManifestDocument | None:
    """The manifest object in a slot; None where there is none. Raises Corrupt where it is damaged or another one's."""
    try:
        data = store.get(layout.manifest_key(topic, partition, slot))
    except NotFound:
        return None
    return decode_slot(data, log, topic, partition, slot)


def decode_slot(data: bytes, log: str, topic: str, partition: int, slot: int) -> ManifestDocument:
    """What was read from a slot; raises Corrupt where it is damaged, or is not the object of that place."""
    key = layout.manifest_key(topic, partition, slot)
    document = documents.decode_manifest(data, key)
    if (document.log, document.topic, document.partition, document.slot) != (log, topic, partition, slot):
        raise Corrupt("a manifest object belongs elsewhere", path=key, topic=topic, partition=partition)
    return document


def decode_checkpoint(data: bytes, key: str, log: str, *, values: bool = True) -> list[ManifestDocument]:
    """The manifest objects in a checkpoint of this log, proved; raises Corrupt."""
    from holdfast.root.objects import checkpoint  # loads pyarrow: not everybody who opens a log needs it

    found = checkpoint.decode(data, key, values=values)
    if found[0].log != log:
        raise Corrupt("a checkpoint belongs to another log", path=key)
    return found


def read_newest(store: Store, log: str, topic: str, partition: int) -> ManifestDocument | None:
    """The newest manifest object of a partition, None when there is none; nothing before it is read."""
    folder, at = layout.manifest_folder(topic, partition), newest(store, layout.checkpoints_folder(topic, partition))
    slot = None if at is None else layout.parse_number(at)
    after = layout.manifest_key(topic, partition, slot - 1) if slot else None
    keys = numbered(store, folder, after)
    if not keys and after is not None:  # the checkpoint's name is not proved: it may promise what is not there
        keys = numbered(store, folder)
    if not keys:
        return None
    return decode_slot(store.get(keys[-1]), log, topic, partition, layout.parse_number(keys[-1]) or 0)


def read_since(
    store: Store, log: str, topic: str, partition: int, known: list[ManifestDocument]
) -> list[ManifestDocument]:
    """What was added after these since they were read, proved; one request if nothing was, however many they are."""
    more: list[ManifestDocument] = []
    window = 1
    while True:
        start = len(known) + len(more)
        found = in_parallel(lambda slot: read_slot(store, log, topic, partition, slot), range(start, start + window))
        more += [document for document in found[: found.index(None) if None in found else window] if document]
        if None in found:
            break
        window = _WINDOW
    if more:
        prove(known + more, log, topic, partition, len(known))
    return more


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


def in_parallel(call: Callable[[Item], Result], items: Iterable[Item], at_once: int = _AT_ONCE) -> list[Result]:
    """Call for each item, a few at a time; results in order."""
    items = list(items)
    if len(items) == 1:
        return [call(items[0])]
    with ThreadPoolExecutor(at_once, thread_name_prefix="holdfast-store") as threads:
        return list(threads.map(call, items))


# -- reading ------------------------------------------------------------------------------------------------


def _from_checkpoint(
    store: Store, log: str, topic: str, partition: int, *, values: bool = True
) -> list[ManifestDocument]:
    """What the newest checkpoint says; nothing if there is none, or if it is damaged."""
    key = newest(store, layout.checkpoints_folder(topic, partition))
    if key is None:
        return []
    try:
        return decode_checkpoint(store.get(key), key, log, values=values)
    except Corrupt as damage:
        logger.error("a checkpoint is damaged: %s", damage.message, extra={"action": "checkpoint_damaged"})
        return []


def read_expired(store: Store, log: str, topic: str, partition: int) -> ExpiredDocument | None:
    """What is retired of a partition; raises Corrupt if the document is not the one that its key says."""
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
    """Check that an expiry ends where its last segment ends, if that one is on the store already."""
    expired, segments = manifest.expired, manifest.segments
    if expired is None or not 0 < expired.upto <= len(segments):
        return
    last = segments[expired.upto - 1]
    if expired.first != last.end:
        key = layout.expired_key(manifest.topic, manifest.partition, expired.upto)
        raise Corrupt("an expiry is out of place", path=key, topic=manifest.topic, partition=manifest.partition)


def _is_sound_topic(document: TopicDocument) -> bool:
    limits = document.retention
    policy = () if limits is None else (limits.bytes_max, limits.age_max_us, limits.records_max)
    return (
        1 <= document.partitions <= _PARTITIONS_MAX
        and are_numbers(document.first_offset)
        and all(0 <= limit <= _LIMIT_MAX for limit in policy)
        and document.codec in ("", *CODECS)
        and all(_is_hash(schema.fingerprint, 16) and _is_base64(schema.definition) for schema in document.schemas)
    )


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
