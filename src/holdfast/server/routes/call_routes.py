"""The verbs of the log for `holdfast.connect`, one route for each that the table of verbs has, and its events.

A request and its answer are the MessagePack that members of a shared log exchange with its owner; an error is the body
that any route answers with. Who may ask, and about what, the table decides. Some verbs have events later: their
callers name a session (`Holdfast-Session`), and ask for its events.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from holdfast.errors import Invalid
from holdfast.owner.verb import Result, Verb
from holdfast.server.api_answers import Answer
from holdfast.server.api_request import ApiRequest
from holdfast.server.http_errors import RefusedRequest
from holdfast.server.served import Served

MSGPACK = "application/msgpack"
_SESSION_DIGITS = 32


def call(verb: Verb[Any, Any]) -> Callable[[ApiRequest, Served], Awaitable[Answer]]:
    """The handler of one verb."""

    async def handler(request: ApiRequest, served: Served) -> Answer:
        if request.media_type != MSGPACK:
            raise RefusedRequest(415, "a call is MessagePack", hint=f"send Content-Type: {MSGPACK}")
        message = verb.decoded(await request.body())
        found = await (
            _answered(request, served, verb, message) if verb.has_events else served.verb(request.caller, verb, message)
        )
        return Answer(msgspec.msgpack.encode(found), MSGPACK)

    handler.__name__ = verb.name
    return handler


async def _answered(request: ApiRequest, served: Served, verb: Verb[Any, Result], message: msgspec.Struct) -> Result:
    verb.check(request.caller, message)  # first: a caller that may not ask takes no place
    peer = served.peers.of(request.caller, session_of(request))
    with served.peers.member_place(peer, message):
        return await served.verb(request.caller, verb, message, peer)


async def events(request: ApiRequest, served: Served) -> Answer:
    """The events behind the number `after`, as `[peer, [[number, name, body] …]]`; waits until there is one.
    An event stays until a question says that it came. `peer` changes where the server was started anew, or has
    forgotten events: what was watched and joined is then asked for again.
    """
    after, wait = request.text("after") or "0", request.seconds("wait", 0.0) or 0.0
    if not after.isdecimal() or not after.isascii() or len(after) > 18:
        raise Invalid("after is the number of an event", hint="that of the newest that came, or 0")
    peer = served.peers.of(request.caller, session_of(request))
    found = await served.waiting(request, peer.events(int(after), wait))
    if found is None:
        served.check_ready()
    return Answer(msgspec.msgpack.encode(found), MSGPACK)


async def goodbye(request: ApiRequest, served: Served) -> Answer:
    """A client wants no more events: its members of consumers leave; 204."""
    served.peers.end(session_of(request))
    return Answer(status=204)


def session_of(request: ApiRequest) -> bytes:
    """The session that a client chose, as one that no other token comes to."""
    text = request.header(b"holdfast-session") or ""
    if len(text) != _SESSION_DIGITS or not all(letter in "0123456789abcdef" for letter in text):
        raise Invalid("Holdfast-Session has 32 hexadecimal digits", hint="choose 16 random bytes per client")
    return request.caller.own(bytes.fromhex(text))
