"""Tables that every log can have: add them to a pipeline's `of`.

    Pipeline("shop", root=…, tables=…, of=[bronze("orders"), *channels(), *executions(), *health("orders")])

They are ordinary tables, made of the same parts as yours: docs/reference/builtin-tables.md has their columns.
"""

from __future__ import annotations

from pyspark_holdfast.pipeline.builtin.bronze_table import bronze
from pyspark_holdfast.pipeline.builtin.channel_tables import channel_delivery, channel_messages, channels
from pyspark_holdfast.pipeline.builtin.execution_tables import (
    execution_events,
    execution_runs,
    execution_steps,
    executions,
    stuck_executions,
)
from pyspark_holdfast.pipeline.builtin.health_tables import health

__all__ = [
    "bronze", "channel_delivery", "channel_messages", "channels", "execution_events", "execution_runs",
    "execution_steps", "executions", "health", "stuck_executions",
]  # fmt: skip
