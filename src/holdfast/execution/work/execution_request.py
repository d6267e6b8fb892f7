"""What another process asks of a log's executions, and what it is answered, as values.

A request has an id, under which the log remembers the answer: asked again it is answered, and not done again
(`answered_requests.py`). The id is the asker's, and stays the same however often, and by whatever way, it asks.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import HoldfastError
from holdfast.journal.sessions.outcomes import Refusal

ID_BYTES = 16


class ExecutionRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Something that the owner of a log is asked to do."""

    id: bytes
    at_us: int
    """When it was asked for first."""
    action: str
    fields: dict[str, Any]


class ExecutionAnswer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What became of it: a value, or an error."""

    value: Any = None
    error: Refusal | None = None

    @classmethod
    def refused(cls, error: HoldfastError) -> ExecutionAnswer:
        """It was not done."""
        return cls(None, Refusal.of(error))

    def result(self) -> Any:
        """The value, or the error, raised."""
        if self.error is not None:
            raise self.error.error()
        return self.value
