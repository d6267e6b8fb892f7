"""What the gate takes of the many: `pytest --sample`, which `script/test` uses and `script/test full` does not.

Some promises are held against thousands of cases: every byte, every step, every kind of damage. With `--sample`

* a function runs at most four of its cases, fewer where they are dear (`CASES_OF`): two with a disk or a store, one
  that kills, one of Spark; with `@pytest.mark.sampled(9)` nine; with `sampled(1, each=("kind", "keyed"))` one of each
  combination of those parameters;
* a test with a loop of its own takes what `some(cases, 9)` gives it;
* a property runs 30 examples in place of 100, or three of ten of `examples(25)`;
* functions that take more than a second take turns: a third of them runs, another one for another seed. `DEAR` names
  them; but what has `@pytest.mark.core` always runs. All thirds: `script/test gate -- --all-turns`, and, with
  `--junitxml=FILE`, `python -m tests.sampling FILE` measures anew who is dear;
* functions with `@pytest.mark.full("why")` do not run. No other function is ever left out, and `tests/unit/
  test_sampling.py` says so.

What is drawn follows from a seed and the test's name. The seed is that of the commit, or TESTS_SEED; it is printed,
and so is the command that repeats a test that failed. Without `--sample` everything runs but the choice of moments
(kills, schedules) still follows the seed.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import TypeVar
from xml.etree import ElementTree

import hypothesis
import pytest

Case = TypeVar("Case")
Some = Callable[..., list[Case]]

VARIABLE = "TESTS_SEED"
CASES = 4
"""What a function without a mark runs at most."""
CASES_OF = {"spark": 1, "crash": 1, "store": 2, "disk": 2}
"""What it runs at most in these tiers; the first that it has counts."""
DEAR = Path(__file__).with_name("dear.txt")
"""Functions that take turns, the dearest first: each third costs about the same."""
TURNS = 3
_DEAR_S = 1.0
_WAITS = "its turn comes with another commit"
SEED = pytest.StashKey[int]()
LEFT_OUT = pytest.StashKey[dict[str, str]]()
"""Functions of which not one case runs, and why."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample", action="store_true", help="take some of many cases, drawn by the seed of the commit")
    parser.addoption("--all-turns", action="store_true", help="with --sample: also what runs with other commits")
    parser.addoption(
        "--left-out", action="store_true", help="with --sample: list the functions that do not run, and why"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault(VARIABLE, str(seed_of_the_commit()))  # workers and processes inherit it
    config.stash[SEED] = int(os.environ[VARIABLE])
    config.stash[LEFT_OUT] = {}
    # Tests judge order and count, never the machine's pace.
    examples = 30 if config.option.sample else 100
    hypothesis.settings.register_profile(
        "any pace", deadline=None, max_examples=examples, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("any pace")
    config.option.hypothesis_seed = str(config.stash[SEED])


def examples(count: int) -> int:
    """So many examples of a property or a state machine; in the gate three of ten, and others for each commit."""
    return max(1, count * hypothesis.settings().max_examples // 100)


def seed_of_the_commit() -> int:
    """The first digits of the commit; where there is no git, the same number every time."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return 0
    return int(done.stdout[:7], 16) if done.returncode == 0 else 0


def pytest_sessionstart(session: pytest.Session) -> None:
    """Also with -q, which shows no header."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not session.config.option.collectonly:
        what = "some of the cases" if session.config.option.sample else "all cases"
        reporter.write_line(f"{what}, {VARIABLE}={session.config.stash[SEED]}")


def draw(seed: int, name: str, cases: Sequence[Case], count: int) -> list[Case]:
    """So many of the cases, in their order; always the same for a seed and a name."""
    if len(cases) <= count:
        return list(cases)
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return [cases[index] for index in sorted(Random(digest).sample(range(len(cases)), count))]


# -- cases that pytest knows ------------------------------------------------------------------------------------


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """After `-m` and `-k` have chosen."""
    if not config.option.sample:
        return
    waiting = set() if config.option.all_turns else others_turn(config.stash[SEED])
    kept = {id(item) for name, cases in functions(items).items() for item in chosen(config, cases, name in waiting)}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = [item for item in items if id(item) in kept]
    if config.option.left_out:
        left_out = config.stash[LEFT_OUT]
        print(*(f"{name}: {why}" for name, why in sorted(left_out.items())), sep="\n")
        print(f"{len(functions(items))} functions with {len(items)} cases are in the gate, {len(left_out)} are not")
        items.clear()


def functions(items: list[pytest.Item]) -> dict[str, list[pytest.Item]]:
    """Cases by the function that they are of."""
    found: dict[str, list[pytest.Item]] = {}
    for item in items:
        found.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return found


def others_turn(seed: int) -> set[str]:
    """Functions that run with other seeds."""
    return {name for place, name in enumerate(DEAR.read_text().split()) if (place + seed) % TURNS}


def chosen(config: pytest.Config, cases: list[pytest.Item], waits: bool) -> list[pytest.Item]:
    """The cases of one function that run."""
    waits = waits and cases[0].get_closest_marker("core") is None
    reasons = [reason(case) or (_WAITS if waits else None) for case in cases]
    wanted = [case for case, why in zip(cases, reasons, strict=True) if why is None]
    if not wanted:
        config.stash[LEFT_OUT][cases[0].nodeid.partition("[")[0]] = reasons[0] or ""
        return []
    mark = wanted[0].get_closest_marker("sampled")
    if mark is None:
        return draw(config.stash[SEED], name(wanted), wanted, cases_of(wanted[0]))
    return [case for group in groups(wanted, mark) for case in draw(config.stash[SEED], name(group), group, *mark.args)]


def cases_of(case: pytest.Item) -> int:
    """How many of its function's cases run where nothing is said."""
    return next((most for tier, most in CASES_OF.items() if case.get_closest_marker(tier)), CASES)


def reason(case: pytest.Item) -> str | None:
    """Why a case is not in the gate."""
    if case.get_closest_marker("soak") is not None:
        return "soak"
    mark = case.get_closest_marker("full")
    return None if mark is None else "".join(mark.args)


def groups(cases: list[pytest.Item], mark: pytest.Mark) -> list[list[pytest.Item]]:
    """Cases that are alike in the parameters of which each combination is wanted."""
    each = mark.kwargs.get("each", ())
    names = (each,) if isinstance(each, str) else each
    found: dict[str, list[pytest.Item]] = {}
    for case in cases:
        parameters = case.callspec.params  # type: ignore[attr-defined]
        found.setdefault(repr([parameters[name] for name in names]), []).append(case)
    return list(found.values())


def name(group: list[pytest.Item]) -> str:
    return group[0].nodeid


# -- cases that only a test knows -------------------------------------------------------------------------------


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """What all that is random in this test follows from."""
    digest = hashlib.sha256(f"{request.config.stash[SEED]} {request.node.nodeid}".encode()).digest()
    return int.from_bytes(digest[:4])


@pytest.fixture
def is_sampled(request: pytest.FixtureRequest) -> bool:
    """Whether this is the gate: for tests that have no list of cases, but do something several times."""
    return bool(request.config.option.sample)


@pytest.fixture
def some(is_sampled: bool, seed: int) -> Some[Case]:
    """`some(cases, 9)`: nine of them where cases are sampled, else all, or `full=` of them."""

    def take(cases: Sequence[Case], count: int, *, full: int | None = None) -> list[Case]:
        wanted = count if is_sampled else full
        return draw(seed, "", cases, len(cases) if wanted is None else wanted)

    return take


# -- what failed ------------------------------------------------------------------------------------------------


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The one command that repeats each failure."""
    reports = [*terminalreporter.stats.get("failed", ()), *terminalreporter.stats.get("error", ())]
    failed = list(dict.fromkeys(report.nodeid for report in reports if "::" in report.nodeid))
    sample = " --sample" if config.option.sample else ""
    for nodeid in failed[:20]:
        terminalreporter.write_line(
            f"again: {VARIABLE}={config.stash[SEED]} .venv/bin/python -m pytest{sample} {shlex.quote(nodeid)}"
        )


# -- what is dear -----------------------------------------------------------------------------------------------


def dear(report: Path) -> list[str]:
    """Functions that took longer than a second in a run of the gate, by its report, the dearest first."""
    costs: dict[str, float] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        *folders, last = str(case.get("classname")).split(".")
        module = [*folders, f"{last}.py"] if last.startswith("test_") else [*folders[:-1], f"{folders[-1]}.py::{last}"]
        name = f"{'/'.join(module)}::{case.get('name')}".partition("[")[0]
        costs[name] = costs.get(name, 0.0) + float(case.get("time", 0))
    return sorted((name for name, seconds in costs.items() if seconds > _DEAR_S), key=costs.__getitem__, reverse=True)


if __name__ == "__main__":
    DEAR.write_text("\n".join(dear(Path(sys.argv[1]))) + "\n")
