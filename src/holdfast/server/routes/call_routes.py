"""`POST /v1/calls/{verb}`: the verbs of the log for `holdfast.connect`, one route for each that the table of verbs has.

A request and its answer are the MessagePack that members of a shared log exchange with its owner; an error is the body
that any route answers with. Who may ask, and about what, the table decides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from holdfast.owner.verbs import Verb
from holdfast.server.api_answers import Answer
from holdfast.server.api_request import ApiRequest
from holdfast.server.http_errors import RefusedRequest
from holdfast.server.served import Served

MSGPACK = "application/msgpack"


def call(verb: Verb) -> Callable[[ApiRequest, Served], Awaitable[Answer]]:
    """The handler of one verb."""

    async def handler(request: ApiRequest, served: Served) -> Answer:
        if request.media_type != MSGPACK:
            raise RefusedRequest(415, "a call is MessagePack", hint=f"send Content-Type: {MSGPACK}")
        asked = verb.decoded(await request.body())
        return Answer(msgspec.msgpack.encode(await served.verb(request.caller, verb.name, asked)), MSGPACK)

    handler.__name__ = verb.name
    return handler
