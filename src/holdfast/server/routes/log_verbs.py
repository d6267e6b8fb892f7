"""What concerns the whole log, over HTTP: its verbs, as the table of verbs has them, and stats; and the server: is it
alive, is it ready, what does it count.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

import holdfast
from holdfast.journal.commit.owner_calls import Nothing
from holdfast.owner.machine_paths import without_places_in
from holdfast.owner.verbs import VERBS
from holdfast.server.api_answers import JSON, Answer, json_answer
from holdfast.server.api_request import ApiRequest
from holdfast.server.record_pages import RECORDS_MAX
from holdfast.server.served import Served
from holdfast.telemetry.openmetrics import render

API_VERSION = 1
Handler = Callable[[ApiRequest, Served], Awaitable[Answer]]


class LimitsAnswer(msgspec.Struct, frozen=True):
    """What a client must keep to."""

    body_bytes_max: int
    page_records_max: int
    page_bytes_max: int


class TokenAnswer(msgspec.Struct, frozen=True):
    """What the token allows."""

    id: str
    scopes: list[str]
    topics: tuple[str, ...]


class RootAnswer(msgspec.Struct, frozen=True):
    """What is served here."""

    holdfast: str
    api: int
    log: str
    read_only: bool
    limits: LimitsAnswer
    token: TokenAnswer


class TimeoutBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long to wait."""

    timeout: float | None = None


async def root(request: ApiRequest, served: Served) -> Answer:
    """What is served here, and what the token allows."""
    limits, caller = served.settings, request.caller
    return json_answer(
        RootAnswer(
            holdfast.__version__,
            API_VERSION,
            served.log.id,
            served.log.read_only,
            LimitsAnswer(limits.body_bytes_max, RECORDS_MAX, limits.page_bytes_max),
            TokenAnswer(caller.id, sorted(caller.scopes), caller.topics),
        )
    )


async def stats(request: ApiRequest, served: Served) -> Answer:
    """What `log.stats()` says."""
    return json_answer(without_places_in(await served.read(served.log.stats)))


async def metrics(request: ApiRequest, served: Served) -> Answer:
    """Every metric of the log that this process has, as Prometheus text or OpenMetrics, as `Accept` asks."""
    accept = request.header(b"accept") or ""
    content, kind = await served.read(partial(render, [served.log], accept=accept))
    return Answer(content, kind)


async def flush(request: ApiRequest, served: Served) -> Answer:
    """Wait until everything queued so far is durable."""
    body = await request.json(TimeoutBody)
    await served.do(request.caller, partial(served.log.flush, body.timeout))
    return Answer(b"{}", JSON)


def verb(name: str) -> Handler:
    """A route that is a verb of the log: its body is the verb's request, its answer what the verb returns."""
    kind = VERBS[name].request

    async def handler(request: ApiRequest, served: Served) -> Answer:
        body = kind() if kind is Nothing else await request.json(kind)
        found = await served.verb(request.caller, VERBS[name], body)
        return Answer(b"{}", JSON) if isinstance(found, Nothing) else json_answer(found)

    handler.__name__ = name
    return handler


async def alive(request: ApiRequest, served: Served) -> Answer:
    """The process answers: 200."""
    return Answer(b'{"status":"alive"}', JSON)


async def ready(request: ApiRequest, served: Served) -> Answer:
    """The log is open and takes records: 200; 503 with an error body where it is closed, fenced or poisoned, or the
    server is shutting down.
    """
    served.check_ready()
    return Answer(b'{"status":"ready"}', JSON)
