"""The documents tell the truth: their examples run, and nothing public is missing from them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import msgspec
import pytest

import holdfast
from holdfast import Settings, errors
from holdfast.rebuilding import Lost
from holdfast.segments.classify import Finding, Kind
from holdfast.segments.reconcile import Repair
from holdfast.segments.retention import Removed
from holdfast.segments.stats import SegmentStats
from holdfast.watch import Watch

pytestmark = pytest.mark.disk

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [p for p in PAGES if BLOCK.search(p.read_text())], ids=name_of)
def test_examples_run(page, tmp_path):
    """The Python blocks of a page run, in order, in an empty directory, without a warning."""
    blocks = BLOCK.findall(page.read_text())
    tests = [block for block in blocks if block.startswith("def test_")]
    script = "\n".join(block for block in blocks if block not in tests)
    (tmp_path / "example.py").write_text(script)
    run = [sys.executable, "-W", "error", "example.py"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    if tests:
        (tmp_path / "test_example.py").write_text("\n".join(tests))
        run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_example.py"]
        done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout


def test_the_readmes_command_line_runs(tmp_path):
    """The `holdfast` lines of the README work as they stand there."""
    lines = [line for block in SHELL.findall((ROOT / "README.md").read_text()) for line in block.splitlines()]
    commands = [line.partition("#")[0] for line in lines if line.startswith("holdfast ")]
    assert len(commands) >= 3
    program = shutil.which("holdfast", path=str(Path(sys.executable).parent))
    assert program
    for command in commands:
        done = subprocess.run(
            command.replace("holdfast", program, 1),
            shell=True,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, command + done.stderr


def test_the_readme_is_short_and_in_order():
    """The README has under 200 lines and says what it is, what it is not, the commands, code, durability, links."""
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) < 200
    order = ["# holdfast", "## What it is not", "script/demo", "## Twelve lines", "## Durability", "## More"]
    places = [text.index(part) for part in order]
    assert places == sorted(places)


def test_every_link_leads_somewhere():
    """Relative links in the documents point to files that exist."""
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{name_of(page)}: {target}"


def test_every_setting_is_documented():
    """Each setting has its row under its section, with its default."""
    page = (ROOT / "docs/reference/settings.md").read_text()
    for section in msgspec.structs.fields(Settings):
        part = re.split(r"^## ", page.partition(f"\n## {section.name}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
        for field in msgspec.structs.fields(section.type):
            row = re.search(rf"^\| `{field.name}` \| (\S+) \|", part, re.MULTILINE)
            assert row, f"{section.name}.{field.name}"
            assert default_of(row[1], section.name, field) == field.default, f"{section.name}.{field.name}"


def default_of(text: str, section: str, field: msgspec.structs.FieldInfo) -> object:
    """A default as the page shows it, read the way settings are."""
    plain = "" if text == "empty" else text.strip("`").replace(",", "")
    return getattr(getattr(Settings.from_mapping({section: {field.name: plain}}), section), field.name)


def test_every_error_is_documented():
    """Each kind of error has its row."""
    page = (ROOT / "docs/reference/errors.md").read_text()
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.HoldfastError):
            assert f"| `{name}` |" in page


def test_every_public_name_is_documented():
    """Each name of `holdfast.__all__`, and each public method of what they give, is in the API reference."""
    page = (ROOT / "docs/reference/api.md").read_text()
    kinds = (holdfast.Log, holdfast.Topic, holdfast.TypedTopic, holdfast.Ticket, holdfast.Reading, Watch)
    methods = [m for kind in kinds for m in vars(kind) if not m.startswith("_")]
    for name in [*holdfast.__all__, *methods]:
        assert re.search(rf"\b{name}\b", page), name


@pytest.mark.parametrize(
    "kind",
    [
        holdfast.Watermark,
        holdfast.ReconcileReport,
        Finding,
        Repair,
        holdfast.RetentionReport,
        Removed,
        holdfast.RebuildReport,
        Lost,
        SegmentStats,
    ],
)
def test_every_field_of_reports_and_stats_is_documented(kind):
    """Each field is named in the API reference."""
    page = (ROOT / "docs/reference/api.md").read_text()
    for field in msgspec.structs.fields(kind):
        assert f"`{field.name}`" in page, field.name


def test_every_kind_of_finding_says_what_to_do():
    """Each kind of finding has its row."""
    page = (ROOT / "docs/howto/reconcile.md").read_text()
    rows = " ".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| "))
    for kind in get_args(Kind):
        assert f"`{kind}`" in rows, kind


def test_every_action_in_the_logs_is_documented():
    """Each `action` that is logged is named in the API reference."""
    page = (ROOT / "docs/reference/api.md").read_text()
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    actions = set(re.findall(r'"action": "(\w+)"', source))
    assert len(actions) > 15
    for action in actions:
        assert f"`{action}`" in page, action


def test_every_promise_names_a_test_that_exists():
    """The files named in the guarantees are there."""
    named = re.findall(r"`(\w+/test_\w+\.py)`", (ROOT / "docs/guarantees.md").read_text())
    assert len(named) > 30
    for file in set(named):
        assert (ROOT / "tests" / file).exists(), file
