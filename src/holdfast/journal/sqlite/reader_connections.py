"""The connections of one backend: its own, and those that readers borrow for one short transaction each.

Of an owner, its own is the writer's, and never changes. A handle that only reads follows the files: where they were
replaced, or an owner came or left, it chooses the access again and reopens all connections. Before its process forks it
has none, for SQLite knows in each process which locks it has, and a child that inherited that would believe to have
them, too.
"""

from __future__ import annotations

import ctypes
from _thread import RLock
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep

import apsw

from holdfast.caller import refuse_second
from holdfast.errors import Closed, HoldfastError, Unavailable
from holdfast.journal.sqlite.connection import close_quietly, meaning, open_reader, open_writer
from holdfast.journal.sqlite.read_only import ReadOnlyAccess

_READERS_KEPT = 8
_PAUSE_S = 0.001


class ReaderConnections:
    """Connections that are lent, kept and closed."""

    def __init__(self, path: Path, *, read_only: bool, beside: bool) -> None:
        self._path = path
        self._access = ReadOnlyAccess(path, beside=beside) if read_only else None
        """The way to the files, of a handle that only reads."""
        self.own = open_writer(path) if self._access is None else self._access.connect()
        self._kept: list[apsw.Connection] = []
        self._lock = RLock()
        self._lent = 0
        """Connections in use at this moment."""
        self._is_suspended = False
        self._closed: Closed | None = None
        self._reopenings = 0
        """How often the files had been replaced."""

    # -- for one transaction ------------------------------------------------------------------------------

    @contextmanager
    def lent(self) -> Iterator[apsw.Connection]:
        """A connection in a transaction of its own; it is not to be used afterwards.

        What is read without locks counts only if the database did not change meanwhile.
        """
        connection, access = self._begin()
        try:
            yield connection
        except (apsw.Error, HoldfastError) as error:
            if access is not None and access.is_torn():
                raise _torn(access) from error
            raise
        else:
            if access is not None and access.is_torn():
                raise _torn(access)
        finally:
            self._give_back(connection, access)

    def refuse_second(self) -> None:
        """Refuse a call of a thread that was interrupted while it took or gave back a connection."""
        refuse_second(self._lock)

    def _begin(self) -> tuple[apsw.Connection, ReadOnlyAccess | None]:
        """A connection in a transaction, and the way to it.

        An owner that dies or starts leaves the write-ahead log's index unfinished for a moment, and a handle that only
        reads may not finish it. So such a handle reads something at once, and if it cannot, chooses its way again.
        """
        refuse_second(self._lock)
        for is_last in (False, False, True):
            with self._lock:
                self._wait_while_suspended()
                if self._closed is not None:
                    raise self._closed.again()
                self._reopen_if_replaced()
                access = self._access
                kept = self._kept.pop() if self._kept else None
                self._lent += 1
            try:
                connection = kept or (open_reader(self._path) if access is None else access.connect())
            except BaseException:
                self._return()
                raise
            try:
                connection.execute("BEGIN")
                if access is not None:
                    connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
                break
            except apsw.Error as error:
                close_quietly(connection)
                self._return()
                if is_last or access is None or not isinstance(error, apsw.ReadOnlyError):
                    raise meaning(error, self._path) from error
                with self._lock:
                    if self._access is access and self._closed is None:
                        self._reopen()
        return connection, access

    def _give_back(self, connection: apsw.Connection, access: ReadOnlyAccess | None) -> None:
        """End the transaction and keep the connection for the next reader, if it is still good."""
        try:
            if not connection.get_autocommit():
                connection.execute("COMMIT")
        except apsw.Error:
            close_quietly(connection)
            self._return()
            return
        with self._lock:
            if self._closed is None and access is self._access and len(self._kept) < _READERS_KEPT:
                self._kept.append(connection)
                self._lent -= 1
                return
        close_quietly(connection)
        self._return()

    def _return(self) -> None:
        with self._lock:
            self._lent -= 1

    # -- files that are replaced --------------------------------------------------------------------------

    def version(self) -> tuple[int, int]:
        """What differs once another process has committed anything, as far as the database knows."""
        refuse_second(self._lock)
        with self._lock:
            self._wait_while_suspended()
            if self._closed is None:
                self._reopen_if_replaced()
            try:
                number = self.own.pragma("data_version")
            except apsw.ReadOnlyError:  # as in `_begin`
                self._reopen()
                number = self.own.pragma("data_version")
            return self._reopenings, number

    def _reopen_if_replaced(self) -> None:
        """Of a handle that only reads: if the files were replaced, open the new ones; under the lock."""
        if self._access is not None and self._access.has_moved():
            self._reopen()

    def _reopen(self) -> None:
        """Of a handle that only reads: choose the way to the files again; under the lock."""
        assert self._access is not None
        access = ReadOnlyAccess(self._path, beside=self._access.beside)
        fresh = access.connect()
        for connection in (*self._kept, self.own):
            close_quietly(connection)
        self._access.close()
        self._access, self.own, self._kept = access, fresh, []
        self._reopenings += 1

    # -- around a fork ------------------------------------------------------------------------------------

    def suspend(self, timeout: float) -> None:
        """Of a handle that only reads: close all, once nobody reads; what is not given back in time stays."""
        with self._lock:
            self._is_suspended = True
        tries = int(timeout / _PAUSE_S)
        while self._lent and tries:
            sleep(_PAUSE_S)
            tries -= 1
        with self._lock:
            for connection in (*self._kept, self.own):
                close_quietly(connection)
            self._kept = []

    def resume(self) -> None:
        """Read on."""
        with self._lock:
            if self._is_suspended and self._closed is None and self._access is not None:
                self.own = self._access.connect()
                self._reopenings += 1  # another connection counts what others committed from anew
            self._is_suspended = False

    def _wait_while_suspended(self) -> None:
        """Readers wait while the process forks; under the lock."""
        while self._is_suspended:
            self._lock.release()
            try:
                sleep(_PAUSE_S)
            finally:
                self._lock.acquire()

    def leak(self) -> None:
        """In a forked child: keep the parent's connections from ever being closed here."""
        self._closed = Closed("this log was opened before a fork", reason="forked")
        self._lock = RLock()  # another thread may have held it when we were forked
        for connection in (self.own, *self._kept):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))

    # -- the end ------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise why nothing can be read any more."""
        if self._closed is not None:
            raise self._closed.again()

    def close(self) -> apsw.Error | None:
        """Close all, the own one last; the first error is returned, and keeps none of the others open."""
        with self._lock:
            self._closed = Closed("the log is closed")
            kept, self._kept = self._kept, []
        failed: apsw.Error | None = None
        for connection in (*kept, self.own):
            try:
                connection.close()
            except apsw.Error as error:  # go on: a connection left open keeps the files locked
                failed = failed or error
        if self._access is not None:
            self._access.close()
        return failed


def _torn(access: ReadOnlyAccess) -> Unavailable:
    return Unavailable(
        f"the log changed while it was read path={access.path}", hint="its owner has just come: try again"
    )
