"""Work that may take long, where it holds up nobody: in another thread for a loop, at once elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

Result = TypeVar("Result")


class OffLoop(Protocol):
    """Whatever knows where such work is done."""

    async def off_loop(self, call: Callable[[], Result]) -> Result:
        """Call it where it holds up nobody, and wait for what it returns."""
