"""`POST /v1/client/executions`: a change of an execution, as a process that does not own the log asks for it.

For `holdfast.connect`. What is asked for has an id, under which the log keeps the answer: sent again, it is answered
and not done again. Values are the bytes that a program's own values are. All that came is checked here: the action, who
may ask for it, and each field's type.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import msgspec

from holdfast.errors import Invalid
from holdfast.execution.waits.inbox_message import message
from holdfast.log.local_parts import parts_of
from holdfast.model.typed_decoding import converted
from holdfast.server.api_answers import Answer
from holdfast.server.api_request import ApiRequest
from holdfast.server.http_errors import Refusal, without_places
from holdfast.server.routes.group_routes import MSGPACK
from holdfast.server.served import Served

_EXECUTIONS = "_executions"
_Id = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
_Text = Annotated[str, msgspec.Meta(max_length=4096)]


class AskedBody(msgspec.Struct, frozen=True, array_like=True):
    """What is asked for."""

    id: _Id
    action: str
    fields: dict[str, Any]


class _Fields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class _Start(_Fields, frozen=True):
    id: _Text
    kind: _Text
    queue: _Text
    input: bytes
    priority: int
    due_us: int


class _Resume(_Fields, frozen=True):
    id: _Text
    queue: _Text


class _Cancel(_Fields, frozen=True):
    id: _Text
    reason: _Text


class _Fork(_Fields, frozen=True):
    id: _Text
    before: _Text | None
    fork: _Text
    repeat_guarded: bool


class _Rewind(_Fields, frozen=True):
    id: _Text
    before: _Text
    repeat_guarded: bool


class _Settle(_Fields, frozen=True):
    id: _Text
    path: _Text
    payload: bytes
    is_error: bool


class _SettlePromise(_Fields, frozen=True):
    token: _Text
    payload: bytes
    is_error: bool


class _Signal(_Fields, frozen=True):
    id: _Text
    name: _Text
    payload: bytes
    signal: _Text


ACTIONS: dict[str, tuple[str, type[_Fields]]] = {
    "start": ("append", _Start), "signal": ("append", _Signal), "settle_promise": ("append", _SettlePromise),
    "cancel": ("admin", _Cancel), "resume": ("admin", _Resume), "fork": ("admin", _Fork), "rewind": ("admin", _Rewind),
    "settle": ("admin", _Settle), "prune": ("admin", _Fields),
}  # fmt: skip
"""What may be asked for, who may, and what it says."""

_decode = msgspec.msgpack.Decoder(AskedBody).decode


async def ask(request: ApiRequest, served: Served) -> Answer:
    """Do what is asked for, once."""
    if request.media_type != MSGPACK:
        raise Refusal(415, "what is asked for is MessagePack", hint=f"send Content-Type: {MSGPACK}")
    asked = _checked(await request.body(), request)
    clock, executions = served.clock, parts_of(served.log).executions
    told = message(clock.now_us(), request.caller.own(asked.id), asked.action, asked.fields)
    answer = await served.read(partial(executions.apply, told))
    answer = msgspec.structs.replace(answer, text=without_places(answer.text), hint=without_places(answer.hint))
    return Answer(msgspec.msgpack.encode(answer), MSGPACK)


def _checked(body: bytes, request: ApiRequest) -> AskedBody:
    try:
        asked = _decode(body)
        scope, fields = ACTIONS[asked.action]
        converted(asked.fields, fields)
        if "payload" in asked.fields:
            msgspec.msgpack.decode(asked.fields["payload"])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyError):
        raise Invalid("this is nothing that can be asked for", hint="send it as holdfast's own client does") from None
    request.caller.require((scope,), _EXECUTIONS)
    return asked
