"""What the source logs: each call of a logger, its level and its action, taken from the syntax."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[2] / "src"
LEVELS = ("debug", "info", "warning", "error", "exception", "critical", "log")
LOGGERS = ("logger", "_log", "_LOGGERS")


class Logged(NamedTuple):
    """A call that logs."""

    place: str
    level: str
    actions: tuple[str, ...]
    """Empty where it has none that is written there."""


def logged() -> Iterator[Logged]:
    """All calls of the library."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and _is_logging(node.func):
                place = f"{path.relative_to(SOURCE)}:{node.lineno}"
                yield Logged(place, _level(node), tuple(_actions(node)))


def _is_logging(function: ast.expr) -> bool:
    if not isinstance(function, ast.Attribute) or function.attr not in LEVELS:
        return False
    return ast.unparse(function.value).partition("[")[0] in LOGGERS


def _level(call: ast.Call) -> str:
    """By its name; a level that is computed is given as `log`."""
    assert isinstance(call.func, ast.Attribute)
    return {"exception": "error"}.get(call.func.attr, call.func.attr)


def _actions(call: ast.Call) -> Iterator[str]:
    for keyword in call.keywords:
        if keyword.arg == "extra" and isinstance(keyword.value, ast.Dict):
            for key, value in zip(keyword.value.keys, keyword.value.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "action":
                    yield from _texts(value)


def _texts(value: ast.expr) -> Iterator[str]:
    if isinstance(value, ast.Constant):
        yield str(value.value)
    elif isinstance(value, ast.IfExp):
        yield from _texts(value.body)
        yield from _texts(value.orelse)
