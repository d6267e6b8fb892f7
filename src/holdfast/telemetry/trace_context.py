"""The trace that a record belongs to, in its headers: `traceparent` and `tracestate`, as W3C's Trace Context has them.

They are written by appends within a recorded span (`log/telemetry/append_spans`), and never in the place of headers
that the caller gave. A reader of the record continues the trace, here or in Spark. What is read was written by others:
a header that is not of W3C's form is no trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol

from holdfast.telemetry import spans

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"

_FORM = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?\Z")
_STATE_BYTES_MAX = 512


class TraceCarrier(Protocol):
    """A record."""

    @property
    def headers(self) -> Mapping[str, bytes] | None:
        """Its headers."""


def headers_for(span: Span) -> dict[str, bytes]:
    """The headers that name a span as the parent of what comes later; none for one that has no ids."""
    context = span.get_span_context()
    if not context.is_valid:
        return {}
    found = {
        TRACEPARENT: f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 0xFF:02x}".encode()
    }
    state = context.trace_state.to_header().encode() if context.trace_state else b""
    if 0 < len(state) <= _STATE_BYTES_MAX:
        found[TRACESTATE] = state
    return found


def trace_id_of(record: TraceCarrier) -> str | None:
    """The id of the trace that a record was appended in, as 32 hexadecimal digits; None if it was in none.

    Needs no OpenTelemetry.
    """
    form = _FORM.match((record.headers or {}).get(TRACEPARENT, b""))
    return None if form is None else form[1].decode()


def context_of(record: TraceCarrier) -> Context | None:
    """The trace that a record was appended in, for OpenTelemetry: `tracer.start_span(…, context=context_of(record))`.

    None if it was in none, or OpenTelemetry is not installed.
    """
    headers = record.headers or {}
    form = _FORM.match(headers.get(TRACEPARENT, b""))
    if form is None or not spans.is_installed():
        return None
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState, set_span_in_context

    state = headers.get(TRACESTATE, b"")[:_STATE_BYTES_MAX].decode("ascii", "replace")
    parent = SpanContext(
        int(form[1], 16),
        int(form[2], 16),
        is_remote=True,
        trace_flags=TraceFlags(int(form[3], 16)),
        trace_state=TraceState.from_header([state]) if state else TraceState(),
    )
    return set_span_in_context(NonRecordingSpan(parent))


@contextmanager
def continued(record: TraceCarrier, name: str) -> Iterator[None]:
    """A span of this name for what is done with a record, as a child of the span that it was appended in.

        for record in topic.consumer("billing"):
            with holdfast.telemetry.continued(record, "bill"):
                bill(record)

    Without OpenTelemetry, or a provider, it does nothing.
    """
    found = spans.tracer() if spans.is_loaded() else None
    block = nullcontext() if found is None else found.start_as_current_span(name, context=context_of(record))
    with block:
        yield
