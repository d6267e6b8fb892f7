"""Executions of a server's log: looked at, started, changed, waited for, signalled, and their promises settled.

All changes are what a process that shares the log asks its owner for: under an id, done once, whatever is lost on the
way; their values are those of a log of this process. What an execution came to travels as JSON.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import msgspec

from holdfast.arguments import flag, seconds, whole
from holdfast.clock import Clock, SystemClock
from holdfast.errors import ExecutionError, Invalid, Unavailable
from holdfast.execution.execution_settings import ExecutionSettings
from holdfast.execution.journal.execution_id import ExecutionId, given_id
from holdfast.execution.waits.inbox_message import ID_BYTES
from holdfast.execution.waits.inbox_message import InboxAnswer as Answered
from holdfast.execution.work.execution_views import ExecutionDetails, ExecutionSummary
from holdfast.execution.work.executions import Executions, _statuses
from holdfast.model.typed_decoding import converted, from_msgpack
from holdfast.remote.http.exchange import MSGPACK, Answer, Exchange, Question, monotonic
from holdfast.remote.own_thread import awaited
from holdfast.remote.refused_verbs import refuse

if TYPE_CHECKING:
    from holdfast.execution.execution_room import ExecutionRoom

_WAIT_S = 20.0
_LIMIT = 1_000
_DEFAULT = "default"


class _List(msgspec.Struct):
    executions: list[ExecutionSummary]


class _Elsewhere(NamedTuple):
    """What is known here of executions that are kept elsewhere: time, and that their limits are checked there."""

    clock: Clock
    settings: ExecutionSettings


class RemoteExecutions(Executions):
    """The executions of one server's log."""

    def __init__(self, exchange: Exchange, timeout: float) -> None:
        elsewhere: Any = _Elsewhere(SystemClock(), ExecutionSettings(payload_bytes_max=2**62))
        super().__init__(lambda: elsewhere, _no_room, partial(_asked, exchange, timeout))
        self._exchange = exchange
        self._timeout = timeout

    # -- looking ----------------------------------------------------------------------------------------------

    def list(
        self, *, status: str | Iterable[str] | None = None, kind: str | None = None, limit: int = _LIMIT
    ) -> builtins.list[ExecutionSummary]:
        """Executions, the newest first: of one status or several, of one kind; at most `limit`."""
        wanted, most = _statuses(status), whole(limit, "limit")
        if most < 1:
            raise Invalid("limit is at least 1", hint="for instance limit=100")
        query = [("limit", str(most)), *(("status", one) for one in sorted(wanted or ()))]
        if kind is not None:
            query.append(("kind", kind))
        answer = self._exchange.ask(Question("GET", ("v1", "executions"), tuple(query)), self._timeout)
        return answer.decoded(_List).executions

    def summary(self, execution: ExecutionId | str) -> ExecutionSummary:
        """One execution, without what happened in it."""
        return self.show(execution).summary

    def show(self, execution: ExecutionId | str, *, reveal: bool = False) -> ExecutionDetails:
        """All that is durable of one execution: its steps, and what happened to it. Payloads only with `reveal`."""
        query = (("reveal", "true"),) if flag(reveal, "reveal") else ()
        found = str(given_id(execution))
        answer = self._exchange.ask(Question("GET", ("v1", "executions", found), query), self._timeout)
        return answer.decoded(ExecutionDetails)

    # -- changes, asked of the server -------------------------------------------------------------------------

    async def start_async(self, kind: str, /, *args: Any, **options: Any) -> ExecutionId:
        """What `start` does, for coroutines."""
        return await awaited(lambda: self.start(kind, *args, **options))

    # -- waiting for the end ----------------------------------------------------------------------------------

    def result(self, execution: ExecutionId | str, timeout: float | None = None, *, returns: Any = Any) -> Any:
        """Wait for an execution's end, and return what it returned, or raise what it raised.

        Raises ExecutionCanceled for one that was canceled, and Unavailable after `timeout` seconds (None waits for
        ever).
        """
        found = given_id(execution)
        deadline = None if timeout is None else monotonic() + seconds(timeout)
        while True:
            left = _WAIT_S if deadline is None else max(0.0, min(_WAIT_S, deadline - monotonic()))
            question = Question("GET", ("v1", "executions", str(found), "result"), (("timeout", f"{left:g}"),))
            attempt = self._exchange.attempt(question, monotonic() + left + self._timeout)
            if attempt.answer is not None and not attempt.answer.is_passing:
                return self._value(self._exchange.checked(attempt.answer), returns)
            if deadline is not None and monotonic() >= deadline:
                raise Unavailable(f"the execution has not ended in time execution={found}", hint="wait longer")
            self._exchange.pause(0.05)

    def _value(self, answer: Answer, returns: Any) -> Any:
        value = answer.decoded(dict[str, Any]).get("value")
        try:
            return converted(value, returns, strict=False)
        except msgspec.ValidationError as error:
            raise ExecutionError(f"the result is not of this type: {error}", hint="give another returns=…") from None

    async def result_async(
        self, execution: ExecutionId | str, timeout: float | None = None, *, returns: Any = Any
    ) -> Any:
        """What `result` does, for coroutines."""
        return await awaited(lambda: self.result(execution, timeout, returns=returns))

    # -- from outside -----------------------------------------------------------------------------------------

    async def resolve_async(self, token: str, value: Any = None) -> bool:
        """What `resolve` does, for coroutines."""
        return await awaited(lambda: self.resolve(token, value))

    async def reject_async(self, token: str, reason: str = "") -> bool:
        """What `reject` does, for coroutines."""
        return await awaited(lambda: self.reject(token, reason))

    async def signal_async(
        self, execution: ExecutionId | str, name: str, value: Any = None, *, signal_id: str | None = None
    ) -> bool:
        """What `signal` does, for coroutines."""
        return await awaited(lambda: self.signal(execution, name, value, signal_id=signal_id))

    # -- what needs the log itself ----------------------------------------------------------------------------

    @property
    def journal(self) -> NoReturn:
        """Not over HTTP."""
        refuse("journal")

    def prune(self, *, dry_run: bool = False) -> int:
        """Remove executions that ended long enough ago, as the server's settings say; how many there were."""
        if flag(dry_run, "dry_run"):
            refuse("prune")
        return super().prune()

    def settle_encoded(self, execution: ExecutionId | str, path: str, payload: bytes, *, is_error: bool) -> NoReturn:
        """Not over HTTP."""
        refuse("settle_encoded")

    def start_encoded(self, *, id: str, kind: str, queue: str, input: bytes, priority: int, due_us: int) -> NoReturn:
        """Not over HTTP."""
        refuse("start_encoded")

    def schedule(
        self,
        name: str,
        when: str,
        kind: str,
        /,
        *args: Any,
        zone: str = "UTC",
        missed: Any = "run-once",
        queue: str = _DEFAULT,
        priority: int = 0,
        **kwargs: Any,
    ) -> NoReturn:
        """Not over HTTP."""
        refuse("schedule")

    def unschedule(self, name: str) -> NoReturn:
        """Not over HTTP."""
        refuse("unschedule")

    def schedules(self) -> NoReturn:
        """Not over HTTP."""
        refuse("schedules")


def _no_room() -> ExecutionRoom:
    refuse("journal")


def _asked(exchange: Exchange, timeout: float, action: str, fields: Mapping[str, Any]) -> Any:
    """Have something done, once: after a lost answer it is asked for again, under the same id."""
    body = msgspec.msgpack.encode((SystemClock().random_bytes(ID_BYTES), action, dict(fields)))
    headers = {"Content-Type": MSGPACK, "Accept": MSGPACK}
    answer = exchange.ask(Question("POST", ("v1", "client", "executions"), body=body, headers=headers), timeout)
    try:
        found = from_msgpack(answer.body, Answered)
    except msgspec.MsgspecError:
        raise Unavailable("the server's answer is not understood", hint="is its version the same as here?") from None
    return found.result()
