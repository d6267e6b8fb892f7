"""`holdfast metrics`: the metrics of a log as another process sees them, as text for Prometheus or as JSON.

The log is opened to be read, beside its owner or without one, and nothing of it is changed: marks, lags, segments,
tails and consumers. What only the owner counts (commits, latencies, its queue) is reported by the owner itself, with
`holdfast.telemetry.render` or OpenTelemetry.
"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from holdfast import Settings
from holdfast.cli.options import directory_argument, json_option, keyring_option, open_log
from holdfast.cli.output import emit_bytes, emit_json, flush
from holdfast.telemetry import openmetrics
from holdfast.telemetry.collecting import collect
from holdfast.telemetry.metric import Buckets, Kind

EPILOG = """\b
Examples:
  holdfast metrics data > holdfast.prom.tmp && mv holdfast.prom.tmp /var/lib/node_exporter/holdfast.prom
  holdfast metrics data --json | jq 'select(.name == "holdfast.lag")'"""


class MetricLine(msgspec.Struct, frozen=True):
    """One value, with OpenTelemetry's name of the metric."""

    name: str
    """OpenTelemetry's name of the metric: `holdfast.lag`."""
    kind: Kind
    """`gauge` or `counter`."""
    unit: str
    """`By`, `s`, `{record}` …."""
    attributes: dict[str, str]
    """By name: `holdfast.log`, `holdfast.role`, and what the metric is about: `holdfast.topic` …."""
    value: int | float
    """A number."""


@click.command("metrics", epilog=EPILOG)
@directory_argument
@click.option("--openmetrics", "is_open", is_flag=True, help="OpenMetrics 1.0 rather than Prometheus' text format.")
@keyring_option
@json_option
def metrics_command(directory: Path, is_open: bool, reference: str | None, as_json: bool) -> None:
    """Print the metrics of the log in DIR for Prometheus, without touching it."""
    with open_log(directory, reference, Settings.load(), read_only=True) as log:
        if as_json:
            for points in collect([log]).values():
                for point in points:
                    assert not isinstance(point.value, Buckets)  # a handle that only reads measures nothing
                    metric = point.metric
                    emit_json(MetricLine(metric.name, metric.kind, metric.unit, point.attributes, point.value))
        else:
            emit_bytes(openmetrics.render([log], accept="application/openmetrics-text" if is_open else "")[0])
    flush()
