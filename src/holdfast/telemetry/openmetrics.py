"""Metrics as text, for Prometheus: OpenMetrics 1.0, or the older text format 0.0.4, by what a scraper accepts.

Both hold the same numbers under the same names. Labels are escaped; nothing else than numbers and the bounded values of
attributes is in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.telemetry import collecting
from holdfast.telemetry.collecting import LogIdentity
from holdfast.telemetry.metric import Buckets, Metric, MetricPoint

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
TEXT = "text/plain; version=0.0.4; charset=utf-8"

_ACCEPT_CHARACTERS_MAX = 1000
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def render(logs: Iterable[LogIdentity] | None = None, *, accept: str = "") -> tuple[bytes, str]:
    """The metrics of these logs, or of all that are open in this process, and the content type of the text.

    `accept` is the client's header of the same name.

        body, content_type = holdfast.telemetry.render(accept=request.headers.get("accept", ""))
    """
    is_open = accepts_openmetrics(accept)
    lines = [line for family in collecting.collect(logs).items() for line in _family(*family, is_open=is_open)]
    if is_open:
        lines.append("# EOF")
    return "".join(f"{line}\n" for line in lines).encode(), OPENMETRICS if is_open else TEXT


def accepts_openmetrics(accept: str) -> bool:
    """Whether OpenMetrics is what a scraper would rather have."""
    ranks = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for item in accept[:_ACCEPT_CHARACTERS_MAX].split(","):
        kind, *parameters = (part.strip().lower() for part in item.split(";"))
        if kind in ranks:
            ranks[kind] = max(ranks[kind], _quality(parameters))
    return ranks["application/openmetrics-text"] > 0.0 and ranks["application/openmetrics-text"] >= ranks["text/plain"]


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def _family(metric: Metric, points: Iterable[MetricPoint], *, is_open: bool) -> Iterator[str]:
    name = metric.prometheus if is_open else metric.sample  # the older format knows no families of counters
    yield f"# HELP {name} {metric.about.translate(_ESCAPES) if is_open else metric.about}"
    yield f"# TYPE {name} {metric.kind}"
    if is_open and metric.prometheus_unit:
        yield f"# UNIT {name} {metric.prometheus_unit}"
    for point in points:
        yield from _samples(point)


def _samples(point: MetricPoint) -> Iterator[str]:
    labels = [
        f'{attribute.label}="{value.translate(_ESCAPES)}"'
        for attribute, value in zip(point.metric.attributes, point.values, strict=True)
    ]
    name, value = point.metric.sample, point.value
    if not isinstance(value, Buckets):
        yield f"{name}{_braces(labels)} {_number(value)}"
        return
    seen = 0
    for bound, count in zip((*value.bounds, float("inf")), value.counts, strict=True):
        seen += count
        edge = "+Inf" if bound == float("inf") else _number(float(bound))
        within = f'le="{edge}"'
        yield f"{name}_bucket{_braces([*labels, within])} {seen}"
    yield f"{name}_sum{_braces(labels)} {_number(value.total)}"
    yield f"{name}_count{_braces(labels)} {seen}"


def _braces(labels: list[str]) -> str:
    return f"{{{','.join(labels)}}}" if labels else ""


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(value)
