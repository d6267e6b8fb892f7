"""What people ask of executions from a command line: here if it may own the log, in the log's owner if there is one.

A request is a name and plain fields, so that it can travel. Asking for the same thing twice, with the same id, comes to
asking once: what was done just before a crash may be asked for again after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.errors import Invalid
from holdfast.execution.work.executions import Executions

Fields = Mapping[str, Any]


def apply(executions: Executions, action: str, fields: Fields) -> str | int:
    """Do what is asked for; the status that the execution has then, or whether, or how often, this did it."""
    request = REQUESTS.get(action)
    if request is None:
        raise Invalid(f"there is no such request: {action!r}"[:200], hint=f"one of {', '.join(REQUESTS)}")
    done = request(executions, fields)
    return done if isinstance(done, int) else executions.summary(done).status


def _start(executions: Executions, fields: Fields) -> str:
    executions.start_encoded(**fields)
    return str(fields["id"])


def _resume(executions: Executions, fields: Fields) -> str:
    executions.resume(fields["id"], queue=fields["queue"])
    return str(fields["id"])


def _cancel(executions: Executions, fields: Fields) -> str:
    executions.cancel(fields["id"], fields["reason"])
    return str(fields["id"])


def _fork(executions: Executions, fields: Fields) -> str:
    executions.fork(fields["id"], before=fields["before"], id=fields["fork"], repeat_guarded=fields["repeat_guarded"])
    return str(fields["fork"])


def _rewind(executions: Executions, fields: Fields) -> str:
    executions.rewind(fields["id"], before=fields["before"], repeat_guarded=fields["repeat_guarded"])
    return str(fields["id"])


def _settle(executions: Executions, fields: Fields) -> str:
    executions.settle_encoded(fields["id"], fields["path"], fields["payload"], is_error=fields["is_error"])
    return str(fields["id"])


def _settle_promise(executions: Executions, fields: Fields) -> bool:
    value = msgspec.msgpack.decode(fields["payload"])
    return (
        executions.reject(fields["token"], value) if fields["is_error"] else executions.resolve(fields["token"], value)
    )


def _signal(executions: Executions, fields: Fields) -> bool:
    value = msgspec.msgpack.decode(fields["payload"])
    return executions.signal(fields["id"], fields["name"], value, signal_id=fields["signal"])


def _prune(executions: Executions, _fields: Fields) -> int:
    return executions.prune()


REQUESTS: Mapping[str, Callable[[Executions, Fields], str | int]] = {
    "start": _start, "resume": _resume, "cancel": _cancel, "fork": _fork, "rewind": _rewind, "settle": _settle,
    "settle_promise": _settle_promise, "signal": _signal, "prune": _prune,
}  # fmt: skip
"""What can be asked for."""
