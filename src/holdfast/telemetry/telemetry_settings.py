"""`[telemetry]`: how much of a log is reported one by one, and which appends get a span."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.errors import Invalid

_SERIES_MAX = 100_000


class TelemetrySettings(msgspec.Struct, frozen=True):
    """What is reported."""

    append_spans: Literal["parent", "always", "off"] = "parent"
    """Appends that get a span where OpenTelemetry is set up: those of callers that are in a recorded one; all; none."""
    trace_headers: bool = True
    """Whether the trace of an append that has a span, or that is offered within one, goes into the record's headers."""
    partitions_max: int = 100
    """Partitions whose marks are reported one by one; the others are added up."""
    consumers_max: int = 100
    """The same for consumers."""

    def __post_init__(self) -> None:
        if self.append_spans not in ("parent", "always", "off"):
            raise Invalid(f"telemetry.append_spans={self.append_spans!r}", hint="use 'parent', 'always' or 'off'")
        for name in ("partitions_max", "consumers_max"):
            value = getattr(self, name)
            if not 0 <= value <= _SERIES_MAX:
                raise Invalid(f"telemetry.{name} must be between 0 and {_SERIES_MAX}, got {value}")
