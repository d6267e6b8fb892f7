"""`GET /v1/producers/{producer}`: how far a producer got."""

from __future__ import annotations

import msgspec

from holdfast.errors import Denied
from holdfast.server.api_answers import Answer, json_answer
from holdfast.server.api_request import ApiRequest
from holdfast.server.served import Served


class ProducerAnswer(msgspec.Struct, frozen=True):
    """A producer."""

    producer: str
    last: int | None


async def show_producer(request: ApiRequest, served: Served) -> Answer:
    """The last sequence that is durable; null for a producer that is not known, or not any more. Needs the right to
    use the name.
    """
    if "append" not in request.caller.scopes:
        raise Denied("this token does not allow append")
    name = request.params["producer"]
    served.require_producer(request.caller, name)
    return json_answer(ProducerAnswer(name, await served.read(lambda: served.log.producer(name).last)))
