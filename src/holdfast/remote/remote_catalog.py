"""The topics of a server's log: found by name, created on first use, and checked against how they are asked for.

A handle is made once and kept; asking for it again costs no question, unless a schema may be new.
"""

from __future__ import annotations

from base64 import b64encode
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakValueDictionary

import msgspec

from holdfast.arguments import whole
from holdfast.caller import once
from holdfast.errors import NotFound
from holdfast.log.ports import TopicRequest
from holdfast.log.topics.any_topic import keeping
from holdfast.log.topics.topic import Topic
from holdfast.log.topics.topic_check import as_type, check_topic, made_topic, no_key_column
from holdfast.log.topics.topic_partitions import Partitions
from holdfast.log.topics.typed_topic import TypedTopic
from holdfast.log.topics.validation import SentKeys
from holdfast.model.topic_name import check_name, check_users
from holdfast.remote.http.exchange import JSON, Exchange, Question
from holdfast.remote.reading.marks_feed import MarksFeed
from holdfast.remote.reading.server_source import ServerSource
from holdfast.remote.reading.topic_state import TopicState
from holdfast.remote.writing.client_journal import ClientJournal

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.model.value_codec import ValueCodec

EitherTopic: TypeAlias = Topic | TypedTopic


class _Names(msgspec.Struct):
    class Name(msgspec.Struct):
        name: str

    topics: list[Name]


class RemoteCatalog:
    """The topics that one client has asked for; `_lock` guards them, also while the server is asked about one."""

    def __init__(self, exchange: Exchange, journal: ClientJournal) -> None:
        self._exchange = exchange
        self._journal = journal
        self._topics: dict[str, EitherTopic] = {}
        self._handles: WeakValueDictionary[tuple[str, ValueCodec | None], EitherTopic] = WeakValueDictionary()
        """What callers have of them: each keeps its log."""
        self._feeds: dict[str, MarksFeed] = {}
        self._lock = RLock()
        self.open_consumer: Any = None

    @property
    def _timeout(self) -> float:
        return self._journal.settings.ack_timeout_ms / 1000

    def handle(self, topic: EitherTopic, log: object) -> EitherTopic:
        """A topic for a caller that may drop the log and keep this; the same one while it is in use."""
        key = (topic.name, topic.codec if isinstance(topic, Topic) else None)
        found = self._handles.get(key)
        return self._handles.setdefault(key, keeping(topic, log)) if found is None else found

    def names(self) -> list[str]:
        """The names of all topics that this client may see, sorted."""
        answer = self._exchange.ask(Question("GET", ("v1", "topics")), self._timeout)
        return sorted(topic.name for topic in answer.decoded(_Names).topics)

    def known(self, name: str) -> EitherTopic:
        """A topic that is there, of either kind."""
        return self._topics.get(check_name(name)) or self._handle(self._state(name))

    def raw(self, name: str) -> Topic:
        """The raw topic of this name, created with one partition if it is not there; Invalid where it is typed."""
        topic = self.topic(TopicRequest(check_users(name)))
        assert isinstance(topic, Topic)  # a typed one was refused
        return topic

    def topic(self, asked: TopicRequest) -> EitherTopic:
        """The topic of this name, created if it is not there; Invalid where it is not as it is asked for."""
        name = check_name(asked.name)
        topic = self._topics.get(name)
        if topic is None:
            with once(self._lock):
                topic = self._topics.get(name) or self._found(asked)
        check_topic(topic, asked)
        if isinstance(topic, TypedTopic):
            if asked.schema == "latest":
                self._feeds[name].refresh()
            else:
                self._evolve(topic, asked.schema)
        return as_type(topic, asked.codec)

    def _found(self, asked: TopicRequest) -> EitherTopic:
        schema = asked.schema
        try:
            return self._handle(self._state(asked.name))
        except NotFound:
            if schema == "latest":
                raise
        if schema is not None:
            from holdfast.segments.typed.key_column import keyed

            keyed(schema, asked.key)  # what is wrong with it is said here
        elif asked.key is not None:
            raise no_key_column()
        count = 1 if asked.partitions is None else whole(asked.partitions, "partitions")
        first = whole(asked.first_offset, "first_offset")
        return self._handle(self._put(asked._replace(partitions=count, first_offset=first)))

    def _state(self, name: str) -> TopicState:
        answer = self._exchange.ask(Question("GET", ("v1", "client", "topics", check_name(name))), self._timeout)
        return TopicState.parse(answer)

    def _put(self, asked: TopicRequest) -> TopicState:
        """Create it, or start a version of its schema; asking twice is asking once."""
        body: dict[str, Any] = {"first_offset": asked.first_offset}
        if asked.partitions is not None:
            body["partitions"] = asked.partitions
        if asked.key is not None:
            body["key"] = asked.key
        if asked.codec is not None:
            body["codec"] = asked.codec.name
        if asked.schema is not None and asked.schema != "latest":
            body["schema"] = b64encode(asked.schema.serialize().to_pybytes()).decode()
        question = Question(
            "PUT", ("v1", "topics", asked.name), body=msgspec.json.encode(body), headers={"Content-Type": JSON}
        )
        self._exchange.ask(question, self._timeout)
        return self._state(asked.name)

    def _handle(self, state: TopicState) -> EitherTopic:
        with self._lock:
            journal, name = self._journal, state.name
            found = self._topics.get(name)
            if found is not None:
                return found
            parts = journal.add_topic(state)
            feed = self._feeds[name] = MarksFeed(name, parts, self._exchange, journal)
            partitions = Partitions(name, parts, ServerSource(self._exchange, journal, feed))
            checks = SentKeys(name, journal.settings)
            topic = made_topic(name, journal, partitions, checks, is_typed=state.typed or bool(state.schemas))
            topic.open_consumer = self.open_consumer
            self._topics[name] = topic
            return topic

    def _evolve(self, topic: TypedTopic, schema: pa.Schema) -> None:
        from holdfast.model.schema import declare, evolve
        from holdfast.segments.manifest.schema_versions import versions

        wanted = declare(schema)
        known = versions(self._journal, topic.name)
        if any(version.fingerprint == wanted.fingerprint for version in known) or evolve(known[-1], wanted) is None:
            return
        state = self._put(TopicRequest(topic.name, schema))
        self._journal.schemas[topic.name] = state.schema_rows()

    def listen(self) -> None:
        """A caller waits for the store: see that news come of the topics that were asked for."""
        for feed in list(self._feeds.values()):
            feed.listen()

    def forget(self) -> None:
        """In a forked child."""
        self._lock = RLock()
        for feed in self._feeds.values():
            feed.forget()
