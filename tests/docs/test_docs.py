"""The documents tell the truth: their examples run, and nothing public is missing from them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import holdfast
from holdfast import Settings, errors

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
    """Each setting has its row, with its default."""
    page = (ROOT / "docs/reference/settings.md").read_text()
    for section in msgspec.structs.fields(Settings):
        for field in msgspec.structs.fields(section.type):
            assert f"| `{field.name}` |" in page, f"{section.name}.{field.name}"


def test_every_error_is_documented():
    """Each kind of error has its row."""
    page = (ROOT / "docs/reference/errors.md").read_text()
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.HoldfastError):
            assert f"| `{name}` |" in page


def test_every_public_name_is_documented():
    """Each name of `holdfast.__all__`, and each public method of Log and Topic, is in the API reference."""
    page = (ROOT / "docs/reference/api.md").read_text()
    methods = [
        m for kind in (holdfast.Log, holdfast.Topic, holdfast.Ticket) for m in vars(kind) if not m.startswith("_")
    ]
    for name in [*holdfast.__all__, *methods]:
        assert re.search(rf"\b{name}\b", page), name


def test_every_promise_names_a_test_that_exists():
    """The files named in the guarantees are there."""
    named = re.findall(r"`((?:crash|disk|model|unit)/test_\w+\.py)`", (ROOT / "docs/guarantees.md").read_text())
    assert len(named) > 15
    for file in set(named):
        assert (ROOT / "tests" / file).exists(), file
