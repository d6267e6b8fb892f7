"""Ctrl-C at the n-th line of some modules: what a signal that strikes the main thread does, where one wants it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from linecache import getline
from types import CodeType, FrameType
from typing import Any


def interrupt_at(
    nth: int, call: Callable[[], object], files: Collection[str | None], within: CodeType | None = None
) -> bool:
    """Call, raising KeyboardInterrupt at the n-th line executed in these files; False if there were fewer.

    With `within`, only lines count that run while this code does.
    """
    seen = 0
    depth = 0 if within is not None else 1

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal seen, depth
        if frame.f_code is within:
            depth += (event == "call") - (event == "return")
        if frame.f_code.co_filename not in files or not depth:
            return None
        # Python delivers signals neither between taking a lock and the block under it, nor while leaving it.
        if event == "line" and not getline(frame.f_code.co_filename, frame.f_lineno).strip().startswith("with "):
            seen += 1
            if seen == nth:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False
