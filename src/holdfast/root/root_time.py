"""The time by which files of a root are old, for those who look at it briefly: compaction, retention of sinks' topics.

They see no time go by, and the clock may be wrong by years. So it is believed as far as it is supported by when
segments were sealed (`trusted_time.newest_supported`): those of the partition itself, and where it has been idle, those
of all partitions. Where nobody has written for longer, time stands still, and what waits for an age stays.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.clock import Clock
from holdfast.errors import Corrupt
from holdfast.model.topic_name import is_name
from holdfast.model.trusted_time import JUMP_MAX_US, newest_supported
from holdfast.root.leased_segments import KnownLeases
from holdfast.root.objects.documents import SegmentDocument
from holdfast.root.rewrite_sweep import Grace
from holdfast.root.root_store import RootStore
from holdfast.root.store_manifest import newest_topic, read_manifest
from holdfast.store import layout

logger = logging.getLogger("holdfast")


class RemovalTerms(NamedTuple):
    """The terms on which a sweep removes files of one partition."""

    now_us: int
    grace: Grace
    leases: Mapping[tuple[str, int], int]


class RootTime:
    """The time of one root, for one run. Several threads may ask: the worst is that the root is read twice."""

    def __init__(self, store: RootStore, log: str, clock: Clock, jump_max_us: int = JUMP_MAX_US) -> None:
        """`jump_max_us`: how far the clock may be ahead of the newest segment, to be believed."""
        self._store, self._log, self._clock, self._jump_max_us = store, log, clock, jump_max_us
        self._leases = KnownLeases(store, clock)
        self._sealed: list[int] | None = None
        self._has_warned = False

    def now_us(self, segments: Sequence[SegmentDocument]) -> int:
        """The time by which files of the partition that has these segments are old; never later than the clock's."""
        return self._supported(segments, self._clock.now_us())

    def removal(self, segments: Sequence[SegmentDocument], grace: Grace) -> RemovalTerms:
        """How files of this partition may be removed."""
        wall_us = self._clock.now_us()
        now_us = self._supported(segments, wall_us)
        leases = self._leases.needed(now_us)
        if grace.delete_after_us:
            return RemovalTerms(now_us, grace, leases)
        # What waits for no age goes now, whatever the clock says; what a reader needs still waits.
        delay_us = grace.lease_delay_max_us + wall_us - now_us
        return RemovalTerms(wall_us, grace._replace(lease_delay_max_us=delay_us), leases)

    def warn(self, now_us: int) -> None:
        """Log, once, that something waits for the clock to be believed; nothing where it is."""
        ahead_us = self._clock.now_us() - now_us
        if ahead_us > self._jump_max_us and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "the clock is %.0f s ahead of the newest segment: what only its age makes old stays until a day after"
                " something newer is written. If the clock is right, say so by a higher journal.clock_jump_max_ms"
                " root=%s",
                ahead_us / 1e6,
                self._store.url,
                extra={"action": "clock_jump", "seconds": ahead_us / 1e6},
            )

    def _supported(self, segments: Sequence[SegmentDocument], wall_us: int) -> int:
        own_us = newest_supported([one.sealed_us for one in segments], wall_us, self._jump_max_us)
        if own_us == wall_us:
            return wall_us
        if self._sealed is None:
            self._sealed = self._all_sealed()
        return max(own_us, newest_supported(self._sealed, wall_us, self._jump_max_us))

    def _all_sealed(self) -> list[int]:
        """When the segments of all partitions were sealed, in order; damaged partitions support nothing."""
        sealed: list[int] = []
        for name in filter(is_name, self._store.folders(layout.TOPICS)):
            try:
                topic = newest_topic(self._store, self._log, name)
                for partition in range(0 if topic is None else topic.partitions):
                    segments = read_manifest(self._store, self._log, name, partition).segments
                    sealed += [one.sealed_us for one in segments]
            except Corrupt:
                continue
        return sorted(sealed)
