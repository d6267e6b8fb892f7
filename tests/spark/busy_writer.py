"""The writer of test_busy.py: appends at full speed, seals, ships and retires, until it has to end (SIGTERM).

    python -m tests.spark.busy_writer LOG STORE-DIRECTORY SECONDS

It pauses for SECONDS after each round of appends.

Payloads say where they belong: `partition:offset`.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import holdfast
from holdfast import Settings

PARTITIONS = 3
BATCH = 200
AHEAD = 20_000
"""How far a partition may run ahead of its segments, so that the end is in sight on a slow machine, too."""
PATIENCE = 300

SETTINGS = {
    "segments": {"rows_max": 2_000},
    "shipping": {"store_bytes_max": 40_000, "delete_after_ms": 30_000},
    "retention": {"bytes_max": 200_000},
    "disk": {"free_bytes_min": 0},
}


def main(path: Path, store: Path, pause: float) -> None:
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: ending.append(number))
    settings = Settings.from_mapping({**SETTINGS, "store": {"url": f"file://{store}"}})
    with holdfast.open(path, settings=settings) as log:
        topic = log.topic("busy", partitions=PARTITIONS)
        ends = [mark.durable for mark in log.marks("busy")]
        while not ending:
            for partition in range(PARTITIONS):
                at = ends[partition]
                payloads = [b"%d:%d" % (partition, offset) + b"." * 40 for offset in range(at, at + BATCH)]
                receipts = topic.append_batch(payloads, partition=partition)
                assert receipts[0].offset == at
                ends[partition] += BATCH
                topic.wait_sealed(ends[partition] - AHEAD, PATIENCE, partition=partition)
            time.sleep(pause)
        log.seal(timeout=PATIENCE)
        log.ship(PATIENCE)
    print(*ends)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
