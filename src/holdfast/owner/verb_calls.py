"""What the owner of a shared log does for the others: each call is a verb of its own log.

A handler gets a request that was checked by its type and returns what the verb returns; what the verb raises is raised
at the other end. It may block: calls run in threads of their own, and whoever waits for one waits at the other end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.execution.waits.inbox_message import InboxAnswer
from holdfast.log.local_parts import LocalParts
from holdfast.log.log_executions import AskExecutions
from holdfast.log.upkeep.topic_retention import TopicRetention
from holdfast.model.topic_name import check_users
from holdfast.owner.call_handlers import handler
from holdfast.owner.call_messages import (
    Compact,
    LastReport,
    Nothing,
    RebuildStore,
    Reconcile,
    RequireFree,
    Retain,
    SealTopics,
    SetRetention,
    Ship,
    ShippingNow,
    UnshippedNow,
)
from holdfast.owner.peer import Peer
from holdfast.segments.retention.retention_plan import Policy

if TYPE_CHECKING:
    from holdfast.compaction.compaction_report import CompactionReport
    from holdfast.owner.call_handlers import CallHandler
    from holdfast.reconcile.reconcile_report import ReconcileReport
    from holdfast.segments.retention.retention_report import RetentionReport
    from holdfast.segments.segment_stats import SegmentStats
    from holdfast.shipping.refill.store_loss import StoreRebuildReport

_DONE = Nothing()


class VerbCalls:
    """Answers calls with the verbs of one owned log."""

    def __init__(self, parts: LocalParts) -> None:
        self._parts = parts
        self._maintenance = parts.maintenance
        self._store = parts.store

    def handlers(self) -> dict[str, CallHandler]:
        """All of them, by the names of the calls."""
        return {
            "seal": handler(SealTopics, self._seal),
            "retain": handler(Retain, self._retain),
            "set_retention": handler(SetRetention, self._set_retention),
            "compact": handler(Compact, self._compact),
            "reconcile": handler(Reconcile, self._reconcile),
            "last_reconcile": handler(Nothing, lambda *_: LastReport(self._maintenance.last_report())),
            "segment_stats": handler(Nothing, self._segment_stats),
            "table_stats": handler(Nothing, lambda *_: self._parts.tables.stats()),
            "ship": handler(Ship, self._ship),
            "shipping_stats": handler(Nothing, lambda *_: ShippingNow(self._store.stats())),
            "unshipped": handler(Nothing, lambda *_: UnshippedNow(self._store.unshipped())),
            "rebuild_store": handler(RebuildStore, self._rebuild_store),
            "require_free": handler(RequireFree, self._require_free),
            "make_salt": handler(Nothing, self._make_salt),
            "ask_executions": handler(AskExecutions, self._ask_executions),
        }

    def _seal(self, _caller: Peer, request: SealTopics) -> Nothing:
        if request.waits:
            self._maintenance.seal(request.topics, request.timeout)
        else:
            self._maintenance.seal_soon(request.topics)
        return _DONE

    def _retain(self, _caller: Peer, request: Retain) -> RetentionReport:
        return self._maintenance.retain(request.dry_run)

    def _set_retention(self, _caller: Peer, request: SetRetention) -> Nothing:
        wanted = TopicRetention(Policy(*request.policy), request.consumers, Policy(*request.limit))
        self._maintenance.set_retention(check_users(request.topic), wanted)
        return _DONE

    def _compact(self, _caller: Peer, request: Compact) -> CompactionReport:
        return self._maintenance.compact(request.topics, request.target, None, dry_run=request.dry_run)

    def _reconcile(self, _caller: Peer, request: Reconcile) -> ReconcileReport:
        side = self._store if request.remote else self._maintenance
        return side.reconcile(fix=request.fix, deep=request.deep, limit=request.limit)

    def _segment_stats(self, _caller: Peer, _: Nothing) -> SegmentStats:
        return self._maintenance.stats()

    def _ship(self, _caller: Peer, request: Ship) -> Nothing:
        self._store.ship(request.timeout)
        return _DONE

    def _rebuild_store(self, _caller: Peer, request: RebuildStore) -> StoreRebuildReport:
        return self._store.rebuild(accept_loss=request.accept_loss, timeout=request.timeout)

    def _make_salt(self, _caller: Peer, _: Nothing) -> Nothing:
        self._parts.hidden_keys.make()
        return _DONE

    def _ask_executions(self, _caller: Peer, request: AskExecutions) -> InboxAnswer:
        return self._parts.executions.apply(request.message)

    def _require_free(self, _caller: Peer, request: RequireFree) -> Nothing:
        self._store.require_free(request.topic)
        return _DONE
