"""One log in many processes: what sharing costs beside a log of one's own, and beside PostgreSQL.

- `tasks`: 64 coroutines of single acknowledged appends, all in the process that owns the log, and eight in each of
  eight processes, of which one owns the log and is busy for all of them. Beside them PostgreSQL with 64 connections. On
  a machine with few cores the eight processes share them, with the owner among them: that is what is measured.
- `rows`: typed batches of ten thousand rows, one at a time, by the owner alone and by one client of an owner that does
  nothing else.
- `takeover`: the owner is killed (`kill -9`); how long it takes until a client's next append is acknowledged. Most of
  it is recovery, which grows with what is in the journal; here that is little.

Unfair would be to count the time in which processes start: they are there and have appended before the clock starts.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import holdfast
from bench import measure, rivals
from bench.measure import PAYLOAD, PRODUCERS, Bar, Contestant, Options, Part, Sample
from bench.shared_member import rows as typed_rows
from holdfast import Settings

PROCESSES = 8
ALONE, SHARED = f"one process, {PRODUCERS} tasks", f"{PROCESSES} processes, {PRODUCERS // PROCESSES} tasks each"
ROWS_ALONE, ROWS_SHARED = "typed rows, the owner", "typed rows, a client"
SHARED_AT_LEAST, ROWS_AT_LEAST, POSTGRESQL_AT_LEAST, TAKEOVER_AT_MOST_S = 0.5, 0.6, 2.0, 1.0


class Crew:
    """Processes that share a log, told what to do all at once."""

    def __init__(self, count: int) -> None:
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "bench.shared_member"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for _ in range(count)
        ]

    def tell(self, line: str, some: slice = slice(None)) -> list[dict[str, float]]:
        """Tell them, then wait for all of their answers."""
        told = self._processes[some]
        for process in told:
            assert process.stdin is not None
            process.stdin.write(line + "\n")
            process.stdin.flush()
        return [self._answer(process) for process in told]

    def _answer(self, process: subprocess.Popen[str]) -> dict[str, float]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("a process of the bench has ended")
        found: dict[str, float] = json.loads(line)
        return found

    def pid(self, number: int) -> int:
        return self._processes[number].pid

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()


@contextmanager
def crew(count: int) -> Iterator[Crew]:
    """Processes that are there until the end."""
    made = Crew(count)
    try:
        yield made
    finally:
        made.end()


def tasks(scratch: Path, options: Options) -> Part:
    """Single appends: alone, shared, and PostgreSQL."""
    with crew(PROCESSES) as members, rivals.running(scratch) as field:
        postgresql = [one for one in field.contestants if "postgresql" in one.name]
        contestants = [
            Contestant(ALONE, partial(_alone, scratch)),
            Contestant(SHARED, partial(_shared, scratch, members)),
            *postgresql,
        ]
        measured = measure.interleave(contestants, options)
    bars = [Bar(SHARED, ALONE, SHARED_AT_LEAST)]
    if postgresql:
        bars.append(Bar(SHARED, max((one.name for one in postgresql), key=measured.median), POSTGRESQL_AT_LEAST))
    return Part("single acknowledged appends", measured, bars=bars, references=[ALONE])


def _alone(scratch: Path, seconds: float) -> Sample:
    with _fresh(scratch) as path, holdfast.open(path, settings=Settings()) as log:
        append = partial(log.topic("bench").submit, PAYLOAD)
        return asyncio.run(measure.drive_tasks(ALONE, [append] * PRODUCERS, seconds))


def _shared(scratch: Path, members: Crew, seconds: float) -> Sample:
    with _fresh(scratch) as path:
        members.tell(f"open {path}")
        samples = members.tell(f"tasks {PRODUCERS // PROCESSES} {seconds}")
        members.tell("close")
    return _together(SHARED, samples)


def _together(name: str, samples: Sequence[dict[str, float]]) -> Sample:
    """Samples of processes that worked side by side; the slowest says how long it took."""
    return Sample(
        name,
        int(sum(one["rows"] for one in samples)),
        max(one["seconds"] for one in samples),
        statistics.median(one["p50_ms"] for one in samples),
        max(one["p99_ms"] for one in samples),
        sum(one["cpu"] for one in samples),
    )


def typed(scratch: Path, options: Options) -> Part:
    """Typed batches of ten thousand rows, alone and through the socket."""
    with crew(2) as members:
        contestants = [
            Contestant(ROWS_ALONE, partial(_rows_alone, scratch)),
            Contestant(ROWS_SHARED, partial(_rows_shared, scratch, members)),
        ]
        measured = measure.interleave(contestants, options)
    bars = [Bar(ROWS_SHARED, ROWS_ALONE, ROWS_AT_LEAST)]
    return Part("typed batches of ten thousand rows", measured, bars=bars, references=[ROWS_ALONE])


def _rows_alone(scratch: Path, seconds: float) -> Sample:
    with _fresh(scratch) as path, holdfast.open(path, settings=Settings()) as log:
        sample = typed_rows(log, seconds)
    return Sample(ROWS_ALONE, sample.rows, sample.seconds, sample.p50_ms, sample.p99_ms, sample.cpu_seconds)


def _rows_shared(scratch: Path, members: Crew, seconds: float) -> Sample:
    with _fresh(scratch) as path:
        members.tell(f"open {path}", slice(0, 1))  # the owner
        members.tell(f"open {path}", slice(1, 2))
        samples = members.tell(f"rows {seconds}", slice(1, 2))
        members.tell("close", slice(1, 2))
        members.tell("close", slice(0, 1))
    return _together(ROWS_SHARED, samples)


def takeover(scratch: Path, options: Options) -> Part:
    """From the kill of the owner to the next acknowledgement."""
    took = []
    for _ in range(options.rounds):
        with _fresh(scratch) as path, crew(1) as members:
            members.tell(f"open {path}")
            with holdfast.open(path, share=True, settings=Settings()) as log:
                topic = log.topic("bench")
                for _ in range(1000):
                    topic.submit(PAYLOAD)
                topic.append(PAYLOAD)
                os.kill(members.pid(0), signal.SIGKILL)
                began = time.perf_counter()
                topic.append(PAYLOAD)
                took.append(time.perf_counter() - began)
    worst, median = max(took), statistics.median(took)
    verdict = "ok" if worst <= TAKEOVER_AT_MOST_S else "MISS"
    bar = f"at most {TAKEOVER_AT_MOST_S:g}: {verdict}"
    claim = f"takeover after kill -9: median {median:.3f} s, longest {worst:.3f} s ({bar})"
    return Part("the owner is killed", measure.Measured(), claims=[claim])


@contextmanager
def _fresh(scratch: Path) -> Iterator[Path]:
    """A place for one log, removed afterwards."""
    path = scratch / "log"
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


PARTS = {"tasks": tasks, "rows": typed, "takeover": takeover}


def main(options: Options) -> None:
    """Run all parts, or those that were asked for, and print all bars."""
    unknown = [name for name in options.only if name not in PARTS]
    if unknown:
        raise SystemExit(f"there is no part {', '.join(unknown)}; there are: {', '.join(PARTS)}")
    done: list[Part] = []
    with measure.workspace(options) as scratch:
        facts = measure.machine(scratch)
        for name in options.only or PARTS:
            place = scratch / name
            place.mkdir(mode=0o711)
            print(f"=== {name}", flush=True)
            done.append(PARTS[name](place, options))
            print(measure.report(done[-1]), flush=True)
    measure.conclude("shared", done, facts)
