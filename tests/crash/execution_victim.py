"""A program of five steps that is killed at each of its points in turn, and resumed until it is through.

    python -m tests.crash.execution_victim DIRECTORY POLICY sync|async POINTS

POINTS is a list like `3,17`: the first process is killed at its third point, the next one at its seventeenth, the last
one is left alone; `all` does that for every single point. A point lies before and after each thing that a step's
protocol asks for, and before and after each effect. Processes are forked from this one, which opens nothing itself.
What happened outside is in a file that is only ever appended to. One line of JSON for each list of points.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import holdfast
from holdfast.errors import AmbiguousEffect
from holdfast.execution.journal.entries import StepResult
from holdfast.execution.journal.live_execution import LiveExecution
from holdfast.execution.steps.async_context import AsyncContext
from holdfast.execution.steps.context import Context

SETTINGS = holdfast.Settings.from_mapping({"segments": {"seal_on_close": False}})
RESULT = [1, 2, 3, 4, 5]
AMBIGUOUS = 3
NEVER = 10**9


class Points:
    """Counts, and kills this process at one of them."""

    def __init__(self, last: int) -> None:
        self._last = last
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
        if self.count == self._last:
            os.kill(os.getpid(), signal.SIGKILL)


class Program:
    """Five steps: two of them guarded, one a transaction."""

    def __init__(self, witness: Path, policy: str, point: Points) -> None:
        self._witness = os.open(witness, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._guarded: dict[str, Any] = {"effect": "exactly_once_guarded", "on_ambiguous": policy}
        self._point = point

    def happen(self, name: str, number: int) -> int:
        """An effect in the world outside."""
        self._point()
        os.write(self._witness, f"{name}\n".encode())
        self._point()
        return number

    def book(self, tx: Any, number: int) -> int:
        self._point()
        tx.append("bookings", b"booked")
        return number

    def run(self, log: holdfast.Log, execution: UUID) -> list[int]:
        with log.execution("order", id=execution) as ctx:
            return [
                ctx.step("prepare", self.happen, "prepare", 1),
                ctx.step("charge", self.happen, "charge", 2, skipped=2, **self._guarded),
                ctx.step("pack", self.happen, "pack", 3, effect="idempotent"),
                ctx.step("ship", self.happen, "ship", 4, skipped=4, **self._guarded),
                ctx.transaction("book", self.book, 5),
            ]

    async def run_async(self, log: holdfast.Log, execution: UUID) -> list[int]:
        async def happen(name: str, number: int) -> int:
            return self.happen(name, number)

        async with log.execution("order", id=execution) as ctx:
            first = ctx.step("prepare", happen, "prepare", 1)
            charged = ctx.step("charge", happen, "charge", 2, skipped=2, **self._guarded)
            both = await ctx.gather(first, charged)
            return [
                *both,
                await ctx.step("pack", happen, "pack", 3, effect="idempotent"),
                await ctx.step("ship", happen, "ship", 4, skipped=4, **self._guarded),
                await ctx.transaction("book", self.book, 5),
            ]


def put_points(point: Points) -> None:
    """Before and after whatever a step's protocol asks for."""
    do, do_async, hand_over = Context._do, AsyncContext._do, LiveExecution.hand_over_result

    def pointed(self: Context, request: object) -> object:
        point()
        done = do(self, request)
        point()
        return done

    async def pointed_async(self: AsyncContext, request: object) -> object:
        point()
        done = await do_async(self, request)
        point()
        return done

    def pointed_result(self: LiveExecution, result: StepResult) -> None:
        point()
        hand_over(self, result)
        point()

    LiveExecution.hand_over_result = pointed_result  # type: ignore[method-assign]
    Context._do, AsyncContext._do = pointed, pointed_async  # type: ignore[method-assign]


def work(directory: Path, execution: UUID, policy: str, how: str, last: int) -> int:
    """In a process of its own; its exit code."""
    point = Points(last)
    put_points(point)
    with holdfast.open(directory / "log", settings=SETTINGS) as log:
        program = Program(directory / f"{execution}.witness", policy, point)
        point()
        try:
            found = program.run(log, execution) if how == "sync" else asyncio.run(program.run_async(log, execution))
        except AmbiguousEffect:
            return AMBIGUOUS
        point()
        assert found == RESULT, found
    if last == NEVER:
        (directory / "points").write_text(str(point.count))
    return 0


def forked(call: Callable[[], int]) -> int:
    """What a call in a child came to: its code, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        try:
            code = call()
        except BaseException as error:
            print("failed", type(error).__name__, error, file=sys.stderr, flush=True)
            code = 99
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def history(directory: Path, policy: str, how: str, points: list[int]) -> dict[str, Any]:
    """One execution, killed at these points and then left to end."""
    execution = uuid4()
    codes = [forked(lambda last=last: work(directory, execution, policy, how, last)) for last in [*points, NEVER]]
    witness = directory / f"{execution}.witness"
    seen = Counter(witness.read_text().split() if witness.exists() else [])
    return {"points": points, "codes": codes, "seen": dict(seen)}


def warm_up(directory: Path) -> None:
    """Import here, once, what a child would import each time."""
    readable, tell = os.pipe()

    def run() -> int:
        warm = directory / "warm"
        warm.mkdir(exist_ok=True)
        work(warm, uuid4(), "skip", "sync", NEVER)
        work(warm, uuid4(), "skip", "async", NEVER)
        os.write(tell, "\n".join(sys.modules).encode())
        return 0

    code = forked(run)
    os.close(tell)
    with open(readable) as names:
        for name in names.read().split("\n"):
            if name.partition(".")[0] not in ("__main__", "__mp_main__", "tests"):
                import_module(name)
    assert code == 0


def main(directory: Path, policy: str, how: str, points: str) -> None:
    warm_up(directory)
    print("ready", flush=True)
    if points != "all":
        for one in points.split("/"):
            print(json.dumps(history(directory, policy, how, [int(last) for last in one.split(",")])), flush=True)
        return
    print(json.dumps(history(directory, policy, how, [])), flush=True)
    count = int((directory / "points").read_text())
    for last in range(1, count + 1):
        print(json.dumps(history(directory, policy, how, [last])), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
