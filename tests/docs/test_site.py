"""The site has every page once, and every link finds its place: what `script/docs` demands, without mkdocs."""

from __future__ import annotations

import re
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import yaml

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SECTIONS = [
    "Start", "Append", "Read", "Ship", "Spark", "Programs", "Share and serve", "Operate", "Reference", "Internals",
]  # fmt: skip


def leaves(nav: object) -> list[str]:
    """The pages below a part of the navigation."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in leaves(part)]


def navigation() -> list[dict[str, object]]:
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]


def script(name: str) -> ModuleType:
    """A script as a module."""
    loader = SourceFileLoader(name.partition(".")[0], str(ROOT / "script" / name))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_navigation_goes_by_task() -> None:
    """Its parts are what people come to do, in this order."""
    assert [title for part in navigation() for title in part] == SECTIONS


def test_every_page_is_in_the_navigation_once() -> None:
    """No page is left out, named twice, or missing."""
    pages = leaves(navigation())
    assert sorted(pages) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_the_index_leads_to_every_how_to() -> None:
    """Two dozen lines, and no how-to that they do not name."""
    text = (DOCS / "index.md").read_text()
    assert len(re.findall(r"^\| … ", text, re.MULTILINE)) <= 24
    for page in (DOCS / "howto").glob("*.md"):
        assert f"(howto/{page.name})" in text, page.name


def test_comparisons_are_honest() -> None:
    """Each says when to take the other one and names its sources, and has no figure but those of our measurements."""
    measured = (DOCS / "operations.md").read_text() + (DOCS / "images/wedge.svg").read_text()
    pages = sorted((DOCS / "compare").glob("*.md"))
    assert len(pages) == 7
    for page in pages:
        text = page.read_text()
        assert re.search(r"^## Take .+?^\* .+?^Sources: \[", text, re.MULTILINE | re.DOTALL), page.name
        assert f"(compare/{page.name})" in (DOCS / "compare.md").read_text()
        figures = re.findall(r"[\d.,]*\d(?= (?:×|rows/s|appends/s|failed|files))", text)
        assert all(re.search(rf"(?<![\d.,]){re.escape(figure)}(?!\d)", measured) for figure in figures), page.name
        assert figures or "We have" in text, page.name


def test_a_how_to_shows_code_at_once_and_a_decision_is_short() -> None:
    """Code within fourteen lines and 110 words; 800 words at most, but for the list of where channels differ."""
    for page in (DOCS / "howto").glob("*.md"):
        opening, fence, _ = page.read_text().partition("```")
        assert fence, page.name
        assert opening.count("\n") <= 14, page.name
        assert len(opening.split()) <= 110, page.name
    for page in (DOCS / "decisions").glob("*.md"):
        limit = 1300 if page.name.startswith("0009") else 800
        assert len(page.read_text().split()) <= limit, page.name


def test_a_link_out_of_the_documents_leads_into_the_repository() -> None:
    """On the site it becomes the file's place there; a file that is not there ends the building."""
    links = script("site_links.py")
    page = SimpleNamespace(file=SimpleNamespace(src_uri="howto/some.md"))
    text = "[a](../../examples/agent.py), [b](../quickstart.md#install), [c](spark.md)"
    assert links.on_page_markdown(text, page=page) == text.replace(
        "../../examples", f"{links.repository()}/blob/main/examples"
    )
    with pytest.raises(FileNotFoundError):
        links.on_page_markdown("[a](../../examples/none.py)", page=page)


def test_links_are_no_paths_from_the_top() -> None:
    """A page is read from the disk as well as from a server."""
    for page in DOCS.rglob("*.md"):
        assert not re.search(r"\]\(/", page.read_text()), page.name


def test_search_on_a_disk_needs_no_network() -> None:
    """The theme would fetch this script, were it not named here; its plugin looks for the word."""
    (brought,) = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["extra"]["polyfills"]
    assert "iframe-worker" in brought
    assert (DOCS / brought).exists()


def test_what_is_generated_is_current() -> None:
    """`script/llms.py`, `script/sbom` and `script/reference.py` would write what is there."""
    assert script("llms.py").llms() == (ROOT / "llms.txt").read_text()
    assert script("sbom").sbom() == (ROOT / "requirements/sbom.json").read_text()
    for page, text in script("reference.py").reference().items():
        assert page.read_text() == text, f"run script/reference.py: {page.name} is not what the definitions say"


def test_files_for_others_can_be_read() -> None:
    """Workflows and templates are YAML; what they and the hooks run is there; the wheel's version is said once."""
    files = [ROOT / ".pre-commit-config.yaml", *(ROOT / ".github").rglob("*.yml")]
    assert len(files) >= 6
    for file in files:
        assert yaml.safe_load(file.read_text()), file.name
        for name in re.findall(r"(?<!\S)script/\w+", file.read_text()):
            assert (ROOT / name).exists(), f"{file.name}: {name}"
    matrix = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"]["gate"]["strategy"]["matrix"]
    known = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert matrix["python"] == known
    container = (ROOT / "deploy/Containerfile").read_text()
    for line in re.findall(r"^COPY (?!--)(.+) \S+$", container, re.MULTILINE):
        assert all((ROOT / source).exists() for source in line.split()), line
