"""Why a table failed, in words for people: what, where in their own file, and what to do. Pure.

Spark wraps what its Python workers raise, and adds plans and stacks of Java. What counts is the error itself: ours,
with its kind and hint; one of the user's function, with its line; one of Spark's, in its first sentence.
"""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import NamedTuple

from holdfast.errors import HoldfastError
from pyspark_holdfast.error_reports import kind_of, raised_by_worker

_CHARS_MAX = 4000
_FRAME = re.compile(r'\s*File "([^"]+)", line (\d+), in ')
_NOT_THEIRS = re.compile(r"[\\/](pyspark|pyspark_holdfast|holdfast|py4j|importlib)[\\/]|^<")
_CODE = re.compile(r"; line \d+ pos \d+;?$|\s*SQLSTATE: \w+;?$")


class Words(NamedTuple):
    """A failure, in words."""

    error: str
    kind: str
    """The kind of an error of ours; of any other the name of its type."""
    hint: str


def explain(error: BaseException) -> Words:
    """An error in words, and what to do about it."""
    found = error if isinstance(error, HoldfastError) else raised_by_worker(error)
    if found is not None:
        return Words(found.message[:_CHARS_MAX], kind_of(found), found.hint)
    kind = type(error).__name__
    lines = [line.rstrip() for line in str(error).strip().splitlines() if line.strip()]
    if any(line.startswith("Traceback ") for line in lines):
        return _of_worker(kind, lines)
    first = _CODE.sub("", lines[0]) if lines else ""
    return Words(f"{kind}: {first}{_place_of(error)}"[:_CHARS_MAX] if first else f"{kind}{_place_of(error)}", kind, "")


def _of_worker(kind: str, lines: list[str]) -> Words:
    """What a function of the user raised in a worker: the last line of its traceback, and the user's last line."""
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt|Exit|Warning)\b", line)]
    frames = [(found[1], found[2]) for line in lines if (found := _FRAME.match(line))]
    last = raised[-1] if raised else lines[-1]
    return Words(f"{last}{_in_file(frames)}"[:_CHARS_MAX], last.partition(":")[0] or kind, "")


def _place_of(error: BaseException) -> str:
    """Where the user's own code was when it was raised."""
    frames = traceback.walk_tb(error.__traceback__)
    return _in_file([(frame.f_code.co_filename, str(line)) for frame, line in frames])


def _in_file(frames: list[tuple[str, str]]) -> str:
    theirs = [(name, line) for name, line in frames if not _NOT_THEIRS.search(name)]
    return f" ({Path(theirs[-1][0]).name}:{theirs[-1][1]})" if theirs else ""
