"""The documents of a sink's topic: made before the batch that needs them, a new version where it has grown.

The second writer finds the version taken, reads it and checks again whether anything is missing. A topic that belongs
to a log is refused.
"""

from __future__ import annotations

from base64 import b64encode

from holdfast.errors import Invalid, Unavailable
from holdfast.model.schema import TopicSchema, evolve
from holdfast.root.objects import documents
from holdfast.root.objects.documents import SchemaVersion, SinkTopicDocument
from holdfast.root.root_contents import versions
from holdfast.root.sink_batches import PARTITIONS_MAX
from holdfast.root.store_manifest import newest_topic
from holdfast.sink.sink_root import SinkRoot
from holdfast.store import layout
from holdfast.store.port import Body
from holdfast.store.repeated_create import create_repeatedly

_TRIES = 100


class _VersionTaken(Exception):
    """Another writer made this version."""


def read_topic(root: SinkRoot, topic: str) -> SinkTopicDocument | None:
    """A sink's topic as it is now, None where there is none yet; raises Invalid where it belongs to a log."""
    found = newest_topic(root.store, root.log, topic)
    if found is not None and not isinstance(found, SinkTopicDocument):
        raise Invalid(
            f"topic {topic!r} belongs to the log that ships here: only the log appends to it store={root.store.url}",
            hint="give the sink's topic another name",
        )
    return found


def ensure_topic(root: SinkRoot, topic: str, schema: TopicSchema | None, partitions: int) -> SinkTopicDocument:
    """Make sure that a topic knows this schema (None for raw records) and has so many partitions; raises Invalid."""
    if partitions > PARTITIONS_MAX:
        raise Invalid(
            f"a topic has at most {PARTITIONS_MAX} partitions, one per task tasks={partitions}",
            hint="write with fewer tasks: df.coalesce(1000)",
        )
    for _ in range(_TRIES):
        document = read_topic(root, topic)
        wanted = _next(root, topic, document, schema, partitions)
        if wanted is document:
            return wanted
        try:
            _create(root, wanted)
        except _VersionTaken:
            continue
        return wanted
    raise Unavailable(f"others change this topic all the time topic={topic}", hint="write again later")


def _next(
    root: SinkRoot, topic: str, document: SinkTopicDocument | None, schema: TopicSchema | None, partitions: int
) -> SinkTopicDocument:
    if document is None:
        return SinkTopicDocument(
            log=root.log,
            topic=topic,
            version=1,
            partitions=max(1, partitions),
            first_offset=0,
            schemas=() if schema is None else (_version(schema),),
        )
    _check_kind(document, schema)
    schemas = document.schemas
    if schema is not None and schema.fingerprint not in {one.fingerprint for one in versions(document)}:
        _check_growth(versions(document)[-1], schema)
        schemas = (*schemas, _version(schema))
    if schemas == document.schemas and partitions <= document.partitions:
        return document
    return SinkTopicDocument(
        log=root.log,
        topic=topic,
        version=document.version + 1,
        partitions=max(document.partitions, partitions),
        first_offset=document.first_offset,
        schemas=schemas,
        retention=document.retention,
    )


def _check_kind(document: SinkTopicDocument, schema: TopicSchema | None) -> None:
    if bool(document.schemas) != (schema is not None):
        kinds = ("rows", "raw records") if document.schemas else ("raw records", "rows")
        raise Invalid(
            f"topic {document.topic!r} holds {kinds[0]}, and these are {kinds[1]}", hint="write them to another topic"
        )


def _check_growth(current: TopicSchema, schema: TopicSchema) -> None:
    """The schema was right when the write began: if it is not any more, another writer has changed the topic."""
    try:
        evolve(current, schema)
    except Invalid as error:
        raise Unavailable(
            f"another writer has changed the columns of this topic meanwhile: {error.message}",
            hint="write again: the columns are then checked again",
        ) from None


def _version(schema: TopicSchema) -> SchemaVersion:
    return SchemaVersion(schema.fingerprint.hex(), b64encode(schema.serialize()).decode())


def _create(root: SinkRoot, document: SinkTopicDocument) -> None:
    key, data = layout.topic_key(document.topic, document.version), documents.encode(document)

    def require_own(key: str) -> None:
        if root.store.get(key) != data:
            raise _VersionTaken

    create_repeatedly(root.store, key, Body.of(data), require_own)
