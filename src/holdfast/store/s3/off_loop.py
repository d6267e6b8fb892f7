"""Work that may take its time, beside what must not stand still: in another thread for a loop, at once elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

Result = TypeVar("Result")


class Aside(Protocol):
    """Knows where such work is done."""

    async def aside(self, call: Callable[[], Result]) -> Result:
        """Call it where it harms nobody, and wait for what it returns."""
