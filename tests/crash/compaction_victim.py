"""A log that fills small segments and compacts them, forever: `python -m tests.crash.compaction_victim DIR`."""

from __future__ import annotations

import sys

import holdfast
from holdfast import Settings
from tests.segments.planting import TEN, fill


def main(directory: str) -> None:
    settings = Settings.from_mapping({"segments": TEN, "shipping": {"delete_after_ms": 0}})
    with holdfast.open(directory, settings=settings) as log:
        print("ready", flush=True)
        while True:
            fill(log, "orders", 3)
            report = log.compact()
            print("failed" if report.problems else "compacted", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
