"""A progress line on stderr for long work; it disappears when the work is done.

`Progress` is for reading a stream: numbers and a rate, and a bar when the end is known. It is shown only when stderr is
a terminal and stdout is not; receipts on a terminal are progress enough. `ProgressLine` is for work that prints its
result at the end, and is shown whenever stderr is a terminal; messages in the meantime appear above it.
"""

from __future__ import annotations

import os
import stat
import sys
from io import BufferedReader
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as RichProgress

from holdfast.errors import printable


class Progress:
    """Progress of reading one stream."""

    def __init__(self, stream: BufferedReader) -> None:
        total = _size(stream)
        columns: list[ProgressColumn] = [TextColumn("{task.fields[records]} records durable"), DownloadColumn()]
        if total:
            columns.append(BarColumn())
        self._rich = RichProgress(
            *columns,
            TransferSpeedColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            disable=not sys.stderr.isatty() or sys.stdout.isatty(),
        )
        self._task = self._rich.add_task("append", total=total, records=0)

    def show(self, records: int, read_bytes: int) -> None:
        """The records that are durable in all, and the bytes read since the last call."""
        self._rich.update(self._task, advance=read_bytes, records=records)

    def __enter__(self) -> Self:
        self._rich.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rich.stop()


class ProgressLine:
    """Progress, in words, of work whose length is not known."""

    def __init__(self) -> None:
        self._rich = RichProgress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=True,
            disable=not sys.stderr.isatty(),
        )
        self._task = self._rich.add_task("working")

    @property
    def is_shown(self) -> bool:
        """Whether it is visible; if not, callers need not work out what to show."""
        return not self._rich.disable

    def show(self, words: str) -> None:
        """What is being done now."""
        self._rich.update(self._task, description=printable(words))

    def __enter__(self) -> Self:
        self._rich.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rich.stop()


def _size(stream: BufferedReader) -> int | None:
    """How many bytes will come, where that is known: for a file, not for a pipe."""
    try:
        found = os.fstat(stream.fileno())
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None
