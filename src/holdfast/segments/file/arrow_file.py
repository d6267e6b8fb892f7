"""A proved file as Arrow sees it, and the moment when Arrow has let go of it.

Arrow decodes columns in threads of its own. One of them may still hold the file, or bytes of it, a moment after the
answer is there, and be the last to let go. That takes Python's lock, and a foreign thread that asks for it while the
interpreter ends takes the whole process down ("terminate called without an active exception"). So the end of the
interpreter waits until nobody holds anything of a file that is finished with.
"""

from __future__ import annotations

import atexit
import gc
import os
import time
from typing import Protocol
from weakref import ref

import pyarrow as pa

_WAIT_S = 0.0005
_WAITS_MAX = 1_000
"""Arrow's threads need microseconds. This bounds how long closing waits for a reader that is still in use."""


class ProvenSource(Protocol):
    """A file whose bytes are proved before they are handed out."""

    size: int
    is_shut: bool
    """Whether it is finished with."""

    def read_at(self, start: int, end: int) -> memoryview:
        """Proved bytes, in a view of their own."""


class ArrowFile:
    """What Arrow calls."""

    closed = False

    def __init__(self, file: ProvenSource) -> None:
        self._file = file
        self._position = 0

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        """Go to a position."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._file.size}[whence]
        self._position = base + position
        return self._position

    def tell(self) -> int:
        """The position."""
        return self._position

    def read(self, count: int) -> memoryview:
        """Proved bytes at the position."""
        content = self._file.read_at(self._position, self._position + count)
        self._position += count
        _lent.add(content, self._file)
        return content

    def close(self) -> None:
        """Closing is not Arrow's business."""


class _Lent:
    """What Arrow was given. References without callbacks: those would be calls of Python in Arrow's threads."""

    def __init__(self) -> None:
        self._references: list[tuple[ref[object], ref[ProvenSource]]] = []
        self._tidy_at = 256
        self._is_registered = False

    def add(self, lent: object, file: ProvenSource) -> None:
        """Arrow was given this, of that file."""
        if not self._is_registered:
            self._is_registered = True
            atexit.register(self.wait)
            os.register_at_fork(after_in_child=self._references.clear)  # the threads that hold them are the parent's
        self._references.append((ref(lent), ref(file)))
        if (count := len(self._references)) >= self._tidy_at:
            self._references[:count] = [each for each in self._references[:count] if each[0]() is not None]
            self._tidy_at = 2 * len(self._references) + 256

    def wait(self) -> None:
        """Wait until everything is back that belongs to a file that is finished with."""
        if any(lent() is not None for lent, _ in self._references):
            gc.collect()  # a reading that nobody ended, and nobody has any more, holds itself: it shuts its file now
        for _ in range(_WAITS_MAX):
            if not any(self._is_late(*each) for each in self._references):
                return
            time.sleep(_WAIT_S)

    @staticmethod
    def _is_late(lent: ref[object], file: ref[ProvenSource]) -> bool:
        return lent() is not None and ((of := file()) is None or of.is_shut)


_lent = _Lent()


def lend(file: ProvenSource) -> pa.PythonFile:
    """This file for `pq.ParquetFile`."""
    arrow_file = ArrowFile(file)
    _lent.add(arrow_file, file)
    return pa.PythonFile(arrow_file, mode="r")
