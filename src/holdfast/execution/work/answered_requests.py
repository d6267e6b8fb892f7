"""Requests of other processes about executions: each is done once, and answered.

What is asked for is done by `requests.py`, which returns when it is durable. Then the request's id and its answer are
put into the space `execution-requests`; then it is answered. A request whose id is in the space is answered from there.
A crash between the work and that note has it done a second time when it is asked for again, so requests say what ids
things get: twice is once.

The space remembers the latest `KEPT` requests, and up to which time it has forgotten others; a request that is older
than that, or older than a day, is refused, so that none is done again because its first answer was forgotten.
"""

from __future__ import annotations

import logging
from _thread import RLock
from collections.abc import Callable, Mapping
from heapq import nsmallest
from typing import Any

import msgspec

from holdfast.caller import once
from holdfast.errors import Closed, HoldfastError, Invalid, OutcomeUnknown, Unavailable
from holdfast.execution.work.execution_request import ExecutionAnswer, ExecutionRequest
from holdfast.journal.journal import Journal

SPACE = "execution-requests"
KEPT = 2_000
_AGE_MAX_US = 86_400_000_000
_FORGOTTEN = b"forgotten"
"""The item whose number is the time up to which requests were forgotten."""

Do = Callable[[str, Mapping[str, Any]], Any]
"""Does what is asked for, an action and its fields, durably; what it returns is the answer's value."""

logger = logging.getLogger("holdfast.executions")
_encode = msgspec.msgpack.encode
_answers = msgspec.msgpack.Decoder(ExecutionAnswer)


class AnsweredRequests:
    """The owner's side: what was asked of its executions, and what it answered."""

    def __init__(self, journal: Journal, do: Do, timeout: float) -> None:
        self._do = do
        self._journal = journal
        self._clock = journal.clock
        self._timeout = timeout
        self._answered: dict[bytes, tuple[int, bytes]] | None = None
        """Time and answer of requests that were done, the oldest first."""
        self._forgotten_us = 0
        self._lock = RLock()

    def apply(self, request: ExecutionRequest) -> ExecutionAnswer:
        """Do what is asked for, unless that was done before, and remember the answer, durably.

        Raises Closed and OutcomeUnknown: then it is not known what becomes of it, and it must be asked again.
        """
        with once(self._lock):
            answered = self._load()
            known = answered.get(request.id)
            if known is not None:
                return _answers.decode(known[1])
            answer = self._stale(request) or self._made(request)
            self._remember(answered, request, _encode(answer))
            return answer

    def _stale(self, request: ExecutionRequest) -> ExecutionAnswer | None:
        if request.at_us > max(self._forgotten_us, self._clock.now_us() - _AGE_MAX_US):
            return None
        return ExecutionAnswer.refused(Invalid("this request is too old and was not applied", hint="ask again"))

    def _made(self, request: ExecutionRequest) -> ExecutionAnswer:
        try:
            answer = ExecutionAnswer(self._do(request.action, request.fields))
            _encode(answer)
            return answer
        except (Closed, OutcomeUnknown):
            raise
        except HoldfastError as error:
            return ExecutionAnswer.refused(error)
        except Exception as error:
            logger.error(
                "a request could not be applied action=%s",
                request.action,
                exc_info=error,
                extra={"action": "execution_request_failed"},
            )
            text = f"the log's owner could not do this: {type(error).__name__}"
            return ExecutionAnswer.refused(Unavailable(text, hint="its log output says more"))

    # -- what was answered ------------------------------------------------------------------------------------

    def _load(self) -> dict[bytes, tuple[int, bytes]]:
        if self._answered is None:
            items = self._journal.spaces.load(SPACE)
            self._forgotten_us = max((number for key, number, _ in items if key == _FORGOTTEN), default=0)
            self._answered = {key: (number, body) for key, number, body in items if key != _FORGOTTEN}
        return self._answered

    def _remember(self, answered: dict[bytes, tuple[int, bytes]], request: ExecutionRequest, answer: bytes) -> None:
        puts = [(request.id, request.at_us, answer)]
        oldest = nsmallest(len(answered) + 1 - KEPT, answered, key=lambda key: answered[key][0])
        forgotten = max([self._forgotten_us, *(answered[key][0] for key in oldest)])
        if oldest:
            puts.append((_FORGOTTEN, forgotten, b""))
        self._journal.spaces.change(SPACE, puts, oldest, timeout=self._timeout).result()
        for key in oldest:
            del answered[key]
        answered[request.id] = (request.at_us, answer)
        self._forgotten_us = forgotten
