"""The store of an open log: bound to it once, shipped to, compared with, brought back.

A log remembers the store that it is shipped to. Opened with another one it is refused: the marks of one store say
nothing about another. `store.move` lets it move: to a root that holds the same (a copy of the bucket), where it
goes on, or to an empty one, where everything is shipped again. Opened without a store it does not ship, says so, and
keeps its marks: retention still removes nothing that the store does not have. A log that was taken over remembers
that too, and takes no more records wherever it is opened.
"""

from __future__ import annotations

import logging
import os
from _thread import RLock
from typing import TYPE_CHECKING

from holdfast.caller import in_coroutine, once
from holdfast.errors import Corrupt, Invalid, NotFound
from holdfast.journal.journal import Journal
from holdfast.log.log_context import LogContext
from holdfast.model.control_rows import ShippingRow
from holdfast.root.objects import documents
from holdfast.root.objects.documents import EpochDocument
from holdfast.root.root_store import RootStore
from holdfast.root.root_trust import RootTrust
from holdfast.settings import Settings
from holdfast.store import layout, store_kinds
from holdfast.store.address import parse_url
from holdfast.store.port import Store

if TYPE_CHECKING:
    from holdfast.reconcile.reconcile_pass import Reconciler
    from holdfast.reconcile.reconcile_report import ReconcileReport
    from holdfast.shipping.events import Subscription
    from holdfast.shipping.refill.store_loss import StoreRebuildReport
    from holdfast.shipping.shipper import Shipper
    from holdfast.shipping.shipping_stats import ShippingCounters, ShippingStats, Unshipped

_FIRST_CONTACT_S = 2.0
"""How long opening waits for the store's first answer; a store that is away does not keep a log from opening."""
_CLAIM_S = 10.0

logger = logging.getLogger("holdfast")


class StoreBinding:
    """The store of one open log, if it has one."""

    def __init__(self, context: LogContext) -> None:
        self._context = context
        self._shipper = _shipper_for(context)
        self._reconciler: Reconciler | None = None
        self._lock = RLock()
        self._has_answered = True
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
        if not self._context.journal.owned:
            raise Invalid("this log is open for reading only", hint="its owner ships; open it without read_only=True")
        if self._shipper is None:
            raise Invalid("this log ships to no store", hint="open it with store='s3://bucket/prefix' or 'file:///…'")
        return self._shipper

    def require_free(self, topic: str) -> None:
        """Raise Invalid where a sink writes the topic of this name on the store, as far as the store says so."""
        if self._shipper is not None:
            self._shipper.require_free(topic, _FIRST_CONTACT_S)

    def ship(self, timeout: float) -> None:
        """Wait until all that is sealed now is settled."""
        self.shipper.ship(timeout)

    def subscribe(self) -> Subscription:
        """What happens to commits from now on."""
        return self.shipper.subscribe()

    def stats(self) -> ShippingStats | None:
        """Shipping at this moment."""
        return None if self._shipper is None else self._shipper.stats()

    @property
    def counters(self) -> ShippingCounters | None:
        """What shipping counts; None where no store is configured."""
        return None if self._shipper is None else self._shipper.counters

    def unshipped(self) -> tuple[Unshipped, ...]:
        """What is durable here and not known to be on the store."""
        return () if self._shipper is None else self._shipper.unshipped()

    def rebuild(self, *, accept_loss: bool = False, timeout: float = 60.0) -> StoreRebuildReport:
        """Bring back what the store has lost."""
        return self.shipper.rebuild(accept_loss=accept_loss, timeout=timeout)

    def reconcile(self, *, fix: bool, deep: bool, limit: int | None) -> ReconcileReport:
        """Compare the manifest with the store."""
        return self.reconciler().run(fix=fix, deep=deep, limit=limit)

    def reconciler(self) -> Reconciler:
        """The one that goes on where its last call stopped."""
        from holdfast.reconcile.reconcile_pass import Reconciler
        from holdfast.reconcile.store_side import StoreSide

        _, settings, clock, journal, manifest = self._context
        shipper = self._shipper
        epoch = None if shipper is None else lambda: shipper.claim(_CLAIM_S)
        with once(self._lock):
            if self._reconciler is None:
                side = StoreSide(journal, manifest, settings.store, clock, epoch, self.rebuild)
                self._reconciler = Reconciler(side, settings.reconcile, clock)
            return self._reconciler

    def close(self, timeout: float | None = None) -> None:
        """Ship what is there, within `timeout` seconds (default: `shipping.drain_timeout_ms`), and stop."""
        if self._shipper is not None:
            most = self._context.settings.shipping.drain_timeout_ms / 1000
            self._shipper.close(most if timeout is None else timeout)

    def release(self) -> None:
        """Let go of what comparing with the store has opened."""
        if self._reconciler is not None:
            self._reconciler.close()

    def forget(self) -> None:
        """In a forked child: the connections and threads are the parent's."""
        self._lock = RLock()
        if self._shipper is not None:
            self._shipper.forget()


def _shipper_for(context: LogContext) -> Shipper | None:
    """The shipper of a log, not started yet; None where no store is configured."""
    _, settings, clock, journal, manifest = context
    _refuse_stranded(journal)
    root = _root_of(journal, settings)
    if root is None:
        return None
    # Only now: a log that does not ship does not load what shipping needs.
    from holdfast.segments.manifest.local_root import withdraw
    from holdfast.segments.manifest.manifest_documents import first_offset
    from holdfast.shipping.open_remote import remote_for
    from holdfast.shipping.price_note import write_note
    from holdfast.shipping.shipper import Shipper
    from holdfast.shipping.shipping_marks import attach, fenced_by, rebind, root_trust

    shipping = journal.shipping
    if shipping is not None and shipping.root != root and (fenced := fenced_by(journal)) is not None:
        raise fenced  # moving it elsewhere would make two logs of one
    files = store_kinds.open_any_store(settings.store.url, settings.store, clock)
    if shipping is None or shipping.root != root:
        if shipping is not None and _is_moved(journal, shipping, files):
            rebind(journal, root)
        else:  # the owner is this directory, wherever it ships to
            _refuse_compacted(context)
            owner = clock.random_bytes(16) if shipping is None else shipping.owner
            attach(journal, root, owner, {p: first_offset(manifest, p) for p in journal.partitions.values()})
    withdraw(manifest.root)
    store = RootStore(files, root_trust(journal))
    remote = remote_for(settings.store.url, store, settings.store, settings.shipping, clock)
    write_note(manifest.root.parent, settings.shipping)
    return Shipper(journal, manifest, store, remote, settings.shipping, clock, os.abort)


def _root_of(journal: Journal, settings: Settings) -> str | None:
    """Where a log is to ship to, or None; Invalid where it must not."""
    shipping = journal.shipping
    if not settings.store.url:
        if shipping is not None and not shipping.copy and journal.owned:
            logger.warning(
                "this log is shipped to %s, but was opened without a store: nothing is shipped;"
                " open it with store=…, or set HOLDFAST_STORE__URL",
                shipping.root,
                extra={"action": "store_left_out"},
            )
        return None
    if not journal.owned:
        return None
    root = parse_url(settings.store.url).url
    if shipping is not None and shipping.copy:
        raise Invalid(
            "this log is a copy that was restored to look at; it never ships",
            hint="open it without store=…; to go on from the store, restore it without --copy",
        )
    if shipping is not None and shipping.root != root and not settings.store.move and _has_shipped(journal):
        raise Invalid(
            f"this log is shipped to {shipping.root}, not to {root}",
            hint="open it with its own store; to ship all of it again to another one, open it once with"
            " settings={'store': {'move': True}}, or HOLDFAST_STORE__MOVE=true",
        )
    return root


def _is_moved(journal: Journal, shipping: ShippingRow, files: Store) -> bool:
    """Whether a root holds what the old one held when this log last shipped there: it is a copy of that.

    Then the newest claim there is this directory's own, under the same number.
    """
    if not shipping.epoch:
        return False  # it never shipped: nothing is asked, so that a log opens while its store is away
    from holdfast.shipping.ownership.fence import newest_epoch

    log = journal.log_id.hex()
    store = RootStore(files, RootTrust(journal.signer, log=log))
    key = layout.epoch_key(shipping.epoch)
    try:
        store.log()
        if newest_epoch(store) != shipping.epoch:
            return False
        claim = documents.decode(store.get(key), key, EpochDocument)
    except (NotFound, Invalid, Corrupt):
        return False  # nothing is there, or nothing of ours: that is for the shipper to say
    return (claim.log, claim.owner) == (log, shipping.owner.hex())


def _refuse_compacted(context: LogContext) -> None:
    """Segments are shipped as they were sealed; where compaction has joined their files, nobody can do that."""
    journal, manifest = context.journal, context.manifest
    for partition in journal.partitions.values():
        first = partition.sealed.first_segment
        if any(file.upto > first for file in manifest.long_files(partition)):
            raise Invalid(
                f"segments of this log were compacted, and cannot be shipped to another store topic={partition.topic}",
                hint="open it without store=…; a log that is to be shipped is compacted on its store. If it has one,"
                " copy that to the new place as it is, and set store.move",
            )


def _refuse_stranded(journal: Journal) -> None:
    """A log that was taken over takes no more records, with a store or without: they would be nowhere else."""
    shipping = journal.shipping
    if shipping is not None and shipping.fenced and journal.owned:
        from holdfast.shipping.shipping_marks import fenced_by

        fenced = fenced_by(journal)
        journal.hold("fenced", fenced)
        if fenced is not None:
            logger.error("this log can only be read: %s (%s)", fenced.message, fenced.hint, extra={"action": "fenced"})


def _has_shipped(journal: Journal) -> bool:
    """Whether a store ever took anything; one that never did (a mistaken address) does not bind the log."""
    shipping = journal.shipping
    shipments = [partition.shipment for partition in journal.partitions.values()]
    return bool(shipping and shipping.shipped_seq) or any(row.slots for row in shipments if row is not None)
