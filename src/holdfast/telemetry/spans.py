"""Spans, for programs that have set up OpenTelemetry (the extra `otel`) and a provider of tracers; else nothing at all.

What happens now and then (a seal, a batch on its way, a restore) is wrapped in `span`, which costs next to nothing
where nobody listens. What happens often (an append) asks for a `tracer` once and puts something on its way only then.
Spans have names, ids and counts as attributes, and the type of what was raised; no payload, no token and no text of an
error, because traces leave the machine.

A span of something that is durable later ends when that is known: a thread that lives as long as there are such spans
waits for them, in order, and a moment longer. There are at most so many; beyond that they end at once, and say so.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Condition, Thread
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

NAME = "holdfast"
PENDING_MAX = 10_000
SETTLED_SECONDS_MAX = 60.0
_LINGER_S = 1.0
"""How long the thread waits for another span: to start one for each would cost more than the spans."""

Item = TypeVar("Item")
Attributes = Mapping[str, str | int | bool]

APPEND = "holdfast.journal.append"
RECOVER = "holdfast.journal.recover"
READ = "holdfast.log.read"
SEAL = "holdfast.segments.seal"
RETAIN = "holdfast.segments.retain"
SHIP = "holdfast.shipping.ship"
SETTLE = "holdfast.shipping.settle"
RECONCILE = "holdfast.log.reconcile"
RESTORE = "holdfast.recovery.restore"
REBUILD = "holdfast.recovery.rebuild"
COMPACT = "holdfast.compaction.compact"


class SpanKind(NamedTuple):
    """What a span stands for, and the attributes that it may have."""

    about: str
    attributes: tuple[str, ...]


SPANS: dict[str, SpanKind] = {
    APPEND: SpanKind(
        "an append, a batch or a transaction: from the hand-over until it is durable. Of a record alone: where it is",
        ("holdfast.topic", "holdfast.partition", "holdfast.records", "holdfast.offset", "durable.settled"),
    ),
    RECOVER: SpanKind("opening a log: what is stored is proved and taken over", ("holdfast.topics", "holdfast.epoch")),
    READ: SpanKind(
        "a `read` within a recorded span: from the first record to the last", ("holdfast.topic", "holdfast.records")
    ),
    SEAL: SpanKind(
        "a segment: written, synced, in the manifest",
        ("holdfast.topic", "holdfast.partition", "holdfast.offset", "holdfast.records", "holdfast.bytes"),
    ),
    RETAIN: SpanKind("retention removes segments", ("holdfast.segments",)),
    SHIP: SpanKind(
        "a commit batch on its way, with all attempts",
        ("holdfast.records", "holdfast.bytes", "holdfast.first_seq", "holdfast.last_seq"),
    ),
    SETTLE: SpanKind(
        "a segment's file on its way", ("holdfast.topic", "holdfast.partition", "holdfast.segment", "holdfast.bytes")
    ),
    RECONCILE: SpanKind(
        "a pass of `reconcile`, in the background too; `holdfast.where` is `log` or `store`",
        ("holdfast.where", "holdfast.deep", "holdfast.findings", "holdfast.repairs"),
    ),
    RESTORE: SpanKind("`holdfast.restore`", ("holdfast.copy", "holdfast.records")),
    REBUILD: SpanKind("`holdfast.rebuild`", ("holdfast.records",)),
    COMPACT: SpanKind(
        "the compaction of a partition",
        ("holdfast.topic", "holdfast.partition", "holdfast.files_before", "holdfast.files_after"),
    ),
    "durable.backend.open": SpanKind("an execution is begun, or resumed", ("execution_id", "kind", "is_resume")),
    "durable.journal.append": SpanKind(
        "entries of an execution: from the hand-over until they are durable",
        ("execution_id", "count", "entry_kind", "step_id", "durable.settled"),
    ),
    "durable.journal.read": SpanKind("an execution's journal is read", ("execution_id", "segment_count", "step_count")),
    "durable.journal.read_segment": SpanKind("a part of it is decoded", ("execution_id", "count")),
    "durable.journal.finalize": SpanKind("an execution ends", ("execution_id", "status")),
    "durable.journal.prune": SpanKind("executions are removed whose time is over", ("deleted_count",)),
}
"""Every span that is made."""


class Settles(Protocol):
    """Something whose outcome is known later: a ticket."""

    @property
    def is_stored(self) -> bool:
        """Whether it is known to be durable."""

    def wait(self, timeout: float, /) -> bool:
        """Wait for the outcome; whether it is known."""


class SpanRecorder(Protocol):
    """A span, or nothing in its place."""

    def set_attribute(self, key: str, value: str | int | bool, /) -> None:
        """Say something about it."""


class _Nothing:
    """Where nobody listens."""

    def set_attribute(self, key: str, value: str | int | bool, /) -> None:
        pass


_NOTHING = _Nothing()


def is_installed() -> bool:
    """Whether OpenTelemetry's API is here."""
    try:
        import opentelemetry.trace  # noqa: F401
    except ImportError:
        return False
    return True


def is_loaded() -> bool:
    """Whether the program has loaded it: setting up a provider does that."""
    return is_ready("opentelemetry.trace")


def is_ready(module: str) -> bool:
    """Whether a module is loaded to its end: its own thread may have been interrupted in the middle of that."""
    found = sys.modules.get(module)
    return found is not None and not getattr(found.__spec__, "_initializing", False)


def tracer() -> Tracer | None:
    """Who makes spans; None while the program has set up no provider. Only where OpenTelemetry is installed."""
    from opentelemetry import trace

    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return trace.get_tracer(NAME)


@contextmanager
def span(name: str, attributes: Attributes) -> Iterator[SpanRecorder]:
    """A span around a block, where tracing is set up."""
    found = tracer() if is_loaded() else None
    if found is None:
        yield _NOTHING
        return
    with spanning(found, name, attributes) as made:
        yield made


@contextmanager
def spanning(tracer: Tracer, name: str, attributes: Attributes) -> Iterator[Span]:
    """A span around a block; what the block raises is reported by its type alone."""
    with tracer.start_as_current_span(
        name, attributes=dict(attributes), record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield span
        except BaseException as error:
            if not isinstance(error, GeneratorExit):
                failed(span, type(error).__name__)
            raise


def failed(span: Span, why: str) -> None:
    """Mark a span."""
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR, why))


def is_recorded() -> bool:
    """Whether the caller is in a span that is recorded."""
    if not is_loaded():
        return False
    from opentelemetry.trace import get_current_span

    return get_current_span().is_recording()


def counted(name: str, topic: str, items: Iterable[Item], count: Callable[[Item], int]) -> Iterator[Item]:
    """Items that are read, in a span from the first to the last; it is not the current one of their taker."""
    found = tracer() if is_loaded() else None
    if found is None:
        yield from items
        return
    span, records = found.start_span(name, attributes={"holdfast.topic": topic}), 0
    try:
        for item in items:
            records += count(item)
            yield item
    except GeneratorExit:
        raise
    except BaseException as error:
        failed(span, type(error).__name__)
        raise
    finally:
        span.set_attribute("holdfast.records", records)
        span.end()


# -- spans that end later -----------------------------------------------------------------------------------------


class OpenSpans:
    """Spans that end when what they tell of is settled."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Span, Settles]] = deque()
        self._news = Condition()
        self._thread: Thread | None = None

    def end_with(self, span: Span, ticket: Settles) -> None:
        """End this span as soon as the outcome is known."""
        if len(self._waiting) >= PENDING_MAX:
            span.set_attribute("durable.settled", False)
            span.end()
            return
        with self._news:
            self._waiting.append((span, ticket))
            if self._thread is None:
                self._thread = Thread(target=self._run, name="holdfast-spans", daemon=True)
                self._thread.start()
            elif len(self._waiting) == 1:
                self._news.notify()

    def forget(self) -> None:
        """In a forked child: the thread is the parent's, and so are the spans."""
        self.__init__()  # type: ignore[misc]

    def _run(self) -> None:
        while True:
            with self._news:
                if not self._waiting and not self._news.wait_for(lambda: self._waiting, _LINGER_S):
                    self._thread = None
                    return
                span, ticket = self._waiting[0]
            if not ticket.wait(SETTLED_SECONDS_MAX):
                failed(span, "OutcomeUnknown")
            elif not ticket.is_stored:
                failed(span, "not stored")
            span.end()
            self._waiting.popleft()
