"""docs/reference/cli.md is the contract: it has every exit code, and every line that a verb prints with `--json`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.cli import exit_codes

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")


def test_every_exit_code_is_documented() -> None:
    """The table of exit codes has exactly those that there are."""
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", DOCUMENT, re.MULTILINE)}
    assert codes == {exit_codes.FINE, exit_codes.REFUSED, exit_codes.USAGE, exit_codes.DAMAGED, exit_codes.INTERRUPTED}


def test_every_line_of_json_is_documented() -> None:
    """Each type of the verbs that ends in `Line` is one whose fields the page has, or stands in one of them."""
    verbs = [*(ROOT / "src/holdfast/cli/verbs").glob("*.py"), ROOT / "src/holdfast/cli/executions/execution_lines.py"]
    lines = {name for file in verbs for name in re.findall(r"^class (\w+Line)\(", file.read_text(), re.MULTILINE)}
    assert len(lines) > 20
    assert [name for name in lines if name not in DOCUMENT] == []
