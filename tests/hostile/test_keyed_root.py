"""The root of a log with keys, changed by somebody who has none: the same rows, or a refusal; never other rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from holdfast import Keyring
from tests.hostile import roots
from tests.hostile.judging import Judgement, Trial, lives, tells_the_truth
from tests.hostile.mutations import KINDS, far_away, kind_of
from tests.hostile.worker import ACTIONS

pytestmark = pytest.mark.store

Seeds = Callable[[int], range]

READS = ("read", "full", "tail", "topics", "restore")


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    """A root with one of each kind of object, signed, and its readers, which have the keyring."""
    base = tmp_path_factory.mktemp("keyed")
    keyring = Keyring.generate()
    keyring.save(base / "keys")
    made = roots.make(base, keyring)
    assert {kind_of(key) for key in made.objects} == set(KINDS)
    trial = Trial(made, tmp_path_factory.mktemp("scratch"), f"file:{base / 'keys'}")
    yield trial
    trial.close()


@pytest.fixture(scope="module")
def judge(trial: Trial) -> Judgement:
    """What is true, read before anything is spoiled."""
    expected = {action: trial.attempt(action) for action in ACTIONS}
    for outcome in expected.values():
        assert (outcome.outcome, lives(outcome)) == ("rows", ""), outcome
    return tells_the_truth(expected)


@pytest.fixture
def seeds(seed: int, is_sampled: bool) -> Seeds:
    """So many seeds, and a quarter of them in the gate: others for each commit; HOLDFAST_SEED begins elsewhere."""
    first = int(os.environ.get("HOLDFAST_SEED", seed))
    return lambda count: range(first, first + (-(-count // 4) if is_sampled else count))


@pytest.mark.core
def test_no_forged_object_changes_what_is_read(trial: Trial, judge: Judgement, seeds: Seeds) -> None:
    assert trial.run(seeds(80), READS, judge) == []


def test_no_forged_object_changes_what_the_owner_has(trial: Trial, judge: Judgement, seeds: Seeds) -> None:
    assert trial.run(seeds(6), ("reconcile",), judge) == []


def test_no_repair_makes_a_forgery_true(trial: Trial, judge: Judgement, seeds: Seeds) -> None:
    """What the owner writes is signed: it must not be what somebody else said."""
    assert trial.run(seeds(12), ("repair",), judge) == []


def test_no_number_of_an_object_keeps_anybody_busy(trial: Trial, judge: Judgement) -> None:
    for mutation in far_away(trial.objects):
        for action in ("reconcile", "repair", "restore"):
            outcome = trial.attempt(action, mutation)
            assert lives(outcome) == "", (str(mutation), outcome)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_thousands_of_forged_objects(trial: Trial, judge: Judgement, kind: str, seeds: Seeds) -> None:
    """The same, long enough to find what is rare."""
    assert trial.run(seeds(600), READS, judge, kind) == []
    assert trial.run(seeds(40), ("reconcile",), judge, kind) == []
    assert trial.run(seeds(60), ("repair",), judge, kind) == []
