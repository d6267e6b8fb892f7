"""Make llms.txt: for programs that read documentation, every page with what it says first, as the navigation has them.

    .venv/bin/python script/llms.py

The site carries it (script/site_links.py); tests/docs/test_site.py holds it to the pages.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
SENTENCE = re.compile(r"(.+?[.:])(?=\s|\Z)", re.DOTALL)
LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def llms() -> str:
    """The text."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    sections = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    site, parts = project["urls"]["Documentation"], [f"# holdfast\n\n> {project['description']}\n"]
    parts.append(f"How to use it, in a page: [AGENTS.md]({project['urls']['Repository']}/blob/main/AGENTS.md)\n")
    for section in sections:
        for title, pages in section.items():
            lines = [line(page, site) for page in leaves(pages)]
            parts.append(f"## {title}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def line(page: str, site: str) -> str:
    """A page: its heading, its place, its first sentence."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    heading = text.partition("\n")[0].lstrip("# ")
    prose = next((part for part in text.split("\n\n")[1:] if part[0].isalpha() or part[0] in "*`"), "")
    found = SENTENCE.match(LINK.sub(r"\1", " ".join(prose.split())))
    about = f": {found[1].rstrip(':')}" if found else ""
    return f"- [{heading}]({site}{page.removesuffix('.md').replace('README', 'index')}.html){about}"


def leaves(nav: Any) -> list[str]:
    """The pages below a part of the navigation."""
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in leaves(part)]


if __name__ == "__main__":
    (ROOT / "llms.txt").write_text(llms(), encoding="utf-8")
