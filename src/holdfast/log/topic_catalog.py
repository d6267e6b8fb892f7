"""The topics of an open log: found by name, created on first use, and checked against how they are asked for.

A topic is raw or typed forever. Its partitions, its codec and its key column are fixed when it is created; only the
schema of a typed one may grow.
"""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from holdfast.arguments import whole
from holdfast.caller import once
from holdfast.errors import Invalid
from holdfast.log.log_context import LogContext
from holdfast.log.ports import LocalMaintenancePort, TopicRequest
from holdfast.log.topics.any_topic import keeping
from holdfast.log.topics.local_source import LocalSource
from holdfast.log.topics.topic import Topic
from holdfast.log.topics.topic_check import as_type, check_topic, made_topic, no_key_column
from holdfast.log.topics.topic_partitions import Partitions, no_topic, partitions_of
from holdfast.log.topics.typed_topic import TypedTopic
from holdfast.log.topics.validation import Validation
from holdfast.log.topics.value_topic import ValueTopic
from holdfast.model.topic_name import check_name, check_users

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.journal.journal import Journal
    from holdfast.log.consumers.consumer import Consumer
    from holdfast.model.value_codec import ValueCodec


class Catalog:
    """The topics of one open log."""

    def __init__(
        self,
        context: LogContext,
        maintenance: LocalMaintenancePort,
        require_free: Callable[[str], None] = lambda topic: None,
        begin_telling: Callable[[], None] = lambda: None,
    ) -> None:
        """`require_free` is asked before a topic is created: it raises where the name is another writer's.

        `begin_telling` is called whenever a topic is opened: OpenTelemetry may have been set up since.
        """
        self._begin_telling = begin_telling
        self._context = context
        self._journal = context.journal
        self._maintenance = maintenance
        self._require_free = require_free
        self._topics: dict[str, Topic | TypedTopic] = {}
        self._handles: WeakValueDictionary[tuple[str, ValueCodec | None], Topic | TypedTopic] = WeakValueDictionary()
        """What callers have of them: each keeps its log."""
        self.open_consumer: Callable[..., Consumer[Any]] | None = None
        """How topics open their consumers."""
        self._lock = RLock()

    def take_over(self, inherited: Catalog) -> None:
        """In a forked child: topics that came from another log's catalog are this one's from now on."""
        for topic in (*inherited._topics.values(), *inherited._handles.values()):
            codec = topic.codec if isinstance(topic, ValueTopic) else None
            vars(topic).update(vars(self.known(topic.name)))
            if isinstance(topic, ValueTopic) and codec is not None:
                topic.use(codec)
        self._topics.update(inherited._topics)
        self._handles = inherited._handles

    def handle(self, topic: Topic | TypedTopic, log: object) -> Topic | TypedTopic:
        """A topic for a caller that may drop the log and keep this; the same one while it is in use."""
        key = (topic.name, topic.codec if isinstance(topic, Topic) else None)
        found = self._handles.get(key)
        return self._handles.setdefault(key, keeping(topic, log)) if found is None else found

    def names(self) -> list[str]:
        """The names of all topics, sorted."""
        self._journal.find_topics()
        return sorted(self._journal.topics)

    def known(self, name: str) -> Topic | TypedTopic:
        """A topic that is there, of either kind."""
        partitions_of(self._journal, (name,))
        return self._topics.get(name) or self._handle(name)

    def topic(self, asked: TopicRequest) -> Topic | TypedTopic:
        """The topic of this name, created if it is not there; Invalid where it is not as it is asked for."""
        self._begin_telling()
        name = asked.name if isinstance(asked.name, str) else check_name(asked.name)
        topic = self._topics.get(name)
        if topic is None:
            self._journal.refuse_second()
            with once(self._lock):
                topic = self._topics.get(name)
                if topic is None:
                    self._require(check_name(name), asked)
                    topic = self._topics[name] = self._handle(name)
        check_topic(topic, asked)
        if asked.schema is not None and asked.schema != "latest":
            self._evolve(topic.name, asked.schema)
        return as_type(topic, asked.codec)

    def raw(self, name: str) -> Topic:
        """The raw topic of this name, created with one partition if it is not there; Invalid where it is typed."""
        topic = self.topic(TopicRequest(check_users(name)))
        assert isinstance(topic, Topic)  # a typed one was refused
        return topic

    def own(self, name: str) -> Topic:
        """A topic that holdfast alone writes, created if it is not there: for its writers, which users cannot reach.

        What `topic` gives for such a name cannot be written to.
        """
        self._journal.find_topics()
        if name not in self._journal.topics:
            self._require_free(name)
            self._journal.create_topic(name, 1, 0)
        return Topic(*self._made(name))

    def _made(self, name: str) -> tuple[str, Journal, Partitions, Validation]:
        """What a topic is made of."""
        source = LocalSource(name, self._journal, self._context.manifest)
        partitions = Partitions(name, self._journal.topics[name], source)
        return name, self._journal, partitions, Validation(name, self._journal.settings)

    def _handle(self, name: str) -> Topic | TypedTopic:
        topic = made_topic(*self._made(name), is_typed=name in self._journal.schemas)
        topic.open_consumer = self.open_consumer
        return topic

    def _require(self, name: str, asked: TopicRequest) -> None:
        journal, schema, codec = self._journal, asked.schema, asked.codec
        journal.find_topics()
        if name in journal.topics:
            return
        if journal.read_only or schema == "latest":
            raise no_topic(name, journal.topics)
        check_users(name)
        count = 1 if asked.partitions is None else whole(asked.partitions, "partitions")
        first = whole(asked.first_offset, "first_offset")
        if schema is None:
            if asked.key is not None:
                raise no_key_column()
            self._require_free(name)
            journal.create_topic(name, count, first, codec="" if codec is None else codec.name)
            return
        from holdfast.segments.typed.key_column import keyed

        declared = keyed(schema, asked.key)
        self._require_free(name)
        journal.create_topic(name, count, first, declared.fingerprint, declared.serialize())

    def _evolve(self, name: str, schema: pa.Schema) -> None:
        """A new version of a typed topic's schema begins here."""
        from holdfast.model.schema import declare, evolve
        from holdfast.segments.manifest.schema_versions import versions

        wanted = declare(schema)
        with self._lock:
            known = versions(self._journal, name)
            if any(version.fingerprint == wanted.fingerprint for version in known):
                return
            newer = evolve(known[-1], wanted)
            if newer is None:
                return
            if self._journal.read_only:
                raise Invalid("this log is open for reading only", hint="its owner starts new versions of a schema")
            self._journal.add_schema(name, len(known) + 1, newer.fingerprint, newer.serialize())
        self._maintenance.seal_soon((name,))

    def forget(self) -> None:
        """In a forked child: the lock may have been held by a thread that is not here."""
        self._lock = RLock()
