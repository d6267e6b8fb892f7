"""The gate takes some of many cases: which ones follows from the seed, and no function is left out unseen."""

from __future__ import annotations

import re

import pytest
from tests import sampling

pytestmark = pytest.mark.unit

SUBJECT = """
import pytest

@pytest.mark.sampled(3)
@pytest.mark.parametrize("n", range(100))
def test_many(n): pass

@pytest.mark.parametrize("n", range(100))
def test_unmarked(n): pass

@pytest.mark.spark
@pytest.mark.parametrize("n", range(100))
def test_dear(n): pass

@pytest.mark.sampled(1, each="kind")
@pytest.mark.parametrize("n", range(10))
@pytest.mark.parametrize("kind", ["a", "b"])
def test_kinds(kind, n): pass

@pytest.mark.full("takes minutes")
def test_long(): pass

@pytest.mark.core
def test_core(): pass

def test_loop(some):
    assert len(some(range(50), 5)) == 50, some(range(50), 5)
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Run pytest on the subject with a seed; returns the lines that it printed."""
    pytester.makepyfile(test_subject=SUBJECT)

    def start(*options: str, seed: int = 7) -> list[str]:
        monkeypatch.setenv(sampling.VARIABLE, str(seed))
        return pytester.runpytest_inprocess("-p", "tests.sampling", "-v", *options).outlines

    return start


def cases(lines: list[str], function: str) -> list[str]:
    return [line.split()[0] for line in lines if re.match(rf"test_subject\.py::{function}\b.* (PASSED|FAILED)", line)]


def test_some_cases_are_taken_the_same_for_the_same_seed(run):
    """So many of each function or of each kind; without --sample all of them."""
    first, again, other, everything = run("--sample"), run("--sample"), run("--sample", seed=8), run()
    assert len(cases(first, "test_many")) == 3
    assert cases(first, "test_many") == cases(again, "test_many") != cases(other, "test_many")
    assert [re.findall(r"\[(.)", case) for case in cases(first, "test_kinds")] == [["a"], ["b"]]
    assert len(cases(first, "test_unmarked")) == sampling.CASES
    assert len(cases(first, "test_dear")) == sampling.CASES_OF["spark"] < sampling.CASES
    assert not cases(first, "test_long")
    assert [len(cases(everything, name)) for name in ("test_many", "test_kinds", "test_long")] == [100, 20, 1]


def test_dear_functions_take_turns(run, tmp_path, monkeypatch):
    """A third runs for each seed, and each in one of three; what is core runs always."""
    dear = tmp_path / "dear.txt"
    dear.write_text("test_subject.py::test_loop\ntest_subject.py::test_core\ntest_subject.py::test_many\n")
    monkeypatch.setattr(sampling, "DEAR", dear)
    names = ("test_loop", "test_core", "test_many", "test_kinds")
    runs = [[len(cases(run("--sample", seed=seed), name)) for name in names] for seed in range(3)]
    assert runs == [[1, 1, 0, 2], [0, 1, 3, 2], [0, 1, 0, 2]]
    assert [len(cases(run("--sample", "--all-turns"), name)) for name in names] == [1, 1, 3, 2]


def test_those_that_take_turns_are_there():
    """One that was renamed would run with each commit."""
    for name in sampling.DEAR.read_text().split():
        file, *_, function = name.split("::")
        assert function == "runTest" or f"def {function}(" in (sampling.DEAR.parent.parent / file).read_text(), name


def test_a_report_names_the_dear_ones(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testcase classname="tests.a.test_b" name="test_c[1.5]" time="0.7"/>'
        '<testcase classname="tests.a.test_b" name="test_c[2]" time="0.7"/>'
        '<testcase classname="tests.a.test_b" name="test_cheap" time="0.9"/>'
        '<testcase classname="tests.a.test_b.TestD" name="test_e" time="2"/></testsuites>'
    )
    assert sampling.dear(report) == ["tests/a/test_b.py::TestD::test_e", "tests/a/test_b.py::test_c"]


def test_a_failure_comes_with_the_command_that_repeats_it(run):
    """Its loop takes the same five of fifty again."""
    lines = run("--sample")
    assert "some of the cases, TESTS_SEED=7" in lines
    (command,) = [line for line in lines if line.startswith("again: ")]
    assert command == "again: TESTS_SEED=7 .venv/bin/python -m pytest --sample test_subject.py::test_loop"
    (failure,) = [line for line in lines if line.startswith("E ") and "AssertionError" in line]
    assert failure in run("--sample", "test_subject.py::test_loop")
    assert failure not in run("--sample", "test_subject.py::test_loop", seed=8)


def test_no_function_is_left_out_without_a_reason(pytestconfig):
    """Of all that was collected here: what is not in this gate says why."""
    assert all(pytestconfig.stash[sampling.LEFT_OUT].values())
