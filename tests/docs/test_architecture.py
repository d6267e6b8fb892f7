"""The map is true: `docs/architecture.md` is held to the tree, to the imports and to import-linter's contract.

When one of these fails after a move, its message has the lines that belong on the page.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
KINDS = ("*.py", "*.java", "*.html", "*.css", "*.js", "*.svg")
FILES = sorted(path.relative_to(SRC) for kind in KINDS for path in SRC.rglob(kind))
MODULES = [path for path in FILES if path.name != "__init__.py"]
BASE = "base"
FILES_ABOVE = {"settings", "results"}
"""Files of `holdfast/` that stand above rooms, and so are rows of the table by themselves."""
FILES_MAX = 15
ROOMY = {
    "holdfast/cli/verbs": "the verbs of the command line, a file each",
    "holdfast/root": "the readers and the keepers of one shape: a log's root on a store",
    "holdfast/segments/file": "one file format, from its footer to its rows",
    "holdfast/server/console": "the console's pages, as a browser loads them",
    "holdfast/store": "one port, and what all stores share",
    "pyspark_holdfast/pipeline": "a pipeline's run, step by step",
}
"""Folders that may have more files, and why."""
LINES_MAX = 500
SHARED_NAMES = {
    "channel": "a verb of the command line, and what it shows",
    "compact": "a verb of the command line, and the same as a job of Spark",
    "consumer": "a verb of the command line, and what it shows",
    "rebuild": "a verb of the command line, and what it calls",
    "restore": "a verb of the command line, and what it calls",
    "producer": "a verb of the command line, and what it calls",
    "seal": "a verb of the command line, and what it calls",
}
"""Base names that occur twice, and why."""
CHANGES = [
    "retention rule", "group commit window", "credentials", "Spark", "hash in the footer", "Spark writes",
    "verb of the log", "verb of the command line",
    "finding", "cipher", "backend", "executions", "HTTP server", "between processes", "dialect", "kind of table",
    "compaction", "layout", "mark",
]  # fmt: skip


def part(title: str) -> str:
    """The text under one heading."""
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def cells(text: str) -> list[list[str]]:
    """The rows of a table, without its head."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return [row for row in rows[1:] if not set(row[0]) <= {"-"}]


@cache
def room_of(module: str) -> str:
    """A module's room: `holdfast.journal.queue.queue` to `journal`, `holdfast.clock` to base."""
    package, _, rest = module.partition(".")
    name = rest.partition(".")[0]
    if package != "holdfast":
        return package
    if name == "__main__":
        return "cli"
    return name if name in FILES_ABOVE or (name and (SRC / "holdfast" / name).is_dir()) else BASE


def statements(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All statements, however deep, but those for type checkers alone."""
    for node in nodes:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        for field in ("body", "orelse", "finalbody", "handlers"):
            inner = getattr(node, field, ())
            if isinstance(inner, list):
                yield from statements(inner)


@cache
def imported(path: Path) -> frozenset[str]:
    """What a module imports of ours, at its top or inside functions."""
    found: set[str] = set()
    if path.suffix != ".py":
        return frozenset()
    for node in statements(ast.parse((SRC / path).read_text(encoding="utf-8")).body):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "holdfast":
            found |= {f"holdfast.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return frozenset(name for name in found if name.partition(".")[0] in ("holdfast", "pyspark_holdfast"))


def imports_of(room: str) -> set[str]:
    """The other rooms that a room imports, without base."""
    mine = [path for path in FILES if room_of(".".join(path.with_suffix("").parts)) == room]
    rooms = {room_of(name) for path in mine for name in imported(path)}
    return rooms - {room, BASE}


def rooms() -> dict[str, list[str]]:
    """The table of rooms: files, what it is, imports."""
    return {row[0].strip("`"): row[1:] for row in cells(part("The rooms"))}


def contracts() -> list[dict[str, Any]]:
    """The contracts of import-linter."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = project["tool"]["importlinter"]["contracts"]
    return found


def folders() -> dict[str, list[tuple[str, str]]]:
    """The lists of files, by folder below src."""
    found: dict[str, list[tuple[str, str]]] = {}
    for title, text in re.findall(r"^### `([\w/]+)/`\n(.*?)(?=^### |\Z)", part("Every file"), re.MULTILINE | re.DOTALL):
        folder = title if title.startswith(("holdfast", "pyspark_holdfast")) else f"holdfast/{title}"
        found[folder] = [(row[0].strip("`"), row[1]) for row in cells(text)]
    return found


def test_every_module_is_on_the_map() -> None:
    """Each file is listed once, in its folder, with a word about it; nothing is listed that is not there."""
    listed = sorted(Path(folder) / name for folder, rows in folders().items() for name, _ in rows)
    missing = [f"{path.parent}: | `{path.name}` | … |" for path in MODULES if path not in listed]
    assert not missing, "\n".join(missing)
    assert listed == MODULES, [str(path) for path in listed if path not in MODULES]
    assert all(len(text) > 5 for rows in folders().values() for _, text in rows)


def test_every_file_that_is_named_exists() -> None:
    """Each path with a slash leads to a file or a folder of ours, below `holdfast/` unless it says otherwise."""
    named = set(re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", PAGE))
    assert len(named) > 60
    gone = [name for name in named if not ((SRC / "holdfast" / name).exists() or (SRC / name).exists())]
    assert not gone
    bare = set(re.findall(r"(?<!\| )`(\w+\.py)`", PAGE)) - {"__init__.py"}
    assert bare <= {path.name for path in MODULES}


def test_the_table_of_rooms_shows_the_imports_that_are_there() -> None:
    """Each room has its row, with how many files it has and what it imports; the command line may import everything."""
    table = rooms()
    names = {room_of(".".join(path.with_suffix("").parts)) for path in MODULES}
    assert set(table) == names
    for room, (files, about, imports) in table.items():
        count = sum(room_of(".".join(path.with_suffix("").parts)) == room for path in MODULES)
        actual = "everything" if room == "cli" else ", ".join(f"`{name}`" for name in sorted(imports_of(room)))
        assert (files, imports) == (str(count), actual), f"| `{room}` | {count} | {about} | {actual} |"


def test_imports_go_down_the_table() -> None:
    """The rows stand in the order of import-linter's layers, and a room imports only what the contract allows."""
    layers = [layer.replace(" ", "").split("|") for layer in contracts()[0]["layers"]]
    heights = {room_of(f"holdfast.{name}"): number for number, names in enumerate(layers) for name in names}
    heights.pop(BASE)
    order = [heights[room] for room in rooms() if room in heights]
    assert order == sorted(order)
    assert set(heights) == set(rooms()) - {BASE, "pyspark_holdfast"}
    for room, height in heights.items():
        above = {other for other in imports_of(room) & set(heights) if heights[other] <= height}
        assert not above, f"{room} imports {above}"


def test_every_contract_is_named() -> None:
    """The page has the names of import-linter's contracts, all of them and no others."""
    listed = re.findall(r"^\* (.+)$", part("The rooms"), re.MULTILINE)
    assert listed == [contract["name"] for contract in contracts()]


def test_no_room_has_too_many_files() -> None:
    """A folder that grows beyond this holds two rooms, but for the few that are named with their reason."""
    counts = Counter(str(path.parent) for path in MODULES)
    assert {folder for folder, count in counts.items() if count > FILES_MAX} == set(ROOMY), counts


def test_no_file_is_too_long() -> None:
    """A file that grows beyond this holds two nouns."""
    lengths = {str(path): len((SRC / path).read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert not {path: lines for path, lines in lengths.items() if lines > LINES_MAX}


def test_a_name_occurs_once() -> None:
    """A stranger who searches for a file by its name finds one, but for the few that are named with their reason."""
    names = Counter(path.stem for path in MODULES)
    assert {name for name, count in names.items() if count > 1} == set(SHARED_NAMES)
    for name in SHARED_NAMES:
        assert (SRC / f"holdfast/cli/verbs/{name}.py").exists(), name
        assert names[name] == 2, name


def test_where_to_change_what_has_the_fifteen_changes() -> None:
    """Each of the changes that strangers were asked about has its row, which names a file or a room to go to."""
    rows = cells(part("Where to change what"))
    assert len(rows) == len(CHANGES)
    for change, row in zip(CHANGES, rows, strict=True):
        assert change in row[0]
        assert re.search(r"`(\w+/)+(\w+\.py)?`", row[1]), change
