"""Types of what verbs return, for programs that name them: in an annotation, mostly. Nothing here is called.

    from holdfast.results import RestoreReport

What a program calls, catches or annotates every day is in `holdfast` itself.
"""

from __future__ import annotations

from holdfast.compaction.compaction_report import CompactionReport, PartitionCompaction
from holdfast.journal.queue.ticket import BatchTicket, ShippedTicket
from holdfast.log.consumers.commit_ticket import CommitTicket
from holdfast.log.consumers.consumer import Consumer
from holdfast.log.consumers.consumer_status import ConsumerPartition, ConsumerStats, ConsumerStatus
from holdfast.log.producers.produced_ticket import ProducedTicket
from holdfast.log.producers.producer import Producer, ProducerStatus
from holdfast.log.topics.value_topic import ValueTopic
from holdfast.log.transactions.pending_receipts import Pending, PendingBatch
from holdfast.log.transactions.space import Space
from holdfast.log.transactions.transaction import Transaction
from holdfast.log.upkeep.published_tables import TableStats
from holdfast.model.record import Watermark
from holdfast.publish.publication_report import PublicationReport
from holdfast.reconcile.reconcile_report import ReconcileReport
from holdfast.recovery.rebuild import RebuildReport
from holdfast.recovery.restore_report import RestoredExpiry, RestoredLoss, RestoredPolicy, RestoreReport
from holdfast.segments.retention.retention_report import RetentionReport
from holdfast.shipping.events import Event, Subscription
from holdfast.shipping.shipping_stats import Unshipped

__all__ = [
    "BatchTicket",
    "CommitTicket",
    "CompactionReport",
    "Consumer",
    "ConsumerPartition",
    "ConsumerStats",
    "ConsumerStatus",
    "Event",
    "PartitionCompaction",
    "Pending",
    "PendingBatch",
    "ProducedTicket",
    "Producer",
    "ProducerStatus",
    "PublicationReport",
    "RebuildReport",
    "ReconcileReport",
    "RestoreReport",
    "RestoredExpiry",
    "RestoredLoss",
    "RestoredPolicy",
    "RetentionReport",
    "ShippedTicket",
    "Space",
    "Subscription",
    "TableStats",
    "Transaction",
    "Unshipped",
    "ValueTopic",
    "Watermark",
]
