"""The verbs of a log for coroutines, and the end of its block: each is a verb that blocks, called in a thread."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.caller import InThread
    from holdfast.log.ports import LifetimePort


class AsyncVerbs:
    """What a log, here or at a server, has for coroutines."""

    _in_thread: InThread
    _lifetime: LifetimePort

    def seal(self, topic: str | None = None, *, timeout: float | None = None) -> None:
        """Seal everything that is durable now."""
        raise NotImplementedError

    def ship(self, timeout: float | None = None) -> None:
        """Wait until all that is sealed now is settled on the store."""
        raise NotImplementedError

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything queued so far is durable."""
        raise NotImplementedError

    def close(self, timeout: float | None = None) -> None:
        """Let go of the log."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self._lifetime.enter()
        except HoldfastError:
            self.close()
            raise
        return self

    async def seal_async(self, topic: str | None = None, *, timeout: float | None = None) -> None:
        """What `seal` does, for coroutines."""
        await self._in_thread(lambda: self.seal(topic, timeout=timeout))

    async def ship_async(self, timeout: float | None = None) -> None:
        """What `ship` does, for coroutines."""
        await self._in_thread(lambda: self.ship(timeout))

    async def flush_async(self, timeout: float | None = None) -> None:
        """What `flush` does, for coroutines."""
        await self._in_thread(lambda: self.flush(timeout))

    async def close_async(self, timeout: float | None = None) -> None:
        """What `close` does, for coroutines."""
        await self._in_thread(lambda: self.close(timeout))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except HoldfastError:
            if error is None:  # what the block raised matters more
                raise

    async def __aenter__(self) -> Self:
        return await self._in_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._in_thread(lambda: self.__exit__(kind, error, trace))
