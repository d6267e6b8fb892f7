"""Spans of appends, and the trace in the headers of records, for programs that have set up OpenTelemetry.

Nothing of it is on the way of an append until there is a provider of tracers: then the journal's verbs are replaced by
ones that look whether their caller is in a recorded span. That is looked for when a log is opened and whenever a topic
is asked for. A span lasts from the hand-over until the records are durable; a batch and a transaction have one.

Headers of the caller are never changed or replaced, nothing is added beyond `journal.headers_bytes_max`, and an
idempotency key stands for the record without what is added here. Rows of typed topics have no headers, and topics of
holdfast's own carry no trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.errors import HoldfastError
from holdfast.journal.journal import Journal, Operation, Run, Unit
from holdfast.journal.queue.ticket import Ticket, UnitTicket
from holdfast.journal.state.partition import Partition
from holdfast.model.record_columns import Cells, Columns, EncodedRows, Extra, RowEncoder, decode_headers, encode_headers
from holdfast.telemetry import spans, trace_context
from holdfast.telemetry.telemetry_settings import TelemetrySettings

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

Queued = TypeVar("Queued")

_OWN = "_"
"""What names of topics begin with that are not the application's."""


def current_context() -> Callable[[], object]:
    """Whether the caller has any context of OpenTelemetry's, as a function; most have none, and it says so in no time.

    OpenTelemetry's own way there is six calls of Python, a tenth of what an append costs. Its variable is not public:
    where it is not as expected, everybody takes the long way.
    """
    from opentelemetry import context

    variable = getattr(getattr(context, "_RUNTIME_CONTEXT", None), "_current_context", None)
    return variable.get if isinstance(variable, ContextVar) else lambda: True


class AppendSpans:
    """The spans of one log's appends; nothing until there is a provider."""

    def __init__(self, journal: Journal, settings: TelemetrySettings) -> None:
        self._journal = journal
        self._settings = settings
        self._open = spans.OpenSpans()
        self._is_on = journal.read_only or settings.append_spans == "off"

    def begin(self) -> None:
        """Replace the journal's verbs, if spans are collected by now."""
        if self._is_on or not spans.is_loaded():
            return
        tracer = spans.tracer()
        if tracer is None:
            return
        self._is_on = True
        journal = self._journal
        verbs = _SpanVerbs(tracer, self._settings, journal.settings.headers_bytes_max, self._open)
        journal.submit = verbs.submit(journal.submit)
        journal.offer = verbs.offer(journal.offer)
        journal.put_runs = verbs.put_runs(journal.put_runs)
        journal.put_row = verbs.put_row(journal.put_row)
        journal.transact = verbs.transact(journal.transact)  # type: ignore[method-assign]

    def forget(self) -> None:
        """In a forked child: its journal takes nothing more."""
        self._open.forget()


class _SpanVerbs:
    """The verbs, each around the plain one."""

    def __init__(
        self, tracer: Tracer, settings: TelemetrySettings, headers_bytes_max: int, open_spans: spans.OpenSpans
    ) -> None:
        from opentelemetry.trace import get_current_span

        self._tracer = tracer
        self._always = settings.append_spans == "always"
        self._carries = settings.trace_headers
        self._headers_bytes_max = headers_bytes_max
        self._open = open_spans
        self._current = get_current_span

    def submit(self, plain: Callable[..., Ticket]) -> Callable[..., Ticket]:
        """One record. On its way for every append: what is done for none of them is done first."""
        current, always, context = self._current, self._always, current_context()

        def submit(
            partition: Partition,
            payload: bytes,
            time: int,
            extra: Extra | None,
            unique: bytes | None,
            size: int,
            timeout: float,
            key: bytes | None,
        ) -> Ticket:
            if not always and (not context() or not current().is_recording()):
                return plain(partition, payload, time, extra, unique, size, timeout, key)
            span = self._begin(partition.topic, 1, partition.number)
            extra, size = self._carried(span, partition, extra, size)
            ticket = self._held(span, lambda: plain(partition, payload, time, extra, unique, size, timeout, key))
            self._open.end_with(span, _RecordOutcome(span, ticket))
            return ticket

        return submit

    def offer(self, plain: Callable[..., bool]) -> Callable[..., bool]:
        """One buffered record: nobody waits for it, so it has no span of its own."""
        current, context = self._current, current_context()

        def offer(
            partition: Partition, payload: bytes, time: int, extra: Extra | None, unique: bytes | None, size: int
        ) -> bool:
            if context() and (span := current()).is_recording():
                extra, size = self._carried(span, partition, extra, size)
            return plain(partition, payload, time, extra, unique, size)

        return offer

    def put_runs(self, plain: Callable[..., Unit]) -> Callable[..., Unit]:
        """A batch."""

        def put_runs(runs: Sequence[tuple[Partition, Columns | EncodedRows]], size: int, timeout: float) -> Unit:
            if not self._always and not self._current().is_recording():
                return plain(runs, size, timeout)
            span = self._begin(runs[0][0].topic, sum(len(columns) for _, columns in runs))
            for partition, columns in runs:
                if isinstance(columns, Columns):
                    size += self._carry_all(span, partition, columns)
            unit = self._held(span, lambda: plain(runs, size, timeout))
            self._open.end_with(span, UnitTicket(unit, timeout))
            return unit

        return put_runs

    def put_row(self, plain: Callable[..., tuple[Run, int]]) -> Callable[..., tuple[Run, int]]:
        """One row of a typed topic."""

        def put_row(
            partition: Partition, cells: Cells, time: int, encoder: RowEncoder, size: int, timeout: float
        ) -> tuple[Run, int]:
            if not self._always and not self._current().is_recording():
                return plain(partition, cells, time, encoder, size, timeout)
            span = self._begin(partition.topic, 1, partition.number)
            run, index = self._held(span, lambda: plain(partition, cells, time, encoder, size, timeout))
            self._open.end_with(span, _RecordOutcome(span, Ticket(run, index, timeout)))
            return run, index

        return put_row

    def transact(self, plain: Callable[..., UnitTicket]) -> Callable[..., UnitTicket]:
        """A transaction that appends something."""

        def transact(operations: list[Operation], *, records: int, size: int, **options: Any) -> UnitTicket:
            runs = [one for one in operations if isinstance(one, Run) and not one.partition.topic.startswith(_OWN)]
            if not runs or not (self._always or self._current().is_recording()):
                return plain(operations, records=records, size=size, **options)
            span = self._begin(runs[0].partition.topic, sum(map(len, runs)))
            for run in runs:
                size += self._carry_run(span, run)
            ticket = self._held(span, lambda: plain(operations, records=records, size=size, **options))
            self._open.end_with(span, ticket)
            return ticket

        return transact

    # -- spans ----------------------------------------------------------------------------------------------

    def _begin(self, topic: str, records: int, partition: int | None = None) -> Span:
        about: dict[str, str | int] = {"holdfast.topic": topic, "holdfast.records": records}
        if partition is not None:
            about["holdfast.partition"] = partition
        return self._tracer.start_span(spans.APPEND, attributes=about)

    @staticmethod
    def _held(span: Span, put: Callable[[], Queued]) -> Queued:
        """Queue something; what is refused ends its span."""
        try:
            return put()
        except BaseException as error:
            spans.failed(span, type(error).__name__)
            span.end()
            raise

    # -- headers --------------------------------------------------------------------------------------------

    def _carried(self, span: Span, partition: Partition, extra: Extra | None, size: int) -> tuple[Extra | None, int]:
        """A record's key, kind and headers with the trace in them, and its size then."""
        if not self._carries or partition.topic.startswith(_OWN):
            return extra, size
        key, kind, headers = (None, None, None) if extra is None else extra
        known = {} if headers is None else decode_headers(headers)
        if trace_context.TRACEPARENT in known:  # the caller's own
            return extra, size
        encoded = encode_headers({**trace_context.headers_for(span), **known})
        if len(encoded) > self._headers_bytes_max:
            return extra, size
        return (key, kind, encoded), size + len(encoded) - len(headers or b"")

    def _carry_all(self, span: Span, partition: Partition, columns: Columns) -> int:
        """The same for all records of a batch; by how much it grew."""
        bare, grown = self._carried(span, partition, None, 0)
        if bare is None:
            return 0
        total = 0
        for index in range(len(columns)):
            extra = columns.extras.get(index)
            carried, more = (bare, grown) if extra is None else self._carried(span, partition, extra, 0)
            if carried is not None:
                columns.extras[index] = carried
                total += more
        return total

    def _carry_run(self, span: Span, run: Run) -> int:
        if isinstance(run.columns, Columns):
            return self._carry_all(span, run.partition, run.columns)
        total = 0
        for index, (payload, time, extra, unique) in enumerate(run.rows):
            carried, more = self._carried(span, run.partition, extra, 0)
            run.rows[index] = (payload, time, carried, unique)
            run.extras = run.extras or carried is not None
            total += more
        return total


class _RecordOutcome:
    """The outcome of one record; then its span says where it is."""

    __slots__ = ("_span", "_ticket", "is_stored")

    def __init__(self, span: Span, ticket: Ticket) -> None:
        self._span = span
        self._ticket = ticket
        self.is_stored = False

    def wait(self, timeout: float, /) -> bool:
        """Wait for it; whether it is known."""
        try:
            receipt = self._ticket.result(timeout)
        except HoldfastError:
            return self._ticket.done
        self._span.set_attribute("holdfast.offset", receipt.offset)
        self.is_stored = True
        return True
