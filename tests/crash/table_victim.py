"""Processes around one published topic on a store, at work until they are killed.

    python -m tests.crash.table_victim own DIRECTORY ROOT       appends, seals, ships, retires, and keeps the table
    python -m tests.crash.table_victim compact DIRECTORY ROOT   joins small segments on the store, again and again
    python -m tests.crash.table_victim publish DIRECTORY ROOT   publishes, too

Each says `ready`, and then a line for whatever it has done.
"""

from __future__ import annotations

import os
import sys
from itertools import count
from pathlib import Path

import holdfast
from holdfast import HoldfastError, Settings, Unavailable

PARTITIONS = 2
DELETE_AFTER_MS = 3_600_000


def settings() -> Settings:
    """Small segments, a table that is kept at once, a store that keeps little."""
    return Settings.from_mapping(
        {
            "segments": {"rows_max": 20, "idle_ratio": 0},
            "publish": {"delta": True, "interval_ms": 100},
            "shipping": {"checkpoint_every": 5, "store_bytes_max": 1_000_000, "delete_after_ms": DELETE_AFTER_MS},
        }
    )


def tell(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def own(directory: Path, root: str) -> None:
    """Append without end; each batch is on the store before the next one."""
    with holdfast.open(directory, store=root, settings=settings()) as log:
        orders = log.topic("orders", partitions=PARTITIONS)
        tell("ready")
        for turn in count():
            for partition in range(PARTITIONS):
                orders.append_batch([os.urandom(1_000) for _ in range(15)], partition=partition)
            log.seal()
            log.ship()
            tell(f"shipped {turn}")


def compact(_: Path, root: str) -> None:
    """Join what there is; two of these at once get in each other's way, and do no harm."""
    tell("ready")
    for size in count(1):
        report = holdfast.compact(root, target_size=f"{64 * (1 + size % 4)}KiB", delete_after_ms=DELETE_AFTER_MS)
        assert not report.problems, report.problems
        tell(f"compacted {report.rewritten_files}")


def publish(_: Path, root: str) -> None:
    """Publish beside the owner."""
    tell("ready")
    while True:
        for report in holdfast.publish_tables(root, "orders"):
            assert report.state in ("published", "unchanged"), report
            tell(f"{report.state} {report.version}")


if __name__ == "__main__":
    what, directory, root = sys.argv[1:]
    try:
        {"own": own, "compact": compact, "publish": publish}[what](Path(directory), root)
    except Unavailable:
        raise
    except HoldfastError as error:
        tell(f"failed {type(error).__name__} {error.message}")
        raise
