"""OpenTelemetry, where it is installed (the extra `otel`) and a program has set up a provider; else nothing at all.

The only file that knows OpenTelemetry. Whoever wants spans asks for a tracer *before* it puts anything on its way:
without a provider there is none, and nothing is put there. Spans have names, ids and counts as attributes, and the
type of what was raised; no payload, no token and no text of an error, because traces leave the machine.

A span of something that is durable later ends when that is known: a thread that lives as long as there are such spans
waits for them, in order. There are at most so many; beyond that they end at once, and say so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock, Thread
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.trace import Span, Tracer

NAME = "holdfast"
QUEUE_DEPTH = "durable.journal.writer.queue_depth"
PENDING_MAX = 10_000
SETTLED_SECONDS_MAX = 60.0

Attributes = Mapping[str, str | int | bool]


class Settles(Protocol):
    """Something whose outcome is known later: a ticket."""

    @property
    def is_stored(self) -> bool:
        """Whether it is known to be durable."""

    def wait(self, timeout: float, /) -> bool:
        """Wait for the outcome; whether it is known."""


def is_installed() -> bool:
    """Whether OpenTelemetry's API is here."""
    try:
        import opentelemetry.trace  # noqa: F401
    except ImportError:
        return False
    return True


def tracer() -> Tracer | None:
    """Who makes spans; None while the program has set up no provider. Only where OpenTelemetry is installed."""
    from opentelemetry import trace

    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return trace.get_tracer(NAME)


@contextmanager
def spanning(tracer: Tracer, name: str, attributes: Attributes) -> Iterator[Span]:
    """A span around a block; what the block raises is told by its type alone."""
    with tracer.start_as_current_span(
        name, attributes=dict(attributes), record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield span
        except BaseException as error:
            failed(span, type(error).__name__)
            raise


def failed(span: Span, why: str) -> None:
    """Mark a span."""
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR, why))


# -- spans that end later -----------------------------------------------------------------------------------------


class OpenSpans:
    """Spans that end when what they tell of is settled."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Span, Settles]] = deque()
        self._lock = Lock()
        self._thread: Thread | None = None

    def end_with(self, span: Span, ticket: Settles) -> None:
        """End this span as soon as the outcome is known."""
        if len(self._waiting) >= PENDING_MAX:
            span.set_attribute("durable.settled", False)
            span.end()
            return
        with self._lock:
            self._waiting.append((span, ticket))
            if self._thread is None:
                self._thread = Thread(target=self._run, name="holdfast-spans", daemon=True)
                self._thread.start()

    def forget(self) -> None:
        """In a forked child: the thread is the parent's, and so are the spans."""
        self.__init__()  # type: ignore[misc]

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                span, ticket = self._waiting[0]
            if not ticket.wait(SETTLED_SECONDS_MAX):
                failed(span, "OutcomeUnknown")
            elif not ticket.is_stored:
                failed(span, "not stored")
            span.end()
            self._waiting.popleft()


# -- the gauge ----------------------------------------------------------------------------------------------------

# OpenTelemetry keeps one instrument of a name, and never forgets a callback: so there is one for all logs of a process,
# which forgets logs that are gone.
_depths: WeakKeyDictionary[object, tuple[str, Callable[[], int]]] = WeakKeyDictionary()
_depths_lock = Lock()
_gauges: list[object] = []


def watch_depth(owner: object, log_id: str, depth: Callable[[], int]) -> None:
    """Show how many records of a log wait for its writer, while `owner` lives; `depth` must not hold on to it.

    Only where OpenTelemetry is installed.
    """
    from opentelemetry import metrics

    with _depths_lock:
        _depths[owner] = (log_id, depth)
        if not _gauges:
            what = "Records that were accepted and are not durable yet."
            meter = metrics.get_meter(NAME)
            _gauges.append(meter.create_observable_gauge(QUEUE_DEPTH, [_observed], "{record}", what))


def unwatch_depth(owner: object) -> None:
    """This log is closed."""
    with _depths_lock:
        _depths.pop(owner, None)


def _observed(_: CallbackOptions) -> Iterable[Observation]:
    from opentelemetry.metrics import Observation

    with _depths_lock:
        watched = list(_depths.values())
    return [Observation(depth(), {"holdfast.log": log_id}) for log_id, depth in watched]
