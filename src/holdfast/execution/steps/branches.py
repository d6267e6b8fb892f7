"""Several things at once, so that a later run finds each of them again.

What runs beside others must not share its names with them: which of two steps of one name comes first would depend on
who was quicker. So each branch of `gather` and `first` has a scope of its own, by its number: whatever it asks its
context for stands there. Steps that are passed directly have their places already, in the order of their calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from contextvars import ContextVar, copy_context
from types import MappingProxyType
from typing import Any, NamedTuple

Place = tuple[int, str]
"""A run of a program, by its identity, and the path of a scope in it."""

branches: ContextVar[Mapping[Place, str]] = ContextVar("holdfast-branches", default=MappingProxyType({}))
"""Scopes that stand somewhere else in this task: where."""


class First(NamedTuple):
    """Who was first (0 is the first that was given), and with what."""

    winner: int
    value: Any


def begun(awaitables: Sequence[Awaitable[Any]], place: Place, scope: str) -> list[asyncio.Task[Any]]:
    """A task for each, in its branch below a scope."""
    return [in_branch(one, place, f"{scope}/{number}") for number, one in enumerate(awaitables, 1)]


def in_branch(awaitable: Awaitable[Any], place: Place, path: str) -> asyncio.Task[Any]:
    """A task in which a scope stands at this path."""
    context = copy_context()
    context.run(branches.set, {**branches.get(), place: path})
    work = awaitable if asyncio.iscoroutine(awaitable) else _awaited(awaitable)
    return asyncio.get_running_loop().create_task(work, context=context)


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


async def wait_for(tasks: Sequence[asyncio.Task[Any]], *, for_first: bool = False) -> None:
    """Wait for all of them, or for one; who is cancelled meanwhile ends them first."""
    if not tasks:
        return
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED if for_first else asyncio.ALL_COMPLETED)
    except asyncio.CancelledError:
        await end(tasks)
        raise


async def end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel those that go on, and wait until they are over."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def results(tasks: Sequence[asyncio.Task[Any]]) -> list[Any]:
    """What they gave, in order; raises what the first in order raised, and before that whatever is to stop them all."""
    errors = [error for task in tasks if (error := _error(task)) is not None]
    if errors:
        raise next((error for error in errors if not isinstance(error, Exception)), errors[0])
    return [task.result() for task in tasks]


def _error(task: asyncio.Task[Any]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()


def drop(awaitables: Sequence[Awaitable[Any]]) -> None:
    """These are not needed: they never begin."""
    for one in awaitables:
        if isinstance(one, Coroutine):
            one.close()
