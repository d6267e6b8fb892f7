"""A store's root, read as a whole: its topics, its partitions' manifests, and what the names in its tail say.

Everything is proved by its own content and by its neighbours: a document names this log and its own key, a topic knows
every schema of its records, and has no more partitions than it says. Anything else is `Corrupt` with the object's key.
Foreign keys are left alone. Only reads; keeps the manifest objects that it has read, which never change.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Collection, Iterable, Sequence

from holdfast.errors import Corrupt
from holdfast.model.schema import TopicSchema
from holdfast.model.segment import NO_SCHEMA
from holdfast.model.topic_name import is_name
from holdfast.root.objects import documents
from holdfast.root.objects.documents import (
    AdoptedDocument,
    FloorDocument,
    SchemaVersion,
    SinkTopicDocument,
    TopicDocument,
)
from holdfast.root.rewrites import read_rewrites
from holdfast.root.store_manifest import StoreManifest, in_parallel, read_manifest, read_topic
from holdfast.root.tail_listing import TailListing, inherit
from holdfast.store import layout
from holdfast.store.port import Store

Where = tuple[str, int]
"""A topic's name and a partition's number."""


class RootReader:
    """Reads one root, as often as it is asked."""

    def __init__(self, store: Store, log: str) -> None:
        self._store = store
        self._log = log
        self._manifests: dict[Where, StoreManifest] = {}

    def tail(self, without: Collection[str] = ()) -> TailListing:
        """What the names in the tail say; floors and adoptions count by their names, so each must say the same itself.

        Objects in `without` are treated as missing.
        """
        listing = [info for info in self._store.list(layout.TAIL) if info.key not in without]
        in_parallel(self._prove_name, [info.key for info in listing if not _proves_itself(info.key)])
        return inherit(listing)

    def _prove_name(self, key: str) -> None:
        name = layout.parse_floor_key(key)
        if name is not None:
            floor = documents.decode(self._store.get(key), key, FloorDocument)
            said = (floor.log, floor.epoch, floor.seq)
        elif (name := layout.parse_adopted_key(key)) is not None:
            adopted = documents.decode(self._store.get(key), key, AdoptedDocument)
            said = (adopted.log, adopted.epoch, adopted.seq)
        else:
            return  # not ours
        if said != (self._log, *name):
            raise Corrupt("an object of the store is not the one that its key says", path=key)

    def topics(self) -> tuple[TopicDocument, ...]:
        """All topics, by name, those of sinks included. Files alone make no topic: a sink writes them first."""
        partitions: dict[str, int] = {}
        named: set[str] = set()
        for info in self._store.list(layout.TOPICS):
            place, said = layout.parse_partition(info.key), layout.parse_document(info.key)
            name = place[0] if place is not None else said
            if name and is_name(name):
                partitions[name] = max(partitions.get(name, 0), 0 if place is None else place[1] + 1)
                if said:
                    named.add(name)
        topics = in_parallel(lambda name: read_topic(self._store, self._log, name), sorted(named))
        for topic in topics:
            self._prove_topic(topic, partitions[topic.topic])
        return tuple(topics)

    def _prove_topic(self, topic: TopicDocument, partitions: int) -> None:
        key = layout.topic_key(topic.topic, topic.version)
        # A sink's files may be there before the version of its document that has room for them.
        if partitions > topic.partitions and not isinstance(topic, SinkTopicDocument):
            raise Corrupt("there are more partitions than the topic has", path=key, topic=topic.topic)
        versions(topic)

    def manifest(self, where: Where) -> StoreManifest:
        """The manifest of one partition, and its rewrites."""
        known = self._manifests.get(where) or StoreManifest(*where, (), None)
        rewrites = read_rewrites(self._store, self._log, *where, known.rewrites)  # before what they speak of
        found = read_manifest(self._store, self._log, *where, known=known.documents)
        self._manifests[where] = found = found._replace(rewrites=tuple(rewrites))
        return found


def _proves_itself(key: str) -> bool:
    """Whether an object of the tail is proved when it is read; nothing follows from its name alone."""
    return layout.parse_batch_key(key) is not None or layout.parse_keys_key(key) is not None


def check_schemas(topics: Sequence[TopicDocument], named: Iterable[tuple[str, bytes]]) -> None:
    """Check that the newest document of each topic knows all schemas of its records; if not, a newer one is missing."""
    known = {(topic.topic, bytes.fromhex(schema.fingerprint)) for topic in topics for schema in topic.schemas}
    unknown = {(topic, schema) for topic, schema in named if schema != NO_SCHEMA} - known
    for topic in topics:
        if any(name == topic.topic for name, _ in unknown):
            key = layout.topic_key(topic.topic, topic.version)
            raise Corrupt("records have a schema that is in no document of their topic", path=key, topic=topic.topic)


def versions(topic: TopicDocument) -> tuple[TopicSchema, ...]:
    """The versions of a topic's schema, oldest first, proved; none for raw records."""
    return tuple(_version(topic, schema) for schema in topic.schemas)


def _version(topic: TopicDocument, said: SchemaVersion) -> TopicSchema:
    try:
        schema = TopicSchema.parse(b64decode(said.definition))
        if schema.fingerprint.hex() == said.fingerprint:
            return schema
    except Corrupt:
        pass
    key = layout.topic_key(topic.topic, topic.version)
    raise Corrupt("a schema is not the one that it says", path=key, topic=topic.topic)
