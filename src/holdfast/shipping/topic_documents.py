"""Documents about topics on the store: written before anything of the topic, and again when it has changed.

The newest one counts. What stands there is looked up once per topic and compared; an unchanged topic writes nothing,
also after a restart. An owner that was overtaken may still write one; whoever has taken over writes the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from holdfast.errors import Corrupt
from holdfast.journal.journal import Journal
from holdfast.segments.manifest import Manifest
from holdfast.segments.manifest_documents import topic_document
from holdfast.shipping.fence import Asking
from holdfast.store import documents, layout
from holdfast.store.documents import TopicDocument
from holdfast.store.port import Body, Store

_IDLE_S = 3600.0

_Seen = tuple[int, bytes]
"""How many schemas, and the stamp of the retention policy: what can change about a topic."""


class TopicDocuments:
    """Sees to it that the store knows the topics of one log."""

    def __init__(
        self, journal: Journal, manifest: Manifest, store: Store, asking: Asking,
        put: Callable[[str, Body], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._journal = journal
        self._manifest = manifest
        self._store = store
        self._asking = asking
        self._put = put
        self._known: dict[str, _Seen] = {}
        self._versions: dict[str, TopicDocument | None] = {}
        self._lock = asyncio.Lock()

    async def run(self) -> None:
        """Describe every topic as soon as it is there, also those without a record, and again when it changes."""
        loop = asyncio.get_running_loop()
        while True:
            future = self._journal.topics.bell.future(loop, _IDLE_S)  # registered before looking
            for topic in list(self._journal.topics.partitions):
                await self.describe(topic)
            await future

    async def describe(self, topic: str) -> None:
        """Return when the store has the present document of a topic."""
        if self._known.get(topic) == self._seen(topic):
            return
        async with self._lock:
            seen = self._seen(topic)
            if self._known.get(topic) == seen:
                return
            while not await self._put_newest(topic):
                pass
            self._known[topic] = seen

    async def _put_newest(self, topic: str) -> bool:
        """Put the present document where the newest one says something else; False if another one took its place."""
        newest = await self._newest(topic)
        version = 1 if newest is None else newest.version
        document = topic_document(self._journal, self._manifest, topic, version)
        if newest is not None and documents.encode(document) != documents.encode(newest):
            document = msgspec.structs.replace(document, version=version + 1)
        if newest is None or document.version != newest.version:
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

    async def _newest(self, topic: str) -> TopicDocument | None:
        if topic not in self._versions:
            look = lambda: asyncio.get_running_loop().run_in_executor(None, newest_topic, self._store, topic)  # noqa: E731
            self._versions[topic] = await self._asking.until_answered(f"read the documents of {topic}", look)
        return self._versions[topic]

    def _seen(self, topic: str) -> _Seen:
        topics = self._journal.topics
        policy = topics.policies.get(topic)
        return len(topics.schemas.get(topic, ())), b"" if policy is None else policy.stamp


def newest_topic(store: Store, topic: str) -> TopicDocument | None:
    """The document of a topic that counts; None when there is none."""
    keys = [info.key for info in store.list(layout.topic_folder(topic)) if layout.parse_number(info.key) is not None]
    return documents.decode(store.get(keys[-1]), keys[-1], TopicDocument) if keys else None
