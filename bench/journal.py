"""The journal beside its limit and its rivals: what an acknowledged, sealed, durable append costs.

Measured in one run, 200-byte payloads, encryption on, every group synced:

- 64 asyncio producers and 64 threads of single acknowledged appends, against every rival that is installed and
  against SQLite's own `executemany` of the same rows in groups of 64;
- one producer with a window of 256 tickets, and batches of 1000, against `executemany` in the same groups;
- one producer, one append at a time, against one bare commit;
- `offer` alone, `import holdfast` alone;
- the same rate in a log of ten thousand and of ten million records, in alternating rounds, and memory.

Fair to say beside the ratios: the journal stores a group as one sealed blob, SQLite's `executemany` stores a
row per record; that is the design, not an accident. Its group is what arrived during the last sync.

Rivals have two bars each: against their faster Python client, which is what a Python program would use instead, and
against their own client in C, which shows what the server can do. Both are printed, and both belong into a headline.

The p99.9 of 64 tasks has a bar too, against the p99.9 of the limit in the same run, because milliseconds are the
disk's. One in about two hundred commits of the limit meets SQLite's checkpoint, so its p99.9 is a checkpoint. Ours was
one as well, and a longer one: 1.46 x the limit's (8.9 ms against 6.1) when the bar was set. At most 0.75 x is half of
that, and means that appends do not wait for checkpoints any more.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import holdfast
from bench import limit, measure, rivals
from bench.measure import PAYLOAD, PRODUCERS, Bar, Contestant, Measured, Options, Part, Sample
from holdfast import Keyring, Log, Settings, Ticket, Topic

TASKS, THREADS = f"journal, {PRODUCERS} tasks", f"journal, {PRODUCERS} threads"
WINDOW, BATCH, SINGLE = "journal, window 256", "journal, batch 1000", "journal, one by one"
TOOLS = ("pgbench", "redis-benchmark")
POSTGRESQL = ("postgresql", "(postgresql, asyncio)")
SMALL, LARGE = "journal of 10 thousand", "journal of 10 million"
TASKS_AT_LEAST, WINDOW_AT_LEAST, SINGLE_AT_MOST, P999_AT_MOST = 0.40, 0.65, 2.0, 0.75
KEYRING = Keyring.generate()


@contextmanager
def fresh(directory: Path) -> Iterator[tuple[Log, Topic]]:
    """An empty sealed log, removed afterwards."""
    path = directory / "journal"
    try:
        with holdfast.open(path, keyring=KEYRING, settings=Settings()) as log:
            yield log, log.topic("bench")
    finally:
        shutil.rmtree(path, ignore_errors=True)


def tasks(directory: Path, seconds: float) -> Sample:
    """Single acknowledged appends from 64 coroutines."""
    with fresh(directory) as (_, topic):
        append = partial(topic.submit, PAYLOAD)
        return asyncio.run(measure.drive_tasks(TASKS, [append] * PRODUCERS, seconds))


def threads(directory: Path, seconds: float) -> Sample:
    """Single acknowledged appends from 64 threads."""
    with fresh(directory) as (_, topic):
        return measure.drive_threads(THREADS, [lambda: topic.append(PAYLOAD)] * PRODUCERS, seconds)


def one_by_one(directory: Path, seconds: float) -> Sample:
    """One producer that waits for each append."""
    with fresh(directory) as (_, topic):
        return measure.drive_threads(SINGLE, [lambda: topic.append(PAYLOAD)], seconds)


def batches(directory: Path, seconds: float) -> Sample:
    """Batches of a thousand, one at a time."""
    with fresh(directory) as (_, topic):
        batch = [PAYLOAD] * 1000
        sample = measure.drive_threads(BATCH, [lambda: topic.append_batch(batch)], seconds)
        return Sample(sample.name, sample.rows * 1000, sample.seconds, sample.p50_ms, sample.p99_ms, sample.cpu_seconds)


def windowed(name: str, topic: Topic, seconds: float, window: int = 256) -> Sample:
    """One producer that keeps `window` tickets under way."""
    under_way: deque[Ticket] = deque()
    cpu, began, rows = time.process_time(), time.perf_counter(), 0
    deadline = began + seconds
    while time.perf_counter() < deadline:
        for _ in range(window // 4):
            under_way.append(topic.submit(PAYLOAD))
            if len(under_way) >= window:
                under_way.popleft().result()
        rows += window // 4
    while under_way:
        under_way.popleft().result()
    return Sample(name, rows, time.perf_counter() - began, cpu_seconds=time.process_time() - cpu)


def pipelined(directory: Path, seconds: float) -> Sample:
    """The window in a fresh log; tells the size of the groups that it made."""
    with fresh(directory) as (log, topic):
        sample = windowed(WINDOW, topic, seconds)
        stats = log.stats().journal
        groups.append(stats.records_total / stats.groups_total)
        return sample


groups: list[float] = []


def offers(directory: Path) -> float:
    """The median of a single offer, in microseconds."""
    with fresh(directory) as (log, topic):
        laps = []
        for n in range(100_000):
            began = time.perf_counter_ns()
            accepted = topic.offer(PAYLOAD)
            laps.append(time.perf_counter_ns() - began)
            if not accepted or n % 20_000 == 0:
                log.flush()
        return statistics.median(laps) / 1000


def import_cost() -> float:
    """The median of `import holdfast` in a fresh interpreter, in milliseconds, the interpreter's own start excluded."""
    code = "import time; a = time.perf_counter(); import holdfast; print((time.perf_counter() - a) * 1000)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(7)]
    return statistics.median(float(run.stdout) for run in runs)


def fill(topic: Topic, records: int) -> None:
    """Bring a log to its size, in batches."""
    for _ in range(records // 10_000):
        topic.append_batch([PAYLOAD] * 10_000)


def growth(directory: Path, options: Options) -> tuple[Measured, list[str]]:
    """The rate at ten thousand and at ten million records, in alternating rounds, and memory before and after."""
    large = 1_000_000 if options.quick else 10_000_000
    paths = {SMALL: directory / "small", LARGE: directory / "large"}
    logs = {name: holdfast.open(path, keyring=KEYRING, settings=Settings()) for name, path in paths.items()}
    topics = {name: log.topic("bench") for name, log in logs.items()}
    try:
        fill(topics[SMALL], 10_000)
        before = _resident()
        print(f"filling a log with {large:,} records ...", flush=True)
        fill(topics[LARGE], large)
        after = _resident()
        contestants = [Contestant(name, partial(windowed, name, topics[name])) for name in paths]
        measured = measure.interleave(contestants, options)
        size = (paths[LARGE] / "durable.db").stat().st_size
        remark = (
            f"filled to {large:,} records, {size / 2**20:,.0f} MiB on disk; resident memory {before:.0f} MiB before,"
            f" {after:.0f} MiB after filling, {_resident():.0f} MiB in the end"
        )
    finally:
        for log in logs.values():
            log.close()
    return measured, [remark]


def _resident() -> float:
    """Memory of this process in MiB, now; where the kernel does not tell, at its highest."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def raw_bars() -> list[Bar]:
    """What is promised against SQLite's own commits of the same rows."""
    return [Bar(TASKS, limit.name_of(64), TASKS_AT_LEAST), Bar(WINDOW, limit.name_of(256), WINDOW_AT_LEAST)]


def latency_claims(measured: Measured) -> list[str]:
    """What is promised of waiting: of one producer, and of the unluckiest of 64."""
    single = measured.latency_ratio(SINGLE, limit.name_of(1), "p50_ms")
    worst = measured.latency_ratio(TASKS, limit.name_of(64), "p999_ms")
    text = f"p99.9 of {TASKS}, against that of {limit.name_of(64)},"
    return [
        measure.claim("one append after the other, against a bare commit,", single, SINGLE_AT_MOST, "x"),
        measure.claim(text, worst, P999_AT_MOST, "x"),
    ]


def hot(directory: Path, options: Options) -> Part:
    """The hot paths beside their limits alone, for whoever works on them."""
    measured = measure.interleave(
        [limit.contestant(directory, group) for group in (1, 64, 256)] + ours(directory)[:3], options
    )
    return Part("the journal", measured, raw_bars(), latency_claims(measured), [limit.name_of(64), limit.name_of(256)])


def ours(directory: Path) -> list[Contestant]:
    """The ways to append, the hot ones first."""
    ways = {TASKS: tasks, SINGLE: one_by_one, WINDOW: pipelined, THREADS: threads, BATCH: batches}
    return [Contestant(name, partial(run, directory)) for name, run in ways.items()]


def rival_bars(field: rivals.Field, measured: Measured) -> list[Bar]:
    """Each rival that was measured, from Python and driven from C."""
    promised = {"postgresql": (5.0, 2.0), "jetstream": (5.0, 5.0), "redis": (2.5, 1.0)}
    bars = []
    for name in field.versions:
        from_python, from_c = promised[name]
        bars.append(Bar(TASKS, field.fastest(name, measured), from_python))
        bars += [Bar(TASKS, f"({name}, {tool})", from_c) for tool in TOOLS if f"({name}, {tool})" in measured.samples]
    return bars


def main(options: Options) -> None:
    """Run all of it, print tables and verdicts, keep the samples."""
    with measure.workspace(options) as directory:
        with rivals.running(directory) as field:
            facts = {**measure.machine(directory), "rivals": field.versions}
            limits = [limit.contestant(directory, group) for group in (1, 64, 256, 1000)]
            entered = [*limits, *ours(directory), *field.contestants, *field.natives]
            measured = measure.interleave(entered, options)
            against = rival_bars(field, measured)
        claims = [
            *latency_claims(measured),
            measure.claim("offer, median,", offers(directory), 2.0, "us"),
            measure.claim("import holdfast, median,", import_cost(), 80.0, "ms"),
            f"group size of the window of 256: {statistics.median(groups):.0f} records",
            *field.absent,
        ]
        grown, remarks = growth(directory, options)
    threaded = [Bar(THREADS, bar.rival, 1.5) for bar in against if bar.rival in POSTGRESQL]
    bars = [*raw_bars(), Bar(BATCH, limit.name_of(1000), 1.0), *against, *threaded]
    growth_bar = Bar(LARGE, SMALL, 0.75)
    print("", measure.table(measured, [limit.name_of(64), *(bar.rival for bar in against)]), "", sep="\n")
    print(*(measure.verdict(measured, bar) for bar in bars), *claims, "", sep="\n")
    print(measure.table(grown, [SMALL]), measure.verdict(grown, growth_bar), *remarks, sep="\n")
    for name, samples in grown.samples.items():
        measured.samples[name] = samples
    path = measure.save("journal", measured, facts, bars=[*bars, growth_bar], remarks=[*claims, *remarks])
    print(f"saved as bench/results/{path.name}")
