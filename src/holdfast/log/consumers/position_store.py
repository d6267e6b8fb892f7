"""The positions of a log's consumers: what is durable of them, and how they come back.

They live in the space `consumers`, beside which every change is a record of the topic `_consumers`, in the same commit.
Spaces stay in their database; the topic is shipped and sealed. So where the space is not there but the topic is, the
log was restored or rebuilt, and the space is made again from the topic. What it says then is as old as the newest
record that came back: after a restore everything that was shipped, in the order of commits, so no position is ahead of
its topic. A rebuild from segments alone may have lost the end of a topic; a position behind that end is moved back to
it.

All that is known is said again now and then (`say_again`), so that the topic may lose its oldest records. An owner
loads once and remembers; a handle that only reads loads at each call.
"""

from __future__ import annotations

import logging
from _thread import RLock
from collections.abc import Iterable, Mapping, Sequence

from holdfast.caller import refuse_second
from holdfast.errors import HoldfastError, NotFound
from holdfast.journal.journal_port import Operation
from holdfast.journal.queue.ticket import UnitTicket
from holdfast.journal.state.partition import Partition
from holdfast.log.consumers.stored_positions import (
    COMMITTED,
    SPACE,
    TOPIC,
    ConsumerPositions,
    Item,
    Place,
    RetentionWait,
    StoredPosition,
    known_items,
    known_records,
    position_items,
    position_record,
    read_items,
    read_record,
    wait_item,
    wait_record,
)
from holdfast.log.log_context import LogContext
from holdfast.log.topics.partition_stream import LocalStream
from holdfast.model.record_columns import Columns

_SAY_AGAIN_COMMITS = 10_000
_SAY_AGAIN_US = 24 * 3600 * 1_000_000
"""How many commits, and how long, may pass until all that is known is said again."""

logger = logging.getLogger("holdfast")


class PositionStore:
    """The positions that are kept in one log."""

    def __init__(self, context: LogContext) -> None:
        self._context = context
        self._journal = context.journal
        self._known: ConsumerPositions | None = None
        self._commits = 0
        """Since all of it was said."""
        self._said_us = 0
        self._lock = RLock()

    @property
    def timeout(self) -> float:
        """How long to wait for room and for an acknowledgement."""
        return self._journal.settings.ack_timeout_ms / 1000

    def refuse_second(self) -> None:
        """Refuse a call of a thread that was interrupted in here: members wait for this with their own lock held."""
        refuse_second(self._lock)

    # -- what is known ------------------------------------------------------------------------------------

    def known(self) -> ConsumerPositions:
        """All that is durable; a thread that changes it holds no other lock."""
        with self._lock:
            if self._known is not None:
                return self._known
            known = self._load()
            if self._journal.owned:
                self._known = known
            return known

    def positions(self, place: Place) -> dict[int, StoredPosition]:
        """Where a consumer goes on in each partition of a topic; also where one that was forgotten was."""
        with self._lock:
            return dict(self.known().positions.get(place, {}))

    def all_positions(self) -> dict[Place, dict[int, StoredPosition]]:
        """Those of all consumers that were not forgotten, by name and topic."""
        with self._lock:
            found = {
                place: {number: kept for number, kept in positions.items() if not kept.gone}
                for place, positions in sorted(self.known().positions.items())
            }
        return {place: positions for place, positions in found.items() if positions}

    def wait(self, topic: str) -> RetentionWait | None:
        """For whom the retention of a topic waits; None where it waits for nobody."""
        with self._lock:
            wait = self.known().waits.get(topic)
        return wait if wait is not None and wait.consumers else None

    def floor(self, topic: str, number: int, consumers: Iterable[str]) -> int:
        """How far all of these consumers are in a partition; one that has no position yet is at its beginning."""
        kept = [self.positions((name, topic)).get(number) for name in consumers]
        return min((0 if one is None or one.gone else one.next for one in kept), default=0)

    def later(self, before: int = 0) -> int:
        """A time for the next word about something of which the last one came at `before`."""
        return max(before + 1, self._context.clock.now_us())

    # -- changing it --------------------------------------------------------------------------------------

    def operations(self, place: Place, positions: Mapping[int, StoredPosition]) -> tuple[list[Operation], int]:
        """What makes positions durable, and its bytes: an item for each, and one record."""
        record = position_record(COMMITTED, place, positions, max(kept.at for kept in positions.values()))
        return self._journal.spaces.operations(
            SPACE, position_items(place, positions), (), append=(self.partition(), record)
        )

    def commit(self, place: Place, positions: Mapping[int, StoredPosition]) -> None:
        """Make positions durable, and wait for it."""
        record = position_record(COMMITTED, place, positions, self.later())
        self._change(position_items(place, positions), (), record).result()
        self.stored(place, positions)

    def partition(self) -> Partition:
        """The partition that records of positions go to; the topic was created when a consumer was opened."""
        return self._journal.topics[TOPIC][0]

    def stored(self, place: Place, positions: Mapping[int, StoredPosition]) -> None:
        """These are durable now."""
        with self._lock:
            self.known().learn(place, positions)
            self._commits += 1
            is_due = self._commits >= _SAY_AGAIN_COMMITS or self._context.clock.now_us() - self._said_us > _SAY_AGAIN_US
        if is_due:
            self.say_again()

    def forget_consumer(self, place: Place) -> bool:
        """Let go of a consumer's positions, durably; False where there are none."""
        with self._lock:
            positions = self.positions(place)
            present = {n: kept for n, kept in positions.items() if not kept.gone}
            gone = {n: StoredPosition(kept.next, self.later(kept.at), gone=True) for n, kept in present.items()}
            if not gone:
                return False
            keys = [key for key, _, _ in position_items(place, gone)]
            record = position_record(COMMITTED, place, gone, self.later())
            self._change((), keys, record).result()
            self.known().learn(place, gone)
        self._wait_no_more(*place)
        return True

    def _wait_no_more(self, consumer: str, topic: str) -> None:
        wait = self.wait(topic)
        if wait is not None and consumer in wait.consumers:
            others = tuple(name for name in wait.consumers if name != consumer)
            self.set_wait(topic, others, wait.age_max_us, wait.bytes_max)

    def set_wait(self, topic: str, consumers: tuple[str, ...], age_max_us: int, bytes_max: int) -> None:
        """Have a topic's retention wait for these consumers, durably; for none, not any more."""
        with self._lock:
            before = self.known().waits.get(topic)
            if before is None and not consumers:
                return
            wait = RetentionWait(consumers, age_max_us, bytes_max, self.later(before.at if before is not None else 0))
            self._change([wait_item(topic, wait)], (), wait_record(topic, wait, wait.at)).result()
            self.known().learn_wait(topic, wait)

    def say_again(self) -> UnitTicket | None:
        """Append all that is known to the topic, without waiting for it; None where nothing is, or it must wait."""
        with self._lock:
            known, now = self.known(), self.later()
            self._commits, self._said_us = 0, now
            if TOPIC not in self._journal.topics or not (known.positions or known.waits):
                return None
            try:
                return self._change((), (), known_records(known, now), 0.0)
            except HoldfastError as error:  # nothing is lost: it is said later
                logger.info("positions were not said again: %s", error.message, extra={"action": "positions_late"})
                return None

    def end(self) -> None:
        """Before the log is closed: the newest segment of the topic has all of it, whatever retention removes."""
        with self._lock:
            if self._commits and self._journal.owned and self._journal.end is None:
                self.say_again()

    def _change(
        self, puts: Sequence[Item], deletes: Sequence[bytes], record: Columns, timeout: float | None = None
    ) -> UnitTicket:
        wait_seconds = self.timeout if timeout is None else timeout
        return self._journal.spaces.change(
            SPACE, puts, deletes, append=(self.partition(), record), timeout=wait_seconds
        )

    # -- loading ------------------------------------------------------------------------------------------

    def _load(self) -> ConsumerPositions:
        self._journal.refresh(TOPIC)
        known = read_items(self._journal.spaces.load(SPACE))
        if known.positions or known.waits or TOPIC not in self._journal.topics:
            return known
        known = self._from_topic()
        if (known.positions or known.waits) and self._journal.owned:
            puts = known_items(known)
            self._journal.spaces.change(SPACE, puts, timeout=self.timeout).result()
            self._commits += 1
            logger.info(
                "positions of consumers came back from the topic %s",
                TOPIC,
                extra={"action": "consumers_restored", "consumers": len(known.positions)},
            )
        return known

    def _from_topic(self) -> ConsumerPositions:
        """What the topic says, of a log that was restored or rebuilt."""
        known = ConsumerPositions({}, {})
        partition = self.partition()
        stream = LocalStream(self._journal, self._context.manifest, partition)
        start = partition.sealed.first_offset
        while True:
            try:
                for record in stream.records(start, partition.durable):
                    read_record(known, record)
                break
            except NotFound:  # retention was quicker: what is behind it says at least as much
                start = max(start + 1, partition.sealed.first_offset)
        for place, positions in known.positions.items():
            known.positions[place] = self._inside(place[1], positions)
        return known

    def _inside(self, topic: str, positions: Mapping[int, StoredPosition]) -> dict[int, StoredPosition]:
        """Positions that are not behind the end of their partitions; those that were forgotten are left out."""
        parts = self._journal.topics.get(topic, ())
        inside = {}
        for number, kept in positions.items():
            end = parts[number].durable if number < len(parts) else kept.next
            if not kept.gone:
                inside[number] = kept if kept.next <= end else StoredPosition(end, kept.at + 1)
        return inside
