"""What concerns the whole log, over HTTP: stats, sealing, shipping, retention, reconciling, compaction; and the server:
is it alive, is it ready, what does it count.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

import holdfast
from holdfast.server.api_answers import JSON, Answer, json_answer
from holdfast.server.api_request import ApiRequest
from holdfast.server.http_errors import without_places
from holdfast.server.served import Served
from holdfast.telemetry.openmetrics import render

API_VERSION = 1
WORK_SECONDS = 600.0
"""How long a request waits for long work; the work itself goes on."""


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


class SealBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to seal."""

    topic: str | None = None
    timeout: float = 60.0


class TimeoutBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long to wait."""

    timeout: float | None = None


class RetainBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether to remove anything."""

    dry_run: bool = False


class ReconcileBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to compare."""

    remote: bool = False
    fix: bool = False
    deep: bool = False
    limit: int | None = None


class CompactBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to join."""

    topic: str | None = None
    target_size: str | int = "128MiB"
    dry_run: bool = False


async def root(request: ApiRequest, served: Served) -> Answer:
    """What is served here, and what the token allows."""
    limits, caller = served.settings, request.caller
    return json_answer(
        RootAnswer(
            holdfast.__version__,
            API_VERSION,
            served.log.id,
            served.log.read_only,
            LimitsAnswer(limits.body_bytes_max, limits.page_records_max, limits.page_bytes_max),
            TokenAnswer(caller.id, sorted(caller.scopes), caller.topics),
        )
    )


async def stats(request: ApiRequest, served: Served) -> Answer:
    """Counters and levels."""
    return _told(await served.read(served.log.stats))


async def metrics(request: ApiRequest, served: Served) -> Answer:
    """The same and more for Prometheus: every metric of the log that this process has."""
    accept = request.header(b"accept") or ""
    content, kind = await served.read(partial(render, [served.log], accept=accept))
    return Answer(content, kind)


async def seal(request: ApiRequest, served: Served) -> Answer:
    """Seal what is durable now, of a topic or of all."""
    asked = await request.json(SealBody)
    request.caller.require(("admin",), asked.topic)
    await served.do(request.caller, partial(served.log.seal, asked.topic, timeout=min(asked.timeout, WORK_SECONDS)))
    return Answer(b"{}", JSON)


async def ship(request: ApiRequest, served: Served) -> Answer:
    """Wait until what is sealed now is settled on the store."""
    asked = await request.json(TimeoutBody)
    await served.do(
        request.caller, partial(served.log.ship, min(60.0 if asked.timeout is None else asked.timeout, WORK_SECONDS))
    )
    return Answer(b"{}", JSON)


async def flush(request: ApiRequest, served: Served) -> Answer:
    """Wait until everything queued so far is durable."""
    asked = await request.json(TimeoutBody)
    await served.do(request.caller, partial(served.log.flush, asked.timeout))
    return Answer(b"{}", JSON)


async def retain(request: ApiRequest, served: Served) -> Answer:
    """Apply retention, or say what would go."""
    asked = await request.json(RetainBody)
    return json_answer(await served.do(request.caller, partial(served.log.retain, dry_run=asked.dry_run)))


async def reconcile(request: ApiRequest, served: Served) -> Answer:
    """Compare the manifest with what is stored."""
    asked = await request.json(ReconcileBody)
    compare = partial(served.log.reconcile, remote=asked.remote, fix=asked.fix, deep=asked.deep, limit=asked.limit)
    return _told(await served.do(request.caller, compare))


async def compact(request: ApiRequest, served: Served) -> Answer:
    """Join small segments."""
    asked = await request.json(CompactBody)
    request.caller.require(("admin",), asked.topic)
    report = await served.do(
        request.caller, partial(served.log.compact, asked.topic, target_size=asked.target_size, dry_run=asked.dry_run)
    )
    return _told(msgspec.structs.replace(report, root=""))


async def unshipped(request: ApiRequest, served: Served) -> Answer:
    """What is durable here and not known to be on the store."""
    return json_answer({"unshipped": await served.read(served.log.unshipped)})


async def alive(request: ApiRequest, served: Served) -> Answer:
    """The process answers."""
    return Answer(b'{"status":"alive"}', JSON)


async def ready(request: ApiRequest, served: Served) -> Answer:
    """The log is open and takes records."""
    served.check_ready()
    return Answer(b'{"status":"ready"}', JSON)


def _told(report: object) -> Answer:
    """A report whose texts may quote errors: without paths of this machine."""
    return json_answer(_shown(msgspec.to_builtins(report)))


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return without_places(value)
    if isinstance(value, dict):
        return {name: _shown(item) for name, item in value.items()}
    return [_shown(item) for item in value] if isinstance(value, list | tuple) else value
