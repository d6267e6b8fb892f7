"""Steps per second of DBOS Transact on SQLite, in a process of its own: `dbos_rate.py DIRECTORY MODE COUNT SECONDS`.

MODE is the journal mode of its database: `delete`, as it comes, or `wal`. Each workflow runs in a thread of DBOS: as
coroutines 64 of them are a fifth slower. Each step returns 200 bytes. The clock starts when DBOS is launched and each
workflow has run a step. Prints one line of JSON.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import sys
import time
from pathlib import Path
from threading import Barrier

RESULT = "x" * 200


def main(directory: Path, mode: str, workflows: int, seconds: float) -> None:
    """Measure, and print."""
    from dbos import DBOS

    path = directory / "dbos.sqlite"
    with sqlite3.connect(path) as made:  # the mode stays with the file
        assert made.execute(f"PRAGMA journal_mode={mode}").fetchone()[0] == mode
    made.close()
    DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{path}", "run_admin_server": False})
    logging.getLogger("dbos").setLevel(logging.ERROR)
    run = program(DBOS, Barrier(workflows), seconds)
    DBOS.launch()
    cpu = time.process_time()
    handles = [DBOS.start_workflow(run, number) for number in range(workflows)]
    spans = [handle.get_result() for handle in handles]
    rows = sum(count for count, _, _ in spans)
    took = max(end for _, _, end in spans) - min(begun for _, begun, _ in spans)
    cpu = time.process_time() - cpu
    with sqlite3.connect(path) as made:
        kept = made.execute("SELECT count(*) FROM operation_outputs").fetchone()[0]
        assert made.execute("PRAGMA journal_mode").fetchone()[0] == mode
    assert kept >= rows, (kept, rows)
    print(json.dumps({"rows": rows, "seconds": took, "cpu_seconds": cpu}), flush=True)
    DBOS.destroy()


def program(dbos, gate: Barrier, seconds: float):  # type: ignore[no-untyped-def]
    """A workflow that runs steps until the time is over."""

    @dbos.step()
    def step() -> str:
        return RESULT

    @dbos.workflow()
    def run(number: int) -> tuple[int, float, float]:
        step()
        gate.wait(60)
        rows, begun = 0, time.perf_counter()
        while time.perf_counter() - begun < seconds:
            step()
            rows += 1
        return rows, begun, time.perf_counter()

    return run


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
