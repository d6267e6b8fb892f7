"""Something is asked of a log's executions from outside: done here if nobody owns the log, else by its owner.

One request has one id, however it gets there. An owner may come or go in between: a request that was left in the inbox
of an owner that died is applied here, or by the next owner, and counts once (`execution/waits/inbox.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from holdfast.clock import SystemClock
from holdfast.errors import OutcomeUnknown, Unavailable
from holdfast.log.local_parts import parts_of
from holdfast.log.log import Log
from holdfast.log.log_executions import ASK_TIMEOUT_S
from holdfast.log_directory import Directory

Open = Callable[[], Log]

_TRIES = 5


def request(
    path: Path, own: Open, look: Open, action: str, fields: Mapping[str, Any], timeout: float = ASK_TIMEOUT_S
) -> Any:
    """Have something done, durably, and return its answer. `own` opens the log, `look` opens it for reading only.

    Actions and their fields are those of `execution/work/requests.py`. Raises what was answered, and OutcomeUnknown
    after `timeout` seconds: then it is done when the owner comes to it.
    """
    from holdfast.execution.waits.inbox_message import message

    directory, clock = Directory(path.absolute()), SystemClock()
    directory.require_log()
    if directory.is_shared():  # `own` joins it, and its owner is asked over its socket
        with own() as log:
            return parts_of(log).executions.ask(action, fields, timeout)
    asked = message(clock.now_us(), clock.random_bytes(16), action, dict(fields))
    for _ in range(_TRIES):
        if directory.holder() is None:
            try:
                log = own()
            except Unavailable:
                if directory.holder() is None:  # it is not that somebody was quicker
                    raise
            else:
                with log:
                    return parts_of(log).executions.apply(asked).result()
        with look() as log:
            found = parts_of(log).executions.leave(asked, timeout)
        if found is not None:
            return found.result()
    raise OutcomeUnknown("the log changes hands too often", hint="ask again; what was left is done by the next owner")
