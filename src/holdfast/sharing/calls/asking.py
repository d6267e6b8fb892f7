"""Asking the owner of a shared log. The next owner is asked again where one dies meanwhile (`link.call`)."""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

Told = TypeVar("Told")

_GRACE_S = 2.0
"""How much longer than the owner itself one waits for its answer: it says better why it took so long."""
_PATIENCE_S = 86_400.0
"""How long something may take that has no time-out: as long as it takes."""


class Calls(Protocol):
    """The way to the owner, as far as calls need it."""

    def call(self, name: str, request: msgspec.Struct, answer: type[Told], timeout: float) -> Told:
        """Ask the owner for something, and wait for its answer."""


class Asking:
    """Asks the owner, through one link."""

    def __init__(self, link: Calls) -> None:
        self._link = link

    def ask(self, name: str, request: msgspec.Struct, answer: type[Told], timeout: float = _PATIENCE_S) -> Told:
        """What the owner answers; it has so many seconds for what it does."""
        return self._link.call(name, request, answer, timeout + _GRACE_S)
