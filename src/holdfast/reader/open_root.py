"""One root, opened for reading: its topics, how far each partition is settled, and the manifests that say so.

A root is a store's URL, a plain directory, or the directory of a log, whose own `segments/` is such a root. Manifest
objects never change, so they are kept: looking again costs one request per partition if nothing is new, however long
the history is. Used by one thread at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from holdfast.clock import Clock, SystemClock
from holdfast.crypto.keyring import Keyring
from holdfast.crypto.signatures import Signer
from holdfast.errors import Corrupt, NotFound
from holdfast.model.topic_name import is_name
from holdfast.reader.offsets import LATEST, Where, require_log
from holdfast.reader.read_options import ReadOptions
from holdfast.root import rewrites, sink_batches, store_manifest
from holdfast.root.objects.documents import (
    ExpiredDocument,
    FrontierDocument,
    ManifestDocument,
    RewriteDocument,
    SegmentDocument,
    SinkBatchDocument,
    SinkTopicDocument,
    TopicDocument,
)
from holdfast.root.objects.frontiers import Behind, absent, behind, missing, newest_frontier, settled_of
from holdfast.root.root_store import RootStore
from holdfast.root.root_trust import RootTrust
from holdfast.root.shared_stores import shared_store
from holdfast.store import layout
from holdfast.suggestions import listed, meant

OR_READ_THE_REST = (
    "Else look for older versions of these objects in the bucket; failOnDataLoss=false (fail_on_data_loss=False) reads"
    " what is there"
)
_LOST_HINT = (
    "open the log that ships here, or run `holdfast reconcile DIR --remote --fix` there: manifest objects are written"
    f" anew. {OR_READ_THE_REST}"
)

logger = logging.getLogger("holdfast")


def root_store(place: str, options: ReadOptions, clock: Clock | None = None) -> RootStore:
    """The root of a read, with the keys that will prove it; sends no request yet."""
    keyring = Keyring.from_reference(options.keyring) if options.keyring else None
    trust = RootTrust(Signer.of(keyring), log=options.log_id)
    return RootStore(shared_store(place, options.store, clock or SystemClock()), trust)


class SettledRoot:
    """What is settled at one root."""

    def __init__(self, store: RootStore, *, is_keyed: bool = False, accepts_loss: bool = False) -> None:
        """`is_keyed`: the reader has the log's keys, so a segment that is not encrypted is not the log's.

        `accepts_loss`: where records are missing that were settled, what is there is read.
        """
        self.store = store
        self.log = store.log().log
        self._is_keyed = is_keyed
        self._accepts_loss = accepts_loss
        self._frontier: FrontierDocument | None = None
        self._manifests: dict[Where, list[ManifestDocument]] = {}
        self._rewrites: dict[Where, list[RewriteDocument]] = {}
        self._files: dict[Where, tuple[int, int, Sequence[SegmentDocument]]] = {}
        self._last: dict[Where, ManifestDocument] = {}
        self._topics: dict[str, TopicDocument] = {}
        self._batches: dict[str, SinkBatchDocument | None] = {}
        """The newest batch of each topic that a sink writes: it says where all partitions end."""

    @classmethod
    def open(cls, place: str, options: ReadOptions, clock: Clock | None = None) -> SettledRoot:
        """Open a root; raises NotFound if there is none, Invalid if it is another one than asked for, also by marks."""
        root = cls(
            root_store(place, options, clock),
            is_keyed=bool(options.keyring),
            accepts_loss=not options.fail_on_data_loss,
        )
        for marks in options.marks:
            require_log(
                marks,
                root.log,
                what="these marks belong to",
                hint="they mean nothing here: read the root that they were taken from, or this one without them",
            )
        return root

    def require_same_log(self) -> None:
        """Look again whose root this is: raises Invalid if another log was put here, NotFound if there is none."""
        self.store.log()

    def is_shipped_to(self) -> bool:
        """Whether a log ships here, so that there are claims, commit batches and leases; or it is a log's own."""
        return any(next(iter(self.store.list(folder)), None) is not None for folder in (layout.EPOCHS, layout.TAIL))

    def is_store(self) -> bool:
        """Whether this is a root on a store, which a log ships to or a sink writes to; or it is a log's own."""
        if self.is_shipped_to():
            return True
        names = filter(is_name, self.store.folders(layout.TOPICS))
        return any(isinstance(self._find(name), SinkTopicDocument) for name in names)

    # -- topics -------------------------------------------------------------------------------------------

    def topics(self, options: ReadOptions) -> list[TopicDocument]:
        """The requested topics as they are now, by name; a pattern may match none."""
        if options.topics:
            return [self.topic(name) for name in sorted(options.topics)]
        said = settled_of(self.frontier())
        names = [name for name in self.store.folders(layout.TOPICS) if options.matches(name) and is_name(name)]
        found = [self._find(name) for name in names]
        topics = [topic for topic in found if topic is not None]  # its folder exists before its first document
        there = {topic.topic for topic in topics}
        self._require_topics(said, lambda name: options.matches(name) and name not in there)
        return topics

    def _require_topics(self, said: Mapping[Where, int], is_missing: Callable[[str], bool]) -> None:
        """A topic that was settled once has documents forever."""
        for topic, partition in said:
            if is_missing(topic):
                self.lost(missing(Behind(topic, partition, 0, said[topic, partition]), self.store, _LOST_HINT))

    def topic(self, name: str) -> TopicDocument:
        """A topic as it is now; raises NotFound."""
        found = self._find(name)
        if found is None:
            self._require_topics(settled_of(self.frontier()), lambda topic: topic == name)
            known = [one for one in self.store.folders(layout.TOPICS) if is_name(one)]
            raise NotFound(
                f"there is no topic {name!r} at this root{meant(name, known)} store={self.store.url}",
                hint=listed(known) if known else "there are none; nothing is settled yet",
            )
        return found

    def _find(self, name: str) -> TopicDocument | None:
        found = self._find_document(name)
        if isinstance(found, SinkTopicDocument):
            self._batches[name] = sink_batches.newest_batch(self.store, self.log, name, self._batches.get(name))
            # A batch may need partitions or columns that the topic got right before it, and we have not seen yet.
            found = self._find_document(name)
        return found

    def _find_document(self, name: str) -> TopicDocument | None:
        known = self._topics.get(name)
        if known is not None and self.store.head(layout.topic_key(name, known.version + 1)) is None:
            return known
        found = store_manifest.newest_topic(self.store, self.log, name)
        if found is not None:
            self._topics[name] = found
        return found

    # -- partitions ---------------------------------------------------------------------------------------

    def objects(self, where: Where) -> list[ManifestDocument]:
        """The manifest objects of a partition, as they are now, proved."""
        known = self._manifests.get(where)
        if known:
            more = store_manifest.read_since(self.store, self.log, *where, known)
        else:
            known, more = [], list(store_manifest.read_manifest(self.store, self.log, *where).documents)
        batch = self._batches.get(where[0])
        if sink_batches.end_of(batch, where[1]).slots > len(known) + len(more):  # manifest objects are still to come
            more += sink_batches.beyond(batch, [*known, *more], self.log, *where)
        self._require_encrypted(more)
        known += more  # only when it is proved: what is known is not checked again
        self._manifests[where] = known
        return known

    def _require_encrypted(self, found: Iterable[ManifestDocument]) -> None:
        for document in found if self._is_keyed else ():
            if isinstance(document, SegmentDocument) and not document.key_id and not document.is_filler:
                raise Corrupt(
                    "a segment of this log is not encrypted, and a keyring was passed",
                    path=layout.manifest_key(document.topic, document.partition, document.slot),
                    topic=document.topic,
                    partition=document.partition,
                    offset=document.first,
                    hint="if the log has no keys, leave the keyring out; if it has, this segment is not its own",
                )

    def segments(self, where: Where) -> list[SegmentDocument]:
        """The segments of a partition as they were sealed, by number, as many as there are now, retired ones included.

        What they say of rows, times and numbers holds forever; their files may have been replaced by longer ones.
        """
        return [document for document in self.objects(where) if isinstance(document, SegmentDocument)]

    def files(self, where: Where) -> Sequence[SegmentDocument]:
        """The files that hold a partition now, by offset: its segments, or longer ones in their place.

        Costs one request more than `segments`.
        """
        made = self._read_rewrites(where)  # before the manifest: what they speak of is in it then
        segments = self.segments(where)
        known = self._files.get(where)
        if known is None or known[:2] != (len(segments), len(made)):
            in_effect = rewrites.segments_in_effect(segments, made)
            known = self._files[where] = (len(segments), len(made), in_effect)
        return known[2]

    def _read_rewrites(self, where: Where) -> list[RewriteDocument]:
        known = self._rewrites.get(where)
        if known is None:
            known = self._rewrites[where] = rewrites.read_newest(self.store, self.log, *where)
        else:
            known += rewrites.read_since(self.store, self.log, *where, known)
        return known

    def settled(self, topic: TopicDocument, partition: int) -> int:
        """Everything below lies in segments on the store."""
        if topic.topic in self._batches:
            return sink_batches.end_of(self._batches[topic.topic], partition).first
        last = self.last((topic.topic, partition))
        return topic.first_offset if last is None else last.end

    def last(self, where: Where) -> ManifestDocument | None:
        """The newest manifest object of a partition, None if there is none; without reading the others."""
        if self._manifests.get(where):
            return self.objects(where)[-1]
        newest = sink_batches.segments_in(self._batches.get(where[0]), where[1])
        if newest:  # its manifest object may not be there yet
            self._require_encrypted(newest)
            return newest[-1]
        last = self._last.get(where)
        # Slots are dense: if the next one is free, nothing is new, and the history need not be listed again.
        if last is None or self.store.head(layout.manifest_key(*where, last.slot + 1)) is not None:
            last = store_manifest.read_newest(self.store, self.log, *where)
        if last is not None:
            self._require_encrypted([last])
            self._last[where] = last
        return last

    def marks(
        self, topics: Iterable[TopicDocument], limit: Callable[[Where], int] = lambda where: LATEST
    ) -> dict[Where, int]:
        """How far all partitions of these topics are settled; of a sink's topic, after its newest batch.

        Raises Corrupt where that is less than the log says it was, unless no more is read there (`limit`) than is left.
        """
        frontier = self.frontier()  # before the manifests, which are never removed: it says no more than they do
        topics = list(topics)
        places = [(topic, partition) for topic in topics for partition in range(self._partitions(topic))]
        ends = store_manifest.in_parallel(lambda place: self.settled(*place), places)
        found = {(topic.topic, partition): end for (topic, partition), end in zip(places, ends, strict=True)}
        names = {topic for topic, _ in found}
        for one in behind(frontier, found):
            end = limit((one.topic, one.partition))
            if one.topic in names and (end == LATEST or end > one.there):
                self.lost(missing(one, self.store, _LOST_HINT))
        if frontier is None and not all(isinstance(topic, SinkTopicDocument) for topic in topics):
            self._require_frontier()
        return found

    def _require_frontier(self) -> None:
        """A log writes one before its first topic: if it is not there by now, it was removed."""
        if self.frontier() is None:
            self.lost(absent(_LOST_HINT))

    def frontier(self) -> FrontierDocument | None:
        """How far the log itself says that it was settled; None where it never did. One request if nothing is new."""
        self._frontier = newest_frontier(self.store, self.log, self._frontier)
        return self._frontier

    def lost(self, what: Corrupt) -> None:
        """Something is missing that was there: raise it, or log it where the reader goes on with what is left."""
        if not self._accepts_loss:
            raise what
        logger.warning("%s", what.message, extra={"action": "data_loss", "path": what.path})

    def _partitions(self, topic: TopicDocument) -> int:
        return max(topic.partitions, sink_batches.partitions_in(self._batches.get(topic.topic)))

    def expired(self, where: Where) -> ExpiredDocument | None:
        """What retention has retired of a partition; None when nothing is."""
        return store_manifest.read_expired(self.store, self.log, *where)
