"""How a link comes to an owner: what it needs of the membership that finds one, or becomes one."""

from __future__ import annotations

import socket
from typing import Protocol

from holdfast.owner.wire import Challenge, Hello, Proof, Welcome
from holdfast.signals import Flag


class Meeting(Protocol):
    """Finds the owner of a log, or becomes it."""

    def connect(self, closing: Flag, deadline: float) -> socket.socket | None:
        """A connection to the present owner; None when the link is closing. Raises Unavailable at the deadline."""

    def hello(self, session: bytes) -> Hello:
        """Who we are."""

    def prove(self, hello: Hello, challenge: Challenge) -> Proof:
        """That we have the log's keys."""

    def check(self, hello: Hello, challenge: bytes, welcome: Welcome) -> None:
        """Whether the other end is the owner of this log; raises HoldfastError."""

    def leave(self, session: bytes, timeout: float) -> None:
        """This member needs no owner any more, and is none."""
