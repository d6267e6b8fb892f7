"""Warnings are printed to stderr where the application has configured no logging.

The logger `holdfast` has this handler from the beginning. It is silent as soon as there is another one, on this logger
or on the root (`logging.basicConfig()`, or a `NullHandler` for those who want silence). A warning is one line, and what
follows it (a traceback) holds nothing that steers a terminal: parts of it may come from a hostile directory or store.

It never raises: a program without a working stderr goes on, and so does the thread that had something to say.
"""

from __future__ import annotations

import logging
import sys
import traceback


class StderrWarnings(logging.Handler):
    """One line per warning, unless logging is configured."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        """Say it on stderr."""
        if not self._is_heard(record.name):
            print_record(record)

    def _is_heard(self, name: str) -> bool:
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return True
            logger = logger.parent if logger.propagate else None
        return False


def print_record(record: logging.LogRecord) -> None:
    """Say something on stderr, if that can be; never raises."""
    stream = sys.stderr
    if stream is None:
        return
    try:
        text = f"holdfast: {record.levelname.lower()}: {_printable(record.getMessage())}\n"
        if record.exc_info:
            lines = "".join(traceback.format_exception(*record.exc_info)).splitlines()
            text += "".join(f"    {_printable(line)}\n" for line in lines)
        stream.write(text)
        stream.flush()
    except Exception:  # noqa: S110  # closed, full, or a custom one that fails: there is nobody left to tell
        pass


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
