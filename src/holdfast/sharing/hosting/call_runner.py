"""Calls of clients run in threads of their own: they may block, and the host's thread never does.

Bounded: calls of one client at once; of all together, as many as there are threads run and the others wait.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Lock

from holdfast.errors import Full, HoldfastError
from holdfast.owner.log_owner import LogOwner
from holdfast.owner.verbs import VERBS
from holdfast.owner.wire import RESULT, Call, Result, frame, refusal
from holdfast.process_lifetime import Threads
from holdfast.sharing.hosting.client_connection import ClientConnection

Tell = Callable[[ClientConnection, "list[bytes | memoryview]"], None]

_CALLS_MAX = 64
_CALL_THREADS = 32

logger = logging.getLogger("holdfast.sharing")


class CallRunner:
    """Runs what clients ask for, and has the answers sent.

    `_lock` guards each connection's count of calls: the host's thread adds to it, threads of calls take from it.
    """

    def __init__(self, tell: Tell) -> None:
        """`tell` has something sent to a client; it is called from any thread."""
        self.owner: LogOwner | None = None
        """What answers them; it may block."""
        self._tell = tell
        self._threads = Threads(_CALL_THREADS, "holdfast-call")
        self._lock = Lock()

    def begin(self, connection: ClientConnection, call: Call, request: bytes) -> None:
        """Run a call, or refuse it."""
        owner = self.owner
        if owner is None or call.name not in VERBS:
            unknown = f"the owner of this log does not know the call {call.name!r}"
            self._refuse(connection, call, HoldfastError(unknown, hint="upgrade it"))
        elif not self._count(connection):
            many = f"{_CALLS_MAX} calls of one client are under way already"
            self._refuse(connection, call, Full(many, hint="wait for some of them"))
        else:
            self._threads.submit(self._run, connection, owner, call, request)

    def _count(self, connection: ClientConnection) -> bool:
        """One more call of this client is under way; False if there are too many."""
        with self._lock:
            if connection.calls >= _CALLS_MAX:
                return False
            connection.calls += 1
            return True

    def _refuse(self, connection: ClientConnection, call: Call, error: HoldfastError) -> None:
        self._tell(connection, frame(RESULT, Result(call.number, refusal(error))))

    def _run(self, connection: ClientConnection, owner: LogOwner, call: Call, request: bytes) -> None:
        assert connection.caller is not None
        try:
            body = VERBS[call.name].answered(owner, connection.caller, request)
            buffers = frame(RESULT, Result(call.number), body)
        except Exception as error:  # the caller gets it; a defect is logged here, too
            if not isinstance(error, HoldfastError):
                logger.exception("a call failed", extra={"action": "call_failed"})
            buffers = frame(RESULT, Result(call.number, refusal(error)))
        self._tell(connection, buffers)  # first: a host that ends sends what is left when no calls are
        with self._lock:
            connection.calls -= 1

    def end(self) -> None:
        """Begin none of those that wait."""
        self._threads.shutdown(wait=False, cancel_futures=True)
