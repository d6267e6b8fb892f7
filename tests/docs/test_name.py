"""The distribution is `holdfast-log`. What the index calls `holdfast` is somebody else's: we never recommend it."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import entry_points, requires
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
PLACES = ("src", "docs", "examples", "script", "bench", "tests", ".ci")
KINDS = {".py", ".md", ".ipynb", ".toml", ".yml", ".yaml", ".svg", ".lock", ".txt", ""}
FOREIGN = re.compile(
    r"""
      \b(?:install|add|uninstall)(?:\s+-\S+)*\s+['"`]*holdfast\b(?!-log|\w)   # pip install holdfast
    | (?<![\w.-])holdfast\[                                                   # holdfast[s3]
    | \b(?:version|distribution|metadata|requires)\(["']holdfast["']\)       # importlib.metadata
    | (?<![\w.-])holdfast\s?(?:==|>=|~=|@\s)                                  # a requirement
    """,
    re.VERBOSE,
)
ALLOWED = "pip uninstall holdfast holdfast-log"
"""The one line that names the foreign package as such: how to get rid of both."""


def texts() -> list[Path]:
    """Every text file of ours that a person or a program reads."""
    here = Path(__file__)
    found = [path for place in PLACES for path in (ROOT / place).rglob("*") if path.is_file() and path.suffix in KINDS]
    tops = [path for path in ROOT.iterdir() if path.suffix in {".md", ".toml"}]
    return [
        path
        for path in (*found, *tops)
        if path != here and "golden" not in path.parts and "__pycache__" not in path.parts
    ]


def test_nothing_recommends_the_foreign_distribution() -> None:
    """No text, error, example, script or requirement names `holdfast` where it means the distribution."""
    files = texts()
    assert len(files) > 400
    wrong = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in files
        for found in FOREIGN.finditer(path.read_text(encoding="utf-8").replace(ALLOWED, ""))
    ]
    assert not wrong


@pytest.mark.parametrize(
    "text",
    [
        "pip install holdfast",
        "pip install -U holdfast",
        "pip install 'holdfast[s3]'",
        "So install `holdfast`, and",
        "uv add holdfast",
        "holdfast[spark]",
        'version("holdfast")',
        "holdfast>=0.1",
    ],
)
def test_the_other_spelling_is_noticed(text: str) -> None:
    """Each way of naming the foreign one is found, and its own name is not."""
    assert FOREIGN.search(text)
    assert not FOREIGN.search(re.sub(r"\bholdfast\b", "holdfast-log", text))


def test_the_extras_are_those_of_the_distribution() -> None:
    """What is installed here calls itself `holdfast-log`, with the extras that our texts name and the command."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == "holdfast-log"
    assert requires("holdfast-log")
    assert any(point.dist and point.dist.name == "holdfast-log" for point in entry_points(group="console_scripts"))
    named = {
        extra
        for path in texts()
        for extras in re.findall(r"holdfast-log\[([\w,]+)\]", path.read_text(encoding="utf-8"))
        for extra in extras.split(",")
    }
    assert named <= set(project["optional-dependencies"]), named
