"""A topic that exists, compared with how a caller opens it."""

from __future__ import annotations

from holdfast.errors import Invalid
from holdfast.log.ports import Schema
from holdfast.log.topics.topic import Topic
from holdfast.log.topics.typed_topic import TypedTopic


def check_topic(topic: Topic | TypedTopic, schema: Schema, partitions: int | None, key: str | None) -> None:
    """A topic is asked for as it is: a typed one with a schema, and only that. Invalid otherwise."""
    if partitions is not None and partitions != topic.partitions:
        raise Invalid(
            f"topic {topic.name!r} has another number of partitions: {topic.partitions}, not {partitions}",
            hint="the number of partitions is fixed when a topic is created",
        )
    if isinstance(topic, Topic):
        if schema is not None:
            raise Invalid(f"topic {topic.name!r} holds raw records", hint="ask for it without schema")
    elif schema is None:
        raise Invalid(f"topic {topic.name!r} is typed", hint="ask for it with schema=… or schema='latest'")
    if key is not None:
        _check_key(topic, key)


def _check_key(topic: Topic | TypedTopic, key: str) -> None:
    if isinstance(topic, Topic):
        raise no_key_column()
    if topic.key != key:
        has = "no key column" if topic.key is None else f"the key column {topic.key!r}"
        raise Invalid(
            f"topic {topic.name!r} has {has}, not {key!r}", hint="the key column is fixed when a topic is created"
        )


def no_key_column() -> Invalid:
    """Why a raw topic cannot be asked for with a key column."""
    return Invalid("a raw topic has no key column", hint="give each record its key: topic.append(payload, key=…)")
