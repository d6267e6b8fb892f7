"""`[telemetry]`: how much of a log is reported one by one, and which appends get a span."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.errors import Invalid

_SERIES_MAX = 100_000


class TelemetrySettings(msgspec.Struct, frozen=True):
    """What is reported."""

    append_spans: Literal["parent", "always", "off"] = "parent"
    """Appends that get a span where OpenTelemetry is set up: `parent`, those of callers that are in a recorded span;
    `always`; `off`.
    """
    trace_headers: bool = True
    """Whether the trace of such an append, or of an `offer` within a recorded span, goes into the record's headers.
    """
    partitions_max: int = 100
    """Partitions whose marks are reported one by one, the oldest first; the others are added up as `(other)`. 0 adds
    up all.
    """
    consumers_max: int = 100
    """The same for consumers."""

    def __post_init__(self) -> None:
        if self.append_spans not in ("parent", "always", "off"):
            raise Invalid(f"telemetry.append_spans={self.append_spans!r}", hint="use 'parent', 'always' or 'off'")
        for name in ("partitions_max", "consumers_max"):
            value = getattr(self, name)
            if not 0 <= value <= _SERIES_MAX:
                raise Invalid(f"telemetry.{name} must be between 0 and {_SERIES_MAX}, got {value}")
