"""A shared log put together: in a member, whose parts ask the owner; and at the owner, which answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from holdfast.journal.commit.owner_calls import Asking
from holdfast.journal.journal import Journal
from holdfast.journal.open_journal import open_shared
from holdfast.log.consumers.position_store import PositionStore
from holdfast.log.local_log import put_together
from holdfast.log.local_parts import parts_of
from holdfast.log.log import Log
from holdfast.log.log_context import LogContext
from holdfast.owner.event_relay import ShippingEventRelay
from holdfast.owner.log_owner import LogOwner
from holdfast.owner.owner_notifications import HOLD_OFF, OwnerNotifications, Ownership
from holdfast.owner.peer import Peer
from holdfast.owner.segment_verbs import MaintenanceProxy
from holdfast.owner.store_verbs import StoreProxy
from holdfast.owner.verbs import TablesProxy
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.sharing.key_rotation import KeyNews, RotationCalls

if TYPE_CHECKING:
    from holdfast.log.open_log import OpenArguments
    from holdfast.sharing.hosting.host import Host
    from holdfast.sharing.owner_link import SocketLink
    from holdfast.sharing.shared_keys import SharedKeys


class Met(Protocol):
    """How the link came to the owner."""

    log_id: bytes


def join_owner(asked: OpenArguments, met: Met, link: SocketLink, wait_s: float) -> Journal:
    """Come to the owner, and open the journal that it writes."""
    try:
        link.join(wait_s)
        return open_shared(asked.directory.database, met.log_id, asked.journal, link)
    except BaseException:
        link.close(wait_s)
        raise


def compose_member(
    given: OpenArguments, journal: Journal, link: SocketLink, ownership: Ownership, keys: SharedKeys
) -> Log:
    """A log whose owner, at the other end of the link, does what only an owner can do."""
    directory, settings = given.directory, given.settings
    manifest = Manifest(journal, directory.segments, key_index_bytes_max=settings.segments.key_index_bytes_max)
    context = LogContext(directory, settings, given.clock, journal, manifest)
    asking = Asking(link, given.clock)
    news = journal.news = OwnerNotifications(journal, link, asking, ownership)
    news.rotate = KeyNews(link, asking, keys, journal, news.soon).rotate
    timeout = settings.journal.ack_timeout_ms / 1000
    events = ShippingEventRelay(link, asking, news.soon, settings.shipping.events_max, timeout)
    store = StoreProxy(asking, timeout, events, ships=bool(settings.store.url))
    shipping = journal.shipping_state
    shipping.ships, shipping.timeout = bool(settings.store.url), settings.shipping.shipped_timeout_ms / 1000
    shipping.why = store.why
    maintenance, tables = MaintenanceProxy(asking, timeout), TablesProxy(asking, timeout)
    log = put_together(context, maintenance, store, tables, PositionStore(context))
    news.on_members = parts_of(log).consumers.changed
    return log


def answer_members(
    host: Host, log: Log, hand_over: Callable[[Callable[[], None]], None], session: Callable[[], bytes]
) -> Callable[[], None]:
    """Let the members that share a log with its owner ask for what only an owner can do; returns how that ends.

    `hand_over` lets go of the log, and before that announces it; `session` is that of the member that owns it.
    """
    owner = LogOwner(log, sharing=_Members(host, log, hand_over, session))
    host.answer_with(owner)
    return owner.stop


class _Members:
    """What members ask of their owner as members."""

    def __init__(
        self, host: Host, log: Log, hand_over: Callable[[Callable[[], None]], None], session: Callable[[], bytes]
    ) -> None:
        self._host = host
        self._hand_over = hand_over
        self._session = session
        rotation = RotationCalls(host, parts_of(log).context.journal, parts_of(log).context.clock)
        self.rotate, self.took = rotation.rotate, rotation.took

    def own(self, peer: Peer) -> None:
        """A member wants to own the log: the others leave it to that one."""
        if peer.session != self._session():  # else it has it: the owner before did not answer, and it asked again
            self._hand_over(lambda: self._host.publish(HOLD_OFF, b"", lambda other: other.session != peer.session))
