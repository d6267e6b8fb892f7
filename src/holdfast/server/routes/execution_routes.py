"""Durable executions over HTTP: look at them, start them, signal them, settle promises, cancel, resume.

Payloads are shown only to those who ask and have `admin`. A promise is settled by its own token, which stands in the
body, never in a URL.
"""

from __future__ import annotations

import base64
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from holdfast.errors import ExecutionError, HoldfastError, Invalid
from holdfast.server.api_answers import JSON, Answer, json_answer
from holdfast.server.api_request import ApiRequest, ClientGone
from holdfast.server.served import Served

_LIMIT, _LIMIT_MAX = 100, 1_000


class StartBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An execution to be begun by a worker."""

    kind: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    id: str | None = None
    queue: str = "default"
    priority: int = 0
    not_before: datetime | None = None


class SignalBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A signal."""

    name: str
    value: Any = None
    signal_id: str | None = None


class CancelBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why it is canceled."""

    reason: str = "canceled by hand"


class ResumeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where it goes on."""

    queue: str = "default"


class ResolveBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A promise, and its value."""

    token: str
    value: Any = None


class RejectBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A promise, and why it has none."""

    token: str
    reason: str = ""


async def list_executions(request: ApiRequest, served: Served) -> Answer:
    """Executions, the newest first; `status` may be repeated."""
    statuses = request.query.getlist("status") or None
    limit = min(request.whole("limit", _LIMIT) or 0, _LIMIT_MAX)
    found = await served.read(
        lambda: served.log.executions.list(status=statuses, kind=request.text("kind"), limit=limit)
    )
    return json_answer({"executions": found})


async def show_execution(request: ApiRequest, served: Served) -> Answer:
    """All that is durable of one: summary, steps, events; with `reveal=true` (`admin`) payloads, too."""
    reveal = request.flag("reveal")
    if reveal:
        request.caller.require(("admin",), "_executions")
    found = await served.read(lambda: served.log.executions.show(request.params["id"], reveal=reveal))
    return _plain(found)


async def start_execution(request: ApiRequest, served: Served) -> Answer:
    """Ask for an execution that a worker runs: 201. With an `id` of your own, asking twice is asking once."""
    body = await request.json(StartBody)
    if {"id", "queue", "priority", "not_before"} & body.kwargs.keys():
        raise Invalid("an argument has the name of an option", hint="give it in args")
    if body.not_before is not None and body.not_before.tzinfo is None:
        raise Invalid("not_before has a time zone", hint="2026-01-31T12:00:00Z")
    start = partial(
        served.log.executions.start,
        body.kind,
        *body.args,
        id=body.id,
        queue=body.queue,
        priority=body.priority,
        not_before=body.not_before,
        **body.kwargs,
    )
    return json_answer({"id": await served.read(start)}, 201)


async def execution_result(request: ApiRequest, served: Served) -> Answer:
    """Wait for its end, at most 60 s: `{"value": …}`; 409 with what it raised, 503 if it has not ended."""
    timeout = request.seconds("timeout", 0.0)
    try:
        result = served.log.executions.result_async(request.params["id"], timeout)
        value = await served.waiting(request, result)
        if value is None:
            served.check_ready()
    except (HoldfastError, ClientGone):
        raise
    except Exception as error:  # what its program raised
        raise ExecutionError(f"the execution failed: {type(error).__name__}", hint="see its steps") from None
    return _plain({"value": value})


async def signal(request: ApiRequest, served: Served) -> Answer:
    """Send a signal: `{"sent": true}`, false where this `signal_id` was sent before."""
    body = await request.json(SignalBody)
    send = partial(served.log.executions.signal, request.params["id"], body.name, body.value, signal_id=body.signal_id)
    return json_answer({"sent": await served.read(send)})


async def cancel(request: ApiRequest, served: Served) -> Answer:
    """End it, for good: `{"status"}`."""
    body = await request.json(CancelBody)
    return json_answer(
        {"status": await served.read(partial(served.log.executions.cancel, request.params["id"], body.reason))}
    )


async def resume(request: ApiRequest, served: Served) -> Answer:
    """Let a worker go on with it."""
    body = await request.json(ResumeBody)
    await served.read(partial(served.log.executions.resume, request.params["id"], queue=body.queue))
    return Answer(b"{}", JSON)


async def resolve(request: ApiRequest, served: Served) -> Answer:
    """Settle a promise with a value: `{"settled": true}`, false where it was settled before."""
    body = await request.json(ResolveBody)
    return json_answer({"settled": await served.read(partial(served.log.executions.resolve, body.token, body.value))})


async def reject(request: ApiRequest, served: Served) -> Answer:
    """Settle a promise with a reason: the same."""
    body = await request.json(RejectBody)
    return json_answer({"settled": await served.read(partial(served.log.executions.reject, body.token, body.reason))})


def _plain(value: Any) -> Answer:
    """Values of programs as JSON; what JSON does not have is shown as text."""
    return Answer(msgspec.json.encode(value, enc_hook=_shown), JSON)


def _shown(value: Any) -> Any:
    if isinstance(value, msgspec.msgpack.Ext):
        return base64.b64encode(value.data).decode()
    return f"<{type(value).__name__}>"
