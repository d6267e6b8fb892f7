"""The versions of typed topics' schemas, as the journal keeps them: parsed once each."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from holdfast.errors import Corrupt
from holdfast.model.schema import TopicSchema
from holdfast.segments.typed.key_column import key_of

if TYPE_CHECKING:
    from holdfast.journal.journal import Journal
    from holdfast.journal.journal_port import JournalPort


def versions(journal: JournalPort, topic: str) -> tuple[TopicSchema, ...]:
    """All versions of a topic's schema, oldest first; empty for a raw topic."""
    return tuple(_parsed(row.definition) for row in journal.schemas.get(topic, ()))


def version(journal: Journal, topic: str, fingerprint: bytes) -> TopicSchema:
    """The version with this fingerprint."""
    for row in journal.schemas.get(topic, ()):
        if row.fingerprint == fingerprint:
            return _parsed(row.definition)
    raise Corrupt("an entry or a segment has a schema that its topic never had", path=str(journal.path), topic=topic)


def key_column_of(journal: JournalPort, topic: str) -> str | None:
    """The key column of a typed topic; None where there is none, and for a raw topic."""
    found = versions(journal, topic)
    return key_of(found[0]) if found else None


@lru_cache(maxsize=1024)
def _parsed(definition: bytes) -> TopicSchema:
    return TopicSchema.parse(definition)
