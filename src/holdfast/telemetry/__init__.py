"""What a running log reports to its operators: metrics, spans, and the trace that a record belongs to.

Metrics are defined once, in OpenTelemetry's form (`metric_list`); Prometheus' names derive from that. Nothing is
measured for their sake: values are read from `log.stats()` and the marks at collection. Spans and trace context are for
programs that have set up OpenTelemetry (the extra `otel`); for all others there is nothing on the way.

    body, content_type = holdfast.telemetry.render()                  # all logs that are open in this process
    with holdfast.telemetry.continued(record, "handle order"): …      # a consumer goes on with the trace of an append
"""

from __future__ import annotations

from holdfast.telemetry.openmetrics import render
from holdfast.telemetry.trace_context import context_of, continued, trace_id_of

__all__ = ["context_of", "continued", "render", "trace_id_of"]
