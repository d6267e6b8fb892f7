"""`POST /v1/client/executions`: a change of an execution, as a process that does not own the log asks for it.

For `holdfast.connect`. What is asked for has an id, under which the log keeps the answer: sent again, it is answered
and not done again. Values are the bytes that a program's own values are. Who may ask for it, and
what it says, the table of verbs checks (`ask_executions`).
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from holdfast.errors import Invalid
from holdfast.execution.work.execution_request import ExecutionRequest
from holdfast.log.log_executions import AskExecutions
from holdfast.owner.verbs import VERBS
from holdfast.server.api_answers import Answer
from holdfast.server.api_request import ApiRequest
from holdfast.server.http_errors import RefusedRequest
from holdfast.server.routes.call_routes import MSGPACK
from holdfast.server.served import Served

_Id = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]


class ExecutionBody(msgspec.Struct, frozen=True, array_like=True):
    """What is asked for."""

    id: _Id
    action: str
    fields: dict[str, Any]


_decode = msgspec.msgpack.Decoder(ExecutionBody).decode


async def ask(request: ApiRequest, served: Served) -> Answer:
    """Do what is asked for, once: `[id, action, fields]` as MessagePack. Actions are `start`, `signal`,
    `settle_promise`, and for `admin` `cancel`, `resume`, `fork`, `rewind`, `settle`, `prune`. The answer is kept
    under the id (16 bytes): sent again, it is not done again.
    """
    if request.media_type != MSGPACK:
        raise RefusedRequest(415, "what is asked for is MessagePack", hint=f"send Content-Type: {MSGPACK}")
    try:
        asked = _decode(await request.body())
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Invalid("this is nothing that can be asked for", hint="send it as holdfast's own client does") from None
    change = AskExecutions(ExecutionRequest(asked.id, served.clock.now_us(), asked.action, asked.fields))
    return Answer(msgspec.msgpack.encode(await served.verb(request.caller, VERBS["ask_executions"], change)), MSGPACK)
