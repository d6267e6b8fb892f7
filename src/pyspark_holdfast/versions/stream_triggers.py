"""What one trigger of a stream takes. Since 4.2 Spark says where the batch begins and how much may come at most.

Before that it asks how far the source is, and takes everything up to there. Limits are refused then: `availableNow` is
one batch there, and nothing tells it from other triggers, so with a limit it would end early. Where a batch begins is
known all the same: a new query begins where we say, and of a restarted one Spark first plans what it has seen last.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from holdfast.errors import Invalid
from holdfast.reader.read_options import ReadOptions
from pyspark_holdfast.error_reports import in_short
from pyspark_holdfast.versions.supported import spark_version

try:
    from pyspark.sql.streaming import datasource as limits
except ImportError:
    HAS_LIMITS = False
else:
    HAS_LIMITS = True

JsonOffsets = dict[str, dict[str, dict[str, int]]]
"""Offsets as Spark stores them: by the log's id, topic and partition."""


def check_limits(options: ReadOptions) -> None:
    """Refuse limits that this Spark would not keep."""
    limited = {
        "maxOffsetsPerTrigger": options.max_offsets,
        "maxBytesPerTrigger": options.max_bytes,
        "maxSegmentsPerTrigger": options.max_segments,
    }
    wrong = [name for name, most in limited.items() if most]
    if wrong and not HAS_LIMITS:
        raise Invalid(
            f"this needs Spark 4.2 or newer: {', '.join(wrong)} spark={spark_version()}",
            hint="leave it out: each trigger takes all that is settled",
        )


class _StreamEnds:
    """What a stream's reader says about its root."""

    _options: ReadOptions

    @abstractmethod
    def _where(self) -> tuple[str, str]: ...

    @abstractmethod
    def first_start(self) -> JsonOffsets:
        """Where a new query begins."""

    @abstractmethod
    def next_end(self, start: JsonOffsets, *, is_limited: bool) -> JsonOffsets:
        """Where a batch ends that begins there."""

    @abstractmethod
    def settled_end(self) -> JsonOffsets:
        """What is settled."""

    @abstractmethod
    def end_here(self) -> None:
        """The query ends with what is settled now."""


class AllTriggers(_StreamEnds):
    """A trigger takes all that is settled: before 4.2."""

    _first: JsonOffsets | None = None
    """Where this query begins, if it is new."""
    _seen: JsonOffsets | None = None
    """How far it is; None while Spark has not said it."""

    def saw(self, offsets: JsonOffsets) -> JsonOffsets:
        """Remember how far the query is."""
        self._seen = offsets
        return offsets

    @in_short
    def initialOffset(self) -> JsonOffsets:  # noqa: N802
        """Where a new query begins: once, because it is asked for only after the end of the first batch."""
        if self._first is None:
            self._first = self.first_start()
        return self._first

    @in_short
    def latestOffset(self) -> JsonOffsets:  # noqa: N802
        """Where the next batch ends."""
        return self.next_end(self._seen or self.initialOffset(), is_limited=False)


if TYPE_CHECKING or HAS_LIMITS:

    class Triggers(_StreamEnds, limits.SupportsTriggerAvailableNow):
        """A trigger takes at most what the options say: since 4.2."""

        def saw(self, offsets: JsonOffsets) -> JsonOffsets:
            """Spark itself says where each batch begins."""
            return offsets

        @in_short
        def initialOffset(self) -> JsonOffsets:  # noqa: N802
            """Where a new query begins."""
            return self.first_start()

        def getDefaultReadLimit(self) -> limits.ReadLimit:  # noqa: N802
            """The most that one trigger takes. We keep several limits at once ourselves."""
            options = self._options
            if options.max_offsets:
                return limits.ReadMaxRows(options.max_offsets)
            if options.max_bytes:
                return limits.ReadMaxBytes(options.max_bytes)
            return limits.ReadMaxFiles(options.max_segments) if options.max_segments else limits.ReadAllAvailable()

        @in_short
        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            """The query ends with what is settled now."""
            self.end_here()

        @in_short
        def latestOffset(self, start: JsonOffsets, limit: limits.ReadLimit) -> JsonOffsets:  # noqa: N802
            """Where the next batch ends."""
            return self.next_end(start, is_limited=not isinstance(limit, limits.ReadAllAvailable))

        @in_short
        def reportLatestOffset(self) -> JsonOffsets:  # noqa: N802
            """What is settled, for progress reports: the lag of a query is what lies between."""
            return self.settled_end()
else:
    Triggers = AllTriggers
