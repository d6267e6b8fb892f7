"""The checklists name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {
    "0005-segment-checklist": (100, 90),
    "0007-shipping-checklist": (100, 40),
    "0010-channels-checklist": (200, 150),
    "0019-executions": (60, 50),
    "0020-executions-checklist": (90, 60),
}
"""The checklists; each names more tests than this, and has more items."""
NAMED = re.compile(r"`((?:unit/)?[a-z_]+/test_\w+\.py)(?:::(test_\w+))?`")


pytestmark = [pytest.mark.disk, pytest.mark.parametrize("page", PAGES)]


def test_every_item_names_a_test_that_exists(page):
    """Each file is there, and each test is defined in it."""
    named = NAMED.findall(text_of(page))
    assert len(named) > PAGES[page][0]
    lacking = [f"{file}::{test}" for file, test in named if not _is_there(ROOT / "tests" / file, test)]
    assert lacking == []


def test_every_item_has_an_answer(page):
    """A line names a test, refers to a hole that does, or says that and why it does not apply."""
    lines = [line for line in text_of(page).splitlines() if line.startswith("| ") and "---" not in line]
    heads = {"item", "hole", "behaviour"}
    items = [line for line in lines if line.split("|")[1].strip() not in heads]
    assert len(items) > PAGES[page][1]
    silent = [line for line in items if not NAMED.search(line) and not re.search(r"not applicable|hole \d|above", line)]
    assert silent == []


def text_of(page: str) -> str:
    return (ROOT / f"docs/decisions/{page}.md").read_text()


def _is_there(path: Path, test: str) -> bool:
    return path.exists() and (
        not test or re.search(rf"^ *(?:async )?def {test}\(", path.read_text(), re.MULTILINE) is not None
    )
