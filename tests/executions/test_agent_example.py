"""The agent of the examples survives kill -9: what it called is not called again."""

from __future__ import annotations

import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import holdfast
from holdfast.execution import AmbiguousEffect

pytestmark = pytest.mark.crash

CALLS = ["model", "search_flights", "book_flight", "model"]
ANSWER = '{"search_flights":["HF 17 to a","HF 4711 to a"],"book_flight":{"flight":"a","seat":"12A"}}'


@pytest.fixture
def victim() -> ModuleType:
    """Loaded when its tests run: pydantic-ai takes half a second of each worker that only collects them."""
    pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed (script/setup)")
    return import_module("tests.executions.agent_victim")


def killed(directory: Path, call: int, moment: str) -> None:
    """Run it until it is killed."""
    command = [
        sys.executable,
        "-m",
        "tests.executions.agent_victim",
        str(directory / "log"),
        str(directory / "witness"),
    ]
    done = subprocess.run([*command, str(call), moment], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


def calls(directory: Path) -> list[str]:
    witness = directory / "witness"
    return witness.read_text().split() if witness.exists() else []


def test_killed_between_any_two_calls_no_call_is_made_twice(tmp_path: Path, victim: ModuleType) -> None:
    """Killed before each call in turn: each run goes on where the last one died, and makes one call more."""
    for number in range(1, len(CALLS) + 1):
        killed(tmp_path, number, "before")
        assert calls(tmp_path) == CALLS[: number - 1]
    with holdfast.open(tmp_path / "log") as log:
        assert victim.run(log, victim.Death(tmp_path / "witness")) == ANSWER
        assert calls(tmp_path) == CALLS
        # Asked again, it answers from the log.
        assert victim.run(log, victim.Death(tmp_path / "witness")) == ANSWER
        assert calls(tmp_path) == CALLS
        assert log.executions.list(kind="agent")[0].status == "completed"


def test_killed_while_it_books_it_does_not_book_again_and_asks(tmp_path: Path, victim: ModuleType) -> None:
    killed(tmp_path, CALLS.index("book_flight") + 1, "during")
    execution = holdfast.execution_id("agent", victim.QUESTION)
    with holdfast.open(tmp_path / "log") as log:
        with pytest.raises(AmbiguousEffect, match="book_flight"):
            victim.run(log, victim.Death(tmp_path / "witness"))
        log.executions.settle(execution, "tool book_flight", b'{"flight":"a","seat":"12A"}')
        assert victim.run(log, victim.Death(tmp_path / "witness")) == ANSWER
    assert calls(tmp_path) == CALLS
