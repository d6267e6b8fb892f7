"""One process that shares a log, for `bench.shared`: told by lines what to do, and answers each by one line of JSON.

`open DIR` opens the log in this directory, shared; `close` closes it. `tasks N S` has N coroutines append one record
after the other, for S seconds; `rows S` appends typed batches of ten thousand rows, one after the other.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from functools import partial

import holdfast
from bench import measure
from bench.measure import PAYLOAD
from bench.order_rows import all_orders
from holdfast import Log

ROWS = 10_000


def tasks(log: Log, count: int, seconds: float) -> measure.Sample:
    """Single acknowledged appends from so many coroutines."""
    append = partial(log.topic("bench").submit, PAYLOAD)
    return asyncio.run(measure.drive_tasks("", [append] * count, seconds))


def rows(log: Log, seconds: float) -> measure.Sample:
    """Typed batches, each acknowledged before the next."""
    table = all_orders(ROWS)
    topic = log.topic("orders", schema=table.schema)
    sample = measure.drive_threads("", [lambda: topic.append(table)], seconds)
    return measure.Sample("", sample.rows * ROWS, sample.seconds, sample.p50_ms, sample.p99_ms, sample.cpu_seconds)


def main() -> None:
    log: Log | None = None
    for line in sys.stdin:
        verb, *given = line.split()
        said: dict[str, object] = {}
        if verb == "open":
            log = holdfast.open(given[0], share=True, settings=holdfast.Settings())
            log.topic("bench")
            log.topic("bench").append(PAYLOAD)
        assert log is not None
        if verb in ("tasks", "rows"):
            cpu = time.process_time()
            sample = tasks(log, int(given[0]), float(given[1])) if verb == "tasks" else rows(log, float(given[0]))
            said = {"rows": sample.rows, "seconds": sample.seconds, "p50_ms": sample.p50_ms, "p99_ms": sample.p99_ms}
            said["cpu"] = time.process_time() - cpu
        if verb == "close":
            log.close()
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
