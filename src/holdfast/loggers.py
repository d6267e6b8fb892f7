"""The loggers of holdfast: what they print by themselves, and that a handler that raises ends nothing.

Warnings are printed to stderr where the application has configured no logging. The logger `holdfast` has this handler
from the beginning. It is silent as soon as there is another one, on this logger or on the root
(`logging.basicConfig()`, or a `NullHandler` for those who want silence). A warning is one line, and what follows it (a
traceback) holds nothing that steers a terminal: parts of it may come from a hostile directory or store. It never
raises: a program without a working stderr goes on, and so does the thread that had something to say.

Much of what holdfast logs it logs in threads of its own: the writer, the roller, the shipper. A handler of the
application that raises there would end the thread, and with it commits, sealing or shipping. So what a handler raises
is reported on stderr, once and then every thousandth time, and goes no further; other handlers still get the line.
"""

from __future__ import annotations

import logging
import sys
import traceback

NAMES = (
    "holdfast", "holdfast.channels", "holdfast.crypto", "holdfast.execution", "holdfast.executions", "holdfast.journal",
    "holdfast.publish", "holdfast.remote", "holdfast.segments", "holdfast.server", "holdfast.sharing",
    "holdfast.shipping", "holdfast.store", "holdfast.tables",
)  # fmt: skip
_AGAIN = 1000


class OwnLogger(logging.Logger):
    """A logger whose handlers may fail."""

    failures = 0

    def callHandlers(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's own name
        """Give a line to all handlers, whatever one of them raises."""
        logger: logging.Logger | None = self
        while logger is not None:
            for handler in tuple(logger.handlers):
                if record.levelno >= handler.level:
                    self._give(handler, record)
            logger = logger.parent if logger.propagate else None

    def _give(self, handler: logging.Handler, record: logging.LogRecord) -> None:
        try:
            handler.handle(record)
        except Exception as error:
            OwnLogger.failures += 1
            if OwnLogger.failures % _AGAIN == 1:
                text = f"a logging handler raised {type(error).__name__}; the line was of {record.name}"
                extra = {"action": "handler_failed"}
                print_record(self.makeRecord(self.name, logging.ERROR, __file__, 0, text, (), None, extra=extra))


def own_all() -> None:
    """Make the loggers of holdfast such; those of a class of the application's own stay as they are."""
    for name in NAMES:
        logger = logging.getLogger(name)
        if type(logger) is logging.Logger:
            logger.__class__ = OwnLogger


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
