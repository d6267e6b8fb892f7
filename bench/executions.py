"""Durable executions, and what they are built on: transactions, consumers, lookups by key.

Each part is a function `(scratch, options) -> Part` that says what is measured and what would be unfair; they run
alone with `--only`:

- `transaction` (`executions_transactions`), `key` (`executions_base`): the base; `consumer` (`consumer_speed`);
- `steps`: what a step costs, how fast it is acknowledged, how fast an execution is resumed (`executions_steps`);
- `dbos`: steps per second, beside DBOS Transact on SQLite, as it comes and with WAL (`executions_rival`);
- `otel`: what spans cost: without OpenTelemetry, with its API alone, and with a provider (`executions_spans`).
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import cast

from bench import measure
from bench.measure import Options, Part

PARTS = {
    "transaction": ("bench.executions_transactions", "transactions"),
    "consumer": ("bench.consumer_speed", "consumers"),
    "key": ("bench.executions_base", "keys"),
    "steps": ("bench.executions_steps", "steps"),
    "dbos": ("bench.executions_rival", "dbos"),
    "otel": ("bench.executions_spans", "spans"),
}

Measure = Callable[[Path, Options], Part]


def main(options: Options) -> None:
    """Run all parts, or those that were asked for, and print all bars."""
    names = measure.wanted(PARTS, options)
    done: list[Part] = []
    with measure.workspace(options) as scratch:
        facts = measure.machine(scratch)
        for name in names:
            run = found(*PARTS[name])
            if run is None:
                print(f"not measured: there is no {PARTS[name][1]} in {PARTS[name][0]}")
                continue
            place = scratch / name
            place.mkdir()
            print(f"=== {name}", flush=True)
            done.append(run(place, options))
            print(measure.report(done[-1]), flush=True)
    measure.conclude("executions", done, facts)


def found(module: str, function: str) -> Measure | None:
    """A part, if it is there."""
    if importlib.util.find_spec(module) is None:
        return None
    return cast("Measure | None", getattr(importlib.import_module(module), function, None))
