"""Something is asked of a log's executions from outside: done here if nobody owns the log, else by its owner.

One request has one id, however it gets there. An owner may come or go in between: then the next one is asked, or it is
done here, and counts once (`execution/work/answered_requests.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.errors import Closed, OutcomeUnknown, Unavailable
from holdfast.log.local_parts import parts_of
from holdfast.log.log import Log
from holdfast.log.log_executions import ASK_TIMEOUT_S

_TRIES = 5


def request(open_log: Callable[[], Log], action: str, fields: Mapping[str, Any], timeout: float = ASK_TIMEOUT_S) -> Any:
    """Have something done, durably, and return its answer. `open_log` owns the log, or asks the one that does.

    Actions and their fields are those of `execution/work/requests.py`. Raises what was answered.
    """
    tries, asked, answer = 0, None, None
    while answer is None:
        tries += 1
        with open_log() as log:
            parts = parts_of(log)
            asked = asked or parts.executions.request(action, fields)
            try:
                answer = parts.executions.bring(asked, timeout)
            except (Closed, OutcomeUnknown, Unavailable):  # perhaps its owner ended, or was killed
                if parts.journal.owned or tries == _TRIES:
                    raise
    return answer.result()
