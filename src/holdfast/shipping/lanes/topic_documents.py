"""Documents about topics on the store: written before anything of the topic, and again when it has changed.

The newest one counts. What stands there is looked up once per topic and compared; an unchanged topic writes nothing,
also after a restart. An owner that was overtaken may still write one; the new owner writes the next. A topic that a
sink writes there is never described: that is TopicTaken, and shipping starts over without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from holdfast.errors import Corrupt
from holdfast.journal.journal import Journal
from holdfast.root.numbered_objects import newest
from holdfast.root.objects import documents
from holdfast.root.objects.documents import SinkTopicDocument, TopicDocument
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.segments.manifest.manifest_documents import next_topic_document, topic_state
from holdfast.shipping.ownership.fence import RepeatedRequests
from holdfast.shipping.ownership.taken_topics import TopicTaken
from holdfast.store import layout
from holdfast.store.port import Body, Store

_IDLE_S = 3600.0


class TopicDocuments:
    """Sees to it that the store knows the topics of one log."""

    def __init__(
        self,
        journal: Journal,
        manifest: Manifest,
        store: Store,
        asking: RepeatedRequests,
        put: Callable[[str, Body], Awaitable[None]],
        remove_forged: Callable[[str, Corrupt], Awaitable[None]],
    ) -> None:
        self._journal = journal
        self._manifest = manifest
        self._store = store
        self._asking = asking
        self._put = put
        self._remove_forged = remove_forged
        self._known: dict[str, tuple[int, bytes]] = {}
        """What each topic's newest document says, as `topic_state` tells it."""
        self._versions: dict[str, TopicDocument | None] = {}
        self._lock = asyncio.Lock()

    async def run(self) -> None:
        """Describe every topic as soon as it is there, also those without a record, and again when it changes."""
        loop = asyncio.get_running_loop()
        while True:
            future = self._journal.topic_changes.future(loop, _IDLE_S)  # registered before looking
            for topic in list(self._journal.topics):
                await self.describe(topic)
            await future

    async def describe(self, topic: str) -> None:
        """Return when the store has the present document of a topic."""
        if self._known.get(topic) == topic_state(self._journal, topic) or self._is_refused(topic):
            return
        async with self._lock:
            state = topic_state(self._journal, topic)
            if self._known.get(topic) == state:
                return
            while not await self._put_newest(topic):
                pass
            self._known[topic] = state

    async def _put_newest(self, topic: str) -> bool:
        """Put the present document where the newest one says something else; False if another one took its place."""
        newest = await self._newest(topic)
        if isinstance(newest, SinkTopicDocument):
            raise TopicTaken(topic)
        version, current = (0, None) if newest is None else (newest.version, documents.encode(newest))
        document = next_topic_document(self._journal, self._manifest, topic, version, current)
        if document is None:
            return True
        try:
            await self._put(layout.topic_key(topic, document.version), Body.of(documents.encode(document)))
        except Corrupt:
            # An owner that was overtaken, and does not know it yet, had something to say about the topic, too.
            del self._versions[topic]
            other = await self._newest(topic)
            if other is None or other.log != document.log or other.version < document.version:
                raise
            return False
        self._versions[topic] = document
        return True

    def _is_refused(self, topic: str) -> bool:
        return self._journal.topics[topic][0].refusal is not None

    async def _newest(self, topic: str) -> TopicDocument | None:
        look = lambda: asyncio.get_running_loop().run_in_executor(None, newest_topic, self._store, topic)  # noqa: E731
        while topic not in self._versions:
            try:
                self._versions[topic] = await self._asking.until_answered(f"read the documents of {topic}", look)
            except Corrupt as forged:  # all that a topic's document says is known here
                await self._remove_forged(str(forged.path), forged)
        return self._versions[topic]


def newest_topic(store: Store, topic: str) -> TopicDocument | None:
    """The document of a topic that counts; None when there is none."""
    key = newest(store, layout.topic_folder(topic))
    return None if key is None else documents.decode(store.get(key), key, TopicDocument)
