"""What mkdocs does to pages on their way to the site: links that leave docs/ lead to the repository."""

from __future__ import annotations

import posixpath
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\((\.\./[^)#\s]+)")


def repository() -> str:
    """Where the project lies, as pyproject.toml says."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"])


def on_post_build(config: Any, **_: object) -> None:
    """The site carries llms.txt."""
    shutil.copy(ROOT / "llms.txt", config["site_dir"])


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """A page's text, with each link to a file outside of docs/ as one into the repository."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def outside(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, found[1]))
        if target.startswith("docs/"):
            return found[0]
        if not (ROOT / target).exists():
            raise FileNotFoundError(f"{page.file.src_uri} links to {target}, which is not there")
        return f"]({repository()}/blob/main/{target}"

    return LINK.sub(outside, markdown)
