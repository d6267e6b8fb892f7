"""Reliable channels that are kept in an open log: opened for one participant at a time, closed with the log."""

from __future__ import annotations

import logging
from _thread import RLock
from typing import TYPE_CHECKING, Literal

import msgspec

from holdfast.arguments import text
from holdfast.caller import once
from holdfast.channels.channel_settings import TOPIC
from holdfast.errors import HoldfastError, Invalid
from holdfast.log.log import Log
from holdfast.log.log_context import LogContext
from holdfast.log.ports import TopicRequest
from holdfast.log.topic_catalog import Catalog
from holdfast.log.topics.topic import Topic
from holdfast.log.topics.topic_check import check_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.channels.keeping.snapshot import ChannelData
    from holdfast.channels.keeping.storage import Migration
    from holdfast.channels.participant import Channels
    from holdfast.channels.wire.channel_keys import Keys

logger = logging.getLogger("holdfast")


class LogChannels:
    """The channels of one open log."""

    def __init__(self, context: LogContext, topics: Catalog) -> None:
        self._context = context
        self._topics = topics
        self._opened: list[Channels] = []
        self._lock = RLock()

    def open(
        self,
        participant_id: str,
        topic: str | None,
        retrieval_hint: Callable[[str, str], bytes | None] | None,
        recover: Literal["fail", "empty"],
        keys: Keys | None,
        migrations: Mapping[int, Migration] | None,
    ) -> Channels:
        """Those of one participant; what happens in them is appended to `topic`."""
        journal = self._context.journal
        if journal.read_only:
            raise Invalid("this log is open for reading only", hint="kept_channels() and kept_channel() look at them")
        if journal.news is not None:
            owner = journal.news.own()
            assert isinstance(owner, Log)
            return owner.channels(
                participant_id,
                topic=topic,
                retrieval_hint=retrieval_hint,
                recover=recover,
                keys=keys,
                migrations=migrations,
            )
        return self._open(participant_id, self._events(topic), retrieval_hint, recover, keys, migrations)

    def _events(self, topic: str | None) -> Topic | None:
        """Where what happens is appended."""
        if topic is None:
            return None
        if topic == TOPIC:
            return self._topics.own(topic)
        events = self._topics.raw(topic)
        check_topic(events, TopicRequest(topic, partitions=1))
        if events.codec is not None:
            raise Invalid(f"topic {topic!r} has a codec; channels write bytes", hint="give a topic of bytes")
        return events

    def _open(
        self,
        participant_id: str,
        topic: Topic | None,
        retrieval_hint: Callable[[str, str], bytes | None] | None,
        recover: Literal["fail", "empty"],
        keys: Keys | None,
        migrations: Mapping[int, Migration] | None,
    ) -> Channels:
        from holdfast.channels.keeping.log_backend import LogPersistence
        from holdfast.channels.participant import Channels

        journal, settings = self._context.journal, self._context.settings
        partition, read = (None, None) if topic is None else (journal.topics[topic.name][0], topic.read)
        most = min(settings.channels.content_bytes_max, settings.journal.payload_bytes_max)
        with once(self._lock):
            self._opened = [one for one in self._opened if not one.closed]
            if any(one.participant_id == participant_id for one in self._opened):
                raise Invalid(
                    f"this participant's channels are open already participant={participant_id!r}",
                    hint="use those, or close() them first",
                )
            kept = LogPersistence(
                journal, participant_id, partition, migrations, settings.channels.ack_timeout_ms, read=read
            )
            taken = msgspec.structs.replace(settings.channels, content_bytes_max=most)
            opened = Channels(
                participant_id,
                kept,
                settings=taken,
                clock=self._context.clock,
                retrieval_hint=retrieval_hint,
                recover=recover,
                keys=keys,
            )
            self._opened.append(opened)
        return opened

    def kept(self) -> list[tuple[str, str]]:
        """Participant and id of every channel that is kept."""
        from holdfast.channels.keeping.log_backend import kept_channels

        return kept_channels(self._context.journal)

    def load(self, participant_id: str, channel_id: str, migrations: Mapping[int, Migration] | None) -> ChannelData:
        """What is kept of a channel."""
        from holdfast.channels.keeping.log_backend import LogPersistence

        who, which = text(participant_id, "participant_id", "alice"), text(channel_id, "channel_id", "room")
        return LogPersistence(self._context.journal, who, migrations=migrations).load_channel(which)

    def close(self) -> None:
        """Close all of them."""
        for channels in self._opened:
            try:
                channels.close()
            except HoldfastError as error:  # what was acknowledged is kept; the journal tells what it could not store
                logger.error("closing channels: %s", error.message, extra={"action": "channels_close_failed"})

    def forget(self) -> None:
        """In a forked child: their threads are the parent's."""
        self._lock = RLock()
        for channels in self._opened:
            channels.forget()
