"""A number that one process raises and others read at once: memory that they share, in place of a message.

It lies in memory without a name, whose descriptor is handed to its readers (over a socket, say), and lives as long as
one of them has it: also when the process that raised it was killed. A power cut takes it together with all who could
read it. So whatever was true of the number when it was raised stays true for as long as it can be read.

It is one aligned word, stored and loaded as a whole: nobody sees half of a change, and a process that dies leaves none.
A process that raises it before it informs another one, by whatever way, is sure that that one reads the new value.

Not every system has such memory (Linux does). Then there is no number, and its readers do without.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from fcntl import fcntl

_BYTES = 16
_OF, _VALUE = 0, 1
# As in <linux/fcntl.h>; `fcntl` has the names on Linux alone.
_ADD_SEALS, _GET_SEALS = 1033, 1034
_SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW = 1, 2, 4


class SharedNumber:
    """One number, and what it is about: an epoch of a log, which never changes."""

    __slots__ = ("_numbers", "descriptor")

    def __init__(self, memory: mmap.mmap, descriptor: int = -1) -> None:
        self._numbers = memoryview(memory).cast("Q")
        self.descriptor = descriptor
        """Of the one that made it: to be handed to others."""

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):  # the interpreter ends, or this is not the one that made it
            os.close(self.descriptor)

    @classmethod
    def create(cls, of: int, value: int) -> SharedNumber | None:
        """A new number; None where the system has no memory for it."""
        try:
            descriptor = os.memfd_create("holdfast", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except (AttributeError, OSError):
            return None
        try:
            os.ftruncate(descriptor, _BYTES)
            fcntl(descriptor, _ADD_SEALS, _SEAL_SEAL | _SEAL_SHRINK | _SEAL_GROW)
            made = cls(mmap.mmap(descriptor, _BYTES), descriptor)
        except OSError:
            os.close(descriptor)
            return None
        made._numbers[_OF], made._numbers[_VALUE] = of, value
        return made

    @classmethod
    def received(cls, descriptor: int) -> SharedNumber | None:
        """A number that another process raises; None where this is not one. The descriptor is closed.

        Memory that could be taken away from under its reader is not read.
        """
        try:
            if fcntl(descriptor, _GET_SEALS) & _SEAL_SHRINK and os.fstat(descriptor).st_size == _BYTES:
                return cls(mmap.mmap(descriptor, _BYTES, access=mmap.ACCESS_READ))
        except OSError:
            pass
        finally:
            os.close(descriptor)
        return None

    @property
    def of(self) -> int:
        """What it is about."""
        return self._numbers[_OF]

    @property
    def value(self) -> int:
        """The number as it is now."""
        return self._numbers[_VALUE]

    def raise_to(self, value: int) -> None:
        """Others read this from now on; by one thread of the process that made it."""
        self._numbers[_VALUE] = value
