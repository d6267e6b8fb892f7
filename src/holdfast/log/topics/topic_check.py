"""A topic that exists: the handle of its kind, and how a caller asks for it, compared with how it is."""

from __future__ import annotations

from holdfast.errors import Invalid
from holdfast.journal.journal_port import JournalPort
from holdfast.log.ports import TopicRequest
from holdfast.log.topics.topic import OwnTopic, Topic
from holdfast.log.topics.topic_partitions import Partitions
from holdfast.log.topics.typed_topic import TypedTopic
from holdfast.log.topics.validation import Validation
from holdfast.log.topics.value_topic import ValueTopic
from holdfast.model.topic_name import is_own
from holdfast.model.value_codec import ValueCodec, recorded_codec


def made_topic(
    name: str, journal: JournalPort, partitions: Partitions, checks: Validation, *, is_typed: bool
) -> Topic | TypedTopic:
    """The handle of a topic, by what is recorded of it."""
    if is_typed:
        return TypedTopic(name, journal, partitions, checks)
    if is_own(name):
        return OwnTopic(name, journal, partitions, checks)
    codec = recorded_codec(journal.codecs.get(name, ""))
    made = name, journal, partitions, checks
    return Topic(*made) if codec is None else ValueTopic(*made, codec)


def as_type(topic: Topic | TypedTopic, codec: ValueCodec | None) -> Topic | TypedTopic:
    """The topic as a caller reads it, who may have a type for its values."""
    if isinstance(topic, ValueTopic) and codec is not None and codec.kind is not None:
        return topic.typed(codec)
    return topic


def check_topic(topic: Topic | TypedTopic, asked: TopicRequest) -> None:
    """A topic is asked for as it is: a typed one with a schema, and only that. Invalid otherwise."""
    if asked.partitions is not None and asked.partitions != topic.partitions:
        raise Invalid(
            f"topic {topic.name!r} has another number of partitions: {topic.partitions}, not {asked.partitions}",
            hint="the number of partitions is fixed when a topic is created",
        )
    if isinstance(topic, Topic):
        if asked.schema is not None:
            raise Invalid(f"topic {topic.name!r} holds raw records", hint="ask for it without schema")
    elif asked.schema is None:
        raise Invalid(f"topic {topic.name!r} is typed", hint="ask for it with schema=… or schema='latest'")
    if asked.key is not None:
        _check_key(topic, asked.key)
    if asked.codec is not None:
        _check_codec(topic, asked.codec)


def _check_key(topic: Topic | TypedTopic, key: str) -> None:
    if isinstance(topic, Topic):
        raise no_key_column()
    if topic.key != key:
        has = "no key column" if topic.key is None else f"the key column {topic.key!r}"
        raise Invalid(
            f"topic {topic.name!r} has {has}, not {key!r}", hint="the key column is fixed when a topic is created"
        )


def _check_codec(topic: Topic | TypedTopic, codec: ValueCodec) -> None:
    if isinstance(topic, TypedTopic):
        raise Invalid(f"topic {topic.name!r} is typed: its rows have columns", hint="ask for it without codec")
    if topic.codec is None:
        raise Invalid(
            f"topic {topic.name!r} holds bytes, not {codec.name}",
            hint="a codec is fixed when a topic is created: decode record.payload, or start a new topic",
        )
    if topic.codec.name != codec.name:
        raise Invalid(
            f"topic {topic.name!r} holds {topic.codec.name}, not {codec.name}",
            hint=f"a codec is fixed when a topic is created: ask for codec={topic.codec.name!r}, or leave it out",
        )


def no_key_column() -> Invalid:
    """Why a raw topic cannot be asked for with a key column."""
    return Invalid("a raw topic has no key column", hint="give each record its key: topic.append(payload, key=…)")
