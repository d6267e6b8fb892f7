"""The shape of a metric: its one definition, what was read of it, and the names that others know it by.

A definition is OpenTelemetry's: a name with dots, a unit of UCUM, a kind, attributes. Prometheus' name follows from it
by the rules that OpenTelemetry's own exporters use, so that a dashboard does not care which way the numbers came:
dots become underscores, the unit is appended, and a counter ends in `_total`.

Attributes are bounded. Either all their values are known (`values`), or there are at most so many of them, and the rest
is one more: `OTHER`. No payload, key, token, path or text of an error is ever one.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]

FAST_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""Upper bounds of the buckets of commits and requests, in seconds; one more bucket takes the rest."""
SLOW_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""The same for work in the background."""

OTHER = "(other)"
"""Whatever is beyond the limit, together; no topic and no consumer can have this name."""

_UNITS = {"s": "seconds", "By": "bytes"}


class Attribute(NamedTuple):
    """A dimension of a metric."""

    name: str
    about: str
    values: tuple[str, ...] = ()
    """All that there are; empty where they are names of this log's own, bounded by a setting."""

    @property
    def label(self) -> str:
        """Prometheus' name of it."""
        return self.name.replace(".", "_")


class Buckets(NamedTuple):
    """How often something took how long: counts up to each bound and beyond the last, and the sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


Value = int | float | Buckets


class Metric(NamedTuple):
    """The definition of a metric."""

    name: str
    kind: Kind
    unit: str
    """In UCUM: `s`, `By`, or what is counted in braces: `{record}`."""
    about: str
    attributes: tuple[Attribute, ...] = ()
    bounds: tuple[float, ...] = ()
    """Of a histogram's buckets."""

    @property
    def prometheus(self) -> str:
        """Prometheus' name of the family, without the `_total` of a counter's samples."""
        name, unit = self.name.replace(".", "_"), _UNITS.get(self.unit, "")
        return name if not unit or name.endswith(f"_{unit}") else f"{name}_{unit}"

    @property
    def prometheus_unit(self) -> str:
        """The unit as OpenMetrics says it; empty for what is only counted."""
        return _UNITS.get(self.unit, "")

    @property
    def sample(self) -> str:
        """Prometheus' name of a sample; of a histogram, what its parts begin with."""
        return f"{self.prometheus}_total" if self.kind == "counter" else self.prometheus


class MetricPoint(NamedTuple):
    """A value of a metric, with one value for each of its attributes."""

    metric: Metric
    values: tuple[str, ...]
    value: Value

    @property
    def attributes(self) -> dict[str, str]:
        """Values by the names of their attributes."""
        return {attribute.name: value for attribute, value in zip(self.metric.attributes, self.values, strict=True)}


def joined(kind: Kind, one: Value, other: Value) -> Value:
    """Two values of one point, of two handles of one log: counts add up, of levels the higher one holds."""
    if isinstance(one, Buckets) and isinstance(other, Buckets):
        counts = tuple(a + b for a, b in zip(one.counts, other.counts, strict=True))
        return Buckets(one.bounds, counts, one.total + other.total)
    assert not isinstance(one, Buckets)
    assert not isinstance(other, Buckets)
    return one + other if kind == "counter" else max(one, other)
