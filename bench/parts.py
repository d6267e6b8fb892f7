"""Benches of several parts that run alone with `--only`: each part is a module, imported when it runs, that prints and
keeps its own figures; all bars stand together at the end.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from typing import cast

from bench.measure import Options


def run_all(parts: Mapping[str, str], options: Options) -> None:
    """Run all parts, or those that were asked for, and print all bars."""
    unknown = [name for name in options.only if name not in parts]
    if unknown:
        raise SystemExit(f"there is no part {', '.join(unknown)}; there are: {', '.join(parts)}")
    bars: list[str] = []
    for name in options.only or parts:
        print(f"=== {name}", flush=True)
        bars += [f"{name}: {line.removeprefix('bar: ')}" for line in _run(parts[name], options)]
    print("=== all bars", *(bars or ["none was measured"]), sep="\n")


def _run(module: str, options: Options) -> list[str]:
    """The bars that a part prints; none if it is not there."""
    if importlib.util.find_spec(module) is None:
        print(f"not measured: there is no {module}")
        return []
    run = cast("Callable[[Options], None]", importlib.import_module(module).main)
    heard = _Heard(sys.stdout)
    with redirect_stdout(heard):
        run(options)
    # A part may say its bars twice: with its tables, and again at its end.
    return list(dict.fromkeys(line for line in heard.getvalue().splitlines() if line.startswith("bar: ")))


class _Heard(io.StringIO):
    """What is printed goes on to where it would have gone, and is remembered."""

    def __init__(self, beyond: io.TextIOBase | object) -> None:
        super().__init__()
        self._beyond = cast("io.TextIOBase", beyond)

    def write(self, text: str) -> int:
        """Both."""
        self._beyond.write(text)
        return super().write(text)

    def flush(self) -> None:
        """At once, so that progress is seen."""
        self._beyond.flush()
