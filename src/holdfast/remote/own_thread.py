"""Long waits for coroutines: each in a thread of its own.

Python's own pool for such calls has a handful of threads, for everybody in the process; calls that wait for seconds at
a server would keep the others out.
"""

from __future__ import annotations

from asyncio import Future as AsyncFuture
from asyncio import get_running_loop
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

Result = TypeVar("Result")


def begin(call: Callable[[], Result], name: str) -> Future[Result]:
    """Have it called in a thread of its own."""
    future: Future[Result] = Future()

    def work() -> None:
        try:
            result = call()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    Thread(target=work, name=name, daemon=True).start()
    return future


async def awaited(call: Callable[[], Result], name: str = "holdfast-wait") -> Result:
    """What it returns. Cancelling the wait does not stop the call, whose outcome nobody looks at then."""
    loop = get_running_loop()
    done: AsyncFuture[None] = loop.create_future()
    future = begin(call, name)

    def wake(_: object) -> None:
        try:
            loop.call_soon_threadsafe(_set, done)
        except RuntimeError:  # the loop was closed meanwhile
            pass

    future.add_done_callback(wake)
    await done
    return future.result()


def _set(done: AsyncFuture[None]) -> None:
    if not done.done():  # it is waited for still
        done.set_result(None)
