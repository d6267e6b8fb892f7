"""Executions of a server's log: looked at and waited for by questions; changes are asked for under an id.

All changes are what a process that shares the log asks its owner for: done once, whatever is lost on the way; their
values are those of a log of this process. What an execution came to travels as JSON.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from holdfast.clock import SystemClock
from holdfast.errors import ExecutionError, Unavailable
from holdfast.execution.journal.execution_id import ExecutionId
from holdfast.execution.work.execution_request import ID_BYTES, ExecutionAnswer
from holdfast.execution.work.execution_views import ExecutionDetails, ExecutionSummary
from holdfast.execution.work.executions import Executions
from holdfast.model.typed_decoding import converted, from_msgpack
from holdfast.remote.http.exchange import MSGPACK, Exchange, Question, ServerAnswer, monotonic
from holdfast.remote.own_thread import awaited
from holdfast.remote.refused_verbs import refuse, refused

_WAIT_S = 20.0


class _List(msgspec.Struct):
    executions: list[ExecutionSummary]


def executions_at(exchange: Exchange, timeout: float) -> Executions:
    """The executions of one server's log."""
    return Executions(ServerExecutionSource(exchange, timeout), refuse, partial(_asked, exchange, timeout), awaited)


class ServerExecutionSource:
    """What a server says of its executions."""

    payload_bytes_max = 2**62
    """The server says no to what is too large."""

    def __init__(self, exchange: Exchange, timeout: float) -> None:
        self.clock = SystemClock()
        self.prunable = refused("prune")
        self._exchange = exchange
        self._timeout = timeout

    def list(self, statuses: frozenset[str] | None, kind: str | None, limit: int) -> builtins.list[ExecutionSummary]:
        """Executions, the newest first: of these statuses, of one kind; at most `limit`."""
        query = [("limit", str(limit)), *(("status", one) for one in sorted(statuses or ()))]
        if kind is not None:
            query.append(("kind", kind))
        answer = self._exchange.ask(Question("GET", ("v1", "executions"), tuple(query)), self._timeout)
        return answer.decoded(_List).executions

    def summary(self, execution: ExecutionId) -> ExecutionSummary:
        """One execution, without what happened in it."""
        return self.show(execution, reveal=False).summary

    def show(self, execution: ExecutionId, *, reveal: bool) -> ExecutionDetails:
        """All that is durable of one execution."""
        query = (("reveal", "true"),) if reveal else ()
        answer = self._exchange.ask(Question("GET", ("v1", "executions", str(execution)), query), self._timeout)
        return answer.decoded(ExecutionDetails)

    def result(self, execution: ExecutionId, timeout: float | None, returns: Any) -> Any:
        """Wait for an execution's end, and return what it returned, or raise what it raised."""
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            left = _WAIT_S if deadline is None else max(0.0, min(_WAIT_S, deadline - monotonic()))
            question = Question("GET", ("v1", "executions", str(execution), "result"), (("timeout", f"{left:g}"),))
            attempt = self._exchange.attempt(question, monotonic() + left + self._timeout)
            if attempt.answer is not None and not attempt.answer.is_passing:
                return _value(self._exchange.checked(attempt.answer), returns)
            if deadline is not None and monotonic() >= deadline:
                raise Unavailable(f"the execution has not ended in time execution={execution}", hint="wait longer")
            self._exchange.pause(0.05)

    async def result_async(self, execution: ExecutionId, timeout: float | None, returns: Any) -> Any:
        """The same for coroutines."""
        return await awaited(lambda: self.result(execution, timeout, returns))


def _value(answer: ServerAnswer, returns: Any) -> Any:
    value = answer.decoded(dict[str, Any]).get("value")
    try:
        return converted(value, returns, strict=False)
    except msgspec.ValidationError as error:
        raise ExecutionError(f"the result is not of this type: {error}", hint="give another returns=…") from None


def _asked(exchange: Exchange, timeout: float, action: str, fields: Mapping[str, Any]) -> Any:
    """Have something done, once: after a lost answer it is asked for again, under the same id."""
    body = msgspec.msgpack.encode((SystemClock().random_bytes(ID_BYTES), action, dict(fields)))
    headers = {"Content-Type": MSGPACK, "Accept": MSGPACK}
    answer = exchange.ask(Question("POST", ("v1", "client", "executions"), body=body, headers=headers), timeout)
    try:
        found = from_msgpack(answer.body, ExecutionAnswer)
    except msgspec.MsgspecError:
        raise Unavailable("the server's answer is not understood", hint="is its version the same as here?") from None
    return found.result()
