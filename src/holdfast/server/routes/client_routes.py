"""What `holdfast.connect` asks for beside the routes for everybody: the limits of this log, and how a topic is.

`GET /v1/client/topics/{topic}` has all that a client plans its reads with. With `wait` it is a long poll: answered when
a mark has moved since the answer that `known` names. Those who wait count as followers, not as requests at work.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from functools import partial
from hashlib import blake2b

import msgspec

import holdfast
from holdfast.journal.state.partition import Partition
from holdfast.log.local_parts import parts_of
from holdfast.log.producers.producer import ProducerStatus
from holdfast.log.topics.typed_topic import TypedTopic
from holdfast.remote.reading.topic_state import MarksRow, SchemaText, TopicState
from holdfast.remote.server_info import CLIENT_LIMITS, ServerInfo
from holdfast.server.api_answers import Answer, encode, json_answer
from holdfast.server.api_request import ApiRequest
from holdfast.server.routes.log_verbs import API_VERSION
from holdfast.server.served import AnyKind, Served

_LOOK_AGAIN_S = 1.0
"""However far the news of another process are."""


async def client_info(request: ApiRequest, served: Served) -> Answer:
    """This server and its log: what a client checks before it sends."""
    journal = parts_of(served.log).journal
    limits = {name: getattr(journal.settings, name) for name in CLIENT_LIMITS}
    shipping = journal.shipping_state
    return json_answer(
        ServerInfo(
            holdfast.__version__,
            API_VERSION,
            served.log.id,
            served.log.read_only,
            shipping.ships,
            shipping.timeout * 1000,
            {**limits, "body_bytes_max": served.settings.body_bytes_max},
        )
    )


class ProducersAnswer(msgspec.Struct, frozen=True):
    """All producers."""

    producers: list[ProducerStatus]


async def list_producers(request: ApiRequest, served: Served) -> Answer:
    """How far all producers are."""
    return json_answer(ProducersAnswer(await served.read(served.log.producers)))


async def forget_producer(request: ApiRequest, served: Served) -> Answer:
    """Let go of a producer: 204."""
    await served.do(request.caller, partial(served.log.forget_producer, request.params["producer"]))
    return Answer(status=204)


async def topic_state(request: ApiRequest, served: Served) -> Answer:
    """A topic as it is; with `wait` (seconds) and `known` (a `tag`), as soon as it has moved. Those who wait count as
    followers.
    """
    topic, known = served.topic(request.params["topic"]), request.text("known")
    state = await served.read(partial(_state, topic))
    wait = request.seconds("wait", 0.0) or 0.0
    if wait and known == state.tag:
        with served.followers.held(request.caller):
            state = await served.waiting(request, _moved(served, topic, state, wait)) or state
    return Answer(encode(state))


async def _moved(served: Served, topic: AnyKind, state: TopicState, wait: float) -> TopicState:
    loop, known = asyncio.get_running_loop(), state.tag
    deadline = loop.time() + wait
    signals = (topic._partitions.parts[0].signal, topic._journal.shipping_state.signal)
    while state.tag == known and loop.time() < deadline and not served.draining.is_set():
        left = min(_LOOK_AGAIN_S, deadline - loop.time())
        futures = [signal.future(loop, left) for signal in signals]
        state = await served.read(partial(_state, topic))  # after it has registered: nothing is missed
        if state.tag == known:
            await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
            state = await served.read(partial(_state, topic))
        for future in futures:
            future.cancel()
    return state


def _state(topic: AnyKind) -> TopicState:
    parts = topic._partitions.parts
    marks = tuple(
        MarksRow(
            one.appended,
            one.durable,
            one.sealed,
            one.shipped,
            one.settled,
            part.sealed.first_offset,
            part.sealed.segments,
        )
        for one, part in zip(topic.marks(), parts, strict=True)
    )
    rows = topic._journal.schemas.get(topic.name, ())
    schemas = tuple(SchemaText(row.fingerprint.hex(), b64encode(row.definition).decode()) for row in rows)
    ids = tuple(part.id for part in parts)
    key = topic.key if isinstance(topic, TypedTopic) else None
    tag = blake2b(encode((len(rows), [_moving(part) for part in parts])), digest_size=12).hexdigest()
    codec = topic._journal.codecs.get(topic.name, "")
    return TopicState(topic.name, len(parts), isinstance(topic, TypedTopic), codec, key, marks, ids, schemas, tag)


def _moving(part: Partition) -> tuple[int, ...]:
    """What a client waits for."""
    return part.durable, part.sealed.sealed_offset, part.sealed.first_offset, part.shipped, part.settled
