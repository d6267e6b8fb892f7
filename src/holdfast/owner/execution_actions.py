"""What may be asked of executions from outside, who may, and what each request says: checked before anything is done.

Values are the bytes that a program's own values are. What an action does stands in `execution/work/requests.py`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from holdfast.errors import Invalid
from holdfast.execution.work.execution_request import ID_BYTES
from holdfast.log.log_executions import AskExecutions
from holdfast.model.typed_decoding import converted

_Text = Annotated[str, msgspec.Meta(max_length=4096)]


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


def scope_of(asked: AskExecutions) -> tuple[str, ...]:
    """The scope that a token needs to ask for this; raises Invalid where nobody may ask for it."""
    return (_action(asked)[0],)


def check_fields(asked: AskExecutions) -> None:
    """Raise Invalid unless a request says what its action needs, and nothing else."""
    fields = asked.request.fields
    if len(asked.request.id) != ID_BYTES:
        raise _nothing_known()
    try:
        converted(fields, _action(asked)[1])
        if "payload" in fields:
            msgspec.msgpack.decode(fields["payload"])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise _nothing_known() from None


def _action(asked: AskExecutions) -> tuple[str, type[_Fields]]:
    found = ACTIONS.get(asked.request.action)
    if found is None:
        raise _nothing_known()
    return found


def _nothing_known() -> Invalid:
    return Invalid("this is nothing that can be asked for", hint="send it as holdfast's own client does")
