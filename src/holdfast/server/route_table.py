"""All routes: method, path, who may, what it is about, its handler, and what goes in and out.

The application finds handlers here, and the OpenAPI document is made of it, so neither can know a route that the other
does not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple

from holdfast.log.consumers.consumer_status import ConsumerStatus
from holdfast.model.record import Watermark
from holdfast.model.record_json import JsonRecord
from holdfast.owner.verb import Right, Verb
from holdfast.owner.verbs import TABLE
from holdfast.remote.reading.topic_state import TopicState
from holdfast.remote.server_info import ServerInfo
from holdfast.server.api_answers import ARROW, BYTES, EVENTS, JSON, NDJSON, Answer, Stream
from holdfast.server.api_request import WAIT_SECONDS_MAX, ApiRequest
from holdfast.server.routes import (
    appending,
    call_routes,
    client_routes,
    console_routes,
    consumer_routes,
    execution_changes,
    execution_routes,
    group_routes,
    log_verbs,
    page_routes,
    producer_routes,
    reading_records,
    space_routes,
    topics_routes,
)
from holdfast.server.served import WORK_SECONDS, Served

Handler = Callable[[ApiRequest, Served], Awaitable[Answer | Stream]]
About = Literal["open", "any", "topic", "log", "executions", "spaces", "handler"]


class RouteDefinition(NamedTuple):
    """One route."""

    method: str
    path: str
    about: About
    """What the scopes are needed for: a topic of the path, the whole log …; `open` needs no token, `handler` decides
    by itself, `any` takes every token."""
    scopes: tuple[str, ...]
    handler: Handler
    summary: str
    body: Any = None
    """The type of a JSON body."""
    answer: Any = None
    """The type of a JSON answer."""
    query: tuple[str, ...] = ()
    forms: tuple[str, ...] = (JSON,)
    """What it can answer with."""
    takes: tuple[str, ...] = (JSON,)
    """What a body can be."""
    is_stream: bool = False
    changes_topic: bool = False
    """Whether it appends to the topic of the path or changes it: that nobody may, where it is holdfast's own."""
    writes: bool = False
    """Whether nobody knows what became of it if it takes too long."""
    seconds_more: float | None = 0.0
    """How much longer it may take, because it waits for something; None: what it waits for has a limit of its own."""


_READ: tuple[str, ...] = ("read",)
_APPEND: tuple[str, ...] = ("append",)
_EITHER: tuple[str, ...] = ("read", "append", "consume")
_CONSUME: tuple[str, ...] = ("consume",)
_SEE: tuple[str, ...] = ("read", "consume")
_ADMIN: tuple[str, ...] = ("admin",)
_TOPIC = "/v1/topics/{topic}"
_CONSUMER = _TOPIC + "/consumers/{name}"
_MEMBER = _CONSUMER + "/members/{member}"
_PAGE = (
    "start", "end", "since", "until", "key", "partition", "limit", "bytes_max", "reverse", "columns", "wait",
)  # fmt: skip
_Route = RouteDefinition


def _call(verb: Verb[Any, Any]) -> RouteDefinition:
    """A verb as `holdfast.connect` asks for it."""
    assert verb.right is not None
    return _Route(
        "POST",
        f"/v1/calls/{verb.name}",
        "handler",
        _scopes(verb.right),
        call_routes.call(verb),
        f"The verb {verb.name}",
        takes=(call_routes.MSGPACK,),
        forms=(call_routes.MSGPACK,),
        writes=True,
        seconds_more=WORK_SECONDS if verb.is_long else WAIT_SECONDS_MAX,
    )


def _scopes(right: Right) -> tuple[str, ...]:
    return ("append", "admin") if callable(right.scopes) else right.scopes


def _verb(verb: Verb[Any, Any]) -> RouteDefinition:
    """A verb as people ask for it: who may, and about what, the table of verbs decides."""
    assert verb.right is not None
    assert verb.route is not None
    method, _, path = verb.route.partition(" ")
    more = WORK_SECONDS if verb.is_long else 0.0
    body = None if method == "GET" else verb.request
    summary = (verb.handler.__doc__ or verb.name).rstrip(".")
    return _Route(
        method, path, "handler", _scopes(verb.right), log_verbs.verb(verb.name), summary, body, seconds_more=more
    )


ROUTES: tuple[RouteDefinition, ...] = (
    _Route(
        "POST", _TOPIC + "/records", "topic", _APPEND, appending.append, "Append records or rows",
        JsonRecord, appending.AppendAnswer, ("partition", "durability", "timeout", "time"),
        takes=(JSON, NDJSON, BYTES, ARROW), changes_topic=True, writes=True, seconds_more=None,
    ),
    _Route(
        "GET", _TOPIC + "/records", "topic", _SEE, reading_records.read, "One page of records or rows",
        None, reading_records.PageAnswer, _PAGE, forms=(JSON, NDJSON, ARROW), seconds_more=WAIT_SECONDS_MAX,
    ),
    _Route(
        "GET", _TOPIC + "/records/{partition}/{offset}", "topic", _READ, reading_records.one_record,
        "One record", forms=(BYTES, JSON),
    ),
    _Route("GET", _TOPIC + "/latest", "topic", _READ, reading_records.latest, "The newest record with a key",
           query=("key", "partition")),
    _Route(
        "GET", _TOPIC + "/follow", "topic", _READ, reading_records.follow, "Records as they become durable",
        query=("start", "partition"), forms=(EVENTS, NDJSON), is_stream=True,
    ),
    _Route("GET", "/v1/producers/{producer}", "handler", _APPEND, producer_routes.show_producer,
           "The last sequence of a producer", None, producer_routes.ProducerAnswer),
    _Route("GET", "/v1/topics", "any", (), topics_routes.list_topics, "All topics", None, topics_routes.TopicList,
           ("marks",)),
    _Route("GET", _TOPIC, "topic", _EITHER, topics_routes.show_topic, "One topic", None, topics_routes.TopicAnswer),
    _Route(
        "PUT", _TOPIC, "topic", _ADMIN, topics_routes.put_topic, "Create a topic, or a new version of its schema",
        topics_routes.TopicBody, topics_routes.TopicAnswer, ("partitions", "key", "first_offset"), takes=(JSON, ARROW),
        changes_topic=True, writes=True,
    ),
    _Route("GET", _TOPIC + "/schema", "topic", _EITHER, topics_routes.schema, "A typed topic's schema", forms=(ARROW,)),
    _Route("GET", _TOPIC + "/marks", "topic", _EITHER, topics_routes.marks, "How far each partition got", None,
           topics_routes.TopicMarks),
    _Route("GET", _TOPIC + "/watermark/{partition}", "topic", _READ, topics_routes.watermark,
           "How far a partition is sealed", None, Watermark, ("offset", "timeout"), seconds_more=WAIT_SECONDS_MAX),
    _Route("PUT", _TOPIC + "/retention", "handler", _ADMIN, topics_routes.set_retention, "A topic's retention policy",
           topics_routes.RetentionBody, writes=True),
    _Route("GET", "/v1", "any", (), log_verbs.root, "What is served, and what the token allows", None,
           log_verbs.RootAnswer),
    _Route("POST", "/v1/groups", "handler", _APPEND, group_routes.write_group, "A group of a client",
           takes=(call_routes.MSGPACK,), forms=(call_routes.MSGPACK,), writes=True, seconds_more=WAIT_SECONDS_MAX),
    _Route("GET", "/v1/client", "any", (), client_routes.client_info, "What clients must know", None,
           ServerInfo),
    _Route("GET", "/v1/client/producers", "log", _READ, client_routes.list_producers, "How far all producers are", None,
           client_routes.ProducersAnswer),
    _Route("DELETE", "/v1/client/producers/{producer}", "log", _ADMIN, client_routes.forget_producer,
           "Let go of a producer", writes=True),
    _Route("GET", "/v1/client/topics/{topic}", "topic", _EITHER, client_routes.topic_state,
           "A topic as clients plan with it; with `wait`, once it has moved", None, TopicState,
           ("wait", "known"), is_stream=True),
    _Route("POST", "/v1/client/executions", "handler", _APPEND, execution_changes.ask, "A change of an execution",
           takes=(call_routes.MSGPACK,), forms=(call_routes.MSGPACK,), writes=True),
    _Route("GET", "/v1/stats", "log", _READ, log_verbs.stats, "Counters and levels"),
    *(_verb(verb) for verb in TABLE if verb.route is not None),
    _Route("POST", "/v1/flush", "log", _APPEND, log_verbs.flush, "Wait until what is queued is durable",
           log_verbs.TimeoutBody, seconds_more=WAIT_SECONDS_MAX),
    _Route("POST", "/v1/transactions", "handler", _APPEND, space_routes.transact, "Operations that commit together",
           space_routes.TransactionBody, space_routes.TransactionAnswer, writes=True, seconds_more=WAIT_SECONDS_MAX),
    _Route("GET", "/v1/spaces", "spaces", _READ, space_routes.spaces, "The names of all spaces"),
    _Route("GET", "/v1/spaces/{space}", "spaces", _READ, space_routes.space_items, "All items of a space"),
    _Route("GET", "/v1/spaces/{space}/item", "spaces", _READ, space_routes.space_item, "One item of a space", None,
           space_routes.ItemAnswer, ("key",)),
    _Route("GET", "/v1/consumers", "any", (), consumer_routes.list_consumers, "How far consumers are",
           query=("topic",)),
    _Route("GET", _CONSUMER, "topic", _SEE, consumer_routes.show_consumer, "One consumer", None, ConsumerStatus),
    _Route("DELETE", _CONSUMER, "handler", _ADMIN, consumer_routes.forget_consumer, "Forget a consumer's position",
           writes=True),
    _Route("POST", _CONSUMER + "/members", "topic", _CONSUME, consumer_routes.join, "Make a member of a consumer",
           consumer_routes.MemberBody, consumer_routes.MemberAnswer, seconds_more=WAIT_SECONDS_MAX),
    _Route("GET", _MEMBER, "topic", _CONSUME, consumer_routes.show_member, "A member", None,
           consumer_routes.MemberAnswer),
    _Route("DELETE", _MEMBER, "topic", _CONSUME, consumer_routes.leave, "Let a member go"),
    _Route("POST", _MEMBER + "/poll", "topic", _CONSUME, consumer_routes.poll, "The next records of a member",
           consumer_routes.PollBody, reading_records.PageAnswer, forms=(JSON, ARROW), seconds_more=WAIT_SECONDS_MAX),
    _Route("POST", _MEMBER + "/commit", "topic", _CONSUME, consumer_routes.commit, "Commit how far a member got",
           consumer_routes.CommitBody, writes=True, seconds_more=WAIT_SECONDS_MAX),
    _Route("POST", _MEMBER + "/seek", "topic", _CONSUME, consumer_routes.seek, "Go on from somewhere else",
           consumer_routes.SeekBody),
    _Route("GET", "/v1/executions", "executions", _READ, execution_routes.list_executions, "Executions",
           query=("status", "kind", "limit")),
    _Route("POST", "/v1/executions", "executions", _APPEND, execution_routes.start_execution, "Start an execution",
           execution_routes.StartBody, writes=True),
    _Route("GET", "/v1/executions/{id}", "executions", _READ, execution_routes.show_execution, "One execution",
           query=("reveal",)),
    _Route("GET", "/v1/executions/{id}/result", "executions", _ADMIN, execution_routes.execution_result,
           "Wait for its end", query=("timeout",), seconds_more=WAIT_SECONDS_MAX),
    _Route("POST", "/v1/executions/{id}/signal", "executions", _APPEND, execution_routes.signal, "Send a signal",
           execution_routes.SignalBody, writes=True),
    _Route("POST", "/v1/executions/{id}/cancel", "executions", _ADMIN, execution_routes.cancel, "Cancel it",
           execution_routes.CancelBody, writes=True),
    _Route("POST", "/v1/executions/{id}/resume", "executions", _ADMIN, execution_routes.resume, "Resume it",
           execution_routes.ResumeBody, writes=True),
    _Route("POST", "/v1/promises/resolve", "executions", _APPEND, execution_routes.resolve, "Resolve a promise",
           execution_routes.ResolveBody, writes=True),
    _Route("POST", "/v1/promises/reject", "executions", _APPEND, execution_routes.reject, "Reject a promise",
           execution_routes.RejectBody, writes=True),
    *(_call(verb) for verb in TABLE if verb.right is not None),
    _Route("GET", "/v1/events", "any", (), call_routes.events, "The events of a client", query=("after", "wait"),
           forms=(call_routes.MSGPACK,), is_stream=True),
    _Route("DELETE", "/v1/events", "any", (), call_routes.goodbye, "End a client's events"),
    _Route("GET", "/metrics", "log", _READ, log_verbs.metrics, "Metrics for Prometheus", forms=("text/plain",)),
    _Route("GET", "/healthz", "open", (), log_verbs.alive, "The process answers"),
    _Route("GET", "/readyz", "open", (), log_verbs.ready, "The log takes records"),
    _Route("GET", "/openapi.json", "open", (), page_routes.document, "This document"),
    _Route("GET", "/docs", "open", (), page_routes.page, "The same as a page", forms=("text/html",)),
    _Route("GET", "/", "open", (), console_routes.console, "The console: a page that shows the log",
           forms=("text/html",)),
    _Route("GET", "/console/{file}", "open", (), console_routes.console_file, "What the console is made of",
           forms=tuple(console_routes.TYPES.values())),
)  # fmt: skip
