"""Steps per second beside DBOS Transact on SQLite, on the same disk: in one workflow, and in 64 at once.

A step is a function that returns 200 bytes. Both record its result, and both promise the same of such a step: after a
crash it is not run again if its result was recorded, and may run twice if it was not. They differ in when that is. DBOS
commits after each step; holdfast hands the result over, and commits what has come together while the program goes on
(at most `journal.flush_interval_ms`), so a crash repeats some milliseconds of steps instead of one. A block ends when
all of it is durable, and that is in the time. Steps that must not be repeated are *guarded*: two commits each, measured
beside the others, and more than DBOS promises of any step.

DBOS is measured as it comes (rollback journal) and with WAL, which its users have to set on the file themselves; both
with SQLite's default `synchronous=FULL`. It runs in a process of its own; ours in this one. One workflow is a plain
function in both. 64 are threads of DBOS, its faster way, and coroutines here. What would be unfair: DBOS on PostgreSQL,
which is not embedded, and its start, which is not in the time.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import holdfast
from bench import measure
from bench.measure import Bar, Contestant, Measured, Options, Part, Sample
from holdfast import Log, Settings

RESULT = "x" * 200
MANY = 64
SCRIPT = Path(__file__).parent / "rivals" / "dbos_rate.py"
ONE, ALL, GUARDED, GUARDED_ALL = (
    "steps, 1 workflow",
    f"steps, {MANY} workflows",
    "guarded, 1 workflow",
    f"guarded, {MANY} workflows",
)
MODES = {"delete": "DBOS as it comes", "wal": "DBOS with WAL"}
_numbers = itertools.count()


def dbos(scratch: Path, options: Options) -> Part:
    """Both, in turn."""
    contestants = [
        Contestant(ONE, partial(ours, scratch, 1, guarded=False)),
        Contestant(ALL, partial(ours, scratch, MANY, guarded=False)),
        Contestant(GUARDED, partial(ours, scratch, 1, guarded=True)),
        Contestant(GUARDED_ALL, partial(ours, scratch, MANY, guarded=True)),
    ]
    claims = []
    if importlib.util.find_spec("dbos") is None:
        claims.append("not measured: dbos is not installed (script/setup dev bench)")
    else:
        contestants += [
            Contestant(theirs_name(mode, count), partial(theirs, scratch, mode, count))
            for count in (1, MANY)
            for mode in MODES
        ]
    measured: Measured = measure.interleave(contestants, options)
    bars = [
        Bar(ONE, theirs_name("delete", 1), 8),
        Bar(ONE, theirs_name("wal", 1), 8),
        Bar(ALL, theirs_name("delete", MANY), 50),
        Bar(ALL, theirs_name("wal", MANY), 20),
    ]
    return Part("steps per second, beside DBOS", measured, bars, claims)


# --- ours ---------------------------------------------------------------------------------------------------


def ours(scratch: Path, workflows: int, seconds: float, *, guarded: bool) -> Sample:
    """So many executions in a new log, until the time is over and everything is durable."""
    place = scratch / f"log-{next(_numbers)}"
    # A bench runs more steps in one execution than a program should.
    with holdfast.open(place, settings=Settings.from_mapping({"executions": {"steps_max": 0}})) as log:
        if workflows == 1:
            return one(log, seconds, guarded=guarded)
        return asyncio.run(many(log, workflows, seconds, guarded=guarded))


def _how(guarded: bool) -> dict[str, str]:
    return {"effect": "exactly_once_guarded", "on_ambiguous": "fail"} if guarded else {}


def work() -> str:
    return RESULT


async def work_async() -> str:
    await asyncio.sleep(0)  # as anything that waits: else one workflow would run to its end before the next begins
    return RESULT


def one(log: Log, seconds: float, *, guarded: bool) -> Sample:
    how, rows = _how(guarded), 0
    with log.execution("bench") as ctx:
        ctx.step("work", work, **how)
        cpu, begun = time.process_time(), time.perf_counter()
        while time.perf_counter() - begun < seconds:
            ctx.step("work", work, **how)
            rows += 1
    took, cpu = time.perf_counter() - begun, time.process_time() - cpu
    return Sample(GUARDED if guarded else ONE, rows, took, cpu_seconds=cpu)


async def many(log: Log, workflows: int, seconds: float, *, guarded: bool) -> Sample:
    how = _how(guarded)
    gate = asyncio.Barrier(workflows)
    begun = cpu = 0.0

    async def run() -> int:
        nonlocal begun, cpu
        rows = 0
        async with log.execution("bench") as ctx:
            await ctx.step("work", work_async, **how)
            if await gate.wait() == 0:
                cpu, begun = time.process_time(), time.perf_counter()
            await gate.wait()
            while time.perf_counter() - begun < seconds:
                await ctx.step("work", work_async, **how)
                rows += 1
        return rows

    rows = sum(await asyncio.gather(*(run() for _ in range(workflows))))
    took = time.perf_counter() - begun
    return Sample(GUARDED_ALL if guarded else ALL, rows, took, cpu_seconds=time.process_time() - cpu)


# --- DBOS ---------------------------------------------------------------------------------------------------


def theirs_name(mode: str, workflows: int) -> str:
    return f"{MODES[mode]}, {workflows} workflow{'s' * (workflows > 1)}"


def theirs(scratch: Path, mode: str, workflows: int, seconds: float) -> Sample:
    """DBOS in a new file, in a process of its own."""
    place = scratch / f"dbos-{next(_numbers)}"
    place.mkdir()
    command = [sys.executable, str(SCRIPT), str(place), mode, str(workflows), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 120, check=False)
    if done.returncode:
        raise RuntimeError(f"DBOS did not run: {done.stderr[-2000:]}")
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    return Sample(theirs_name(mode, workflows), found["rows"], found["seconds"], cpu_seconds=found["cpu_seconds"])
