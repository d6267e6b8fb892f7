"""Executions that tests wait in: opened without a program around them, and closed as a crash would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import holdfast
from holdfast import Log, Settings
from holdfast.execution.execution_room import ExecutionRoom
from holdfast.execution.journal.execution_id import derived_id
from holdfast.execution.journal.live_execution import LiveExecution
from holdfast.execution.waits.promises import Promise

ID = derived_id("tests", "one")


def settings(**executions: Any) -> Settings:
    return Settings.from_mapping(
        {"executions": {"poll_interval_ms": 10, **executions}, "segments": {"seal_on_close": False}}
    )


def open_log(path: Path, **options: Any) -> Log:
    executions = options.pop("executions", {})
    return holdfast.open(path, settings=settings(**executions), **options)


def room_of(log: Log) -> ExecutionRoom:
    return log._executions.room()


@contextmanager
def running(log: Log, execution=ID, kind: str = "tests") -> Iterator[LiveExecution]:
    """A program's run of an execution; it leaves off at the end, as if it had died."""
    room = room_of(log)
    live = room.live.open(execution, kind)
    try:
        yield live
    finally:
        room.live.release(live)


def promise_at(log: Log, live: LiveExecution, name: str = "approval", returns: Any = Any) -> Promise:
    return Promise(live, room_of(log).waiters, live.place(name), returns)


class Aside:
    """A function in a thread of its own; `result()` waits for what it gives."""

    def __init__(self, fn: Callable[..., Any], *args: Any) -> None:
        self.value: Any = None
        self.error: BaseException | None = None

        def run() -> None:
            try:
                self.value = fn(*args)
            except BaseException as error:
                self.error = error

        self.thread = Thread(target=run, daemon=True)
        self.thread.start()

    def result(self) -> Any:
        self.thread.join(30)
        assert not self.thread.is_alive(), "it hangs"
        if self.error is not None:
            raise self.error
        return self.value


def wait_until(happened: Callable[[], bool]) -> None:
    """Look until it has happened."""
    from threading import Event

    for _ in range(3000):
        if happened():
            return
        Event().wait(0.01)
    raise AssertionError("it does not happen")
