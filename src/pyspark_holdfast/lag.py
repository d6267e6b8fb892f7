"""How far streams are behind what is settled: in records, bytes and seconds, by partition, and for Prometheus.

    lag = pyspark_holdfast.LagListener("s3://bucket/prefix")
    spark.streams.addListener(lag)
    port = lag.serve()                                   # http://127.0.0.1:<port>/metrics

After every batch Spark reports how far a query is and how far it could be. We count what lies between from manifests,
which are read once and then followed. This happens on the driver, in Spark's listener thread. If the store does not
answer, one line in the log says so, and the query goes on.

Spark does not say which root a source reads, but our offsets name their log: a source is ours if its offsets are those
of the log at this root, of requested topics.

The age of a partition is the age of its oldest segment with unprocessed records, measured from that segment's first
record: at most one segment too old, and 0 when nothing is left. It grows between batches, so a query that hangs shows
up. A query that ended well is forgotten. One that failed stays until it runs again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from operator import attrgetter
from threading import Lock, Thread
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from pyspark.sql.streaming.listener import StreamingQueryListener

from holdfast.clock import Clock, SystemClock
from holdfast.errors import HoldfastError, Invalid, NotFound
from holdfast.reader.offsets import Where, parse_offsets
from holdfast.reader.open_root import SettledRoot
from holdfast.reader.read_options import parse_options
from holdfast.reader.read_plan import meeting
from holdfast.root.objects.documents import SegmentDocument

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        SourceProgress,
    )

logger = logging.getLogger("holdfast")

_SECOND_US = 1_000_000
_CLIENT_PATIENCE_S = 10


class PartitionLag(msgspec.Struct, frozen=True):
    """What is settled of one partition and not processed by a query."""

    records: int = 0
    bytes: int = 0
    seconds: float = 0.0


class Lag(msgspec.Struct, frozen=True):
    """How far a query is behind: totals, and the age of the oldest unprocessed record."""

    records: int = 0
    """Settled and not processed yet."""
    bytes: int = 0
    """Of their segments; one that is cut counts in proportion."""
    seconds: float = 0.0
    """Age of the oldest of them."""
    partitions: dict[Where, PartitionLag] = {}
    """The same by topic and partition."""


class Unread(NamedTuple):
    """What a query has not processed of a partition. The caller works out the age."""

    records: int = 0
    bytes: int = 0
    oldest_us: int | None = None


def unread(segments: Sequence[SegmentDocument], start: int, end: int) -> Unread:
    """What lies between two offsets of a partition, by its segments; part of a segment counts in proportion."""
    if start >= end:
        return Unread()
    size, oldest = 0, None
    for segment in meeting(segments, start, end):
        wanted = min(end, segment.first + segment.rows) - max(start, segment.first)
        if wanted > 0:
            size += segment.size * wanted // segment.rows
            oldest = segment.time_min if oldest is None else min(oldest, segment.time_min)
    return Unread(end - start, size, oldest)


class LagListener(StreamingQueryListener):
    """Counts how far the streams of a SparkSession are behind one root; options as for the format: endpoint …

    Add it with `spark.streams.addListener`. A query counts if its offsets are of the log at this root; `topic` or
    `topicPattern` choose among its topics.
    """

    def __init__(self, root: str, *, clock: Clock | None = None, **options: str) -> None:
        is_chosen = any(name.lower() in ("topic", "topicpattern") for name in options)
        self._place, self._options = parse_options(
            {"path": root, **({} if is_chosen else {"topicPattern": ".*"}), **options}
        )
        self._clock: Clock = clock or SystemClock()
        self._root: SettledRoot | None = None
        self._reading = Lock()
        """Held while the store is asked: a root serves one thread at a time."""
        self._knowing = Lock()
        """Held for moments, around what follows: who asks does not wait for the store."""
        self._unread: dict[str, dict[Where, Unread]] = {}
        self._names: dict[str, str] = {}
        """What a query is called, by its id."""
        self._is_failing = False
        self._server: ThreadingHTTPServer | None = None
        self._thread: Thread | None = None

    # -- what Spark calls ---------------------------------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """A query begins. There is nothing to report before its first batch."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """A batch is done."""
        progress = event.progress
        name = progress.name or str(progress.id)
        try:
            with self._reading:
                found = self._of_sources(progress.sources)
        except Exception as error:  # anything: a query must not fail because its lag is unknown
            self._tell_failure(error)
            return
        self._is_failing = False
        if found is None:
            return
        with self._knowing:
            self._forget(str(progress.id))
            self._names[str(progress.id)], self._unread[name] = name, found
        self._tell(name, self._lag(found))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing was new, so nothing has changed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Forget a query that ended well. Keep one that failed until it runs again."""
        if event.exception is None:
            with self._knowing:
                self._forget(str(event.id))

    def _forget(self, query: str) -> None:
        self._unread.pop(self._names.pop(query, ""), None)

    # -- what users ask -----------------------------------------------------------------------------------

    def lags(self) -> dict[str, Lag]:
        """How far each query is behind, by its name, or its id where it has none."""
        with self._knowing:
            known = sorted(self._unread.items())
        return {name: self._lag(found) for name, found in known}

    def prometheus(self) -> str:
        """The same in Prometheus' text format."""
        return exposition(self.lags())

    def serve(self, port: int = 0) -> int:
        """Answer `GET /metrics`, on this machine only, until `close`. Returns the port; 0 picks a free one."""
        if self._server is not None:
            raise Invalid("the lag is served already", hint="close() first")
        listener = self

        class MetricsHandler(_Metrics):
            def text(self) -> str:
                return listener.prometheus()

        self._server = ThreadingHTTPServer(("127.0.0.1", port), MetricsHandler)
        self._thread = Thread(target=self._server.serve_forever, name="holdfast-lag", daemon=True)
        self._thread.start()
        return self._server.server_port

    def close(self) -> None:
        """Stop serving. `spark.streams.removeListener` removes the listener itself."""
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server = self._thread = None

    # -- counting -----------------------------------------------------------------------------------------

    def _of_sources(self, sources: Iterable[SourceProgress]) -> dict[Where, Unread] | None:
        """What is left by partition, over the sources of a query that read this root; None when none does."""
        found: dict[Where, Unread] | None = None
        for source in sources:
            ends = self._ends(source)
            if ends is None:
                continue
            found = found or {}
            for where, left in self._left(ends, self._offsets(source.latestOffset)).items():
                found[where] = max(found.get(where, left), left, key=attrgetter("records"))
        return found

    def _ends(self, source: SourceProgress) -> dict[Where, int] | None:
        """How far a source is; None when it is not one of ours."""
        ends = self._offsets(source.endOffset)
        if ends is None or not all(self._is_here(topic) for topic in {topic for topic, _ in ends}):
            return None
        return ends

    def _offsets(self, text: str | None) -> dict[Where, int] | None:
        """Offsets from a progress report; None if they are missing, or not those of this log."""
        try:
            marks = parse_offsets(text or "", least=0)
        except Invalid:
            return None
        return marks.ends if marks.log == self._opened().log else None

    def _is_here(self, topic: str) -> bool:
        root = self._opened()
        if not self._options.matches(topic):
            return False
        try:
            root.topic(topic)
        except NotFound:
            return False
        return True

    def _left(self, ends: Mapping[Where, int], latest: Mapping[Where, int] | None) -> dict[Where, Unread]:
        root = self._opened()
        if latest is None:
            latest = root.marks([root.topic(name) for name in sorted({topic for topic, _ in ends})])
        found = {}
        for where in sorted({*ends, *latest}):
            start = ends[where] if where in ends else root.topic(where[0]).first_offset
            end = max(latest.get(where, start), start)
            # Look only at partitions that are behind: a manifest is long, and mostly none is behind.
            found[where] = unread(root.segments(where) if start < end else (), start, end)
        return found

    def _opened(self) -> SettledRoot:
        if self._root is None:
            self._root = SettledRoot.open(self._place, self._options, self._clock)
        return self._root

    def _lag(self, found: Mapping[Where, Unread]) -> Lag:
        now = self._clock.now_us()
        parts = {
            where: PartitionLag(
                left.records,
                left.bytes,
                0.0 if left.oldest_us is None else max(0.0, (now - left.oldest_us) / _SECOND_US),
            )
            for where, left in found.items()
        }
        return Lag(
            sum(part.records for part in parts.values()),
            sum(part.bytes for part in parts.values()),
            max((part.seconds for part in parts.values()), default=0.0),
            parts,
        )

    def _tell(self, name: str, lag: Lag) -> None:
        logger.info(
            "stream lag query=%s records=%d bytes=%d seconds=%.1f",
            name,
            lag.records,
            lag.bytes,
            lag.seconds,
            extra={
                "action": "stream_lag",
                "query": name,
                "records": lag.records,
                "bytes": lag.bytes,
                "seconds": lag.seconds,
            },
        )

    def _tell_failure(self, error: Exception) -> None:
        if self._is_failing:
            return
        self._is_failing = True
        # Log only the kind of foreign errors: their text may hold what does not belong in a log.
        reason = error.message if isinstance(error, HoldfastError) else type(error).__name__
        logger.warning("the lag of streams is not known: %s", reason, extra={"action": "stream_lag_unknown"})


# -- Prometheus ---------------------------------------------------------------------------------------------

_GAUGES = (
    ("records", "Records that are settled and not processed yet."),
    ("bytes", "Bytes of segments that are settled and not processed yet."),
    ("seconds", "Age of the oldest segment with records that are not processed yet."),
)


def exposition(lags: Mapping[str, Lag]) -> str:
    """Lags in Prometheus' text format: one series per query, topic and partition.

    >>> print(exposition({"orders": Lag(3, 40, 1.5, {("orders", 0): PartitionLag(3, 40, 1.5)})}).splitlines()[2])
    holdfast_stream_lag_records{query="orders",topic="orders",partition="0"} 3
    """
    return "".join(f"{line}\n" for line in _lines(lags))


def _lines(lags: Mapping[str, Lag]) -> Iterator[str]:
    for unit, meaning in _GAUGES:
        name = f"holdfast_stream_lag_{unit}"
        yield f"# HELP {name} {meaning}"
        yield f"# TYPE {name} gauge"
        for query, lag in lags.items():
            for (topic, partition), part in lag.partitions.items():
                labels = f'query="{_escaped(query)}",topic="{_escaped(topic)}",partition="{partition}"'
                yield f"{name}{{{labels}}} {getattr(part, unit)}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class _Metrics(BaseHTTPRequestHandler):
    """Answers one path, quietly."""

    timeout = _CLIENT_PATIENCE_S

    def text(self) -> str:
        """The metrics."""
        raise NotImplementedError

    def do_GET(self) -> None:
        """Send the metrics."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        body = self.text().encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *values: object) -> None:
        """Log no requests."""
