"""A process with a worker, for tests that kill it: every step's effect is a line in a file that outlives it.

    python -m tests.executions.work_victim DIR WITNESS [until-idle]

A line is one `write` to a file opened for appending, so it is there or not, whatever happens to the process.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import holdfast

STEPS = 5
GUARDED = {"effect": "exactly_once_guarded", "on_ambiguous": "skip", "skipped": "skipped"}


class Witness:
    """What happened outside."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def saw(self, line: str) -> str:
        os.write(self._file, line.encode() + b"\n")
        return "done"


def functions(witness: Witness, pause: float) -> dict[str, Any]:
    """Two programs of five steps, each second one guarded."""

    def plain(ctx: Any, number: int) -> list[str]:
        done = []
        for step in range(STEPS):
            options: dict[str, Any] = GUARDED if step % 2 else {"effect": "idempotent"}
            done.append(ctx.step(f"s{step}", witness.saw, f"plain {number} {step}", **options))
            time.sleep(pause)
        return done

    async def waits(ctx: Any, number: int) -> list[str]:
        import asyncio

        done = []
        for step in range(STEPS):
            options: dict[str, Any] = GUARDED if step % 2 else {"effect": "idempotent"}
            done.append(await ctx.step(f"s{step}", witness.saw, f"waits {number} {step}", **options))
            await asyncio.sleep(pause)
        return done

    return {"plain": plain, "waits": waits}


def main() -> None:
    directory, seen, *rest = sys.argv[1:]
    pause = 0.0 if rest else 0.02
    with holdfast.open(Path(directory)) as log:
        worker = log.worker(functions(Witness(seen), pause), concurrency=20, drain_timeout=20)
        print("ready", flush=True)
        worker.run(until_idle=bool(rest))
    print("drained", flush=True)


if __name__ == "__main__":
    main()
