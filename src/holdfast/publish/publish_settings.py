"""What can be set about publishing topics as tables of others."""

from __future__ import annotations

from math import isfinite

import msgspec

from holdfast.errors import Invalid

_INTERVAL_MIN_MS = 100


class PublishSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether the owner of a log publishes its topics, and how often."""

    delta: bool = False
    """The owner publishes every topic that can be as a Delta table, behind what is settled. Tables that are there are
    kept up to date in any case.
    """

    interval_ms: float = 60_000
    """How often a table gets a commit at most: one per segment would flood its log."""

    def __post_init__(self) -> None:
        if not isfinite(self.interval_ms) or self.interval_ms < _INTERVAL_MIN_MS:
            raise Invalid(
                f"publish.interval_ms must be at least {_INTERVAL_MIN_MS}, got {self.interval_ms}",
                hint="a minute is often enough for most",
            )
