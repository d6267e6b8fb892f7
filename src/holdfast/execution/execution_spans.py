"""Spans of what is done with executions' journals, for programs that have set up OpenTelemetry (`telemetry/spans`).

Nothing of it is in the journal's own code: verbs of a store are replaced by ones that make a span, when an execution is
opened and tracing is set up. Until then, and without OpenTelemetry forever, the verbs are the plain ones.

Their names: `durable.backend.open`, `durable.journal.append`, `.read`, `.read_segment`,
`.finalize`, `.prune`. A span of `append` lasts from the hand-over until the entries are durable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any

from holdfast.execution.journal.entries import Ended, Entry, ExecutionRow
from holdfast.execution.journal.execution_id import ExecutionId
from holdfast.execution.journal.execution_record import Block
from holdfast.execution.journal.execution_store import ExecutionStore, LiveJournal
from holdfast.execution.journal.live_execution import LiveExecution
from holdfast.execution.journal.live_executions import LiveExecutions
from holdfast.execution.journal.pruning import ExecutionPruner
from holdfast.journal.queue.ticket import UnitTicket
from holdfast.telemetry import spans

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

Verb = Callable[..., Any]


class ExecutionSpans:
    """Makes spans of what one log does with its executions, once there is a provider."""

    def __init__(self, store: ExecutionStore, live: LiveExecutions, pruning: ExecutionPruner) -> None:
        self._store = store
        self._open_spans = spans.OpenSpans()
        self._tracer: Tracer | None = None
        if not spans.is_installed():
            return
        _replace(live, "open", self._opened)
        _replace(live, "open_async", self._opened_async)
        _replace(pruning, "prune", self._pruned)

    def forget(self) -> None:
        """In a forked child."""
        self._open_spans.forget()

    def _tell(self) -> Tracer | None:
        """Who listens; from the first time on that there is a listener, it hears everything."""
        if self._tracer is None:
            self._tracer = spans.tracer()
            if self._tracer is not None:
                _replace(self._store, "load", partial(self._loaded, self._tracer))
                _replace(self._store, "write", partial(self._appended, self._tracer))
                _replace(self._store, "change_row", partial(self._changed, self._tracer))
        return self._tracer

    # -- verbs ------------------------------------------------------------------------------------------------

    def _opened(self, verb: Verb, execution: ExecutionId, kind: str, **options: Any) -> LiveExecution:
        tracer = self._tell()
        if tracer is None:
            return verb(execution, kind, **options)  # type: ignore[no-any-return]
        about = {"execution_id": str(execution), "kind": kind}
        with spans.spanning(tracer, "durable.backend.open", about) as span:
            live: LiveExecution = verb(execution, kind, **options)
            span.set_attribute("is_resume", live.resumed)
            return live

    async def _opened_async(self, verb: Verb, execution: ExecutionId, kind: str, **options: Any) -> LiveExecution:
        tracer = self._tell()
        if tracer is None:
            return await verb(execution, kind, **options)  # type: ignore[no-any-return]
        about = {"execution_id": str(execution), "kind": kind}
        with spans.spanning(tracer, "durable.backend.open", about) as span:
            live: LiveExecution = await verb(execution, kind, **options)
            span.set_attribute("is_resume", live.resumed)
            return live

    def _pruned(self, verb: Verb) -> int:
        tracer = self._tell()
        if tracer is None:
            return verb()  # type: ignore[no-any-return]
        with spans.spanning(tracer, "durable.journal.prune", {}) as span:
            count: int = verb()
            span.set_attribute("deleted_count", count)
            return count

    def _loaded(self, tracer: Tracer, verb: Verb, execution: ExecutionId) -> tuple[list[Block], LiveJournal]:
        with spans.spanning(tracer, "durable.journal.read", {"execution_id": str(execution)}) as span:
            blocks, live = verb(execution)
            span.set_attribute("segment_count", len(blocks))
        return [partial(self._decoded, tracer, block, str(execution)) for block in blocks], live

    def _decoded(self, tracer: Tracer, block: Block, execution: str) -> Sequence[Entry]:
        with spans.spanning(tracer, "durable.journal.read_segment", {"execution_id": execution}) as span:
            entries = block()
            span.set_attribute("count", len(entries))
            return entries

    def _appended(self, tracer: Tracer, verb: Verb, live: LiveJournal, *parts: Any, **options: Any) -> UnitTicket:
        span = tracer.start_span("durable.journal.append")
        if not span.is_recording():
            return verb(live, *parts, **options)  # type: ignore[no-any-return]
        span.set_attributes(_about(live, parts))
        try:
            ticket: UnitTicket = verb(live, *parts, **options)
        except BaseException as error:
            spans.failed(span, type(error).__name__)
            span.end()
            raise
        self._open_spans.end_with(span, ticket)
        return ticket

    def _changed(
        self, tracer: Tracer, verb: Verb, live: LiveJournal, row: ExecutionRow, *entries: Entry, **more: Any
    ) -> UnitTicket:
        if not any(isinstance(entry, Ended) for entry in entries):
            return verb(live, row, *entries, **more)  # type: ignore[no-any-return]
        about = {"execution_id": str(live.execution), "status": row.status}
        with spans.spanning(tracer, "durable.journal.finalize", about):
            return verb(live, row, *entries, **more)  # type: ignore[no-any-return]


def _replace(owner: object, name: str, spanned: Verb) -> None:
    """Put a verb that makes a span before the one that `owner` has."""
    plain = getattr(owner, name)
    setattr(owner, name, update_wrapper(partial(spanned, plain), plain))


def _about(live: LiveJournal, parts: Sequence[object]) -> dict[str, str | int]:
    """Names and counts of what is handed over."""
    entries = [part for part in parts if not isinstance(part, list | ExecutionRow)]
    about: dict[str, str | int] = {"execution_id": str(live.execution), "count": len(entries)}
    if entries:
        about["entry_kind"] = type(entries[0]).__name__
        about["step_id"] = getattr(entries[0], "path", "")
    return about
