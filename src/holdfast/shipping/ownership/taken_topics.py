"""Topics of this log whose names belong to another writer on the store: a sink writes them there, and this log must
not.

A log finds that out when it creates the topic, if the store answers then; otherwise the shipper does, before the first
object of the topic is written. From then on the topic takes no records and none of it is shipped: what was appended
stays durable and readable here, with an alarm. All other topics go on, and nothing of the sink's is touched.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from holdfast.errors import Corrupt, Invalid
from holdfast.journal.journal import Journal
from holdfast.journal.state.partition import Partition
from holdfast.root.objects.documents import SinkTopicDocument
from holdfast.root.root_store import RootStore
from holdfast.root.store_manifest import in_parallel, newest_topic
from holdfast.shipping.ownership.fence import RepeatedRequests

logger = logging.getLogger("holdfast.shipping")


class TopicTaken(Exception):
    """A sink writes this topic on the store: shipping begins anew, without it."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic


class TakenTopics:
    """Which topics of one log are not its own on the store."""

    def __init__(
        self, journal: Journal, store: RootStore, asking: RepeatedRequests, alarm: Callable[[str, str], None]
    ) -> None:
        self._journal = journal
        self._store = store
        self._asking = asking
        self._alarm = alarm

    async def find(self) -> None:
        """Look for topics that were never shipped and stand on the store already."""
        new = [topic for topic, parts in self._journal.topics.items() if not any(map(_is_shipped, parts))]
        if not new:
            return
        loop = asyncio.get_running_loop()
        taken = await self._asking.until_answered(
            "look for topics of sinks", lambda: loop.run_in_executor(None, in_parallel, self._is_taken, new)
        )
        for topic, is_taken in zip(new, taken, strict=True):
            if is_taken:
                self.refuse(topic)

    def _is_taken(self, topic: str) -> bool:
        return is_sinks(self._store, self._journal.log_id.hex(), topic)

    @property
    def alarm(self) -> str:
        """What is wrong, while something is; empty otherwise."""
        refusals = (partition.refusal for partition in list(self._journal.partitions.values()))
        return next((refusal.message for refusal in refusals if refusal is not None), "")

    def refuse(self, topic: str) -> None:
        """From now on the topic takes no records, and nothing of it is shipped."""
        partitions = self._journal.topics[topic]
        if partitions[0].refusal is not None:
            return
        refusal = taken(topic, self._store.url)
        for partition in partitions:
            partition.refusal = refusal
        self._journal.shipping_state.signal.notify()
        self._alarm(topic, refusal.message)
        logger.error("%s; %s", refusal.message, refusal.hint, extra={"action": "topic_taken", "topic": topic})


def is_sinks(store: RootStore, log: str, topic: str) -> bool:
    """Whether a sink writes the topic of this name on the store. What is damaged there is left to its writer."""
    try:
        return isinstance(newest_topic(store, log, topic), SinkTopicDocument)
    except Corrupt:
        return False


def _is_shipped(partition: Partition) -> bool:
    """Whether something of it was acknowledged by the store: then its document was this log's."""
    row = partition.shipment
    return row is not None and (row.slots > 0 or row.shipped_offset > row.settled_offset)


def taken(topic: str, url: str) -> Invalid:
    """The error of an append to a topic that a sink writes."""
    return Invalid(
        f"a sink writes topic {topic!r} at the root of this log; the log does not append to it store={url}",
        hint="append to a topic of another name; what this log already has of it stays readable in its directory",
    )
