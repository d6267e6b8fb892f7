"""Executions of a server's log: looked at, started, waited for, signalled, and their promises settled.

Values travel as JSON. What JSON cannot say (bytes, times, sets) would arrive as something else, so it is refused.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NoReturn

import msgspec

from holdfast.arguments import flag, seconds, text, whole
from holdfast.clock import SystemClock
from holdfast.errors import ExecutionError, Invalid, Unavailable
from holdfast.execution.journal.execution_id import ExecutionId, checked_name, fresh_id, given_id
from holdfast.execution.waits.promise_token import parse_token
from holdfast.execution.waits.signal_wait import signal_name
from holdfast.execution.work.execution_views import ExecutionDetails, ExecutionSummary
from holdfast.execution.work.executions import Executions, _moment, _priority, _statuses
from holdfast.remote.http.exchange import JSON, Answer, Exchange, Question, monotonic
from holdfast.remote.own_thread import awaited
from holdfast.remote.refused_verbs import refuse

_WAIT_S = 20.0
_LIMIT = 1_000
_DEFAULT = "default"


class _List(msgspec.Struct):
    executions: list[ExecutionSummary]


class _Status(msgspec.Struct):
    status: str


class _Settled(msgspec.Struct):
    settled: bool


class _Sent(msgspec.Struct):
    sent: bool


class RemoteExecutions(Executions):
    """The executions of one server's log."""

    def __init__(self, exchange: Exchange, timeout: float) -> None:
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

    # -- beginning, and waiting for the end -------------------------------------------------------------------

    def start(
        self,
        kind: str,
        /,
        *args: Any,
        id: ExecutionId | str | None = None,
        queue: str = _DEFAULT,
        priority: int = 0,
        not_before: datetime | None = None,
        **kwargs: Any,
    ) -> ExecutionId:
        """Ask for an execution that a worker runs: its function of this kind, called with these arguments.

        Durable when this returns. The id is chosen here, so a lost answer does no harm. See `Executions.start`.
        """
        found = fresh_id(SystemClock()) if id is None else given_id(id)
        _moment(not_before)
        body: dict[str, Any] = {
            "id": str(found), "kind": checked_name(kind, "kind"), "queue": checked_name(queue, "queue"),
            "priority": _priority(priority), "args": _plain(builtins.list(args)), "kwargs": _plain(kwargs),
        }  # fmt: skip
        if not_before is not None:
            body["not_before"] = not_before.isoformat()
        self._post(("executions",), body)
        return found

    async def start_async(self, kind: str, /, *args: Any, **options: Any) -> ExecutionId:
        """What `start` does, for coroutines."""
        return await awaited(lambda: self.start(kind, *args, **options))

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
            return msgspec.convert(value, returns, strict=False)
        except msgspec.ValidationError as error:
            raise ExecutionError(f"the result is not of this type: {error}", hint="give another returns=…") from None

    async def result_async(
        self, execution: ExecutionId | str, timeout: float | None = None, *, returns: Any = Any
    ) -> Any:
        """What `result` does, for coroutines."""
        return await awaited(lambda: self.result(execution, timeout, returns=returns))

    # -- by hand, and from outside ----------------------------------------------------------------------------

    def cancel(self, execution: ExecutionId | str, reason: str = "canceled by hand") -> str:
        """End an execution as canceled, for good; its program, if it runs, stops before its next step."""
        body = {"reason": text(reason, "reason", "no longer wanted")}
        return self._post(("executions", str(given_id(execution)), "cancel"), body).decoded(_Status).status

    def resume(self, execution: ExecutionId | str, *, queue: str = _DEFAULT) -> None:
        """Let a worker go on with an execution that failed, was aborted, or was left by its program."""
        body = {"queue": checked_name(queue, "queue")}
        self._post(("executions", str(given_id(execution)), "resume"), body, again=False)

    def resolve(self, token: str, value: Any = None) -> bool:
        """Settle a promise with a value, for good; False if it was settled before, which changes nothing."""
        parse_token(token)
        body = {"token": token, "value": _plain(value)}
        return self._post(("promises", "resolve"), body, again=False).decoded(_Settled).settled

    def reject(self, token: str, reason: str = "") -> bool:
        """Settle a promise with a reason why there is no value: whoever waits for it gets PromiseFailed."""
        parse_token(token)
        body = {"token": token, "reason": text(reason, "reason", "too expensive")}
        return self._post(("promises", "reject"), body, again=False).decoded(_Settled).settled

    def signal(
        self, execution: ExecutionId | str, name: str, value: Any = None, *, signal_id: str | None = None
    ) -> bool:
        """Send a signal to an execution, which takes it by its name, now or later. Durable when this returns.

        With a `signal_id` of your own (a UUID), sending twice is sending once: False the second time.
        """
        number = given_id(signal_id) if signal_id is not None else fresh_id(SystemClock())
        body = {"name": signal_name(name), "value": _plain(value), "signal_id": str(number)}
        sent = self._post(("executions", str(given_id(execution)), "signal"), body).decoded(_Sent).sent
        return (
            sent or signal_id is None
        )  # an id of our own that was known: it was this very call, whose answer was lost

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

    def _post(self, path: tuple[str, ...], body: object, *, again: bool = True) -> Answer:
        question = Question(
            "POST", ("v1", *path), body=msgspec.json.encode(body), headers={"Content-Type": JSON}, again=again
        )
        return self._exchange.ask(question, self._timeout)

    # -- what needs the log itself ----------------------------------------------------------------------------

    @property
    def journal(self) -> NoReturn:
        """Not over HTTP."""
        refuse("journal")

    def prune(self, *, dry_run: bool = False) -> NoReturn:
        """Not over HTTP."""
        refuse("prune")

    def fork(
        self,
        execution: ExecutionId | str,
        *,
        before: str | None = None,
        id: ExecutionId | str | None = None,
        repeat_guarded: bool = False,
    ) -> NoReturn:
        """Not over HTTP."""
        refuse("fork")

    def rewind(self, execution: ExecutionId | str, *, before: str, repeat_guarded: bool = False) -> NoReturn:
        """Not over HTTP."""
        refuse("rewind")

    def settle(
        self, execution: ExecutionId | str, path: str, value: Any = None, *, error: BaseException | None = None
    ) -> NoReturn:
        """Not over HTTP."""
        refuse("settle")

    def settle_encoded(self, execution: ExecutionId | str, path: str, payload: bytes, *, is_error: bool) -> NoReturn:
        """Not over HTTP."""
        refuse("settle_encoded")

    def start_encoded(self, *, id: str, kind: str, queue: str, input: bytes, priority: int, due_us: int) -> NoReturn:
        """Not over HTTP."""
        refuse("start_encoded")

    def schedule(
        self, name: str, when: str, kind: str, /, *args: Any, zone: str = "UTC", missed: Any = "run-once",
        queue: str = _DEFAULT, priority: int = 0, **kwargs: Any,
    ) -> NoReturn:  # fmt: skip
        """Not over HTTP."""
        refuse("schedule")

    def unschedule(self, name: str) -> NoReturn:
        """Not over HTTP."""
        refuse("unschedule")

    def schedules(self) -> NoReturn:
        """Not over HTTP."""
        refuse("schedules")


def _plain(value: Any) -> Any:
    """A value that JSON says without loss."""
    try:
        if msgspec.json.decode(msgspec.json.encode(value)) == msgspec.msgpack.decode(msgspec.msgpack.encode(value)):
            return value
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError, OverflowError):
        pass
    raise Invalid("a value cannot be said in JSON", hint="over HTTP give numbers, text, lists and maps with text keys")
