"""The checklists name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/decisions/0005-segment-checklist.md"
NAMED = re.compile(r"`([a-z_]+/test_\w+\.py)(?:::(test_\w+))?`")


@pytest.mark.disk
def test_every_item_of_the_segment_checklist_names_a_test_that_exists():
    """Each file is there, and each test is defined in it."""
    named = NAMED.findall(PAGE.read_text())
    assert len(named) > 100
    lacking = [f"{file}::{test}" for file, test in named if not _is_there(ROOT / "tests" / file, test)]
    assert lacking == []


@pytest.mark.disk
def test_every_item_of_the_segment_checklist_has_an_answer():
    """A line names a test, refers to a hole that does, or says that and why it does not apply."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "---" not in line]
    heads = {"item", "hole", "behaviour"}
    items = [line for line in lines if line.split("|")[1].strip() not in heads]
    assert len(items) > 90
    silent = [line for line in items if not NAMED.search(line) and not re.search(r"not applicable|hole \d|above", line)]
    assert silent == []


def _is_there(path: Path, test: str) -> bool:
    return path.exists() and (
        not test or re.search(rf"^(?:async )?def {test}\(", path.read_text(), re.MULTILINE) is not None
    )
