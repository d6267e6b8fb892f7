"""One request, from its arrival to its answer: is it wanted here, who asks, may they, what became of it.

The order matters. Where a request comes from is checked before who sends it, that before what it asks for, and all of
it before a byte of the body is read. Whatever is raised becomes an answer; what is no error of holdfast's own is a
defect, of which the client gets a number and the log the type and place. Logs have the route's pattern, the
status, the token's id and that number: nothing that a client chose, and no payload, key or token.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import MutableMapping
from contextlib import suppress
from itertools import count
from typing import Any
from urllib.parse import unquote

from starlette.routing import Match, Route

from holdfast.errors import Full, HoldfastError, NotFound, OutcomeUnknown, Unavailable
from holdfast.model.topic_name import check_users, is_name
from holdfast.remote.http.error_message import ErrorBody
from holdfast.server.api_answers import Answer, Send, Stream, bound, json_answer
from holdfast.server.api_request import ApiRequest, ClientGone, Receive
from holdfast.server.http_errors import RefusedRequest, body_of, headers_of, kind_of, status_of
from holdfast.server.request_caller import EXECUTIONS, SPACES
from holdfast.server.route_table import ROUTES, RouteDefinition
from holdfast.server.served import Served

_log = logging.getLogger("holdfast.server")
_LOGGED_FROM = 500
_LARGE_BYTES = 64 * 1024


class Application:
    """The server's ASGI application."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._routes = [(_route(definition), definition) for definition in ROUTES]
        self._prefix = served.clock.random_bytes(3).hex() + "-"
        self._numbers = count(1)
        self._known: dict[tuple[str, str], tuple[RouteDefinition, dict[str, Any]]] = {}

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        served = self._served
        number = self._prefix + format(next(self._numbers), "x")
        request = ApiRequest(scope, receive, number, served.settings, served.bodies)
        send = bound(send, request.headers)
        pattern, definition = "-", None
        try:
            try:
                definition, request.params = self._match(scope)
                pattern = definition.path
                answer = await self._answer(definition, request)
            finally:
                request.release()
            await self._send(answer, definition, request, send)
        except ClientGone:
            return
        except HoldfastError as error:
            self._note(definition, request, status_of(error))
            await self._refuse(error, request, pattern, send)
        except Exception as error:
            self._note(definition, request, 500)
            _log.error(
                "a request failed: unexpected %s at %s route=%s request=%s",
                type(error).__name__,
                _place(error),
                pattern,
                number,
                extra={"action": "request_defect"},
            )
            body = ErrorBody("Defect", "the server failed", "the server's log says more", {}, number)
            await json_answer(body, 500).send(send, number, close=True)

    def _note(self, definition: RouteDefinition | None, request: ApiRequest, status: int) -> None:
        if definition is not None and self._served.audit.is_wanted:
            caller = getattr(request, "caller", None)
            self._served.audit.note(caller, definition, _path_topic(request), status)

    # -- finding the route --------------------------------------------------------------------------------

    def _match(self, scope: MutableMapping[str, Any]) -> tuple[RouteDefinition, dict[str, Any]]:
        path = scope["raw_path"].decode("latin-1")  # a name in it may hold a slash, which is encoded here alone
        place = (scope["method"], path)
        found = self._known.get(place)
        if found is None:
            found = self._look_up({**scope, "path": path})
            if len(self._known) >= 1_000:  # paths are what clients make of them
                self._known.clear()
            self._known[place] = found
        definition, params = found
        return definition, params

    def _look_up(self, scope: MutableMapping[str, Any]) -> tuple[RouteDefinition, dict[str, Any]]:
        allowed: set[str] = set()
        for route, definition in self._routes:
            match, child = route.matches(scope)
            if match is Match.FULL:
                params: dict[str, Any] = child["path_params"]
                return definition, {name: unquote(value) for name, value in params.items()}
            if match is Match.PARTIAL:
                allowed |= route.methods or set()
        if not allowed:
            raise NotFound("there is no such route", hint="GET /docs lists them")
        methods = ", ".join(sorted(allowed))
        raise RefusedRequest(405, "this route has other methods", hint=f"it has {methods}", headers={"allow": methods})

    # -- one request --------------------------------------------------------------------------------------

    async def _answer(self, definition: RouteDefinition, request: ApiRequest) -> Answer | Stream:
        served = self._served
        served.guard.check(request.headers)
        if definition.about == "open":
            return await definition.handler(request, served)
        request.caller = served.access.caller(request.header(b"authorization"))
        if (meant := request.header(b"holdfast-log")) is not None and meant != served.log.id:
            raise RefusedRequest(421, "this server has another log than the one that is meant", hint=_OTHER_LOG)
        _claim(request)
        _require(definition, request)
        if served.draining.is_set():
            served.check_ready()
        if definition.is_stream:
            return await definition.handler(request, served)
        served.requests.take(request.caller)
        try:
            if definition.seconds_more is None:
                return await definition.handler(request, served)
            return await self._within_time(definition, request, definition.seconds_more)
        finally:
            served.requests.give_back(request.caller)

    async def _within_time(
        self, definition: RouteDefinition, request: ApiRequest, seconds_more: float
    ) -> Answer | Stream:
        seconds = self._served.settings.request_timeout_ms / 1000 + seconds_more
        try:
            async with asyncio.timeout(seconds):
                return await definition.handler(request, self._served)
        except TimeoutError:
            if definition.writes:
                raise OutcomeUnknown(f"no end within {seconds:g} s") from None
            raise Unavailable(f"no end within {seconds:g} s", hint="ask for less, or again later") from None

    async def _send(
        self, answer: Answer | Stream, definition: RouteDefinition, request: ApiRequest, send: Send
    ) -> None:
        """Send an answer. A large one has a place until its client has taken it, or its time is over: else those who
        take nothing would fill the memory.
        """
        settings = self._served.settings
        if isinstance(answer, Stream):
            self._note(definition, request, 200)
            await self._stream(answer, request, send)
        elif len(answer.body) <= _LARGE_BYTES or definition.about == "open":
            self._note(definition, request, answer.status)
            await answer.send(send, request.id, close=request.has_body_left)
        else:
            with self._served.answers.held(request.caller, min(len(answer.body), settings.page_bytes_max)):
                self._note(definition, request, answer.status)
                with suppress(TimeoutError):
                    async with asyncio.timeout(settings.send_timeout_ms / 1000):
                        await answer.send(send, request.id, close=request.has_body_left)

    async def _stream(self, answer: Stream, request: ApiRequest, send: Send) -> None:
        """Send until the stream ends or the client goes."""
        sending = asyncio.ensure_future(answer.send(send, request.id))
        gone = asyncio.ensure_future(request.gone())
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, gone):
                task.cancel()
            results = await asyncio.gather(sending, gone, return_exceptions=True)
            await answer.parts.aclose()  # type: ignore[attr-defined]  # they are generators
        failure = results[0]
        if isinstance(failure, Exception):
            kind = type(failure).__name__
            _log.warning("a stream broke off: %s request=%s", kind, request.id, extra={"action": "stream_broke"})

    async def _refuse(self, error: HoldfastError, request: ApiRequest, pattern: str, send: Send) -> None:
        status = status_of(error)
        if status >= _LOGGED_FROM:
            caller = getattr(request, "caller", None)
            _log.warning(
                "a request was not done: %s status=%d route=%s token=%s request=%s",
                kind_of(error),
                status,
                pattern,
                "-" if caller is None else caller.id,
                request.id,
                extra={"action": "request_failed"},
            )
        sees = request.caller.sees if hasattr(request, "caller") else _nobody
        answer = json_answer(body_of(error, request.id, sees), status, headers_of(error, status))
        try:
            await request.discard()
        except ClientGone:
            return
        await answer.send(send, request.id, close=request.has_body_left)


def _route(definition: RouteDefinition) -> Route:
    return Route(definition.path, _nothing, methods=[definition.method])


async def _nothing(*_: Any) -> None:
    """Starlette finds routes here; it does not call them."""


_OTHER_LOG = "another log is served at this address now; connect again, to the one that you mean"


def _path_topic(request: ApiRequest) -> str | None:
    """The topic that a path names, if it could be one: what else a client writes there is not repeated."""
    topic = request.params.get("topic")
    return topic if topic is not None and is_name(topic) else None


def _claim(request: ApiRequest) -> None:
    """Count the connection among its token's; one too many is closed with the answer."""
    claim = request.scope.get("state", {}).get("claim")
    try:
        if claim is not None:
            claim(request.caller)
    except Full as error:
        raise RefusedRequest(
            429, error.message, hint=error.hint, headers={"connection": "close"}, kind="Full"
        ) from None


def _require(definition: RouteDefinition, request: ApiRequest) -> None:
    """Raise Denied where the token does not allow the route; what a body names is for the handler to check."""
    caller, about = request.caller, definition.about
    if about == "topic":
        topic = str(request.params["topic"])
        caller.require_topic(definition.scopes, topic, request.params.get("name"))
        if definition.changes_topic:
            check_users(topic)
    elif about not in ("handler", "any"):
        caller.require(definition.scopes, {"executions": EXECUTIONS, "spaces": SPACES}.get(about))


def _nobody(_topic: str) -> bool:
    return False


def _place(error: BaseException) -> str:
    """Where it was raised; its text may hold anything."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else "-"
