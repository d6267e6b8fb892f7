"""Steps per second of DBOS Transact on SQLite, in a process of its own: `dbos_rate.py DIRECTORY MODE WORKFLOWS SECONDS`.

MODE is the journal mode of its database: `delete`, as it comes, or `wal`. One workflow runs in a thread, as
applications call it; several are coroutines, which is the faster of its two ways. Each step returns 200 bytes. The
clock starts when DBOS is launched and each workflow has run a step. Prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import sys
import time
from pathlib import Path

RESULT = "x" * 200


class Gate:
    """Where workflows wait for one another."""

    def __init__(self) -> None:
        self.missing = 0
        self.begun = 0.0
        self._open = asyncio.Event()

    async def passed(self) -> float:
        """When all are here: since when."""
        self.missing -= 1
        if not self.missing:
            self.begun = time.perf_counter()
            self._open.set()
        await self._open.wait()
        return self.begun


GATE = Gate()


def main(directory: Path, mode: str, workflows: int, seconds: float) -> None:
    """Measure, and print."""
    from dbos import DBOS

    path = directory / "dbos.sqlite"
    with sqlite3.connect(path) as made:  # the mode stays with the file
        assert made.execute(f"PRAGMA journal_mode={mode}").fetchone()[0] == mode
    made.close()
    DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{path}", "run_admin_server": False})
    logging.getLogger("dbos").setLevel(logging.ERROR)
    run_one, run_many = programs(DBOS)
    DBOS.launch()
    cpu = time.process_time()
    if workflows == 1:
        rows, took = run_one(seconds)
    else:
        rows, took = asyncio.run(together(run_many, workflows, seconds))
    cpu = time.process_time() - cpu
    with sqlite3.connect(path) as made:
        kept = made.execute("SELECT count(*) FROM operation_outputs").fetchone()[0]
        assert made.execute("PRAGMA journal_mode").fetchone()[0] == mode
    assert kept >= rows, (kept, rows)
    print(json.dumps({"rows": rows, "seconds": took, "cpu_seconds": cpu}), flush=True)
    DBOS.destroy()


def programs(dbos):  # type: ignore[no-untyped-def]
    """The workflows of both kinds."""

    @dbos.step()
    def step() -> str:
        return RESULT

    @dbos.step()
    async def step_async() -> str:
        return RESULT

    @dbos.workflow()
    def one(seconds: float) -> tuple[int, float]:
        step()
        rows, begun = 0, time.perf_counter()
        while time.perf_counter() - begun < seconds:
            step()
            rows += 1
        return rows, time.perf_counter() - begun

    @dbos.workflow()
    async def many(number: int, seconds: float) -> int:
        await step_async()
        begun = await GATE.passed()
        rows = 0
        while time.perf_counter() - begun < seconds:
            await step_async()
            rows += 1
        return rows

    return one, many


async def together(run, workflows: int, seconds: float) -> tuple[int, float]:  # type: ignore[no-untyped-def]
    """So many workflows at once."""
    GATE.missing = workflows
    rows = await asyncio.gather(*(run(number, seconds) for number in range(workflows)))
    return sum(rows), time.perf_counter() - GATE.begun


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
