"""The topics that a producer or a transaction takes: by name or by handle, raw or typed, of one log."""

from __future__ import annotations

from holdfast.errors import Invalid
from holdfast.journal.journal_port import JournalPort
from holdfast.log.ports import TopicsPort
from holdfast.log.topics.topic import Topic
from holdfast.log.topics.typed_topic import TypedTopic


class TopicArguments:
    """What one producer or transaction takes as a topic; Invalid for everything else."""

    __slots__ = ("_journal", "_taker", "_topics", "_typed_hint")

    def __init__(self, journal: JournalPort, topics: TopicsPort, taker: str, typed_hint: str) -> None:
        """`taker` is who takes them, and `typed_hint` how it takes the rows of a typed topic."""
        self._journal = journal
        self._topics = topics
        self._taker = taker
        self._typed_hint = typed_hint

    def raw(self, topic: object) -> Topic:
        """A raw topic, which is created if it is given by its name and not there."""
        if isinstance(topic, str):
            return self._topics.raw(topic)
        if not isinstance(topic, Topic):
            if isinstance(topic, TypedTopic):
                raise Invalid(f"topic {topic.name!r} is typed", hint=self._typed_hint)
            raise Invalid(f"a topic is got with log.topic(name), not {type(topic).__name__}", hint="or give its name")
        self._check_own(topic)
        return topic

    def check_typed(self, topic: TypedTopic, key: object, headers: object, kind: object) -> None:
        """Rows go to a typed topic of this log, without what only records have."""
        if key is not None or headers is not None or kind is not None:
            raise Invalid("rows have no key, headers or kind", hint="a typed topic's key is one of its columns")
        self._check_own(topic)

    def _check_own(self, topic: Topic | TypedTopic) -> None:
        if topic._journal is not self._journal:
            raise Invalid(f"topic {topic.name!r} belongs to another log", hint=f"{self._taker} is of one log")
