"""The numbers of `log.stats()` in Prometheus' text format. Few, and without labels that a client chooses."""

from __future__ import annotations

import msgspec

from holdfast.log.log import Log

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(log: Log) -> tuple[bytes, str]:
    """All whole numbers of the stats, by stage."""
    found = msgspec.to_builtins(log.stats())
    lines = []
    for stage, values in found.items():
        for name, value in (values or {}).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                metric = f"holdfast_{stage}_{name}"
                lines.append(f"# TYPE {metric} gauge\n{metric} {value}\n")
    return "".join(lines).encode(), CONTENT_TYPE
