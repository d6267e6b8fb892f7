"""`log.executions`: the executions of a log, listed, begun, awaited, and changed by hand.

Looking works on any log, also on one that another process owns (`read_only=True`), and shows what is durable. Changes
are durable when they return. Payloads are shown only to those who ask for them (`reveal=True`).
"""

from __future__ import annotations

import builtins
from asyncio import to_thread
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.arguments import flag, seconds, text, whole
from holdfast.clock import Clock, SystemClock
from holdfast.errors import Invalid
from holdfast.execution.journal.entries import STATUSES, ExecutionRow
from holdfast.execution.journal.execution_id import ExecutionId, checked_name, fresh_id, given_id
from holdfast.execution.journal.live_execution import NOTE_CHARS_MAX
from holdfast.execution.waits.promise_token import parse_token
from holdfast.execution.waits.schedules import Missed, Schedule
from holdfast.execution.waits.signal_wait import signal_name
from holdfast.execution.waits.wait_values import payload_of
from holdfast.execution.work.calls import check_call, encode_call, encode_outcome
from holdfast.execution.work.execution_views import ExecutionDetails, ExecutionSummary
from holdfast.execution.work.work_queue import DEFAULT

if TYPE_CHECKING:
    from holdfast.caller import InThread
    from holdfast.execution.execution_room import ExecutionRoom

_LIMIT = 1_000
_PRIORITY_MAX = 2**31

Ask = Callable[[str, Mapping[str, Any]], Any]
"""Asks the owner of a log to do something, and returns what it answers."""


class ExecutionSource(Protocol):
    """Where executions are looked at: in the log that keeps them, or at its server."""

    @property
    def clock(self) -> Clock:
        """What time it is for them."""

    @property
    def payload_bytes_max(self) -> int:
        """How large a value may be, as far as that is known here."""

    def list(self, statuses: frozenset[str] | None, kind: str | None, limit: int) -> builtins.list[ExecutionSummary]:
        """Executions, the newest first."""

    def summary(self, execution: ExecutionId) -> ExecutionSummary:
        """One execution, without what happened in it."""

    def show(self, execution: ExecutionId, *, reveal: bool) -> ExecutionDetails:
        """All that is durable of one execution."""

    def prunable(self) -> int:
        """How many ended long enough ago to be removed."""

    def result(self, execution: ExecutionId, timeout: float | None, returns: Any) -> Any:
        """Wait for an execution's end, and return what it returned, or raise what it raised."""

    async def result_async(self, execution: ExecutionId, timeout: float | None, returns: Any) -> Any:
        """The same for coroutines."""


class Executions:
    """The executions of one log.

        for execution in log.executions.list(status="failed"):
            print(execution.id, execution.note)

    Ids are given as they are, or as text.
    """

    def __init__(
        self,
        source: ExecutionSource,
        room: Callable[[str], ExecutionRoom],
        ask: Ask | None = None,
        in_thread: InThread = to_thread,
    ) -> None:
        """`room` gives what a verb needs that works on the log itself; Invalid where the log is elsewhere."""
        self._source = source
        self._room = room
        self._ask = ask
        """How the owner of the log is asked, where this is not the owner."""
        self._in_thread = in_thread

    # -- looking ----------------------------------------------------------------------------------------------

    def list(
        self, *, status: str | Iterable[str] | None = None, kind: str | None = None, limit: int = _LIMIT
    ) -> builtins.list[ExecutionSummary]:
        """Executions, the newest first: of one status or several, of one kind; at most `limit`."""
        wanted = _statuses(status)
        most = whole(limit, "limit")
        if most < 1:
            raise Invalid("limit is at least 1", hint="for instance limit=100")
        return self._source.list(wanted, kind, most)

    def summary(self, execution: ExecutionId | str) -> ExecutionSummary:
        """One execution, without what happened in it."""
        return self._source.summary(given_id(execution))

    def show(self, execution: ExecutionId | str, *, reveal: bool = False) -> ExecutionDetails:
        """All that is durable of one execution: its steps, and what happened to it. Payloads only with `reveal`."""
        return self._source.show(given_id(execution), reveal=flag(reveal, "reveal"))

    def prune(self, *, dry_run: bool = False) -> int:
        """Remove executions that ended long enough ago, as the settings say; how many there are.

        The log does so by itself every hour.
        """
        if flag(dry_run, "dry_run"):
            return self._source.prunable()
        return self._room("prune").pruning.prune() if self._ask is None else int(self._ask("prune", {}))

    # -- beginning, and waiting for the end -------------------------------------------------------------------

    def start(
        self,
        kind: str,
        /,
        *args: Any,
        id: ExecutionId | str | None = None,
        queue: str = DEFAULT,
        priority: int = 0,
        not_before: datetime | None = None,
        **kwargs: Any,
    ) -> ExecutionId:
        """Ask for an execution that a worker runs: its function of this kind, called with these arguments.

        Durable when this returns. A higher `priority` goes first; before `not_before` it does not run. With an `id` of
        your own, asking twice is asking once; with other arguments the second one is Invalid.

        This and all other changes work in a log that is open for reading only, too: its owner is asked to make them.
        """
        found = fresh_id(self._source.clock) if id is None else given_id(id)
        fields: dict[str, Any] = {
            "id": str(found),
            "kind": checked_name(kind, "kind"),
            "queue": checked_name(queue, "queue"),
            "input": encode_call(args, kwargs, self._source.payload_bytes_max),
            "priority": _priority(priority),
            "due_us": _moment(not_before),
        }
        if self._ask is not None:
            self._ask("start", fields)
        else:
            self.start_encoded(**fields)
        return found

    def start_encoded(self, *, id: str, kind: str, queue: str, input: bytes, priority: int, due_us: int) -> None:
        """What `start` does, with arguments that are bytes already."""
        room = self._room("start_encoded")
        now = room.clock.now_us()
        check_call(input, room.settings.payload_bytes_max)
        room.administration.start(
            ExecutionRow(
                given_id(id).bytes,
                checked_name(kind, "kind"),
                "queued",
                now,
                now,
                queue=checked_name(queue, "queue"),
                priority=_priority(priority),
                due_us=max(0, whole(due_us, "due_us")),
                input=input,
            )
        )

    async def start_async(self, kind: str, /, *args: Any, **options: Any) -> ExecutionId:
        """What `start` does, for coroutines."""
        return await self._in_thread(lambda: self.start(kind, *args, **options))

    def result(self, execution: ExecutionId | str, timeout: float | None = None, *, returns: Any = Any) -> Any:
        """Wait for an execution's end, and return what it returned, or raise what it raised.

        It comes as the type that `returns` says, else as plain data.
        Raises ExecutionCanceled for one that was canceled, and Unavailable after `timeout` seconds (None waits for
        ever).
        """
        return self._source.result(given_id(execution), None if timeout is None else seconds(timeout), returns)

    async def result_async(
        self, execution: ExecutionId | str, timeout: float | None = None, *, returns: Any = Any
    ) -> Any:
        """What `result` does, for coroutines."""
        wait = None if timeout is None else seconds(timeout)
        return await self._source.result_async(given_id(execution), wait, returns)

    # -- by hand ----------------------------------------------------------------------------------------------

    def cancel(self, execution: ExecutionId | str, reason: str = "canceled by hand") -> str:
        """End an execution as canceled, for good; its program, if it runs, stops before its next step.

        Returns the status that it has now: 'canceled', or the end that came first.
        """
        found, why = given_id(execution), text(reason, "reason", "no longer wanted")[:NOTE_CHARS_MAX]
        if self._ask is not None:
            return str(self._ask("cancel", {"id": str(found), "reason": why}))
        return self._room("cancel").administration.cancel(found, why)

    def resume(self, execution: ExecutionId | str, *, queue: str = DEFAULT) -> None:
        """Let a worker go on with an execution that failed, was aborted, or was left by its program."""
        found, where = given_id(execution), checked_name(queue, "queue")
        if self._ask is not None:
            self._ask("resume", {"id": str(found), "queue": where})
        else:
            self._room("resume").administration.resume(found, where)

    def fork(
        self,
        execution: ExecutionId | str,
        *,
        before: str | None = None,
        id: ExecutionId | str | None = None,
        repeat_guarded: bool = False,
    ) -> ExecutionId:
        """A new execution that begins with all that this one recorded before a step, and goes on by itself.

        Steps behind that run again, there. If guarded effects are among them, `repeat_guarded` must say so.
        """
        found, fork = given_id(execution), fresh_id(self._source.clock) if id is None else given_id(id)
        path = None if before is None else text(before, "before", "charge")
        repeat = flag(repeat_guarded, "repeat_guarded")
        if self._ask is not None:
            fields = {"id": str(found), "before": path, "fork": str(fork), "repeat_guarded": repeat}
            self._ask("fork", fields)
            return fork
        return self._room("fork").administration.fork(found, path, fork, repeat_guarded=repeat)

    def rewind(self, execution: ExecutionId | str, *, before: str, repeat_guarded: bool = False) -> None:
        """Forget what this execution recorded from a step on; it is queued again, and goes on from there.

        Guarded effects behind that step would happen again; `repeat_guarded` must say so.
        """
        found, path = given_id(execution), text(before, "before", "charge")
        repeat = flag(repeat_guarded, "repeat_guarded")
        if self._ask is not None:
            self._ask("rewind", {"id": str(found), "before": path, "repeat_guarded": repeat})
        else:
            self._room("rewind").administration.rewind(found, path, repeat_guarded=repeat)

    def settle(
        self, execution: ExecutionId | str, path: str, value: Any = None, *, error: BaseException | None = None
    ) -> None:
        """Decide a guarded effect by hand that was begun and whose outcome nobody knew: record what came of it."""
        is_error = error is not None
        found, payload = given_id(execution), encode_outcome(error if is_error else value, is_error=is_error)
        if self._ask is not None:
            fields = {"id": str(found), "path": path, "payload": payload, "is_error": is_error}
            self._ask("settle", fields)
        else:
            self.settle_encoded(found, path, payload, is_error=is_error)

    def settle_encoded(self, execution: ExecutionId | str, path: str, payload: bytes, *, is_error: bool) -> None:
        """What `settle` does, with a value or error that is bytes already."""
        where = text(path, "path", "charge")
        self._room("settle_encoded").administration.settle(given_id(execution), where, payload, is_error=is_error)

    # -- from outside -----------------------------------------------------------------------------------------

    def resolve(self, token: str, value: Any = None) -> bool:
        """Settle a promise with a value, for good; False if it was settled before, which changes nothing.

        Durable when this returns. Of a log that is open for reading only, its owner is asked to do it. Raises NotFound
        for a promise that is not there, and PromiseRejected if the token is not its own.
        """
        return self._settle_promise(token, payload_of(value, "a promise", self._payload_max()), is_error=False)

    def reject(self, token: str, reason: str = "") -> bool:
        """Settle a promise with a reason why there is no value: waiters get PromiseFailed."""
        payload = payload_of(text(reason, "reason", "too expensive"), "a promise", self._payload_max())
        return self._settle_promise(token, payload, is_error=True)

    def signal(
        self, execution: ExecutionId | str, name: str, value: Any = None, *, signal_id: str | None = None
    ) -> bool:
        """Send a signal to an execution, which takes it by its name, now or later. Durable when this returns.

        With a `signal_id` of your own (a UUID), sending twice is sending once: False the second time.
        """
        found, payload = given_id(execution), payload_of(value, "a signal", self._payload_max())
        number = None if signal_id is None else given_id(signal_id)
        if self._ask is not None:
            fields = {"id": str(found), "name": signal_name(name), "payload": payload}
            return bool(self._ask("signal", {**fields, "signal": str(number or fresh_id(SystemClock()))}))
        return self._room("signal").delivery.send(
            found, signal_name(name), payload, None if number is None else number.bytes
        )

    async def resolve_async(self, token: str, value: Any = None) -> bool:
        """What `resolve` does, for coroutines."""
        return await self._in_thread(lambda: self.resolve(token, value))

    async def reject_async(self, token: str, reason: str = "") -> bool:
        """What `reject` does, for coroutines."""
        return await self._in_thread(lambda: self.reject(token, reason))

    async def signal_async(
        self, execution: ExecutionId | str, name: str, value: Any = None, *, signal_id: str | None = None
    ) -> bool:
        """What `signal` does, for coroutines."""
        return await self._in_thread(lambda: self.signal(execution, name, value, signal_id=signal_id))

    def _settle_promise(self, token: str, payload: bytes, *, is_error: bool) -> bool:
        parse_token(token)
        if self._ask is not None:
            fields = {"token": token, "payload": payload, "is_error": is_error}
            return bool(self._ask("settle_promise", fields))
        return self._room("settle").delivery.settle(token, payload, is_error=is_error)

    def _payload_max(self) -> int:
        """Another process, if it is the owner, refuses what is too large."""
        return self._source.payload_bytes_max if self._ask is None else 2**62

    # -- schedules --------------------------------------------------------------------------------------------

    def schedule(
        self,
        name: str,
        when: str,
        kind: str,
        /,
        *args: Any,
        zone: str = "UTC",
        missed: Missed = "run-once",
        queue: str = DEFAULT,
        priority: int = 0,
        **kwargs: Any,
    ) -> Schedule:
        """Have an execution begun at certain times: `when` has cron's five fields, or is '@hourly', '@every 15m' ….

        One execution for each point in time, however often this process dies; a worker runs it. `missed` says what
        becomes of points that passed while nobody had the log: 'skip', 'run-once', 'run-all', or at most so many.
        Declaring the same again changes nothing, so programs do it when they start.

            log.executions.schedule("nightly", "0 3 * * *", "report", "sales", zone="Europe/Berlin")
        """
        room = self._room("schedule")
        asked = Schedule(
            checked_name(name, "schedule"),
            when,
            checked_name(kind, "kind"),
            encode_call(args, kwargs, room.settings.payload_bytes_max),
            text(zone, "zone", "Europe/Berlin"),
            missed,
            checked_name(queue, "queue"),
            _priority(priority),
        )
        return room.schedules.declare(asked)

    def unschedule(self, name: str) -> bool:
        """Take a schedule away; what it has begun goes on. False if there is none of this name."""
        return self._room("unschedule").schedules.remove(checked_name(name, "schedule"))

    def schedules(self) -> builtins.list[Schedule]:
        """All schedules, by name."""
        return self._room("schedules").schedules.all()


def _statuses(given: str | Iterable[str] | None) -> frozenset[str] | None:
    if given is None:
        return None
    wanted = frozenset([given] if isinstance(given, str) else given)
    if not wanted <= set(STATUSES):
        raise Invalid(f"unknown status: {', '.join(sorted(wanted))}"[:200], hint=f"one of {', '.join(STATUSES)}")
    return wanted


def _priority(given: int) -> int:
    found = whole(given, "priority")
    if abs(found) > _PRIORITY_MAX:
        raise Invalid(f"a priority is between -{_PRIORITY_MAX} and {_PRIORITY_MAX}", hint="0 is the usual one")
    return found


def _moment(given: datetime | None) -> int:
    if given is None:
        return 0
    if not isinstance(given, datetime) or given.tzinfo is None:
        raise Invalid("not_before is a datetime with a time zone", hint="for instance datetime.now(UTC) + …")
    return max(0, int(given.timestamp() * 1_000_000))
