"""How an open log ends: closed by its owner, at the end of the process, when nobody holds it, or in a forked child.

Records come first: executions and channels are closed, then the queue is drained, sealed and shipped, tables are
brought up to date, then the journal is closed, and the directory is released last. A log that was forgotten warns, and
is closed all the same. A forked child's copy lets go of what it inherited and refuses everything.
"""

from __future__ import annotations

import logging
import warnings
from typing import Protocol

from holdfast import process_lifetime
from holdfast.errors import HoldfastError
from holdfast.log.consumers.log_consumers import LogConsumers
from holdfast.log.log_channels import LogChannels
from holdfast.log.log_context import LogContext
from holdfast.log.log_executions import LogExecutions
from holdfast.log.ports import LocalMaintenancePort, LocalStorePort, TablesPort
from holdfast.log.telemetry.log_telemetry import LogTelemetry
from holdfast.log.topic_catalog import Catalog

logger = logging.getLogger("holdfast")


class ShareHooks(Protocol):
    """What a log that other processes use, too, does at the turns of its process' life."""

    def before_fork(self) -> None:
        """The process is about to fork."""

    def after_fork(self) -> None:
        """It has forked, and this is the parent."""

    def in_child(self) -> None:
        """It has forked, and this is the child, which has forgotten what it inherited."""

    def settle(self, timeout: float) -> None:
        """The process ends: make durable, seal and ship what is there, while threads can still be started."""

    def close(self, timeout: float) -> None:
        """The log is about to be closed: let nobody in any more."""


class Lifetime:
    """Ends one open log, once. Only the log holds it: it goes when the log does."""

    def __init__(
        self,
        context: LogContext,
        topics: Catalog,
        channels: LogChannels,
        consumers: LogConsumers,
        executions: LogExecutions,
        maintenance: LocalMaintenancePort,
        store: LocalStorePort,
        tables: TablesPort,
        telemetry: LogTelemetry,
    ) -> None:
        self._context = context
        self._topics = topics
        self._channels = channels
        self._consumers = consumers
        self._executions = executions
        self._maintenance = maintenance
        self._store = store
        self._tables = tables
        self._telemetry = telemetry
        self._queued_at_exit = 0
        """Records that were queued when the process began to end."""
        self.shared: ShareHooks | None = None
        """Of a log that other processes use, too: as its members, or as callers of its owner."""
        self.is_open = True
        process_lifetime.keep(self)

    def enter(self) -> None:
        """A `with` block begins: wait a moment for the store's first answer, if nobody has."""
        self._store.wait_for_answer()

    @property
    def _wait_seconds(self) -> float:
        return self._context.settings.journal.close_timeout_ms / 1000

    def close(self, timeout: float | None = None, *, hand_over: bool = False) -> None:
        """End it; what was accepted is made durable, sealed and shipped first. A second call does nothing.

        With `hand_over` it is made durable, and the rest is left to the next owner.
        """
        if not self.is_open:
            return
        journal, clock = self._context.journal, self._context.clock
        wait_seconds = self._wait_seconds if timeout is None else timeout
        deadline = clock.monotonic() + wait_seconds
        if self.shared is not None:
            self.shared.close(wait_seconds)
        self._executions.close()
        self._channels.close()
        self._consumers.close()
        try:
            self._maintenance.close(wait_seconds, seal=not hand_over)
            self._store.close(0.0 if hand_over else None)
            self._tables.stop()
            # A seal that hangs may have used all the time; the writer has nothing left to do and ends at once.
            journal.close(max(wait_seconds / 10, deadline - clock.monotonic()))
        finally:
            if journal.end is not None and journal.end.reason == "clean":
                self._release()

    def _release(self) -> None:
        self.is_open = False
        self._store.release()
        process_lifetime.drop(self)
        self._context.directory.release()
        path = self._context.directory.path
        logger.info("closed a log path=%s", path, extra={"action": "closed", "path": str(path)})

    # -- when nobody closes it ----------------------------------------------------------------------------

    def settle_at_exit(self) -> None:
        """Make durable, seal and ship what is there, while threads can still be started."""
        self._queued_at_exit = self._context.journal.pending_records
        if self.shared is not None:
            self.shared.settle(self._wait_seconds)
        self._maintenance.settle(self._wait_seconds)
        self._store.close()
        self._tables.stop()

    def close_at_exit(self) -> None:
        """Nobody has closed it, and nobody will."""
        queued = max(self._queued_at_exit, self._context.journal.pending_records)
        if queued:
            logger.warning(
                "the process ends with an open log: %d records that were still queued are made durable now;"
                " close it (with holdfast.open(…) as log) path=%s",
                queued,
                self._context.directory.path,
                extra={"action": "open_at_exit", "records": queued},
            )
        self._close_forgotten()

    def before_fork(self) -> None:
        """The process is about to fork: of a log that others use, too, not everything may be inherited."""
        if self.shared is not None:
            self.shared.before_fork()

    def after_fork(self) -> None:
        """It has forked, and this is the parent."""
        if self.shared is not None:
            self.shared.after_fork()

    def forget(self) -> None:
        """In a forked child: never touch what is the parent's; a log that is shared is opened anew."""
        self.is_open = False
        for part in (
            self._topics,
            self._executions,
            self._channels,
            self._consumers,
            self._tables,
            self._store,
            self._maintenance,
            self._context.journal,
            self._telemetry,
        ):
            part.forget()
        self._context.directory.release()
        if self.shared is not None:
            self.shared.in_child()

    def __del__(self) -> None:
        if getattr(self, "is_open", False):
            self._close_forgotten()

    def _close_forgotten(self) -> None:
        try:
            warnings.warn(f"unclosed log {self._context.directory.path}", ResourceWarning, source=self, stacklevel=1)
        finally:
            try:
                self.close()
            except HoldfastError as error:  # nobody is left to catch it
                logger.error("closing a forgotten log: %s", error.message, extra={"action": "close_failed"})
