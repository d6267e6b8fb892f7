"""Loggers that outlive what is attached to them: a handler of the application that raises ends nothing.

Much of what holdfast logs it logs in threads of its own: the writer, the roller, the shipper. A handler that raises
there would end the thread, and with it commits, sealing or shipping. So what a handler raises is reported on stderr,
once and then every thousandth time, and goes no further; other handlers still get the line.
"""

from __future__ import annotations

import logging

from holdfast.stderr_warnings import print_record

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
