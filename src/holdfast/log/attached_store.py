"""The store of an open log, if it has one: shipping to it, comparing with it, bringing it back."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from holdfast.caller import in_coroutine
from holdfast.errors import Invalid
from holdfast.log.log_context import LogContext

if TYPE_CHECKING:
    from holdfast.reconcile.local_pass import ReconcileReport
    from holdfast.reconcile.store_pass import StoreReconciler
    from holdfast.shipping.refill.store_loss import RebuildReport
    from holdfast.shipping.shipper import Shipper, Unshipped
    from holdfast.shipping.shipping_stats import ShippingStats

_FIRST_CONTACT_S = 2.0
"""How long opening waits for the store's first answer; a store that is away does not keep a log from opening."""
_CLAIM_S = 10.0


class AttachedStore:
    """What an open log does with its store."""

    def __init__(self, context: LogContext, shipper: Shipper | None) -> None:
        self._context = context
        self._shipper = shipper
        self._reconciler: StoreReconciler | None = None
        self._lock = Lock()
        self._has_answered = shipper is None
        """Whether the first answer was waited for; a coroutine that opens a log does that in `async with`."""

    def start(self) -> None:
        """Begin to ship. Waits a moment for the store's first answer, but never on an event loop."""
        shipper = self._shipper
        if shipper is None:
            return
        self._has_answered = not in_coroutine()
        try:
            shipper.start(_FIRST_CONTACT_S if self._has_answered else 0.0)
        except BaseException:
            shipper.close(0)
            raise

    def wait_for_answer(self) -> None:
        """Wait a moment for the first answer, if nobody has; raises Invalid where the root is not this log's."""
        if self._shipper is not None and not self._has_answered:
            self._has_answered = True
            self._shipper.first_word(_FIRST_CONTACT_S)

    @property
    def shipper(self) -> Shipper:
        """The shipper; Invalid where there is none."""
        if self._context.journal.read_only:
            raise Invalid("this log is open for reading only", hint="its owner ships; open it without read_only=True")
        if self._shipper is None:
            raise Invalid("this log ships to no store", hint="open it with store='s3://bucket/prefix' or 'file:///…'")
        return self._shipper

    def stats(self) -> ShippingStats | None:
        """Shipping at this moment."""
        return None if self._shipper is None else self._shipper.stats()

    def unshipped(self) -> tuple[Unshipped, ...]:
        """What is durable here and not known to be on the store."""
        return () if self._shipper is None else self._shipper.unshipped()

    def rebuild(self, *, accept_loss: bool = False, timeout: float = 60.0) -> RebuildReport:
        """Bring back what the store has lost."""
        return self.shipper.rebuild(accept_loss=accept_loss, timeout=timeout)

    def reconcile(self, *, fix: bool, deep: bool, limit: int | None) -> ReconcileReport:
        """Compare the manifest with the store."""
        return self.reconciler().run(fix=fix, deep=deep, limit=limit)

    def reconciler(self) -> StoreReconciler:
        """The one that goes on where its last call stopped."""
        from holdfast.reconcile.store_pass import StoreReconciler

        _, settings, clock, journal, manifest = self._context
        shipper = self._shipper
        epoch = None if shipper is None else lambda: shipper.claim(_CLAIM_S)
        with self._lock:
            if self._reconciler is None:
                self._reconciler = StoreReconciler(
                    journal, manifest, settings.store, settings.reconcile, clock, epoch, self.rebuild
                )
            return self._reconciler

    def close(self) -> None:
        """Ship what is there, within `shipping.drain_timeout_ms`, and stop."""
        if self._shipper is not None:
            self._shipper.close(self._context.settings.shipping.drain_timeout_ms / 1000)

    def release(self) -> None:
        """Let go of what comparing with the store has opened."""
        if self._reconciler is not None:
            self._reconciler.close()

    def forget(self) -> None:
        """In a forked child: the connections and threads are the parent's."""
        self._lock = Lock()
        if self._shipper is not None:
            self._shipper.forget()
