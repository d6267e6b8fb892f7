"""How much faster rows are read after a compaction: the same rows, read before and after it by the same code."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.clock import Clock
from holdfast.compaction.compaction_plan import FileRun
from holdfast.reader.offsets import PartitionMark, ReadMarks
from holdfast.reader.read_options import ReadOptions
from holdfast.reader.settled_reading import SettledReading
from holdfast.store.store_settings import StoreSettings

_PARTITIONS_MAX = 4
_FILES_MAX = 5_000


class ReadTime:
    """Times reads of rows that are about to be compacted: of a few runs, and no more files than are read in seconds."""

    def __init__(self, root: str, settings: StoreSettings, keyring: str, clock: Clock) -> None:
        self._root, self._settings, self._keyring, self._clock = root, settings, keyring, clock
        self._before: list[tuple[SettledReading, float]] = []

    def before(self, runs: Sequence[FileRun]) -> None:
        """Read what the first run of a partition holds."""
        if not runs or len(self._before) == _PARTITIONS_MAX:
            return
        files = runs[0].files[:_FILES_MAX]
        first, last = files[0].segment, files[-1].segment
        where = (first.topic, first.partition)
        options = ReadOptions(
            topics=(first.topic,),
            starting_offsets=ReadMarks("", {where: PartitionMark(None, first.first)}),
            ending_offsets=ReadMarks("", {where: PartitionMark(None, last.end)}),
            keyring=self._keyring,
            store=self._settings,
            schema_mode="known",
        )
        reading = SettledReading(self._root, options)
        self._before.append((reading, self._seconds(reading)))

    def speed_up(self) -> float | None:
        """How many times as fast the same rows are read now; None if there was nothing to measure."""
        after = sum(self._seconds(reading) for reading, _ in self._before)
        return round(sum(seconds for _, seconds in self._before) / after, 2) if after else None

    def _seconds(self, reading: SettledReading) -> float:
        begun = self._clock.monotonic()
        for _ in reading.batches():
            pass
        return self._clock.monotonic() - begun
