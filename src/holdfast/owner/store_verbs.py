"""The verbs about a log's store, each with both ends: what the owner does for it, and the proxy that asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from holdfast.journal.commit.owner_calls import Nothing
from holdfast.owner.segment_verbs import RECONCILE, Reconcile
from holdfast.owner.verb import ADMIN_LOG, DONE, READ_LOG, SECONDS_MAX, Asks, Name, PublicRequest, Seconds, Verb
from holdfast.shipping.refill.store_loss import StoreRebuildReport
from holdfast.shipping.shipping_stats import ShippingStats, Unshipped

if TYPE_CHECKING:
    from holdfast.owner.log_owner import LogOwner
    from holdfast.owner.peer import Peer
    from holdfast.reconcile.reconcile_report import ReconcileReport
    from holdfast.shipping.events import Subscription


class Ship(PublicRequest, frozen=True):
    """Wait until all that is sealed now is settled."""

    timeout: Seconds | None = None


def _ship(owner: LogOwner, _: Peer, request: Ship) -> Nothing:
    """Wait until all that is sealed now is settled."""
    owner.store.ship(owner.patience(request.timeout))
    return DONE


SHIP = Verb("ship", Ship, Nothing, ADMIN_LOG, _ship, is_long=True, route="POST /v1/ship")


class UnshippedNow(msgspec.Struct, frozen=True):
    """What is durable and not known to be on the store."""

    unshipped: tuple[Unshipped, ...]


def _unshipped(owner: LogOwner, _: Peer, __: Nothing) -> UnshippedNow:
    """What is durable and not known to be on the store."""
    return UnshippedNow(owner.store.unshipped())


UNSHIPPED = Verb("unshipped", Nothing, UnshippedNow, ADMIN_LOG, _unshipped, route="GET /v1/unshipped")


class RebuildStore(PublicRequest, frozen=True):
    """Bring back what the store has lost."""

    accept_loss: bool = False
    timeout: Seconds | None = None


def _rebuild(owner: LogOwner, _: Peer, request: RebuildStore) -> StoreRebuildReport:
    """Bring back what the store has lost."""
    return owner.store.rebuild(accept_loss=request.accept_loss, timeout=owner.patience(request.timeout))


REBUILD_STORE = Verb(
    "rebuild_store", RebuildStore, StoreRebuildReport, ADMIN_LOG, _rebuild, is_long=True, route="POST /v1/rebuild-store"
)


class ShippingNow(msgspec.Struct, frozen=True, array_like=True):
    """Shipping at this moment; None where no store is configured."""

    stats: ShippingStats | None


def _shipping_stats(owner: LogOwner, _: Peer, __: Nothing) -> ShippingNow:
    return ShippingNow(owner.store.stats())


SHIPPING_STATS = Verb("shipping_stats", Nothing, ShippingNow, READ_LOG, _shipping_stats)


class RequireFree(msgspec.Struct, frozen=True, array_like=True):
    """Is a topic's name another writer's on the store?"""

    topic: Name


def _require_free(owner: LogOwner, _: Peer, request: RequireFree) -> Nothing:
    """Raise Invalid where a sink writes a topic of this name."""
    owner.store.require_free(request.topic)
    return DONE


REQUIRE_FREE = Verb("require_free", RequireFree, Nothing, None, _require_free)


def _subscribe(owner: LogOwner, peer: Peer, _: Nothing) -> Nothing:
    return owner.events.subscribe(peer)


SUBSCRIBE = Verb("subscribe", Nothing, Nothing, READ_LOG, _subscribe, has_events=True)

STORE_VERBS = (SHIP, UNSHIPPED, REBUILD_STORE, SHIPPING_STATS, REQUIRE_FREE, SUBSCRIBE)


# -- the other end ----------------------------------------------------------------------------------------


class Subscriptions(Protocol):
    """Shipping's events in a process that does not ship."""

    def subscribe(self) -> Subscription:
        """What happens to commits from now on."""

    def close(self) -> None:
        """The log is closed: waiters for events are woken."""

    def forget(self) -> None:
        """In a forked child."""


class StoreProxy:
    """The store of a log that another process owns, or a server has: its owner ships."""

    counters = None

    def __init__(self, owner: Asks, timeout: float, events: Subscriptions, *, ships: bool) -> None:
        """`timeout` is for what takes no time."""
        self._owner = owner
        self._timeout = timeout
        self._events = events
        self._ships = ships

    def why(self) -> tuple[str, str]:
        """What holds shipping up at the moment, as the owner knows it."""
        stats = self.stats()
        return ("" if stats is None else stats.last_error or "", "")

    def wait_for_answer(self) -> None:
        """The owner waited for it."""

    def require_free(self, topic: str) -> None:
        """Raise Invalid where a sink writes the topic of this name on the store, as far as the store says so."""
        if self._ships:
            REQUIRE_FREE.ask(self._owner, RequireFree(topic), self._timeout)

    def ship(self, timeout: float) -> None:
        """Wait until all that is sealed now is settled."""
        SHIP.ask(self._owner, Ship(min(timeout, SECONDS_MAX)), timeout)

    def subscribe(self) -> Subscription:
        """What happens to commits from now on, as the owner announces it."""
        return self._events.subscribe()

    def stats(self) -> ShippingStats | None:
        """Shipping in the owner's process at this moment."""
        return SHIPPING_STATS.ask(self._owner, DONE, self._timeout).stats

    def unshipped(self) -> tuple[Unshipped, ...]:
        """What is durable and not known to be on the store."""
        return UNSHIPPED.ask(self._owner, DONE, self._timeout).unshipped

    def rebuild(self, *, accept_loss: bool, timeout: float) -> StoreRebuildReport:
        """Bring back what the store has lost."""
        return REBUILD_STORE.ask(self._owner, RebuildStore(accept_loss, min(timeout, SECONDS_MAX)), timeout)

    def reconcile(self, *, fix: bool, deep: bool, limit: int | None) -> ReconcileReport:
        """Compare the manifest with the store."""
        return RECONCILE.ask(self._owner, Reconcile(True, fix, deep, limit))

    def close(self, timeout: float | None = None) -> None:
        """The owner ships what is there; waiters for events here are woken."""
        self._events.close()

    def release(self) -> None:
        """Nothing was opened here."""

    def forget(self) -> None:
        """In a forked child: nothing here is the parent's but subscriptions."""
        self._events.forget()
