"""A shared log put together: in a member, whose parts ask the owner; and at the owner, which answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.journal.journal import Journal
from holdfast.log.consumers.kept_positions import KeptPositions
from holdfast.log.local_log import put_together
from holdfast.log.local_parts import parts_of
from holdfast.log.log import Log
from holdfast.log.log_context import LogContext
from holdfast.log.owner_asking import Asking
from holdfast.owner.call_handlers import handler
from holdfast.owner.call_messages import Nothing
from holdfast.owner.consumer_calls import ConsumerCalls
from holdfast.owner.event_relay import EventCalls, ToldEvents
from holdfast.owner.maintenance_proxy import MaintenanceProxy, TablesProxy
from holdfast.owner.mark_events import MarkEvents
from holdfast.owner.owner_news import HOLD_OFF, OwnerNews, Ownership
from holdfast.owner.peer import Peer
from holdfast.owner.store_proxy import StoreProxy
from holdfast.owner.verb_calls import VerbCalls
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.sharing.key_rotation import KeyNews, RotationCalls

if TYPE_CHECKING:
    from holdfast.log.open_log import Asked
    from holdfast.sharing.hosting.host import Host
    from holdfast.sharing.owner_link import SocketLink
    from holdfast.sharing.shared_keys import SharedKeys


def compose_member(asked: Asked, journal: Journal, link: SocketLink, ownership: Ownership, keys: SharedKeys) -> Log:
    """A log whose owner, at the other end of the link, does what only an owner can do."""
    directory, settings = asked.directory, asked.settings
    manifest = Manifest(journal, directory.segments, key_index_bytes_max=settings.segments.key_index_bytes_max)
    context = LogContext(directory, settings, asked.clock, journal, manifest)
    asking = Asking(link, asked.clock)
    news = journal.news = OwnerNews(journal, link, asking, ownership)
    news.rotate = KeyNews(link, asking, keys, journal, news.soon).rotate
    timeout = settings.journal.ack_timeout_ms / 1000
    events = ToldEvents(link, asking, news.soon, settings.shipping.events_max, timeout)
    log = put_together(
        context,
        MaintenanceProxy(journal, asking),
        StoreProxy(context, asking, events),
        TablesProxy(journal, asking),
        KeptPositions(context),
    )
    news.on_members = parts_of(log).consumers.changed
    return log


def answer_members(
    host: Host, log: Log, hand_over: Callable[[Callable[[], None]], None], session: Callable[[], bytes]
) -> Callable[[], None]:
    """Let the members that share a log with its owner ask for what only an owner can do; returns how that ends.

    `hand_over` lets go of the log, and before that announces it; `session` is that of the member that owns it.
    """

    def own(caller: Peer, _: Nothing) -> Nothing:
        """A member wants to own the log: the others leave it to that one."""
        if caller.session == session():  # it has it: the answer of the owner before was lost, and it asked again
            return Nothing()
        hand_over(lambda: host.publish(HOLD_OFF, b"", lambda other: other.session != caller.session))
        return Nothing()

    host.calls["own"] = handler(Nothing, own)
    parts = parts_of(log)
    marks, consumers = MarkEvents(parts.journal), ConsumerCalls(parts)
    events, keys = EventCalls(parts.store), RotationCalls(host, parts.journal, parts.context.clock)
    for calls in (VerbCalls(parts), marks, consumers, events, keys):
        host.calls.update(calls.handlers())
    host.guard = consumers.guard

    def stop() -> None:
        marks.stop()
        consumers.stop()
        events.stop()

    return stop
