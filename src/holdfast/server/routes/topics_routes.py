"""Topics over HTTP: list, create, schema, marks, watermark, retention."""

from __future__ import annotations

import asyncio
import base64
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import Invalid, NotFound
from holdfast.log.local_parts import parts_of
from holdfast.log.topics.typed_topic import TypedTopic
from holdfast.log.upkeep.topic_retention import TopicRetention
from holdfast.model.record import Marks, Watermark
from holdfast.owner.segment_verbs import SET_RETENTION, SetRetention, limits_of
from holdfast.server.api_answers import ARROW, JSON, Answer, json_answer
from holdfast.server.api_request import ApiRequest, whole_of
from holdfast.server.http_errors import RefusedRequest
from holdfast.server.request_bodies import schema_of
from holdfast.server.served import AnyKind, Served

if TYPE_CHECKING:
    import pyarrow as pa


class TopicEntry(msgspec.Struct, frozen=True):
    """A topic in the list."""

    name: str
    partitions: int
    typed: bool
    codec: str | None
    """Of a raw topic, what its payloads are: json, text or msgpack; null where they are bytes."""
    key: str | None
    marks: tuple[Marks, ...] | msgspec.UnsetType = msgspec.UNSET
    """Where they are asked for."""


class TopicList(msgspec.Struct, frozen=True):
    """Topics that a token may know of."""

    topics: list[TopicEntry]


class ColumnAnswer(msgspec.Struct, frozen=True):
    """A column of a typed topic."""

    name: str
    type: str
    nullable: bool


class RetentionAnswer(msgspec.Struct, frozen=True):
    """A topic's own policy; null is no limit."""

    bytes_max: int | None
    age_max_s: float | None
    records_max: int | None


class TopicAnswer(msgspec.Struct, frozen=True):
    """A topic."""

    name: str
    partitions: int
    typed: bool
    codec: str | None
    key: str | None
    columns: list[ColumnAnswer] | None
    marks: tuple[Marks, ...]
    first: tuple[int, ...]
    """By partition: the first offset that retention has left."""
    retention: RetentionAnswer | None
    """None where it has no policy of its own: then the settings say."""


class TopicBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A topic to be made."""

    partitions: int | None = None
    first_offset: int = 0
    key: str | None = None
    schema: str | None = None
    codec: str | None = None


class TopicMarks(msgspec.Struct, frozen=True):
    """How far each partition got."""

    marks: tuple[Marks, ...]


class RetentionBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A topic's own policy."""

    bytes_max: int | None = None
    age_max_s: float | None = None
    records_max: int | None = None
    wait_for: tuple[str, ...] = ()
    wait_limit_s: float | None = None
    wait_limit_bytes: int | None = None


async def list_topics(request: ApiRequest, served: Served) -> Answer:
    """The topics that the token's patterns match; with `marks=true` each has its `marks`, too."""
    names = [name for name in await served.read(served.log.topics) if request.caller.sees(name)]
    marks = request.flag("marks")
    return json_answer(TopicList(await served.read(lambda: [_line(served.topic(name), marks) for name in names])))


def _line(topic: AnyKind, marks: bool) -> TopicEntry:
    is_typed = isinstance(topic, TypedTopic)
    key = topic.key if isinstance(topic, TypedTopic) else None
    codec = topic._journal.codecs.get(topic.name)
    return TopicEntry(topic.name, topic.partitions, is_typed, codec, key, topic.marks() if marks else msgspec.UNSET)


async def show_topic(request: ApiRequest, served: Served) -> Answer:
    """One topic, with its columns, marks and retention. `first` is the first offset that is left, by partition;
    `retention` is null where the topic has no policy of its own.
    """
    return json_answer(await served.read(partial(_shown, served, request.params["topic"])))


def _shown(served: Served, name: str) -> TopicAnswer:
    topic = served.topic(name)
    line = _line(topic, marks=False)
    columns = None
    if isinstance(topic, TypedTopic):
        columns = [ColumnAnswer(field.name, str(field.type), field.nullable) for field in topic.schema]
    first = tuple(part.sealed.first_offset for part in topic._partitions.parts)
    return TopicAnswer(
        line.name,
        line.partitions,
        line.typed,
        line.codec,
        line.key,
        columns,
        topic.marks(),
        first,
        _retention(served, name),
    )


def _retention(served: Served, name: str) -> RetentionAnswer | None:
    own = parts_of(served.log).journal.policies.get(name)
    if own is None:
        return None
    age = own.age_max_us / 1_000_000 if own.age_max_us else None
    return RetentionAnswer(own.bytes_max or None, age, own.records_max or None)


async def put_topic(request: ApiRequest, served: Served) -> Answer:
    """Create a topic, or start a new version of its schema: 201 if it was created, 200 if it was there, 409 where it
    cannot be so. `schema` is an Arrow IPC schema message in base64; in its place the body may be the IPC stream of an
    empty table, with the rest in the query. `codec` says what the payloads of a raw topic are: json, text or msgpack.
    """
    name = request.params["topic"]
    found, schema = await _declared(request)

    def create() -> bool:
        is_new = name not in served.log.topics()
        arguments: dict[str, Any] = {
            "partitions": found.partitions,
            "first_offset": found.first_offset,
            "codec": found.codec,
        }
        if schema is not None:
            served.log.topic(name, schema=schema, key=found.key, **arguments)
        elif found.key is not None:
            raise Invalid("a raw topic has no key column", hint="give a schema, or leave 'key' out")
        elif is_new or not isinstance(served.topic(name), TypedTopic):
            served.log.topic(name, **arguments)
        else:
            raise Invalid(f"topic {name!r} is typed", hint="give its schema")
        return is_new

    try:
        is_new = await served.do(request.caller, create)
    except Invalid as error:
        if name in await served.read(served.log.topics):  # it is there, and not as it is asked for
            raise RefusedRequest(409, error.message, hint=error.hint) from None
        raise
    answer = await served.read(partial(_shown, served, name))
    return json_answer(answer, 201 if is_new else 200)


async def _declared(request: ApiRequest) -> tuple[TopicBody, pa.Schema | None]:
    if request.media_type == ARROW:
        key, first = request.text("key"), request.whole("first_offset", 0) or 0
        return TopicBody(request.whole("partitions"), first, key), schema_of(await request.body())
    found = await request.json(TopicBody)
    if found.schema is None:
        return found, None
    try:
        return found, schema_of(base64.b64decode(found.schema, validate=True))
    except ValueError:
        raise Invalid("the schema is not base64", hint="base64 of schema.serialize()") from None


async def schema(request: ApiRequest, served: Served) -> Answer:
    """The newest schema, as an Arrow stream without rows; 404 for a raw topic."""
    topic = served.topic(request.params["topic"])
    if not isinstance(topic, TypedTopic):
        raise NotFound(f"topic {topic.name!r} is raw: it has no schema", hint="its records are bytes")
    return Answer(await served.read(partial(_stream, topic)), ARROW)


def _stream(topic: TypedTopic) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, topic.schema).close()
    return bytes(sink.getvalue())


async def marks(request: ApiRequest, served: Served) -> Answer:
    """How far each partition got."""
    return json_answer(TopicMarks(await served.read(served.topic(request.params["topic"]).marks)))


async def watermark(request: ApiRequest, served: Served) -> Answer:
    """How far a partition is sealed. With `offset` and `timeout` it waits until everything below is; 503 if it is not
    in time.
    """
    topic = served.topic(request.params["topic"])
    number = whole_of(request.params["partition"], "partition")
    offset, timeout = request.whole("offset"), request.seconds("timeout", 0.0) or 0.0
    if offset is None:
        found: Watermark = await served.read(partial(topic.watermark, number))
    else:
        await served.waiting(request, _sealed(topic, number, offset, timeout))
        found = await served.read(partial(topic.wait_sealed, offset, 0.0, partition=number))
    return json_answer(found)


async def _sealed(topic: AnyKind, number: int, offset: int, timeout: float) -> None:
    """Wait so long for it, without a thread; the caller then says whether it came."""
    watch = topic.watch(number)
    deadline = asyncio.get_running_loop().time() + timeout
    while watch.value.offset < offset:
        try:
            async with asyncio.timeout_at(deadline):
                await anext(watch)
        except (TimeoutError, StopAsyncIteration):
            return


async def set_retention(request: ApiRequest, served: Served) -> Answer:
    """Give a topic a policy of its own, durably."""
    found = await request.json(RetentionBody)
    if found.wait_limit_s is not None and found.wait_limit_bytes is not None:
        raise Invalid("the wait has one limit", hint="give wait_limit_s or wait_limit_bytes")
    limit = found.wait_limit_bytes if found.wait_limit_s is None else _span(found.wait_limit_s, "wait_limit_s")
    age = None if found.age_max_s is None else _span(found.age_max_s, "age_max_s")
    wanted = TopicRetention.asked_for(found.bytes_max, age, found.records_max, found.wait_for, limit)
    topic = request.params["topic"]
    retention = SetRetention(topic, limits_of(wanted.policy), wanted.consumers, limits_of(wanted.limit))
    await served.verb(request.caller, SET_RETENTION, retention)
    return Answer(b"{}", JSON)


def _span(seconds: float, name: str) -> timedelta:
    try:
        return timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        raise Invalid(f"{name} is a number of seconds", hint="leave it out for no limit") from None
