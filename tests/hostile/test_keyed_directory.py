"""The directory of a log with keys, changed by somebody who has none: all of it, a refusal, or what the guarantees say.

A test of rows and pages is `disk/test_tampering.py`; here whole files are damaged, swapped, removed and put back, in
all folders and in both states in which an owner leaves a directory.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from holdfast import Keyring
from tests.hostile import directories
from tests.hostile.directories import Directory
from tests.hostile.judging import Child, Outcome, apply, lives
from tests.hostile.mutations import Mutation

pytestmark = pytest.mark.disk

STATES = ("closed", "killed")
ACTIONS = ("own", "look")
REFUSALS = ("Corrupt", "NotFound", "Unavailable", "Invalid")
Streams = dict[str, list[str]]


class Trial(NamedTuple):
    """A directory in both states, and where copies of it are spoiled."""

    states: dict[str, Directory]
    truths: dict[str, Streams]
    scratch: Path
    keyring: str
    child: Child

    def attempt(self, state: str, action: str, mutation: Mutation | None) -> Outcome:
        """What comes of one action on a copy with this change."""
        target = self.scratch / "log"
        directories.lay_out(self.states[state].later, target)
        if mutation is not None:
            apply(mutation, target)
        return self.child.ask({"action": action, "directory": str(target), "keyring": self.keyring})


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    """Both states, and what is true of them, read before anything is spoiled."""
    base = tmp_path_factory.mktemp("directory")
    keyring = Keyring.generate()
    keyring.save(base / "keys")
    made, child = directories.make(base, keyring), Child()
    with contextlib.closing(child):
        trial = Trial(made, {}, base, f"file:{base / 'keys'}", child)
        for state in STATES:
            seen = [trial.attempt(state, action, None) for action in ACTIONS]
            assert {(one.outcome, lives(one)) for one in seen} == {("rows", "")}, seen
            assert seen[0].digest == seen[1].digest
            trial.truths[state] = json.loads(seen[0].digest)
        yield trial


def problem(outcome: Outcome, mutation: Mutation, truth: Streams) -> str:
    """What is wrong with an outcome; empty if nothing is."""
    if outcome.outcome != "rows":
        return lives(outcome) if outcome.outcome in REFUSALS else str(outcome)
    streams: Streams = json.loads(outcome.digest)
    if streams == truth:
        return lives(outcome)
    others = [name for name in truth if streams.get(name) != truth[name]]
    return "" if is_documented(mutation) and is_earlier(streams, truth) else f"other contents in {others}"


def is_documented(mutation: Mutation) -> bool:
    """What docs/guarantees.md says cannot be noticed without a store: an older database as a whole, and the end of what
    no row of the database names yet.
    """
    return mutation.kind.startswith("durable.db") or mutation.kind == "groups"


def is_earlier(streams: Streams, truth: Streams) -> bool:
    """Whether all records are the first ones of the truth."""
    return all(streams[name] == truth[name][: len(streams[name])] for name in ("orders/0", "orders/1", "rows"))


@pytest.fixture
def seeds(seed: int) -> Callable[[int], range]:
    """So many seeds; HOLDFAST_SEED begins elsewhere."""
    first = int(os.environ.get("HOLDFAST_SEED", seed))
    return lambda count: range(first, first + count)


def run(trial: Trial, state: str, seeds: range) -> list[str]:
    """What was wrong, by seed."""
    wrong = []
    for seed in seeds:
        chance = Random(seed)
        mutation = directories.spoil(chance, trial.states[state])
        action = chance.choice(ACTIONS)
        outcome = trial.attempt(state, action, mutation)
        if found := problem(outcome, mutation, trial.truths[state]):
            wrong.append(f"seed={seed} {mutation} {action}: {found}")
    return wrong


@pytest.mark.parametrize("state", STATES)
def test_no_changed_file_changes_what_the_log_says(trial: Trial, state: str, seeds: Callable[[int], range]) -> None:
    assert run(trial, state, seeds(30)) == []


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("state", STATES)
def test_thousands_of_changed_files(trial: Trial, state: str, seeds: Callable[[int], range]) -> None:
    """The same, long enough to find what is rare."""
    assert run(trial, state, seeds(2_000)) == []
