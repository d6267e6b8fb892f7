"""Why offered records were not stored: nobody holds a ticket for them, so the next flush says it, once."""

from __future__ import annotations

from _thread import RLock

from holdfast.caller import once
from holdfast.errors import HoldfastError
from holdfast.journal.queue.group import Run


class OfferedFailure:
    """The newest such failure. The committer notes it, any thread takes it; `_lock` guards it."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._error: HoldfastError | None = None

    def note(self, error: HoldfastError) -> None:
        """Offered records failed."""
        with once(self._lock):
            self._error = error

    def note_refused(self, run: Run) -> None:
        """Some of these records may have been offered, and refused for their keys."""
        for error in run.refused_offered():
            self.note(error)

    def take(self) -> HoldfastError | None:
        """What was not reported yet."""
        with once(self._lock):
            error, self._error = self._error, None
        return error
