"""Promises: a program waits for a value from outside, settled once, by a token.

A promise is durable before its token is given out. The token is known to the program that made it, in the run that made
it, and to those who got it from there; the log has its hash alone. A program that was resumed may have died before it
gave the token away, so it can have another one (`token()`): all tokens of a promise are good, and the first who uses
one settles it. Who settles it is durable before they hear that it is settled.

A wait with a time-out that is over is over for every later run as well, even if the value comes afterwards: its time is
kept like a timer's, below the promise's path.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any
from uuid import UUID

from holdfast.errors import Full, PromiseFailed, WaitTimedOut
from holdfast.execution.journal.entries import PromiseCreated, PromiseResolved
from holdfast.execution.journal.execution_id import inner_id
from holdfast.execution.journal.live_execution import LiveExecution
from holdfast.execution.waits.handover import Handover
from holdfast.execution.waits.kind_check import check_kind
from holdfast.execution.waits.promise_token import SECRET_BYTES, Token
from holdfast.execution.waits.timers import armed, fired, span_us
from holdfast.execution.waits.wait import Wait, Waiters, WaitResult
from holdfast.execution.waits.wait_values import value_of

TOKENS_MAX = 100


class Promise:
    """A value that comes from outside: `result()` waits for it, and so does `await`.

    The program passes `token()` to the one that will settle it.
    """

    def __init__(self, live: LiveExecution, waiters: Waiters, path: str, returns: Any = Any) -> None:
        self.path = path
        self._live = live
        self._waiters = waiters
        self._returns = returns
        self._token: Token | None = None
        record = check_kind(live, path, "promise")
        created = None if record is None else record.promise
        self._promise = inner_id(live.id, path, "promise").bytes if created is None else created.promise
        self._issued: Handover | None = None
        """What makes the token good: written with the first thing that is asked of the promise."""
        if created is None:
            self._issue()

    @property
    def id(self) -> UUID:
        """Its name; the same on every run, no secret, and no right to anything."""
        return UUID(bytes=self._promise)

    @property
    def is_settled(self) -> bool:
        """Whether the value is there."""
        return self._settled() is not None

    def token(self) -> str:
        """What settles it, once that is durable; never stored, so keep it out of logs and results.

        In a later run it is another one; those that were given out before stay good.
        """
        token, issued = self._own_token()
        issued.settle()
        return token.text()

    async def token_async(self) -> str:
        """What `token` does, for coroutines."""
        token, issued = self._own_token()
        await issued.settle_async()
        return token.text()

    def wait(self, timeout: float | None = None) -> Wait[Any]:
        """The value, to be waited for: `.result()`, or `await`; WaitTimedOut after `timeout` seconds, for good."""
        first = [] if self._issued is None else [self._issued]
        if timeout is None:
            return Wait(self._live, self._waiters, lambda is_due: self._settled(), first=first)
        span = span_us(timeout)
        path = self._live.place("wait", self.path, "wait")
        due, more = armed(self._live, path, self._live.clock.now_us() + span, span)
        look = partial(self._settled_in_time, path)
        return Wait(self._live, self._waiters, look, first=first + more, due=due)

    def result(self, timeout: float | None = None) -> Any:
        """Block until it is settled, and return the value; raises PromiseFailed if it was rejected."""
        return self.wait(timeout).result()

    def __await__(self) -> Generator[Any, None, Any]:
        return self.wait().__await__()

    def _settled(self) -> WaitResult | None:
        resolved = self._live.recorded.promises.get(self._promise)
        return None if resolved is None else self._done(resolved)

    def _done(self, resolved: PromiseResolved) -> WaitResult:
        if resolved.is_error:
            reason = value_of(resolved.payload, str, f"promise {self.path!r}")
            return WaitResult(
                error=PromiseFailed(f"the promise was rejected: {reason} promise={self.path}", reason=reason)
            )
        return WaitResult(value_of(resolved.payload, self._returns, f"promise {self.path!r}"))

    def _settled_in_time(self, path: str, is_due: bool) -> WaitResult | None:
        record = self._live.look(path)
        late = WaitResult(error=WaitTimedOut(f"the promise was not settled in time promise={self.path}"))
        if record is not None and record.timer_fired is not None:
            return late
        settled = self._settled()
        if settled is not None or not is_due:
            return settled
        return late._replace(last=Handover(self._live, fired(self._live, path)))

    def _own_token(self) -> tuple[Token, Handover]:
        """The token of this run; another one, if the promise was made by an earlier run."""
        if self._token is None or self._issued is None:
            return self._issue()
        return self._token, self._issued

    def _issue(self) -> tuple[Token, Handover]:
        if len(self._live.recorded.created.get(self._promise, ())) >= TOKENS_MAX:
            raise Full(
                f"this promise has {TOKENS_MAX} tokens promise={self.path}", hint="give them out once, inside of a step"
            )
        token = Token(self._live.id, self._promise, self._live.clock.random_bytes(SECRET_BYTES))
        entry = PromiseCreated(self.path, self._promise, token.hash(), self._live.clock.now_us())
        self._token, self._issued = token, Handover(self._live, entry)
        return token, self._issued

    def __repr__(self) -> str:
        return f"Promise({self.path!r}, id={self.id})"
