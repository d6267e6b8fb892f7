"""The site has every page once, and every link finds its place: what `script/docs` demands, without mkdocs."""

from __future__ import annotations

import re
from pathlib import Path

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


def test_a_link_out_of_the_documents_leads_into_the_repository() -> None:
    """On the site it becomes the file's place there; a file that is not there ends the building."""
    from importlib.util import module_from_spec, spec_from_file_location
    from types import SimpleNamespace

    spec = spec_from_file_location("site_links", ROOT / "script/site_links.py")
    assert spec is not None
    assert spec.loader is not None
    links = module_from_spec(spec)
    spec.loader.exec_module(links)
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
