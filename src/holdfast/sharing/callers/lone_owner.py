"""An owner that nobody shares its log with listens, too: for callers, as the command line is one.

Until one comes that is a socket, and a thread that waits for it in the kernel. Then this thread makes the `Host`,
with the same socket, and ends; nothing of the rooms that serve is imported before. A directory in which no socket can
be made is no reason not to open the log: it says so, and goes on without.

At a fork nobody is in the middle of making the host: a child would inherit half-imported modules, and locks. The child
closes its copies and leaves the connections to its parent.
"""

from __future__ import annotations

import logging
import socket
import weakref
from _thread import RLock
from collections.abc import Callable
from contextlib import suppress
from select import poll
from threading import Thread, current_thread
from typing import TYPE_CHECKING

from holdfast.errors import Unavailable
from holdfast.log.local_parts import parts_of
from holdfast.log.log import Log
from holdfast.sharing import socket_place

if TYPE_CHECKING:
    from holdfast.sharing.hosting.host import Host

_WAIT_S = 5.0

logger = logging.getLogger("holdfast.sharing")


def listen_alone(log: Log) -> Log:
    """Let callers come to a log that this process owns alone."""
    parts = parts_of(log)
    try:
        parts.lifetime.shared = LoneOwner(log)
    except (Unavailable, RuntimeError) as error:  # no sockets there, no descriptor or thread left
        logger.warning(
            "other processes cannot ask the owner of this log for anything: %s path=%s",
            error.message if isinstance(error, Unavailable) else error,
            parts.context.directory.path,
            extra={"action": "not_listening"},
        )
    return log


class LoneOwner:
    """Listens for the owner of one log.

    `_lock` is held while the host is made or ended, and during a fork. It holds the log no longer than it needs it: a
    log that is forgotten ends.
    """

    def __init__(self, log: Log) -> None:
        self._directory = parts_of(log).context.directory
        self._log = weakref.ref(log)
        self._lock = RLock()
        self._is_over = False
        self._is_forking = False
        self._host: Host | None = None
        self._stop_answering: Callable[[], None] = lambda: None
        self._socket = socket_place.listen(self._directory.path)
        self._name = socket_place.name(self._directory.path)
        self._thread = Thread(target=self._wait, name="holdfast-door", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self._withdraw()
            raise

    def _wait(self) -> None:
        waiting = poll()
        waiting.register(self._socket)
        waiting.poll()
        try:
            with self._lock:
                log = self._log()
                if log is not None and not self._is_over:
                    self._serve(log)
                del log  # with the lock: if it was the last to hold it, the log is closed here
        except BaseException as error:
            logger.critical(
                "other processes cannot ask the owner of this log any more: %s",
                error,
                extra={"action": "host_died"},
                exc_info=error,
            )

    def _serve(self, log: Log) -> None:
        from holdfast.owner.log_owner import LogOwner
        from holdfast.sharing.hosting.greeting import Greeting
        from holdfast.sharing.hosting.host import Host
        from holdfast.sharing.hosting.listening import Listening

        context = parts_of(log).context
        listening = Listening(self._directory.path, self._directory.is_ours, self._socket)
        host = Host(context.journal, listening, Greeting(context.journal, context.clock, None).greet, context.clock)
        owner = LogOwner(log)
        host.answer_with(owner)
        host.start()
        self._host, self._stop_answering = host, owner.stop

    def settle(self, timeout: float) -> None:
        """Nothing: callers are answered until the log is closed."""

    def close(self, timeout: float) -> None:
        """Answer what was taken, and let nobody in any more."""
        with self._lock:
            is_over, self._is_over = self._is_over, True
            host = self._host
        if host is not None:
            if not host.drain(timeout):
                host.stop(timeout)
            self._stop_answering()
        elif not is_over:
            self._withdraw()

    def _withdraw(self) -> None:
        if socket_place.name(self._directory.path) == self._name:
            socket_place.withdraw(self._directory.path)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        if self._thread.is_alive() and self._thread is not current_thread():
            self._thread.join(_WAIT_S)  # first: it would wait for another file under the same number
        self._socket.close()

    # -- forks --------------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Nobody makes the host meanwhile."""
        self._is_forking = self._lock.acquire(timeout=_WAIT_S)

    def after_fork(self) -> None:
        """In the parent: go on."""
        if self._is_forking:
            self._is_forking = False
            self._lock.release()

    def in_child(self) -> None:
        """Close our copies: callers that come are the parent's."""
        self._lock = RLock()
        self._is_over = True
        self._socket.close()
        if self._host is not None:
            self._host.forget()
            self._host = None
