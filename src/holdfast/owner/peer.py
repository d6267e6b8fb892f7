"""Who asks the owner of a log from another process: its session and rights, its events, its end."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Protocol


class Rights(Protocol):
    """What a client that is no member of a shared log may do."""

    def require(self, scopes: tuple[str, ...], topic: str | None) -> None:
        """Raise Denied unless one of these scopes is allowed, of a topic or of the whole log."""

    def require_topic(self, scopes: tuple[str, ...], topic: str, consumer: str | None) -> None:
        """The same for what is about a topic and, where it names one, a consumer of it."""

    def sees_consumer(self, consumer: str, topic: str) -> bool:
        """Whether it may know how far a consumer is."""

    def own(self, chosen: bytes) -> bytes:
        """An id that it chose, as one that nobody else comes to."""


class Peer:
    """The process at the other end, for the handlers of its calls; lives as long as its connection.

    Any thread may use it; `_lock` guards whether it is gone, and what is called then.
    """

    def __init__(
        self,
        session: bytes,
        pid: int,
        tell: Callable[[str, bytes], None],
        rights: Rights | None = None,
        *,
        is_member: bool = False,
    ) -> None:
        self.session = session
        self.rights = rights
        """None: it came over the socket, as a process of the same user with the log's keys, which has all of them."""
        self.is_member = is_member
        """Whether it shares the log, and may own it."""
        self.pid = pid
        self.tell = tell
        """Tell it something that it did not ask for: the name of an event, and its bytes. From any thread."""
        self.is_gone = False
        self._ends: list[Callable[[], None]] = []
        self._lock = Lock()

    def at_end(self, call: Callable[[], None]) -> None:
        """Have something called, once, when the connection ends, by the host's thread, or now: it must be short.

        Asking for the same again changes nothing.
        """
        with self._lock:
            is_gone = self.is_gone
            if not is_gone and call not in self._ends:
                self._ends.append(call)
        if is_gone:
            call()

    def end(self) -> None:
        """The connection has ended."""
        with self._lock:
            self.is_gone = True
            ends, self._ends = self._ends, []
        for call in ends:
            call()
