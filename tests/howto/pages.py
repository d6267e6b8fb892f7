"""Programs as how-to pages show them: a block that begins with ```python file=NAME is that file, word for word."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "howto"
_FILE = re.compile(r"^```python file=(\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def write_files(page: str, folder: Path) -> None:
    """Put the files of a page into a folder."""
    for name, text in _files(page).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _files(page: str) -> dict[str, str]:
    found = dict(_FILE.findall((FOLDER / page).read_text()))
    assert found, page
    return found


def command(page: str, beginning: str) -> list[str]:
    """The one command of a page that begins so; the program is that of this environment."""
    lines = [line for block in _SHELL.findall((FOLDER / page).read_text()) for line in block.splitlines()]
    found = [line.partition("#")[0] for line in lines if line.startswith(beginning)]
    assert len(found) == 1, f"{page}: {beginning}: {found}"
    program, *words = shlex.split(found[0])
    place = Path(sys.executable).parent
    return [sys.executable if program == "python" else str(place / program), *words]
