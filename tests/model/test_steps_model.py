"""Programs of any shape, killed anywhere and run again: they get through as if they had not been.

What a program got is the same on every run that is not cut short, no finished step runs again, and no guarded effect
happens twice unless its policy says so.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from typing import Any
from uuid import uuid4

import hypothesis.strategies as st
import pytest
from hypothesis import given

import holdfast
from holdfast.errors import AmbiguousEffect
from holdfast.execution.steps.context import Context

pytestmark = pytest.mark.disk

SETTINGS = holdfast.Settings.from_mapping({"segments": {"seal_on_close": False}})

values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.lists(st.integers(0, 9), max_size=3),
    st.dictionaries(st.text(max_size=2), st.integers(0, 9), max_size=2),
)
effects = st.sampled_from(["idempotent", "at_least_once", "skip", "fail", "rerun"])
step = st.tuples(st.sampled_from("ab"), effects, values, st.booleans())
"""Name, effect, what it gives, whether it raises instead."""
deaths = st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["before", "inside", "after"])), max_size=3)


class Die(BaseException):
    """The process ends here."""


class World:
    """What happened outside, how often, and when the program dies."""

    def __init__(self) -> None:
        self.happened: Counter[str] = Counter()
        self.finished: set[str] = set()
        self.death: tuple[int, str] | None = None
        self.count = 0

    def dies(self, when: str) -> bool:
        return self.death == (self.count, when)


def run(ctx: Context, world: World, program: list[Any]) -> list[Any]:
    """All steps of a program, every other one in a scope."""
    found: list[Any] = []
    scope = ctx.scope("part")
    for number, (name, effect, value, raises) in enumerate(program):
        world.count = number
        where = scope if number % 2 else ctx
        if world.dies("before"):
            raise Die
        found.append(_asked(where, world, name, effect, (number, value), raises))
        if world.dies("after"):
            raise Die
    return found


def _asked(ctx: Context, world: World, name: str, effect: str, what: tuple[int, Any], raises: bool) -> Any:
    number, value = what

    def happen(_: int) -> Any:
        path = ctx.current.path
        assert path not in world.finished, "a finished step ran again"
        world.happened[path] += 1
        if world.dies("inside"):
            raise Die
        world.finished.add(path)
        if raises:
            raise ValueError(number)
        return value

    guarded = effect in ("skip", "fail", "rerun")
    options: dict[str, Any] = {"effect": effect}
    if guarded:
        options = {"effect": "exactly_once_guarded", "on_ambiguous": effect, "skipped": "skipped"}
    try:
        return "gave", ctx.step(name, happen, number, **options)
    except ValueError as error:
        return "raised", error.args


@given(st.lists(step, min_size=1, max_size=10), deaths)
def test_a_program_that_dies_anywhere_gets_through_as_if_it_had_not(program: list[Any], deaths: list[Any]) -> None:
    world, execution = World(), uuid4()
    with tempfile.TemporaryDirectory() as directory, holdfast.open(directory, settings=SETTINGS) as log:
        first: list[Any] | None = None
        for death in [*deaths, None, None]:
            world.death = death
            try:
                with log.execution("model", id=execution) as ctx:
                    found = run(ctx, world, program)
            except Die:
                continue
            except AmbiguousEffect as error:
                assert error.path not in world.finished
                assert world.happened[error.path] == 1
                return
            if first is not None:
                assert found == first
            first = found
        assert first is not None
        for number, (kind, value) in enumerate(first):
            _, effect, given, raises = program[number]
            if effect == "skip" and (kind, value) == ("gave", "skipped") and given != "skipped":
                continue  # it was ambiguous
            assert (kind, value) == (("raised", (number,)) if raises else ("gave", given))
    assert all(count == 1 for path, count in world.happened.items() if path in _once(program))


def _once(program: list[Any]) -> set[str]:
    """Paths of guarded steps that are never run again."""
    seen: Counter[tuple[int, str]] = Counter()
    found: set[str] = set()
    for number, (name, effect, _, _) in enumerate(program):
        seen[number % 2, name] += 1
        count = seen[number % 2, name]
        path = ("part/" if number % 2 else "") + (name if count == 1 else f"{name}#{count}")
        if effect in ("skip", "fail"):
            found.add(path)
    return found
