"""Every metric of a log, defined once, and where its value is read.

A section reads one part of a log's sample (`LogSample`), and is left out where that part does not exist: a log
without a store has no shipping metrics, and a read-only handle has none of those that only an owner counts. Totals
count since this process opened the log. Values come from `log.stats()` and the marks; nothing is counted here.

To add one: a line in its section, with its reader. The reference is made of this list; tests hold the dashboard and the
alerts to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.telemetry.metric import (
    FAST_BOUNDS,
    OTHER,
    SLOW_BOUNDS,
    Attribute,
    Buckets,
    Kind,
    Metric,
    MetricPoint,
    Value,
)

if TYPE_CHECKING:
    from holdfast.log.log_stats import Stats
    from holdfast.model.record import Marks
    from holdfast.settings import Settings

ROLES = ("owner", "client", "reader")
STAGES = ("appended", "durable", "sealed", "shipped", "settled")
BEHIND = STAGES[2:]
CAUSES = (
    "slow_down", "server_error", "conflict", "timeout", "reset", "refused", "dns", "tls", "truncated", "redirect",
    "clock_skew", "credentials", "no_bucket", "forgotten", "taken", "forbidden", "bad_digest", "unsupported", "disk",
    "other",
)  # fmt: skip
FINDINGS = ("missing", "size_mismatch", "content_mismatch", "untracked", "overlap", "gap")
REQUESTS = ("put", "get", "list", "delete", "head")
CONNECTIONS = ("target", "healthy", "in_use", "opening", "beside")
STATUSES = ("queued", "running", "completed", "failed", "aborted", "canceled")

LOG = Attribute("holdfast.log", "the log's identity")
ROLE = Attribute(
    "holdfast.role", "what this process is to the log: it owns it, is a client of its owner, or only reads", ROLES
)
TOPIC = Attribute("holdfast.topic", f"a topic, or `{OTHER}` beyond `telemetry.partitions_max`")
PARTITION = Attribute("holdfast.partition", f"a partition's number, or `{OTHER}`")
STAGE = Attribute("holdfast.stage", "a mark of the pipe", STAGES)
BEHIND_STAGE = Attribute("holdfast.stage", "a mark behind `durable`", BEHIND)
CONSUMER = Attribute("holdfast.consumer", f"a consumer's name, or `{OTHER}` beyond `telemetry.consumers_max`")
CONSUMED = Attribute("holdfast.topic", f"the topic that it reads, or `{OTHER}`")
CAUSE = Attribute("holdfast.cause", "why an attempt failed", CAUSES)
FINDING = Attribute("holdfast.finding", "a kind of finding", FINDINGS)
REQUEST = Attribute("holdfast.request", "a kind of request, as the price list has them", REQUESTS)
CONNECTION = Attribute("holdfast.connection", "what connections are counted", CONNECTIONS)
STATUS = Attribute("holdfast.status", "the status of executions", STATUSES)


class LogSample(NamedTuple):
    """One handle of a log at the moment of collection."""

    log_id: str
    role: str
    stats: Stats
    marks: Mapping[str, tuple[Marks, ...]]
    """By topic, the oldest first: which ones are reported one by one does not change when another topic is created."""
    settings: Settings


Labels = tuple[str, ...]
Read = Callable[[Any], Value | Mapping[Labels, Value] | None]


class MetricSection(NamedTuple):
    """Metrics that are read of one part."""

    title: str
    part: Callable[[LogSample], Any]
    """What the readers get; None leaves the section out."""
    metrics: tuple[tuple[Metric, Read], ...]


def _metric(kind: Kind, name: str, unit: str, about: str, read: Read, *more: Attribute) -> tuple[Metric, Read]:
    return Metric(name, kind, unit, about, (LOG, ROLE, *more)), read


def _counter(name: str, unit: str, about: str, read: Read, *more: Attribute) -> tuple[Metric, Read]:
    return _metric("counter", name, unit, about, read, *more)


def _gauge(name: str, unit: str, about: str, read: Read, *more: Attribute) -> tuple[Metric, Read]:
    return _metric("gauge", name, unit, about, read, *more)


def _duration(
    name: str, about: str, read: Callable[[Any], Any], bounds: tuple[float, ...] = FAST_BOUNDS
) -> tuple[Metric, Read]:
    def buckets(part: Any) -> Buckets:
        found = read(part)
        return Buckets(found.bounds, found.counts, found.total)

    return Metric(name, "histogram", "s", about, (LOG, ROLE), bounds), buckets


# -- what readers need ------------------------------------------------------------------------------------------


def _owned(seen: LogSample) -> LogSample | None:
    return seen if seen.role == "owner" else None


def _writing(seen: LogSample) -> LogSample | None:
    return None if seen.role == "reader" else seen


def _looking(seen: LogSample) -> LogSample | None:
    """Handles that see the log as a whole: a client would have to ask its owner, which tells it itself."""
    return None if seen.role == "client" else seen


def _by(values: Mapping[str, int], known: tuple[str, ...]) -> dict[Labels, Value]:
    """Counts by a closed set: all of it, so that a series is there before its first event."""
    found: dict[Labels, Value] = {(name,): 0 for name in known}
    found.update({(name,): count for name, count in values.items() if name in known})
    return found


def _marks(seen: LogSample) -> dict[Labels, int]:
    """Each mark of each partition; those beyond the limit added up, so that differences and rates still hold."""
    found: dict[Labels, int] = {}
    shown = 0
    for topic, partitions in seen.marks.items():
        for number, marks in enumerate(partitions):
            shown += 1
            place = (topic, str(number)) if shown <= seen.settings.telemetry.partitions_max else (OTHER, OTHER)
            for stage in STAGES:
                mark = getattr(marks, stage)
                if mark is not None:
                    found[*place, stage] = found.get((*place, stage), 0) + mark
    return found


def _lags(seen: LogSample) -> dict[Labels, int]:
    """How many durable records each later stage does not have, by topic."""
    found: dict[Labels, int] = {}
    left = seen.settings.telemetry.partitions_max
    for topic, partitions in seen.marks.items():
        left -= len(partitions)
        place = topic if left >= 0 else OTHER
        for marks in partitions:
            for stage in BEHIND:
                mark = getattr(marks, stage)
                if mark is not None:
                    found[place, stage] = found.get((place, stage), 0) + marks.durable - mark
    return found


def _consumer_lags(seen: LogSample) -> dict[Labels, int]:
    found: dict[Labels, int] = {}
    for number, (place, lag) in enumerate(seen.stats.consumers.lag_records.items()):
        consumer, _, topic = place.partition("/")
        labels = (consumer, topic) if number < seen.settings.telemetry.consumers_max else (OTHER, OTHER)
        found[labels] = found.get(labels, 0) + lag
    return found


# -- the list -----------------------------------------------------------------------------------------------------

SECTIONS = (
    MetricSection("Marks", lambda seen: seen, (
        _gauge("holdfast.mark", "{offset}",
               "How far a partition got: everything below this offset has reached the stage.",
               _marks, TOPIC, PARTITION, STAGE),
        _gauge("holdfast.lag", "{record}", "Records that are durable and that a later stage does not have.",
               _lags, TOPIC, BEHIND_STAGE),
    )),
    MetricSection("Journal", lambda seen: seen.stats.journal if _writing(seen) else None, (
        _duration("holdfast.append.duration",
                  "From when the first record of a group was queued until it was durable: no append of it took longer.",
                  lambda journal: journal.append_seconds),
        _duration("holdfast.commit.duration", "How long group commits took, the fsync included.",
                  lambda journal: journal.commit_seconds),
        _counter("holdfast.append.records", "{record}", "Records that were made durable.",
                 lambda journal: journal.records_total),
        _counter("holdfast.append.bytes", "By", "Stored bytes of their entries.",
                 lambda journal: journal.bytes_total),
        _counter("holdfast.append.repeats", "{record}", "Appends whose idempotency key was known; they wrote nothing.",
                 lambda journal: journal.repeats_total),
        _counter("holdfast.append.dropped", "{record}", "Offered records that were answered with False.",
                 lambda journal: journal.offered_dropped_total),
        _counter("holdfast.append.refused", "{append}", "Appends that raised Full.",
                 lambda journal: journal.refused_total),
        _counter("holdfast.commit.groups", "{group}", "Group commits.", lambda journal: journal.groups_total),
        _counter("holdfast.commit.entries", "{entry}", "Entries that they stored.",
                 lambda journal: journal.entries_total),
        _counter("holdfast.commit.failures", "{group}", "Groups of which nothing was stored.",
                 lambda journal: journal.failed_groups_total),
        _counter("holdfast.journal.checkpoints", "{checkpoint}", "Times the write-ahead log was folded in.",
                 lambda journal: journal.checkpoints_total),
        _gauge("holdfast.journal.poisoned", "{flag}", "1 while the journal has stopped writing; else 0.",
               lambda journal: int(journal.poisoned is not None)),
        _gauge("holdfast.clock.jump", "s",
               "How far the clock jumped, while that is not believed and nothing is removed for its age; else 0.",
               lambda journal: journal.clock_ahead_seconds),
        _gauge("holdfast.queue.records", "{record}", "Records that were accepted and are not durable yet.",
               lambda journal: journal.queue_records),
        _gauge("holdfast.queue.bytes", "By", "Their bytes.", lambda journal: journal.queue_bytes),
        _gauge("durable.journal.writer.queue_depth", "{record}",
               "The same as holdfast.queue.records, under a second name.",
               lambda journal: journal.queue_records),
    )),
    MetricSection("Limits", _writing, (
        _gauge("holdfast.queue.limit", "{record}", "Where the queue is full: journal.queue_records_max.",
               lambda seen: seen.settings.journal.queue_records_max),
        _gauge("holdfast.tail.limit", "By", "Where the unsealed tail is full: journal.tail_bytes_max.",
               lambda seen: seen.settings.journal.tail_bytes_max),
        _gauge("holdfast.disk.floor", "By", "Where appends are refused: disk.free_bytes_min.",
               lambda seen: seen.settings.disk.free_bytes_min),
    )),
    MetricSection("Tail and segments", lambda seen: seen.stats.segments if _looking(seen) else None, (
        _gauge("holdfast.segments", "{segment}", "Segments that are there, of all partitions.",
               lambda segments: segments.segments),
        _gauge("holdfast.tail.records", "{record}", "Records that are durable and not sealed.",
               lambda segments: segments.tail_records),
        _gauge("holdfast.tail.bytes", "By", "Their bytes, as far as this process has measured them.",
               lambda segments: segments.tail_bytes),
    )),
    MetricSection("Sealing, retention, disk", lambda seen: seen.stats.segments if _owned(seen) else None, (
        _duration("holdfast.seal.duration", "How long seals took.", lambda segments: segments.seal_seconds,
                  SLOW_BOUNDS),
        _counter("holdfast.seal.segments", "{segment}", "Segments that were sealed.",
                 lambda segments: segments.seals_total),
        _counter("holdfast.seal.failures", "{attempt}", "Attempts to seal that failed.",
                 lambda segments: segments.seal_failures_total),
        _counter("holdfast.seal.records", "{record}", "Records that were sealed.",
                 lambda segments: segments.rows_sealed_total),
        _counter("holdfast.seal.bytes", "By", "Bytes of their files.", lambda segments: segments.bytes_sealed_total),
        _gauge("holdfast.tail.age", "s", "How long the oldest unsealed record has waited, as far as is known.",
               lambda segments: segments.oldest_unsealed_seconds),
        _counter("holdfast.trim.entries", "{entry}", "Journal entries that were removed after they were sealed.",
                 lambda segments: segments.trimmed_entries_total),
        _counter("holdfast.retention.segments", "{segment}", "Segments that retention removed.",
                 lambda segments: segments.expired_segments_total),
        _counter("holdfast.retention.bytes", "By", "Bytes of their files.",
                 lambda segments: segments.expired_bytes_total),
        _counter("holdfast.reconcile.passes", "{pass}", "Complete passes over the log's own files.",
                 lambda segments: segments.reconcile_passes_total),
        _gauge("holdfast.reconcile.findings", "{finding}", "Findings of the last complete pass.",
               lambda segments: _by(segments.reconcile_findings, FINDINGS), FINDING),
        _gauge("holdfast.disk.free", "By", "Free space on the log's disk when it was last checked.",
               lambda segments: segments.free_bytes),
    )),
    MetricSection("Shipping", lambda seen: seen.stats.shipping if _owned(seen) else None, (
        _duration("holdfast.ship.put.duration", "How long the store took for an object.",
                  lambda shipping: shipping.put_seconds),
        _counter("holdfast.ship.batches", "{batch}", "Commit batches that were acknowledged, in order.",
                 lambda shipping: shipping.batches_total),
        _counter("holdfast.ship.segments", "{segment}", "Segments that were settled.",
                 lambda shipping: shipping.segments_total),
        _counter("holdfast.ship.objects", "{object}", "Objects that the store has taken.",
                 lambda shipping: shipping.objects_total),
        _counter("holdfast.ship.bytes", "By", "Their bytes.", lambda shipping: shipping.bytes_total),
        _counter("holdfast.ship.resolved", "{object}", "Objects that were there already and were ours.",
                 lambda shipping: shipping.resolved_total),
        _counter("holdfast.ship.resent", "{record}", "Records that the store had lost and that were sent again.",
                 lambda shipping: shipping.resent_total),
        _counter("holdfast.ship.failures", "{attempt}", "Attempts that failed.",
                 lambda shipping: _by(shipping.retries, CAUSES), CAUSE),
        _gauge("holdfast.ship.in_flight", "{object}", "Objects under way.", lambda shipping: shipping.in_flight),
        _gauge("holdfast.ship.lag.records", "{record}", "Records that are durable here and not on the store.",
               lambda shipping: shipping.lag_records),
        _gauge("holdfast.ship.lag.bytes", "By", "Their bytes.", lambda shipping: shipping.lag_bytes),
        _gauge("holdfast.ship.lag.age", "s", "Age of the oldest commit that is not on the store.",
               lambda shipping: shipping.lag_seconds),
        _gauge("holdfast.ship.unsettled", "{segment}", "Segments that are sealed and not settled.",
               lambda shipping: shipping.unsettled_segments),
        _gauge("holdfast.ship.alarm", "{level}",
               "0 while the store answers; else 1, 2 after a minute, 3 ten minutes, 4 an hour, 5 six hours, 6 a day.",
               lambda shipping: 0 if shipping.alarm is None else shipping.alarm.level),
        _gauge("holdfast.ship.ended", "{flag}", "1 if nothing more is shipped through this handle; else 0.",
               lambda shipping: int(shipping.ended is not None)),
        _gauge("holdfast.ship.fenced", "{flag}", "1 if another process has taken the log over; else 0.",
               lambda shipping: int(shipping.fenced)),
        _gauge("holdfast.ship.forgotten", "{flag}", "1 while the store has lost what it had acknowledged; else 0.",
               lambda shipping: int(shipping.forgotten is not None)),
        _gauge("holdfast.ship.stranded", "{record}", "Of a log that was taken over: records that are here alone.",
               lambda shipping: shipping.stranded_records),
        _gauge("holdfast.ship.connections", "{connection}", "Connections to the store.",
               lambda shipping: {(name,): getattr(shipping.pool, name) for name in CONNECTIONS}, CONNECTION),
        _counter("holdfast.ship.connections.replaced", "{connection}", "Connections that failed and were taken out.",
                 lambda shipping: shipping.pool.replaced_total),
        _counter("holdfast.ship.requests", "{request}", "Requests, as the store's list price counts them.",
                 lambda shipping: _by(shipping.requests, REQUESTS), REQUEST),
        _counter("holdfast.ship.cost", "{dollar}", "Their list price in US dollars.",
                 lambda shipping: shipping.dollars),
        _gauge("holdfast.ship.subscribers", "{subscription}", "Open subscriptions to events.",
               lambda shipping: shipping.events_subscribers),
    )),
    MetricSection("Consumers", _looking, (
        _gauge("holdfast.consumer.lag", "{record}", "Records that are durable and that a consumer has not committed.",
               _consumer_lags, CONSUMER, CONSUMED),
        _gauge("holdfast.consumers", "{consumer}", "Consumers, counted per topic.",
               lambda seen: seen.stats.consumers.consumers),
        _gauge("holdfast.consumer.members", "{member}", "Members that they have in this process.",
               lambda seen: seen.stats.consumers.members),
    )),
    MetricSection("Executions", lambda seen: seen.stats.executions, (
        _gauge("holdfast.executions", "{execution}", "Executions that are kept, by status.",
               lambda executions: _by(executions.by_status, STATUSES), STATUS),
        _gauge("holdfast.executions.held", "{execution}", "Executions that are open in this process.",
               lambda executions: executions.held),
        _gauge("holdfast.executions.workers", "{worker}", "Workers that run in this process.",
               lambda executions: executions.workers),
    )),
    MetricSection("Tables", lambda seen: seen.stats.tables if _owned(seen) else None, (
        _counter("holdfast.tables.commits", "{commit}", "Commits to published tables.",
                 lambda tables: tables.commits_total),
        _gauge("holdfast.tables.published", "{table}", "Tables that this handle has brought up to date.",
               lambda tables: len(tables.versions)),
        _gauge("holdfast.tables.problems", "{table}", "Tables that are not up to date.",
               lambda tables: len(tables.problems)),
    )),
    MetricSection("Sharing", lambda seen: None, (  # reported by the host of a shared log: see `shared`
        _gauge("holdfast.share.clients", "{client}", "Clients that use the log through its owner now.",
               lambda sharing: sharing),
        _gauge("holdfast.share.sessions", "{session}", "Producer sessions that the log remembers.",
               lambda sharing: sharing),
    )),
    MetricSection("Process", lambda seen: seen, (
        _gauge("holdfast.open", "{flag}", "1 for each log that is open in this process.", lambda seen: 1),
    )),
)  # fmt: skip

METRICS: tuple[Metric, ...] = tuple(metric for section in SECTIONS for metric, _ in section.metrics)
"""All of them, in the order in which they are reported."""


def points(seen: LogSample) -> Iterator[MetricPoint]:
    """All that is known of one handle."""
    place = (seen.log_id, seen.role)
    for section in SECTIONS:
        part = section.part(seen)
        if part is None:
            continue
        for metric, read in section.metrics:
            value = read(part)
            if isinstance(value, Mapping):
                for labels, one in value.items():
                    yield MetricPoint(metric, (*place, *labels), one)
            elif value is not None:
                yield MetricPoint(metric, place, value)


def shared(log_id: str, clients: int, sessions: int) -> Iterator[MetricPoint]:
    """What the host of a shared log tells beside its log."""
    found = {metric.name: metric for metric in METRICS}
    yield MetricPoint(found["holdfast.share.clients"], (log_id, "owner"), clients)
    yield MetricPoint(found["holdfast.share.sessions"], (log_id, "owner"), sessions)
