"""The store of a log that another process owns: the verbs of `log/upkeep/store_binding.py`, asked of the owner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.log.log_context import LogContext
from holdfast.log.owner_asking import Asking
from holdfast.owner.call_messages import (
    SECONDS_MAX,
    Nothing,
    RebuildStore,
    Reconcile,
    RequireFree,
    Ship,
    ShippingNow,
    UnshippedNow,
)
from holdfast.owner.event_relay import ShippingEventRelay
from holdfast.reconcile.reconcile_report import ReconcileReport

if TYPE_CHECKING:
    from holdfast.shipping.events import Subscription
    from holdfast.shipping.refill.store_loss import StoreRebuildReport
    from holdfast.shipping.shipping_stats import ShippingStats, Unshipped


class StoreProxy:
    """The store of one log, at its owner's."""

    counters = None

    def __init__(self, context: LogContext, asking: Asking, events: ShippingEventRelay) -> None:
        self._asking = asking
        self._events = events
        self._timeout = context.journal.settings.ack_timeout_ms / 1000
        self._ships = bool(context.settings.store.url)
        state = context.journal.shipping_state
        state.ships = self._ships
        state.timeout = context.settings.shipping.shipped_timeout_ms / 1000
        state.why = self._why

    def _why(self) -> tuple[str, str]:
        """What holds shipping up at the moment, as the owner knows it."""
        stats = self.stats()
        return ("" if stats is None else stats.last_error or "", "")

    def wait_for_answer(self) -> None:
        """The owner waited for it."""

    def require_free(self, topic: str) -> None:
        """Raise Invalid where a sink writes the topic of this name on the store, as far as the store says so."""
        if self._ships:
            self._asking.ask("require_free", RequireFree(topic), Nothing, self._timeout)

    def ship(self, timeout: float) -> None:
        """Wait until all that is sealed now is settled."""
        self._asking.ask("ship", Ship(min(timeout, SECONDS_MAX)), Nothing, timeout)

    def subscribe(self) -> Subscription:
        """What happens to commits from now on, as the owner tells it."""
        return self._events.subscribe()

    def stats(self) -> ShippingStats | None:
        """Shipping in the owner's process at this moment."""
        return self._asking.ask("shipping_stats", Nothing(), ShippingNow, self._timeout).stats

    def unshipped(self) -> tuple[Unshipped, ...]:
        """What is durable and not known to be on the store."""
        return self._asking.ask("unshipped", Nothing(), UnshippedNow, self._timeout).unshipped

    def rebuild(self, *, accept_loss: bool, timeout: float) -> StoreRebuildReport:
        """Bring back what the store has lost."""
        from holdfast.shipping.refill.store_loss import StoreRebuildReport

        request = RebuildStore(accept_loss, min(timeout, SECONDS_MAX))
        return self._asking.ask("rebuild_store", request, StoreRebuildReport, timeout)

    def reconcile(self, *, fix: bool, deep: bool, limit: int | None) -> ReconcileReport:
        """Compare the manifest with the store."""
        return self._asking.ask("reconcile", Reconcile(True, fix, deep, limit), ReconcileReport)

    def close(self, timeout: float | None = None) -> None:
        """The owner ships what is there; waiters for events here are woken."""
        self._events.close()

    def release(self) -> None:
        """Nothing was opened here."""

    def forget(self) -> None:
        """In a forked child: nothing here is the parent's but subscriptions."""
        self._events.forget()
